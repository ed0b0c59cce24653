//! The findings and the progress of a scrub.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde::Serialize;
use staves_model::GroupId;

use staves_cli_common::output::{self, bytes, count, number, properties};

/// Most differences that are told one by one.
const TOLD_MAX: usize = 100;
/// The interval of progress reports: on a terminal, and in a log.
const SHOWN_EVERY: Duration = Duration::from_secs(1);
const LOGGED_EVERY: Duration = Duration::from_secs(10);

/// The findings of one pass.
#[derive(Default, Serialize)]
pub struct Findings {
    /// In a word: `clean`, `repaired`, `wrong` or `nothing-checked`; of a volume `clean`, `wrong`, `incomplete` or `nothing-written`.
    result: &'static str,
    groups: u64,
    /// Groups without a bucket of parity: there is nothing to compare.
    groups_without_parity: u64,
    /// Groups with a vacant member, between two epochs, or that changed meanwhile: some of their pages could not be
    /// checked.
    groups_short: u64,
    pages_checked: u64,
    /// Pages that were written each time that they were looked at.
    pages_busy: u64,
    /// Pages that a member lacks: it is being rebuilt.
    pages_missing: u64,
    /// Pages that were wrong; those repaired are among them.
    differences: u64,
    repaired: u64,
    /// Bytes of blocks of files whose checksums were compared.
    files_bytes_checked: u64,
    /// Blocks that were not what had come in, and were dropped: they come from their source again.
    files_blocks_dropped: u64,
    /// Nodes that did not say all that they have of files.
    files_nodes_silent: BTreeSet<u64>,
    /// The first of the differences.
    told: Vec<Difference>,
}

/// A page that was wrong.
#[derive(Clone, Serialize)]
pub struct Difference {
    pub group: u32,
    pub page: u32,
    pub slot: u8,
    pub node: u64,
    pub name: String,
    pub outcome: PageOutcome,
}

/// The fault of a page, or its repair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum PageOutcome {
    /// A page of parity, made anew from the others.
    Repaired,
    /// The same, and it was not all there by the last look.
    BeingRepaired,
    /// A page of parity that does not fit.
    Parity,
    /// A page of data that does not fit, where all others agree.
    Data,
    /// More than one page of the rank.
    Several,
}

impl PageOutcome {
    fn text(self) -> &'static str {
        match self {
            PageOutcome::Repaired => "parity did not fit; made anew",
            PageOutcome::BeingRepaired => "parity did not fit; being made anew",
            PageOutcome::Parity => "parity does not fit",
            PageOutcome::Data => "data is wrong: all other members agree on what it should be",
            PageOutcome::Several => "several pages of the rank are wrong, and nothing tells which",
        }
    }

    /// The remedy.
    fn remedy(self) -> Option<&'static str> {
        match self {
            PageOutcome::Repaired => None,
            PageOutcome::BeingRepaired => Some("scrub again in a while"),
            PageOutcome::Parity => Some(
                "without --check, and with all members there, a scrub of a memory pool makes the page anew; for a \
                 pool of keys restart the node: its part is made anew from the others",
            ),
            PageOutcome::Data => Some(
                "clients read wrong bytes there: write them anew, or restart the node while the others are whole: \
                 its part is rebuilt from theirs",
            ),
            PageOutcome::Several => Some(
                "the bytes of that rank cannot be trusted: write them anew from where they came from, then scrub again",
            ),
        }
    }
}

/// The findings so far, and the pages left to check.
pub struct ScrubTally {
    found: Findings,
    remedies: BTreeMap<PageOutcome, u64>,
    /// True if what could not be compared is a failure, and what was never written none.
    all: bool,
    progress: bool,
    terminal: bool,
    began: Instant,
    shown: Instant,
    pages: BTreeMap<GroupId, u32>,
    /// Pages of groups that are done, or passed over.
    before: u64,
    total: u64,
    at: Option<GroupId>,
    of_this: u64,
}

impl ScrubTally {
    /// For groups of so many pages. `progress`: whether people look on.
    pub fn new(progress: bool, pages: BTreeMap<GroupId, u32>) -> ScrubTally {
        ScrubTally {
            found: Findings::default(),
            remedies: BTreeMap::new(),
            all: false,
            progress,
            terminal: std::io::stderr().is_terminal(),
            began: Instant::now(),
            shown: Instant::now(),
            before: 0,
            total: pages.values().map(|pages| u64::from(*pages)).sum(),
            pages,
            at: None,
            of_this: 0,
        }
    }

    /// The same, where everything must be compared.
    pub fn of_all(progress: bool, pages: BTreeMap<GroupId, u32>) -> ScrubTally {
        let mut tally = ScrubTally::new(progress, pages);
        tally.all = true;
        tally
    }

    /// The next group.
    pub fn group(&mut self, id: GroupId, whole: bool, parity: bool) {
        let last = self.at.and_then(|last| self.pages.get(&last));
        self.before += last.map_or(0, |pages| u64::from(*pages));
        (self.at, self.of_this) = (Some(id), 0);
        self.found.groups += 1;
        self.found.groups_without_parity += u64::from(!parity);
        self.found.groups_short += u64::from(parity && !whole);
    }

    /// This group became another under the scrub.
    pub fn changed(&mut self) {
        self.found.groups_short += 1;
    }

    pub fn checked(&mut self) {
        self.found.pages_checked += 1;
        self.step();
    }

    pub fn busy(&mut self) {
        self.found.pages_busy += 1;
        self.step();
    }

    pub fn missing(&mut self) {
        self.found.pages_missing += 1;
        self.step();
    }

    pub fn wrong(&mut self, one: Difference) {
        self.found.differences += 1;
        self.found.repaired += u64::from(one.outcome == PageOutcome::Repaired);
        *self.remedies.entry(one.outcome).or_default() += 1;
        if self.found.told.len() < TOLD_MAX {
            self.found.told.push(one);
        }
    }

    /// Blocks of files were looked at.
    pub fn blocks(&mut self, bytes: u64, dropped: u32) {
        self.found.files_bytes_checked += bytes;
        self.found.files_blocks_dropped += u64::from(dropped);
    }

    /// A node did not answer for its blocks of files.
    pub fn silent(&mut self, node: u64) {
        self.found.files_nodes_silent.insert(node);
    }

    fn step(&mut self) {
        self.of_this += 1;
        let every = match self.terminal {
            true => SHOWN_EVERY,
            false => LOGGED_EVERY,
        };
        if self.progress && self.shown.elapsed() >= every {
            self.shown = Instant::now();
            let line = progress(self.before + self.of_this, self.total, self.began.elapsed());
            match self.terminal {
                true => output::show(format_args!("\r  {line}        ")),
                false => output::say(line),
            }
        }
    }

    /// Ends the progress.
    pub fn end(&mut self) {
        if self.progress && self.terminal {
            output::show(format_args!("\r{:60}\r", ""));
        }
        let incomplete = self.all && self.unchecked().is_some();
        let found = &mut self.found;
        found.result = match found {
            _ if found.differences > found.repaired => "wrong",
            _ if incomplete => "incomplete",
            _ if self.all && found.pages_checked == 0 => "nothing-written",
            _ if found.pages_checked == 0 && found.files_bytes_checked == 0 => "nothing-checked",
            _ if found.repaired + found.files_blocks_dropped > 0 => "repaired",
            _ => "clean",
        };
    }

    pub fn found(&self) -> &Findings {
        &self.found
    }

    /// The reason why the command fails, if it does.
    pub fn failure(&self) -> Option<String> {
        let found = &self.found;
        match found.result {
            "wrong" => {
                let left = count(found.differences - found.repaired, "page");
                Some(format!("not made right: {left} with wrong bytes"))
            }
            "incomplete" => self.unchecked(),
            "nothing-checked" => Some(format!("no page was checked: {}", self.nothing())),
            _ => None,
        }
    }

    /// The reason why not everything could be compared, if so.
    fn unchecked(&self) -> Option<String> {
        let found = &self.found;
        let group = |groups| count(groups, "group");
        let page = |pages| count(pages, "page");
        let parts = [
            (found.groups_without_parity > 0).then(|| {
                let groups = group(found.groups_without_parity);
                format!("{groups} without a copy or parity: 'staves pool set --scheme' adds some")
            }),
            (found.groups_short > 0).then(|| {
                let groups = group(found.groups_short);
                format!(
                    "{groups} not whole, or changed meanwhile: 'staves status' says what is missing"
                )
            }),
            (found.pages_missing > 0).then(|| {
                let pages = page(found.pages_missing);
                format!("{pages} being rebuilt: check again when that is done")
            }),
            (found.pages_busy > 0).then(|| {
                let pages = page(found.pages_busy);
                format!("{pages} being written each time: check again when less is written")
            }),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let text = || format!("not all could be compared: {}", parts.join("; "));
        (!parts.is_empty()).then(text)
    }

    /// The reason why there was nothing to check.
    fn nothing(&self) -> &'static str {
        let found = &self.found;
        match found {
            _ if !found.files_nodes_silent.is_empty() => {
                "nodes with blocks of files did not answer; 'staves status' says which are there"
            }
            _ if found.groups == 0 => {
                "nothing of files is in memory, and the pool has no group; a memory pool has none before its first region"
            }
            _ if found.groups == found.groups_without_parity => {
                "no group has parity, so there is nothing to compare; 'staves pool set --scheme' adds some"
            }
            _ if found.pages_missing > 0 => {
                "all of them are being rebuilt; scrub again when that is done"
            }
            _ if found.pages_busy > 0 => "all of them were being written",
            _ if found.groups_short > 0 => {
                "the groups are not whole, or changed meanwhile; 'staves status' says what is missing"
            }
            _ => "nothing was ever written there",
        }
    }

    /// All of it for people.
    pub fn told(&self) -> String {
        let found = &self.found;
        let mut text = properties([
            ("result", found.result.replace('-', " ")),
            ("groups", number(found.groups)),
            (
                "of them without parity",
                number(found.groups_without_parity),
            ),
            ("of them short or changing", number(found.groups_short)),
            ("pages checked", number(found.pages_checked)),
            ("pages that did not hold still", number(found.pages_busy)),
            ("pages being rebuilt", number(found.pages_missing)),
            ("pages that were wrong", number(found.differences)),
            ("of them made anew", number(found.repaired)),
            ("files checked", bytes(found.files_bytes_checked)),
            ("damaged blocks dropped", number(found.files_blocks_dropped)),
        ]);
        if !found.files_nodes_silent.is_empty() {
            let nodes: Vec<String> = found
                .files_nodes_silent
                .iter()
                .map(u64::to_string)
                .collect();
            text += &format!(
                "\n  node {} did not say all it has of files",
                nodes.join(", ")
            );
        }
        for one in &found.told {
            let (group, page, slot) = (one.group, one.page, one.slot);
            let (node, name, what) = (one.node, &one.name, one.outcome.text());
            text +=
                &format!("\n  group {group} page {page}, member {slot} on {name} ({node}): {what}");
        }
        let remedies = self.remedies.keys().filter_map(|outcome| outcome.remedy());
        remedies.for_each(|remedy| text += &format!("\nwhat to do: {remedy}"));
        text
    }
}

/// Describes the progress, and the time left at the rate so far.
fn progress(done: u64, total: u64, elapsed: Duration) -> String {
    // What is written meanwhile comes on top.
    let total = total.max(done);
    let percent = done * 100 / total.max(1);
    let left = elapsed.as_secs_f64() / done.max(1) as f64 * (total - done) as f64;
    let (done, total) = (number(done), number(total));
    format!("{done} of {total} pages, {percent} %, about {left:.0} s left")
}

#[cfg(test)]
mod tests;
