//! `staves cache`: keys and values from the shell.

use std::io::{IsTerminal, Read, Write};

use anyhow::Context;
use bytes::Bytes;
use serde_json::json;
use staves_model::NodeState;
use staves_wire::ErrorCode;
use staves_wire::cache::{Answer, CacheStatsAnswer, Condition, OwnedOp, VALUE_BYTES_MAX};

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
            // JSON has no bytes: what is no text is told in hexadecimal.
            let answer = match std::str::from_utf8(&value) {
                Ok(text) => json!({ "key": key, "value": text }),
                Err(_) => json!({ "key": key, "value_hex": hex(&value) }),
            };
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
    let answers = cluster.execute(pool, keys.iter().map(del).collect())?;
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
    let map = cluster.map()?;
    let text = match map.pool_named(pool) {
        Some(known) if known.is_cache() => None,
        Some(_) => Some(format!(
            "there is no key-value pool '{pool}': it holds regions; 'staves memory list' shows them"
        )),
        None => Some(format!(
            "there is no pool '{pool}'; 'staves pool list' shows those there are"
        )),
    };
    if let Some(text) = text {
        return Err(Failure::NotFound(text).into());
    }
    let up = map
        .nodes
        .values()
        .filter(|node| node.state == NodeState::Up);
    let figures = cluster.cache_stats(pool, up);
    let known = || figures.iter().filter_map(|(_, figures)| figures.as_ref());
    let mut total = CacheStatsAnswer::default();
    for part in known() {
        total.buckets += part.buckets;
        total.keys += part.keys;
        total.live_bytes += part.live_bytes;
        total.used_bytes += part.used_bytes;
        total.budget_bytes += part.budget_bytes;
        total.reads += part.reads;
        total.hits += part.hits;
        total.writes += part.writes;
    }
    let node_json = |(node, figures): &(&staves_model::Node, Option<CacheStatsAnswer>)| json!({ "node": node.id.0, "name": node.name, "stats": figures.as_ref().map(as_json) });
    let nodes: Vec<_> = figures.iter().map(node_json).collect();
    let answer = json!({ "pool": pool, "total": as_json(&total), "nodes": nodes });
    output::answer(out, &answer, |_| {
        let headings = [
            "node",
            "primaries ",
            "keys ",
            "live ",
            "used ",
            "budget ",
            "reads ",
            "hits ",
            "writes ",
        ];
        let rows = figures
            .iter()
            .map(|(node, figures)| row(&node.name, figures.as_ref()));
        table(&headings, rows.chain([row("total", Some(&total))]))
    })
}

fn row(name: &str, figures: Option<&CacheStatsAnswer>) -> Vec<String> {
    let show = |text: &dyn Fn(&CacheStatsAnswer) -> String| or_dash(figures.map(text));
    vec![
        name.to_owned(),
        show(&|f| f.buckets.to_string()),
        show(&|f| number(f.keys)),
        show(&|f| bytes(f.live_bytes)),
        show(&|f| bytes(f.used_bytes)),
        show(&|f| bytes(f.budget_bytes)),
        show(&|f| number(f.reads)),
        show(&|f| number(f.hits)),
        show(&|f| number(f.writes)),
    ]
}

fn as_json(figures: &CacheStatsAnswer) -> serde_json::Value {
    json!({
        "buckets": figures.buckets,
        "keys": figures.keys,
        "live_bytes": figures.live_bytes,
        "used_bytes": figures.used_bytes,
        "budget_bytes": figures.budget_bytes,
        "reads": figures.reads,
        "hits": figures.hits,
        "writes": figures.writes,
    })
}

fn one(cluster: &Cluster, pool: &str, op: OwnedOp) -> anyhow::Result<Answer> {
    let mut answers = cluster.execute(pool, vec![op])?;
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

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
