//! The nodes: `staves up` processes, each in its namespace, with its folder and its log.

pub mod disks;
mod starve;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rand::Rng;
use rand::rngs::SmallRng;
use rand::seq::IndexedRandom;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use self::disks::FurtherDisk;
use self::starve::Starving;
use crate::lab::{Lab, tool};
use crate::load::files::block;

/// The beginning of the names of runs' folders; the process's id follows.
pub(crate) const FOLDER: &str = "staves-chaos-";
/// Memory of each node.
const MEMORY: &str = "192MiB";
/// Most that its process may take: the memory, the budget of requests and answers under way, and the program.
pub const RESIDENT_MAX: u64 = (192 + 32 + 64) << 20;
/// The descriptors of a node that has few.
const DESCRIPTORS: &str = "--nofile=192:192";
/// Nodes' wall clocks at first, in turn, where they are apart.
const WALL_CLOCKS: [&str; 5] = ["+2d", "-3d", "+0d", "+9d", "-1d"];
/// Each data folder is a small disk of its own, in memory: it can be filled, and how fast the machine's own
/// disk is for others decides nothing.
const FOLDER_BYTES: &str = "size=12m";
/// The same with what is on disk of pools, and the nodes' share for those.
const FOLDER_BYTES_ON_DISK: &str = "size=300m";
const DISK: &str = "96MiB";
/// Little, so that pages come and go.
const DISK_MEMORY: &str = "1MiB";
/// The doors of volumes.
pub const NBD_PORT: u16 = 10809;
/// See [`NBD_PORT`].
pub const GRPC_PORT: u16 = 1690;
/// Bits that are flipped at a time, each in another block.
const FLIPS: usize = 200;
/// The port of the nodes' doors to logs by HTTP.
pub const LOG_PORT: u16 = 1700;
/// The name of the memory that a node keeps blocks of files in.
const BLOCKS: &str = "memfd:staves-blocks";
/// The bound on a request to a door for status.
const STATUS: Duration = Duration::from_millis(800);

/// The setup of the nodes.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The `staves` program.
    pub program: PathBuf,
    /// A planted bug, in builds that can have one.
    pub mutant: Option<String>,
    /// The first pool's scheme.
    pub scheme: String,
    /// Each node's monotonic clock begins elsewhere, days apart.
    pub clocks_apart: bool,
    /// The wall clocks are days apart, and can be set.
    pub wall_clocks_apart: bool,
    /// They may open few files and sockets.
    pub few_descriptors: bool,
    /// They have disks for pools.
    pub on_disk: bool,
    /// They serve volumes.
    pub volumes: bool,
    /// They serve logs by HTTP.
    pub log_door: bool,
    /// So many in turn are in one zone; without it, nodes have none.
    pub zone: Option<usize>,
}

struct Node {
    child: Option<Child>,
    started: Instant,
    paused: bool,
    starving: Option<Starving>,
    /// Bytes of its log that were looked through.
    looked_through: u64,
    /// The disks besides that in its data folder, oldest first.
    further: Vec<FurtherDisk>,
}

/// All nodes of a run. They are killed when this is dropped.
pub struct Nodes {
    setup: Setup,
    folder: PathBuf,
    nodes: Vec<Node>,
}

impl Nodes {
    /// None yet; logs and data folders go to `folder`.
    pub fn new(setup: Setup, folder: &Path) -> Nodes {
        Nodes {
            setup,
            folder: folder.to_owned(),
            nodes: Vec::new(),
        }
    }

    /// The number of nodes, running or not.
    pub fn count(&self) -> usize {
        self.nodes.len()
    }

    /// The ones that run.
    pub fn running(&self) -> Vec<usize> {
        (0..self.nodes.len())
            .filter(|at| self.nodes[*at].child.is_some())
            .collect()
    }

    /// True if it runs and is not paused.
    pub fn is_running(&self, at: usize) -> bool {
        self.nodes
            .get(at)
            .is_some_and(|n| n.child.is_some() && !n.paused)
    }

    /// The age of its process.
    pub fn age(&self, at: usize) -> Duration {
        self.nodes[at].started.elapsed()
    }

    /// A node's log.
    pub fn log(&self, at: usize) -> PathBuf {
        self.folder.join(format!("n{}.log", at + 1))
    }

    fn data(&self, at: usize) -> PathBuf {
        self.folder.join(format!("n{}", at + 1))
    }

    fn clock(&self, at: usize) -> PathBuf {
        self.folder.join(format!("n{}.clock", at + 1))
    }

    /// Sets a node's wall clock, at once, in the words of `faketime`.
    pub fn set_clock(&self, at: usize, to: &str) -> anyhow::Result<()> {
        let path = self.clock(at);
        std::fs::write(&path, to).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Makes room for one more; it is not started yet.
    pub fn add(&mut self) -> anyhow::Result<usize> {
        let at = self.nodes.len();
        let data = self.data(at);
        std::fs::create_dir_all(&data)
            .with_context(|| format!("cannot make {}", data.display()))?;
        let place = data.display().to_string();
        let size = match self.setup.on_disk {
            true => FOLDER_BYTES_ON_DISK,
            false => FOLDER_BYTES,
        };
        tool("mount", &["-t", "tmpfs", "-o", size, "tmpfs", &place])?;
        self.nodes.push(Node {
            child: None,
            started: Instant::now(),
            paused: false,
            starving: None,
            looked_through: 0,
            further: Vec::new(),
        });
        Ok(at)
    }

    /// Starts a node; all but the very first join those that run.
    pub fn start(&mut self, lab: &Lab, at: usize, founder: bool) -> anyhow::Result<()> {
        let log = self.log(at);
        let log = File::options()
            .create(true)
            .append(true)
            .open(&log)
            .with_context(|| format!("cannot write {}", log.display()))?;
        let address = lab.address(at);
        let mut command = lab.command(at);
        self.surround(&mut command, at)?;
        command
            .arg(&self.setup.program)
            .args(["up", "--listen", &format!("{address}:1600")])
            .args(["--resp", &format!("{address}:6379")])
            .args(["--admin", &format!("{address}:1680")])
            .args(["--memory", MEMORY, "--threads", "2"])
            .args(["--scheme", &self.setup.scheme])
            .args(["--parent-pid", &std::process::id().to_string()])
            .arg("--data")
            .arg(self.data(at));
        if self.setup.on_disk {
            command.args(["--disk", DISK, "--disk-memory", DISK_MEMORY]);
        }
        if self.setup.volumes {
            command.args(["--nbd", &format!("{address}:{NBD_PORT}")]);
            command.args(["--grpc", &format!("{address}:{GRPC_PORT}")]);
        }
        if self.setup.log_door {
            command.args(["--http", &format!("{address}:{LOG_PORT}")]);
        }
        if let Some(zone) = self.setup.zone {
            command.args(["--zone", &format!("z{}", at / zone + 1)]);
        }
        if !founder {
            let others = (0..self.nodes.len()).filter(|other| *other != at);
            let doors: Vec<String> = others.map(|o| format!("{}:1600", lab.address(o))).collect();
            command.args(["--join", &doors.join(",")]);
        }
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|n| n.starts_with("STAVES_") && n != "STAVES_LOG")
            {
                command.env_remove(name);
            }
        }
        if let Some(mutant) = &self.setup.mutant {
            command.env("STAVES_MUTANT", mutant);
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let child = command.spawn().context("cannot run nsenter")?;
        self.nodes[at].child = Some(child);
        self.nodes[at].started = Instant::now();
        self.nodes[at].paused = false;
        Ok(())
    }

    /// The clocks and the limits that a node's process gets.
    fn surround(&self, command: &mut Command, at: usize) -> anyhow::Result<()> {
        if self.setup.clocks_apart {
            let days = (at + 1) * 86_400;
            command.args(["unshare", "--time", "--monotonic", &days.to_string()]);
            command.args(["--boottime", &days.to_string()]);
        }
        if self.setup.few_descriptors {
            command.args(["prlimit", DESCRIPTORS]);
        }
        if self.setup.wall_clocks_apart {
            if !self.clock(at).exists() {
                self.set_clock(at, WALL_CLOCKS[at % WALL_CLOCKS.len()])?;
            }
            command.args(["env", &preload()?, "FAKETIME_NO_CACHE=1"]);
            command.args(["FAKETIME_DONT_FAKE_MONOTONIC=1", "NO_FAKE_STAT=1"]);
            let file = self.clock(at).display().to_string();
            command.arg(format!("FAKETIME_TIMESTAMP_FILE={file}"));
        }
        Ok(())
    }

    fn pid(&self, at: usize) -> anyhow::Result<Pid> {
        let child = self.nodes[at].child.as_ref();
        let child = child.with_context(|| format!("n{} does not run", at + 1))?;
        Pid::from_raw(child.id() as i32).context("no process id")
    }

    fn signal(&self, at: usize, signal: Signal) -> anyhow::Result<()> {
        let pid = self.pid(at)?;
        kill_process(pid, signal).with_context(|| format!("cannot signal n{}", at + 1))
    }

    /// SIGKILL, to all of them before the first is waited for.
    pub fn kill(&mut self, who: &[usize]) -> anyhow::Result<()> {
        self.feed(who);
        for at in who.iter().filter(|at| self.nodes[**at].child.is_some()) {
            self.signal(*at, Signal::KILL)?;
        }
        for at in who {
            if let Some(mut child) = self.nodes[*at].child.take() {
                child.wait().context("cannot wait for a killed node")?;
            }
            self.nodes[*at].paused = false;
        }
        Ok(())
    }

    /// Leaves a node's process a fifth of the time, in small pieces, until it is fed or ends.
    pub fn starve(&mut self, at: usize) -> anyhow::Result<()> {
        let pid = self.pid(at)?;
        self.nodes[at]
            .starving
            .get_or_insert_with(|| Starving::begin(pid));
        Ok(())
    }

    /// Starves these nodes no longer.
    pub fn feed(&mut self, who: &[usize]) {
        for at in who {
            self.nodes[*at].starving = None;
        }
    }

    /// The most memory that a node's process has had, if it runs.
    pub fn resident_max(&self, at: usize) -> Option<u64> {
        let child = self.nodes[at].child.as_ref()?;
        resident_max_of(&std::fs::read_to_string(format!("/proc/{}/status", child.id())).ok()?)
    }

    /// SIGSTOP.
    pub fn pause(&mut self, at: usize) -> anyhow::Result<()> {
        self.signal(at, Signal::STOP)?;
        self.nodes[at].paused = true;
        Ok(())
    }

    /// SIGCONT to all that are paused; which those were.
    pub fn resume_all(&mut self) -> anyhow::Result<Vec<usize>> {
        let paused: Vec<usize> = (0..self.nodes.len())
            .filter(|at| self.nodes[*at].paused)
            .collect();
        for at in &paused {
            self.signal(*at, Signal::CONT)?;
            self.nodes[*at].paused = false;
        }
        Ok(paused)
    }

    /// Flips bits of files in a node's memory, behind its back; how many.
    pub fn flip_bits(&self, at: usize, rng: &mut SmallRng) -> anyhow::Result<usize> {
        let child = self.nodes[at].child.as_ref();
        let child = child.with_context(|| format!("n{} does not run", at + 1))?;
        let memory =
            blocks_of(child.id()).with_context(|| format!("n{} has no memory of files", at + 1))?;
        let size = memory.metadata()?.len();
        let mut found = Vec::new();
        let mut piece = vec![0; 1 << 20];
        for from in (0..size).step_by(piece.len()) {
            let len = memory.read_at(&mut piece, from)?;
            let blocks = (from..).step_by(block::BYTES as usize);
            let blocks = blocks.zip(piece[..len].chunks(block::BYTES as usize));
            let ours = blocks.filter(|(_, bytes)| bytes.starts_with(&block::MAGIC));
            found.extend(ours.map(|(at, _)| at));
        }
        let chosen: Vec<u64> = found.choose_multiple(rng, FLIPS).copied().collect();
        for at in &chosen {
            let at = at + rng.random_range(0..block::BYTES);
            let mut byte = [0];
            memory.read_exact_at(&mut byte, at)?;
            memory.write_all_at(&[byte[0] ^ (1 << rng.random_range(0..8))], at)?;
        }
        Ok(chosen.len())
    }

    /// SIGTERM, and its exit.
    pub fn stop(&mut self, at: usize, patience: Duration) -> anyhow::Result<ExitStatus> {
        self.feed(&[at]);
        self.signal(at, Signal::TERM)?;
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(child) = &mut self.nodes[at].child
                && let Some(status) = child.try_wait().context("cannot look at a node")?
            {
                self.nodes[at].child = None;
                return Ok(status);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        bail!("n{} did not end within {patience:?} of SIGTERM", at + 1)
    }

    /// Nodes that ended though nobody killed them. Each is reported once.
    pub fn ended_by_themselves(&mut self) -> Vec<(usize, String)> {
        let mut ended = Vec::new();
        for at in 0..self.nodes.len() {
            if self.nodes[at].starving.is_none()
                && let Some(child) = &mut self.nodes[at].child
                && let Ok(Some(status)) = child.try_wait()
            {
                self.nodes[at].child = None;
                ended.push((at, status.to_string()));
            }
        }
        ended
    }

    /// The panics of nodes' threads since the last call, whether or not the process outlived them.
    pub fn panics(&mut self) -> anyhow::Result<Vec<(usize, String)>> {
        let mut all = Vec::new();
        for at in 0..self.nodes.len() {
            let path = self.log(at);
            let Ok(mut log) = File::open(&path) else {
                continue; // it was never started
            };
            let mut text = Vec::new();
            let node = &mut self.nodes[at];
            log.seek(SeekFrom::Start(node.looked_through))
                .and_then(|_| log.read_to_end(&mut text))
                .with_context(|| format!("cannot read {}", path.display()))?;
            let (read, panics) = panics_in(&String::from_utf8_lossy(&text));
            node.looked_through += read;
            all.extend(panics.into_iter().map(|panic| (at, panic)));
        }
        Ok(all)
    }

    /// Empties a node's folder, and forgets its other disks.
    pub fn forget(&mut self, at: usize) -> anyhow::Result<()> {
        self.nodes[at].further.clear();
        let data = self.data(at);
        let entries = std::fs::read_dir(&data).with_context(|| format!("{}", data.display()))?;
        for entry in entries {
            let path = entry?.path();
            let removed = match path.is_dir() {
                true => std::fs::remove_dir_all(path),
                false => std::fs::remove_file(path),
            };
            removed.context("cannot empty a data folder")?;
        }
        Ok(())
    }

    /// Fills a node's disk to the last byte, or gives that room back.
    pub fn fill_disk(&self, at: usize, full: bool) -> anyhow::Result<()> {
        let ballast = self.data(at).join("ballast");
        if !full {
            return match std::fs::remove_file(&ballast) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(error).context("cannot empty the disk")
                }
                _ => Ok(()),
            };
        }
        let mut file = File::create(&ballast).context("cannot fill the disk")?;
        for piece in [1 << 16, 1 << 12, 1] {
            while file.write_all(&vec![b'x'; piece]).is_ok() {}
        }
        Ok(())
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        let all: Vec<usize> = (0..self.nodes.len()).collect();
        // They may have ended already; either way they are gone after this.
        let _ = self.kill(&all);
        for at in all {
            let _ = tool("umount", &["-l", &self.data(at).display().to_string()]);
        }
    }
}

/// The library that gives a process another clock, as an assignment for `env`.
fn preload() -> anyhow::Result<String> {
    let library = staves_testkit::tools::faketime_library();
    let library = library.context("wall clocks need faketime (Debian: faketime)")?;
    Ok(format!("LD_PRELOAD={}", library.display()))
}

fn resident_max_of(status: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(1024 * line.split_whitespace().next()?.parse::<u64>().ok()?)
}

/// The memory that a process keeps blocks of files in.
fn blocks_of(pid: u32) -> anyhow::Result<File> {
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let path = entry?.path();
        let to = std::fs::read_link(&path).unwrap_or_default();
        if to.to_string_lossy().contains(BLOCKS) {
            let file = File::options().read(true).write(true).open(path);
            return file.context("cannot open it");
        }
    }
    bail!("no descriptor of it is open")
}

/// The panics that a piece of a log tells of, each with its reason, which is on the next line; and how
/// many bytes need not be looked at again.
fn panics_in(text: &str) -> (u64, Vec<String>) {
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut panics = Vec::new();
    let mut read = 0;
    let mut lines = text[..whole].split_inclusive('\n').peekable();
    while let Some(line) = lines.next() {
        if line.starts_with("thread ") && line.contains(" panicked at ") {
            let Some(reason) = lines.peek() else {
                break; // the rest of it is still being written
            };
            panics.push(format!("{} {}", line.trim_end(), reason.trim_end()));
        }
        read += line.len() as u64;
    }
    (read, panics)
}

/// The status of the cluster by a node's HTTP door.
pub fn status(address: &str) -> anyhow::Result<Value> {
    let to: SocketAddr = format!("{address}:1680").parse().context("an address")?;
    let mut stream = TcpStream::connect_timeout(&to, STATUS)?;
    stream.set_read_timeout(Some(STATUS))?;
    stream.set_write_timeout(Some(STATUS))?;
    stream.write_all(b"GET /api/v1/status HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
    let mut said = Vec::new();
    stream.take(4 << 20).read_to_end(&mut said)?;
    let said = String::from_utf8_lossy(&said);
    let (head, body) = said.split_once("\r\n\r\n").context("no answer")?;
    if !head.starts_with("HTTP/1.1 200") {
        bail!("{}", head.lines().next().unwrap_or_default());
    }
    serde_json::from_str(body).context("no JSON")
}

/// True if every bucket has its members and the directory its voters. `status --check` misses every node
/// that is not up; here some stay away on purpose.
pub fn is_whole(said: &serde_json::Value) -> bool {
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let pools = list(&said["pools"]);
    let nodes = list(&said["nodes"]);
    let is_up = |id: &serde_json::Value| nodes.iter().any(|n| n["id"] == *id && n["up"] == true);
    let whole = |pool: &serde_json::Value| pool["whole"] == pool["buckets"];
    let led = said["directory"]["leader"].is_u64();
    led && pools.iter().all(whole) && list(&said["directory"]["voters"]).iter().all(is_up)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panics_are_told_once_and_whole() {
        let before = "INFO up\n";
        let panic = "thread 'tokio-rt-worker' (7) panicked at a.rs:1:2:\nwhy\nstack backtrace:\n";
        let text = format!("{before}{panic}WARN half a li");
        let (read, panics) = panics_in(&text);
        assert_eq!(
            panics,
            ["thread 'tokio-rt-worker' (7) panicked at a.rs:1:2: why"]
        );
        assert_eq!(read as usize, before.len() + panic.len());
        let (first, rest) = text.split_at(text.find("why").expect("it is there"));
        let (read, panics) = panics_in(first);
        assert_eq!(
            (read as usize, panics.len()),
            (before.len(), 0),
            "not whole yet"
        );
        assert_eq!(
            panics_in(&format!("{}{rest}", &first[read as usize..]))
                .1
                .len(),
            1
        );
    }
}
