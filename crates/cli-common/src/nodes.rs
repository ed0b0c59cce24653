//! Nodes of our own, for the demo and for benches: child processes with folders in a temporary place.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use staves_model::Change;
use staves_node::config::Endpoint;
use staves_node::status::StatusReport;
use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::codes::Own;
use crate::failure::Failure;

/// The interval at which nodes that are waited for are looked at.
const LOOK: Duration = Duration::from_millis(50);
/// Longest wait for one status of the cluster.
const STATUS: Duration = Duration::from_millis(1000);
const HOST: &str = "127.0.0.1";
/// Ports of a node.
const PORTS: usize = 4;

/// The ports from here on, none of them in use: nodes that find another cluster behind one would join that, and be
/// killed there.
fn unused_ports(base: u16, count: u16) -> anyhow::Result<Vec<u16>> {
    let ports: Vec<u16> = (base..base + count).collect();
    for port in &ports {
        if let Err(error) = TcpListener::bind((HOST, *port)) {
            let last = base + count - 1;
            let text = format!(
                "cannot listen on {HOST}:{port}: {error}; the nodes need the ports {base} to {last}: choose another --base-port, or leave it out for free ones. Nothing was started"
            );
            return Err(Failure::Own(Own::PortInUse, text).into());
        }
    }
    Ok(ports)
}

/// One node: its doors and, while it runs, its process.
struct Process {
    native: u16,
    resp: u16,
    admin: u16,
    nbd: u16,
    folder: PathBuf,
    log: PathBuf,
    child: Option<Child>,
}

/// All nodes. They are killed when this is dropped.
pub struct Nodes {
    program: PathBuf,
    folder: Option<TempDir>,
    path: PathBuf,
    processes: Vec<Process>,
    /// Worker threads of those started from now on.
    pub threads: u32,
    /// Flags of `up` that they get besides.
    pub flags: Vec<String>,
    /// Those started from now on serve volumes by NBD.
    pub serve_nbd: bool,
    /// The connection that the last look was taken through.
    cluster: Option<Cluster>,
}

impl Nodes {
    /// Chooses ports and makes folders; starts nothing yet.
    pub fn new(count: u32, base_port: Option<u16>, keep: bool) -> anyhow::Result<Nodes> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let folder = tempfile::Builder::new()
            .prefix("staves-demo-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let path = folder.path().to_owned();
        let ports = match base_port {
            Some(base) => unused_ports(base, count as u16 * PORTS as u16)?,
            None => free_ports(count as usize * PORTS)?,
        };
        let process = |(at, ports): (usize, &[u16])| Process {
            native: ports[0],
            resp: ports[1],
            admin: ports[2],
            nbd: ports[3],
            folder: path.join(format!("node-{}", at + 1)),
            log: path.join(format!("node-{}.log", at + 1)),
            child: None,
        };
        let processes = ports.chunks_exact(PORTS).enumerate().map(process).collect();
        let mut nodes = Nodes {
            program,
            folder: Some(folder),
            path,
            processes,
            threads: 2,
            flags: Vec::new(),
            serve_nbd: false,
            cluster: None,
        };
        if keep {
            nodes.keep();
        }
        Ok(nodes)
    }

    /// The number of nodes, running or not.
    pub fn count(&self) -> usize {
        self.processes.len()
    }

    /// The program that they run: this one.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// The folder of their folders and logs.
    pub fn folder(&self) -> &Path {
        &self.path
    }

    /// Leaves folders and logs behind.
    pub fn keep(&mut self) {
        if let Some(folder) = self.folder.take() {
            let _ = folder.keep();
        }
    }

    /// Starts a node; all but the first join the first that runs.
    pub fn spawn(&mut self, at: usize) -> anyhow::Result<()> {
        let join = self
            .running()
            .find(|other| *other != at)
            .map(|other| self.native(other));
        let process = &mut self.processes[at];
        let open = || File::options().create(true).append(true).open(&process.log);
        let log = open().with_context(|| format!("cannot write {}", process.log.display()))?;
        let mut command = Command::new(&self.program);
        command
            .arg("up")
            .args(["--listen", &format!("{HOST}:{}", process.native)])
            .args(["--resp", &format!("{HOST}:{}", process.resp)])
            .args(["--admin", &format!("{HOST}:{}", process.admin)])
            .args(["--threads", &self.threads.to_string()])
            .args(&self.flags)
            .args(["--parent-pid", &std::process::id().to_string()])
            .arg("--data")
            .arg(&process.folder);
        if self.serve_nbd {
            command.args(["--nbd", &format!("{HOST}:{}", process.nbd)]);
        }
        if let Some(join) = join {
            command.args(["--join", &join]);
        }
        // What is set in the environment is meant for other nodes than these.
        let ours = |name: &str| name.starts_with("STAVES_") && name != "STAVES_LOG";
        for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_str().is_some_and(ours)) {
            command.env_remove(name);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command
            .spawn()
            .with_context(|| format!("cannot run {}", self.program.display()))?;
        process.child = Some(child);
        Ok(())
    }

    /// Kills a node with SIGKILL.
    pub fn kill(&mut self, at: usize) -> anyhow::Result<()> {
        if let Some(mut child) = self.processes[at].child.take() {
            child.kill().context("cannot kill the node")?;
            child.wait().context("cannot wait for the killed node")?;
        }
        Ok(())
    }

    /// Kills all nodes that run with SIGKILL, at once.
    pub fn kill_all(&mut self) -> anyhow::Result<()> {
        let running = self.processes.iter_mut();
        let mut killed: Vec<Child> = running.filter_map(|p| p.child.take()).collect();
        for child in &mut killed {
            child.kill().context("cannot kill a node")?;
        }
        for child in &mut killed {
            child.wait().context("cannot wait for a killed node")?;
        }
        self.cluster = None;
        Ok(())
    }

    /// Starts the nodes that do not run, from the folders that they had.
    pub fn revive(&mut self) -> anyhow::Result<()> {
        let down: Vec<usize> = (0..self.count())
            .filter(|at| self.processes[*at].child.is_none())
            .collect();
        down.into_iter().try_for_each(|at| self.spawn(at))
    }

    /// Fails if a node has ended that nobody killed, with the last it said.
    pub fn check_alive(&mut self) -> anyhow::Result<()> {
        for at in 0..self.processes.len() {
            let process = &mut self.processes[at];
            let Some(child) = &mut process.child else {
                continue;
            };
            if let Some(status) = child
                .try_wait()
                .context("cannot look at a node's process")?
            {
                process.child = None;
                let text = std::fs::read_to_string(&process.log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().rev().take(5).collect();
                let said: Vec<&str> = lines.into_iter().rev().collect();
                bail!(
                    "node {} ended by itself ({status}). It said:\n{}",
                    at + 1,
                    said.join("\n")
                );
            }
        }
        Ok(())
    }

    /// Looks until what is wanted is there; an inner error is what was seen instead. Leaves the logs behind if it takes too long.
    pub fn wait<T>(
        &mut self,
        what: &str,
        patience: Duration,
        mut look: impl FnMut(&mut Nodes) -> anyhow::Result<Result<T, String>>,
    ) -> anyhow::Result<T> {
        let until = Instant::now() + patience;
        let mut last = "no node answered".to_owned();
        while Instant::now() < until {
            self.check_alive()?;
            match look(self)? {
                Ok(found) => return Ok(found),
                Err(seen) => last = seen,
            }
            std::thread::sleep(LOOK);
        }
        self.keep();
        bail!(
            "after {} s still waiting until {what}. Last seen: {last} The nodes' logs are in {}",
            patience.as_secs(),
            self.path.display()
        );
    }

    /// The status of the cluster once it is as wanted; an inner error is the sentence that it opened with instead.
    pub fn status_if(
        &mut self,
        wanted: impl Fn(&StatusReport) -> bool,
    ) -> Result<StatusReport, String> {
        match self.status() {
            Ok(report) if wanted(&report) => Ok(report),
            Ok(report) => Err(report.sentence),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The status of the cluster, through any node that runs.
    pub fn status(&mut self) -> anyhow::Result<StatusReport> {
        if let Some(cluster) = self.cluster.take()
            && let Ok(report) = cluster.status()
        {
            self.cluster = Some(cluster);
            return Ok(report);
        }
        let door = |at| Endpoint {
            host: HOST.into(),
            port: self.processes[at as usize].native,
        };
        let doors: Vec<Endpoint> = self.running().map(|at| door(at as u32)).collect();
        let cluster = Cluster::connect(&doors, STATUS)?;
        let report = cluster.status()?;
        self.cluster = Some(cluster);
        Ok(report)
    }

    /// A connection to any node that runs.
    pub fn cluster(&mut self) -> anyhow::Result<&Cluster> {
        self.status()?;
        self.cluster.as_ref().context("no node answers")
    }

    /// A node's process while it runs.
    pub fn pid(&self, at: usize) -> Option<u32> {
        self.processes[at].child.as_ref().map(Child::id)
    }

    /// The running node at this native address.
    pub fn at(&self, native: &str) -> Option<usize> {
        self.running().find(|at| self.native(*at) == native)
    }

    /// The RESP doors of all running nodes.
    pub fn doors(&self) -> Vec<String> {
        self.running()
            .map(|at| format!("{HOST}:{}", self.processes[at].resp))
            .collect()
    }

    /// Makes a change of the cluster's map, through any node that runs.
    pub fn propose(&mut self, change: &Change) -> anyhow::Result<()> {
        let cluster = self.cluster()?;
        cluster.begin_again();
        cluster.propose(change)
    }

    /// The NBD doors of all nodes, running or not.
    pub fn nbd_doors(&self) -> Vec<SocketAddr> {
        let door = |process: &Process| SocketAddr::from((Ipv4Addr::LOCALHOST, process.nbd));
        self.processes.iter().map(door).collect()
    }

    /// The native doors of all running nodes.
    pub fn native_doors(&self) -> Vec<String> {
        self.running().map(|at| self.native(at)).collect()
    }

    /// The first running node's doors: RESP and native.
    pub fn first_doors(&self) -> (String, String) {
        let at = self.running().next().unwrap_or(0);
        (
            format!("{HOST}:{}", self.processes[at].resp),
            self.native(at),
        )
    }

    /// The native address of a node.
    pub fn native(&self, at: usize) -> String {
        format!("{HOST}:{}", self.processes[at].native)
    }

    fn running(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.processes.len()).filter(|at| self.processes[*at].child.is_some())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for process in &mut self.processes {
            if let Some(child) = &mut process.child {
                // It may have ended already; either way it is gone after this.
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }
}

/// Ports that nobody uses now.
fn free_ports(count: usize) -> anyhow::Result<Vec<u16>> {
    // Below those that the system gives to outgoing connections: one of these could take a port in the
    // moment between this look and the node's start. Another place for each process, and from 20000 on what tests hold.
    let mut next = 10_000 + (std::process::id() % 480) as u16 * 20;
    let mut ports = Vec::with_capacity(count);
    while ports.len() < count {
        if TcpListener::bind((HOST, next)).is_ok() {
            ports.push(next);
        }
        next += 1;
        ensure!(
            next < 32_768,
            "cannot find free ports between 10000 and 32767"
        );
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_in_use_are_refused_before_a_node_is_started() {
        let taken = TcpListener::bind((HOST, 0)).unwrap();
        let port = taken.local_addr().unwrap().port();
        let base = port.saturating_sub(4).max(1);
        let error = Nodes::new(3, Some(base), false).map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("cannot listen on 127.0.0.1:") && text.contains("--base-port"),
            "{text}"
        );
        drop(taken);
    }
}
