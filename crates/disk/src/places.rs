//! The free places of a page file: a bit for each.

use std::ops::Range;

/// FreePlaces of a page file, from 1 on: in place 0 nothing of a page ever stands.
#[derive(Debug)]
pub(crate) struct FreePlaces {
    /// A set bit is a place that is taken.
    taken: Vec<u64>,
    end: u32,
    count: u32,
    /// The search for free places goes on here, so that what is written together lies together.
    next: u32,
}

impl FreePlaces {
    /// All places below `end`, free but for the first.
    pub(crate) fn new(end: u32) -> FreePlaces {
        let mut places = FreePlaces {
            taken: vec![0; (end as usize).div_ceil(64)],
            end,
            count: 0,
            next: 1,
        };
        places.set(0);
        places.count = 0;
        places
    }

    /// The number of places that pages have.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn free(&self) -> u32 {
        self.end - 1 - self.count
    }

    /// Marks a place that is known to be taken. False if there is no such place, or if it was taken already.
    #[must_use]
    pub(crate) fn claim(&mut self, place: u32) -> bool {
        let is_free = place < self.end && !self.is_taken(place);
        if is_free {
            self.set(place);
        }
        is_free
    }

    /// Takes so many places, in runs that are as long as can be found without a long search. `None` if there are not so many, and
    /// nothing is taken.
    pub(crate) fn take(&mut self, mut wanted: u32) -> Option<Vec<Range<u32>>> {
        if wanted > self.free() {
            return None;
        }
        let mut runs: Vec<Range<u32>> = Vec::new();
        while wanted > 0 {
            let first = self.next_free();
            let mut last = first;
            while last < self.end && last - first < wanted && !self.is_taken(last) {
                self.set(last);
                last += 1;
            }
            wanted -= last - first;
            self.next = last;
            runs.push(first..last);
        }
        Some(runs)
    }

    pub(crate) fn give(&mut self, place: u32) {
        assert!(place > 0 && self.is_taken(place), "place {place} is free");
        self.taken[place as usize / 64] &= !(1 << (place % 64));
        self.count -= 1;
    }

    fn is_taken(&self, place: u32) -> bool {
        self.taken[place as usize / 64] & (1 << (place % 64)) != 0
    }

    fn set(&mut self, place: u32) {
        self.taken[place as usize / 64] |= 1 << (place % 64);
        self.count += 1;
    }

    /// The next free place, around the end. There is one.
    fn next_free(&self) -> u32 {
        let mut at = if self.next < self.end { self.next } else { 1 };
        loop {
            let free = !self.taken[at as usize / 64] >> (at % 64);
            let found = at + free.trailing_zeros();
            if free != 0 && found < self.end {
                return found;
            }
            at = (at / 64 + 1) * 64;
            if at >= self.end {
                at = 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_in_runs_and_once() {
        let mut places = FreePlaces::new(200);
        assert_eq!((places.free(), places.count()), (199, 0));
        let one_run = |run| Some(Vec::from([run]));
        assert_eq!(places.take(100), one_run(1..101));
        for place in (1..101).step_by(2) {
            places.give(place);
        }
        assert_eq!(places.take(99), one_run(101..200), "they go on");
        let rest = places.take(50).expect("as many are free");
        assert_eq!((rest.len(), rest[0].clone(), places.free()), (50, 1..2, 0));
        assert_eq!(places.take(1), None);
        places.give(150);
        assert_eq!(places.take(2), None, "all or none");
        assert_eq!(places.take(1), one_run(150..151));
        assert_eq!(places.take(0), Some(vec![]));
    }

    #[test]
    fn a_place_is_claimed_once_and_never_the_first() {
        let mut places = FreePlaces::new(65);
        assert!(places.claim(64) && !places.claim(64));
        assert!(!places.claim(0) && !places.claim(65) && !places.claim(u32::MAX));
        assert_eq!(places.count(), 1);
    }
}
