//! The network: one namespace for each node, and one, the hub, for clients and the bridge.
//!
//! Everything lives inside namespaces whose names begin with `stv<pid>x<number>-`, so that labs never
//! meet each other or the machine's own network, and so that what a killed run left is identified by its
//! process, which is gone.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::wan::{DelayCounts, Wan};

/// The clients' place, beside those of nodes.
pub const HUB: usize = usize::MAX;
/// The clients' address.
pub const CLIENTS: &str = "10.77.0.254";
/// Most nodes of a lab.
pub const NODES_MAX: usize = 16;
/// The tools it is built with, and where Debian has them.
const TOOLS: [(&str, &[&str], &str); 3] = [
    ("ip", &["-V"], "iproute2"),
    ("tc", &["-V"], "iproute2"),
    ("nft", &["--version"], "nftables"),
];

/// The namespaces of one run; taken away when dropped.
pub struct Lab {
    prefix: String,
    nodes: usize,
    /// From, to: what the first sends does not reach the second.
    cuts: BTreeSet<(usize, usize)>,
    /// The delay between nodes, and the number of nodes of a zone: within one there is none.
    wan: Option<(Wan, usize)>,
}

/// Runs a command to its end; its words and what it said are in the error.
pub(crate) fn tool(program: &str, args: &[&str]) -> anyhow::Result<String> {
    let out = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run {program}"))?;
    if !out.status.success() {
        let said = String::from_utf8_lossy(&out.stderr);
        bail!("{program} {}: {}", args.join(" "), said.trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).into_owned())
}

/// The reason that labs cannot be built here; `None` if they can.
pub fn impossible() -> Option<String> {
    for (program, args, package) in TOOLS {
        if tool(program, args).is_err() {
            return Some(format!("{program} does not run here (Debian: {package})"));
        }
    }
    // The whole of it, small: rights, namespaces, bridges, filters.
    let attempt = Lab::new(1).and_then(|mut lab| lab.set_cuts([(0, 0)].into()));
    attempt
        .err()
        .map(|error| format!("no lab can be built here (it needs root): {error:#}"))
}

impl Lab {
    /// Builds the hub and this many nodes' namespaces.
    pub fn new(nodes: usize) -> anyhow::Result<Lab> {
        sweep();
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let number = BUILT.fetch_add(1, Ordering::Relaxed);
        let mut lab = Lab {
            prefix: format!("stv{}x{number}", std::process::id()),
            nodes: 0,
            cuts: BTreeSet::new(),
            wan: None,
        };
        let hub = lab.hub();
        tool("ip", &["netns", "add", &hub])?;
        tool("ip", &["-n", &hub, "link", "set", "lo", "up"])?;
        tool("ip", &["-n", &hub, "link", "add", "br0", "type", "bridge"])?;
        let clients = format!("{CLIENTS}/24");
        tool(
            "ip",
            &["-n", &hub, "address", "add", &clients, "dev", "br0"],
        )?;
        tool("ip", &["-n", &hub, "link", "set", "br0", "up"])?;
        for _ in 0..nodes {
            lab.add()?;
        }
        Ok(lab)
    }

    /// Adds a node's namespace.
    pub fn add(&mut self) -> anyhow::Result<()> {
        if self.nodes == NODES_MAX {
            bail!("a lab has at most {NODES_MAX} nodes");
        }
        let at = self.nodes;
        let (hub, space, port) = (self.hub(), self.space(at), format!("p{}", at + 1));
        tool("ip", &["netns", "add", &space])?;
        self.nodes += 1;
        let pair = [
            "link", "add", &port, "netns", &hub, "type", "veth", "peer", "name", "eth0",
        ];
        tool("ip", &[&pair[..], &["netns", &space]].concat())?;
        tool(
            "ip",
            &["-n", &hub, "link", "set", &port, "master", "br0", "up"],
        )?;
        let address = format!("{}/24", self.address(at));
        tool(
            "ip",
            &["-n", &space, "address", "add", &address, "dev", "eth0"],
        )?;
        tool("ip", &["-n", &space, "link", "set", "eth0", "up"])?;
        tool("ip", &["-n", &space, "link", "set", "lo", "up"])?;
        self.delay_to(at)
    }

    /// Delays packets between nodes from now on, but not within zones of so many nodes, those of the first node first. Clients are near every node.
    pub fn delay(&mut self, wan: Wan, zone: usize) -> anyhow::Result<()> {
        self.wan = Some((wan, zone.max(1)));
        (0..self.nodes).try_for_each(|at| self.delay_to(at))
    }

    /// Delays what comes to a node, also from nodes that are added later.
    fn delay_to(&mut self, at: usize) -> anyhow::Result<()> {
        let place = self.place(at);
        let senders: Vec<(usize, String)> =
            (0..NODES_MAX).map(|at| (at, self.address(at))).collect();
        let Some((wan, zone)) = &mut self.wan else {
            return Ok(());
        };
        let far = senders
            .into_iter()
            .filter(|(from, _)| from / *zone != at / *zone);
        wan.delay(&place, &far.map(|(_, address)| address).collect::<Vec<_>>())
    }

    /// The counts of the delay, if there is one.
    ///
    /// # Errors
    /// It has ended at some node, which has been cut off since.
    pub fn delays(&self) -> anyhow::Result<Option<DelayCounts>> {
        match &self.wan {
            Some((wan, _)) if !wan.is_whole() => {
                bail!("the delay of packets has ended at some node, which has been cut off since")
            }
            wan => Ok(wan.as_ref().map(|(wan, _)| wan.counts())),
        }
    }

    /// The namespace of clients.
    fn hub(&self) -> String {
        format!("{}-hub", self.prefix)
    }

    /// A node's namespace, or that of clients.
    pub fn space(&self, at: usize) -> String {
        if at == HUB {
            return self.hub();
        }
        format!("{}-n{}", self.prefix, at + 1)
    }

    /// A node's address, or that of clients.
    pub fn address(&self, at: usize) -> String {
        if at == HUB {
            return CLIENTS.into();
        }
        format!("10.77.0.{}", at + 1)
    }

    /// Begins a command that runs in a node's network namespace, or in that of clients.
    ///
    /// `ip netns exec` would give it mounts of its own too: those of others here stayed mounted as long as it runs, and
    /// what it mounts nobody else would see.
    pub fn command(&self, at: usize) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{}", self.space(at)));
        command
    }

    /// The file of a node's network namespace, or of that of clients.
    pub fn place(&self, at: usize) -> PathBuf {
        Path::new("/run/netns").join(self.space(at))
    }

    /// Moves this thread to where clients are. Threads and processes that it starts are there too.
    pub fn enter(&self) -> anyhow::Result<()> {
        enter(&self.place(HUB))
    }

    /// The cuts: pairs of sender and receiver.
    pub fn cuts(&self) -> &BTreeSet<(usize, usize)> {
        &self.cuts
    }

    /// Cuts exactly these.
    pub fn set_cuts(&mut self, cuts: BTreeSet<(usize, usize)>) -> anyhow::Result<()> {
        for to in (0..self.nodes).chain([HUB]) {
            let now: Vec<usize> = senders(&cuts, to);
            if now == senders(&self.cuts, to) {
                continue;
            }
            let mut rules = "flush ruleset\ntable ip chaos {\n chain in {\n  type filter hook input priority 0;\n".to_owned();
            for from in now {
                rules += &format!("  ip saddr {} drop\n", self.address(from));
            }
            self.filter(to, &(rules + " }\n}\n"))?;
        }
        self.cuts = cuts;
        Ok(())
    }

    fn filter(&self, at: usize, rules: &str) -> anyhow::Result<()> {
        let mut nft = self
            .command(at)
            .args(["nft", "-f", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .context("cannot run nft")?;
        if let Some(mut stdin) = nft.stdin.take() {
            stdin
                .write_all(rules.as_bytes())
                .context("nft takes no rules")?;
        }
        let out = nft.wait_with_output().context("cannot wait for nft")?;
        if !out.status.success() {
            bail!("nft: {}", String::from_utf8_lossy(&out.stderr).trim());
        }
        Ok(())
    }

    /// Bounds how fast a node may send (`tc`'s words: 1mbit), or no longer does.
    pub fn slow(&self, at: usize, rate: Option<&str>) -> anyhow::Result<()> {
        let space = self.space(at);
        let on = ["qdisc", "replace", "dev", "eth0", "root", "tbf", "rate"];
        let rest = ["burst", "32kb", "latency", "400ms"];
        let args = match rate {
            Some(rate) => [&["-n", &space][..], &on, &[rate], &rest].concat(),
            None => vec!["-n", &space, "qdisc", "del", "dev", "eth0", "root"],
        };
        tool("tc", &args).map(drop)
    }
}

/// Moves this thread into a network namespace.
pub(crate) fn enter(path: &Path) -> anyhow::Result<()> {
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
        .context("cannot enter the lab's namespace")
}

fn senders(cuts: &BTreeSet<(usize, usize)>, to: usize) -> Vec<usize> {
    cuts.iter()
        .filter(|cut| cut.1 == to)
        .map(|cut| cut.0)
        .collect()
}

impl Drop for Lab {
    fn drop(&mut self) {
        // Its threads are in the namespaces.
        self.wan = None;
        for at in 0..self.nodes {
            // What cannot be taken away now is swept by the next run.
            let _ = tool("ip", &["netns", "del", &self.space(at)]);
        }
        let _ = tool("ip", &["netns", "del", &self.hub()]);
    }
}

/// The process that a lab's name tells, if it is one.
fn owner(name: &str) -> Option<u32> {
    let (pid, rest) = name.strip_prefix("stv")?.split_once('x')?;
    rest.contains('-').then_some(())?;
    pid.parse().ok()
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

/// Takes away what runs left whose process is gone: the processes in their namespaces, the namespaces,
/// and the disks that they mounted.
pub fn sweep() {
    let names = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        if !owner(&name).is_some_and(is_gone) {
            continue;
        }
        for pid in tool("ip", &["netns", "pids", &name])
            .unwrap_or_default()
            .lines()
        {
            let pid = pid.parse().ok().and_then(rustix::process::Pid::from_raw);
            if let Some(pid) = pid {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
        let _ = tool("ip", &["netns", "del", &name]);
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
        let ours = place
            .split('/')
            .find_map(|part| part.strip_prefix(crate::nodes::FOLDER));
        let pid = ours.and_then(|rest| rest.split('-').next()?.parse().ok());
        if pid.is_some_and(is_gone) {
            let _ = tool("umount", &["-l", place]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_own_names_have_an_owner() {
        assert_eq!(owner("stv123x0-n1"), Some(123));
        assert_eq!(owner("stv123x4-hub"), Some(123));
        for other in [
            "default",
            "stv",
            "stvx-",
            "stv12-n1",
            "stv12x3",
            "stvax1-n1",
        ] {
            assert_eq!(owner(other), None, "{other}");
        }
    }
}
