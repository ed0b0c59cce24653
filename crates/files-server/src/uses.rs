//! The users of each dataset: mounts report themselves now and then, so that a drop under a running program is announced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_wire::cut_text;

use crate::facts::{AwayFacts, UseFacts};

/// A mount that has been silent for so long is gone; they speak every few seconds.
const SILENT_MAX: Duration = Duration::from_secs(20);
/// Most that are remembered.
const USES_MAX: usize = 256;
/// Longest text that is kept of each kind, in bytes; what is longer is cut. Every dataset's name fits.
const TEXT_BYTES_MAX: usize = 256;

/// Makes somebody's words fit to be kept and shown: they go to people's terminals, which control characters command.
pub(crate) fn make_plain(text: &mut String) {
    text.retain(|c| !c.is_control());
    cut_text(text, TEXT_BYTES_MAX);
    // A text that was cut has the memory of all of it.
    text.shrink_to_fit();
}

/// The mounts that reported recently.
#[derive(Default)]
pub struct Uses(Mutex<BTreeMap<UseFacts, LastUse>>);

/// The last report of a mount.
struct LastUse {
    at: Instant,
    /// The length of the source's outage then, and its last error.
    away: Option<(Duration, String)>,
}

impl Uses {
    /// A mount reports its use of a dataset, and the outage of its source, if there is one: its length until now and the last error.
    pub fn told(&self, mut dataset: String, mut by: String, mut away: Option<(Duration, String)>) {
        let why = away.as_mut().map(|(_, why)| why);
        [&mut dataset, &mut by]
            .into_iter()
            .chain(why)
            .for_each(make_plain);
        let mut all = self.0.lock();
        all.retain(|_, last| last.at.elapsed() < SILENT_MAX);
        let one = UseFacts { dataset, by };
        if all.len() < USES_MAX || all.contains_key(&one) {
            let at = Instant::now();
            all.insert(one, LastUse { at, away });
        }
    }

    /// The mounts that reported lately.
    pub fn list(&self) -> Vec<UseFacts> {
        let all = self.0.lock();
        let lately = all
            .iter()
            .filter(|(_, last)| last.at.elapsed() < SILENT_MAX);
        lately.map(|(one, _)| one.clone()).collect()
    }

    /// The mounts that reported lately that a source is away.
    pub fn away(&self) -> Vec<AwayFacts> {
        let all = self.0.lock();
        let lately = all
            .iter()
            .filter(|(_, last)| last.at.elapsed() < SILENT_MAX);
        let away = lately.filter_map(|(one, last)| {
            let (length, why) = last.away.as_ref()?;
            let length = length.saturating_add(last.at.elapsed());
            Some(AwayFacts {
                dataset: one.dataset.clone(),
                by: one.by.clone(),
                for_ms: u64::try_from(length.as_millis()).unwrap_or(u64::MAX),
                why: why.clone(),
            })
        });
        away.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_uses_a_dataset_is_told_once_and_they_are_bounded() {
        let uses = Uses::default();
        for _ in 0..3 {
            uses.told("genomes".into(), "lab1:/mnt".into(), None);
        }
        let (dataset, by) = ("genomes".to_owned(), "lab1:/mnt".to_owned());
        assert_eq!(uses.list(), [UseFacts { dataset, by }]);
        for i in 0..1000 {
            uses.told("genomes".into(), format!("lab{i}:/mnt"), None);
        }
        assert_eq!(uses.list().len(), USES_MAX);
    }

    #[test]
    fn a_mount_says_that_a_source_is_away_and_that_it_is_back() {
        let uses = Uses::default();
        let told = |away| uses.told("genomes".into(), "lab1:/mnt".into(), away);
        told(Some((Duration::from_secs(7), "it hangs".into())));
        let away = uses.away();
        assert_eq!(away.len(), 1, "{away:?}");
        assert!(away[0].for_ms >= 7000 && away[0].why == "it hangs");
        assert_eq!(uses.list().len(), 1, "it is in use as well");
        told(Some((Duration::MAX, "since ever".into())));
        assert_eq!(uses.away()[0].for_ms, u64::MAX);
        told(None);
        assert_eq!(uses.away(), []);
    }

    /// Regression: each was six bytes of the status, and a command to the terminal that showed it.
    #[test]
    fn control_characters_are_let_go() {
        let uses = Uses::default();
        let red = |text: &str| format!("\u{1b}[31m{text}\r\n\u{9b}");
        let hour = Duration::from_secs(3600);
        uses.told(red("genomes"), red("lab1:/mnt"), Some((hour, red("gone"))));
        let [away] = &uses.away()[..] else {
            panic!("one source is away")
        };
        let shown = [&away.dataset, &away.by, &away.why];
        assert_eq!(shown, ["[31mgenomes", "[31mlab1:/mnt", "[31mgone"]);
    }

    /// Regression: each report kept three texts of 64 KiB, however little was to be seen of them.
    #[test]
    fn a_text_that_is_cut_takes_no_more_memory_than_it_has_bytes() {
        let mut text = "x".repeat(1 << 20);
        make_plain(&mut text);
        assert!(text.capacity() <= 2 * TEXT_BYTES_MAX);
    }

    #[test]
    fn texts_of_any_length_are_cut_and_the_report_is_kept() {
        let uses = Uses::default();
        let long = || "é".repeat(5000);
        let hour = Duration::from_secs(3600);
        uses.told(long(), long(), Some((hour, long())));
        let cut = "é".repeat(TEXT_BYTES_MAX / 2);
        let [away] = &uses.away()[..] else {
            panic!("one source is away")
        };
        assert_eq!([&away.dataset, &away.by, &away.why], [&cut; 3]);
        uses.told("genomes".into(), format!("x{}", long()), None);
        let by = |one: &UseFacts| one.by.len() == TEXT_BYTES_MAX - 1;
        assert!(uses.list().iter().any(by), "cut between two letters");
    }
}
