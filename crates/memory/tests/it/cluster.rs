//! A memory pool's group.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use bytes::Bytes;
use staves_conformance::TestCluster;
pub use staves_conformance::bytes;
use staves_memory::Memory;
use staves_service::Limits;
use staves_wire::ErrorCode;
use staves_wire::memory::Action;
use staves_wire::service::Answer;

pub struct Cluster(TestCluster<Memory>);

impl Deref for Cluster {
    type Target = TestCluster<Memory>;
    fn deref(&self) -> &TestCluster<Memory> {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut TestCluster<Memory> {
        &mut self.0
    }
}

impl Cluster {
    /// `nodes` nodes with so many extents each, of which the first `m + k` are members.
    pub fn new(m: u8, k: u8, nodes: usize, extents: u32) -> Cluster {
        Cluster::with((m, k), nodes, extents, staves_group::Options::default())
    }

    /// The same with some options.
    pub fn with(
        (m, k): (u8, u8),
        nodes: usize,
        extents: u32,
        options: staves_group::Options,
    ) -> Cluster {
        let group = staves_group::Options {
            log_bytes_max: 300 << 10,
            fetch_pages: 5,
            fetch_window: 2,
            ..options
        };
        let limits = Limits {
            grant_wait: Duration::from_millis(60),
            ..Limits::default()
        };
        let bucket = |member| Memory::bucket(limits.clone(), member);
        Cluster(TestCluster::new((m, k), nodes, extents, group, bucket))
    }

    /// Submits to a data bucket, and delivers nothing; the token of its answer.
    pub fn submit(&mut self, slot: u8, request: Option<u64>, action: &Action) -> u64 {
        self.submit_to(slot, request, action)
    }

    /// The answer under a token, if there is one.
    pub fn answered(&mut self, token: u64) -> Option<Answer> {
        let reply = self.answers.remove(&token)?;
        Some(reply.unwrap_or_else(|refused| Answer::error(refused.code(), refused.to_string())))
    }

    /// Submits and runs until there is an answer.
    pub fn run(&mut self, slot: u8, request: Option<u64>, action: &Action) -> Answer {
        let token = self.submit(slot, request, action);
        self.wait(token)
    }

    pub fn wait(&mut self, token: u64) -> Answer {
        let reply = self.wait_for(token);
        reply.unwrap_or_else(|refused| Answer::error(refused.code(), refused.to_string()))
    }

    pub fn write(&mut self, slot: u8, offset: u64, bytes: &[u8]) {
        let answer = self.run(slot, None, &write(offset, bytes));
        assert_eq!(answer, Answer::Ok, "write of {} at {offset}", bytes.len());
    }

    pub fn read(&mut self, slot: u8, offset: u64, len: u32) -> Bytes {
        match self.run(
            slot,
            None,
            &Action::Read {
                image: 0,
                offset,
                len,
            },
        ) {
            Answer::Value(bytes) => bytes,
            other => panic!("a read is answered {other:?}"),
        }
    }
}

pub fn write(offset: u64, bytes: &[u8]) -> Action {
    Action::Write {
        offset,
        bytes: Bytes::copy_from_slice(bytes),
    }
}

pub fn code(answer: &Answer) -> Option<ErrorCode> {
    match answer {
        Answer::Error(code, _) => Some(*code),
        _ => None,
    }
}
