//! A wide area network: packets between namespaces arrive a fixed time later, in order.
//!
//! The kernels that this runs on need have no netem. A rule of `iptables-legacy` at the receiver's end puts each packet of certain senders into a
//! queue of the kernel (NFQUEUE); a thread for each receiver lets it go on when its time has come, all that are due with one message.
//! At the receiver's and not the sender's end: a packet that waits in its sender counts against what TCP lets one
//! socket have on its way (small queues), and a long delay would bound the rate.
//!
//! **Bounds.** [`PACKETS_MAX`] packets wait at a receiver; what comes beyond is dropped and counted. A packet is one as
//! the sender handed it over, up to 64 KiB of a TCP stream.
//!
//! **Ends.** The threads end with the process, and packets of a queue that nobody reads are dropped: a delay that failed is a cut, and never a
//! network without a delay. Rules lie in the namespaces and go with them; who delays in a namespace that stays takes them away, or writes them
//! anew as a whole at the next start.

pub mod measure;
pub mod netlink;
pub mod queue;

use std::fs::File;
use std::io::Write;
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use thread_priority::{
    RealtimeThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy,
    set_thread_priority_and_policy, thread_native_id,
};

use self::netlink::{PacketQueue, QueueEvent};
use self::queue::DelayQueue;

/// Packets that wait at one receiver at most.
pub const PACKETS_MAX: usize = 16_384;
/// The longest one-way delay.
pub const DELAY_MAX: Duration = Duration::from_secs(2);
/// The kernel's queue is longer than ours: a packet too many is to be counted here.
const KERNEL_PACKETS_MAX: u32 = PACKETS_MAX as u32 + 1024;
/// The number of the kernel's queue, in each namespace.
const QUEUE: u16 = 1600;
/// The program that writes rules, and where Debian has it.
const RESTORE: &str = "iptables-legacy-restore";
const PACKAGE: &str = "iptables";
/// A thread looks this often whether it is to end.
const IDLE: Duration = Duration::from_millis(100);
/// Messages that are read before packets whose time has come are let go.
const MESSAGES_AT_ONCE: usize = 64;

/// Counts of a delay, of all its receivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DelayCounts {
    /// Packets that arrived late, as they were meant to.
    pub delayed: u64,
    /// Packets that were dropped, for the queue was full.
    pub dropped: u64,
    /// Times that the kernel had no room for messages, and dropped packets uncounted.
    pub overflows: u64,
    /// The longest time beyond the delay that a packet waited.
    pub late_max: Duration,
}

impl std::fmt::Display for DelayCounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} packets delayed, {} dropped for the queue was full, {} times no room in the kernel; at most {:.3} ms beyond the delay",
            self.delayed,
            self.dropped,
            self.overflows,
            self.late_max.as_secs_f64() * 1000.0
        )
    }
}

/// Some receivers whose packets arrive late. The delay ends when this is dropped, and its rules go.
pub struct Wan {
    one_way: Duration,
    receivers: Vec<DelayedReceiver>,
    ends: Arc<AtomicBool>,
    counts: Arc<AtomicCounts>,
}

struct DelayedReceiver {
    namespace: PathBuf,
    thread: JoinHandle<anyhow::Result<()>>,
}

#[derive(Default)]
struct AtomicCounts {
    delayed: AtomicU64,
    dropped: AtomicU64,
    overflows: AtomicU64,
    late_max_ns: AtomicU64,
}

/// The reason that packets cannot be delayed here; `None` if they can.
pub fn impossible() -> Option<String> {
    let version = Command::new(RESTORE).arg("--version").output();
    if !version.is_ok_and(|out| out.status.success()) {
        return Some(format!(
            "{RESTORE} does not run here, and rules of nftables cannot queue packets on every kernel: install {PACKAGE} (Debian)"
        ));
    }
    None
}

impl Wan {
    /// No receivers yet; each will get its packets this much later.
    ///
    /// # Errors
    /// The delay is longer than [`DELAY_MAX`], or tools are absent.
    pub fn new(one_way: Duration) -> anyhow::Result<Wan> {
        if one_way > DELAY_MAX {
            bail!("a delay of {one_way:?} is longer than {DELAY_MAX:?}");
        }
        if let Some(why) = impossible() {
            bail!("packets cannot be delayed: {why}");
        }
        Ok(Wan {
            one_way,
            receivers: Vec::new(),
            ends: Arc::default(),
            counts: Arc::default(),
        })
    }

    /// Delays what these addresses send to a namespace (a path like `/run/netns/NAME` or `/proc/PID/ns/net`).
    ///
    /// # Errors
    /// The namespace cannot be entered, its queue cannot be had, or the rules cannot be written.
    pub fn delay(&mut self, namespace: &Path, senders: &[String]) -> anyhow::Result<()> {
        let file = File::open(namespace)
            .with_context(|| format!("cannot open the namespace {}", namespace.display()))?;
        let (ready, is_ready) = mpsc::channel();
        let work = ReceiverLoop {
            queue: DelayQueue::new(self.one_way, PACKETS_MAX),
            since: Instant::now(),
            ends: self.ends.clone(),
            counts: self.counts.clone(),
        };
        let thread = std::thread::Builder::new()
            .name("wan".into())
            .spawn(move || work.run(&file, &ready))
            .context("cannot start a thread")?;
        if is_ready.recv().is_err() {
            let ended = thread.join();
            let why = ended.unwrap_or_else(|_| Err(anyhow::anyhow!("its thread panicked")));
            let place = namespace.display();
            return Err(match why {
                Err(why) => why.context(format!("packets to {place} cannot be delayed")),
                Ok(()) => anyhow::anyhow!("the delay of {place} ended at once"),
            });
        }
        self.receivers.push(DelayedReceiver {
            namespace: namespace.to_owned(),
            thread,
        });
        // Behind the thread: a packet in a queue that nobody has is dropped.
        set_rules(namespace, senders)
    }

    /// The counts until now.
    pub fn counts(&self) -> DelayCounts {
        DelayCounts {
            delayed: self.counts.delayed.load(Relaxed),
            dropped: self.counts.dropped.load(Relaxed),
            overflows: self.counts.overflows.load(Relaxed),
            late_max: Duration::from_nanos(self.counts.late_max_ns.load(Relaxed)),
        }
    }

    /// True while every receiver has its packets: a thread that ended left a cut behind.
    pub fn is_whole(&self) -> bool {
        self.receivers
            .iter()
            .all(|receiver| !receiver.thread.is_finished())
    }
}

impl Drop for Wan {
    fn drop(&mut self) {
        for receiver in &self.receivers {
            // A namespace that is gone has taken its rules along.
            let _ = set_rules(&receiver.namespace, &[]);
        }
        self.ends.store(true, Relaxed);
        for receiver in self.receivers.drain(..) {
            if let Ok(Err(error)) = receiver.thread.join() {
                eprintln!("wan: {error:#}");
            }
        }
    }
}

/// Writes the rules of a namespace anew, as a whole: what a killed process left goes.
fn set_rules(namespace: &Path, senders: &[String]) -> anyhow::Result<()> {
    let mut rules = "*mangle\n:INPUT ACCEPT [0:0]\n".to_owned();
    for sender in senders {
        rules += &format!("-A INPUT -s {sender} -j NFQUEUE --queue-num {QUEUE}\n");
    }
    rules += "COMMIT\n";
    let mut restore = Command::new("nsenter")
        .arg(format!("--net={}", namespace.display()))
        .args([RESTORE, "-w", "10"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run nsenter")?;
    if let Some(mut stdin) = restore.stdin.take() {
        // If it does not read, it says why.
        let _ = stdin.write_all(rules.as_bytes());
    }
    let out = restore
        .wait_with_output()
        .with_context(|| format!("cannot wait for {RESTORE}"))?;
    if !out.status.success() {
        bail!(
            "{RESTORE} (Debian: {PACKAGE}) wrote no rules in {}: {}",
            namespace.display(),
            String::from_utf8_lossy(&out.stderr).trim()
        );
    }
    Ok(())
}

/// A thread that waited for the processor would delay packets further: it is ahead of all ordinary ones, and exact. It goes without.
fn go_first() {
    let round_robin = ThreadSchedulePolicy::Realtime(RealtimeThreadSchedulePolicy::RoundRobin);
    let _ = set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, round_robin);
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1_000));
}

/// The work of a receiver's thread.
struct ReceiverLoop {
    queue: DelayQueue,
    since: Instant,
    ends: Arc<AtomicBool>,
    counts: Arc<AtomicCounts>,
}

impl ReceiverLoop {
    fn run(mut self, namespace: &File, ready: &mpsc::Sender<()>) -> anyhow::Result<()> {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter the namespace (it needs root)")?;
        go_first();
        let packets = PacketQueue::open(QUEUE, KERNEL_PACKETS_MAX)?;
        let _ = ready.send(());
        while !self.ends.load(Relaxed) {
            let empty = self.receive(&packets)?;
            self.release(&packets)?;
            if empty {
                self.wait(&packets)?;
            }
        }
        Ok(())
    }

    /// Takes in what has come; false if there may be more.
    fn receive(&mut self, packets: &PacketQueue) -> anyhow::Result<bool> {
        for _ in 0..MESSAGES_AT_ONCE {
            match packets.receive()? {
                QueueEvent::Packet(packet) if self.queue.arrive(self.since.elapsed(), packet) => {}
                QueueEvent::Packet(packet) => {
                    packets.drop_packet(packet)?;
                    self.counts.dropped.fetch_add(1, Relaxed);
                }
                QueueEvent::Lost => {
                    self.counts.overflows.fetch_add(1, Relaxed);
                }
                QueueEvent::Nothing => return Ok(true),
            }
        }
        Ok(false)
    }

    fn release(&mut self, packets: &PacketQueue) -> anyhow::Result<()> {
        let Some(release) = self.queue.release(self.since.elapsed()) else {
            return Ok(());
        };
        packets.accept_up_to(release.last)?;
        let counts = &self.counts;
        counts.delayed.fetch_add(release.packets as u64, Relaxed);
        let late = u64::try_from(release.late.as_nanos()).unwrap_or(u64::MAX);
        counts.late_max_ns.fetch_max(late, Relaxed);
        Ok(())
    }

    /// Waits for a packet, or until one is due.
    fn wait(&self, packets: &PacketQueue) -> anyhow::Result<()> {
        let due = self.queue.next_due();
        let time = due.map_or(IDLE, |due| due.saturating_sub(self.since.elapsed()));
        let time = Timespec::try_from(time.min(IDLE)).context("a time")?;
        match poll(&mut [PollFd::new(packets, PollFlags::IN)], Some(&time)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for packets"),
        }
    }
}
