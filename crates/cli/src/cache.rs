//! `staves cache`: keys and values from the shell.

use std::io::{IsTerminal, Read, Write};

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use staves_wire::ErrorCode;
use staves_wire::cache::{CacheStatsAnswer, Condition, OwnedOp, VALUE_BYTES_MAX};
use staves_wire::service::Answer;

use clap::Subcommand;
use staves_cli_common::cluster::{Cluster, check};
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes, number, or_dash, table};

#[derive(Subcommand, Debug)]
pub enum Cache {
    /// Print the value of a key as it is
    Get {
        /// The key
        key: String,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Set the value of a key
    Put {
        /// The key
        key: String,
        /// The value; without one it is read from standard input
        value: Option<String>,
        /// Only if the key has no value
        #[arg(long, conflicts_with = "if_present")]
        if_absent: bool,
        /// Only if the key has a value
        #[arg(long)]
        if_present: bool,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Delete keys
    Delete {
        /// The keys
        #[arg(required = true)]
        keys: Vec<String>,
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
    /// Keys, bytes and requests, node by node
    Stats {
        /// The pool
        #[arg(long, default_value = "cache")]
        pool: String,
    },
}

pub fn run(cluster: &Cluster, command: &Cache, out: Format) -> anyhow::Result<()> {
    match command {
        Cache::Get { key, pool } => get(cluster, pool, key, out),
        Cache::Put {
            key,
            value,
            if_absent,
            if_present,
            pool,
        } => {
            let value = match value {
                Some(value) => Bytes::copy_from_slice(value.as_bytes()),
                None => read_value()?,
            };
            let condition = match (if_absent, if_present) {
                (true, _) => Condition::IfAbsent,
                (_, true) => Condition::IfPresent,
                _ => Condition::Always,
            };
            put(cluster, pool, key, value, condition, out)
        }
        Cache::Delete { keys, pool } => delete(cluster, pool, keys, out),
        Cache::Stats { pool } => stats(cluster, pool, out),
    }
}

fn get(cluster: &Cluster, pool: &str, key: &str, out: Format) -> anyhow::Result<()> {
    let op = OwnedOp::Get {
        key: Bytes::copy_from_slice(key.as_bytes()),
    };
    let value = match one(cluster, pool, op)? {
        Answer::Value(value) => value,
        _ => return Err(Failure::NotFound(format!("key '{key}' has no value")).into()),
    };
    match out {
        Format::Json => {
            let mut answer = json!({ "key": key });
            output::put_value(&mut answer, &value);
            output::line(answer)?;
        }
        Format::Table => {
            let mut stdout = std::io::stdout().lock();
            output::written(stdout.write_all(&value))?;
            if stdout.is_terminal() {
                let _ = stdout.write_all(b"\n");
            }
        }
    }
    Ok(())
}

fn put(
    cluster: &Cluster,
    pool: &str,
    key: &str,
    value: Bytes,
    condition: Condition,
    out: Format,
) -> anyhow::Result<()> {
    let key_bytes = Bytes::copy_from_slice(key.as_bytes());
    let op = OwnedOp::Set {
        key: key_bytes,
        value,
        condition,
        get_old: false,
    };
    match (one(cluster, pool, op)?, condition) {
        (Answer::Nil, Condition::IfAbsent) => {
            let text = format!("key '{key}' has a value already; nothing was set");
            Err(Failure::Own(Own::ConditionNotMet, text).into())
        }
        (Answer::Nil, _) => {
            Err(Failure::NotFound(format!("key '{key}' has no value; nothing was set")).into())
        }
        _ => output::answer(out, &json!({ "key": key, "result": "set" }), |_| {
            "set".into()
        }),
    }
}

fn delete(cluster: &Cluster, pool: &str, keys: &[String], out: Format) -> anyhow::Result<()> {
    let del = |key: &String| OwnedOp::Del {
        key: Bytes::copy_from_slice(key.as_bytes()),
    };
    let client = cluster.client.of_pool(pool);
    let answers = cluster.wait(client.execute(keys.iter().map(del).collect()))?;
    answers.iter().try_for_each(check)?;
    let deleted = answers
        .iter()
        .filter(|answer| **answer == Answer::Int(1))
        .count();
    output::answer(out, &json!({ "deleted": deleted }), |_| {
        format!("{deleted} deleted")
    })?;
    if deleted == 0 {
        return Err(Failure::NotFound("none of these keys had a value".into()).into());
    }
    Ok(())
}

fn stats(cluster: &Cluster, pool: &str, out: Format) -> anyhow::Result<()> {
    let client = cluster.client.of_pool(pool);
    let stats = cluster.wait(client.stats())?.into_iter();
    let map = client.map();
    let rows: Vec<_> = stats
        .map(|(node, figures)| {
            let name = map.nodes.get(&node).map_or("", |node| &node.name);
            let values = figures
                .ok()
                .map(|figures| FIGURES.map(|one| (one.get)(&figures)));
            (node, name, values)
        })
        .collect();
    let mut total = FIGURES.map(|_| 0);
    for values in rows.iter().filter_map(|(.., values)| values.as_ref()) {
        total
            .iter_mut()
            .zip(values)
            .for_each(|(sum, value)| *sum += value);
    }
    let nodes: Vec<_> = rows
        .iter()
        .map(|(node, name, values)| json!({ "node": node.0, "name": name, "stats": values.as_ref().map(as_json) }))
        .collect();
    let answer = json!({ "pool": pool, "total": as_json(&total), "nodes": nodes });
    output::answer(out, &answer, |_| {
        let headings: Vec<&str> = std::iter::once("node")
            .chain(FIGURES.iter().map(|figure| figure.heading))
            .collect();
        let rows = rows
            .iter()
            .map(|(_, name, values)| row(name, values.as_ref()));
        table(&headings, rows.chain([row("total", Some(&total))]))
    })
}

/// A figure of the nodes' parts of a pool.
struct CacheFigure {
    heading: &'static str,
    /// Its name in JSON.
    name: &'static str,
    get: fn(&CacheStatsAnswer) -> u64,
    show: fn(u64) -> String,
}

macro_rules! figures {
    ($($heading:literal, $field:ident, $show:expr;)*) => {
        [$(CacheFigure {
            heading: $heading,
            name: stringify!($field),
            get: |figures| u64::from(figures.$field),
            show: $show,
        },)*]
    };
}

const FIGURES: [CacheFigure; 8] = figures! {
    "primaries ", buckets, |n| n.to_string();
    "keys ", keys, number;
    "live ", live_bytes, bytes;
    "used ", used_bytes, bytes;
    "budget ", budget_bytes, bytes;
    "reads ", reads, number;
    "hits ", hits, number;
    "writes ", writes, number;
};

fn row(name: &str, values: Option<&[u64; 8]>) -> Vec<String> {
    let shown = FIGURES.iter().enumerate();
    let shown = shown.map(|(at, one)| or_dash(values.map(|values| (one.show)(values[at]))));
    std::iter::once(name.to_owned()).chain(shown).collect()
}

fn as_json(values: &[u64; 8]) -> serde_json::Value {
    let pairs = FIGURES.iter().zip(values);
    pairs.map(|(one, value)| (one.name, *value)).collect()
}

fn one(cluster: &Cluster, pool: &str, op: OwnedOp) -> anyhow::Result<Answer> {
    let client = cluster.client.of_pool(pool);
    let mut answers = cluster.wait(client.execute(vec![op]))?;
    let answer = answers.pop().context("the node answered nothing")?;
    check(&answer)?;
    Ok(answer)
}

fn read_value() -> anyhow::Result<Bytes> {
    let mut value = Vec::new();
    let limit = VALUE_BYTES_MAX as u64 + 1;
    std::io::stdin()
        .lock()
        .take(limit)
        .read_to_end(&mut value)
        .context("cannot read the value")?;
    if value.len() > VALUE_BYTES_MAX {
        return Err(Failure::Wire(
            ErrorCode::TooLarge,
            format!("the value has more than {VALUE_BYTES_MAX} bytes"),
        )
        .into());
    }
    Ok(value.into())
}
