//! The process that keeps a block device connected: when its node ends, it gives the kernel a connection to another one.
//!
//! The kernel sends again there whatever had no answer. That is right for a volume with one writer whose writes are answered once disks have
//! them: the new connection begins a new session, which every bucket knows before its first write is answered, so nothing of the old one
//! takes effect after that. With write-back what was answered and not flushed may be gone with the node, and the machine would hear of it by
//! no error; a shared volume's session goes on while others have doors, and what the old connection had sent may land late; and where
//! another client has had the volume meanwhile, the machine's memory of it is old. Such devices are not connected anew: they fail.

use std::fs;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use staves_cli_common::cluster::Cluster;
use staves_cli_common::output;
use staves_client::VolumeStat;
use staves_model::RegionId;
use staves_node::config::Endpoint;

use super::device::{doors_of, region_of};
use super::machine::NbdMachine;
use super::nbd_netlink::NbdKernel;
use super::negotiation::{Negotiated, negotiate};

/// The time for which requests wait for another connection; then they fail. A volume answers again within seconds of a node's end; a
/// majority that has to be started by hand takes longer.
pub(super) const LOST_MAX: Duration = Duration::from_secs(90);
/// The pause between two looks at the device.
const LOOK: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// The pause between two looks at the volume's session.
const SESSION_LOOK: Duration = Duration::from_secs(1);
/// The pause between two rounds over the nodes.
const ROUND: Duration = Duration::from_millis(250);

/// A device and its connection.
pub(super) struct Holder<'a> {
    pub(super) cluster: &'a Cluster,
    pub(super) kernel: NbdKernel,
    /// The device's number.
    pub(super) number: u32,
    /// The process id that the kernel gives for the device: another one's is another device.
    pub(super) pid: Option<String>,
    /// The volume's name, and the snapshot's.
    pub(super) name: String,
    pub(super) volume: RegionId,
    pub(super) size_bytes: u64,
    /// Nobody may write, or somebody may.
    pub(super) is_read_only: bool,
    /// It is connected anew.
    pub(super) follows: bool,
    /// The volume's session when it was last looked at: this device's, once that has written.
    pub(super) session: u64,
    /// The doors that are tried, those of the nodes that were up lately.
    pub(super) doors: Vec<Endpoint>,
    /// They were given, and stay.
    pub(super) are_given: bool,
    /// The one that it is connected through.
    pub(super) door: Endpoint,
    /// Its connection.
    pub(super) socket: TcpStream,
}

/// The reason why a device can not go on through any node, now or later.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NeverAgain(&'static str);

impl Holder<'_> {
    /// Keeps the device connected until it is detached.
    ///
    /// # Errors
    /// No node could be connected to in time: the device has failed.
    pub(super) fn hold(mut self) -> anyhow::Result<()> {
        let mut looked = Instant::now();
        loop {
            if self.follows && !self.is_read_only && looked.elapsed() >= SESSION_LOOK {
                self.look_at_session();
                looked = Instant::now();
            }
            let mut ended = [PollFd::new(&self.socket, PollFlags::RDHUP)];
            let has_ended = poll(&mut ended, Some(&LOOK)).is_ok_and(|n| n > 0);
            if has_ended {
                // The kernel ends the connection first where a device is detached.
                std::thread::sleep(ROUND);
            }
            if !self.is_mine() {
                return Ok(());
            }
            if has_ended && !self.connect_anew()? {
                return Ok(());
            }
        }
    }

    /// The device's path.
    pub(super) fn path(&self) -> String {
        format!("/dev/nbd{}", self.number)
    }

    fn is_mine(&self) -> bool {
        let machine = NbdMachine::here();
        let device = machine.device(&self.path());
        self.pid.is_some() && device.is_ok_and(|device| device.pid() == self.pid)
    }

    /// Connects the device through another node, or the same once it is back. False if it was detached meanwhile.
    fn connect_anew(&mut self) -> anyhow::Result<bool> {
        let (path, name) = (self.path(), self.name.clone());
        if !self.follows {
            return Err(self.fail(&format!(
                "the connection through {} has ended, and nobody can say what became of all that was written to '{name}' (write-back, or shared)",
                self.door
            )));
        }
        note(&format!(
            "{path}: the connection through {} has ended; requests wait for another node",
            self.door
        ));
        let until = Instant::now() + LOST_MAX;
        let mut last = None;
        while Instant::now() < until {
            for door in self.doors.clone() {
                if !self.is_mine() {
                    return Ok(false);
                }
                match self.connect_through(&door) {
                    Ok(()) => {
                        note(&format!("{path}: goes on through {door}"));
                        return Ok(true);
                    }
                    Err(error) if error.is::<NeverAgain>() => {
                        return Err(self.fail(&format!("{error}")));
                    }
                    Err(error) => last = Some(format!("{door}: {error:#}")),
                }
            }
            self.look_for_doors();
            std::thread::sleep(ROUND);
        }
        Err(self.fail(&format!(
            "no node has taken a connection to '{name}' for {} s ({})",
            LOST_MAX.as_secs(),
            last.unwrap_or_default()
        )))
    }

    /// Ends the device: its requests fail. The error that says why, which the kernel's log has too.
    fn fail(&self, why: &str) -> anyhow::Error {
        let _ = self.kernel.disconnect(self.number);
        let text = format!("{}: {why}: the device has failed", self.path());
        note(&text);
        anyhow!(text)
    }

    /// Looks at the session anew. If no node answers, or it is another client's, what was seen last stays.
    fn look_at_session(&mut self) {
        self.cluster.begin_again();
        let stat = self.cluster.wait(self.cluster.client.volume(&self.name));
        if let Some(stat) = stat.ok().filter(|stat| self.is_alone(stat)) {
            self.session = stat.session;
        }
    }

    /// True if nobody else can have written since the connection was there: no session began, or the last one was this connection's.
    fn is_alone(&self, stat: &VolumeStat) -> bool {
        let own = self.socket.local_addr().ok().map(|at| at.to_string());
        let writer = stat.writer.as_ref().map(|writer| writer.client.as_str());
        stat.session == self.session || own.is_some() && writer == own.as_deref()
    }

    fn connect_through(&mut self, door: &Endpoint) -> anyhow::Result<()> {
        let chosen = negotiate(door, &self.name)?;
        self.check(&chosen)?;
        self.kernel.reconnect(self.number, chosen.socket.as_fd())?;
        self.socket = chosen.socket;
        self.door = door.clone();
        Ok(())
    }

    /// Fails unless that is what the device was before.
    fn check(&self, chosen: &Negotiated) -> anyhow::Result<()> {
        if chosen.is_read_only() && !self.is_read_only {
            bail!("another client has the volume");
        }
        self.cluster.begin_again();
        let stat = self.cluster.wait(self.cluster.client.volume(&self.name))?;
        if !self.is_read_only && !self.is_alone(&stat) {
            bail!(NeverAgain("another client has had the volume meanwhile"));
        }
        let volume = region_of(self.cluster, &self.name)?;
        if volume != self.volume || chosen.size_bytes < self.size_bytes {
            bail!(NeverAgain("that is another volume of this name"));
        }
        Ok(())
    }

    fn look_for_doors(&mut self) {
        if self.are_given {
            return;
        }
        self.cluster.begin_again();
        let report = self.cluster.status();
        if let Some(doors) = report.ok().and_then(|report| doors_of(&report).ok()) {
            self.doors = doors;
        }
    }
}

/// Tells of the device on stderr, and in the kernel's log, beside the kernel's own words on it.
fn note(text: &str) {
    output::say(format_args!("staves: {text}"));
    let _ = fs::write("/dev/kmsg", format!("<4>staves: {text}\n"));
}
