//! A cache pool's bucket and its copies.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use staves_cache::{Cache, Options};
use staves_conformance::TestCluster;
pub use staves_conformance::{Reply, bytes};
use staves_service::Limits;
use staves_wire::cache::Op;
use staves_wire::service::Answer;

pub struct Cluster(TestCluster<Cache>);

impl Deref for Cluster {
    type Target = TestCluster<Cache>;
    fn deref(&self) -> &TestCluster<Cache> {
        &self.0
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut TestCluster<Cache> {
        &mut self.0
    }
}

pub fn small_options() -> Options {
    Options {
        value_bytes_max: 4 << 20,
        inline_bytes_max: 8 << 10,
        chunk_bytes: 6000,
        chunks_per_step: 8,
        limits: Limits {
            grant_wait: Duration::from_millis(60),
            ..Limits::default()
        },
        ..Options::default()
    }
}

impl Cluster {
    /// One data bucket and `k` copies, open and empty, with so many extents each.
    pub fn new(k: u8, extents: u32, options: Options) -> Cluster {
        let nodes = usize::from(k) + 1;
        Cluster::with(k, nodes, extents, options, staves_group::Options::default())
    }

    /// `nodes` nodes, of which the first `k + 1` are members.
    pub fn with(
        k: u8,
        nodes: usize,
        extents: u32,
        options: Options,
        group: staves_group::Options,
    ) -> Cluster {
        let bucket = |member| Cache::bucket(options.clone(), member);
        Cluster(TestCluster::new((1, k), nodes, extents, group, bucket))
    }

    pub fn cache(&mut self) -> &Cache {
        self.bucket().service()
    }

    /// Submits, and delivers nothing. The token under which the answer will be in `answers`.
    pub fn submit(&mut self, request: Option<u64>, op: &Op<'_>) -> u64 {
        self.submit_to(0, request, *op)
    }

    /// Submits and runs until there is an answer.
    pub fn run(&mut self, request: Option<u64>, op: &Op<'_>) -> Reply {
        let token = self.submit(request, op);
        self.wait_for(token)
    }

    pub fn wait(&mut self, token: u64) -> Reply {
        self.wait_for(token)
    }

    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Reply {
        self.run(None, &set(key, value))
    }

    pub fn get(&mut self, key: &[u8]) -> Option<Vec<u8>> {
        match self.run(None, &Op::Get { key }) {
            Ok(Answer::Nil) => None,
            Ok(Answer::Value(bytes)) => Some(bytes.to_vec()),
            other => panic!("GET is answered {other:?}"),
        }
    }
}

pub fn set<'a>(key: &'a [u8], value: &'a [u8]) -> Op<'a> {
    Op::Set {
        key,
        value,
        condition: Default::default(),
        get_old: false,
    }
}
