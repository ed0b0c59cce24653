//! A set of pages: a bit for each.

/// Numbers of pages, in order.
#[derive(Clone, Default, Debug)]
pub(crate) struct PageSet {
    words: Vec<u64>,
    count: u32,
    /// No page below this word is in it.
    from: usize,
}

impl PageSet {
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn contains(&self, page: u32) -> bool {
        let word = self.words.get(page as usize / 64);
        word.is_some_and(|word| word & (1 << (page % 64)) != 0)
    }

    /// The number of pages in it.
    pub fn len(&self) -> u32 {
        self.count
    }

    pub fn insert(&mut self, page: u32) {
        let (word, bit) = (page as usize / 64, 1 << (page % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        if self.words[word] & bit == 0 {
            self.words[word] |= bit;
            self.count += 1;
            self.from = self.from.min(word);
        }
    }

    /// Takes the lowest page out.
    pub fn pop(&mut self) -> Option<u32> {
        if self.count == 0 {
            return None;
        }
        let words = self.words[self.from..].iter();
        self.from += words.take_while(|word| **word == 0).count();
        let word = self.words.get_mut(self.from)?;
        let bit = word.trailing_zeros();
        *word &= *word - 1;
        self.count -= 1;
        Some(self.from as u32 * 64 + bit)
    }

    /// Adds all of another's.
    pub fn add(&mut self, mut other: PageSet) {
        while let Some(page) = other.pop() {
            self.insert(page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_out_once_and_in_order() {
        let mut set = PageSet::default();
        assert_eq!((set.pop(), set.is_empty()), (None, true));
        for page in [700, 3, 64, 3, 0, 63] {
            set.insert(page);
        }
        assert_eq!(set.len(), 5);
        assert_eq!((set.pop(), set.pop()), (Some(0), Some(3)));
        set.insert(1);
        let mut other = PageSet::default();
        other.insert(64);
        other.insert(65);
        set.add(other);
        let rest: Vec<u32> = std::iter::from_fn(|| set.pop()).collect();
        assert_eq!((rest, set.len()), (vec![1, 63, 64, 65, 700], 0));
    }
}
