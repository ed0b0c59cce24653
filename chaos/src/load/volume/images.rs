//! The histories of snapshots and clones, and their judge.
//!
//! An image has in each block what its volume held at one instant within the time of the command that made it, and all images of one command have what was
//! there at the same instant: no write is in them that was sent after the answer to one that is missing. Nothing changes an image but a clone's own writes.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::history::{BlockHistory, BlockOrder, BlockRead, seconds};

/// A snapshot or a clone, as its client saw it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ImageHistory {
    /// The name.
    pub name: String,
    /// The volume that its blocks are of, by its place among all.
    pub volume: usize,
    /// The snapshot that it is a clone of; `None` if it is of the volume itself.
    pub of: Option<String>,
    /// The command that made it; it may have made others, too.
    pub command: u64,
    /// The time of the command, in nanoseconds of the run.
    pub call: u64,
    /// The time of its answer; if it failed, that of the first answer to a read. `None` if there was neither.
    pub returned: Option<u64>,
    /// The reads, and a clone's writes.
    pub blocks: BlockHistory,
}

/// The images that one command made of volumes, as far as they were read.
struct Copied<'a> {
    names: Vec<&'a str>,
    call: u64,
    returned: u64,
    /// The write that each block had at first.
    values: BTreeMap<u64, u64>,
}

impl ImageHistory {
    /// The writes that its blocks had at first, as far as they were read before the image was written to.
    fn first(&self) -> BTreeMap<u64, u64> {
        let mut first = BTreeMap::new();
        for read in &self.blocks.reads {
            let mut writes = self.blocks.writes.iter();
            let is_written = writes.any(|w| w.block == read.block && w.call < read.returned);
            if let (false, Some(seen)) = (is_written, read.seen) {
                first.entry(read.block).or_insert(seen);
            }
        }
        first
    }

    /// The violations of what it had at first, with its own writes.
    fn judge(&self) -> Vec<String> {
        let (first, mut blocks) = (self.first(), self.blocks.clone());
        let is_known = |block: u64| first.contains_key(&block);
        // Torn ones are known to be wrong all the same.
        blocks
            .reads
            .retain(|read| is_known(read.block) || read.seen.is_none());
        blocks.writes.retain(|write| is_known(write.block));
        blocks.judge(&format!("'{}'", self.name), &first).1
    }
}

/// The violations in words: those of each volume by itself, of each image by itself, and of both together.
pub fn judge(volumes: &[(&str, BlockHistory)], images: &[ImageHistory]) -> Vec<String> {
    let (orders, mut wrong) = orders_of(volumes, "");
    wrong.extend(images.iter().flat_map(ImageHistory::judge));
    wrong.extend(images.iter().flat_map(|clone| judge_clone(clone, images)));
    let commands = commands(images);
    for copied in &commands {
        wrong.extend(copied.judge(&orders));
    }
    if !wrong.is_empty() {
        return wrong;
    }
    // An image has seen its blocks: what is read of the volume afterwards is not older.
    let mut seen = volumes.to_vec();
    for copied in &commands {
        for (_, volume) in &mut seen {
            let has = |block: u64| volume.writes.iter().any(|write| write.block == block);
            let of_volume = copied.reads().filter(|read| has(read.block));
            let reads: Vec<BlockRead> = of_volume.collect();
            volume.reads.extend(reads);
        }
    }
    let (orders, mut wrong) = orders_of(&seen, " with its snapshots");
    if wrong.is_empty() {
        wrong.extend(commands.iter().filter_map(|copied| copied.judge(&orders)));
    }
    wrong
}

/// As JSON lines.
pub fn text(images: &[ImageHistory]) -> String {
    let line = |image| serde_json::to_string(image).unwrap_or_default() + "\n";
    images.iter().map(line).collect()
}

fn orders_of(
    volumes: &[(&str, BlockHistory)],
    with: &str,
) -> (BTreeMap<u64, BlockOrder>, Vec<String>) {
    let (mut orders, mut wrong) = (BTreeMap::new(), Vec::new());
    for (name, history) in volumes {
        let judged = history.judge(&format!("{name}{with}"), &BTreeMap::new());
        orders.extend(judged.0);
        wrong.extend(judged.1);
    }
    (orders, wrong)
}

/// The violation of a clone that did not begin as the snapshot that it is of.
fn judge_clone(clone: &ImageHistory, images: &[ImageHistory]) -> Option<String> {
    let of = clone.of.as_ref()?;
    let origin = images.iter().find(|image| image.name == *of)?.first();
    clone.first().iter().find_map(|(block, number)| {
        let had = origin.get(block).filter(|had| *had != number)?;
        let name = &clone.name;
        Some(format!(
            "'{name}' began with write {number} in block {block}, and '{of}', of which it is a clone, has write {had}"
        ))
    })
}

/// All commands that copied volumes.
fn commands(images: &[ImageHistory]) -> Vec<Copied<'_>> {
    let mut commands: BTreeMap<u64, Copied<'_>> = BTreeMap::new();
    for image in images.iter().filter(|image| image.of.is_none()) {
        // Of what was never seen nothing is known.
        let Some(returned) = image.returned else {
            continue;
        };
        let copied = commands.entry(image.command).or_insert_with(|| Copied {
            names: Vec::new(),
            call: image.call,
            returned,
            values: BTreeMap::new(),
        });
        copied.returned = copied.returned.min(returned);
        copied.names.push(&image.name);
        copied.values.extend(image.first());
    }
    commands.into_values().collect()
}

impl Copied<'_> {
    fn reads(&self) -> impl Iterator<Item = BlockRead> {
        self.values.iter().map(|(block, number)| BlockRead {
            block: *block,
            seen: Some(*number),
            call: self.call,
            returned: self.returned,
        })
    }

    /// The violation, if there is no instant at which all blocks were as the images have them. Blocks without an order are wrong by themselves.
    fn judge(&self, orders: &BTreeMap<u64, BlockOrder>) -> Option<String> {
        let known = self.values.iter().filter_map(|(block, number)| {
            let order = orders.get(block)?;
            Some((*block, *number, order))
        });
        let known: Vec<(u64, u64, &BlockOrder)> = known.collect();
        let changes = known.iter().flat_map(|(.., order)| order.instants());
        let within = changes.filter(|at| (self.call..=self.returned).contains(at));
        let instants: BTreeSet<u64> = within.chain([self.call, self.returned]).collect();
        let names = self.names.join("' and '");
        let (from, to) = (seconds(self.call), seconds(self.returned));
        let mut latest = None;
        let mut earliest = None;
        for (block, number, order) in &known {
            let held = |at: &&u64| order.held(*number, **at).is_ok();
            let (Some(first), Some(last)) =
                (instants.iter().find(held), instants.iter().rev().find(held))
            else {
                let why = order.held(*number, self.call).err().unwrap_or_default();
                return Some(format!(
                    "block {block} of '{names}' has write {number}, which the volume held there at no time from {from:.6} to {to:.6} s: {why}"
                ));
            };
            latest = latest.max(Some((*first, *block, *number)));
            let before = earliest.get_or_insert((*last, *block, *number));
            *before = (*before).min((*last, *block, *number));
        }
        let (first, block, number) = latest?;
        let (last, other, missing) = earliest?;
        let all = |at: &u64| {
            known
                .iter()
                .all(|(_, n, order)| order.held(*n, *at).is_ok())
        };
        let is_right = first <= last && instants.range(first..=last).any(all);
        (!is_right).then(|| {
            let (first, last) = (seconds(first), seconds(last));
            format!(
                "what is in '{names}' was there at no one instant: block {block} had write {number} from {first:.6} s on, and block {other} had write {missing} until {last:.6} s"
            )
        })
    }
}
