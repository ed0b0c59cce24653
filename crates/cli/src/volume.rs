//! `staves volume`: block devices, as NBD serves them.

mod limit;
mod rates;
mod top;

use clap::Subcommand;
use serde_json::json;
use staves_client::VolumeStat;
use staves_model::Scheme;
use staves_model::policy::too_few_nodes;
use staves_node::config::Size;

use self::limit::LimitOptions;
use self::top::TopOptions;
use crate::confirm::confirm;
use crate::{memory, scrub};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, Column, bytes, count, properties};

#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume: a block device that reads as zeroes, and takes up memory only where it is written
    Create {
        /// Its name, which is that of its NBD export
        name: String,
        /// Its length
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// The pool, of kind memory
        #[arg(long, default_value = "memory")]
        pool: String,
        /// Bytes of each data bucket of its groups, a power of two from 64MiB to 1GiB [default: as suits its length]
        #[arg(long, value_name = "SIZE")]
        bucket: Option<Size>,
    },
    /// All volumes, and who has them attached
    List,
    /// One volume
    Show {
        /// Its name
        name: String,
    },
    /// Let a volume end further on, while it is in use; clients see it when they connect anew
    Grow {
        /// Its name
        name: String,
        /// Its new length
        #[arg(long, value_name = "SIZE")]
        size: Size,
    },
    /// Delete a volume that nobody has attached, with all that it holds
    Delete {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Take a volume away from the client that has it attached: its connections end
    Detach {
        /// Its name
        name: String,
    },
    /// Limit what a volume's clients may do each second; requests beyond it wait
    Limit(LimitOptions),
    /// Compare all copies, or data and parity, of a volume while it is used; fails if any differ, or could not be compared
    Check {
        /// Its name
        name: String,
    },
    /// Requests and bytes each second, and their times, of each volume over all nodes: round after round
    Top(TopOptions),
}

pub fn run(session: &Cluster, command: &VolumeCommand, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        VolumeCommand::Check { name } => scrub::check_volume(session, name, out),
        VolumeCommand::Top(options) => top::run(session, options, out),
        VolumeCommand::Limit(options) => limit::run(session, options, out),
        VolumeCommand::Create {
            name,
            size,
            pool,
            bucket,
        } => {
            session.check_regions(pool)?;
            let bucket = bucket.map(|bucket| bucket.0);
            let stat = session.wait(client.create_volume_with(pool, name, size.0, bucket))?;
            let scheme: Option<Scheme> = stat.region.scheme.parse().ok();
            let map = client.map();
            let few = scheme.and_then(|scheme| too_few_nodes(&map, name, scheme));
            print_result(out, &stat, "created", few.map(|few| few.to_string()))
        }
        VolumeCommand::List => {
            let stats = session.wait(client.volumes())?;
            let rows: Vec<_> = stats.iter().map(as_json).collect();
            output::answer(out, &rows, |_| output::columns(COLUMNS, &stats))
        }
        VolumeCommand::Show { name } => {
            let stat = session.wait(client.volume(name))?;
            output::answer(out, &as_json(&stat), |_| described(&stat))
        }
        VolumeCommand::Grow { name, size } => {
            let before = session.wait(client.volume(name))?;
            if before.region.size_bytes == size.0 {
                return print_result(out, &before, "ends there already", None);
            }
            session.wait(client.grow_volume(name, size.0))?;
            let stat = session.wait(client.volume(name))?;
            print_result(out, &stat, "grown", None)
        }
        VolumeCommand::Delete { name, yes } => {
            let stat = session.wait(client.volume(name))?;
            if !yes {
                let what = format!("volume '{name}' of {}", bytes(stat.region.size_bytes));
                confirm(session, &what, out)?;
            }
            session.wait(client.delete_volume(name))?;
            print_result(out, &stat, "deleted", None)
        }
        VolumeCommand::Detach { name } => {
            let detached = session.wait(client.detach_volume(name))?;
            let stat = session.wait(client.volume(name))?;
            let what = match detached {
                true => "detached",
                false => "nobody had it attached",
            };
            print_result(out, &stat, what, None)
        }
    }
}

fn print_result(
    out: Format,
    stat: &VolumeStat,
    what: &str,
    warning: Option<String>,
) -> anyhow::Result<()> {
    let mut answer = as_json(stat);
    answer["result"] = what.into();
    let region = &stat.region;
    let (name, size) = (&region.name, bytes(region.size_bytes));
    let groups = count(region.groups.len(), "group");
    let line = format!(
        "volume '{name}': {what}; {size}, {}, {groups}",
        region.scheme
    );
    output::changed(out, answer, line, warning)
}

fn as_json(stat: &VolumeStat) -> serde_json::Value {
    let region = &stat.region;
    json!({
        "volume": region.name,
        "pool": region.pool,
        "scheme": region.scheme,
        "size_bytes": region.size_bytes,
        "capacity_bytes": region.capacity_bytes,
        "data_buckets": memory::buckets_json(region),
        "session": stat.session,
        "attached_to": writer_json(stat),
        "limit": limit::as_json(stat),
        "lost_groups": region.lost.iter().map(|group| group.0).collect::<Vec<_>>(),
        "groups": region.groups.iter().map(|group| group.0).collect::<Vec<_>>(),
    })
}

fn writer_json(stat: &VolumeStat) -> Option<serde_json::Value> {
    stat.writer.as_ref().map(|writer| {
        json!({
            "client": writer.client,
            "node": writer.node.0,
            "node_name": stat.node,
            "node_up": stat.node.is_some(),
        })
    })
}

const COLUMNS: &[Column<VolumeStat>] = &[
    ("volume", |stat| stat.region.name.clone()),
    ("pool", |stat| stat.region.pool.clone()),
    ("scheme", |stat| stat.region.scheme.clone()),
    ("size ", |stat| bytes(stat.region.size_bytes)),
    ("groups ", |stat| stat.region.groups.len().to_string()),
    ("limit", |stat| limit::of(stat, "-")),
    ("attached to", attached),
    ("state", state),
];

fn attached(stat: &VolumeStat) -> String {
    match (&stat.writer, &stat.node) {
        (None, _) => "nobody".into(),
        (Some(writer), Some(node)) => format!("{} through {node}", writer.client),
        (Some(writer), None) => format!(
            "nobody ({} had it through node {}, which has ended)",
            writer.client, writer.node
        ),
    }
}

fn state(stat: &VolumeStat) -> String {
    match (stat.region.lost.len(), stat.region.groups.len()) {
        (0, _) => "in use".into(),
        (lost, of) => format!("{lost} of {of} groups lost"),
    }
}

fn described(stat: &VolumeStat) -> String {
    let region = &stat.region;
    let groups: Vec<String> = region.groups.iter().map(ToString::to_string).collect();
    properties([
        ("name", region.name.clone()),
        ("pool", region.pool.clone()),
        ("scheme", region.scheme.clone()),
        (
            "ends at",
            format!(
                "{} ({})",
                bytes(region.size_bytes),
                count(region.size_bytes, "byte")
            ),
        ),
        ("can grow to, with its groups", bytes(region.capacity_bytes)),
        ("data buckets", memory::buckets(region)),
        ("limit", limit::of(stat, "none")),
        ("attached to", attached(stat)),
        ("sessions so far", stat.session.to_string()),
        ("groups", groups.join(" ")),
        ("state", state(stat)),
    ])
}
