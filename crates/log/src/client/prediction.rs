//! The guess of the next token (row L4): the last one, the tokens per second since, and some more.
//!
//! Too high by n, a client waits for n tokens; too low by n, for a whole turn of the units less n. So a guess that was too low raises the
//! surplus by much, one that was not lowers it by little.

use staves_model::Time;

use crate::types::Position;

/// The share of a new rate in the mean.
const RATE_WEIGHT: f64 = 0.2;
/// The rise of the surplus after a guess that was too low.
const RAISE: f64 = 0.5;
/// Its fall after one that was not.
const LOWER: f64 = 1.0 / 32.0;

/// The tokens that a client has seen, and an estimate of the next.
#[derive(Clone, Debug, Default)]
pub(super) struct TokenPrediction {
    last: Option<(Time, Position)>,
    tokens_per_second: f64,
    surplus: f64,
}

impl TokenPrediction {
    /// A token that was given out, as an answer shows it.
    pub fn observe(&mut self, now: Time, position: Position) {
        let Some((at, last)) = self.last else {
            self.last = Some((now, position));
            return;
        };
        if position <= last {
            return;
        }
        let seconds = now.since(at).as_secs_f64();
        if seconds > 0.0 {
            let rate = (position - last) as f64 / seconds;
            self.tokens_per_second += RATE_WEIGHT * (rate - self.tokens_per_second);
        }
        self.last = Some((now, position));
    }

    /// The outcome of a guess.
    pub fn learn(&mut self, guess: Position, granted: Position, units: usize) {
        let change = match granted > guess {
            true => RAISE,
            false => -LOWER,
        };
        self.surplus = (self.surplus + change).clamp(0.0, units as f64);
    }

    /// The token that a request sent now will get; at least `start`.
    pub fn guess(&self, now: Time, start: Position) -> Position {
        let Some((at, last)) = self.last else {
            return start;
        };
        let passed = self.tokens_per_second * now.since(at).as_secs_f64();
        let ahead = (passed + self.surplus).round() as u64;
        last.saturating_add(1).saturating_add(ahead).max(start)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_the_guess_follows_the_rate_and_a_guess_too_low_raises_it() {
        let mut prediction = TokenPrediction::default();
        assert_eq!(prediction.guess(Time::from_millis(9), 5), 5);
        for ms in 1..=200 {
            prediction.observe(Time::from_millis(ms), ms * 10);
        }
        // Ten tokens a millisecond: after five of them, fifty more.
        let guess = prediction.guess(Time::from_millis(205), 0);
        assert!((2045..=2055).contains(&guess), "{guess}");
        for _ in 0..8 {
            prediction.learn(guess, guess + 1, 4);
        }
        assert_eq!(prediction.guess(Time::from_millis(205), 0), guess + 4);
        for _ in 0..512 {
            prediction.learn(guess, guess, 4);
        }
        assert_eq!(prediction.guess(Time::from_millis(205), 0), guess);
    }
}
