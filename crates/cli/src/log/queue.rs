//! `staves log queue`: a work queue in a log, from the shell.

use std::io::Write;
use std::time::{Duration, Instant};

use bytes::Bytes;
use clap::{Args, Subcommand};
use serde_json::json;
use staves_client::{LogQueue, QUEUE_TAKE_MAX, QueueItem, QueueOptions, QueueStat};
use staves_wire::ErrorCode;

use super::append::{Lines, positions};
use super::keep::seconds;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, properties};

/// Bytes of an item's record beside the item, and some room.
const HEAD_BYTES: usize = 16;

/// The queue of a command.
#[derive(Args, Clone, Debug)]
pub struct QueuePlaceArgs {
    /// The log
    log: String,
    /// The tag of the queue's records: a number that nothing else in the log bears
    #[arg(long, value_name = "TAG", default_value_t = 1)]
    tag: u64,
    /// The pool; if not given, the only one of logs
    #[arg(long)]
    pool: Option<String>,
}

#[derive(Subcommand, Debug)]
pub enum QueueCommand {
    /// Push each line of standard input as an item, and print their positions once all copies have them
    Push {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Most deliveries of these items; then they are dead
        #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
        deliveries: u32,
    },
    /// Take items that nobody holds, and print each behind its claim, POSITION:TOKEN
    Take {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Most items
        #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=QUEUE_TAKE_MAX as i64))]
        count: u32,
        /// The time after which others may take them: 1s to 12h
        #[arg(long, value_name = "TIME", default_value = "30s", value_parser = seconds)]
        lease: u64,
        /// Wait so long for an item if there is none
        #[arg(long, value_name = "TIME", value_parser = seconds)]
        wait: Option<u64>,
    },
    /// Acknowledge items that were taken: they are done
    Ack {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Claims, as 'take' printed them
        #[arg(value_name = "POSITION:TOKEN", required = true, value_parser = claim)]
        claims: Vec<ItemClaimArg>,
    },
    /// Give items back that were taken: they can be taken at once
    Return {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Claims, as 'take' printed them
        #[arg(value_name = "POSITION:TOKEN", required = true, value_parser = claim)]
        claims: Vec<ItemClaimArg>,
    },
    /// The number of items
    Stat {
        #[command(flatten)]
        queue: QueuePlaceArgs,
    },
    /// Print items that were delivered as often as they may be, each behind its position
    Dead {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Most items
        #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=QUEUE_TAKE_MAX as i64))]
        count: u32,
    },
    /// Make dead items ready again
    Revive {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Their positions
        #[arg(value_name = "POSITION", required = true)]
        items: Vec<u64>,
    },
    /// End dead items
    Discard {
        #[command(flatten)]
        queue: QueuePlaceArgs,
        /// Their positions
        #[arg(value_name = "POSITION", required = true)]
        items: Vec<u64>,
    },
}

/// An item and the token that it was taken by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemClaimArg {
    position: u64,
    token: u64,
}

fn claim(text: &str) -> Result<ItemClaimArg, String> {
    let parsed = text.split_once(':').and_then(|(position, token)| {
        Some(ItemClaimArg {
            position: position.parse().ok()?,
            token: token.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| format!("'{text}' is no claim: 'staves log queue take' prints them"))
}

pub fn run(session: &Cluster, command: &QueueCommand, out: Format) -> anyhow::Result<()> {
    let default = QueueOptions::default;
    match command {
        QueueCommand::Push { queue, deliveries } => {
            let deliveries_max = *deliveries;
            let options = QueueOptions {
                deliveries_max,
                ..default()
            };
            push(session, &opened(session, queue, options)?, out)
        }
        QueueCommand::Take {
            queue,
            count,
            lease,
            wait,
        } => {
            let lease = Duration::from_secs(*lease);
            let mut queue = opened(session, queue, QueueOptions { lease, ..default() })?;
            let wait = Duration::from_secs(wait.unwrap_or(0));
            let taken = session.wait(queue.take(*count as usize, wait))?;
            print(&taken, out)
        }
        QueueCommand::Ack { queue, claims } => {
            let items = items_of(claims);
            let mut opened = opened(session, queue, default())?;
            let done = session.wait(opened.acknowledge(&items))?;
            session.wait(opened.move_cursor())?;
            let wanted = claims.iter().map(|claim| claim.position).collect();
            settled((&queue.log, out), "acknowledged", done, wanted)
        }
        QueueCommand::Return { queue, claims } => {
            let items = items_of(claims);
            let mut opened = opened(session, queue, default())?;
            let given = session.wait(opened.give_back(&items, Duration::ZERO))?;
            let wanted = claims.iter().map(|claim| claim.position).collect();
            settled((&queue.log, out), "given back", given, wanted)
        }
        QueueCommand::Stat { queue } => {
            let stat = session.wait(opened(session, queue, default())?.stat())?;
            output::answer(out, &as_json(queue, &stat), |_| described(queue, &stat))
        }
        QueueCommand::Dead { queue, count } => {
            let mut queue = opened(session, queue, default())?;
            let dead = session.wait(queue.dead(*count as usize))?;
            print_dead(&dead, out)
        }
        QueueCommand::Revive { queue, items } => {
            let mut opened = opened(session, queue, default())?;
            let revived = session.wait(opened.revive(items))?;
            settled((&queue.log, out), "revived", revived, items.clone())
        }
        QueueCommand::Discard { queue, items } => {
            let mut opened = opened(session, queue, default())?;
            let ended = session.wait(opened.discard(items))?;
            session.wait(opened.move_cursor())?;
            settled((&queue.log, out), "discarded", ended, items.clone())
        }
    }
}

fn opened(
    session: &Cluster,
    queue: &QueuePlaceArgs,
    options: QueueOptions,
) -> anyhow::Result<LogQueue> {
    let (pool, log) = (queue.pool.as_deref(), &queue.log);
    let client = &session.client;
    session.wait(LogQueue::open(client, pool, log, queue.tag, options))
}

fn push(session: &Cluster, queue: &LogQueue, out: Format) -> anyhow::Result<()> {
    let mut lines = Lines::of_stdin();
    let mut stdout = std::io::stdout().lock();
    loop {
        let batch = lines.batch_with(queue.batch_items_max(), HEAD_BYTES)?;
        if batch.is_empty() {
            return Ok(());
        }
        let first = session.wait(queue.push(&batch))?;
        positions(&mut stdout, first, batch.len(), out)?;
    }
}

fn print(taken: &[QueueItem], out: Format) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for item in taken {
        let claim = format!("{}:{}", item.position, item.token);
        let written = match out {
            Format::Json => {
                let mut line = json!({ "claim": claim, "deliveries": item.deliveries });
                output::put_value(&mut line, &item.item);
                writeln!(stdout, "{line}")
            }
            Format::Table => behind(&mut stdout, &claim, &item.item),
        };
        output::written(written)?;
    }
    output::written(stdout.flush())
}

fn print_dead(dead: &[(u64, u32, Bytes)], out: Format) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    for (position, deliveries, item) in dead {
        let written = match out {
            Format::Json => {
                let mut line = json!({ "position": position, "deliveries": deliveries });
                output::put_value(&mut line, item);
                writeln!(stdout, "{line}")
            }
            Format::Table => behind(&mut stdout, &position.to_string(), item),
        };
        output::written(written)?;
    }
    output::written(stdout.flush())
}

fn behind(stdout: &mut impl Write, head: &str, item: &[u8]) -> std::io::Result<()> {
    write!(stdout, "{head} ")?;
    stdout.write_all(item)?;
    stdout.write_all(b"\n")
}

fn items_of(claims: &[ItemClaimArg]) -> Vec<QueueItem> {
    let item = |claim: &ItemClaimArg| QueueItem {
        position: claim.position,
        token: claim.token,
        deliveries: 0,
        lease_end: Instant::now(),
        item: Bytes::new(),
    };
    claims.iter().map(item).collect()
}

/// The answer to a change of items: an error if one of them was not changed.
fn settled(
    (log, out): (&str, Format),
    what: &str,
    done: Vec<u64>,
    wanted: Vec<u64>,
) -> anyhow::Result<()> {
    let missed: Vec<String> = wanted
        .iter()
        .filter(|item| !done.contains(item))
        .map(u64::to_string)
        .collect();
    if !missed.is_empty() {
        let text = format!(
            "of {} items in log '{log}' {} were {what}; these were not, for they are gone or another consumer has them: {}. 'staves log queue stat {log}' shows what there is",
            wanted.len(),
            done.len(),
            missed.join(", ")
        );
        return Err(Failure::Wire(ErrorCode::Refused, text).into());
    }
    let answer = json!({ "log": log, "items": done, "result": what });
    let line = format!("{} items of log '{log}': {what}", done.len());
    output::changed(out, answer, line, None)
}

fn as_json(queue: &QueuePlaceArgs, stat: &QueueStat) -> serde_json::Value {
    json!({
        "log": queue.log,
        "tag": queue.tag,
        "ready": stat.ready,
        "held": stat.held,
        "dead": stat.dead,
        "oldest": stat.oldest,
        "more": stat.is_more,
    })
}

fn described(queue: &QueuePlaceArgs, stat: &QueueStat) -> String {
    let more = if stat.is_more { ", and more" } else { "" };
    let oldest = stat.oldest.map_or_else(|| "-".into(), |at| at.to_string());
    properties([
        ("log", queue.log.clone()),
        ("tag", queue.tag.to_string()),
        ("ready", format!("{}{more}", stat.ready)),
        ("held", stat.held.to_string()),
        ("dead", stat.dead.to_string()),
        ("oldest item", oldest),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_two_numbers() {
        let (position, token) = (7, 12);
        assert_eq!(claim("7:12"), Ok(ItemClaimArg { position, token }));
        for wrong in ["", "7", "7:", ":7", "a:7", "7:12:1"] {
            let error = claim(wrong).expect_err("no claim");
            assert!(error.contains("queue take"), "{error}");
        }
    }
}
