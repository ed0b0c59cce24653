//! This node's buckets, in numbers.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use staves_model::{ClusterMap, Medium, PoolId, ServiceId};
use staves_store::EXTENT_BYTES;
use staves_wire::cache::CacheStatsAnswer;

use super::{Host, PoolRoutes};

/// The counter of a service that knows of room within pages.
const WITH_ROOM: &str = "cache_buckets_with_room";

/// Figures over buckets of this node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Figures {
    /// Data buckets that it serves.
    pub(crate) serving: u64,
    /// Data buckets whose epoch is not open.
    pub(crate) waiting_to_serve: u64,
    /// Parity buckets (copies).
    pub(crate) parity: u64,
    /// Counters of the services, by name.
    counters: BTreeMap<&'static str, u64>,
    /// Data buckets of services without such a counter that have reserved more than they use.
    with_spare: u64,
    /// Updates of the data buckets that not every parity bucket has received yet.
    pub(crate) unstable: u64,
    /// Data buckets that found no memory for a write of late.
    pub(crate) lacking_buckets: u64,
    /// The most extents that one of them needs of each member.
    pub(crate) lacked_extents: u32,
    /// Requests that wait at a bucket.
    pub(crate) requests_waiting: u64,
    /// Pages of the buckets that are being filled.
    pub(crate) filling_pages: u64,
    /// Those that are not here yet.
    pub(crate) missing_pages: u64,
}

impl Figures {
    /// A service's counter.
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Data buckets that need a further page for a write, as far as their service knows.
    pub(crate) fn dense_buckets(&self) -> u64 {
        let data = self.serving + self.waiting_to_serve;
        data.saturating_sub(self.counter(WITH_ROOM) + self.with_spare)
    }
}

impl Host {
    /// Over all pools.
    pub(crate) fn figures(&self) -> Figures {
        self.figures_of(None)
    }

    /// Over one pool, or all.
    pub(crate) fn figures_of(&self, pool: Option<PoolId>) -> Figures {
        let routes = self.routes();
        let wanted = routes
            .pools
            .values()
            .filter(|p| pool.is_none_or(|id| p.id == id));
        let (mut sum, now) = (Figures::default(), self.clock.now());
        for cell in wanted.flat_map(|p| p.cells.iter().chain(&p.seconds)) {
            let state = cell.lock();
            sum.requests_waiting += state.waiting() as u64;
            let Some(bucket) = &state.bucket else {
                continue;
            };
            let member = bucket.member();
            if bucket.serving() {
                let lacked = bucket.lacked_extents(now);
                sum.lacking_buckets += u64::from(lacked > 0);
                sum.lacked_extents = sum.lacked_extents.max(lacked);
            }
            let mut counts_room = false;
            bucket.count(&mut |name, value| {
                counts_room |= name == WITH_ROOM;
                *sum.counters.entry(name).or_default() += value;
            });
            let has_spare = member.pages().is_some_and(|p| p.reserved() > p.used());
            sum.with_spare += u64::from(!counts_room && member.is_data() && has_spare);
            let (missing, pages) = member.progress();
            if missing > 0 {
                sum.filling_pages += u64::from(pages);
                sum.missing_pages += u64::from(missing);
            }
            if bucket.serving() {
                sum.serving += 1;
                sum.unstable += member.last().saturating_sub(member.stable());
            } else if member.is_data() {
                sum.waiting_to_serve += 1;
            } else if member.slot().is_some() {
                sum.parity += 1;
            }
        }
        sum
    }

    /// Bytes of pages that are taken from the budgets of a pool, or of all in memory, and the budgets.
    pub(crate) fn memory(&self, pool: Option<PoolId>) -> (u64, u64) {
        let routes = self.routes();
        let in_memory = |id: PoolId| {
            let pool = routes.map.pools.get(&id);
            pool.is_some_and(|pool| pool.medium == Medium::Ram)
        };
        let is_wanted = |p: &&PoolRoutes| pool.map_or_else(|| in_memory(p.id), |id| p.id == id);
        let budgets = routes.pools.values().filter(is_wanted);
        let bytes = |extents: u32| u64::from(extents) * EXTENT_BYTES as u64;
        budgets.fold((0, 0), |(taken, limit), pool| {
            (
                taken + bytes(pool.budget.taken()),
                limit + bytes(pool.budget.limit()),
            )
        })
    }

    /// True if anything that was ever written may be here: a member of a region, or one of a cache that was not
    /// always empty.
    pub(crate) fn holds_anything(&self) -> bool {
        let routes = self.routes();
        routes.cells().any(|cell| {
            let state = cell.lock();
            let bucket = state.bucket.as_ref();
            bucket.is_some_and(|bucket| bucket.holds_anything())
        })
    }

    /// True if a pool is a cache whose buckets are all served here, and none of them has a key.
    pub(crate) fn is_empty_cache(&self, map: &ClusterMap, pool: PoolId) -> bool {
        let groups = map.groups.values().filter(|group| group.pool == pool);
        let figures = self.figures_of(Some(pool));
        let of = map.pools.get(&pool).and_then(|pool| pool.kind.service());
        let is_cache = of == Some(ServiceId::CACHE);
        is_cache && figures.serving == groups.count() as u64 && figures.counter("cache_keys") == 0
    }

    /// Pages that lately came in, per second.
    pub(crate) fn fill_rate(&self) -> u64 {
        self.fill_rate.load(Ordering::Relaxed)
    }

    /// As another node, or a person's tool, asks for them.
    pub(crate) fn cache_stats(&self, pool: PoolId) -> CacheStatsAnswer {
        let figures = self.figures_of(Some(pool));
        let (used_bytes, budget_bytes) = self.memory(Some(pool));
        CacheStatsAnswer {
            buckets: figures.serving as u32,
            keys: figures.counter("cache_keys"),
            live_bytes: figures.counter("cache_live_bytes"),
            used_bytes,
            budget_bytes,
            reads: figures.counter("cache_reads"),
            hits: figures.counter("cache_hits"),
            writes: figures.counter("cache_writes"),
        }
    }
}
