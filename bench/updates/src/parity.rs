//! A parity bucket's process.

use std::collections::BTreeMap;
use std::net::TcpStream;

use crate::bucket::{Bucket, Delta, unpack};
use crate::data::Mode;
use crate::link::{Kind, Link, wait};
use crate::logged;

/// Serves the data bucket at this address until it goes.
pub fn run(mode: Mode, parity: usize, stream: TcpStream) -> anyhow::Result<()> {
    let mut links = [Link::new(stream)?];
    if mode == Mode::Logged {
        return logged::parity(parity, links);
    }
    let mut state = Parity {
        parity,
        mode,
        bucket: Bucket::new(),
        queued: None,
        ahead: BTreeMap::new(),
        prefix: 0,
        told: 0,
    };
    loop {
        wait(&mut links, None)?;
        let link = &mut links[0];
        if !link.fill()? {
            return Ok(());
        }
        let mut last = false;
        while let Some(frame) = link.next()? {
            let delta = Delta {
                seq: frame.seq,
                at: frame.at,
                bytes: frame.bytes,
            };
            match frame.kind {
                Kind::Delta => {
                    state.bucket.apply(parity, delta.at, &delta.bytes);
                    link.send(Kind::Ack, delta.seq, 0, &[]);
                }
                Kind::Prepare => {
                    link.send(Kind::Ack, delta.seq, 0, &[]);
                    state.queued = Some(delta);
                }
                Kind::Commit => {
                    if let Some(delta) = state.queued.take() {
                        state.bucket.apply(parity, delta.at, &delta.bytes);
                    }
                }
                Kind::Deltas => {
                    // `at` says that the client waits for the newest.
                    last |= delta.at != 0;
                    for one in unpack(delta.bytes) {
                        state.take(one);
                    }
                    // Those before the newest may be missing.
                    last |= delta.at != 0 && state.prefix >= delta.seq;
                }
                other => anyhow::bail!("{other:?} is not for a parity bucket"),
            }
        }
        state.tell(last, link);
        link.flush()?;
    }
}

struct Parity {
    parity: usize,
    mode: Mode,
    bucket: Bucket,
    queued: Option<Delta>,
    /// Seqs beyond a gap. Their bytes are in already: XOR does not mind the order.
    ahead: BTreeMap<u64, ()>,
    prefix: u64,
    told: u64,
}

impl Parity {
    fn take(&mut self, delta: Delta) {
        if delta.seq <= self.prefix || self.ahead.contains_key(&delta.seq) {
            return;
        }
        self.bucket.apply(self.parity, delta.at, &delta.bytes);
        self.ahead.insert(delta.seq, ());
        while self.ahead.remove(&(self.prefix + 1)).is_some() {
            self.prefix += 1;
        }
    }

    /// States are exchanged every so many updates, at the end of a run, and where something is missing.
    fn tell(&mut self, last: bool, link: &mut Link) {
        let Mode::Watermark { every, .. } = self.mode else {
            return;
        };
        let gap = !self.ahead.is_empty();
        if gap || last || self.prefix >= self.told + every {
            self.told = self.prefix;
            let kind = if gap { Kind::AckGap } else { Kind::Ack };
            link.send(kind, self.prefix, 0, &[]);
        }
    }
}
