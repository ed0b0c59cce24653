//! What can be wrong with a configuration.

use std::fmt;
use std::path::PathBuf;

/// Where a value was set.
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

/// Why a configuration was refused. Nothing of it is used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// The file is no TOML.
    #[error("{}:{line}: {reason}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// What the parser says.
        reason: String,
    },
    /// A key that does not exist.
    #[error("{origin}: unknown key '{key}'{}", hint(*meant))]
    UnknownKey {
        /// Where.
        origin: Origin,
        /// What was written.
        key: String,
        /// The nearest key that there is.
        meant: Option<&'static str>,
    },
    /// A value that does not fit its key.
    #[error("{origin}: {}{reason}", in_file(origin, key))]
    BadValue {
        /// Where.
        origin: Origin,
        /// The key.
        key: &'static str,
        /// What is wrong and what would fit.
        reason: String,
    },
    /// Values that do not go together, or that the cluster would refuse.
    #[error("{}: {reason}", named(settings))]
    Conflict {
        /// Those that matter, each with where it was set; none where nobody knows.
        settings: Vec<String>,
        /// What is wrong and what would be right.
        reason: String,
    },
}

impl ConfigError {
    /// What does not hold together, before anybody knows where it was set.
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
