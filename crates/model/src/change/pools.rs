//! Pools: made with their groups, changed while they serve, deleted.

use std::collections::BTreeSet;

use super::{BUCKETS_MAX, Change, GROUPS_MAX, Outcome, POOLS_MAX, Refusal, check_text};
use crate::files::Holdings;
use crate::ids::{Epoch, GroupId, MemberSlot, PoolId, Revision};
use crate::map::{ClusterMap, Group, LastOpen, Pool, PoolKind};
use crate::scheme::{K_MAX, M_MAX, PAGE_BYTES, Scheme};

impl ClusterMap {
    pub(super) fn create_pool(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let Change::CreatePool {
            name,
            kind,
            scheme,
            medium,
            node_budget_bytes,
            buckets,
            may_start_empty,
        } = change
        else {
            unreachable!("called for CreatePool only");
        };
        check_name("pool name", name)?;
        if self.pool_named(name).is_some() {
            return Err(Refusal::PoolExists { name: name.clone() });
        }
        if self.pools.len() >= POOLS_MAX {
            return Err(Refusal::TooMany {
                what: "pools".into(),
                max: POOLS_MAX,
            });
        }
        check_kind(name, kind, *buckets, *may_start_empty)?;
        // Buckets of files have holders, and no groups.
        let (kind, groups) = match kind {
            PoolKind::Files(_) => (PoolKind::Files(empty(*buckets)), 0),
            other => (other.clone(), *buckets),
        };
        if self.groups.len() + groups as usize > GROUPS_MAX {
            return Err(Refusal::TooMany {
                what: "groups of all pools".into(),
                max: GROUPS_MAX,
            });
        }
        check_scheme(name, *scheme)?;
        check_budget(name, *node_budget_bytes)?;

        let id = self.next_pool;
        self.next_pool = PoolId(id.0 + 1);
        let first = self.next_group.0;
        self.next_group = GroupId(first + groups);
        let revision = self.revision.next();
        for bucket in 0..groups {
            let group = unborn(GroupId(first + bucket), id, bucket, scheme.m, revision);
            self.groups.insert(group.id, group);
        }
        let pool = Pool {
            id,
            name: name.clone(),
            kind,
            scheme: *scheme,
            medium: *medium,
            node_budget_bytes: *node_budget_bytes,
            groups: (0..groups).map(|b| GroupId(first + b)).collect(),
            may_start_empty: *may_start_empty,
        };
        self.pools.insert(id, pool);
        self.moved(Outcome::Pool { id })
    }

    pub(super) fn set_pool(
        &mut self,
        name: &str,
        scheme: Option<Scheme>,
        budget: Option<u64>,
    ) -> Result<Outcome, Refusal> {
        let pool = self
            .pools
            .values_mut()
            .find(|p| p.name == name)
            .ok_or_else(|| Refusal::UnknownPool {
                name: name.to_owned(),
            })?;
        let scheme = scheme.unwrap_or(pool.scheme);
        let budget = budget.unwrap_or(pool.node_budget_bytes);
        if scheme.m != pool.scheme.m {
            return Err(Refusal::SchemeChangesM {
                name: name.to_owned(),
                from: pool.scheme,
                to: scheme,
            });
        }
        check_scheme(name, scheme)?;
        check_budget(name, budget)?;
        if (scheme, budget) == (pool.scheme, pool.node_budget_bytes) {
            return Ok(Outcome::Unchanged);
        }
        pool.scheme = scheme;
        pool.node_budget_bytes = budget;
        self.moved(Outcome::Done)
    }

    pub(super) fn delete_pool(&mut self, name: &str) -> Result<Outcome, Refusal> {
        let id = self
            .pool_named(name)
            .map(|p| p.id)
            .ok_or_else(|| Refusal::UnknownPool {
                name: name.to_owned(),
            })?;
        let gone: BTreeSet<GroupId> = self
            .pools
            .remove(&id)
            .map(|p| p.groups)
            .unwrap_or_default()
            .into_iter()
            .collect();
        self.groups.retain(|g, _| !gone.contains(g));
        self.moved(Outcome::Done)
    }
}

/// Groups of hash slots are all made with their pool, those of a memory pool with each region. Memory never
/// starts empty.
fn check_kind(
    name: &str,
    kind: &PoolKind,
    buckets: u32,
    may_start_empty: bool,
) -> Result<(), Refusal> {
    match kind {
        PoolKind::Memory { regions } if regions.is_empty() && buckets == 0 && !may_start_empty => {
            Ok(())
        }
        PoolKind::Files(holdings) if *holdings != Holdings::default() => {
            Err(Refusal::BadFilesPool { name: name.into() })
        }
        PoolKind::Slots(service) if service.has_kind() => Err(Refusal::HasKind {
            name: name.to_owned(),
            service: *service,
        }),
        PoolKind::Memory { .. } => Err(Refusal::BadMemoryPool {
            name: name.to_owned(),
        }),
        _ if buckets.is_power_of_two() && buckets <= BUCKETS_MAX => Ok(()),
        _ => Err(Refusal::BadBuckets {
            name: name.to_owned(),
            buckets,
        }),
    }
}

fn empty(buckets: u32) -> Holdings {
    Holdings {
        buckets: vec![Vec::new(); buckets as usize],
        ..Holdings::default()
    }
}

/// A group before its first epoch.
pub(super) fn unborn(id: GroupId, pool: PoolId, bucket: u32, m: u8, revision: Revision) -> Group {
    Group {
        id,
        pool,
        bucket,
        m,
        epoch: Epoch(0),
        open: false,
        leader: MemberSlot(0),
        members: vec![None; usize::from(m)],
        kept: vec![None; usize::from(m)],
        fresh: false,
        last_open: LastOpen::default(),
        lost: false,
        revision,
    }
}

pub(super) fn check_name(what: &str, name: &str) -> Result<(), Refusal> {
    check_text(what, name)?;
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.chars().all(plain) {
        return Ok(());
    }
    Err(Refusal::BadName {
        what: what.into(),
        name: name.chars().take(64).collect(),
        reason: "only letters, digits, '-', '_' and '.' may stand in it".into(),
    })
}

fn check_scheme(name: &str, scheme: Scheme) -> Result<(), Refusal> {
    if scheme.m == 0 || scheme.m > M_MAX || scheme.k > K_MAX {
        return Err(Refusal::BadScheme {
            name: name.to_owned(),
            scheme,
        });
    }
    Ok(())
}

fn check_budget(name: &str, bytes: u64) -> Result<(), Refusal> {
    if bytes < PAGE_BYTES as u64 {
        return Err(Refusal::BadBudget {
            name: name.to_owned(),
            bytes,
        });
    }
    Ok(())
}
