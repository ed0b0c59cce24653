//! Errors of a configuration.

use std::fmt;
use std::path::PathBuf;

/// The origin of a value.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// In the file, on this line (from 1).
    File {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
    },
    /// By this variable.
    Environment {
        /// Its name.
        variable: String,
    },
    /// By this flag.
    Flag {
        /// Its name, with its dashes.
        flag: String,
    },
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::File { path, line } => write!(f, "{}:{line}", path.display()),
            Origin::Environment { variable } => f.write_str(variable),
            Origin::Flag { flag } => f.write_str(flag),
        }
    }
}

/// The reason for a rejected configuration. Nothing of it is used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        reason: String,
    },
    /// The file is no TOML.
    #[error("{}:{line}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The parser's message.
        reason: String,
    },
    /// A key that does not exist.
    #[error("{origin}: unknown key '{key}'{}", hint(*meant))]
    UnknownKey {
        /// The origin.
        origin: Origin,
        /// The unknown key.
        key: String,
        /// The nearest key that there is.
        meant: Option<&'static str>,
    },
    /// A value that does not fit its key.
    #[error("{origin}: {}{reason}", in_file(origin, key))]
    BadValue {
        /// The origin.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// The fault and a value that fits.
        reason: String,
    },
    /// Values that do not go together, or that the cluster would refuse.
    #[error("{}: {reason}", named(settings))]
    Conflict {
        /// Those that matter, each with where it was set; none where nobody knows.
        settings: Vec<String>,
        /// The fault and the remedy.
        reason: String,
    },
}

impl ConfigError {
    /// A conflict of values, before their origin is known.
    pub(crate) fn conflict(reason: impl Into<String>) -> ConfigError {
        ConfigError::Conflict {
            settings: Vec::new(),
            reason: reason.into(),
        }
    }
}

fn named(settings: &[String]) -> String {
    match settings {
        [] => "the configuration does not hold together".into(),
        some => some.join("; "),
    }
}

/// A flag or a variable names its key already; a line of a file does not.
fn in_file(origin: &Origin, key: &str) -> String {
    match origin {
        Origin::File { .. } => format!("{key}: "),
        Origin::Environment { .. } | Origin::Flag { .. } => String::new(),
    }
}

fn hint(meant: Option<&str>) -> String {
    match meant {
        Some(meant) => format!("; did you mean '{meant}'?"),
        None => "; 'staves config example' shows all keys".into(),
    }
}
