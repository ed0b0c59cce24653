//! `staves config`: what a node would run with, without running it.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use staves_node::config::{self, ConfigError, Loaded, Origin};
use tracing_subscriber::EnvFilter;

use clap::parser::ValueSource;
use clap::{Arg, ArgMatches, Subcommand};
use staves_cli_common::options::Format;
use staves_cli_common::output;
use staves_node::config::KEYS;
use std::path::PathBuf;

#[derive(Subcommand, Debug)]
pub enum Config {
    /// Print a commented file with every key
    Example,
    /// Read a file as 'staves up' would, and say what is wrong with it
    Check {
        /// The file
        #[arg(value_name = "FILE", env = "STAVES_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        keys: ConfigFlags,
    },
    /// Print what 'staves up' would run with, and where each value comes from
    Show {
        /// The file
        #[arg(value_name = "FILE", env = "STAVES_CONFIG")]
        config: Option<PathBuf>,
        #[command(flatten)]
        keys: ConfigFlags,
    },
}

/// A node's configuration as flags, from the one table of keys.
#[derive(Clone, Debug, Default)]
pub struct ConfigFlags(pub Vec<(String, String)>);

impl clap::FromArgMatches for ConfigFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<ConfigFlags, clap::Error> {
        let given = |name: &'static str| {
            // A global option of the same name may come from the environment, which is read apart.
            let source = matches.value_source(name)?;
            let text = matches.get_one::<String>(name)?;
            (source == ValueSource::CommandLine).then_some(())?;
            Some((name.to_owned(), text.clone()))
        };
        Ok(ConfigFlags(
            KEYS.iter().filter_map(|key| given(key.name)).collect(),
        ))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = ConfigFlags::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for ConfigFlags {
    fn augment_args(command: clap::Command) -> clap::Command {
        KEYS.iter().fold(command, |command, key| {
            let default = match key.default {
                "" => String::new(),
                default => format!(" [default: {default}]"),
            };
            command.arg(
                Arg::new(key.name)
                    .long(key.name.replace('_', "-"))
                    .value_name("VALUE")
                    // Of numbers, sizes, times, addresses: what is none is told in their own words.
                    .allow_hyphen_values(key.default.starts_with(|c: char| c.is_ascii_digit()))
                    .help(format!("{}{default}", key.doc)),
            )
        })
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        ConfigFlags::augment_args(command)
    }
}

pub fn run(command: &Config, out: Format) -> anyhow::Result<()> {
    match command {
        Config::Example => output::print(&config::example())?,
        Config::Check { config, keys } => {
            staves_node::check_files(&load(config.as_deref(), keys)?.config)?;
            output::answer(out, &ConfigCheck { ok: true }, |_| {
                "the configuration is sound".into()
            })?;
        }
        Config::Show { config, keys } => {
            let loaded = load(config.as_deref(), keys)?;
            let shown = loaded.show();
            output::answer(out, &entries(&loaded), |_| shown.trim_end().to_owned())?;
        }
    }
    Ok(())
}

/// Reads file, environment and flags; warnings go to stderr.
pub fn load(path: Option<&Path>, keys: &ConfigFlags) -> anyhow::Result<Loaded> {
    // A variable that is no text cannot be one of ours.
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let loaded = config::load(path, env, keys.0.iter().cloned())?;
    if let Err(reason) = log_filter(&loaded.config.log) {
        let origin = loaded.origins.get("log").cloned();
        let origin = origin.context("the default of 'log' is refused")?;
        return Err(ConfigError::BadValue {
            origin,
            key: "log",
            reason,
        }
        .into());
    }
    loaded
        .warnings
        .iter()
        .for_each(|warning| output::say(format_args!("staves: warning: {warning}")));
    Ok(loaded)
}

/// The filter of log lines, or the reason why the text is refused.
pub fn log_filter(log: &str) -> Result<EnvFilter, String> {
    // The library below the directory tells of its inner life; who wants that asks for it by name.
    let quiet = match log.contains("openraft") {
        true => "",
        false => ",openraft=off",
    };
    // The library takes a word that is no level for the name of a target, and logs nothing else.
    if let Some(slip) = log.split(',').find(|part| !is_directive(part.trim())) {
        return Err(format!(
            "'{slip}' is no log level; write error, warn, info, debug, trace or off, or for one part \
             TARGET=LEVEL"
        ));
    }
    EnvFilter::try_new(format!("{log}{quiet}")).map_err(|e| format!("'{log}' is refused: {e}"))
}

fn is_directive(part: &str) -> bool {
    let levels = ["error", "warn", "info", "debug", "trace", "off"];
    let level = part.rsplit_once('=').map_or(part, |(_, level)| level);
    levels.iter().any(|known| known.eq_ignore_ascii_case(level))
}

#[derive(Serialize)]
struct ConfigCheck {
    ok: bool,
}

#[derive(Serialize)]
struct ConfigEntry {
    key: &'static str,
    value: String,
    from: String,
}

fn entries(loaded: &Loaded) -> Vec<ConfigEntry> {
    let from = |origin: Option<&Origin>| origin.map_or("default".into(), Origin::to_string);
    let entry = |(key, value, origin)| ConfigEntry {
        key,
        value,
        from: from(origin),
    };
    loaded.entries().map(entry).collect()
}
