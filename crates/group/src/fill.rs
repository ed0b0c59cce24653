//! Rules 14 to 17: a joiner fetches the pages that it lacks, from members whose labels agree, while
//! updates go on; pages that a client waits for come first.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use staves_model::{Epoch, Label, MemberSlot, NodeId, Time, mutant::Mutant, mutant::planted};
use staves_wire::group::{GroupMessage, PageContent, PagePart};

use crate::code;
use crate::member::{Ctx, DirectoryCall, Effects, State};
use crate::table::Rebuilt;

/// Most pages that one request may name; a bound on what a peer can make us send.
const GET_PAGES_MAX: u32 = 1024;
/// A request not answered for so long is made again, to another member where there is one.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// A page at hand that has waited so long for the streams is asked for again, of another member where
/// there is one.
const WAITS_FOR_STREAMS: Duration = Duration::from_secs(1);
/// Most pages of which some parts are at hand (m > 1); others are asked for again.
const PARTS_PAGES_MAX: usize = 4096;

/// A joiner's requests under way.
#[derive(Default)]
pub(crate) struct Fill {
    /// Runs of pages asked for: first page, count, when.
    asked: BTreeMap<u32, (u32, Time)>,
    /// Parts at hand of pages that need more than one (m > 1).
    parts: BTreeMap<u32, BTreeMap<MemberSlot, PagePart>>,
    /// Where the sweep over the table stands.
    next: u32,
    /// How often a request was made again: turns to another source.
    turns: u32,
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
            .retain(|_, (_, at)| ctx.now.since(*at) < ASK_AGAIN_AFTER);
        let waited = self.table.drop_waiting(ctx.now - WAITS_FOR_STREAMS);
        if self.fill.asked.len() < before || waited {
            self.fill.turns = self.fill.turns.wrapping_add(1);
        }
        while self.fill.asked.len() < ctx.options.fetch_window {
            let Some((page, count)) = self.next_run(ctx.options.fetch_pages) else {
                break;
            };
            self.ask(ctx, page, count, false, out);
        }
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
            if let Some((start, (count, _))) = asked
                && first < start + count
            {
                self.fill.next = start + count;
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
            .is_some_and(|(_, at)| ctx.now.since(*at) < ASK_AGAIN_AFTER);
        if !self.table.is_here(page) && !lately {
            self.ask(ctx, page, 1, true, out);
        }
    }

    fn ask(&mut self, ctx: &Ctx<'_>, page: u32, count: u32, urgent: bool, out: &mut Effects) {
        self.fill.asked.insert(page, (count, ctx.now));
        let held: Vec<Label> = match &self.old {
            Some(old) => (page..page + count).map(|p| old.label(p, 0)).collect(),
            None => vec![],
        };
        for node in self.sources() {
            let message = GroupMessage::Get {
                page,
                count,
                urgent,
                held: held.clone(),
            };
            out.sends.push((node, ctx.envelope(self.epoch, message)));
        }
    }

    // m = 1: one member, the data bucket first, another after each request without an answer.
    // m > 1: all others; any m whose labels agree will do.
    fn sources(&self) -> Vec<NodeId> {
        let listed: Vec<NodeId> = self
            .view
            .listed()
            .filter(|(slot, x)| *slot != self.slot && (x.complete || self.shape().m > 1))
            .map(|(_, x)| x.node)
            .collect();
        if self.shape().m > 1 || listed.is_empty() {
            return listed;
        }
        vec![listed[self.fill.turns as usize % listed.len()]]
    }

    /// Gives the pages that are here to a joiner of the same open epoch.
    #[allow(clippy::too_many_arguments)]
    pub fn give(
        &mut self,
        ctx: &Ctx<'_>,
        to: NodeId,
        epoch: Epoch,
        page: u32,
        count: u32,
        held: &[Label],
        out: &mut Effects,
    ) {
        let ready = self.open || planted(Mutant::PartsBeforeCutApplied);
        if epoch != self.epoch || !ready || self.synced != self.epoch {
            return;
        }
        let count = count.min(GET_PAGES_MAX);
        let parts: Vec<PagePart> = (page..page.saturating_add(count))
            .filter(|p| self.table.is_here(*p))
            .map(|p| self.part(p, held.get((p - page) as usize)))
            .collect();
        let message = GroupMessage::Parts {
            slot: self.slot,
            parts,
        };
        out.sends.push((to, ctx.envelope(self.epoch, message)));
    }

    fn part(&self, page: u32, held: Option<&Label>) -> PagePart {
        let shape = self.shape();
        let labels = (0..shape.m)
            .map(|stream| {
                shape
                    .carries(stream)
                    .then(|| self.table.label(page, shape.column(stream)))
            })
            .collect();
        let label = self.table.label(page, 0);
        // Rule 17: pair by pair. A label of 0 is a page never written: zero, and cheaper said so.
        let same = held.is_some_and(|held| {
            let equal = if planted(Mutant::LabelsBySeqAlone) {
                held.seq == label.seq
            } else {
                *held == label
            };
            shape.m == 1 && label.seq > 0 && equal
        });
        let content = if same {
            PageContent::Held
        } else {
            self.table
                .copy_out(page)
                .map_or(PageContent::Zero, PageContent::Bytes)
        };
        PagePart {
            page,
            labels,
            content,
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
            if self.try_rebuild(ctx.now, page) {
                self.fill.parts.remove(&page);
            }
        }
        // The request that these answer is done, unless other members' parts are still awaited.
        let awaited = self.fill.parts.range(first..).next().is_some_and(|(p, _)| {
            self.fill
                .asked
                .get(&first)
                .is_some_and(|(count, _)| *p < first + count)
        });
        if !awaited {
            self.fill.asked.remove(&first);
        }
        self.fill.parts.retain(|p, _| !self.table.is_here(*p));
        self.tick_fill(ctx, out);
    }

    // Any m parts whose labels agree for every stream (I6). True: the page is here, or at hand, or its
    // parts are of no use and must be asked for again.
    fn try_rebuild(&mut self, now: Time, page: u32) -> bool {
        let shape = self.shape();
        let Some(parts) = self.fill.parts.get(&page) else {
            return true;
        };
        let have: Vec<MemberSlot> = parts.keys().copied().collect();
        let Some(sources) = code::sources(shape.m, self.slot, &have) else {
            return false;
        };
        let chosen: Vec<&PagePart> = sources.iter().filter_map(|s| parts.get(s)).collect();
        let mut agreed: Vec<Option<Label>> = vec![None; shape.m];
        for part in &chosen {
            for (known, label) in agreed.iter_mut().zip(&part.labels) {
                match (*known, label) {
                    (None, label) => *known = *label,
                    (Some(k), Some(l)) if k != *l => return true,
                    _ => {}
                }
            }
        }
        let Some(streams) = agreed.into_iter().collect::<Option<Vec<Label>>>() else {
            return true;
        };
        let Some(bytes) = chosen
            .iter()
            .map(|p| self.bytes_of(p))
            .collect::<Option<Vec<_>>>()
        else {
            return true;
        };
        let labels: Vec<Label> = (0..shape.columns())
            .map(|c| streams[shape.stream(c)])
            .collect();
        let rebuilt = Rebuilt {
            labels,
            bytes: code::rebuild(shape.m, &bytes),
            since: now,
        };
        let applied = self.applied();
        self.table.offer(page, rebuilt, &applied);
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
