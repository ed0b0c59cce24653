//! `staves log`: logs, and their records from and to the shell.

mod append;
mod command;
mod conditional;
mod cursor;
mod keep;
mod place;
mod queue;
mod read;
mod stream;

use anyhow::Context;
use serde_json::json;
use staves_client::{AppendMode, LogHandle, LogStat};
use staves_model::NodeId;

pub use self::command::LogCommand;
use crate::confirm::confirm;
use staves_cli_common::cluster::{Cluster, find_node};
use staves_cli_common::codes::{Code, Own};
use staves_cli_common::failure::{Failure, with_code};
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, properties};

pub fn run(session: &Cluster, command: &LogCommand, out: Format) -> anyhow::Result<()> {
    match command {
        LogCommand::Create {
            name,
            pool,
            mode,
            sequencer_node,
            sequencer_zone,
            keep,
        } => {
            let at = place::home(
                session,
                sequencer_node.as_deref(),
                sequencer_zone.as_deref(),
            )?;
            create(session, (pool.as_deref(), name), (*mode, at), keep, out)
        }
        LogCommand::Set { name, pool, keep } => {
            if keep.is_empty() {
                let text = format!("nothing to change of log '{name}': {}", keep::OPTIONS);
                return Err(Failure::Own(Own::Usage, text).into());
            }
            let stat = session.wait(session.client.log_stat(pool.as_deref(), name))?;
            set(session, pool.as_deref(), &stat, keep, (out, "changed"))
        }
        LogCommand::Cursor(command) => cursor::run(session, command, out),
        LogCommand::Queue(command) => queue::run(session, command, out),
        LogCommand::Move { name, pool, to } => {
            moved(session, (pool.as_deref(), name), Some(to), out)
        }
        LogCommand::Seal { name, pool } => moved(session, (pool.as_deref(), name), None, out),
        LogCommand::List { pool } => list(session, pool.as_deref(), out),
        LogCommand::Show { name, pool } => show(session, pool.as_deref(), name, out),
        LogCommand::Trim { name, pool, to } => trim(session, (pool.as_deref(), name), *to, out),
        LogCommand::Delete { name, pool, yes } => {
            delete(session, (pool.as_deref(), name), *yes, out)
        }
        LogCommand::Append { .. }
        | LogCommand::Read { .. }
        | LogCommand::Tail { .. }
        | LogCommand::Punch { .. } => run_on_records(session, command, out),
    }
}

/// The log, with its first sequencer if that is to be on a certain node.
fn create(
    session: &Cluster,
    (pool, name): (Option<&str>, &str),
    (mode, at): (command::ModeName, Option<NodeId>),
    keep: &keep::KeepOptions,
    out: Format,
) -> anyhow::Result<()> {
    let client = &session.client;
    let mut stat = session.wait(client.create_log(pool, name, mode.into()))?;
    if let Some(at) = at {
        let moved = session.wait(client.move_log(pool, name, at));
        stat = moved.with_context(|| {
            format!("log '{name}' was created, and its sequencer did not go to node {at}")
        })?;
    }
    if !keep.is_empty() {
        return set(session, pool, &stat, keep, (out, "created"));
    }
    changed(out, &stat, "created")
}

fn trim(
    session: &Cluster,
    (pool, name): (Option<&str>, &str),
    to: u64,
    out: Format,
) -> anyhow::Result<()> {
    let log = open(session, pool, name)?;
    session.wait(log.trim(to))?;
    let stat = session.wait(session.client.log_stat(pool, name))?;
    changed(out, &stat, "trimmed")
}

/// A new term, on another node or where the sequencer is.
fn moved(
    session: &Cluster,
    (pool, name): (Option<&str>, &str),
    to: Option<&str>,
    out: Format,
) -> anyhow::Result<()> {
    let client = &session.client;
    let (stat, result) = match to {
        Some(to) => {
            let to = find_node(&*session.map()?, to)?.id;
            (session.wait(client.move_log(pool, name, to))?, "moved")
        }
        None => (session.wait(client.seal_log(pool, name))?, "sealed"),
    };
    let (node, term) = (sequencer(&stat), stat.term);
    let line = format!("{result}: its sequencer is on {node}, in term {term}");
    changed_with(out, &stat, result, (&line, json!({})))
}

fn delete(
    session: &Cluster,
    (pool, name): (Option<&str>, &str),
    yes: bool,
    out: Format,
) -> anyhow::Result<()> {
    let stat = session.wait(session.client.log_stat(pool, name))?;
    if !yes {
        confirm(session, &format!("log '{name}'"), out)?;
    }
    session.wait(session.client.delete_log(pool, name))?;
    changed(out, &stat, "deleted")
}

/// Those that there are, and an error where there may be others.
fn list(session: &Cluster, pool: Option<&str>, out: Format) -> anyhow::Result<()> {
    let pools = session.wait(session.client.logs_by_pool(pool))?;
    let stats = || pools.iter().flat_map(|of| &of.logs);
    let rows: Vec<_> = stats().map(as_json).collect();
    output::answer(out, &rows, |_| output::columns(COLUMNS, stats()))?;
    let failures = pools
        .iter()
        .filter_map(|of| Some((of, of.failure.as_ref()?)));
    let failures: Vec<_> = failures.collect();
    let Some((_, first)) = failures.first() else {
        return Ok(());
    };
    let texts = failures.iter().map(|(of, why)| {
        let units = staves_model::units::count(of.silent, "unit");
        format!("of pool '{}' {units} did not answer ({why})", of.pool)
    });
    let text = format!(
        "the list may lack logs: {}; see 'staves status'",
        texts.collect::<Vec<_>>().join("; ")
    );
    Err(with_code(Code::Wire(first.code()), text))
}

/// A log with its tail. A log whose tail nobody can tell now is shown all the same.
fn show(session: &Cluster, pool: Option<&str>, name: &str, out: Format) -> anyhow::Result<()> {
    let stat = session.wait(session.client.log_stat(pool, name))?;
    let tail = match stat.term {
        // Nothing was appended: to ask would make a sequencer.
        0 => Ok(stat.trim),
        _ => open(session, pool, name).and_then(|log| session.wait(log.tail())),
    };
    let mut answer = as_json(&stat);
    answer["tail"] = json!(tail.as_ref().ok());
    let tail = tail.map_or_else(
        |why| format!("not known now: {why}"),
        |tail| tail.to_string(),
    );
    output::answer(out, &answer, |_| described(&stat, tail))
}

/// The commands that open the log.
fn run_on_records(session: &Cluster, command: &LogCommand, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        LogCommand::Append {
            name,
            pool,
            tag,
            if_tail,
            if_tag,
        } => {
            let log = open(session, pool.as_deref(), name)?;
            let appended = match if_tail {
                Some(tail) => conditional::append(session, &log, (*tail, *if_tag), tag, out),
                None => append::append(session, &log, tag, out),
            };
            // A log forgets a client by itself that ends without a word, only later.
            if appended.is_ok() {
                let _ended = session.wait(log.close());
            }
            appended
        }
        LogCommand::Read {
            name,
            pool,
            from,
            count,
            follow,
            tag,
        } => {
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            let log = open(session, pool.as_deref(), name)?;
            let wanted = read::Wanted {
                from: from.unwrap_or(stat.trim),
                from_beginning: from.is_none(),
                count: *count,
                follow: *follow,
            };
            match tag {
                Some(tag) => stream::read(session, &log, &stat, *tag, &wanted, out),
                None => read::read(session, &log, &stat, &wanted, out),
            }
        }
        LogCommand::Tail { name, pool } => {
            let log = open(session, pool.as_deref(), name)?;
            let tail = session.wait(log.tail())?;
            let answer = json!({ "log": name, "tail": tail });
            output::answer(out, &answer, |_| tail.to_string())
        }
        LogCommand::Punch { name, pool, at } => {
            let log = open(session, pool.as_deref(), name)?;
            session.wait(log.punch(*at))?;
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            let line = format!("record {at} given up");
            let more = json!({ "position": at });
            changed_with(out, &stat, "punched", (&line, more))
        }
        of_the_log => run(session, of_the_log, out),
    }
}

/// Changes how much of a log is kept.
fn set(
    session: &Cluster,
    pool: Option<&str>,
    stat: &LogStat,
    keep: &keep::KeepOptions,
    (out, what): (Format, &str),
) -> anyhow::Result<()> {
    let rules = keep.changed(stat.retention);
    let set = session.client.set_log_retention(pool, &stat.name, rules);
    changed(out, &session.wait(set)?, what)
}

fn open(session: &Cluster, pool: Option<&str>, name: &str) -> anyhow::Result<LogHandle> {
    session.wait(session.client.open_log(pool, name))
}

fn changed(out: Format, stat: &LogStat, result: &str) -> anyhow::Result<()> {
    changed_with(out, stat, result, (result, json!({})))
}

/// The log after a change: the change in a word and more fields for programs, and a line for people.
fn changed_with(
    out: Format,
    stat: &LogStat,
    result: &str,
    (line, more): (&str, serde_json::Value),
) -> anyhow::Result<()> {
    let mut answer = as_json(stat);
    answer["result"] = result.into();
    for (key, value) in more.as_object().into_iter().flatten() {
        answer[key] = value.clone();
    }
    let line = format!("log '{}' of pool '{}': {line}", stat.name, stat.pool);
    output::changed(out, answer, line, None)
}

fn as_json(stat: &LogStat) -> serde_json::Value {
    json!({
        "log": stat.name,
        "pool": stat.pool,
        "mode": mode(stat.mode),
        "term": stat.term,
        "sequencer": stat.sequencer,
        "units": stat.units,
        "trim": stat.trim,
        "keep": keep::as_json(stat),
        "cursors": stat.cursors,
    })
}

fn mode(mode: AppendMode) -> &'static str {
    match mode {
        AppendMode::Bind => "bind",
        AppendMode::Predict => "predict",
        AppendMode::Corfu => "corfu",
    }
}

/// The node of the sequencer, for people.
fn sequencer(stat: &LogStat) -> String {
    match (&stat.sequencer, stat.term) {
        (Some(node), _) => node.clone(),
        (None, 0) => "none before the first append".into(),
        (None, _) => "gone: the next append makes another".into(),
    }
}

const COLUMNS: &[Column<LogStat>] = &[
    ("log", |stat| stat.name.clone()),
    ("pool", |stat| stat.pool.clone()),
    ("mode", |stat| mode(stat.mode).into()),
    ("term ", |stat| stat.term.to_string()),
    ("trimmed below ", |stat| stat.trim.to_string()),
    ("sequencer", sequencer),
];

fn described(stat: &LogStat, tail: String) -> String {
    properties([
        ("name", stat.name.clone()),
        ("pool", stat.pool.clone()),
        ("mode", mode(stat.mode).into()),
        ("term", stat.term.to_string()),
        ("sequencer", sequencer(stat)),
        ("units", stat.units.to_string()),
        ("trimmed below", stat.trim.to_string()),
        ("tail", tail),
        ("kept", keep::kept(stat)),
        ("cursors", stat.cursors.len().to_string()),
    ])
}
