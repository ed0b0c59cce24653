//! Rules 14 to 17: a joiner fetches the pages that it lacks, from members whose labels agree, while
//! updates go on; pages that a client waits for come first.
//!
//! With m > 1 a page is made of the parts of m others. Where several members were lost at once, one of them,
//! the first in slot order, makes one pass over m sources and sends the others their pages along with
//! its own (row H5); they fetch by themselves only what a client waits for, or if nothing comes. A twin
//! fetches the pages of its original as they are, and nobody fetches anything from a twin.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use staves_model::{
    GroupStep, Label, MemberId, MemberSlot, PAGE_BYTES, Time, mutant::Mutant, mutant::planted,
};
use staves_wire::group::{GroupMessage, PageContent, PagePart};

use crate::code::{Recipes, ZERO_PAGE};
use crate::on_disk::OnDisk;
use crate::page_requests::{PageRequests, SourceCounts};
use crate::state::{Ctx, Effects, MemberState};
use crate::table::{UNWRITTEN, is_zero};

/// A page at hand that has waited so long for the streams is asked for again, of another member where
/// there is one.
const WAITS_FOR_STREAMS: Duration = Duration::from_secs(1);
/// A joiner that has had nothing for so long from the one who makes the pass fetches by itself.
const WAITS_FOR_THE_PASS: Duration = Duration::from_secs(1);
/// Most parts at hand that wait for other members' (m > 1); what is beyond is asked for again.
const PARTS_MAX: usize = 16 << 10;
/// A source that has been asked for so long and gave nothing is asked after the others: a link to it may be cut.
const UNANSWERED_MIN: Duration = Duration::from_secs(1);
/// After so long it is asked in its turn again.
const UNANSWERED_MAX: Duration = Duration::from_secs(10);

/// The course of one fill: a member lacked pages and fetched them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BackfillStats {
    /// Pages that it lacked when its epoch opened.
    pub pages: u32,
    /// Pages that were asked for because a client waited.
    pub demanded: u32,
    /// The time at which its epoch opened, and it began.
    pub began: Time,
    /// The time at which it had all.
    pub ended: Option<Time>,
}

/// The messages that members sent for one request, in order of slot; the pages of each in order.
type Gathered = Vec<(MemberSlot, Vec<PagePart>)>;

/// A joiner's work.
#[derive(Default)]
pub(crate) struct Backfill {
    requests: PageRequests,
    /// Answers at hand to requests that need more than one (m > 1), by the request's first page.
    gathered: BTreeMap<u32, Gathered>,
    /// The position of the sweep over the table.
    next: u32,
    /// The number of requests that were repeated: turns to other sources.
    turns: u32,
    /// Since when each member was asked that has given nothing since.
    unanswered: BTreeMap<MemberSlot, Time>,
    /// The time at which the maker of the pass last sent a page; at first, the beginning of the wait.
    pass_seen: Option<Time>,
    recipes: Recipes,
    /// The last time that pages were lacking.
    pub stats: Option<BackfillStats>,
}

impl Backfill {
    /// Another epoch: what was asked for is void.
    pub fn clear(&mut self) {
        self.requests.clear();
        self.gathered.clear();
        self.next = 0;
        self.pass_seen = None;
        self.unanswered.clear();
    }

    fn asked(&mut self, now: Time, slot: MemberSlot) {
        let since = self.unanswered.entry(slot).or_insert(now);
        if now.since(*since) >= UNANSWERED_MAX {
            *since = now;
        }
    }

    /// True for a member that others are asked before.
    fn is_late(&self, now: Time, slot: MemberSlot) -> bool {
        let since = self.unanswered.get(&slot);
        let waited = since.map_or(Duration::ZERO, |since| now.since(*since));
        (UNANSWERED_MIN..UNANSWERED_MAX).contains(&waited)
    }

    /// Somebody waits for this page: who has it is asked soon, even where nothing is fetched unasked.
    pub fn wanted(&mut self, now: Time, page: u32) {
        self.requests.demand(now, page, 1, 0);
    }
}

/// Pages made for another joiner in the pass, and the memory that they lie in.
struct Made {
    slot: MemberSlot,
    parts: Vec<PagePart>,
    room: BytesMut,
}

/// The state that all pages of a message share, and memory that serves one after the other.
struct Rebuilding {
    applied: Vec<u64>,
    /// For whom pages are made: this member and, in the pass, the other joiners.
    wanted: Vec<MemberSlot>,
    made: Vec<Made>,
    recipes: Recipes,
    sources: Vec<MemberSlot>,
    streams: Vec<Label>,
}

impl MemberState {
    /// PageRequests again for what did not come, and for what is lacking.
    pub fn tick_backfill(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if self.table.absent_count() > 0 {
            let requests = &self.backfill.requests;
            self.backfill
                .gathered
                .retain(|page, _| requests.begins(*page));
            if self.table.drop_waiting(ctx.now - WAITS_FOR_STREAMS) {
                self.backfill.turns = self.backfill.turns.wrapping_add(1);
            }
            self.ask_again(ctx, out);
        }
        self.sweep(ctx, out);
    }

    // After a request without an answer, other members are asked; and all of them, where a client waits.
    fn ask_again(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        let table = &self.table;
        let needed = |p: u32| !table.is_here(p) && !table.is_waiting(p);
        let void = |page: u32, count: u32| !(page..page + count).any(needed);
        let of = SourceCounts {
            sweep: self.sources(ctx.now, false).len(),
            urgent: self.sources(ctx.now, true).len(),
        };
        let due = self.backfill.requests.due(ctx.now, of, void);
        if !due.is_empty() {
            self.backfill.turns = self.backfill.turns.wrapping_add(1);
        }
        for due in due {
            let sources = self.sources(ctx.now, due.urgent);
            self.send_get(ctx, due.page, due.count, due.urgent, &sources, out);
        }
    }

    /// PageRequests for what is lacking, within the window; when nothing is, tells the directory.
    fn sweep(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if self.table.absent_count() == 0 {
            self.old = None;
            if let Some(stats) = &mut self.backfill.stats {
                stats.ended.get_or_insert(ctx.now);
            }
            let listed = self.view.member(self.slot);
            let kept = self.disk.as_ref().is_none_or(OnDisk::is_filled);
            if self.open && kept && listed.is_some_and(|x| !x.complete) {
                let complete = GroupStep::Complete {
                    group: ctx.group,
                    epoch: self.epoch,
                    slot: self.slot,
                    incarnation: ctx.me.incarnation,
                };
                out.directory.push(complete.into());
            }
            return;
        }
        self.note_begin(ctx.now);
        if self.another_makes_the_pass(ctx.now) {
            return;
        }
        let most = ctx
            .options
            .fetch_pages
            .min(ctx.options.backfill_budget.limit());
        let has_room = ctx.options.disk_takes_in();
        while has_room && most > 0 && self.backfill.requests.sweeping() < ctx.options.fetch_window {
            let before = self.backfill.next;
            let Some((page, count)) = self.next_run(most) else {
                break;
            };
            let sources = self.sources(ctx.now, false);
            let (now, of) = (ctx.now, sources.len());
            let budget = &ctx.options.backfill_budget;
            if !self.backfill.requests.sweep(now, page, count, of, budget) {
                self.backfill.next = before;
                break;
            }
            self.send_get(ctx, page, count, false, &sources, out);
        }
    }

    // Pages are lacking: since now, unless they were before.
    fn note_begin(&mut self, now: Time) {
        if self.backfill.stats.is_none_or(|f| f.ended.is_some()) {
            self.backfill.stats = Some(BackfillStats {
                pages: self.table.absent_count(),
                demanded: 0,
                began: now,
                ended: None,
            });
        }
    }

    // Those of this epoch's joiners that make their pages of others', as far as is known.
    fn joiners(&self) -> impl Iterator<Item = MemberSlot> + '_ {
        self.view
            .listed()
            .filter(|(slot, x)| !x.complete && self.view.bucket_slot(*slot) == *slot)
            .map(|(slot, _)| slot)
    }

    fn makes_the_pass(&self) -> bool {
        self.shape().m > 1 && self.joiners().next() == Some(self.slot)
    }

    fn another_makes_the_pass(&mut self, now: Time) -> bool {
        let alone = self.shape().m == 1 || self.shape().is_twin();
        if alone || self.joiners().next().is_none_or(|s| s >= self.slot) {
            return false;
        }
        let seen = *self.backfill.pass_seen.get_or_insert(now);
        now.since(seen) < WAITS_FOR_THE_PASS
    }

    // The next run of absent pages that nobody was asked for and that is not at hand.
    fn next_run(&mut self, most: u32) -> Option<(u32, u32)> {
        let mut wrapped = self.backfill.next == 0;
        loop {
            let Some(first) = self.table.next_absent(self.backfill.next) else {
                if wrapped {
                    return None;
                }
                wrapped = true;
                self.backfill.next = 0;
                continue;
            };
            if let Some(end) = self.backfill.requests.sweep_end(first) {
                self.backfill.next = end;
                continue;
            }
            if self.table.is_waiting(first) {
                self.backfill.next = first + 1;
                continue;
            }
            let bound = self.backfill.requests.next_sweep(first).unwrap_or(u32::MAX);
            let wanted =
                |p: &u32| *p < bound && !self.table.is_here(*p) && !self.table.is_waiting(*p);
            let count = (first..first.saturating_add(most))
                .take_while(wanted)
                .count() as u32;
            self.backfill.next = first + count;
            return Some((first, count));
        }
    }

    /// A client waits for these pages: ask for what is lacking of them now, whatever else is under way.
    pub fn demand(&mut self, ctx: &Ctx<'_>, page: u32, count: u32, out: &mut Effects) {
        if planted(Mutant::DemandNotSent) {
            return;
        }
        let end = page.saturating_add(count);
        let mut at = page;
        while let Some(first) = self.table.next_absent(at).filter(|first| *first < end) {
            let lacks = |p: &u32| {
                !self.table.is_here(*p)
                    && !self.table.is_waiting(*p)
                    && !self.backfill.requests.is_urgent(*p)
            };
            let most = ctx.options.fetch_pages.min(end - first);
            let count = (first..first + most).take_while(lacks).count() as u32;
            at = first + count.max(1);
            if count == 0 {
                continue;
            }
            let sources = self.sources(ctx.now, false);
            self.backfill
                .requests
                .demand(ctx.now, first, count, sources.len());
            if let Some(stats) = &mut self.backfill.stats {
                stats.demanded = stats.demanded.saturating_add(count);
            }
            self.send_get(ctx, first, count, true, &sources, out);
        }
    }

    fn send_get(
        &mut self,
        ctx: &Ctx<'_>,
        page: u32,
        count: u32,
        urgent: bool,
        sources: &[(MemberSlot, MemberId)],
        out: &mut Effects,
    ) {
        let held: Vec<Label> = match &self.old {
            Some(old) => (page..page + count).map(|p| old.label(p, 0)).collect(),
            None => vec![],
        };
        for (slot, source) in sources {
            self.backfill.asked(ctx.now, *slot);
            let message = GroupMessage::Get {
                page,
                count,
                urgent,
                held: held.clone(),
            };
            out.sends.push(ctx.addressed(*source, self.epoch, message));
        }
    }

    // m = 1: one member, the data bucket first. m > 1: m members, data buckets first; or all, since any m
    // whose labels agree will do. After each request without an answer, others, and those that gave nothing of late last. A twin: its
    // original alone.
    fn sources(&self, now: Time, all: bool) -> Vec<(MemberSlot, MemberId)> {
        let mut members: Vec<(MemberSlot, MemberId)> = self
            .view
            .listed()
            .filter(|(slot, x)| *slot != self.slot && x.complete && self.may_give(*slot))
            .map(|(slot, x)| (slot, x.id))
            .collect();
        let m = self.shape().m;
        if members.is_empty() || (all && m > 1) {
            return members;
        }
        let turns = self.backfill.turns as usize % members.len();
        members.rotate_left(turns);
        members.sort_by_key(|(slot, _)| self.backfill.is_late(now, *slot));
        members.truncate(m);
        members
    }

    fn may_give(&self, slot: MemberSlot) -> bool {
        match self.shape().is_twin() {
            true => slot == self.shape().bucket(),
            false => self.view.bucket_slot(slot) == slot,
        }
    }

    /// Parts came for a joiner.
    pub fn take_parts(
        &mut self,
        ctx: &Ctx<'_>,
        from: MemberSlot,
        parts: Vec<PagePart>,
        out: &mut Effects,
    ) {
        // Nobody asks others, whatever they send: a twin's slot is no row of the code.
        let giver = self.may_give(from);
        let in_order = parts.is_sorted_by(|a, b| a.page < b.page);
        let ends = parts.first().zip(parts.last());
        let Some((first, last)) = ends.filter(|_| giver && in_order) else {
            return;
        };
        self.backfill.unanswered.remove(&from);
        // What was not asked for, or is not any more, is of no use.
        let Some((page, count, of)) = self.backfill.requests.answered_by(first.page, last.page)
        else {
            return;
        };
        let mut gathered = self.backfill.gathered.remove(&page).unwrap_or_default();
        let at = match gathered.binary_search_by_key(&from, |(slot, _)| *slot) {
            Ok(at) => {
                gathered[at].1 = parts;
                at
            }
            Err(at) => {
                gathered.insert(at, (from, parts));
                at
            }
        };
        match self.rebuild(ctx, &gathered, at, of, out) {
            true => self.backfill.requests.answered(ctx.now, page, page + count),
            false => self.gather(page, gathered),
        }
        self.sweep(ctx, out);
    }

    // Keeps parts until those of other members are there, too.
    fn gather(&mut self, page: u32, gathered: Gathered) {
        let parts = |gathered: &Gathered| gathered.iter().map(|(_, p)| p.len()).sum::<usize>();
        let all: usize = self.backfill.gathered.values().map(parts).sum();
        if all + parts(&gathered) <= PARTS_MAX {
            self.backfill.gathered.insert(page, gathered);
        }
    }

    // Rebuilds what can be rebuilt with the message at `newest`. True if the request needs no more of these parts.
    fn rebuild(
        &mut self,
        ctx: &Ctx<'_>,
        gathered: &Gathered,
        newest: usize,
        of: usize,
        out: &mut Effects,
    ) -> bool {
        let (m, twin) = (self.shape().m, self.shape().is_twin());
        let enough = if twin { 1 } else { m };
        if gathered.len() < enough {
            return false;
        }
        let mut all = true;
        let mut with = self.rebuilding();
        let mut parts: Vec<(MemberSlot, &PagePart)> = Vec::with_capacity(gathered.len());
        for (at, part) in gathered[newest].1.iter().enumerate() {
            let page = part.page;
            if self.table.is_here(page) {
                continue;
            }
            parts.clear();
            for (slot, message) in gathered {
                // Nearly always all have sent the same pages.
                let same = message.get(at).filter(|p| p.page == page);
                let found = || message.binary_search_by_key(&page, |p| p.page).ok();
                let part = same.or_else(|| found().map(|at| &message[at]));
                parts.extend(part.filter(|p| p.labels.streams() == m).map(|p| (*slot, p)));
            }
            let done = parts.len() >= enough && self.try_rebuild(ctx.now, &parts, &mut with);
            // Once all that were asked have answered, parts whose labels disagree are dropped and asked for again.
            all &= done || (parts.len() >= enough && parts.len() >= of);
        }
        self.backfill.recipes = with.recipes;
        for Made { slot, parts, .. } in with.made.into_iter().filter(|x| !x.parts.is_empty()) {
            if let Some(x) = self.view.member(slot) {
                let message = GroupMessage::Parts { slot, parts };
                out.sends.push(ctx.addressed(x.id, self.epoch, message));
            }
        }
        all
    }

    fn rebuilding(&mut self) -> Rebuilding {
        let mut wanted = vec![self.slot];
        if self.makes_the_pass() {
            wanted.extend(self.joiners().filter(|s| *s != self.slot));
        }
        let made = |slot: &MemberSlot| Made {
            slot: *slot,
            parts: Vec::new(),
            room: BytesMut::new(),
        };
        Rebuilding {
            applied: self.applied(),
            made: wanted[1..].iter().map(made).collect(),
            wanted,
            recipes: std::mem::take(&mut self.backfill.recipes),
            sources: Vec::new(),
            streams: Vec::new(),
        }
    }

    /// Pages of this member came, made by the joiner that makes the pass.
    pub fn take_made(&mut self, ctx: &Ctx<'_>, parts: Vec<PagePart>, out: &mut Effects) {
        let (shape, applied) = (self.shape(), self.applied());
        let mut streams = Vec::with_capacity(shape.m);
        for part in parts {
            streams.clear();
            streams.extend(part.labels.iter().flatten());
            if streams.len() != shape.m || part.labels.streams() != shape.m || shape.m == 1 {
                continue;
            }
            match &part.content {
                PageContent::Zero => self.offer(ctx.now, part.page, &streams, None, &applied),
                PageContent::Bytes(b) if b.len() == PAGE_BYTES => {
                    self.offer(ctx.now, part.page, &streams, Some(b), &applied);
                }
                _ => {}
            }
        }
        self.backfill.pass_seen = Some(ctx.now);
        self.sweep(ctx, out);
    }

    fn offer(
        &mut self,
        now: Time,
        page: u32,
        streams: &[Label],
        bytes: Option<&[u8]>,
        applied: &[u64],
    ) {
        let shape = self.shape();
        // A data bucket's pages carry its own stream only.
        let labels = match shape.columns() {
            1 => std::slice::from_ref(&streams[shape.stream(0)]),
            _ => streams,
        };
        self.table.offer(page, labels, bytes, now, applied);
    }

    // Any m parts whose labels agree for every stream (I6). True: the page is here, or at hand, or its
    // parts are of no use and must be asked for again.
    fn try_rebuild(
        &mut self,
        now: Time,
        parts: &[(MemberSlot, &PagePart)],
        with: &mut Rebuilding,
    ) -> bool {
        let shape = self.shape();
        let page = parts[0].1.page;
        let found = match shape.is_twin() {
            true => of_original(parts, shape.bucket(), with),
            false => agreeing(parts, shape.m, self.slot, with),
        };
        if !found {
            return false;
        }
        let says_held = parts.iter().any(|(_, p)| p.content == PageContent::Held);
        let old = self.old.as_mut().filter(|_| says_held);
        let held = old.and_then(|old| old.copy_of_former(page));
        let mut bytes = Vec::with_capacity(with.sources.len());
        for slot in &with.sources {
            let part = parts.iter().find(|(s, _)| s == slot);
            match part.and_then(|(_, part)| bytes_of(part, held.as_ref())) {
                Some(part) => bytes.push(part),
                None => return true,
            }
        }
        let Rebuilding {
            applied,
            wanted,
            made,
            recipes,
            sources,
            streams,
        } = with;
        let mut take = |slot, bytes: Option<&[u8]>| {
            if slot == self.slot {
                return self.offer(now, page, streams, bytes, applied);
            }
            if let Some(made) = made.iter_mut().find(|made| made.slot == slot) {
                made.add(page, streams, bytes);
            }
        };
        match shape.is_twin() {
            true => take(wanted[0], Some(bytes[0]).filter(|b| !is_zero(b))),
            false => recipes.make(shape.m, sources, &bytes, wanted, take),
        }
        true
    }
}

impl Made {
    fn add(&mut self, page: u32, streams: &[Label], bytes: Option<&[u8]>) {
        let content = bytes.map_or(PageContent::Zero, |bytes| {
            // All pages of the message in one piece of memory, or few.
            self.room.reserve(PAGE_BYTES);
            self.room.extend_from_slice(bytes);
            PageContent::Bytes(self.room.split().freeze())
        });
        let labels: Vec<Option<Label>> = streams.iter().copied().map(Some).collect();
        self.parts.push(PagePart {
            page,
            labels: labels.into(),
            content,
        });
    }
}

/// The bytes of a part. None: it says "what you hold", and that is not held here.
fn bytes_of<'a>(part: &'a PagePart, held: Option<&'a (Label, Option<Bytes>)>) -> Option<&'a [u8]> {
    match &part.content {
        PageContent::Zero => Some(&ZERO_PAGE),
        PageContent::Bytes(b) if b.len() == PAGE_BYTES => Some(b),
        PageContent::Bytes(_) => None,
        PageContent::Held => {
            let (label, bytes) = held?;
            let same = part.labels.get(0) == Some(*label);
            let bytes = bytes.as_deref().unwrap_or(&ZERO_PAGE);
            (same || planted(Mutant::LabelsBySeqAlone)).then_some(bytes)
        }
    }
}

/// The part of a twin's original, which is the twin's page. What it says nothing of is no column of the twin's.
fn of_original(
    parts: &[(MemberSlot, &PagePart)],
    original: MemberSlot,
    with: &mut Rebuilding,
) -> bool {
    let Some((_, part)) = parts.iter().find(|(slot, _)| *slot == original) else {
        return false;
    };
    with.sources.clear();
    with.sources.push(original);
    with.streams.clear();
    let labels = part.labels.iter();
    with.streams
        .extend(labels.map(|label| label.unwrap_or(UNWRITTEN)));
    true
}

/// Looks for m parts whose labels agree; whose they are, and what they agree on for each stream, is in `with` then.
/// All data buckets agree with one another, since each knows its own stream only; any other m have a parity bucket
/// among them, which knows all streams, and it is enough to look for those that agree with it.
fn agreeing(
    parts: &[(MemberSlot, &PagePart)],
    m: usize,
    slot: MemberSlot,
    with: &mut Rebuilding,
) -> bool {
    let others = || parts.iter().filter(|(s, _)| *s != slot);
    let data = || others().filter(|(s, _)| s.index() < m);
    let Rebuilding {
        sources, streams, ..
    } = with;
    if m > 1 && data().count() == m {
        sources.clear();
        sources.extend(data().map(|(s, _)| *s));
        streams.clear();
        streams.extend(data().filter_map(|(s, part)| part.labels.get(s.index())));
        return streams.len() == m;
    }
    others().any(|(_, anchor)| {
        streams.clear();
        streams.extend(anchor.labels.iter().flatten());
        if streams.len() != m {
            return false;
        }
        let agrees = |part: &PagePart| {
            let same = |(known, label): (Option<Label>, &Label)| known.is_none_or(|l| l == *label);
            planted(Mutant::MixedPageVersions) || part.labels.iter().zip(&*streams).all(same)
        };
        let agreeing = others().filter(|(_, part)| agrees(part));
        sources.clear();
        sources.extend(agreeing.map(|(s, _)| *s).take(m));
        sources.len() == m
    })
}
