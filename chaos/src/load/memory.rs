//! Clients of a memory region, through the native client: whole pages, and words that are added to and
//! swapped.
//!
//! Each contended page is one key of the history. Key `mt3` is a page of which every word is the same: what is
//! written, read and taken away is the whole page, and a page that shows two values at once was torn. Key
//! `mc1` is a word that is added to, `ms0` one that is swapped in where there is none. `lm17` are pages
//! that are written once each, so that every data bucket holds something that must not get lost.

use std::sync::Arc;

use anyhow::Context;
use rand::Rng;
use rand::rngs::SmallRng;
use staves_client::{Client, ClientError, Region};
use staves_history::Record;
use staves_history::record::{Answered, Asked};

use super::Shared;
use super::native::NativeService;

/// The region's name and size.
pub const REGION: &str = "chaos";
/// See [`REGION`].
pub const REGION_BYTES: u64 = 64 << 20;
const PAGE: u64 = 4096;
/// Contended keys of each sort.
const PAGES: usize = 6;
const COUNTERS: usize = 3;
const SWAPPED: usize = 2;
/// Contended pages lie so far apart, so that they are in different chunks and buckets.
const APART: u64 = 97 * PAGE;
/// Pages written once begin here.
const LEDGER: u64 = 16 << 20;

/// The place of a key's page or word.
fn offset(key: &str) -> Option<u64> {
    let (sort, number) = key.split_at_checked(2)?;
    let number: u64 = number.parse().ok()?;
    let (before, most) = match sort {
        "mt" => (0, PAGES),
        "mc" => (PAGES, COUNTERS),
        "ms" => (PAGES + COUNTERS, SWAPPED),
        "lm" => {
            let at = LEDGER + number * PAGE;
            return Some(at).filter(|at| at + PAGE <= REGION_BYTES);
        }
        _ => return None,
    };
    (number < most as u64).then(|| (before as u64 + number) * APART)
}

/// True if a key of the history is one of these.
pub fn is_ours(key: &str) -> bool {
    offset(key).is_some()
}

/// Draws the next operation of a client: of the one with the `ledger`, a page that was never written.
pub fn draw(
    process: u32,
    ledger: bool,
) -> impl FnMut(&mut SmallRng, u64) -> Option<(String, Asked)> + Send {
    move |rng, number| {
        let unique = || Asked::Set {
            value: ((u64::from(process) << 40) | number).to_string(),
        };
        let of = |sort: &str, number: usize| format!("{sort}{number}");
        let (key, asked) = match rng.random_range(0..100) {
            _ if ledger => (of("lm", number as usize - 1), unique()),
            0..60 => {
                let key = of("mt", rng.random_range(0..PAGES));
                let read = rng.random_bool(0.5);
                (key, if read { Asked::Get } else { unique() })
            }
            60..85 => {
                let key = of("mc", rng.random_range(0..COUNTERS));
                let read = rng.random_bool(0.3);
                (
                    key,
                    if read {
                        Asked::Get
                    } else {
                        Asked::Incr { by: 1 }
                    },
                )
            }
            _ => {
                let key = of("ms", rng.random_range(0..SWAPPED));
                let asked = match (unique(), rng.random_bool(0.5)) {
                    (Asked::Set { value }, true) => Asked::SetNx { value },
                    _ => Asked::Get,
                };
                (key, asked)
            }
        };
        // None once every page of the ledger has been written.
        offset(&key).map(|_| (key, asked))
    }
}

/// The region, as a client of it.
pub struct RegionClient {
    region: Region,
    shared: Arc<Shared>,
}

impl NativeService for RegionClient {
    async fn open(client: Client, shared: &Arc<Shared>) -> anyhow::Result<RegionClient> {
        let region = client.region(REGION).await;
        let region = region.context("cannot open the region")?;
        let shared = shared.clone();
        Ok(RegionClient { region, shared })
    }

    async fn execute(&self, record: &Record) -> Result<Answered, ClientError> {
        let key = &record.key;
        let at = offset(key).expect("a key of this module");
        let whole = key.starts_with("mt") || key.starts_with("lm");
        match &record.asked {
            Asked::Get if whole => {
                let page = self.region.read(at, PAGE).await?;
                Ok(shown(self.uniform(key, &page)))
            }
            Asked::Get => {
                let word = self.region.read(at, 8).await?;
                Ok(shown(word_at(&word, 0)))
            }
            Asked::Set { value } => {
                let page = number(value).to_le_bytes().repeat(PAGE as usize / 8);
                self.region.write(at, page).await?;
                Ok(Answered::Ok)
            }
            Asked::SetNx { value } => {
                let there = self.region.compare_and_swap(at, 0, number(value)).await?;
                Ok(if there == 0 {
                    Answered::Ok
                } else {
                    Answered::Nil
                })
            }
            Asked::Incr { by } => {
                let before = self.region.fetch_add(at, *by as u64).await?;
                Ok(Answered::Int(before as i64 + by))
            }
            other => unreachable!("memory is not asked for {other:?}"),
        }
    }
}

impl RegionClient {
    /// The word of which the page consists; a page of two is a violation by itself.
    fn uniform(&self, key: &str, page: &[u8]) -> u64 {
        let word = word_at(page, 0);
        if let Some(other) = (0..page.len() / 8).find(|i| word_at(page, *i) != word) {
            let (at, second) = (other * 8, word_at(page, other));
            self.shared.complain(format!(
                "page {key} is torn: {word} at its beginning, {second} at byte {at}"
            ));
        }
        word
    }
}

fn word_at(bytes: &[u8], index: usize) -> u64 {
    let word = bytes.get(index * 8..index * 8 + 8);
    word.and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// Zero is what was never written.
fn shown(word: u64) -> Answered {
    match word {
        0 => Answered::Nil,
        word => Answered::Value(word.to_string()),
    }
}

/// Texts of these clients are numbers.
fn number(text: &str) -> u64 {
    text.parse().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_pages_of_the_region_and_no_two_share_one() {
        let sorts = [
            ("mt", PAGES),
            ("mc", COUNTERS),
            ("ms", SWAPPED),
            ("lm", 1000),
        ];
        let keys = sorts
            .iter()
            .flat_map(|(s, n)| (0..*n).map(move |i| format!("{s}{i}")));
        let mut seen = std::collections::BTreeSet::new();
        for key in keys {
            let at = offset(&key).expect("a key");
            assert!(
                at + PAGE <= REGION_BYTES && at.is_multiple_of(PAGE),
                "{key}"
            );
            assert!(seen.insert(at), "{key}");
        }
        for key in ["t1", "l0-7", "mt6", "mt", "lm99999", "mx1", ""] {
            assert!(!is_ours(key), "{key}");
        }
    }
}
