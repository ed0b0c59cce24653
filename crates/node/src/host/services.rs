//! The table of services on groups: all that a node knows of each.

use std::sync::Arc;

use staves_cache::Cache;
use staves_group::Member;
use staves_log::UnitLimits;
use staves_log::service::LogUnit;
use staves_memory::Memory;
use staves_model::ServiceId;
use staves_service::{AnyBucket, Limits, Service};

use crate::log::UnitAsks;

/// The options that services are made with.
#[derive(Clone, Debug, Default)]
pub struct ServiceOptions {
    /// Bounds of a bucket.
    pub limits: Limits,
    /// Longest value, in bytes.
    pub value_bytes_max: usize,
    /// Questions of units of logs to sequencers.
    pub log_asks: Arc<UnitAsks>,
}

/// A service on groups. Its counters are in the table of metrics.
#[derive(Clone, Copy)]
pub struct HostedService {
    /// The number that requests and pools name it by.
    pub id: ServiceId,
    /// Makes a bucket around a member of a group.
    pub bucket: fn(&ServiceOptions, Member) -> Box<dyn AnyBucket>,
}

/// All services of the product.
pub const SERVICES: &[HostedService] = &[
    HostedService {
        id: Cache::ID,
        bucket: |options, member| {
            let options = staves_cache::Options {
                value_bytes_max: options.value_bytes_max,
                limits: options.limits.clone(),
                ..staves_cache::Options::default()
            };
            Box::new(Cache::bucket(options, member))
        },
    },
    HostedService {
        id: Memory::ID,
        bucket: |options, member| Box::new(Memory::bucket(options.limits.clone(), member)),
    },
    HostedService {
        id: LogUnit::ID,
        bucket: |options, member| {
            let group = member.id();
            let limits = options.limits.clone();
            let (bucket, asks) = LogUnit::bucket(limits, UnitLimits::default(), member);
            options.log_asks.add(group, &asks);
            Box::new(bucket)
        },
    },
];
