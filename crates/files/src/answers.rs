//! The last answers about paths: so many of them, and of more the latest.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Answers by path. One that comes on top of all that may be kept takes the place of the oldest.
#[derive(Debug)]
pub struct Answers<T> {
    by_path: HashMap<Arc<[u8]>, DatedAnswer<T>>,
    /// By their turn, the oldest first.
    by_age: BTreeMap<u64, Arc<[u8]>>,
    turn: u64,
    names: usize,
    names_max: usize,
}

/// An answer, with its time.
#[derive(Debug)]
pub struct DatedAnswer<T> {
    pub at: Instant,
    pub value: T,
    names: usize,
    turn: u64,
}

impl<T> Answers<T> {
    /// None yet, and at most of so many names together.
    pub fn new(names_max: usize) -> Answers<T> {
        Answers {
            by_path: HashMap::new(),
            by_age: BTreeMap::new(),
            turn: 0,
            names: 0,
            names_max,
        }
    }

    /// Records an answer that tells of so many names. One of more names than may be kept at all only ends the earlier one.
    pub fn insert(&mut self, path: &[u8], value: T, names: usize) {
        self.remove(path);
        if names > self.names_max {
            return;
        }
        while self.names + names > self.names_max
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            let gone = self.by_path.remove(&*oldest);
            self.names -= gone.map_or(0, |gone| gone.names);
        }
        self.turn += 1;
        let path: Arc<[u8]> = path.into();
        let answer = DatedAnswer {
            at: Instant::now(),
            value,
            names,
            turn: self.turn,
        };
        self.names += names;
        self.by_age.insert(self.turn, path.clone());
        self.by_path.insert(path, answer);
    }

    /// Ends what is known of a path.
    pub fn remove(&mut self, path: &[u8]) {
        if let Some(former) = self.by_path.remove(path) {
            self.by_age.remove(&former.turn);
            self.names -= former.names;
        }
    }

    /// The last answer for a path.
    pub fn get(&self, path: &[u8]) -> Option<&DatedAnswer<T>> {
        self.by_path.get(path)
    }

    /// The same, to be changed where it is.
    pub fn get_mut(&mut self, path: &[u8]) -> Option<&mut DatedAnswer<T>> {
        self.by_path.get_mut(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: one name too many, and all were forgotten.
    #[test]
    fn the_oldest_goes_and_no_other() {
        let mut answers = Answers::new(10);
        let known = |answers: &Answers<usize>| -> Vec<usize> {
            let all = (0..100).filter(|i| answers.get(format!("{i}").as_bytes()).is_some());
            all.collect()
        };
        for i in 0..15 {
            answers.insert(format!("{i}").as_bytes(), i, 1);
        }
        assert_eq!(known(&answers), (5..15).collect::<Vec<_>>());
        // An answer that is given anew is a new one.
        answers.insert(b"5", 55, 1);
        answers.insert(b"20", 20, 3);
        assert_eq!(known(&answers), [5, 9, 10, 11, 12, 13, 14, 20]);
        assert_eq!(answers.get(b"5").map(|answer| answer.value), Some(55));
        answers.insert(b"20", 20, 11);
        assert_eq!(known(&answers), [5, 9, 10, 11, 12, 13, 14], "too many");
        answers.insert(b"21", 21, 10);
        assert_eq!((known(&answers), answers.by_age.len()), (vec![21], 1));
        answers.remove(b"21");
        assert_eq!((answers.names, answers.by_age.len()), (0, 0));
    }
}
