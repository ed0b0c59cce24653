//! Values under small numbers that are used again: the tokens of requests that wait.

/// Values by token. A token is free again once its value was taken.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u64>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }
}

impl<T> Slab<T> {
    /// The token that the next value will get.
    #[inline]
    pub(crate) fn next_token(&self) -> u64 {
        self.free.last().copied().unwrap_or(self.slots.len() as u64)
    }

    /// Keeps a value.
    pub(crate) fn insert(&mut self, value: T) -> u64 {
        match self.free.pop() {
            Some(token) => {
                self.slots[token as usize] = Some(value);
                token
            }
            None => {
                self.slots.push(Some(value));
                self.slots.len() as u64 - 1
            }
        }
    }

    /// Takes a value out.
    pub(crate) fn take(&mut self, token: u64) -> Option<T> {
        let value = self.slots.get_mut(token as usize)?.take()?;
        self.free.push(token);
        Some(value)
    }

    /// Takes all values out.
    pub(crate) fn drain(&mut self) -> Vec<T> {
        self.free.clear();
        std::mem::take(&mut self.slots)
            .into_iter()
            .flatten()
            .collect()
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_used_again_and_never_twice_at_once() {
        let mut slab = Slab::default();
        assert_eq!(slab.next_token(), 0);
        let (a, b) = (slab.insert('a'), slab.insert('b'));
        assert_eq!((a, b, slab.len()), (0, 1, 2));
        assert_eq!(slab.take(a), Some('a'));
        assert_eq!((slab.take(a), slab.take(9)), (None, None));
        assert_eq!(slab.next_token(), a);
        assert_eq!(slab.insert('c'), a);
        assert_eq!(slab.drain(), vec!['c', 'b']);
        assert_eq!((slab.len(), slab.next_token()), (0, 0));
    }
}
