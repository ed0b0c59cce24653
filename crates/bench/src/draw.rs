//! The order of keys.

use std::fmt;
use std::str::FromStr;

use rand::Rng;
use rand::rngs::SmallRng;

/// The distribution of keys.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Draw {
    /// Each as likely as any other.
    Uniform,
    /// Zipf's law: the key of rank r in proportion to `r^-exponent`.
    Zipf { exponent: f64 },
}

impl FromStr for Draw {
    type Err = String;

    fn from_str(text: &str) -> Result<Draw, String> {
        if text == "uniform" {
            return Ok(Draw::Uniform);
        }
        match text.parse::<f64>() {
            Ok(exponent) if exponent > 0.0 && exponent <= 10.0 => Ok(Draw::Zipf { exponent }),
            _ => Err(format!(
                "'{text}' is no way to draw keys; write uniform, or the exponent of Zipf's law \
                 above 0 and up to 10, for example 0.99"
            )),
        }
    }
}

impl fmt::Display for Draw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Draw::Uniform => f.write_str("uniform"),
            Draw::Zipf { exponent } => write!(f, "zipf {exponent}"),
        }
    }
}

/// Draws keys `0..keys`, the likeliest first. (Where a key lies is by its hash: neighbours are apart.)
#[derive(Clone, Debug)]
pub enum KeyDraw {
    Uniform(u64),
    Zipf(Zipf),
}

impl KeyDraw {
    pub fn new(draw: Draw, keys: u64) -> KeyDraw {
        match draw {
            Draw::Uniform => KeyDraw::Uniform(keys),
            Draw::Zipf { exponent } => KeyDraw::Zipf(Zipf::new(exponent, keys)),
        }
    }

    pub fn draw(&self, rng: &mut SmallRng) -> u64 {
        match self {
            KeyDraw::Uniform(keys) => rng.random_range(0..*keys),
            KeyDraw::Zipf(zipf) => zipf.draw(rng),
        }
    }
}

/// Zipf's law by rejection-inversion (Hörmann and Derflinger, "Rejection-inversion to generate variates
/// from monotone discrete distributions", 1996): no table, and hardly ever a second try.
///
/// The area under `x^-s` from `k - 1/2` to `k + 1/2` is a little more than `k^-s`, since the curve is
/// convex. A point of that area is drawn by inverting its integral, and thrown away if it lies in what is
/// too much; the first rank's part is cut to its exact size, so that it never is.
#[derive(Clone, Debug)]
pub struct Zipf {
    exponent: f64,
    keys: u64,
    /// The integral where the first rank's part begins.
    low: f64,
    /// And where the last one's ends.
    high: f64,
    /// Points at most so far below their rank need no second look.
    sure: f64,
}

impl Zipf {
    fn new(exponent: f64, keys: u64) -> Zipf {
        let mut zipf = Zipf {
            exponent,
            keys,
            low: 0.0,
            high: 0.0,
            sure: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(keys as f64 + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - 2f64.powf(-exponent));
        zipf
    }

    fn draw(&self, rng: &mut SmallRng) -> u64 {
        loop {
            let area = self.high - rng.random::<f64>() * (self.high - self.low);
            let point = self.inverse(area);
            let rank = point.round().clamp(1.0, self.keys as f64);
            if rank - point <= self.sure
                || area >= self.integral(rank + 0.5) - rank.powf(-self.exponent)
            {
                return rank as u64 - 1;
            }
        }
    }

    /// The integral of `x^-s` from 1, in a form that is good near `s = 1` as well.
    fn integral(&self, x: f64) -> f64 {
        let log = x.ln();
        let t = (1.0 - self.exponent) * log;
        if t.abs() < 1e-9 {
            log
        } else {
            log * t.exp_m1() / t
        }
    }

    fn inverse(&self, area: f64) -> f64 {
        let t = ((1.0 - self.exponent) * area).max(-1.0);
        if t.abs() < 1e-9 {
            area.exp()
        } else {
            (area * t.ln_1p() / t).exp()
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn keys_come_as_often_as_the_law_says() {
        const DRAWS: u64 = 200_000;
        let laws = [0.5, 0.99, 1.0, 1.5, 3.0].map(|exponent| Draw::Zipf { exponent });
        for draw in laws.into_iter().chain([Draw::Uniform]) {
            for keys in [2u64, 10, 1000] {
                let weight = |rank: u64| match draw {
                    Draw::Uniform => 1.0,
                    Draw::Zipf { exponent } => (rank as f64).powf(-exponent),
                };
                let total: f64 = (1..=keys).map(weight).sum();
                let drawn = KeyDraw::new(draw, keys);
                let mut rng = SmallRng::seed_from_u64(keys);
                let mut counts = vec![0u64; keys as usize];
                (0..DRAWS).for_each(|_| counts[drawn.draw(&mut rng) as usize] += 1);
                for (key, count) in counts.iter().enumerate() {
                    let share = weight(key as u64 + 1) / total;
                    let expected = share * DRAWS as f64;
                    // Six standard deviations: never by chance.
                    let room = 6.0 * (expected * (1.0 - share)).sqrt() + 6.0;
                    let off = (*count as f64 - expected).abs();
                    assert!(
                        off <= room,
                        "{draw}, {keys} keys: {key} came {count} times, not {expected:.0}"
                    );
                }
            }
        }
    }

    #[test]
    fn ways_to_draw_are_read() {
        assert_eq!("uniform".parse(), Ok(Draw::Uniform));
        assert_eq!("0.99".parse(), Ok(Draw::Zipf { exponent: 0.99 }));
        for bad in ["", "0", "-1", "11", "NaN", "inf", "zipf"] {
            let said = bad.parse::<Draw>().expect_err(bad);
            assert!(said.contains("0.99"), "{said}");
        }
    }
}
