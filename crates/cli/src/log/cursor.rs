//! `staves log cursor`: the positions that readers keep in a log's record.

use clap::Subcommand;
use serde_json::json;
use staves_client::{CursorChange, LogStat};
use staves_wire::ErrorCode;

use staves_cli_common::cluster::Cluster;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column};

#[derive(Subcommand, Debug)]
pub enum CursorCommand {
    /// Make a cursor, or move it
    Set {
        /// The log
        log: String,
        /// The cursor
        cursor: String,
        /// The position that is read next
        position: u64,
        /// Only if it is at this position now
        #[arg(long, value_name = "POSITION", conflicts_with = "if_new")]
        if_at: Option<u64>,
        /// Only if there is no such cursor
        #[arg(long)]
        if_new: bool,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// Print the position of a cursor
    Get {
        /// The log
        log: String,
        /// The cursor
        cursor: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// All cursors of a log
    List {
        /// The log
        log: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
    /// Remove a cursor: what it has not passed is kept for it no more
    Delete {
        /// The log
        log: String,
        /// The cursor
        cursor: String,
        /// The pool; if not given, the only one of logs
        #[arg(long)]
        pool: Option<String>,
    },
}

/// A cursor and its position.
type CursorRow = (String, u64);

const COLUMNS: &[Column<CursorRow>] = &[
    ("cursor", |row| row.0.clone()),
    ("position ", |row| row.1.to_string()),
];

pub fn run(session: &Cluster, command: &CursorCommand, out: Format) -> anyhow::Result<()> {
    match command {
        CursorCommand::Set {
            log,
            cursor,
            position,
            if_at,
            if_new,
            pool,
        } => {
            let from = match (if_at, if_new) {
                (Some(at), _) => Some(Some(*at)),
                (None, true) => Some(None),
                (None, false) => None,
            };
            let to = Some(*position);
            change(session, (pool.as_deref(), log, cursor), from, to)?;
            let answer =
                json!({ "log": log, "cursor": cursor, "position": position, "result": "set" });
            let line = format!("cursor '{cursor}' of log '{log}': at {position}");
            output::changed(out, answer, line, None)
        }
        CursorCommand::Get { log, cursor, pool } => {
            let stat = stat(session, pool.as_deref(), log)?;
            let position = position(&stat, cursor)?;
            let answer = json!({ "log": log, "cursor": cursor, "position": position });
            output::answer(out, &answer, |_| position.to_string())
        }
        CursorCommand::List { log, pool } => {
            let stat = stat(session, pool.as_deref(), log)?;
            let rows: Vec<CursorRow> = stat.cursors.into_iter().collect();
            let row = |row: &CursorRow| json!({ "cursor": row.0, "position": row.1 });
            let answer: Vec<_> = rows.iter().map(row).collect();
            output::answer(out, &answer, |_| output::columns(COLUMNS, &rows))
        }
        CursorCommand::Delete { log, cursor, pool } => {
            position(&stat(session, pool.as_deref(), log)?, cursor)?;
            change(session, (pool.as_deref(), log, cursor), None, None)?;
            let answer = json!({ "log": log, "cursor": cursor, "result": "deleted" });
            let line = format!("cursor '{cursor}' of log '{log}': deleted");
            output::changed(out, answer, line, None)
        }
    }
}

fn stat(session: &Cluster, pool: Option<&str>, log: &str) -> anyhow::Result<LogStat> {
    session.wait(session.client.log_stat(pool, log))
}

fn position(stat: &LogStat, cursor: &str) -> anyhow::Result<u64> {
    let position = stat.cursors.get(cursor).copied();
    position.ok_or_else(|| {
        let text = format!(
            "log '{log}' has no cursor '{cursor}': 'staves log cursor list {log}' shows those that it has",
            log = stat.name
        );
        Failure::Wire(ErrorCode::NotFound, text).into()
    })
}

fn change(
    session: &Cluster,
    (pool, log, cursor): (Option<&str>, &str, &str),
    from: Option<Option<u64>>,
    to: Option<u64>,
) -> anyhow::Result<()> {
    let moved = session.client.move_log_cursor(pool, log, cursor, from, to);
    let text = match session.wait(moved)? {
        CursorChange::Done => return Ok(()),
        CursorChange::Moved(Some(now)) => format!(
            "cursor '{cursor}' of log '{log}' is at {now}, and was left there: read it anew, and set it with --if-at {now}"
        ),
        CursorChange::Moved(None) => {
            format!("log '{log}' has no cursor '{cursor}': make it with --if-new")
        }
    };
    Err(Failure::Wire(ErrorCode::Refused, text).into())
}
