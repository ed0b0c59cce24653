//! Rules 14 to 17: a joiner fetches the pages that it lacks, from members whose labels agree, while
//! updates go on; pages that a client waits for come first.
//!
//! With m > 1 a page is made of the parts of m others. Where several members were lost at once, one of them,
//! the first in slot order, makes one pass over m sources and sends the others their pages along with
//! its own (row H5); they fetch by themselves only what a client waits for, or if nothing comes. A twin
//! fetches the pages of its original as they are, and nobody fetches anything from a twin.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use staves_model::{Label, MemberSlot, NodeId, PAGE_BYTES, Time, mutant::Mutant, mutant::planted};
use staves_wire::group::{GroupMessage, PageContent, PagePart};

use crate::asks::{Asks, Of};
use crate::code::Recipes;
use crate::member::{Ctx, DirectoryCall, Effects, State};
use crate::table::UNWRITTEN;

/// A page at hand that has waited so long for the streams is asked for again, of another member where
/// there is one.
const WAITS_FOR_STREAMS: Duration = Duration::from_secs(1);
/// A joiner that has had nothing for so long from the one who makes the pass fetches by itself.
const WAITS_FOR_THE_PASS: Duration = Duration::from_secs(1);
/// Most pages of which some parts are at hand (m > 1); others are asked for again.
const PARTS_PAGES_MAX: usize = 4096;

/// How a member that lacked pages came by them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filled {
    /// Pages that it lacked when its epoch opened.
    pub pages: u32,
    /// Pages that were asked for because a client waited.
    pub demanded: u32,
    /// When its epoch opened, and it began.
    pub began: Time,
    /// When it had all.
    pub ended: Option<Time>,
}

/// Parts at hand of one page, in order of slot.
type Parts = Vec<(MemberSlot, PagePart)>;

/// A joiner's work.
#[derive(Default)]
pub(crate) struct Fill {
    asks: Asks,
    /// Parts at hand of pages that need more than one (m > 1).
    parts: BTreeMap<u32, Parts>,
    /// Where the sweep over the table stands.
    next: u32,
    /// How often a request was made again: turns to other sources.
    turns: u32,
    /// When the one who makes the pass last sent a page; at first, when this member began to wait.
    passed: Option<Time>,
    recipes: Recipes,
    /// The last time that pages were lacking.
    pub filled: Option<Filled>,
}

impl Fill {
    /// Another epoch: what was asked for is void.
    pub fn clear(&mut self) {
        self.asks.clear();
        self.parts.clear();
        self.next = 0;
        self.passed = None;
    }

    /// Somebody waits for this page: who has it is asked soon, even where nothing is fetched unasked.
    pub fn wanted(&mut self, now: Time, page: u32) {
        self.asks.demand(now, page, 1, 0);
    }
}

/// Pages made for other joiners in the pass, by slot.
type Made = BTreeMap<MemberSlot, Vec<PagePart>>;

impl State {
    /// Asks again for what did not come, and for what is lacking.
    pub fn tick_fill(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if self.table.absent_count() > 0 {
            let table = &self.table;
            self.fill.parts.retain(|page, _| !table.is_here(*page));
            if self.table.drop_waiting(ctx.now - WAITS_FOR_STREAMS) {
                self.fill.turns = self.fill.turns.wrapping_add(1);
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
        let of = Of {
            sweep: self.sources(false).len(),
            urgent: self.sources(true).len(),
        };
        let due = self.fill.asks.due(ctx.now, of, void);
        if !due.is_empty() {
            self.fill.turns = self.fill.turns.wrapping_add(1);
        }
        for due in due {
            let sources = self.sources(due.urgent);
            self.say_get(ctx, due.page, due.count, due.urgent, &sources, out);
        }
    }

    /// Asks for what is lacking, within the window; when nothing is, tells the directory.
    fn sweep(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if self.table.absent_count() == 0 {
            self.old = None;
            if let Some(filled) = &mut self.fill.filled {
                filled.ended.get_or_insert(ctx.now);
            }
            let listed = self.view.member(self.slot);
            if self.open && listed.is_some_and(|x| !x.complete) {
                out.directory.push(DirectoryCall::Complete {
                    group: ctx.group,
                    epoch: self.epoch,
                    slot: self.slot,
                    incarnation: ctx.incarnation,
                });
            }
            return;
        }
        self.note_begin(ctx.now);
        if self.another_makes_the_pass(ctx.now) {
            return;
        }
        let most = ctx.options.fetch_pages.min(ctx.options.fill_budget.limit());
        while most > 0 && self.fill.asks.sweeping() < ctx.options.fetch_window {
            let before = self.fill.next;
            let Some((page, count)) = self.next_run(most) else {
                break;
            };
            let sources = self.sources(false);
            let (now, of) = (ctx.now, sources.len());
            let budget = &ctx.options.fill_budget;
            if !self.fill.asks.sweep(now, page, count, of, budget) {
                self.fill.next = before;
                break;
            }
            self.say_get(ctx, page, count, false, &sources, out);
        }
    }

    // Pages are lacking: since now, unless they were before.
    fn note_begin(&mut self, now: Time) {
        if self.fill.filled.is_none_or(|f| f.ended.is_some()) {
            self.fill.filled = Some(Filled {
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
        let passed = *self.fill.passed.get_or_insert(now);
        now.since(passed) < WAITS_FOR_THE_PASS
    }

    // The next run of absent pages that nobody was asked for and that is not at hand.
    fn next_run(&mut self, most: u32) -> Option<(u32, u32)> {
        let mut wrapped = self.fill.next == 0;
        loop {
            let Some(first) = self.table.next_absent(self.fill.next) else {
                if wrapped {
                    return None;
                }
                wrapped = true;
                self.fill.next = 0;
                continue;
            };
            if let Some(end) = self.fill.asks.sweep_end(first) {
                self.fill.next = end;
                continue;
            }
            if self.table.is_waiting(first) {
                self.fill.next = first + 1;
                continue;
            }
            let bound = self.fill.asks.next_sweep(first).unwrap_or(u32::MAX);
            let wanted =
                |p: &u32| *p < bound && !self.table.is_here(*p) && !self.table.is_waiting(*p);
            let count = (first..first.saturating_add(most))
                .take_while(wanted)
                .count() as u32;
            self.fill.next = first + count;
            return Some((first, count));
        }
    }

    /// A client waits for these pages: ask for what is lacking of them now, whatever else is under way.
    pub fn demand(&mut self, ctx: &Ctx<'_>, page: u32, count: u32, out: &mut Effects) {
        let end = page.saturating_add(count);
        let mut at = page;
        while let Some(first) = self.table.next_absent(at).filter(|first| *first < end) {
            let lacks = |p: &u32| {
                !self.table.is_here(*p)
                    && !self.table.is_waiting(*p)
                    && !self.fill.asks.is_urgent(*p)
            };
            let most = ctx.options.fetch_pages.min(end - first);
            let count = (first..first + most).take_while(lacks).count() as u32;
            at = first + count.max(1);
            if count == 0 {
                continue;
            }
            let sources = self.sources(false);
            self.fill.asks.demand(ctx.now, first, count, sources.len());
            if let Some(filled) = &mut self.fill.filled {
                filled.demanded = filled.demanded.saturating_add(count);
            }
            self.say_get(ctx, first, count, true, &sources, out);
        }
    }

    fn say_get(
        &self,
        ctx: &Ctx<'_>,
        page: u32,
        count: u32,
        urgent: bool,
        sources: &[NodeId],
        out: &mut Effects,
    ) {
        let held: Vec<Label> = match &self.old {
            Some(old) => (page..page + count).map(|p| old.label(p, 0)).collect(),
            None => vec![],
        };
        for node in sources {
            let message = GroupMessage::Get {
                page,
                count,
                urgent,
                held: held.clone(),
            };
            out.sends.push((*node, ctx.envelope(self.epoch, message)));
        }
    }

    // m = 1: one member, the data bucket first. m > 1: m members, data buckets first; or all, since any m
    // whose labels agree will do. After each request without an answer, others. A twin: its original alone.
    fn sources(&self, all: bool) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self
            .view
            .listed()
            .filter(|(slot, x)| *slot != self.slot && x.complete && self.may_give(*slot))
            .map(|(_, x)| x.node)
            .collect();
        let m = self.shape().m;
        if nodes.is_empty() || (all && m > 1) {
            return nodes;
        }
        let turns = self.fill.turns as usize % nodes.len();
        nodes.rotate_left(turns);
        nodes.truncate(m);
        nodes
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
        let m = self.shape().m;
        // Nobody asks others, whatever they send: a twin's slot is no row of the code.
        let giver = self.may_give(from);
        let Some(first) = parts.first().map(|p| p.page).filter(|_| giver) else {
            return;
        };
        let mut made = Made::new();
        let applied = self.applied();
        let enough = if self.shape().is_twin() { 1 } else { m };
        for part in parts {
            let page = part.page;
            if part.labels.len() != m || self.table.is_here(page) {
                continue;
            }
            if self.fill.parts.len() >= PARTS_PAGES_MAX && !self.fill.parts.contains_key(&page) {
                continue;
            }
            let known = self.fill.parts.entry(page).or_default();
            match known.binary_search_by_key(&from, |(slot, _)| *slot) {
                Ok(at) => known[at].1 = part,
                Err(at) => known.insert(at, (from, part)),
            }
            if known.len() >= enough
                && let Some(known) = self.fill.parts.remove(&page)
                && !self.try_rebuild(ctx.now, page, &known, &applied, &mut made)
            {
                self.fill.parts.insert(page, known);
            }
        }
        self.send_made(ctx, made, out);
        // A request that these answer is done, unless other members' parts are still awaited.
        let awaited = self.fill.parts.range(first..).next();
        let until = awaited.map_or(u32::MAX, |(page, _)| *page);
        self.fill.asks.answered(ctx.now, first, until);
        self.sweep(ctx, out);
    }

    fn send_made(&self, ctx: &Ctx<'_>, made: Made, out: &mut Effects) {
        for (slot, parts) in made {
            if let Some(x) = self.view.member(slot) {
                let message = GroupMessage::Parts { slot, parts };
                out.sends.push((x.node, ctx.envelope(self.epoch, message)));
            }
        }
    }

    /// Pages of this member came, made by the joiner that makes the pass.
    pub fn take_made(&mut self, ctx: &Ctx<'_>, parts: Vec<PagePart>, out: &mut Effects) {
        let (shape, applied) = (self.shape(), self.applied());
        for part in parts {
            let streams: Option<Vec<Label>> = part.labels.iter().copied().collect();
            let Some(streams) = streams.filter(|s| s.len() == shape.m && shape.m > 1) else {
                continue;
            };
            match &part.content {
                PageContent::Zero => self.offer(ctx.now, part.page, &streams, None, &applied),
                PageContent::Bytes(b) if b.len() == PAGE_BYTES => {
                    self.offer(ctx.now, part.page, &streams, Some(b), &applied);
                }
                _ => {}
            }
        }
        self.fill.passed = Some(ctx.now);
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
        page: u32,
        parts: &Parts,
        applied: &[u64],
        made: &mut Made,
    ) -> bool {
        let m = self.shape().m;
        let shape = self.shape();
        let found = match shape.is_twin() {
            true => of_original(parts, shape.bucket()),
            false => agreeing(parts, m, self.slot),
        };
        let Some((sources, streams)) = found else {
            return parts.len() >= self.fill.asks.members_asked(page).max(m);
        };
        let says_held = parts.iter().any(|(_, p)| p.content == PageContent::Held);
        let old = self.old.as_ref().filter(|_| says_held);
        let held = old.map(|old| (old.label(page, 0), old.copy_out(page)));
        let part = |slot: &MemberSlot| parts.iter().find(|(s, _)| s == slot);
        let chosen = sources.iter().filter_map(part);
        let bytes = chosen.map(|(_, part)| bytes_of(part, held.as_ref()));
        let Some(bytes) = bytes.collect::<Option<Vec<_>>>() else {
            return true;
        };
        let mut wanted = vec![self.slot];
        if self.makes_the_pass() {
            wanted.extend(self.joiners().filter(|s| *s != self.slot));
        }
        let mut recipes = std::mem::take(&mut self.fill.recipes);
        let mut take = |slot, bytes: Option<&[u8]>| {
            if slot == self.slot {
                return self.offer(now, page, &streams, bytes, applied);
            }
            made.entry(slot).or_default().push(PagePart {
                page,
                labels: streams.iter().copied().map(Some).collect(),
                content: bytes.map_or(PageContent::Zero, |bytes| {
                    PageContent::Bytes(Bytes::copy_from_slice(bytes))
                }),
            });
        };
        match shape.is_twin() {
            true => take(wanted[0], bytes[0]),
            false => recipes.make(m, &sources, &bytes, &wanted, take),
        }
        self.fill.recipes = recipes;
        true
    }
}

/// The bytes of a part; the outer None: it says "what you hold", and that is not held here.
fn bytes_of<'a>(
    part: &'a PagePart,
    held: Option<&'a (Label, Option<Bytes>)>,
) -> Option<Option<&'a [u8]>> {
    match &part.content {
        PageContent::Zero => Some(None),
        PageContent::Bytes(b) if b.len() == PAGE_BYTES => Some(Some(b)),
        PageContent::Bytes(_) => None,
        PageContent::Held => {
            let (label, bytes) = held?;
            let same = part.labels[0] == Some(*label);
            (same || planted(Mutant::LabelsBySeqAlone)).then_some(bytes.as_deref())
        }
    }
}

/// The part of a twin's original, which is the twin's page. What it says nothing of is no column of the twin's.
fn of_original(parts: &Parts, original: MemberSlot) -> Option<(Vec<MemberSlot>, Vec<Label>)> {
    let (_, part) = parts.iter().find(|(slot, _)| *slot == original)?;
    let labels = part.labels.iter();
    let labels = labels.map(|label| label.unwrap_or(UNWRITTEN)).collect();
    Some((vec![original], labels))
}

/// m of the parts whose labels agree, and what they agree on for each stream. All data buckets agree with one
/// another, since each knows its own stream only; any other m have a parity bucket among them, which knows
/// all streams, and it is enough to look for those that agree with it.
fn agreeing(parts: &Parts, m: usize, slot: MemberSlot) -> Option<(Vec<MemberSlot>, Vec<Label>)> {
    if parts.len() < m {
        return None;
    }
    let others = || parts.iter().filter(|(s, _)| *s != slot);
    let data = || others().filter(|(s, _)| s.index() < m);
    if m > 1 && data().count() == m {
        let own = |(s, part): &(MemberSlot, PagePart)| part.labels[s.index()];
        let streams = data().map(own).collect::<Option<Vec<Label>>>()?;
        return Some((data().map(|(s, _)| *s).collect(), streams));
    }
    others().find_map(|(_, anchor)| {
        let streams = anchor
            .labels
            .iter()
            .copied()
            .collect::<Option<Vec<Label>>>()?;
        let agrees = |part: &PagePart| {
            let same = |(known, label): (&Option<Label>, &Label)| known.is_none_or(|l| l == *label);
            planted(Mutant::MixedPageVersions) || part.labels.iter().zip(&streams).all(same)
        };
        let agreeing = others().filter(|(_, part)| agrees(part));
        let sources: Vec<MemberSlot> = agreeing.map(|(s, _)| *s).take(m).collect();
        (sources.len() == m).then_some((sources, streams))
    })
}
