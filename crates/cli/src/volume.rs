//! `staves volume`: block devices, as NBD serves them.

mod create;
mod device;
mod holder;
mod limit;
mod machine;
mod nbd_netlink;
mod negotiation;
mod placement;
mod rates;
mod rebalance;
mod shown;
mod stream;
mod top;
mod transfer;
mod waits;

use anyhow::Context;
use clap::Subcommand;
use staves_client::VolumeStat;
use staves_node::config::Size;

use self::create::CreateOptions;
use self::device::DeviceOptions;
use self::limit::LimitOptions;
use self::rebalance::RebalanceOptions;
use self::shown::{COLUMNS, ShownVolume, as_json, described};
use self::top::TopOptions;
use self::transfer::{ExportOptions, ImportOptions};
use crate::confirm::confirm;
use crate::scrub;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output::{self, bytes, count};

#[derive(Subcommand, Debug)]
pub enum VolumeCommand {
    /// Make a volume: a block device that reads as zeroes, and takes up memory only where it is written
    Create(CreateOptions),
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
    /// Keep what volumes hold now under a name, all of them at one instant; it takes up memory as they change
    Snapshot {
        /// A volume to keep, and the name of its snapshot
        #[arg(required = true, value_name = "VOLUME@SNAPSHOT")]
        snapshots: Vec<String>,
    },
    /// Make a volume that holds what another one, or a snapshot, holds now; it takes up memory as either changes
    Clone {
        /// The volume or snapshot that it is copied from
        #[arg(value_name = "VOLUME[@SNAPSHOT]")]
        from: String,
        /// The name of the new volume
        name: String,
    },
    /// Write a volume or a snapshot to a file, without what was never written; or what has changed between two snapshots
    Export(ExportOptions),
    /// Write an exported volume, or exported changes, to a volume
    Import(ImportOptions),
    /// Delete a volume that nobody has attached, or a snapshot, with all that it alone holds
    Delete {
        /// Its name
        name: String,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Make a volume or a snapshot a block device of this machine, by its kernel's nbd, which goes on through another node when one ends; or end that
    Attach(DeviceOptions),
    /// Take a volume away from the client that has it attached: its connections end
    Detach {
        /// Its name
        name: String,
    },
    /// Limit what a volume's clients may do each second; requests beyond it wait
    Limit(LimitOptions),
    /// Say what the directory moves so that nodes have their share, and wait until it has; it moves by itself
    Rebalance(RebalanceOptions),
    /// Compare all copies, or data and parity, of a volume while it is used; fails if any differ, or could not be compared
    Check {
        /// Its name
        name: String,
    },
    /// Requests and bytes each second, and their times, of each volume over all nodes: round after round
    Top(TopOptions),
}

pub fn run(global: &GlobalOptions, command: &VolumeCommand, out: Format) -> anyhow::Result<()> {
    match command {
        VolumeCommand::Attach(options) if options.begin(global, out)? => return Ok(()),
        VolumeCommand::Rebalance(options) => options.check()?,
        _ => {}
    }
    let cluster = Cluster::open(global)?;
    obey(&cluster, command, out).map_err(|error| cluster.by_an_old_map(error))
}

fn obey(session: &Cluster, command: &VolumeCommand, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    match command {
        VolumeCommand::Attach(options) => device::attach(session, options, out),
        VolumeCommand::Check { name } => scrub::check_volume(session, name, out),
        VolumeCommand::Top(options) => top::run(session, options, out),
        VolumeCommand::Rebalance(options) => rebalance::run(session, options, out),
        VolumeCommand::Export(options) => transfer::export(session, options, out),
        VolumeCommand::Import(options) => transfer::import(session, options, out),
        VolumeCommand::Limit(options) => limit::run(session, options, out),
        VolumeCommand::Create(options) => create::run(session, options, out),
        VolumeCommand::List => {
            let stats = session.wait(client.volumes())?;
            let map = client.map();
            let rows = stats.into_iter().map(|stat| ShownVolume::new(&map, stat));
            let rows: Vec<ShownVolume> = rows.collect();
            let json: Vec<_> = rows.iter().map(ShownVolume::as_json).collect();
            output::answer(out, &json, |_| output::columns(COLUMNS, &rows))
        }
        VolumeCommand::Show { name } => {
            let stat = session.wait(client.volume(name))?;
            let shown = ShownVolume::new(&client.map(), stat);
            output::answer(out, &shown.as_json(), |_| described(&shown))
        }
        VolumeCommand::Grow { name, size } => grow(session, name, size.0, out),
        VolumeCommand::Snapshot { snapshots } => snapshot(session, snapshots, out),
        VolumeCommand::Clone { from, name } => {
            let stat = session.wait(client.clone_volume(from, name))?;
            print_result(out, &stat, &format!("copied from '{from}'"), None)
        }
        VolumeCommand::Delete { name, yes } => delete(session, name, *yes, out),
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

fn delete(session: &Cluster, name: &str, is_sure: bool, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    let stat = session.wait(client.volume(name))?;
    if !is_sure {
        let what = format!("volume '{name}' of {}", bytes(stat.region.size_bytes));
        confirm(session, &what, out)?;
    }
    session.wait(client.delete_volume(name))?;
    // Bytes that others have, too, are given back bucket by bucket.
    let what = match session.wait(client.volume(name)) {
        Ok(_) => "is being deleted",
        Err(_) => "deleted",
    };
    print_result(out, &stat, what, None)
}

fn grow(session: &Cluster, name: &str, size_bytes: u64, out: Format) -> anyhow::Result<()> {
    let client = &session.client;
    let before = session.wait(client.volume(name))?;
    if before.region.size_bytes == size_bytes {
        return print_result(out, &before, "ends there already", None);
    }
    session.wait(client.grow_volume(name, size_bytes))?;
    let stat = session.wait(client.volume(name))?;
    print_result(out, &stat, "grown", None)
}

fn snapshot(session: &Cluster, snapshots: &[String], out: Format) -> anyhow::Result<()> {
    let pairs = snapshots.iter().map(|of| {
        let pair = of
            .split_once('@')
            .filter(|(volume, name)| !volume.is_empty() && !name.is_empty());
        let pair = pair.map(|(volume, name)| (volume.to_owned(), name.to_owned()));
        pair.with_context(|| {
            format!("'{of}' names no snapshot: write VOLUME@SNAPSHOT, such as disk@monday")
        })
    });
    let pairs: Vec<(String, String)> = pairs.collect::<anyhow::Result<_>>()?;
    let stats = session.wait(session.client.snapshot_volumes(&pairs))?;
    let rows: Vec<_> = stats.iter().map(as_json).collect();
    output::answer(out, &rows, |_| {
        let lines = stats.iter().map(|stat| {
            let region = &stat.region;
            format!(
                "snapshot '{}': made; {}, {}",
                region.name,
                bytes(region.size_bytes),
                region.scheme
            )
        });
        lines.collect::<Vec<_>>().join("\n")
    })
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
