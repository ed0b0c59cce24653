//! Outages of a source, as one process sees them.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// The age that an answer about a name may have when an outage begins, to be used while it lasts.
pub const ANSWER_AGE_MAX: Duration = Duration::from_secs(300);
/// The length of an outage after which earlier answers count no more.
pub const OUTAGE_MAX: Duration = Duration::from_secs(900);

/// The time in which a source gives no answer at all.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outage {
    /// The last sign of life, or the first question without an answer.
    pub since: Instant,
    /// The reason in the words of the last error.
    pub why: String,
    /// True if this process had an answer of the source before.
    pub was_reached: bool,
}

impl Outage {
    /// True if an earlier answer about a name still counts.
    pub(crate) fn admits(&self, answered: Instant) -> bool {
        self.since.saturating_duration_since(answered) < ANSWER_AGE_MAX
            && self.since.elapsed() < OUTAGE_MAX
    }
}

/// The record of a source's answers.
#[derive(Debug, Default)]
pub(crate) struct Availability(Mutex<LastAnswer>);

#[derive(Debug, Default)]
struct LastAnswer {
    answered: Option<Instant>,
    outage: Option<Outage>,
}

impl Availability {
    /// Records an answer, whatever it says.
    pub(crate) fn answered(&self) {
        let mut state = self.0.lock();
        state.answered = Some(Instant::now());
        state.outage = None;
    }

    /// Records that the source has given no answer to a question of that time. That is no outage where it has answered others since.
    pub(crate) fn unanswered(&self, asked: Instant, why: String) -> Option<Outage> {
        let mut state = self.0.lock();
        if state.answered.is_some_and(|answered| answered > asked) {
            return None;
        }
        let (was_reached, known) = (state.answered.is_some(), state.outage.take());
        let since = known.map_or(asked, |outage| outage.since);
        let outage = Outage {
            since,
            why,
            was_reached,
        };
        state.outage = Some(outage.clone());
        Some(outage)
    }

    /// The present outage, as far as was asked.
    pub(crate) fn outage(&self) -> Option<Outage> {
        self.0.lock().outage.clone()
    }

    /// True if the source has answered within a time.
    pub(crate) fn answered_within(&self, time: Duration) -> bool {
        let answered = self.0.lock().answered;
        answered.is_some_and(|at| at.elapsed() < time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_lasts_from_the_first_question_without_an_answer_to_the_next_answer() {
        let (source, first) = (Availability::default(), Instant::now());
        let fails = |why: &str| source.unanswered(Instant::now(), why.into());
        let gone = source.unanswered(first, "gone".into());
        assert!(!gone.expect("an outage").was_reached);
        assert_eq!(fails("still gone").expect("an outage").since, first);
        assert_eq!(source.outage().expect("an outage").why, "still gone");
        source.answered();
        assert_eq!(source.outage(), None);
        let late = source.unanswered(first, "one name takes long".into());
        assert_eq!((late, source.outage()), (None, None));
        let again = fails("gone again").expect("an outage");
        assert!(again.was_reached && again.since > first);
    }

    #[test]
    fn answers_count_by_their_age_at_its_beginning_and_for_so_long() {
        let ago = |time: Duration| Instant::now().checked_sub(time).expect("a running machine");
        let second = Duration::from_secs(1);
        let outage = |since| Outage {
            since,
            why: String::new(),
            was_reached: true,
        };
        let long = outage(ago(OUTAGE_MAX - 10 * second));
        assert!(long.admits(long.since - ANSWER_AGE_MAX + second));
        assert!(!long.admits(long.since - ANSWER_AGE_MAX));
        assert!(long.admits(Instant::now()), "an answer meanwhile");
        assert!(!outage(ago(OUTAGE_MAX)).admits(Instant::now()));
    }
}
