//! `staves volume attach`: a volume as a block device of this machine, by the kernel's client of NBD.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use serde_json::json;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output::{self, bytes};
use staves_model::ImageKind;
use staves_node::config::Endpoint;
use staves_node::status::StatusReport;

use super::machine::{NbdConnect, NbdDevice, NbdMachine};

/// The time after which the kernel takes a request for lost: above that for which a node lets a request wait, and then a client for its
/// former connection to end.
const REQUEST_MAX: Duration = Duration::from_secs(90);
/// Longest time for a node's door to take a connection, before the next one is tried.
const CONNECT_MAX: Duration = Duration::from_secs(2);

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
    /// Detach this device
    #[arg(long, value_name = "/dev/nbdN", conflicts_with_all = ["name", "node", "device", "read_only"])]
    stop: Option<String>,
}

impl DeviceOptions {
    /// Does what takes no cluster: detaches the device of `--stop`, or fails if this machine cannot have one. True if that was all.
    pub fn begin(&self, out: Format) -> anyhow::Result<bool> {
        let machine = NbdMachine::here();
        if let Some(device) = &self.stop {
            return stop(&machine, device, out).map(|()| true);
        }
        check_machine(&machine, self.name.as_deref().unwrap_or("VOLUME"))?;
        self.free_device(&machine).map(|_| false)
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

/// Fails if the machine cannot have the device, with all that is missing.
fn check_machine(machine: &NbdMachine, name: &str) -> anyhow::Result<()> {
    let obstacles = machine.obstacles();
    if obstacles.is_empty() {
        return Ok(());
    }
    let text = format!(
        "'{name}' cannot be a block device of this machine: {}; without one, 'nbdfuse FILE nbd://HOST/{name}' shows it as a file, and QEMU takes nbd://HOST/{name} as a drive",
        obstacles.join("; ")
    );
    Err(Failure::Own(Own::Failed, text).into())
}

pub fn attach(cluster: &Cluster, options: &DeviceOptions, out: Format) -> anyhow::Result<()> {
    let name = options.name.as_deref().context("give a volume")?;
    let machine = NbdMachine::here();
    let device = options.free_device(&machine)?;
    let stat = cluster.wait(cluster.client.volume(name))?;
    let is_snapshot = stat.image.is_some_and(|i| i.kind == ImageKind::Snapshot);
    let read_only = options.read_only || is_snapshot;
    let doors = match options.node.is_empty() {
        true => doors(&cluster.status()?)?,
        false => options.node.clone(),
    };
    let door = connect_first(&doors, |door| {
        device.connect(&NbdConnect {
            host: &door.host,
            port: door.port,
            export: name,
            read_only,
            timeout: REQUEST_MAX,
        })
    })?;
    let path = device.path();
    let is_read_only = read_only || device.is_read_only();
    // A node lets a second client of another machine read.
    let taken = (is_read_only && !read_only).then(|| {
        format!("{path} is read-only: another client has the volume ('staves volume show {name}')")
    });
    let when_node_ends = format!(
        "what is under way then fails, and nbd-client connects to {door} again until that answers; to go on through another node: 'staves volume attach --stop {path}', then attach the volume again"
    );
    let answer = json!({
        "volume": name,
        "device": path,
        "node": door.to_string(),
        "read_only": is_read_only,
        "size_bytes": device.size_bytes(),
        "when_node_ends": when_node_ends,
        "result": "attached",
    });
    let how = if is_read_only { " to read only" } else { "" };
    let line = format!(
        "volume '{name}': attached{how} as {path} through {door}; {}\nif that node ends, {when_node_ends}",
        bytes(device.size_bytes())
    );
    output::changed(out, answer, line, taken)
}

/// The doors of the nodes that are up.
fn doors(report: &StatusReport) -> anyhow::Result<Vec<Endpoint>> {
    let up = report.nodes.iter().filter(|node| node.state() == "up");
    let told = up.filter_map(|node| node.facts.as_ref()?.nbd.as_ref());
    let doors: Vec<Endpoint> = told.filter_map(|door| door.parse().ok()).collect();
    ensure!(
        !doors.is_empty(),
        "no node that is up says where it serves NBD: start nodes with --nbd HOST:PORT, or give such an address with --node"
    );
    Ok(doors)
}

/// The first door through which a device is connected.
fn connect_first(
    doors: &[Endpoint],
    mut connect: impl FnMut(&Endpoint) -> anyhow::Result<()>,
) -> anyhow::Result<&Endpoint> {
    let mut failures = Vec::new();
    for door in doors {
        // The tool itself waits for as long as the kernel does.
        match reach(door).and_then(|()| connect(door)) {
            Ok(()) => return Ok(door),
            Err(error) => failures.push(format!("{door}: {error:#}")),
        }
    }
    bail!(
        "no node's door could be connected to: {}",
        failures.join("; ")
    )
}

fn reach(door: &Endpoint) -> anyhow::Result<()> {
    // The tool would take it for an option.
    ensure!(!door.host.starts_with('-'), "that is no host");
    let addresses = (door.host.as_str(), door.port).to_socket_addrs()?;
    let mut last = None;
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(_) => return Ok(()),
            Err(error) => last = Some(error),
        }
    }
    Err(last.context("the host has no address")?.into())
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
    let is_gone = device.disconnect()?;
    let warning =
        (!is_gone).then(|| format!("something still has {path} open; it goes when that is closed"));
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
        let machine = fake_machine(folder.path(), 0, Some("exit 0"));
        let error = check_machine(&machine, "disk").expect_err("it has none");
        let text = error.to_string();
        for part in ["modprobe nbd", "nbdfuse", "QEMU", "nbd://HOST/disk"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("sudo") && !text.contains("apt"), "{text}");
    }

    #[test]
    fn the_first_door_that_takes_connections_is_used() {
        let open = TcpListener::bind("127.0.0.1:0").expect("a port");
        let shut = TcpListener::bind("127.0.0.1:0").expect("a port");
        let [open_at, shut_at] = [&open, &shut].map(|l| l.local_addr().expect("an address"));
        drop(shut);
        let doors: Vec<Endpoint> = ["-x:1".to_owned(), shut_at.to_string(), open_at.to_string()]
            .iter()
            .map(|text| text.parse().expect("an address"))
            .collect();
        let mut tried = Vec::new();
        let used = connect_first(&doors, |door| {
            tried.push(door.to_string());
            Ok(())
        });
        assert_eq!(used.expect("one is open").to_string(), open_at.to_string());
        assert_eq!(tried, [open_at.to_string()]);
        let error = connect_first(&doors[..2], |_| Ok(())).expect_err("none is open");
        let text = error.to_string();
        assert!(
            text.contains("-x:1: that is no host") && text.contains(&shut_at.to_string()),
            "{text}"
        );
    }
}
