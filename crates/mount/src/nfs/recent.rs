//! A bounded table of the entries that were used last.

use std::collections::HashMap;
use std::hash::Hash;

/// Two generations: what is used comes into the young one; once that is full it is the old one, and what was old is
/// forgotten.
#[derive(Debug)]
pub struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    each_max: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    /// Remembers so many for certain, and twice as many at most.
    pub fn new(each_max: usize) -> Recent<K, V> {
        Recent {
            young: HashMap::new(),
            old: HashMap::new(),
            each_max,
        }
    }

    /// Remembers one.
    pub fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.each_max && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, value);
    }

    /// One that is remembered.
    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.young.get(key) {
            return Some(value.clone());
        }
        let value = self.old.remove(key)?;
        self.put(key.clone(), value.clone());
        Some(value)
    }

    /// Forgets one.
    pub fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_used_stays_and_no_more_than_twice_as_many() {
        let mut recent = Recent::new(10);
        for i in 0..1000u32 {
            recent.put(i, i);
            assert_eq!(recent.get(&0), Some(0), "{i}");
            assert!(recent.young.len() + recent.old.len() <= 20);
            for near in i.saturating_sub(4)..=i {
                assert_eq!(recent.get(&near), Some(near));
            }
        }
        assert_eq!(recent.get(&900), None);
        recent.remove(&0);
        assert_eq!(recent.get(&0), None);
    }
}
