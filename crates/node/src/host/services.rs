//! The table of services on groups: all that this node knows of each.

use staves_cache::Cache;
use staves_group::Member;
use staves_memory::Memory;
use staves_model::ServiceId;
use staves_service::AnyBucket;

use super::Options;

/// A service on groups. Its counters are in the table of metrics.
pub(crate) struct HostedService {
    pub(crate) id: ServiceId,
    /// A bucket around a member of a group.
    pub(crate) bucket: fn(&Options, Member) -> Box<dyn AnyBucket>,
}

/// All services.
pub(crate) const SERVICES: &[HostedService] = &[
    HostedService {
        id: ServiceId::CACHE,
        bucket: |options, member| Box::new(Cache::bucket(options.cache.clone(), member)),
    },
    HostedService {
        id: ServiceId::MEMORY,
        bucket: |options, member| Box::new(Memory::bucket(options.memory.clone(), member)),
    },
];
