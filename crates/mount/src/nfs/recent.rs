//! A bounded table of the entries that were used last.

use std::collections::HashMap;
use std::hash::Hash;

/// Two generations: what is used comes into the young one; once that is full it is the old one, and what was old is
/// forgotten.
#[derive(Debug)]
pub struct Recent<K, V> {
    young: HashMap<K, Weighed<V>>,
    old: HashMap<K, Weighed<V>>,
    /// The weight of the young ones.
    young_weight: usize,
    each_max: usize,
}

#[derive(Debug)]
struct Weighed<V> {
    value: V,
    weight: usize,
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    /// Remembers entries of this weight together for certain, and of twice as much at most.
    pub fn new(each_max: usize) -> Recent<K, V> {
        Recent {
            young: HashMap::new(),
            old: HashMap::new(),
            young_weight: 0,
            each_max,
        }
    }

    /// Remembers one, of weight 1.
    pub fn put(&mut self, key: K, value: V) {
        self.put_of(key, value, 1);
    }

    /// Remembers one of some weight.
    pub fn put_of(&mut self, key: K, value: V, weight: usize) {
        let former = self.young.remove(&key);
        self.young_weight -= former.map_or(0, |former| former.weight);
        if self.young_weight + weight > self.each_max {
            self.old = std::mem::take(&mut self.young);
            self.young_weight = 0;
        }
        self.young_weight += weight;
        self.young.insert(key, Weighed { value, weight });
    }

    /// One that is remembered.
    pub fn get(&mut self, key: &K) -> Option<V> {
        if let Some(entry) = self.young.get(key) {
            return Some(entry.value.clone());
        }
        let Weighed { value, weight } = self.old.remove(key)?;
        self.put_of(key.clone(), value.clone(), weight);
        Some(value)
    }

    /// All that are remembered, and perhaps an earlier value of some.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        let all = self.young.iter().chain(&self.old);
        all.map(|(key, entry)| (key, &entry.value))
    }

    /// Forgets one.
    pub fn remove(&mut self, key: &K) {
        let former = self.young.remove(key);
        self.young_weight -= former.map_or(0, |former| former.weight);
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

    #[test]
    fn heavy_ones_take_the_place_of_several() {
        let mut recent = Recent::new(100);
        for i in 0..100u32 {
            recent.put(i, i);
        }
        recent.put_of(1000, 0, 60);
        assert!((0..100).all(|i| recent.old.contains_key(&i)));
        recent.put_of(1000, 1, 60);
        assert_eq!(recent.get(&1000), Some(1));
        assert!((60..100).all(|i| recent.get(&i) == Some(i)));
        assert_eq!(recent.young_weight, 100, "the one that weighs 60, and 40");
        recent.remove(&1000);
        assert_eq!(recent.young_weight, 40);
        recent.put_of(1001, 1, 100);
        assert_eq!((recent.young.len(), recent.old.len()), (1, 40));
    }
}
