//! The bounds of an append.

use crate::message::Records;
use crate::types::{AppendMode, BATCH_RECORDS_MAX, RECORD_BYTES_MAX, TAGS_MAX};

/// A bound that an append breaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AppendBound {
    /// It has no records, or too many.
    #[error("an append of {count} records: this log takes 1 to {most} at a time")]
    Records {
        /// Its records.
        count: u32,
        /// The most.
        most: u32,
    },
    /// A record is too long.
    #[error("a record of {len} bytes: one has {RECORD_BYTES_MAX} at most; split it")]
    RecordBytes {
        /// Its bytes.
        len: u32,
    },
    /// The lengths of its records are not those of its bytes.
    #[error("the records of an append have {sum} bytes by their lengths, and {len} came with them")]
    Lengths {
        /// The sum of the lengths.
        sum: u64,
        /// The bytes.
        len: u64,
    },
    /// It has too many tags.
    #[error("an append with {count} tags: it has {TAGS_MAX} at most; leave some out")]
    Tags {
        /// Its tags.
        count: usize,
    },
    /// It has a tag twice.
    #[error("an append with tag {tag} twice: give each tag once")]
    TagTwice {
        /// The tag.
        tag: u64,
    },
}

impl AppendBound {
    /// Checks an append to a log of this mode.
    pub(super) fn check(
        mode: AppendMode,
        records: &Records,
        tags: &[u64],
    ) -> Result<(), AppendBound> {
        let most = match mode {
            AppendMode::Bind => BATCH_RECORDS_MAX,
            AppendMode::Predict | AppendMode::Corfu => 1,
        };
        let count = records.count();
        if !(1..=most).contains(&count) {
            return Err(AppendBound::Records { count, most });
        }
        let longest = records.lens.iter().copied().max().unwrap_or(0);
        if longest > RECORD_BYTES_MAX {
            return Err(AppendBound::RecordBytes { len: longest });
        }
        let sum: u64 = records.lens.iter().map(|len| u64::from(*len)).sum();
        let len = records.bytes.len() as u64;
        if sum != len {
            return Err(AppendBound::Lengths { sum, len });
        }
        let count = tags.len();
        if count > TAGS_MAX {
            return Err(AppendBound::Tags { count });
        }
        match (1..count).find(|i| tags[..*i].contains(&tags[*i])) {
            Some(i) => Err(AppendBound::TagTwice { tag: tags[i] }),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    /// Regression: one text named all bounds, and among them 16 MiB where an append has 1 MiB.
    #[test]
    fn the_bound_that_is_broken_is_named() {
        let records = |lens: &[u32]| Records {
            lens: lens.to_vec(),
            bytes: Bytes::from(vec![0; lens.iter().map(|len| *len as usize).sum()]),
        };
        let bind = |records: &Records, tags: &[u64]| {
            AppendBound::check(AppendMode::Bind, records, tags).expect_err("a bound")
        };
        let (none, one) = (records(&[]), records(&[1]));
        let most = BATCH_RECORDS_MAX;
        assert_eq!(bind(&none, &[]), AppendBound::Records { count: 0, most });
        let many = records(&vec![0; most as usize + 1]);
        let count = most + 1;
        assert_eq!(bind(&many, &[]), AppendBound::Records { count, most });
        let two = AppendBound::check(AppendMode::Corfu, &records(&[1, 1]), &[]);
        assert_eq!(two, Err(AppendBound::Records { count: 2, most: 1 }));
        let len = RECORD_BYTES_MAX + 1;
        assert_eq!(
            bind(&records(&[len]), &[]),
            AppendBound::RecordBytes { len }
        );
        let short = Records {
            lens: vec![2],
            ..one.clone()
        };
        assert_eq!(bind(&short, &[]), AppendBound::Lengths { sum: 2, len: 1 });
        let nine: Vec<u64> = (0..9).collect();
        assert_eq!(bind(&one, &nine), AppendBound::Tags { count: 9 });
        let twice = bind(&one, &[7, 8, 7]);
        assert_eq!(twice, AppendBound::TagTwice { tag: 7 });
        assert!(!twice.to_string().contains("MiB"), "{twice}");
        let eight = AppendBound::check(AppendMode::Bind, &one, &nine[..8]);
        assert_eq!(eight, Ok(()));
    }
}
