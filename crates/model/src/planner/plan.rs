//! One group's next epoch, as plain functions of the map.

use std::collections::BTreeSet;

use super::balance::Load;
use super::coordinator::{choose_coordinator, reach_most};
use super::odd::coordinator_is_the_odd_one;
use crate::change::{NewEpoch, is_source, sources};
use crate::ids::{MemberId, MemberSlot, NodeId};
use crate::map::{ClusterMap, Group, Medium, Member, Pool, nodes_to_spare, whole_buckets};
use crate::mutant::{Mutant, planted};
use crate::reach::{Cuts, NarrowNodes, apart};
use crate::scheme::{K_MAX, PARITY_SLOTS, bucket_slot, twin};

/// After so many tries in vain an epoch is made of survivors alone: a joiner may be what is in the way.
const TRIES_WITH_JOINERS: u64 = 2;

/// The reason for an epoch. The first goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum EpochReason {
    /// The group does not serve, or not safely: never held back.
    Urgent,
    /// The last steps of a move: its copies are made, the surplus can go.
    Finish,
    /// Fewer members than the scheme wants.
    Repair,
    /// A member's node is draining.
    Drain,
    /// The ring has it elsewhere.
    Balance,
    /// Other nodes hold far fewer (m > 1).
    Spread,
}

/// True if a node may be chosen for a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fit {
    Able,
    /// It could not, some time ago: where the others are too few.
    IfNeeded,
    Unable,
}

/// The nodes that may hold a group, best first.
pub(super) struct Choice {
    able: Vec<MemberId>,
    /// Their number, with those that cannot at present.
    homes: usize,
    /// Places beside another member, on all that are up: those that are able, then those that lately could not.
    seconds: [Vec<MemberId>; 2],
}

impl Choice {
    /// `order` without those that are not up and those that recently could not, unless fewer than `width` are left.
    pub(super) fn new(
        map: &ClusterMap,
        group: &Group,
        order: &[NodeId],
        width: usize,
        fit: impl Fn(MemberId) -> Fit,
    ) -> Choice {
        let fit = |id| match wiped_all_the_same(group, id) {
            true => Fit::Able,
            false => fit(id),
        };
        let up: Vec<_> = order
            .iter()
            .filter_map(|n| Some(MemberId::new(*n, map.nodes.get(n)?.incarnation)))
            .filter(|id| map.runs(*id))
            .collect();
        let of = |wanted| up.iter().copied().filter(move |id| fit(*id) == wanted);
        let mut able: Vec<_> = of(Fit::Able).collect();
        let few = width.saturating_sub(able.len());
        able.extend(of(Fit::IfNeeded).take(few));
        // A disk has one member of a group: a start would not tell two apart.
        let pool = map.pools.get(&group.pool);
        let on_disk = pool.is_some_and(|pool| pool.medium == Medium::Disk);
        let seconds = [Fit::Able, Fit::IfNeeded].map(|wanted| {
            let ids = up.iter().filter(|_| !on_disk);
            let ids = ids.flat_map(|id| [id.second(), *id]);
            ids.filter(|id| fit(*id) == wanted).collect()
        });
        Choice {
            able,
            homes: up.len(),
            seconds,
        }
    }
}

/// The planted bug 18: a source that did not answer is called in again, as a joiner.
fn wiped_all_the_same(group: &Group, id: MemberId) -> bool {
    planted(Mutant::SourceListedAsJoiner) && group.last_open.slot_of(id).is_some()
}

/// A group with all that a decision about it rests on.
pub(super) struct View<'a> {
    pub(super) map: &'a ClusterMap,
    pub(super) group: &'a Group,
    pub(super) pool: &'a Pool,
    pub(super) choice: Choice,
    /// The member slots of the newest epoch that were reported stuck.
    pub(super) stuck: &'a BTreeSet<MemberSlot>,
    /// Those that the next epoch goes on without.
    pub(super) left_out: &'a BTreeSet<MemberSlot>,
    /// The member that goes on without the others, where none reaches another.
    pub(super) sole: Option<MemberId>,
    /// Nodes that reach few others.
    pub(super) narrow: &'a NarrowNodes,
    pub(super) cuts: &'a Cuts,
    /// The cuts over which nothing comes at all, however late.
    pub(super) silent: &'a Cuts,
    /// True if a member that is being filled has not reached what it is filled from for a while.
    pub(super) starved: &'a dyn Fn(MemberId) -> bool,
    /// True if a node has been draining for a while.
    pub(super) drained: &'a dyn Fn(NodeId) -> bool,
    /// True if a node that may hold what was not flushed is waited for.
    pub(super) awaited: &'a dyn Fn(NodeId) -> bool,
    /// The group has been open, unchanged, for a while.
    pub(super) calm: bool,
    /// The load of each node.
    pub(super) load: &'a Load,
}

/// A member on its way into an epoch: where it is kept from, if it is.
pub(super) type EpochSeat = (MemberId, Option<MemberSlot>);

impl View<'_> {
    pub(super) fn tries(&self) -> u64 {
        tries(self.group)
    }

    pub(super) fn somebody_is_dead(&self) -> bool {
        self.group.listed().any(|(_, x)| !self.map.runs(x.id))
    }

    /// The group was given up, and now enough of its members are there again.
    pub(super) fn found_again(&self) -> bool {
        let group = self.group;
        let enough = self.map.complete_sources_up(group) >= usize::from(group.m);
        group.open && group.lost && enough
    }

    /// The group is served by a node that reaches few others, and can be by one that reaches more.
    pub(super) fn narrow_serves(&self) -> bool {
        let serving = self.group.member(MemberSlot(0)).filter(|_| self.group.open);
        let narrow = serving.is_some_and(|x| self.narrow.contains(x.id.node));
        self.group.m == 1 && narrow && self.wide_server(&self.members()).is_some()
    }

    /// Nothing but a report speaks against the open epoch, and the next would go on with all of its members: those that were reported
    /// cannot be done without. As it is, it serves what it can. Where no cut is known another is tried now and then, all the same.
    pub(super) fn would_go_on(&self) -> bool {
        let group = self.group;
        let reported = group.open && group.m > 1 && !self.stuck.is_empty();
        let odd = coordinator_is_the_odd_one(group, self.stuck);
        if !reported || odd || self.somebody_is_dead() || self.found_again() {
            return false;
        }
        let Some(new) = takeover(self) else {
            return true;
        };
        let stays = |(slot, x): (MemberSlot, &Member)| {
            new.members.get(slot.index()).copied().flatten() == Some(x.id)
        };
        let adds = new.members.iter().flatten().count() > group.listed().count();
        let again = self.calm && !self.is_torn(self.silent);
        let tries = self.opens(&new.members, new.coordinator.index()) && (adds || again);
        group.listed().all(stays) && !tries
    }

    /// A member and one that serves do not reach each other.
    pub(super) fn is_torn(&self, cuts: &Cuts) -> bool {
        let data = self
            .group
            .listed()
            .filter(|(slot, _)| slot.0 < self.group.m);
        let misses = |x: &Member, other: &Member| apart(cuts, x.id.node, other.id.node);
        let mut data = data.map(|(_, x)| x);
        data.any(|x| self.group.listed().any(|(_, other)| misses(x, other)))
    }

    /// The members of the last open epoch, in whatever state they are.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Member> {
        self.group.last_open.members.iter().flatten()
    }

    /// Members that the scheme wants and the nodes allow.
    fn width(&self) -> usize {
        match self.pool.is_loading(self.group.id) {
            true => self.group.m.into(),
            false => self.pool.scheme.width(),
        }
    }

    /// The nodes that should hold the group.
    fn desired(&self) -> &[MemberId] {
        &self.choice.able[..self.width().min(self.choice.able.len())]
    }

    /// The best nodes that hold none of `taken` and may join.
    pub(super) fn joiners<'s>(
        &'s self,
        taken: &'s [EpochSeat],
    ) -> impl Iterator<Item = MemberId> + 's {
        self.choice.able.iter().copied().filter(|id| {
            let there = taken.iter().any(|(member, _)| member.node == id.node);
            !there && !is_source(self.group, *id)
        })
    }

    /// The second places of the best nodes that hold just one of `taken`, for a member beside it.
    fn seconds<'s>(
        &'s self,
        fit: Fit,
        taken: &'s [EpochSeat],
    ) -> impl Iterator<Item = MemberId> + 's {
        let of = match fit {
            Fit::Able => &self.choice.seconds[0],
            _ => &self.choice.seconds[1],
        };
        of.iter().copied().filter(|id| {
            let held = taken.iter().map(|(member, _)| member);
            let mut held = held.filter(|member| member.node == id.node);
            let other = held.next().is_some_and(|one| one.disk != id.disk);
            other && held.next().is_none() && !is_source(self.group, *id)
        })
    }

    fn epoch(&self, seats: Vec<Option<EpochSeat>>, coordinator: MemberSlot) -> NewEpoch {
        NewEpoch {
            group: self.group.id,
            epoch: self.group.epoch.next(),
            members: seats.iter().map(|s| s.map(|(member, _)| member)).collect(),
            kept: seats.iter().map(|s| s.and_then(|(_, kept)| kept)).collect(),
            coordinator,
            fresh: false,
        }
    }
}

/// The number of epochs committed since the last open one and not opened, the newest not counted.
pub(super) fn tries(group: &Group) -> u64 {
    let before = group.last_open.epoch.0 + 1;
    group.epoch.0.saturating_sub(before)
}

/// A start from nothing: a new group, or one whose bytes are gone.
pub(super) fn start(view: &View<'_>) -> Option<NewEpoch> {
    let m = usize::from(view.group.m);
    // Each try in vain begins with another node, and later ones with no more than it takes.
    let tries = if view.group.epoch > view.group.last_open.epoch {
        view.tries() + 1
    } else {
        0
    };
    let mut nodes = view.desired().to_vec();
    if nodes.len() < m {
        return None;
    }
    if tries >= TRIES_WITH_JOINERS {
        let skip = tries as usize % nodes.len();
        nodes.rotate_left(skip);
        nodes.truncate(m);
    }
    let seats = nodes
        .into_iter()
        .map(|member| Some((member, None)))
        .collect();
    Some(NewEpoch {
        fresh: true,
        ..view.epoch(seats, MemberSlot(0))
    })
}

/// The next epoch of a group that lost a member, or whose newest epoch does not open.
pub(super) fn takeover(view: &View<'_>) -> Option<NewEpoch> {
    let m = usize::from(view.group.m);
    let joiners = view.tries_after() < TRIES_WITH_JOINERS;
    let seats_of = |kept: &[(MemberSlot, Member)]| match m {
        1 => seats_of_copies(view, kept, joiners),
        _ => seats_in_place(view, kept, joiners),
    };
    // Better one that may be stuck than none, and one that is half made than a data bucket without anybody.
    let vacates = |seats: &[Option<EpochSeat>]| {
        let half = |slot: &MemberSlot| view.group.member(*slot).is_some_and(|x| !x.complete);
        let vacant = |slot: &MemberSlot| seats.get(slot.index()).is_none_or(Option::is_none);
        let mut out = view.left_out.iter();
        view.group.open && m > 1 && out.any(|s| s.index() < m && half(s) && vacant(s))
    };
    let tried = [view.left_out, view.stuck, &BTreeSet::new()];
    let tried = tried.into_iter().map(|without| survivors(view, without));
    let mut tried = tried.filter(|kept| complete(view, kept) >= m && view.may_go_on(kept));
    let seats = tried.find_map(|kept| Some(seats_of(&kept)).filter(|seats| !vacates(seats)))?;
    let coordinator = choose_coordinator(view, &seats)?;
    Some(view.epoch(seats, coordinator))
}

impl View<'_> {
    /// If some of these are on narrow nodes: a complete one on a wide node that reaches all that are on such, of several the first that
    /// reaches most of the rest.
    fn wide_server(&self, kept: &[(MemberSlot, Member)]) -> Option<usize> {
        let narrow = |x: &Member| self.narrow.contains(x.id.node);
        let is_wide = |x: &Member| self.narrow.is_wide(x.id.node);
        let misses = |x: &Member, other: &Member| apart(self.cuts, x.id.node, other.id.node);
        // Where lives have ended, one that goes on may be the only one that holds what was not flushed.
        let broken = &self.map.volumes.broken;
        if !kept.iter().any(|(_, x)| narrow(x)) || broken.contains_key(&self.group.id) {
            return None;
        }
        let wide = || kept.iter().map(|(_, x)| x).filter(|x| is_wide(x));
        let able = |x: &Member| x.complete && is_wide(x) && !wide().any(|other| misses(x, other));
        let missed = |x: &Member| kept.iter().filter(|(_, other)| misses(x, other)).count();
        let able = kept.iter().enumerate().filter(|(_, (_, x))| able(x));
        let best = able.min_by_key(|(_, (_, x))| missed(x));
        best.map(|(at, _)| at)
    }

    /// `tries`, were one more epoch committed now.
    pub(super) fn tries_after(&self) -> u64 {
        (self.group.epoch.0 - self.group.last_open.epoch.0).min(u64::from(u32::MAX))
    }
}

/// The sources that run, without some. Where none reaches another: one.
fn survivors(view: &View<'_>, without: &BTreeSet<MemberSlot>) -> Vec<(MemberSlot, Member)> {
    let group = view.group;
    let goes = |x: &Member| {
        let listed = group.slot_of(x.id);
        view.sole.is_none() && listed.is_some_and(|s| without.contains(&s))
    };
    sources(group)
        .iter()
        .enumerate()
        .filter_map(|(s, x)| x.map(|x| (MemberSlot(s as u8), x)))
        .filter(|(_, x)| view.map.runs(x.id) && !goes(x))
        .filter(|(_, x)| view.sole.is_none_or(|sole| x.id == sole))
        .collect()
}

/// The number of buckets that they hold whole.
fn complete(view: &View<'_>, kept: &[(MemberSlot, Member)]) -> usize {
    whole_buckets(view.group.m, sources(view.group), |x| {
        kept.iter().any(|(_, k)| k.id == x.id)
    })
}

pub(super) fn seat((slot, x): &(MemberSlot, Member)) -> EpochSeat {
    (x.id, Some(*slot))
}

/// m = 1: the complete copy that stands first serves; all others follow in their order. Where some reach few nodes, one that
/// reaches more serves, and those go that it does not reach.
fn seats_of_copies(
    view: &View<'_>,
    kept: &[(MemberSlot, Member)],
    joiners: bool,
) -> Vec<Option<EpochSeat>> {
    let wide = view.wide_server(kept);
    let first = wide.or_else(|| kept.iter().position(|(_, x)| x.complete));
    let first = first.unwrap_or(0);
    let server = kept[first].1.id.node;
    let goes = |x: &Member| {
        let narrow = wide.is_some() && view.narrow.contains(x.id.node);
        narrow && apart(view.cuts, server, x.id.node)
    };
    let mut seats: Vec<EpochSeat> = vec![seat(&kept[first])];
    seats.extend(
        kept.iter()
            .enumerate()
            .filter(|(i, (_, x))| *i != first && !goes(x))
            .map(|(_, x)| seat(x)),
    );
    if joiners {
        let room = view.width().saturating_sub(seats.len());
        let new: Vec<_> = view.joiners(&seats).take(room).collect();
        seats.extend(new.into_iter().map(|member| (member, None)));
    }
    seats.into_iter().map(Some).collect()
}

/// m > 1: members keep their slots. The place of one that is lost goes to its twin if that is complete, and
/// else to a joiner, data buckets first. Where no node is left, a data bucket goes to one that holds another member
/// already, for bytes that are not answered are worth less than a loss that might come.
fn seats_in_place(
    view: &View<'_>,
    kept: &[(MemberSlot, Member)],
    joiners: bool,
) -> Vec<Option<EpochSeat>> {
    let m = view.group.m;
    let end = kept.iter().map(|(s, _)| s.index() + 1).max().unwrap_or(0);
    let mut seats: Vec<Option<EpochSeat>> = vec![None; end.max(view.width())];
    for x in kept {
        // In order of slot: the original of a twin was looked at before it.
        let of = bucket_slot(m, x.0);
        let original_is_gone = of != x.0 && seats.get(of.index()).is_none_or(Option::is_none);
        match original_is_gone {
            false => seats[x.0.index()] = Some(seat(x)),
            true if x.1.complete => seats[of.index()] = Some(seat(x)),
            true => {}
        }
    }
    if joiners {
        view.fill_vacant(&mut seats);
        if !view.give_twins_up(&mut seats) {
            view.double_up(Fit::Able, m.into(), &mut seats);
        }
    }
    shorten(&mut seats, view.width());
    seats
}

/// Lets go of vacant slots at the end, beyond those that the scheme wants.
fn shorten(seats: &mut Vec<Option<EpochSeat>>, width: usize) {
    let end = seats.iter().rposition(Option::is_some).map_or(0, |s| s + 1);
    seats.truncate(end.max(width));
}

// Moves: the group is open and all its members run.
impl View<'_> {
    /// The next step towards where the ring has the group, if it is not there.
    pub(super) fn next_move(&self) -> Option<(EpochReason, NewEpoch)> {
        if self.desired().is_empty() {
            return None; // every node drains: there is nowhere to go
        }
        if self.group.m == 1 {
            self.move_copies()
        } else {
            self.move_in_place()
        }
    }

    fn members(&self) -> Vec<(MemberSlot, Member)> {
        self.group.listed().map(|(s, x)| (s, *x)).collect()
    }

    fn wanted(&self, x: &Member) -> bool {
        self.desired().contains(&x.id)
    }

    fn drains(&self, x: &Member) -> bool {
        let node = self.map.node_of(x);
        node.is_some_and(|n| n.draining)
    }

    /// True if the member is to go elsewhere: its node drains, or holds another one of the group too.
    fn leaves(&self, x: &Member) -> bool {
        self.drains(x) || (x.id.is_second() && self.group.is_doubled(x))
    }

    fn move_copies(&self) -> Option<(EpochReason, NewEpoch)> {
        let members = self.members();
        let filling = members.iter().any(|(_, x)| self.wanted(x) && !x.complete);
        if filling {
            return None; // one thing after the other
        }
        let all_here = self
            .desired()
            .iter()
            .all(|id| members.iter().any(|(_, x)| x.id.node == id.node));
        if all_here {
            self.settle(&members)
        } else {
            self.call_in(&members)
        }
    }

    /// First step: who is missing joins beside those that are there.
    fn call_in(&self, members: &[(MemberSlot, Member)]) -> Option<(EpochReason, NewEpoch)> {
        // A copy half made in the wrong place is of no use any more.
        let useful = |x: &Member| x.complete || self.wanted(x);
        let mut seats: Vec<EpochSeat> = members
            .iter()
            .filter(|(_, x)| useful(x))
            .map(seat)
            .collect();
        let kind = if seats.len() < self.desired().len() {
            EpochReason::Repair
        } else if members.iter().any(|(_, x)| self.drains(x)) {
            EpochReason::Drain
        } else {
            EpochReason::Balance
        };
        let room = (1 + 2 * usize::from(K_MAX)).saturating_sub(seats.len());
        let missing = self
            .desired()
            .iter()
            .filter(|id| !seats.iter().any(|(member, _)| member.node == id.node));
        let missing: Vec<EpochSeat> = missing.take(room).map(|member| (*member, None)).collect();
        if missing.is_empty() {
            return None;
        }
        seats.extend(missing);
        Some((
            kind,
            self.epoch(seats.into_iter().map(Some).collect(), MemberSlot(0)),
        ))
    }

    /// The one that is to serve next: the ring's first; where the present one leaves, the first of those that miss none, or one other than
    /// it, for which it stands in. An epoch in which the next to serve misses a member would not open, and the one before would be called back.
    fn heir(&self, members: &[(MemberSlot, Member)], leaves: bool) -> Option<MemberId> {
        let missed = |id: &MemberId| {
            let missed = members.iter().filter(|(_, x)| self.keeps_apart(id, x));
            missed.count()
        };
        let late = |id: &MemberId| {
            let late = members
                .iter()
                .filter(|(_, x)| apart(self.cuts, id.node, x.id.node));
            late.count()
        };
        let heirs = match leaves {
            true => self.desired(),
            false => &self.desired()[..1],
        };
        let reaches = |id: &MemberId| !self.keeps_apart(id, &members[0].1);
        let able = |id: &&MemberId| missed(id) == 0 || leaves && missed(id) == 1 && reaches(id);
        heirs
            .iter()
            .filter(able)
            .min_by_key(|id| (missed(id), late(id)))
            .copied()
    }

    fn keeps_apart(&self, id: &MemberId, x: &Member) -> bool {
        apart(self.silent, id.node, x.id.node) && !planted(Mutant::FirstServesBehindCut)
    }

    /// Last steps: all that are wanted are complete. The ring's first serves, or, where that one misses a member and the present one goes,
    /// the next that misses none; then the surplus goes. A former data bucket stays for one epoch as a copy, so that it is sealed and
    /// nothing of its stream is in doubt.
    fn settle(&self, members: &[(MemberSlot, Member)]) -> Option<(EpochReason, NewEpoch)> {
        let (_, serving) = members.first()?;
        let kept = self.kept_for_want_of_room(members);
        let stands = |x: &Member| self.wanted(x) || kept.contains(&x.id.node);
        let leaves = !stands(serving);
        let heir = self.heir(members, leaves);
        let first = heir.or((!leaves).then_some(serving.id))?;
        let moves = serving.id != first;
        let surplus = members.iter().any(|(_, x)| !stands(x));
        if !moves && !surplus {
            return None;
        }
        // Those that it misses are copies too many: others can be made.
        let missed = |x: &Member| leaves && self.keeps_apart(&first, x);
        let stays = |x: &Member| stands(x) && !missed(x) || (moves && x == serving);
        let mut seats: Vec<EpochSeat> =
            members.iter().filter(|(_, x)| stays(x)).map(seat).collect();
        if moves {
            // Stable: the ring's first before all others, who keep their order.
            seats.sort_by_key(|(member, _)| *member != first);
        }
        let kind = if surplus {
            EpochReason::Finish
        } else {
            EpochReason::Balance
        };
        Some((
            kind,
            self.epoch(seats.into_iter().map(Some).collect(), MemberSlot(0)),
        ))
    }

    /// The draining nodes with a copy that no other can make at present, though there are nodes for it: each keeps that one
    /// until another can. A drain costs no copies.
    fn kept_for_want_of_room(&self, members: &[(MemberSlot, Member)]) -> Vec<NodeId> {
        let possible = self.width().min(self.choice.homes);
        let missing = possible.saturating_sub(self.desired().len());
        let goes = |x: &&Member| x.complete && self.drains(x) && !self.wanted(x);
        let copies = members.iter().map(|(_, x)| x).filter(goes);
        copies.map(|x| x.id.node).take(missing).collect()
    }

    /// m > 1. Vacant slots are filled, surplus ones (k lowered) given up, and members of draining nodes and of
    /// nodes that hold two replaced one by one. A bucket's bytes are those of its slot, so who replaces one stands
    /// beside it as its twin until it has them all; then they change places, and only then the old one goes. So the
    /// group bears as much as before all the time.
    fn move_in_place(&self) -> Option<(EpochReason, NewEpoch)> {
        let members = self.members();
        let end = self.width().max(self.group.members.len());
        let mut seats: Vec<Option<EpochSeat>> = vec![None; end];
        for x in &members {
            seats[x.0.index()] = Some(seat(x));
        }
        let m = usize::from(self.group.m);
        let buckets_end = end.min(m + usize::from(PARITY_SLOTS));
        let filling =
            members.iter().any(|(_, x)| !x.complete) && !planted(Mutant::TwinSettledEarly);
        let kind = if self.replace_starved(&members, &mut seats) || self.repair(filling, &mut seats)
        {
            EpochReason::Repair
        } else if filling || seats[..m].iter().any(Option::is_none) {
            return None;
        } else if self.settle_a_twin(&members, &mut seats) {
            EpochReason::Finish
        } else if seats[self.width()..buckets_end].iter().any(Option::is_some) {
            seats[self.width()..buckets_end].fill(None);
            EpochReason::Finish
        } else if self.call_in_a_twin(&members, &mut seats) {
            EpochReason::Drain
        } else if self.calm && self.spread(&members, &mut seats) {
            EpochReason::Spread
        } else {
            return None;
        };
        shorten(&mut seats, self.width());
        let kept = |s: &usize| seats[*s].is_some_and(|(_, kept)| kept.is_some());
        let kept = (0..seats.len()).filter(kept).collect();
        let coordinator = *reach_most(self, &seats, kept).first()?;
        let new = self.epoch(seats, MemberSlot(coordinator as u8));
        self.opens(&new.members, coordinator).then_some((kind, new))
    }

    /// Puts others in the places of members that are being filled and for a while have not reached what they are filled from. Whether it did.
    /// Where there is no other they stay: what they have they serve.
    fn replace_starved(
        &self,
        members: &[(MemberSlot, Member)],
        seats: &mut [Option<EpochSeat>],
    ) -> bool {
        let m = self.group.m;
        let starved = |x: &Member| !x.complete && (self.starved)(x.id);
        let starved = members.iter().filter(|(_, x)| starved(x));
        let mut any = false;
        for (slot, _) in starved.filter(|_| !planted(Mutant::StarvedKept)) {
            let mut tried = seats.to_vec();
            tried[slot.index()] = None;
            let is_twin = bucket_slot(m, *slot) != *slot;
            let _ = self.fill_vacant(&mut tried) || self.double_up(Fit::Able, m.into(), &mut tried);
            if is_twin || tried[slot.index()].is_some() {
                seats.copy_from_slice(&tried);
                any = true;
            }
        }
        any
    }

    /// Finds somebody for vacant slots. Whether it did. A group that a cut has left with no loss to bear does not wait until it is calm:
    /// those that it is without live, and come back as soon as the cut is gone.
    fn repair(&self, filling: bool, seats: &mut [Option<EpochSeat>]) -> bool {
        let m = usize::from(self.group.m);
        let calm = self.calm && !filling;
        // The usual case costs nothing.
        if seats.iter().take(self.width()).all(Option::is_some) {
            return false;
        }
        let bears_none = || self.group.tolerates(|id| self.map.runs(id)) == Some(0);
        let cut = !self.cuts.is_empty() && bears_none() && !planted(Mutant::BareUntilCalm);
        self.fill_vacant(seats)
            || self.give_twins_up(seats)
            || self.double_up(Fit::Able, m, seats)
            || (calm && self.free_a_node(seats))
            || (calm && self.double_up(Fit::IfNeeded, m, seats))
            || ((calm || cut && !filling) && self.double_parity_up(seats))
    }

    /// The first step of a move: a twin for the first member that is to go elsewhere.
    fn call_in_a_twin(
        &self,
        members: &[(MemberSlot, Member)],
        seats: &mut Vec<Option<EpochSeat>>,
    ) -> bool {
        let Some((slot, _)) = members
            .iter()
            .find(|(_, x)| self.leaves(x) && (!self.drains(x) || (self.drained)(x.id.node)))
        else {
            return false;
        };
        let taken: Vec<EpochSeat> = members.iter().map(seat).collect();
        let Some(joiner) = self.joiners(&taken).next() else {
            return false;
        };
        let at = twin(self.group.m, *slot).index();
        seats.resize(seats.len().max(at + 1), None);
        seats[at] = Some((joiner, None));
        true
    }

    /// The last steps, for the first complete twin there is. It takes the place of a member that is to go elsewhere:
    /// a data bucket stays for one epoch as the twin, so that it is sealed and nothing of its stream is in
    /// doubt. A twin that nothing is to be taken from goes.
    fn settle_a_twin(
        &self,
        members: &[(MemberSlot, Member)],
        seats: &mut [Option<EpochSeat>],
    ) -> bool {
        let m = self.group.m;
        let Some((at, x)) = members.iter().find(|(s, _)| bucket_slot(m, *s) != *s) else {
            return false;
        };
        let of = bucket_slot(m, *at);
        // For balance nothing goes to a node that holds another one of the group.
        let fits = !self.group.is_doubled(x);
        let leaves = |o: &Member| self.leaves(o) || (fits && self.is_lighter(o.id.node, x.id.node));
        let leaves = self.group.member(of).is_some_and(leaves);
        if leaves && !self.drains(x) {
            seats.swap(of.index(), at.index());
        }
        if of.0 >= m || !leaves || self.drains(x) {
            seats[at.index()] = None;
        }
        true
    }

    /// Puts joiners into vacant slots, data buckets first, all at once: one pass then makes the pages of all.
    /// True if there was one.
    fn fill_vacant(&self, seats: &mut [Option<EpochSeat>]) -> bool {
        let taken: Vec<EpochSeat> = seats.iter().flatten().copied().collect();
        let vacant = seats.iter_mut().take(self.width()).filter(|s| s.is_none());
        let mut any = false;
        for (seat, member) in vacant.zip(self.joiners(&taken)) {
            *seat = Some((member, None));
            any = true;
        }
        any
    }

    /// Puts second members of nodes into vacant slots below `end`. Whether there was one.
    fn double_up(&self, fit: Fit, end: usize, seats: &mut [Option<EpochSeat>]) -> bool {
        let taken: Vec<EpochSeat> = seats.iter().flatten().copied().collect();
        let vacant = seats.iter_mut().take(end).filter(|s| s.is_none());
        let mut any = false;
        for (seat, member) in vacant.zip(self.seconds(fit, &taken)) {
            *seat = Some((member, None));
            any = true;
        }
        any
    }

    /// The same for parity, if the group then bears the loss of more nodes. Whether it does.
    fn double_parity_up(&self, seats: &mut [Option<EpochSeat>]) -> bool {
        let spare = |seats: &[Option<EpochSeat>]| {
            let holders = (0..).zip(seats).filter_map(|(slot, seat)| {
                let (member, _) = (*seat)?;
                Some((MemberSlot(slot), member))
            });
            nodes_to_spare(self.group.m, holders)
        };
        let mut more = seats.to_vec();
        self.double_up(Fit::Able, self.width(), &mut more);
        let gains = spare(&more) > spare(seats);
        if gains {
            seats.copy_from_slice(&more);
        }
        gains
    }

    /// To make a bucket that is missing is worth more than to move one that is there: twins give their nodes up.
    /// True if there was one.
    fn give_twins_up(&self, seats: &mut [Option<EpochSeat>]) -> bool {
        let twins_from = usize::from(self.group.m + PARITY_SLOTS).min(seats.len());
        let missing = seats.iter().take(self.width()).any(Option::is_none);
        let gives = missing && seats[twins_from..].iter().any(Option::is_some);
        if gives {
            seats[twins_from..].fill(None);
        }
        gives
    }

    /// A data bucket without a node is worth more than a parity bucket: where no node has room for one, the last
    /// parity bucket that the group can do without is given up, so that its node can take the data
    /// bucket's place in the epoch after. Whether it was.
    fn free_a_node(&self, seats: &mut [Option<EpochSeat>]) -> bool {
        let m = usize::from(self.group.m);
        let complete = |s: &Option<EpochSeat>| {
            let from = s.and_then(|(_, kept)| kept);
            let source = from.and_then(|f| sources(self.group).get(f.index()).copied().flatten());
            source.is_some_and(|x| x.complete)
        };
        let buckets_end = seats.len().min(m + usize::from(PARITY_SLOTS));
        let seats = &mut seats[..buckets_end];
        let spare = seats.iter().filter(|s| complete(s)).count() > m;
        let homeless = seats[..m].iter().any(Option::is_none);
        let parity = seats[m..].iter_mut().rfind(|s| s.is_some());
        match parity.filter(|s| homeless && (spare || !complete(s))) {
            Some(seat) => *seat = None,
            None => return false,
        }
        true
    }
}
