//! `staves config`: what a node would run with, without running it.

use std::path::Path;

use anyhow::Context;
use serde::Serialize;
use staves_node::config::{self, ConfigError, Loaded, Origin};

use crate::args::{Config, Format, Keys};
use crate::output;

pub fn run(command: &Config, out: Format) -> anyhow::Result<()> {
    match command {
        Config::Example => output::print(&config::example())?,
        Config::Check { config, keys } => {
            load(config.as_deref(), keys)?;
            output::answer(out, &Checked { ok: true }, |_| {
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
pub fn load(path: Option<&Path>, keys: &Keys) -> anyhow::Result<Loaded> {
    // A variable that is no text cannot be one of ours.
    let env = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let loaded = config::load(path, env, keys.0.iter().cloned())?;
    if let Err(reason) = crate::up::log_filter(&loaded.config.log) {
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
        .for_each(|warning| eprintln!("staves: warning: {warning}"));
    Ok(loaded)
}

#[derive(Serialize)]
struct Checked {
    ok: bool,
}

#[derive(Serialize)]
struct Entry {
    key: &'static str,
    value: String,
    from: String,
}

fn entries(loaded: &Loaded) -> Vec<Entry> {
    let from = |origin: Option<&Origin>| origin.map_or("default".into(), Origin::to_string);
    let entry = |(key, value, origin)| Entry {
        key,
        value,
        from: from(origin),
    };
    loaded.entries().map(entry).collect()
}
