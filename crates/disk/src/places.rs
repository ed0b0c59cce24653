//! The free places of a page file: a bit for each.

use std::ops::Range;

/// FreePlaces of a page file, from 1 on: in place 0 nothing of a page ever stands.
#[derive(Debug)]
pub(crate) struct FreePlaces {
    /// A set bit is a place that a page has, or the journal.
    taken: Vec<u64>,
    /// One that a page has.
    paged: Vec<u64>,
    /// One that records of the journal name.
    journaled: Vec<u64>,
    end: u32,
    /// Those that pages have.
    count: u32,
    used: u32,
    held: u32,
    held_max: u32,
    /// The search for free places goes on here, so that what is written together lies together.
    next: u32,
}

impl FreePlaces {
    /// All places below `end`, free but for the first. The journal has `held_max` of them at most.
    pub(crate) fn new(end: u32, held_max: u32) -> FreePlaces {
        let words = (end as usize).div_ceil(64);
        let mut places = FreePlaces {
            taken: vec![0; words],
            paged: vec![0; words],
            journaled: vec![0; words],
            end,
            count: 0,
            used: 0,
            held: 0,
            held_max,
            next: 1,
        };
        places.taken[0] = 1;
        places
    }

    /// The number of places that pages have.
    pub(crate) fn count(&self) -> u32 {
        self.count
    }

    /// The number that pages may have.
    pub(crate) fn for_pages(&self) -> u32 {
        self.end - 1 - self.held_max
    }

    pub(crate) fn free(&self) -> u32 {
        self.end - 1 - self.used
    }

    /// Places that records of the journal name, and the most that they may.
    pub(crate) fn held(&self) -> (u32, u32) {
        (self.held, self.held_max)
    }

    /// A page has a place from now on, which the journal may have as well. False if there is no such place, or if another page has it.
    #[must_use]
    pub(crate) fn claim(&mut self, place: u32) -> bool {
        let is_free = place > 0 && place < self.end && !bit(&self.paged, place);
        if is_free {
            self.set(place);
        }
        is_free
    }

    /// The journal has a place from now on, which a page may have as well. False if there is no such place, or if the journal has it already.
    #[must_use]
    pub(crate) fn hold(&mut self, place: u32) -> bool {
        let is_free = place > 0 && place < self.end && !bit(&self.journaled, place);
        if is_free {
            self.used += u32::from(!self.is_taken(place));
            self.held += 1;
            put(&mut self.journaled, place);
            put(&mut self.taken, place);
        }
        is_free
    }

    /// So many places for the journal, in runs, if it may have as many more.
    pub(crate) fn take_for_journal(&mut self, wanted: u32) -> Option<Vec<Range<u32>>> {
        if self.held + wanted > self.held_max {
            return None;
        }
        self.take_as(wanted, |places, place| {
            let is_held = places.hold(place);
            debug_assert!(is_held, "a free place is nobody's");
        })
    }

    /// The journal has a place no more.
    pub(crate) fn release(&mut self, place: u32) {
        assert!(bit(&self.journaled, place), "place {place} is not held");
        clear(&mut self.journaled, place);
        self.held -= 1;
        if !bit(&self.paged, place) {
            clear(&mut self.taken, place);
            self.used -= 1;
        }
    }

    /// Takes so many places, in runs that are as long as can be found without a long search. `None` if there are not so many, and
    /// nothing is taken.
    pub(crate) fn take(&mut self, wanted: u32) -> Option<Vec<Range<u32>>> {
        self.take_as(wanted, FreePlaces::set)
    }

    fn take_as(
        &mut self,
        mut wanted: u32,
        mark: impl Fn(&mut FreePlaces, u32),
    ) -> Option<Vec<Range<u32>>> {
        if wanted > self.free() {
            return None;
        }
        let mut runs: Vec<Range<u32>> = Vec::new();
        while wanted > 0 {
            let first = self.next_free();
            let mut last = first;
            while last < self.end && last - first < wanted && !self.is_taken(last) {
                mark(self, last);
                last += 1;
            }
            wanted -= last - first;
            self.next = last;
            runs.push(first..last);
        }
        Some(runs)
    }

    pub(crate) fn give(&mut self, place: u32) {
        let is_paged = place > 0 && bit(&self.paged, place);
        assert!(is_paged, "no page has place {place}");
        clear(&mut self.paged, place);
        self.count -= 1;
        if !bit(&self.journaled, place) {
            clear(&mut self.taken, place);
            self.used -= 1;
        }
    }

    fn is_taken(&self, place: u32) -> bool {
        bit(&self.taken, place)
    }

    fn set(&mut self, place: u32) {
        self.used += u32::from(!self.is_taken(place));
        self.count += 1;
        put(&mut self.paged, place);
        put(&mut self.taken, place);
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

fn bit(words: &[u64], place: u32) -> bool {
    words[place as usize / 64] & (1 << (place % 64)) != 0
}

fn put(words: &mut [u64], place: u32) {
    words[place as usize / 64] |= 1 << (place % 64);
}

fn clear(words: &mut [u64], place: u32) {
    words[place as usize / 64] &= !(1 << (place % 64));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_taken_in_runs_and_once() {
        let mut places = FreePlaces::new(200, 0);
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
        let mut places = FreePlaces::new(65, 0);
        assert!(places.claim(64) && !places.claim(64));
        assert!(!places.claim(0) && !places.claim(65) && !places.claim(u32::MAX));
        assert_eq!(places.count(), 1);
    }

    #[test]
    fn a_place_is_free_when_neither_a_page_nor_the_journal_has_it() {
        let mut places = FreePlaces::new(65, 10);
        let taken = places.take_for_journal(8);
        let run = taken.as_deref().and_then(<[_]>::first);
        assert_eq!(run, Some(&(1..9)));
        assert_eq!((places.take_for_journal(3), places.held()), (None, (8, 10)));
        assert!(!places.hold(3) && !places.hold(0) && !places.hold(65));
        assert!(places.claim(3) && !places.claim(3), "of one page");
        assert_eq!((places.free(), places.count()), (56, 1));
        places.release(3);
        assert_eq!(places.take(57), None, "the page has it yet");
        places.give(3);
        assert_eq!((places.free(), places.held().0), (57, 7));
        assert!(places.claim(4));
        places.give(4);
        assert_eq!(places.free(), 57, "the journal has it yet");
        places.release(4);
        assert_eq!((places.free(), places.count()), (58, 0));
    }
}
