//! `staves volume attach`: a volume as a block device of this machine, by the kernel's client of NBD.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output::{self, bytes};
use staves_cli_common::running;
use staves_model::{ImageKind, RegionId};
use staves_node::config::Endpoint;
use staves_node::status::StatusReport;

use super::holder::{Holder, LOST_MAX};
use super::machine::{NbdDevice, NbdMachine};
use super::nbd_netlink::{NbdKernel, NewDevice};
use super::negotiation::{Negotiated, negotiate};
use crate::background::{Background, let_go_of_inherited};

// No doc comment: clap would take it for the command's description.
#[derive(clap::Args, Debug)]
pub struct DeviceOptions {
    /// The volume or the snapshot
    #[arg(value_name = "VOLUME[@SNAPSHOT]", required_unless_present = "stop")]
    name: Option<String>,
    /// An address at which a node serves NBD, or several of them: the first that takes connections is used [default: those of the nodes that are up]
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    node: Vec<Endpoint>,
    /// The device [default: the first that is free]
    #[arg(long, value_name = "/dev/nbdN")]
    device: Option<String>,
    /// Let nobody write to the device
    #[arg(long)]
    read_only: bool,
    /// Stay, and say when the device goes on through another node; Ctrl-C detaches it
    #[arg(long)]
    foreground: bool,
    /// Started by this command itself
    #[arg(long, hide = true)]
    pub in_background: bool,
    /// Detach this device
    #[arg(long, value_name = "/dev/nbdN", conflicts_with_all = ["name", "node", "device", "read_only", "foreground"])]
    stop: Option<String>,
}

impl DeviceOptions {
    /// Does what takes no cluster: detaches the device of `--stop`, or fails if this machine cannot have one, or has a process in the
    /// background do the rest. True if that was all.
    pub fn begin(&self, global: &GlobalOptions, out: Format) -> anyhow::Result<bool> {
        if self.in_background {
            let_go_of_inherited();
        }
        let machine = NbdMachine::here();
        if let Some(device) = &self.stop {
            return stop(&machine, device, out).map(|()| true);
        }
        check_machine(&machine, self.name.as_deref().unwrap_or("VOLUME"), || {
            self.first_door(global)
        })?;
        self.free_device(&machine)?;
        match self.foreground {
            true => Ok(false),
            false => attach_in_background(out).map(|()| true),
        }
    }

    /// The first address of NBD that is named, or that a node of the cluster has.
    fn first_door(&self, global: &GlobalOptions) -> Option<Endpoint> {
        let of_cluster = || {
            let report = Cluster::open(global).ok()?.status().ok()?;
            doors_of(&report).ok()?.into_iter().next()
        };
        self.node.first().cloned().or_else(of_cluster)
    }

    fn free_device<'a>(&self, machine: &'a NbdMachine) -> anyhow::Result<NbdDevice<'a>> {
        let device = match &self.device {
            Some(path) => machine.device(path)?,
            None => machine.free_device()?,
        };
        ensure!(
            device.is_free(),
            "{0} is in use: choose another --device, or none, or detach it with 'staves volume attach --stop {0}'",
            device.path()
        );
        Ok(device)
    }
}

/// Fails if the machine cannot have the device, with all that is missing, and what does without.
fn check_machine(
    machine: &NbdMachine,
    name: &str,
    door: impl FnOnce() -> Option<Endpoint>,
) -> anyhow::Result<()> {
    let obstacles = machine.obstacles();
    if obstacles.is_empty() {
        return Ok(());
    }
    let door = door().map_or_else(|| "HOST:PORT".to_owned(), |door| door.to_string());
    let text = format!(
        "'{name}' cannot be a block device of this machine: {}; without one, 'nbdfuse FILE nbd://{door}/{name}' shows it as a file, and QEMU takes nbd://{door}/{name} as a drive",
        obstacles.join("; ")
    );
    Err(Failure::Own(Own::Failed, text).into())
}

/// A device that was made, as the process that keeps it tells the one that started it.
#[derive(Serialize, Deserialize)]
struct Attached {
    volume: String,
    device: String,
    node: String,
    read_only: bool,
    size_bytes: u64,
    /// Another client has the volume.
    is_taken: bool,
    /// It goes on through another node.
    follows: bool,
}

/// Has a process in the background attach the volume, and keep it so.
fn attach_in_background(out: Format) -> anyhow::Result<()> {
    let mut process = Background::start()?;
    match serde_json::from_str::<Attached>(&process.line()?) {
        Ok(attached) => attached.tell(out),
        Err(_) => Err(process.failure()),
    }
}

/// Attaches the volume, and keeps it so until it is detached.
pub fn attach(cluster: &Cluster, options: &DeviceOptions, out: Format) -> anyhow::Result<()> {
    let name = options.name.as_deref().context("give a volume")?;
    let (holder, is_taken) = make(cluster, options, name)?;
    let path = holder.path();
    let attached = Attached {
        volume: name.to_owned(),
        device: path.clone(),
        node: holder.door.to_string(),
        read_only: holder.is_read_only,
        size_bytes: holder.size_bytes,
        is_taken,
        follows: holder.follows,
    };
    match options.in_background {
        true => output::line(serde_json::to_string(&attached)?)?,
        false => {
            attached.tell(out)?;
            running::at_signal(move || detach_at_signal(&path))?;
        }
    }
    output::flush()?;
    holder.hold()
}

/// Makes the device. True with it if nobody may write because another client has the volume.
fn make<'a>(
    cluster: &'a Cluster,
    options: &DeviceOptions,
    name: &str,
) -> anyhow::Result<(Holder<'a>, bool)> {
    let machine = NbdMachine::here();
    let wanted = options.free_device(&machine)?.number;
    let stat = cluster.wait(cluster.client.volume(name))?;
    let volume = region_of(cluster, name)?;
    let is_snapshot = stat.image.is_some_and(|i| i.kind == ImageKind::Snapshot);
    let doors = match options.node.is_empty() {
        true => doors_of(&cluster.status()?)?,
        false => options.node.clone(),
    };
    let (door, mut chosen) = choose_first(&doors, |door| negotiate(door, name))?;
    // A node lets a second client of another machine read.
    let is_taken = chosen.is_read_only() && !is_snapshot && !options.read_only;
    if options.read_only {
        chosen.set_read_only();
    }
    let is_read_only = chosen.is_read_only();
    let follows = !stat.is_writeback && !stat.is_shared || is_read_only;
    let kernel = NbdKernel::open()?;
    let new = NewDevice {
        number: options.device.is_some().then_some(wanted),
        size_bytes: chosen.size_bytes,
        flags: chosen.flags,
        patience: if follows { LOST_MAX } else { Duration::ZERO },
    };
    let number = kernel.connect(&new, chosen.socket.as_fd())?;
    let device = machine.device(&format!("/dev/nbd{number}"))?;
    if let Err(error) = device.settle() {
        let _ = kernel.disconnect(number);
        return Err(error);
    }
    let holder = Holder {
        cluster,
        kernel,
        number,
        pid: device.pid(),
        name: name.to_owned(),
        volume,
        size_bytes: chosen.size_bytes,
        is_read_only,
        follows,
        session: stat.session,
        door: door.clone(),
        are_given: !options.node.is_empty(),
        socket: chosen.socket,
        doors,
    };
    Ok((holder, is_taken))
}

impl Attached {
    fn tell(&self, out: Format) -> anyhow::Result<()> {
        let (volume, path) = (&self.volume, &self.device);
        let taken = self.is_taken.then(|| {
            format!(
                "{path} is read-only: another client has the volume ('staves volume show {volume}')"
            )
        });
        let when_node_ends = match self.follows {
            true => format!(
                "requests wait, for {} s at most, and go on through another node",
                LOST_MAX.as_secs()
            ),
            false => {
                "the device fails, since what was not flushed may be gone (write-back), or what was sent may land late (shared)".to_owned()
            }
        };
        let how = if self.read_only { " to read only" } else { "" };
        let line = format!(
            "volume '{volume}': attached{how} as {path} through {}; {}\nif that node ends, {when_node_ends}; 'staves volume attach --stop {path}' detaches it",
            self.node,
            bytes(self.size_bytes)
        );
        let mut answer = serde_json::to_value(self)?;
        answer["when_node_ends"] = when_node_ends.into();
        answer["result"] = "attached".into();
        output::changed(out, answer, line, taken)
    }
}

/// The region of a volume that was just looked at: what is made later by the same name has another one.
pub(super) fn region_of(cluster: &Cluster, name: &str) -> anyhow::Result<RegionId> {
    let map = cluster.client.map();
    let region = map.region_named(name).map(|(_, region)| region.id);
    region.with_context(|| format!("volume '{name}' has just been deleted"))
}

/// The doors of the nodes that are up.
pub(super) fn doors_of(report: &StatusReport) -> anyhow::Result<Vec<Endpoint>> {
    let up = report.nodes.iter().filter(|node| node.state() == "up");
    let told = up.filter_map(|node| node.facts.as_ref()?.nbd.as_ref());
    let doors: Vec<Endpoint> = told.filter_map(|door| door.parse().ok()).collect();
    ensure!(
        !doors.is_empty(),
        "no node that is up says where it serves NBD: start nodes with --nbd HOST:PORT, or give such an address with --node"
    );
    Ok(doors)
}

/// The first door at which a volume is chosen, and what it answered.
fn choose_first(
    doors: &[Endpoint],
    mut choose: impl FnMut(&Endpoint) -> anyhow::Result<Negotiated>,
) -> anyhow::Result<(&Endpoint, Negotiated)> {
    let mut failures = Vec::new();
    for door in doors {
        match choose(door) {
            Ok(chosen) => return Ok((door, chosen)),
            Err(error) => failures.push(format!("{door}: {error:#}")),
        }
    }
    bail!(
        "no node's door could be connected to: {}",
        failures.join("; ")
    )
}

/// Detaches a device that nobody has mounted; one that is mounted keeps its connection, and nobody connects it anew.
fn detach_at_signal(path: &str) {
    let machine = NbdMachine::here();
    let detached = machine.device(path).and_then(|device| {
        if let Some(folder) = device.mounted_on() {
            bail!("{path} is mounted on {folder}, and stays without anybody who connects it anew");
        }
        NbdKernel::open()?.disconnect(device.number)
    });
    if let Err(error) = detached {
        output::say(format_args!("staves: {error:#}"));
    }
}

fn stop(machine: &NbdMachine, path: &str, out: Format) -> anyhow::Result<()> {
    let obstacles = machine.obstacles();
    ensure!(
        obstacles.is_empty(),
        "{path} cannot be detached: {}",
        obstacles.join("; ")
    );
    let device = machine.device(path)?;
    ensure!(!device.is_free(), "nothing is attached as {path}");
    if let Some(folder) = device.mounted_on() {
        bail!("{path} is mounted on {folder}: run 'umount {folder}' first");
    }
    let users = device.used_by();
    ensure!(
        users.is_empty(),
        "{path} is in use by {}: take it out of that first",
        users.join(", ")
    );
    let kernel = NbdKernel::open()?;
    device.end_holder();
    kernel.disconnect(device.number)?;
    let warning = (!device.wait_until_free())
        .then(|| format!("something still has {path} open; it goes when that is closed"));
    let answer = json!({ "device": path, "result": "detached" });
    output::changed(out, answer, format!("{path}: detached"), warning)
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::super::machine::tests::fake_machine;
    use super::*;

    #[test]
    fn a_machine_without_nbd_is_told_what_to_do_instead() {
        let folder = tempfile::tempdir().expect("a folder");
        let machine = fake_machine(folder.path(), 0);
        let at = |door: Option<&str>| {
            let door = door.map(|door| door.parse().expect("an address"));
            let error = check_machine(&machine, "disk", || door).expect_err("it has none");
            error.to_string()
        };
        let text = at(None);
        for part in ["modprobe nbd", "nbdfuse", "QEMU", "nbd://HOST:PORT/disk"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let known = at(Some("10.0.0.1:10809"));
        assert!(known.contains("takes nbd://10.0.0.1:10809/disk"), "{known}");
        assert!(!text.contains("sudo") && !text.contains("apt"), "{text}");
    }

    #[test]
    fn the_doors_that_do_not_answer_are_named() {
        let shut = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = shut.local_addr().expect("an address").to_string();
        drop(shut);
        let doors = [at.parse().expect("an address")];
        let error = choose_first(&doors, |door| negotiate(door, "disk"));
        let text = error.err().expect("none answers").to_string();
        assert!(
            text.contains(&format!("{at}: Connection refused")),
            "{text}"
        );
    }
}
