//! The pages of one member with what the protocol keeps beside each: its labels, whether it is here,
//! and, for a page that is not, which of its deltas were skipped.

mod kept;

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{
    Epoch, Label, MemberSlot, PAGE_BYTES, Time, bucket_slot, mutant::Mutant, mutant::planted,
};
use staves_store::{EXTENT_BYTES, EXTENT_PAGES, Full, Pages};
use staves_wire::group::{Delta, Run, RunKind};

use crate::code;
use crate::merge::{self, Arithmetic, Merge};
use crate::page_set::PageSet;
use crate::stream::SEQ_MAX;

/// A page on its way in: rebuilt, and waiting until the streams have come as far as it has.
struct Rebuilt {
    labels: Vec<Label>,
    /// `None` when all zero.
    bytes: Option<Bytes>,
    since: Time,
}

/// A member's page table.
///
/// It has one label column per stream that the member's pages carry: one at a data bucket (its own
/// stream), at its twin, and at every member when m = 1; m at a parity bucket.
pub struct PageTable {
    pages: Pages,
    columns: usize,
    labels: Vec<Label>,
    // One bit per page below `here.len() * 64`; pages beyond were made after this member joined, and are here.
    absent: Vec<u64>,
    absent_count: u32,
    /// By absent page: per column the highest seq of a delta that was skipped for it (rule 4).
    skipped: BTreeMap<u32, Vec<u64>>,
    /// At parity with m > 1, within one step: what is not multiplied yet.
    merge: Merge,
    arithmetic: Arithmetic,
    rebuilt: BTreeMap<u32, Rebuilt>,
    /// Pages that changed, where somebody asks for them.
    changed: Option<PageSet>,
}

/// Most pages that wait for the streams at a time; others are asked for again.
const WAITING_MAX: usize = 1024;

/// The label of a page that was never written.
pub(crate) const UNWRITTEN: Label = Label {
    epoch: Epoch(0),
    seq: 0,
};

impl PageTable {
    /// A table on which all pages are here, and zero where never written.
    pub fn whole(pages: Pages, columns: usize) -> PageTable {
        PageTable {
            pages,
            columns,
            labels: Vec::new(),
            absent: Vec::new(),
            absent_count: 0,
            skipped: BTreeMap::new(),
            merge: Merge::default(),
            arithmetic: Arithmetic::default(),
            rebuilt: BTreeMap::new(),
            changed: None,
        }
    }

    /// From now on it takes note of the pages that change.
    pub(crate) fn note_changes(&mut self) {
        self.changed.get_or_insert_default();
    }

    /// The pages that changed since they were last taken.
    pub(crate) fn changed(&self) -> Option<&PageSet> {
        self.changed.as_ref()
    }

    pub(crate) fn take_changed(&mut self) -> PageSet {
        self.changed
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }

    pub(crate) fn mark_changed(&mut self, pages: PageSet) {
        if let Some(changed) = &mut self.changed {
            changed.add(pages);
        }
    }

    fn change(&mut self, page: u32) {
        if let Some(changed) = &mut self.changed {
            changed.insert(page);
        }
    }

    /// A table whose first `count` pages are still to be fetched.
    pub fn absent(pages: Pages, columns: usize, count: u32) -> PageTable {
        let mut table = PageTable::whole(pages, columns);
        table.absent = vec![u64::MAX; count as usize / 64];
        if !count.is_multiple_of(64) {
            table.absent.push((1 << (count % 64)) - 1);
        }
        table.absent_count = count;
        table
    }

    /// The bytes.
    pub fn pages(&self) -> &Pages {
        &self.pages
    }

    /// For reservations.
    pub fn pages_mut(&mut self) -> &mut Pages {
        &mut self.pages
    }

    /// The end of the table: no page from here on was ever written.
    pub fn end(&self) -> u32 {
        let labelled = (self.labels.len() / self.columns) as u32;
        let absent_end = self
            .absent
            .iter()
            .rposition(|w| *w != 0)
            .map_or(0, |w| (w as u32 + 1) * 64);
        labelled.max(absent_end)
    }

    /// The arithmetic that parity has done (m > 1).
    pub fn arithmetic(&self) -> Arithmetic {
        self.arithmetic
    }

    /// The number of pages still to be fetched.
    pub fn absent_count(&self) -> u32 {
        self.absent_count
    }

    /// Returns whether a page is here.
    pub fn is_here(&self, page: u32) -> bool {
        self.absent
            .get(page as usize / 64)
            .is_none_or(|word| word & (1 << (page % 64)) == 0)
    }

    /// The first page at or after `from` that is still to be fetched.
    pub fn next_absent(&self, from: u32) -> Option<u32> {
        let mut page = from;
        while (page as usize) < self.absent.len() * 64 {
            let word = self.absent[page as usize / 64] >> (page % 64);
            if word != 0 {
                return Some(page + word.trailing_zeros());
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }

    pub(crate) fn set_absent(&mut self, page: u32) {
        self.change(page);
        let word = page as usize / 64;
        if self.absent.len() <= word {
            self.absent.resize(word + 1, 0);
        }
        let bit = 1 << (page % 64);
        if self.absent[word] & bit == 0 {
            self.absent[word] |= bit;
            self.absent_count += 1;
        }
    }

    fn set_here(&mut self, page: u32) {
        if !self.is_here(page) {
            self.absent[page as usize / 64] &= !(1 << (page % 64));
            self.absent_count -= 1;
        }
        self.skipped.remove(&page);
        self.rebuilt.remove(&page);
    }

    /// A page's labels, one per column.
    pub fn labels(&self, page: u32) -> Vec<Label> {
        (0..self.columns).map(|c| self.label(page, c)).collect()
    }

    /// A page's label in one column.
    pub fn label(&self, page: u32, column: usize) -> Label {
        self.labels
            .get(page as usize * self.columns + column)
            .copied()
            .unwrap_or(UNWRITTEN)
    }

    fn set_label(&mut self, page: u32, column: usize, label: Label) {
        let at = page as usize * self.columns + column;
        if self.labels.len() <= at {
            let end = (page as usize + 1) * self.columns;
            self.labels.resize(end, UNWRITTEN);
        }
        self.labels[at] = label;
        self.change(page);
    }

    /// Returns whether a delta that came from elsewhere stays within what is reserved here. A data bucket asks
    /// every member to reserve before it writes, and begins at the lowest free place, so one that goes
    /// beyond is wrong; and a page far out would make the table of labels as long.
    pub fn has_room_for(&self, runs: &[Run]) -> bool {
        let extent = EXTENT_BYTES as u64;
        let extents_of = |r: &Run| {
            let end = r.offset.saturating_add(u64::from(r.len));
            r.offset / extent..end.div_ceil(extent)
        };
        let known = self.end().div_ceil(EXTENT_PAGES);
        let end_max = u64::from(known.max(self.pages.reserved()));
        if runs
            .iter()
            .any(|r| r.len > 0 && extents_of(r).end > end_max)
        {
            return false;
        }
        let exists = |e: u64| self.pages.exists(e * extent);
        let writes = |r: &&Run| r.kind == RunKind::Bytes && r.len > 0;
        // Nearly always all of them are there.
        if runs
            .iter()
            .filter(writes)
            .all(|r| extents_of(r).all(exists))
        {
            return true;
        }
        let mut changed: BTreeMap<u64, bool> = BTreeMap::new();
        let mut unused = u64::from(self.pages.reserved() - self.pages.used());
        for run in runs.iter().filter(|r| r.len > 0) {
            for e in extents_of(run) {
                let there = changed.get(&e).copied().unwrap_or_else(|| exists(e));
                match run.kind {
                    RunKind::Zero if there => unused += 1,
                    RunKind::Bytes if !there && unused == 0 => return false,
                    RunKind::Bytes if !there => unused -= 1,
                    _ => {}
                }
                changed.insert(e, run.kind == RunKind::Bytes);
            }
        }
        true
    }

    /// Reserves what a delta needs and lacks that was acknowledged before its member came back from the disk. False if there is no memory for it.
    pub fn reserve_for(&mut self, runs: &[Run]) -> bool {
        // More than the runs can make exist.
        let of = |run: &Run| u64::from(run.len).div_ceil(EXTENT_BYTES as u64) + 1;
        let needed: u64 = runs.iter().map(of).sum();
        let needed = u32::try_from(needed).unwrap_or(u32::MAX);
        let ends = runs.iter().filter(|run| run.len > 0);
        let ends = ends.map(|r| (r.offset + u64::from(r.len)).div_ceil(EXTENT_BYTES as u64));
        // With m > 1 a reservation bounds offsets, too.
        let end = u32::try_from(ends.max().unwrap_or(0)).unwrap_or(u32::MAX);
        let most = self.pages.used().saturating_add(needed).max(end);
        while !self.has_room_for(runs) && self.pages.reserved() <= most {
            if !self.pages.reserve_kept(self.pages.reserved() + 1) {
                return false;
            }
        }
        true
    }

    /// Applies a delta's runs to the pages that are here and do not have it yet (I2), and remembers for
    /// the others that it was skipped (rule 4). `shape` says whether they are put, added, or added times a coefficient.
    ///
    /// # Errors
    /// `Full` if the memory was not reserved, which rule "a seq is never refused" excludes.
    pub fn apply(
        &mut self,
        shape: Shape,
        stream: usize,
        label: Label,
        runs: &[Run],
        bytes: &[u8],
        prefixes: &[u64],
    ) -> Result<(), Full> {
        let column = shape.column(stream);
        let seq = label.seq;
        if let [run] = runs
            && shape.m == 1
            && self.absent_count == 0
            && lies_in_one_page(run)
        {
            return self.put_in_page(run.offset, &bytes[..run.len as usize], column, label);
        }
        if self.absent_count > 0 {
            for page in touched(runs)
                .filter(|p| !self.is_here(*p))
                .collect::<Vec<_>>()
            {
                self.meet_absent(page, column, seq, prefixes);
            }
        }
        let mut rest = bytes;
        for run in runs {
            match run.kind {
                RunKind::Zero => self.zero(run, column, label),
                RunKind::Bytes => {
                    let (bytes, tail) = rest.split_at(run.len as usize);
                    rest = tail;
                    self.put(run.offset, bytes, shape, stream, label)?;
                }
            }
        }
        for page in touched(runs) {
            if self.is_here(page) && self.label(page, column) < label {
                self.set_label(page, column, label);
            }
        }
        Ok(())
    }

    /// Returns whether a delta can be added up at parity with others before it is multiplied (m > 1): all its pages
    /// are here, and have memory, so that nothing can hinder it later.
    pub fn adds_up(&self, shape: Shape, delta: &Delta) -> bool {
        let fits = |r: &Run| {
            let extent = EXTENT_BYTES as u64;
            let extents = r.offset / extent..(r.offset + u64::from(r.len)).div_ceil(extent);
            r.len > 0 && extents.into_iter().all(|e| self.pages.exists(e * extent))
        };
        shape.m > 1
            && !shape.holds_data()
            && delta.runs.iter().all(fits)
            && (self.absent_count == 0 || touched(&delta.runs).all(|p| self.is_here(p)))
    }

    /// Adds such a delta up; its pages have it once [`PageTable::multiply`] was called, in the same step.
    pub fn add_up(&mut self, shape: Shape, stream: usize, delta: &Delta) {
        let column = shape.column(stream);
        let mut at = 0;
        for run in &delta.runs {
            let (mut offset, end) = (run.offset, run.offset + u64::from(run.len));
            while offset < end {
                let page = (offset / PAGE_BYTES as u64) as u32;
                let within = (offset % PAGE_BYTES as u64) as usize;
                let len = (PAGE_BYTES - within).min((end - offset) as usize);
                if self.label(page, column) < delta.label || planted(Mutant::DeltaAppliedTwice) {
                    self.arithmetic.parts += 1;
                    let part = delta.bytes.slice(at..at + len);
                    self.merge.add(page, within, part);
                }
                at += len;
                offset += len as u64;
            }
        }
        for page in touched(&delta.runs) {
            if self.label(page, column) < delta.label {
                self.set_label(page, column, delta.label);
            }
        }
        if self.merge.len() >= merge::PAGES_MAX {
            self.multiply(shape, stream);
        }
    }

    /// Adds what was added up of one stream to the pages, times the coefficient.
    pub fn multiply(&mut self, shape: Shape, stream: usize) {
        for (page, sums) in self.merge.take() {
            let start = u64::from(page) * PAGE_BYTES as u64;
            for (within, bytes) in sums {
                self.arithmetic.multiplications += 1;
                let (pages, at) = (&mut self.pages, start + within as u64);
                code::add_delta(pages, shape.m, shape.slot, stream, at, &bytes)
                    .expect("the extent was there, or has just gone back to this reservation");
            }
            self.release_if_free(page);
        }
    }

    // The last bytes of an extent were freed; at parity, those of the whole rank.
    fn release_if_free(&mut self, page: u32) {
        if self.pages.page(page).is_some_and(is_zero) {
            self.pages
                .release_if_zero(u64::from(page) * PAGE_BYTES as u64);
        }
    }

    // A delta for a page that is not here. If the page is rebuilt already, waited for the streams, and lacks this
    // delta, it is installed now. Else the delta's seq is recorded as skipped: a part from before it is too old.
    fn meet_absent(&mut self, page: u32, column: usize, seq: u64, prefixes: &[u64]) {
        if self.is_here(page) {
            return;
        }
        if let Some(rebuilt) = self.rebuilt.get(&page)
            && rebuilt.labels[column].seq < seq
        {
            let ready = rebuilt
                .labels
                .iter()
                .zip(prefixes)
                .all(|(l, p)| l.seq <= *p);
            // Without memory for it, it is dropped and asked for again.
            if let Some(rebuilt) = self.rebuilt.remove(&page)
                && ready
                && self
                    .install(page, &rebuilt.labels, rebuilt.bytes.as_deref())
                    .is_ok()
            {
                return;
            }
        }
        let skipped = self
            .skipped
            .entry(page)
            .or_insert_with(|| vec![0; self.columns]);
        skipped[column] = skipped[column].max(seq);
    }

    fn put(
        &mut self,
        offset: u64,
        bytes: &[u8],
        shape: Shape,
        stream: usize,
        label: Label,
    ) -> Result<(), Full> {
        let column = shape.column(stream);
        let (mut offset, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let page = (offset / PAGE_BYTES as u64) as u32;
            let within = (offset % PAGE_BYTES as u64) as usize;
            let (part, tail) = rest.split_at(rest.len().min(PAGE_BYTES - within));
            let lacks = self.label(page, column) < label
                || (shape.m > 1 && planted(Mutant::DeltaAppliedTwice));
            if self.is_here(page) && lacks {
                if shape.m == 1 {
                    self.pages.write(offset, part)?;
                } else {
                    let pages = &mut self.pages;
                    code::add_delta(pages, shape.m, shape.slot, stream, offset, part)?;
                    self.release_if_free(page);
                    if !shape.holds_data() {
                        self.arithmetic.parts += 1;
                        self.arithmetic.multiplications += 1;
                    }
                }
            }
            offset += part.len() as u64;
            rest = tail;
        }
        Ok(())
    }

    // The most common delta of a cache, by a shorter way: bytes within one page that is here.
    fn put_in_page(
        &mut self,
        offset: u64,
        bytes: &[u8],
        column: usize,
        label: Label,
    ) -> Result<(), Full> {
        let page = (offset / PAGE_BYTES as u64) as u32;
        if self.label(page, column) < label {
            self.pages.write(offset, bytes)?;
            self.set_label(page, column, label);
        }
        Ok(())
    }

    fn zero(&mut self, run: &Run, column: usize, label: Label) {
        let pages = touched(std::slice::from_ref(run));
        if self.absent_count > 0 {
            // All of such a page is known now, whatever it was; and its extent can go.
            for page in pages.clone() {
                self.set_here(page);
            }
        }
        if pages
            .clone()
            .all(|p| self.is_here(p) && self.label(p, column) < label)
        {
            self.pages.zero(run.offset, u64::from(run.len));
            return;
        }
        for page in pages {
            if self.is_here(page) && self.label(page, column) < label {
                self.pages
                    .zero(u64::from(page) * PAGE_BYTES as u64, PAGE_BYTES as u64);
            }
        }
    }

    /// Takes a page rebuilt at `now`, with its label per column; `None` when it is all zero. It becomes part
    /// of the table once every stream has been applied as far as the page has it (rule 15); until then it
    /// waits. Returns false if it is older than deltas that were skipped for it already, or there is no memory
    /// for it now: ask again.
    pub fn offer(
        &mut self,
        page: u32,
        labels: &[Label],
        bytes: Option<&[u8]>,
        now: Time,
        applied: &[u64],
    ) -> bool {
        if self.is_here(page) {
            return true;
        }
        let old = self
            .skipped
            .get(&page)
            .is_some_and(|skipped| skipped.iter().zip(labels).any(|(g, l)| *g > l.seq));
        if old && !planted(Mutant::PartOlderThanGone) {
            return false;
        }
        let ahead = labels.iter().zip(applied).any(|(l, a)| l.seq > *a);
        if ahead && !planted(Mutant::PageAheadTakenAsDone) {
            let room = self.rebuilt.len() < WAITING_MAX;
            if room {
                let rebuilt = Rebuilt {
                    labels: labels.to_vec(),
                    bytes: bytes.map(Bytes::copy_from_slice),
                    since: now,
                };
                self.rebuilt.insert(page, rebuilt);
            }
            return room;
        }
        self.install(page, labels, bytes).is_ok()
    }

    /// Returns whether a page is at hand and only waits for the streams.
    pub fn is_waiting(&self, page: u32) -> bool {
        self.rebuilt.contains_key(&page)
    }

    /// Drops pages that have waited since before a time: what their giver said of the streams may
    /// never come true. Returns whether there were any; they are asked for again.
    pub fn drop_waiting(&mut self, before: Time) -> bool {
        let count = self.rebuilt.len();
        self.rebuilt.retain(|_, r| r.since >= before);
        self.rebuilt.len() < count
    }

    /// Installs the pages whose streams have come far enough.
    pub fn settle(&mut self, applied: &[u64]) {
        if self.rebuilt.is_empty() {
            return;
        }
        let ready: Vec<u32> = self
            .rebuilt
            .iter()
            .filter(|(_, r)| r.labels.iter().zip(applied).all(|(l, a)| l.seq <= *a))
            .map(|(p, _)| *p)
            .collect();
        for page in ready {
            if let Some(rebuilt) = self.rebuilt.remove(&page) {
                // Without memory it stays absent, and is asked for again.
                let _ = self.install(page, &rebuilt.labels, rebuilt.bytes.as_deref());
            }
        }
    }

    pub(crate) fn install(
        &mut self,
        page: u32,
        labels: &[Label],
        bytes: Option<&[u8]>,
    ) -> Result<(), Full> {
        self.pages.set_page(page, bytes)?;
        self.change(page);
        for (column, label) in labels.iter().enumerate() {
            if *label != UNWRITTEN || self.label(page, column) != UNWRITTEN {
                self.set_label(page, column, *label);
            }
        }
        self.set_here(page);
        Ok(())
    }

    /// Pages that carry a label above the cut of their stream are not here any more (rule 9).
    pub fn revert_above(&mut self, shape: Shape, stream: usize, cut: u64) -> u32 {
        let column = shape.column(stream);
        self.rebuilt.clear();
        let above: Vec<u32> = (0..(self.labels.len() / self.columns) as u32)
            .filter(|p| self.is_here(*p) && self.label(*p, column).seq > cut)
            .collect();
        for page in &above {
            self.drop_page(*page);
        }
        above.len() as u32
    }

    /// Drops a page, to be fetched anew.
    pub fn drop_page(&mut self, page: u32) {
        let at = u64::from(page) * PAGE_BYTES as u64;
        self.pages.zero(at, PAGE_BYTES as u64);
        for c in 0..self.columns {
            self.set_label(page, c, UNWRITTEN);
        }
        self.set_absent(page);
    }

    /// The same with a page that this member had, and knows to be wrong: a part older than that is refused, for the
    /// deltas since will not be applied again.
    pub fn drop_wrong_page(&mut self, page: u32) {
        let labels = (0..self.columns).map(|c| self.label(page, c).seq);
        let seqs: Vec<u64> = labels.collect();
        self.drop_page(page);
        self.skipped.insert(page, seqs);
    }

    /// A copy of a page's bytes for a message; `None` when it is all zero.
    pub fn copy_out(&self, page: u32) -> Option<Bytes> {
        let bytes = self.pages.page(page)?;
        (!is_zero(bytes)).then(|| Bytes::copy_from_slice(bytes))
    }
}

/// Returns whether a page's bytes are all zero, in steps wide enough for vector instructions.
pub(crate) fn is_zero(page: &[u8]) -> bool {
    let mut steps = page.chunks(64);
    steps.all(|step| step.iter().fold(0, |any, b| any | b) == 0)
}

/// The group's m and the slot of the member that has a table: they decide its columns and its arithmetic.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Data buckets of the group.
    pub m: usize,
    /// This member's slot.
    pub slot: MemberSlot,
}

impl Shape {
    /// Returns whether the slot is a data bucket.
    pub fn is_data(self) -> bool {
        self.slot.index() < self.m
    }

    /// The slot whose bucket it holds: its own, or that of which it is the twin.
    pub fn bucket(self) -> MemberSlot {
        bucket_slot(self.m as u8, self.slot)
    }

    /// Returns whether it stands beside another member that holds the same bucket.
    pub fn is_twin(self) -> bool {
        self.bucket() != self.slot
    }

    /// Returns whether its pages are those of one data bucket: it is one, or the twin of one.
    pub fn holds_data(self) -> bool {
        self.bucket().index() < self.m
    }

    /// Label columns of its pages.
    pub fn columns(self) -> usize {
        if self.holds_data() { 1 } else { self.m }
    }

    /// The column of a stream.
    pub fn column(self, stream: usize) -> usize {
        if self.columns() == 1 { 0 } else { stream }
    }

    /// The stream of a column.
    pub fn stream(self, column: usize) -> usize {
        if self.holds_data() {
            self.bucket().index()
        } else {
            column
        }
    }

    /// Returns whether its pages carry this stream.
    pub fn carries(self, stream: usize) -> bool {
        !self.holds_data() || self.bucket().index() == stream
    }
}

// It puts bytes, and all of them in one page.
fn lies_in_one_page(run: &Run) -> bool {
    let within = (run.offset % PAGE_BYTES as u64) as usize;
    run.kind == RunKind::Bytes && run.len > 0 && within + run.len as usize <= PAGE_BYTES
}

/// The pages that runs touch, in order; a page may come more than once.
pub fn touched(runs: &[Run]) -> impl Iterator<Item = u32> + Clone + '_ {
    let page = |offset: u64| (offset / PAGE_BYTES as u64) as u32;
    runs.iter()
        .filter(|r| r.len > 0)
        .flat_map(move |r| page(r.offset)..=page(r.offset + u64::from(r.len) - 1))
}

/// The parts of a delta within one page: the place in the page, and the bytes.
pub(crate) fn bytes_in(delta: &Delta, page: u32) -> impl Iterator<Item = (usize, &[u8])> {
    let (start, mut at) = (u64::from(page) * PAGE_BYTES as u64, 0);
    let end = start + PAGE_BYTES as u64;
    let runs = delta.runs.iter().filter(|r| r.kind == RunKind::Bytes);
    runs.filter_map(move |run| {
        let (first, last) = (
            run.offset.max(start),
            (run.offset + u64::from(run.len)).min(end),
        );
        let bytes = &delta.bytes[at..at + run.len as usize];
        at += run.len as usize;
        (first < last).then(|| {
            let within = (first - run.offset) as usize..(last - run.offset) as usize;
            ((first - start) as usize, &bytes[within])
        })
    })
}

/// Most pages of one bucket.
pub const PAGES_MAX: u32 = staves_store::BUCKET_EXTENTS_MAX * EXTENT_PAGES;
/// Most bytes that one delta makes zero: each of their pages costs a moment.
const ZEROED_BYTES_MAX: u64 = 4 << 30;

/// Returns whether a delta is well formed for a group of `m` data buckets in an epoch: what a peer sends is
/// checked before it is believed.
pub fn well_formed(delta: &Delta, m: usize, epoch: Epoch) -> bool {
    let extent = EXTENT_BYTES as u64;
    let end_max = u64::from(staves_store::BUCKET_EXTENTS_MAX) * extent;
    let (mut bytes, mut zeroed) = (0u64, 0u64);
    for run in &delta.runs {
        let Some(end) = run.offset.checked_add(u64::from(run.len)) else {
            return false;
        };
        if end > end_max {
            return false;
        }
        match run.kind {
            RunKind::Bytes => bytes += u64::from(run.len),
            RunKind::Zero if m > 1 => return false,
            RunKind::Zero if run.offset % extent != 0 || u64::from(run.len) % extent != 0 => {
                return false;
            }
            RunKind::Zero => zeroed += u64::from(run.len),
        }
    }
    let Label { epoch: made, seq } = delta.label;
    bytes == delta.bytes.len() as u64
        && zeroed <= ZEROED_BYTES_MAX
        && (1..=SEQ_MAX).contains(&seq)
        && made <= epoch
}

/// Returns whether all of these deltas are well formed.
pub fn sound_deltas(deltas: &[Delta], m: usize, epoch: Epoch) -> bool {
    deltas.iter().all(|d| well_formed(d, m, epoch))
}

const _: () = assert!(EXTENT_PAGES as usize * PAGE_BYTES == EXTENT_BYTES);
