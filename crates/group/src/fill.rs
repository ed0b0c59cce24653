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
use staves_model::{Label, MemberSlot, NodeId, Time, mutant::Mutant, mutant::planted};
use staves_wire::group::{GroupMessage, PageContent, PagePart};

use crate::code::Recipes;
use crate::member::{Ctx, DirectoryCall, Effects, State};
use crate::table::{Rebuilt, UNWRITTEN};

/// A request not answered for so long is made again, to another member where there is one.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A page at hand that has waited so long for the streams is asked for again, of another member where
/// there is one.
const WAITS_FOR_STREAMS: Duration = Duration::from_secs(1);
/// A joiner that has had nothing for so long from the one who makes the pass fetches by itself.
const WAITS_FOR_THE_PASS: Duration = Duration::from_millis(300);
/// Most pages of which some parts are at hand (m > 1); others are asked for again.
const PARTS_PAGES_MAX: usize = 4096;

/// A joiner's requests under way.
#[derive(Default)]
pub(crate) struct Fill {
    /// Runs of pages asked for, by first page.
    asked: BTreeMap<u32, Asked>,
    /// Parts at hand of pages that need more than one (m > 1).
    parts: BTreeMap<u32, BTreeMap<MemberSlot, PagePart>>,
    /// Where the sweep over the table stands.
    next: u32,
    /// How often a request was made again: turns to other sources.
    turns: u32,
    /// When the one who makes the pass last sent a page; at first, when this member began to wait.
    passed: Option<Time>,
    recipes: Recipes,
}

#[derive(Clone, Copy)]
struct Asked {
    count: u32,
    at: Time,
    /// Of so many members.
    of: usize,
}

impl Fill {
    /// Another epoch: what was asked for is void.
    pub fn clear(&mut self) {
        *self = Fill {
            turns: self.turns,
            ..Fill::default()
        };
    }
}

/// Pages made for other joiners in the pass, by slot.
type Made = BTreeMap<MemberSlot, Vec<PagePart>>;

impl State {
    /// Asks for what is lacking, within the window; when nothing is, tells the directory.
    pub fn tick_fill(&mut self, ctx: &Ctx<'_>, out: &mut Effects) {
        if self.table.absent_count() == 0 {
            self.old = None;
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
        let before = self.fill.asked.len();
        self.fill
            .asked
            .retain(|_, asked| ctx.now.since(asked.at) < ASK_AGAIN_AFTER);
        let waited = self.table.drop_waiting(ctx.now - WAITS_FOR_STREAMS);
        if self.fill.asked.len() < before || waited {
            self.fill.turns = self.fill.turns.wrapping_add(1);
        }
        if self.another_makes_the_pass(ctx.now) {
            return;
        }
        while self.fill.asked.len() < ctx.options.fetch_window {
            let Some((page, count)) = self.next_run(ctx.options.fetch_pages) else {
                break;
            };
            self.ask(ctx, page, count, false, out);
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
            let asked = self.fill.asked.range(..=first).next_back();
            if let Some((start, asked)) = asked
                && first < start + asked.count
            {
                self.fill.next = start + asked.count;
                continue;
            }
            if self.table.is_waiting(first) {
                self.fill.next = first + 1;
                continue;
            }
            let bound = self
                .fill
                .asked
                .range(first..)
                .next()
                .map_or(u32::MAX, |(p, _)| *p);
            let wanted =
                |p: &u32| *p < bound && !self.table.is_here(*p) && !self.table.is_waiting(*p);
            let count = (first..first.saturating_add(most))
                .take_while(wanted)
                .count() as u32;
            self.fill.next = first + count;
            return Some((first, count));
        }
    }

    /// A client waits for this page: ask for it now, whatever else is under way.
    pub fn demand(&mut self, ctx: &Ctx<'_>, page: u32, out: &mut Effects) {
        let lately = self
            .fill
            .asked
            .get(&page)
            .is_some_and(|asked| ctx.now.since(asked.at) < ASK_AGAIN_AFTER);
        if !self.table.is_here(page) && !lately {
            self.ask(ctx, page, 1, true, out);
        }
    }

    fn ask(&mut self, ctx: &Ctx<'_>, page: u32, count: u32, urgent: bool, out: &mut Effects) {
        let sources = self.sources(urgent);
        let asked = Asked {
            count,
            at: ctx.now,
            of: sources.len(),
        };
        self.fill.asked.insert(page, asked);
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
            out.sends.push((node, ctx.envelope(self.epoch, message)));
        }
    }

    // m = 1: one member, the data bucket first. m > 1: m members, data buckets first; for a client that
    // waits, all, since any m whose labels agree will do. After each request without an answer, others.
    // A twin: its original alone.
    fn sources(&self, urgent: bool) -> Vec<NodeId> {
        let mut nodes: Vec<NodeId> = self
            .view
            .listed()
            .filter(|(slot, x)| *slot != self.slot && x.complete && self.may_give(*slot))
            .map(|(_, x)| x.node)
            .collect();
        let m = self.shape().m;
        if nodes.is_empty() || (urgent && m > 1) {
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
        let Some(first) = parts.first().map(|p| p.page) else {
            return;
        };
        let mut made = Made::new();
        for part in parts {
            if part.labels.len() != m || self.table.is_here(part.page) {
                continue;
            }
            let page = part.page;
            if self.fill.parts.len() >= PARTS_PAGES_MAX && !self.fill.parts.contains_key(&page) {
                continue;
            }
            let entry = self.fill.parts.entry(page).or_default();
            entry.insert(from, part);
            if self.try_rebuild(ctx.now, page, &mut made) {
                self.fill.parts.remove(&page);
            }
        }
        self.send_made(ctx, made, out);
        // The request that these answer is done, unless other members' parts are still awaited.
        let awaited = self.fill.parts.range(first..).next().is_some_and(|(p, _)| {
            self.fill
                .asked
                .get(&first)
                .is_some_and(|asked| *p < first + asked.count)
        });
        if !awaited {
            self.fill.asked.remove(&first);
        }
        self.fill.parts.retain(|p, _| !self.table.is_here(*p));
        self.tick_fill(ctx, out);
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
        let shape = self.shape();
        for part in parts {
            let streams: Option<Vec<Label>> = part.labels.iter().copied().collect();
            let Some(streams) = streams.filter(|s| s.len() == shape.m) else {
                continue;
            };
            if let Some(bytes) = self.bytes_of(&part).filter(|_| shape.m > 1) {
                self.offer(ctx.now, part.page, &streams, bytes);
            }
        }
        self.fill.passed = Some(ctx.now);
        self.tick_fill(ctx, out);
    }

    fn offer(&mut self, now: Time, page: u32, streams: &[Label], bytes: Option<Bytes>) {
        let shape = self.shape();
        let rebuilt = Rebuilt {
            labels: (0..shape.columns())
                .map(|c| streams[shape.stream(c)])
                .collect(),
            bytes,
            since: now,
        };
        let applied = self.applied();
        self.table.offer(page, rebuilt, &applied);
    }

    // Any m parts whose labels agree for every stream (I6). True: the page is here, or at hand, or its
    // parts are of no use and must be asked for again.
    fn try_rebuild(&mut self, now: Time, page: u32, made: &mut Made) -> bool {
        let m = self.shape().m;
        let Some(parts) = self.fill.parts.get(&page) else {
            return true;
        };
        let shape = self.shape();
        let found = match shape.is_twin() {
            true => of_original(parts, shape.bucket()),
            false => agreeing(parts, m, self.slot),
        };
        let Some((sources, streams)) = found else {
            let asked = self.fill.asked.range(..=page).next_back();
            let of = asked.map_or(m, |(_, a)| a.of.max(m));
            return parts.len() >= of;
        };
        let chosen = sources.iter().filter_map(|s| parts.get(s));
        let Some(bytes) = chosen.map(|p| self.bytes_of(p)).collect::<Option<Vec<_>>>() else {
            return true;
        };
        let mut wanted = vec![self.slot];
        if self.makes_the_pass() {
            wanted.extend(self.joiners().filter(|s| *s != self.slot));
        }
        let pages = match shape.is_twin() {
            true => bytes,
            false => self.fill.recipes.make(m, &sources, &bytes, &wanted),
        };
        for (slot, bytes) in wanted.into_iter().zip(pages) {
            if slot == self.slot {
                self.offer(now, page, &streams, bytes);
                continue;
            }
            made.entry(slot).or_default().push(PagePart {
                page,
                labels: streams.iter().copied().map(Some).collect(),
                content: bytes.map_or(PageContent::Zero, PageContent::Bytes),
            });
        }
        true
    }

    // The bytes of a part; the outer None: it says "what you hold", and that is not held here.
    fn bytes_of(&self, part: &PagePart) -> Option<Option<Bytes>> {
        match &part.content {
            PageContent::Zero => Some(None),
            PageContent::Bytes(b) if b.len() == staves_model::PAGE_BYTES => Some(Some(b.clone())),
            PageContent::Bytes(_) => None,
            PageContent::Held => {
                let old = self.old.as_ref()?;
                let same = part.labels[0] == Some(old.label(part.page, 0));
                (same || planted(Mutant::LabelsBySeqAlone)).then(|| old.copy_out(part.page))
            }
        }
    }
}

/// The part of a twin's original, which is the twin's page. What it says nothing of is no column of the twin's.
fn of_original(
    parts: &BTreeMap<MemberSlot, PagePart>,
    original: MemberSlot,
) -> Option<(Vec<MemberSlot>, Vec<Label>)> {
    let labels = parts.get(&original)?.labels.iter();
    let labels = labels.map(|label| label.unwrap_or(UNWRITTEN)).collect();
    Some((vec![original], labels))
}

/// m of the parts whose labels agree, and what they agree on for each stream. All data buckets agree with one
/// another, since each knows its own stream only; any other m have a parity bucket among them, which knows
/// all streams, and it is enough to look for those that agree with it.
fn agreeing(
    parts: &BTreeMap<MemberSlot, PagePart>,
    m: usize,
    slot: MemberSlot,
) -> Option<(Vec<MemberSlot>, Vec<Label>)> {
    let knows_all = |part: &PagePart| part.labels.iter().copied().collect::<Option<Vec<Label>>>();
    let others = || parts.iter().filter(|(s, _)| **s != slot);
    let data: Vec<MemberSlot> = others()
        .map(|(s, _)| *s)
        .filter(|s| s.index() < m)
        .collect();
    if data.len() == m && m > 1 {
        let own = |s: &MemberSlot| parts[s].labels[s.index()];
        let streams = data.iter().map(own).collect::<Option<Vec<Label>>>()?;
        return Some((data, streams));
    }
    others().find_map(|(_, anchor)| {
        let streams = knows_all(anchor)?;
        let agrees = |part: &PagePart| {
            let same = |(known, label): (&Option<Label>, &Label)| known.is_none_or(|l| l == *label);
            planted(Mutant::MixedPageVersions) || part.labels.iter().zip(&streams).all(same)
        };
        let mut sources: Vec<MemberSlot> = others()
            .filter(|(_, part)| agrees(part))
            .map(|(s, _)| *s)
            .collect();
        sources.truncate(m);
        (sources.len() == m).then_some((sources, streams))
    })
}
