//! `staves volume rebalance`: what the directory moves so that nodes have their share, and how far that is.

use std::time::{Duration, Instant};

use serde::Serialize;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, columns, count};
use staves_node::config::Millis;

use super::placement::{MovedGroup, NodeShare, PlacementPlan, plan};

/// The pause between two looks at the moves.
const LOOK: Duration = Duration::from_secs(1);

// No doc comment: clap would take it for the command's description.
#[derive(clap::Args, Debug)]
pub struct RebalanceOptions {
    /// The volume; or give a pool
    name: Option<String>,
    /// Instead of one volume all that is in this pool, of kind memory
    #[arg(long, conflicts_with = "name")]
    pool: Option<String>,
    /// Only say what is to move
    #[arg(long, conflicts_with = "wait")]
    plan: bool,
    /// Wait for so long until all is where it is to be
    #[arg(long, value_name = "TIME", default_value = "60m")]
    wait: Millis,
}

impl RebalanceOptions {
    /// Fails if neither a volume nor a pool is named.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.name.is_some() || self.pool.is_some() {
            return Ok(());
        }
        let text = "say what to look at: a volume ('staves volume rebalance VOLUME'), or all of a pool ('staves volume rebalance --pool POOL'); \
                    'staves volume list' shows both";
        Err(Failure::Own(Own::Usage, text.into()).into())
    }

    /// The volume or the pool, for people.
    fn subject(&self) -> String {
        match (&self.name, &self.pool) {
            (Some(name), _) => format!("volume '{name}'"),
            (None, pool) => format!("pool '{}'", pool.as_deref().unwrap_or("memory")),
        }
    }

    fn look(&self, session: &Cluster) -> anyhow::Result<PlacementPlan> {
        plan(session, self.name.as_deref(), self.pool.as_deref())
    }
}

pub fn run(session: &Cluster, options: &RebalanceOptions, out: Format) -> anyhow::Result<()> {
    let first = options.look(session)?;
    if options.plan {
        return output::answer(out, &first, |plan| table(&options.subject(), plan));
    }
    wait(session, options, first, out)
}

/// Waits until nothing is left to move; the directory moves it by itself.
fn wait(
    session: &Cluster,
    options: &RebalanceOptions,
    first: PlacementPlan,
    out: Format,
) -> anyhow::Result<()> {
    let (began, subject) = (Instant::now(), options.subject());
    let all_bytes = first.bytes_left;
    let (mut left, mut shown) = (first, None);
    while !left.is_done() {
        let seconds = seconds_left(all_bytes, left.bytes_left, began.elapsed());
        let line = progress(&subject, &left, seconds);
        // Programs have nothing to read on stderr but an error.
        if out == Format::Table && shown.as_ref() != Some(&line) {
            output::say(&line);
            shown = Some(line.clone());
        }
        if began.elapsed() >= options.wait.duration() {
            let seconds = options.wait.duration().as_secs();
            let text = format!(
                "after {seconds} s {line}; the directory goes on by itself, and 'staves status' says what it waits for"
            );
            return Err(Failure::late(text).into());
        }
        std::thread::sleep(LOOK);
        session.begin_again();
        left = options.look(session)?;
    }
    let answer = Finished {
        plan: &left,
        moved_bytes: all_bytes,
        seconds: began.elapsed().as_secs_f64(),
        result: "in place",
    };
    let line = match all_bytes {
        0 => format!("{subject}: all is where it is to be; there was nothing to move"),
        moved => format!(
            "{subject}: all is where it is to be; {} were moved",
            bytes(moved)
        ),
    };
    output::answer(out, &answer, |answer| {
        format!("{line}\n\n{}", columns(SHARES, &answer.plan.nodes))
    })
}

/// The answer once nothing is left to move.
#[derive(Serialize)]
struct Finished<'a> {
    #[serde(flatten)]
    plan: &'a PlacementPlan,
    moved_bytes: u64,
    seconds: f64,
    result: &'static str,
}

/// The time that the rest takes at the speed so far; `None` while nothing has moved.
fn seconds_left(all: u64, left: u64, elapsed: Duration) -> Option<u64> {
    let moved = all.saturating_sub(left);
    let ms = (elapsed.as_millis() as u64).saturating_mul(left);
    ms.checked_div(moved).map(|ms| ms.div_ceil(1000))
}

fn progress(subject: &str, left: &PlacementPlan, seconds: Option<u64>) -> String {
    let buckets = count(left.fills(), "bucket");
    let under_way = match left.under_way {
        0 => "none under way yet".to_owned(),
        groups => format!("{} under way", count(groups, "group")),
    };
    let eta = seconds.map_or(String::new(), |s| format!(", some {s} s more"));
    format!(
        "{subject}: {buckets} to copy, {}; {under_way}{eta}",
        bytes(left.bytes_left)
    )
}

fn table(subject: &str, plan: &PlacementPlan) -> String {
    let shares = columns(SHARES, &plan.nodes);
    let unknown = match plan.silent_groups {
        0 => String::new(),
        groups => format!(
            "\nwithout the bytes of {}, of which no member answered",
            count(groups, "group")
        ),
    };
    if plan.moves.is_empty() {
        return format!(
            "{subject}: each node has its share, and nothing is to be moved\n\n{shares}{unknown}"
        );
    }
    let moves = columns(MOVES, &plan.moves);
    let total = format!(
        "{subject}: {} of {} will be copied to other nodes, {} in all, so that each node has its share; the cluster does that by itself, this plan \
         changes nothing",
        count(plan.fills(), "bucket"),
        count(plan.moves.len(), "group"),
        bytes(plan.bytes_left)
    );
    format!("{moves}\n\n{shares}\n\n{total}{unknown}")
}

const MOVES: &[Column<MovedGroup>] = &[
    ("group ", |row| row.group.to_string()),
    ("nodes now", |row| row.now.join(" ")),
    ("nodes then", |row| row.then.join(" ")),
    ("copied to", |row| match row.fills.is_empty() {
        true => "-".into(),
        false => row.fills.join(" "),
    }),
    ("to copy ", |row| bytes(row.bytes)),
];

const SHARES: &[Column<NodeShare>] = &[
    ("node", |row| row.name.clone()),
    ("buckets now ", |row| row.buckets_now.to_string()),
    ("buckets then ", |row| row.buckets_then.to_string()),
    ("bytes now ", |row| bytes(row.bytes_now)),
    ("bytes then ", |row| bytes(row.bytes_then)),
];
