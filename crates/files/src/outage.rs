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
    /// One of which no more is known yet.
    pub(crate) fn that_begins(since: Instant) -> Outage {
        Outage {
            since,
            why: String::new(),
            was_reached: true,
        }
    }

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
    /// Records an answer of the source itself, whatever it says.
    pub(crate) fn answered(&self) {
        let mut state = self.0.lock();
        state.answered = Some(Instant::now());
        state.outage = None;
    }

    /// Records that a question of that time has no answer, unless the source has answered others since: one name may take long. What it
    /// said of that name before counts as in an outage.
    pub(crate) fn unanswered_alone(&self, asked: Instant, why: String) -> Outage {
        let answered = self.0.lock().answered;
        if answered.is_none_or(|answered| answered <= asked) {
            return self.unanswered(asked, why);
        }
        Outage {
            since: asked,
            why,
            was_reached: true,
        }
    }

    /// Records that the source has given no answer to a question of that time, nor to any later one.
    pub(crate) fn unanswered(&self, asked: Instant, why: String) -> Outage {
        let mut state = self.0.lock();
        let (was_reached, known) = (state.answered.is_some(), state.outage.take());
        let since = known.map_or(asked, |outage| outage.since);
        let outage = Outage {
            since,
            why,
            was_reached,
        };
        state.outage = Some(outage.clone());
        outage
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
        assert!(!source.unanswered(first, "gone".into()).was_reached);
        assert_eq!(fails("still gone").since, first);
        assert_eq!(source.outage().expect("an outage").why, "still gone");
        source.answered();
        assert_eq!(source.outage(), None);
        let again = fails("gone again");
        assert!(again.was_reached && again.since > first);
    }

    #[test]
    fn one_name_that_takes_long_is_no_outage_while_others_are_answered() {
        let source = Availability::default();
        source.answered();
        let asked = Instant::now();
        let late = |asked| source.unanswered_alone(asked, "late".into());
        assert_eq!(
            (late(asked).since, source.outage().is_some()),
            (asked, true)
        );
        source.answered();
        assert_eq!((late(asked).since, source.outage()), (asked, None));
        late(Instant::now());
        assert!(source.outage().is_some(), "nothing since it was asked");
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
