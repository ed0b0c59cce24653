//! Updates with m > 1: a delta is the XOR of old and new bytes (row H2).

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use staves_model::PAGE_BYTES;
use staves_store::EXTENT_BYTES;
use staves_wire::group::{Run, RunKind};

use crate::state::MemberState;
use crate::table::touched;

impl MemberState {
    /// The bytes that an update puts, as the sums that it adds.
    pub fn as_sums(&self, runs: Vec<Run>, new: Bytes) -> (Vec<Run>, Bytes) {
        let pages = self.table.pages();
        let end = u64::from(self.granted()) * EXTENT_BYTES as u64;
        assert!(
            runs.iter().all(|r| r.offset + u64::from(r.len) <= end),
            "with m > 1 an update ends below usable_extents(), here {end} bytes: parity has the extents of \
             all data buckets at the same places"
        );
        if runs.iter().any(|r| r.kind == RunKind::Zero) {
            return self.as_sums_of_pages(&runs, &new);
        }
        let untouched = |r: &Run| {
            let page = PAGE_BYTES as u64;
            touched(std::slice::from_ref(r)).all(|p| !pages.exists(u64::from(p) * page))
        };
        if runs.iter().all(untouched) {
            return (runs, new);
        }
        let mut sums = Vec::with_capacity(new.len());
        for run in &runs {
            pages.read_into(run.offset, run.len as usize, &mut sums);
        }
        for (sum, new) in sums.iter_mut().zip(&new) {
            *sum ^= new;
        }
        (runs, sums.into())
    }

    // An update that frees: page by page, what differs between what the page is and what it becomes. Pages
    // that stay as they are, free ones above all, need no bytes.
    fn as_sums_of_pages(&self, runs: &[Run], new: &[u8]) -> (Vec<Run>, Bytes) {
        let page_bytes = PAGE_BYTES as u64;
        let old = |page: u32| {
            let there = self.table.pages().page(page);
            there.map_or_else(|| vec![0; PAGE_BYTES], <[u8]>::to_vec)
        };
        let (mut changed, mut at) = (BTreeMap::<u32, Vec<u8>>::new(), 0);
        for run in runs {
            let (mut offset, end) = (run.offset, run.offset + u64::from(run.len));
            while offset < end {
                let page = (offset / page_bytes) as u32;
                let within = (offset % page_bytes) as usize;
                let part = (PAGE_BYTES - within).min((end - offset) as usize);
                let free = run.kind == RunKind::Zero;
                if !free || self.table.pages().page(page).is_some() || changed.contains_key(&page) {
                    let bytes = changed.entry(page).or_insert_with(|| old(page));
                    let there = &mut bytes[within..within + part];
                    if free {
                        there.fill(0);
                    } else {
                        there.copy_from_slice(&new[at..at + part]);
                    }
                }
                at += if free { 0 } else { part };
                offset += part as u64;
            }
        }
        let (mut sums, mut runs) = (BytesMut::new(), Vec::new());
        for (page, mut bytes) in changed {
            for (x, o) in bytes.iter_mut().zip(&old(page)) {
                *x ^= o;
            }
            let differs = |b: &u8| *b != 0;
            let first = bytes.iter().position(differs);
            let last = bytes.iter().rposition(differs);
            if let (Some(first), Some(last)) = (first, last) {
                runs.push(Run {
                    offset: u64::from(page) * page_bytes + first as u64,
                    len: (last + 1 - first) as u32,
                    kind: RunKind::Bytes,
                });
                sums.extend_from_slice(&bytes[first..=last]);
            }
        }
        (runs, sums.freeze())
    }
}
