//! Rules 8 to 11 at the coordinator of an epoch: seal every retained member, find the cut, bring every
//! listed member to it, ask the directory to open.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use staves_model::{
    DirectoryCall, Epoch, Group, GroupStep, MemberId, MemberSlot, Time, mutant::Mutant,
    mutant::planted,
};
use staves_store::BUCKET_EXTENTS_MAX;
use staves_wire::group::{Delta, GroupMessage, SealedStream, SyncStream};

use crate::member::{Member, ctx};
use crate::requests::RequestTable;
use crate::state::{Ctx, Effects, stood_still};
use crate::stream::CUT_MAX;
use crate::table::{PAGES_MAX, sound_deltas, touched};
use crate::update::DISK_PATIENCE;

/// A pause doubles so often, at most: to half a second.
const REPEAT_DOUBLINGS: u32 = 3;

struct Sealed {
    streams: Vec<SealedStream>,
    reserved_extents: u32,
    restarted: bool,
    pages: u32,
}

/// The cut to which every listed member is brought.
struct CutPlan {
    streams: Vec<SyncStream>,
    reserve_extents: u32,
    pages: u32,
}

/// A change of epoch that this member leads.
pub(crate) struct Coordination {
    group: Arc<Group>,
    sealed: BTreeMap<MemberSlot, Sealed>,
    plan: Option<CutPlan>,
    done: BTreeSet<MemberSlot>,
    unable: BTreeSet<MemberSlot>,
    since: Time,
    ticked_at: Time,
    /// The time at which seals or syncs were last sent; `None`: something has changed since.
    sent_at: Option<Time>,
    /// The number of times that the same was sent again.
    repeats: u32,
}

impl Coordination {
    fn new(group: Arc<Group>, now: Time) -> Coordination {
        Coordination {
            group,
            sealed: BTreeMap::new(),
            plan: None,
            done: BTreeSet::new(),
            unable: BTreeSet::new(),
            since: now,
            ticked_at: now,
            sent_at: None,
            repeats: 0,
        }
    }

    // Seals are answered with whole logs and request tables, and syncs carry them: said again only after a time, which grows, or
    // when there is something new to say. Nodes that change many groups at a time would else work off the same again and again.
    fn is_due(&mut self, ctx: &Ctx<'_>) -> bool {
        let pause = ctx.options.resend_after * (1 << self.repeats.min(REPEAT_DOUBLINGS));
        let repeats = match self.sent_at {
            None => 0,
            Some(at) if ctx.now.since(at) >= pause => self.repeats + 1,
            Some(_) => return false,
        };
        (self.sent_at, self.repeats) = (Some(ctx.now), repeats);
        true
    }

    pub fn epoch(&self) -> Epoch {
        self.group.epoch
    }

    pub fn has_cut(&self) -> bool {
        self.plan.is_some()
    }

    fn retained(&self) -> impl Iterator<Item = MemberSlot> + '_ {
        self.group
            .listed()
            .map(|(slot, _)| slot)
            .filter(|slot| self.group.retained(*slot))
    }

    // A retained member that does not answer is removed by a further epoch, never skipped (rule 8).
    fn all_sealed(&self) -> bool {
        if planted(Mutant::GoOnWithSealMissing) {
            let complete = self
                .sealed
                .keys()
                .filter(|slot| self.group.member(**slot).is_some_and(|x| x.complete))
                .count();
            return complete >= usize::from(self.group.m);
        }
        self.retained().all(|slot| self.sealed.contains_key(&slot))
    }

    fn all_synced(&self) -> bool {
        if planted(Mutant::OpenBeforeAllHoldCut) {
            return self.done.contains(&MemberSlot(0));
        }
        let skipped = |slot: &MemberSlot| {
            planted(Mutant::GoOnWithSealMissing)
                && self.group.retained(*slot)
                && !self.sealed.contains_key(slot)
        };
        self.group
            .listed()
            .all(|(slot, _)| self.done.contains(&slot) || skipped(&slot))
    }

    /// The streams whose data bucket, as of the last open epoch, has sealed: it answers no more, so
    /// promises made to it need not be waited out.
    fn released(&self) -> u32 {
        self.sealed
            .keys()
            .filter_map(|slot| self.group.kept[slot.index()])
            .filter(|was| was.index() < usize::from(self.group.m))
            .fold(0, |bits, was| bits | (1 << was.0))
    }

    fn make_plan(&mut self) {
        if self.group.fresh {
            let streams = (0..self.group.m).map(|stream| SyncStream {
                stream,
                cut: 0,
                deltas: vec![],
                requests: vec![],
                forgot: false,
            });
            self.plan = Some(CutPlan {
                streams: streams.collect(),
                reserve_extents: 0,
                pages: 0,
            });
            return;
        }
        if !self.all_sealed() {
            return;
        }
        let streams: Vec<SyncStream> = (0..self.group.m)
            .map(|stream| self.cut_stream(stream))
            .collect();
        let most = |f: fn(&Sealed) -> u32| self.sealed.values().map(f).max().unwrap_or(0);
        // No update ever needed more than the least that any copy or parity bucket has reserved; nor does a
        // joiner, whatever was asked for and refused. With m > 1 only parity counts, since data buckets differ in
        // length; if there is no parity, a new one needs what the longest has. Members that come from their disks have forgotten what they had
        // reserved: if all do, the one with the longest log has what its deltas need.
        let coded = self.group.m > 1;
        let parity = |slot: &MemberSlot| !coded || self.group.bucket_slot(*slot).0 >= self.group.m;
        let forgot = |s: &Sealed| s.restarted && !planted(Mutant::LeastOfRestartedCounts);
        let at_parity = self.sealed.iter();
        let at_parity = at_parity.filter(|(slot, s)| parity(slot) && !forgot(s));
        let reserve_extents = at_parity
            .map(|(_, s)| s.reserved_extents)
            .min()
            .filter(|_| !(coded && planted(Mutant::MemoryOfTheLargestAsked)))
            .unwrap_or_else(|| most(|s| s.reserved_extents));
        // Pages that only the logs know yet exist at the cut too.
        let logged = streams
            .iter()
            .flat_map(|s| &s.deltas)
            .flat_map(|d| touched(&d.runs));
        let pages = logged
            .map(|page| page + 1)
            .fold(most(|s| s.pages), u32::max);
        self.plan = Some(CutPlan {
            streams,
            reserve_extents,
            pages,
        });
    }

    // Rule 9: from the highest survivor's prefix, the longest run without a gap in the union of the
    // logs. A retained data bucket has made nothing beyond its own prefix, so its last seq is that cut.
    fn cut_stream(&self, stream: u8) -> SyncStream {
        let reports: Vec<&SealedStream> = self
            .sealed
            .values()
            .flat_map(|s| s.streams.iter().filter(|r| r.stream == stream))
            .collect();
        let mut union: BTreeMap<u64, &Delta> = BTreeMap::new();
        for delta in reports.iter().flat_map(|r| &r.deltas) {
            let held = union.entry(delta.label.seq).or_insert(delta);
            if held.label < delta.label {
                *held = delta;
            }
        }
        let mut best = reports.iter().max_by_key(|r| r.prefix);
        let was = self.group.last_open.members.get(usize::from(stream));
        if planted(Mutant::VacantStreamForgotten) && was.is_none_or(Option::is_none) {
            best = None;
        }
        let prefix = best.map_or(0, |r| r.prefix);
        let mut cut = prefix;
        while union.contains_key(&(cut + 1)) {
            cut += 1;
        }
        let mut requests = RequestTable::default();
        if let Some(best) = best {
            requests = RequestTable::load(&best.requests);
        }
        let beyond = union
            .range(prefix + 1..)
            .take_while(|(seq, _)| **seq <= cut);
        beyond.for_each(|(_, delta)| requests.record(delta));
        SyncStream {
            stream,
            cut,
            deltas: union
                .range(..=cut)
                .map(|(_, delta)| (*delta).clone())
                .collect(),
            requests: requests.dump(),
            forgot: requests.forgotten() > 0,
        }
    }

    fn send_seal(&self, ctx: &Ctx<'_>, out: &mut Effects) {
        let released = self.released();
        for slot in self
            .retained()
            .filter(|slot| !self.sealed.contains_key(slot))
        {
            if let Some(member) = self.group.member(slot) {
                let message = GroupMessage::Seal {
                    group: self.group.clone(),
                    released,
                };
                out.sends
                    .push(ctx.addressed(member.id, self.epoch(), message));
            }
        }
    }

    fn send_sync(&self, ctx: &Ctx<'_>, plan: &CutPlan, out: &mut Effects) {
        for (slot, member) in self
            .group
            .listed()
            .filter(|(slot, _)| !self.done.contains(slot))
        {
            let streams = plan
                .streams
                .iter()
                .map(|s| self.sync_for(slot, s))
                .collect();
            let message = GroupMessage::Sync {
                group: self.group.clone(),
                slot,
                streams,
                reserve_extents: self.extents_for(slot, plan),
                pages: plan.pages,
            };
            out.sends
                .push(ctx.addressed(member.id, self.epoch(), message));
        }
    }

    // A twin needs what its original has. Parity's share is as large as the largest data bucket, and a node
    // that has room for the one bucket may have none for that.
    fn extents_for(&self, slot: MemberSlot, plan: &CutPlan) -> u32 {
        let of = self.group.bucket_slot(slot);
        let original = self.sealed.get(&of).filter(|_| of != slot);
        let of = |s: &Sealed| s.reserved_extents.min(plan.reserve_extents);
        original.map_or(plan.reserve_extents, of)
    }

    // A retained member needs the deltas above its prefix; a joiner begins at the cut and needs the
    // request table instead.
    fn sync_for(&self, slot: MemberSlot, stream: &SyncStream) -> SyncStream {
        let report = self
            .sealed
            .get(&slot)
            .and_then(|s| s.streams.iter().find(|r| r.stream == stream.stream));
        let joins = !self.group.retained(slot);
        SyncStream {
            stream: stream.stream,
            cut: stream.cut,
            deltas: match report {
                Some(r) => stream
                    .deltas
                    .iter()
                    .filter(|d| d.label.seq > r.prefix)
                    .cloned()
                    .collect(),
                None => vec![],
            },
            requests: if joins {
                stream.requests.clone()
            } else {
                vec![]
            },
            forgot: stream.forgot,
        }
    }

    /// Members that cannot do what this change waits for, or have not for longer than their nodes would take.
    fn stuck(&self, ctx: &Ctx<'_>) -> Vec<MemberSlot> {
        let waited = ctx.now.since(self.since);
        let mut slots = self.unable.clone();
        // Where members are to sync the cut to their disks, that may take as long as a disk may.
        let syncs = self.plan.is_some() && ctx.options.is_durable();
        let patience = ctx.options.stuck_after * if syncs { DISK_PATIENCE } else { 1 };
        if waited >= patience && !self.all_synced() {
            let late = |slot: &MemberSlot| waited >= ctx.patience(self.group.member(*slot));
            slots.extend(self.missing().into_iter().filter(late));
        }
        slots.into_iter().collect()
    }

    // Who has not done what this change waits for.
    fn missing(&self) -> Vec<MemberSlot> {
        match self.plan {
            None => self
                .retained()
                .filter(|slot| !self.sealed.contains_key(slot))
                .collect(),
            Some(_) => self
                .group
                .listed()
                .map(|(s, _)| s)
                .filter(|s| !self.done.contains(s))
                .collect(),
        }
    }
}

impl Member {
    /// The map names an epoch that is committed and not open: if this member is to lead it, begin.
    pub(crate) fn start_coordinating(&mut self, now: Time, group: Arc<Group>, out: &mut Effects) {
        let mine = group.slot_of(self.me) == Some(group.coordinator);
        let newer = self
            .coordination
            .as_ref()
            .is_none_or(|l| l.epoch() < group.epoch);
        let past = self.epoch() > group.epoch;
        if !newer || past {
            return;
        }
        self.coordination = mine.then(|| Coordination::new(group, now));
        self.coordinate(now, out);
    }

    /// Does what the change waits for, again.
    pub(crate) fn coordinate(&mut self, now: Time, out: &mut Effects) {
        let ctx = ctx!(self, now);
        let Some(coordination) = &mut self.coordination else {
            return;
        };
        if coordination.plan.is_none() {
            coordination.make_plan();
            // Whoever sealed late has its full time to sync: waiting for promises took most of it.
            if coordination.plan.is_some() {
                coordination.since = now;
                coordination.sent_at = None;
            }
        }
        let due = coordination.is_due(&ctx);
        match &coordination.plan {
            None if due => coordination.send_seal(&ctx, out),
            Some(plan) if due && !coordination.all_synced() => {
                coordination.send_sync(&ctx, plan, out)
            }
            None => {}
            Some(_) if !coordination.all_synced() => {}
            Some(_) => {
                let open = GroupStep::Open {
                    group: ctx.group,
                    epoch: coordination.epoch(),
                };
                out.directory.push(open.into());
                if planted(Mutant::ServeBeforeOpen) {
                    coordination.announce_open(&ctx, out);
                }
            }
        }
        let still = stood_still(&mut coordination.ticked_at, now, ctx.options);
        coordination.since = (coordination.since + still).min(now);
        let slots = coordination.stuck(&ctx);
        if !slots.is_empty() {
            let epoch = coordination.epoch();
            out.directory.push(DirectoryCall::Stuck {
                group: ctx.group,
                epoch,
                slots,
            });
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn on_sealed(
        &mut self,
        now: Time,
        from: MemberId,
        epoch: Epoch,
        slot: MemberSlot,
        streams: Vec<SealedStream>,
        reserved_extents: u32,
        restarted: bool,
        pages: u32,
        out: &mut Effects,
    ) {
        let Some(coordination) = self.coordination.as_mut().filter(|l| l.epoch() == epoch) else {
            return;
        };
        let member = coordination.group.member(slot);
        let retained = member.is_some_and(|x| x.id == from) && coordination.group.retained(slot);
        let m = usize::from(coordination.group.m);
        let sound = streams
            .iter()
            .all(|s| s.prefix <= CUT_MAX && sound_deltas(&s.deltas, m, epoch));
        let bounded = reserved_extents <= BUCKET_EXTENTS_MAX && pages <= PAGES_MAX;
        let known = coordination.plan.is_some() || coordination.sealed.contains_key(&slot);
        if known || !retained || !sound || !bounded {
            return;
        }
        coordination.sealed.insert(
            slot,
            Sealed {
                streams,
                reserved_extents,
                restarted,
                pages,
            },
        );
        coordination.sent_at = None;
        self.coordinate(now, out);
    }

    #[allow(clippy::too_many_arguments)]
    pub(crate) fn on_synced(
        &mut self,
        now: Time,
        from: MemberId,
        epoch: Epoch,
        slot: MemberSlot,
        able: bool,
        out: &mut Effects,
    ) {
        let Some(coordination) = self.coordination.as_mut().filter(|l| l.epoch() == epoch) else {
            return;
        };
        if coordination.group.member(slot).is_none_or(|x| x.id != from) {
            return;
        }
        if !able {
            coordination.unable.insert(slot);
            return;
        }
        let (took, stuck_after) = (now.since(coordination.since), self.options.stuck_after);
        let slowness = &self.options.slowness;
        slowness.answered(from.node, now, took, stuck_after);
        coordination.unable.remove(&slot);
        if coordination.done.insert(slot) && coordination.all_synced() {
            self.coordinate(now, out);
        }
    }
}

impl Coordination {
    // The planted bug "served before the directory opened": a sync that says that all is open.
    fn announce_open(&self, ctx: &Ctx<'_>, out: &mut Effects) {
        let mut opened = (*self.group).clone();
        opened.open = true;
        let opened = Arc::new(opened);
        for (slot, member) in self.group.listed() {
            let message = GroupMessage::Sync {
                group: opened.clone(),
                slot,
                streams: vec![],
                reserve_extents: 0,
                pages: 0,
            };
            out.sends
                .push(ctx.addressed(member.id, self.epoch(), message));
        }
    }
}
