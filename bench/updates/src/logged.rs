//! Our own protocol between the same processes: the machine of `staves-group` at each of them, driven as
//! a node drives it, with messages as they are on the wire.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use bytes::Bytes;
use rand::{Rng, SeedableRng, rngs::SmallRng};
use staves_group::{DirectoryCall, Effects, Event, GroupStep, Member, Options};
use staves_model::{
    Epoch, Group, GroupId, Incarnation, LastOpen, MemberId, MemberSlot, NodeId, PoolId, Revision,
    Time,
};
use staves_store::{Arena, Budget, EXTENT_BYTES};
use staves_wire::group::{GroupEnvelope, Run, RunKind};
use staves_wire::message::{Message, Opcode};

use crate::bucket::{BUCKET_BYTES, K, M, STREAM};
use crate::link::{Kind, Link, wait};

/// As a node has it, but that a member is also woken when it would send something again.
const TICK: Duration = Duration::from_millis(25);
/// The wait before messages that are lost on purpose are sent again: little more than a round trip.
const RESEND_AFTER_LOSSY: Duration = Duration::from_millis(1);

/// Slot s is node s + 1's. The other data buckets are vacant: an update does not concern them.
fn group(open: bool) -> Group {
    let members: Vec<Option<staves_model::Member>> = (0..(M + K) as u64)
        .map(|slot| {
            let listed = slot == STREAM as u64 || slot >= M as u64;
            listed.then_some(staves_model::Member {
                id: MemberId::new(NodeId(slot + 1), Incarnation(1)),
                complete: true,
            })
        })
        .collect();
    Group {
        id: GroupId(1),
        pool: PoolId(1),
        bucket: 0,
        m: M as u8,
        epoch: Epoch(1),
        open,
        coordinator: MemberSlot(STREAM as u8),
        kept: vec![None; members.len()],
        fresh: true,
        last_open: if open {
            LastOpen {
                epoch: Epoch(1),
                members: members.clone(),
            }
        } else {
            LastOpen::default()
        },
        members,
        lost: false,
        revision: Revision(1 + u64::from(open)),
    }
}

struct Driver {
    member: Member,
    begun: Instant,
    loss: f64,
    dice: SmallRng,
    open: bool,
}

impl Driver {
    fn new(slot: usize, loss: f64) -> anyhow::Result<Driver> {
        let bytes = 2 * BUCKET_BYTES;
        let options = Options {
            resend_after: if loss > 0.0 {
                RESEND_AFTER_LOSSY
            } else {
                Options::default().resend_after
            },
            stuck_after: Duration::from_secs(60),
            ..Options::default()
        };
        let member = Member::new(
            options,
            GroupId(1),
            MemberId::new(NodeId(slot as u64 + 1), Incarnation(1)),
            Arena::new(bytes as u64).context("no memory for the arena")?,
            Arc::new(Budget::new((bytes / EXTENT_BYTES) as u32)),
        );
        Ok(Driver {
            member,
            begun: Instant::now(),
            loss,
            dice: SmallRng::seed_from_u64(7),
            open: false,
        })
    }

    fn now(&self) -> Time {
        // Later than any promise of a life before.
        Time::from_millis(10_000) + self.begun.elapsed()
    }

    fn step(
        &mut self,
        event: Event,
        links: &mut [Link],
        to: &BTreeMap<NodeId, usize>,
    ) -> anyhow::Result<()> {
        let mut out = Effects::default();
        self.member
            .step(self.now(), event, &mut out, &mut |_, _| {});
        self.carry(out, links, to)
    }

    fn carry(
        &mut self,
        out: Effects,
        links: &mut [Link],
        to: &BTreeMap<NodeId, usize>,
    ) -> anyhow::Result<()> {
        for (node, envelope) in out.sends {
            let Some(link) = to.get(&node) else {
                // The leader of an epoch tells itself, too.
                self.step(Event::Message(envelope), links, to)?;
                continue;
            };
            if self.loss > 0.0 && self.open && self.dice.random::<f64>() < self.loss {
                continue;
            }
            links[*link].send_with(Kind::Group, 0, 0, |out| envelope.encode(out));
        }
        let opened = |c: &DirectoryCall| matches!(c, DirectoryCall::Step(GroupStep::Open { .. }));
        if out.directory.iter().any(opened) {
            self.open(links, to)?;
        }
        Ok(())
    }

    fn open(&mut self, links: &mut [Link], to: &BTreeMap<NodeId, usize>) -> anyhow::Result<()> {
        self.open = true;
        self.step(Event::Map(Arc::new(group(true))), links, to)
    }
}

fn envelopes(body: Bytes) -> anyhow::Result<Vec<GroupEnvelope>> {
    match Message::decode(Opcode::Group, 0, body)? {
        Message::Group(batch) => Ok(batch.0),
        other => anyhow::bail!("{:?} is no message of a group", other.opcode()),
    }
}

/// A parity bucket's process.
pub fn parity(parity: usize, mut links: [Link; 1]) -> anyhow::Result<()> {
    let to = BTreeMap::from([(NodeId(STREAM as u64 + 1), 0)]);
    let mut driver = Driver::new(M + parity, 0.0)?;
    driver.step(Event::Map(Arc::new(group(false))), &mut links, &to)?;
    let mut ticked = Instant::now();
    loop {
        wait(&mut links, Some(TICK))?;
        if !links[0].fill()? {
            return Ok(());
        }
        while let Some(frame) = links[0].next()? {
            for envelope in envelopes(frame.bytes)? {
                driver.step(Event::Message(envelope), &mut links, &to)?;
            }
        }
        if ticked.elapsed() >= TICK {
            ticked = Instant::now();
            driver.step(Event::Tick, &mut links, &to)?;
        }
        links[0].flush()?;
    }
}

/// The data bucket's process.
pub fn data(loss: f64, mut links: Vec<Link>) -> anyhow::Result<()> {
    let to = (0..K).map(|at| (NodeId((M + at) as u64 + 1), at)).collect();
    let mut driver = Driver::new(STREAM, loss)?;
    driver.step(Event::Map(Arc::new(group(false))), &mut links, &to)?;
    let extents = (BUCKET_BYTES / EXTENT_BYTES) as u32;
    let (mut ticked, mut answered, mut wished) = (Instant::now(), 0, false);
    loop {
        let now = driver.now();
        let again = driver.member.resend_at(now).map(|at| at.since(now));
        wait(
            &mut links,
            Some(again.map_or(TICK, |again| again.min(TICK))),
        )?;
        for link in &mut links {
            if !link.held && !link.fill()? {
                return Ok(());
            }
        }
        for at in 0..K {
            while let Some(frame) = links[at].next()? {
                for envelope in envelopes(frame.bytes)? {
                    driver.step(Event::Message(envelope), &mut links, &to)?;
                }
            }
        }
        let ready = driver.member.serving() && driver.member.usable_extents() >= extents;
        links[K].held = !ready;
        if driver.member.serving() && !wished {
            // All memory is reserved at every member before the first update (GROUP: a seq is never refused).
            driver.member.want_extents(extents);
            wished = true;
        }
        while ready && driver.member.admit(1024).is_ok() {
            let Some(frame) = links[K].next()? else { break };
            if frame.kind == Kind::Ping {
                links[K].send(Kind::Ping, 0, 0, &[]);
                continue;
            }
            let run = Run {
                offset: frame.at.into(),
                len: frame.bytes.len() as u32,
                kind: RunKind::Bytes,
            };
            driver
                .member
                .update(None, Bytes::new(), vec![run], frame.bytes);
        }
        let mut out = Effects::default();
        driver.member.flush(driver.now(), &mut out);
        driver.carry(out, &mut links, &to)?;
        let now = driver.now();
        let again = driver.member.resend_at(now).is_some_and(|at| at <= now);
        if again || ticked.elapsed() >= TICK {
            ticked = Instant::now();
            driver.step(Event::Tick, &mut links, &to)?;
        }
        let stable = driver.member.stable();
        if stable > answered {
            answered = stable;
            links[K].send(Kind::Answer, stable, 0, &[]);
        }
        for link in &mut links {
            link.flush()?;
        }
    }
}
