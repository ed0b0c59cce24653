//! The content of a folder. A folder of a million names is held as a whole while a program has it open, so each takes as little as may be:
//! its own bytes and one entry of a table, and none of them an allocation of its own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::files::Stat;

/// Names, and what is known of each; in the order in which they came.
#[derive(Clone, Default, Debug)]
pub struct Listing {
    /// All names, one after the other.
    names: Vec<u8>,
    /// The end of each name.
    entries: Vec<(usize, Stat)>,
}

impl Listing {
    /// One more.
    pub fn push(&mut self, name: &OsStr, stat: Stat) {
        self.names.extend_from_slice(name.as_bytes());
        self.entries.push((self.names.len(), stat));
    }

    /// The number of names.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// One of them.
    pub fn get(&self, at: usize) -> Option<(&OsStr, &Stat)> {
        let (end, stat) = self.entries.get(at)?;
        let start = at.checked_sub(1).map_or(0, |before| self.entries[before].0);
        Some((OsStr::from_bytes(&self.names[start..*end]), stat))
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&OsStr, &Stat)> {
        (0..self.len()).filter_map(|at| self.get(at))
    }
}

impl FromIterator<(OsString, Stat)> for Listing {
    fn from_iter<I: IntoIterator<Item = (OsString, Stat)>>(all: I) -> Listing {
        let mut listing = Listing::default();
        for (name, stat) in all {
            listing.push(&name, stat);
        }
        listing
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;
    use crate::files::{Kind, Version};

    fn stat(size: u64) -> Stat {
        Stat {
            kind: Kind::File,
            size,
            modified: SystemTime::UNIX_EPOCH,
            mode: 0o444,
            version: Version([size, 0]),
            fresh: false,
            has_holes: false,
            links: 1,
        }
    }

    #[test]
    fn names_come_back_as_they_came() {
        let names = [&b"a"[..], b"", b"odd \xff name", b"a"].map(OsStr::from_bytes);
        let all = names.into_iter().zip(0..);
        let all: Listing = all.map(|(n, at)| (n.to_owned(), stat(at))).collect();
        assert_eq!(all.len(), 4);
        let back: Vec<(&OsStr, u64)> = all.iter().map(|(n, s)| (n, s.size)).collect();
        assert_eq!(back, names.into_iter().zip(0..).collect::<Vec<_>>());
        assert_eq!(all.get(4), None);
        assert!(Listing::default().is_empty() && Listing::default().get(0).is_none());
    }

    /// A million names of usual length take a hundred bytes each.
    #[test]
    fn a_name_takes_little_beside_its_bytes() {
        let entry = size_of::<(usize, Stat)>();
        assert!(entry <= 80, "{entry} bytes");
    }
}
