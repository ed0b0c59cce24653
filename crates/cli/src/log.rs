//! `staves log`: logs, and their records from and to the shell.

mod append;
mod command;
mod conditional;
mod cursor;
mod keep;
mod read;
mod stream;

use serde_json::json;
use staves_client::{AppendMode, LogHandle, LogStat};

pub use self::command::LogCommand;
use crate::confirm::confirm;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, properties};

pub fn run(session: &Cluster, command: &LogCommand, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        LogCommand::Create {
            name,
            pool,
            mode,
            keep,
        } => {
            let made = client.create_log(pool.as_deref(), name, (*mode).into());
            let made = session.wait(made)?;
            if keep.is_empty() {
                return changed(out, &made, "created");
            }
            set(session, pool.as_deref(), &made, keep, (out, "created"))
        }
        LogCommand::Set { name, pool, keep } => {
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            set(session, pool.as_deref(), &stat, keep, (out, "changed"))
        }
        LogCommand::Cursor(command) => cursor::run(session, command, out),
        LogCommand::List { pool } => {
            let stats = session.wait(client.logs(pool.as_deref()))?;
            let rows: Vec<_> = stats.iter().map(as_json).collect();
            output::answer(out, &rows, |_| output::columns(COLUMNS, &stats))
        }
        LogCommand::Show { name, pool } => {
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            output::answer(out, &as_json(&stat), |_| described(&stat))
        }
        LogCommand::Delete { name, pool, yes } => {
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            if !yes {
                confirm(session, &format!("log '{name}'"), out)?;
            }
            session.wait(client.delete_log(pool.as_deref(), name))?;
            changed(out, &stat, "deleted")
        }
        LogCommand::Append { .. }
        | LogCommand::Read { .. }
        | LogCommand::Tail { .. }
        | LogCommand::Trim { .. }
        | LogCommand::Punch { .. } => run_on_records(session, command, out),
    }
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
            match if_tail {
                Some(tail) => conditional::append(session, &log, (*tail, *if_tag), tag, out),
                None => append::append(session, &log, tag, out),
            }
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
        LogCommand::Trim { name, pool, to } => {
            let log = open(session, pool.as_deref(), name)?;
            session.wait(log.trim(*to))?;
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            changed(out, &stat, "trimmed")
        }
        LogCommand::Punch { name, pool, at } => {
            let log = open(session, pool.as_deref(), name)?;
            session.wait(log.punch(*at))?;
            let stat = session.wait(client.log_stat(pool.as_deref(), name))?;
            changed(out, &stat, &format!("record {at} given up"))
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

fn changed(out: Format, stat: &LogStat, what: &str) -> anyhow::Result<()> {
    let mut answer = as_json(stat);
    answer["result"] = what.into();
    let line = format!("log '{}' of pool '{}': {what}", stat.name, stat.pool);
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

fn described(stat: &LogStat) -> String {
    properties([
        ("name", stat.name.clone()),
        ("pool", stat.pool.clone()),
        ("mode", mode(stat.mode).into()),
        ("term", stat.term.to_string()),
        ("sequencer", sequencer(stat)),
        ("units", stat.units.to_string()),
        ("trimmed below", stat.trim.to_string()),
        ("kept", keep::kept(stat)),
        ("cursors", stat.cursors.len().to_string()),
    ])
}
