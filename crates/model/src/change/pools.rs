//! Pools: made with their groups, changed while they serve, deleted.

use std::collections::BTreeSet;

use super::Change;
use super::bounds::{BUCKETS_MAX, GROUPS_MAX, POOLS_MAX};
use super::outcome::{Outcome, Refusal, bad_name, check_text, too_many};
use crate::files::Holdings;
use crate::ids::{Epoch, GroupId, MemberSlot, PoolId, Revision, ServiceId};
use crate::map::{ClusterMap, Group, LastOpen, Medium, Pool, PoolKind};
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
            return Err(too_many("pools", POOLS_MAX));
        }
        if *medium == Medium::Disk {
            let disks = self.nodes.values().any(|node| node.disk_bytes > 0);
            check_disk(name, kind, *scheme, (*may_start_empty, disks))?;
        }
        check_kind(name, kind, *buckets, *may_start_empty)?;
        // Buckets of files have holders, and no groups.
        let (kind, groups) = match kind {
            PoolKind::Files(_) => (PoolKind::Files(empty(*buckets)), 0),
            other => (other.clone(), *buckets),
        };
        if self.groups.len() + groups as usize > GROUPS_MAX {
            return Err(too_many("groups of all pools", GROUPS_MAX));
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

    pub(super) fn set_pool(&mut self, change: &Change) -> Result<Outcome, Refusal> {
        let Change::SetPool {
            name,
            scheme,
            node_budget_bytes: budget,
        } = change
        else {
            unreachable!("called for SetPool only");
        };
        let pool = self.known_pool(name)?;
        let (id, before) = (pool.id, (pool.scheme, pool.node_budget_bytes));
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
        check_copies_min(name, scheme, self.copies_min(id))?;
        check_budget(name, budget)?;
        if (scheme, budget) == before {
            return Ok(Outcome::Unchanged);
        }
        let pool = self.pools.get_mut(&id).expect("looked up above");
        (pool.scheme, pool.node_budget_bytes) = (scheme, budget);
        self.moved(Outcome::Done)
    }

    pub(super) fn set_copies_min(&mut self, name: &str, copies: u8) -> Result<Outcome, Refusal> {
        let pool = self.known_pool(name)?;
        let id = pool.id;
        if pool.holdings().is_some() && copies > 1 {
            return Err(Refusal::FilesAreNotWritten { name: name.into() });
        }
        check_copies_min(name, pool.scheme, copies)?;
        if let Some(loaded) = pool.regions().iter().find(|r| r.is_loading())
            && copies > 1
        {
            return Err(Refusal::RegionIsLoaded {
                name: loaded.name.clone(),
            });
        }
        if self.copies_min(id) == copies {
            return Ok(Outcome::Unchanged);
        }
        match copies {
            1 => self.volumes.copies_min.remove(&id),
            _ => self.volumes.copies_min.insert(id, copies),
        };
        self.moved(Outcome::Done)
    }

    pub(super) fn delete_pool(&mut self, name: &str) -> Result<Outcome, Refusal> {
        let pool = self.known_pool(name)?;
        let (id, gone) = (pool.id, pool.groups.iter().copied());
        let gone: BTreeSet<GroupId> = gone.collect();
        self.pools.remove(&id);
        self.groups.retain(|g, _| !gone.contains(g));
        self.drop_tables();
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
    let name = name.to_owned();
    match kind {
        PoolKind::Memory { regions } if regions.is_empty() && buckets == 0 && !may_start_empty => {
            Ok(())
        }
        PoolKind::Memory { .. } => Err(Refusal::BadMemoryPool { name }),
        PoolKind::Files(holdings) if *holdings != Holdings::default() => {
            Err(Refusal::BadFilesPool { name })
        }
        PoolKind::Slots(service) if service.has_kind() => Err(Refusal::HasKind {
            name,
            service: *service,
        }),
        _ if buckets.is_power_of_two() && buckets <= BUCKETS_MAX => Ok(()),
        _ => Err(Refusal::BadBuckets { name, buckets }),
    }
}

/// With more than there are, writes would wait for ever.
fn check_copies_min(name: &str, scheme: Scheme, copies: u8) -> Result<(), Refusal> {
    let most = scheme.k + 1;
    match (1..=most).contains(&copies) {
        true => Ok(()),
        false => Err(Refusal::BadCopiesMin {
            name: name.to_owned(),
            scheme,
            copies,
            most,
        }),
    }
}

/// Most data buckets of a group on disk.
const M_ON_DISK_MAX: u8 = 4;

/// Regions alone are kept on disk. A page's row in the table of a disk has a label for each data bucket, and the table has room for so many.
fn check_disk(
    name: &str,
    kind: &PoolKind,
    scheme: Scheme,
    (may_start_empty, disks): (bool, bool),
) -> Result<(), Refusal> {
    let is_kept = matches!(
        kind,
        PoolKind::Memory { .. } | PoolKind::Slots(ServiceId::LOG)
    );
    let reason = if !is_kept {
        "only regions, volumes and logs are kept there: make it of kind memory or log, or in memory"
    } else if may_start_empty {
        "what is kept there never starts empty: let its groups wait"
    } else if scheme.m > M_ON_DISK_MAX {
        "pools on disk have m of at most 4: choose a scheme such as 4+2"
    } else if !disks {
        "no node has a disk: start nodes with --disk"
    } else {
        return Ok(());
    };
    let (name, reason) = (name.to_owned(), reason.to_owned());
    Err(Refusal::BadDiskPool { name, reason })
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
        coordinator: MemberSlot(0),
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
    match name.chars().all(plain) {
        true => Ok(()),
        false => {
            let reason = "only letters, digits, '-', '_' and '.' may stand in it";
            Err(bad_name(what, name, reason))
        }
    }
}

fn check_scheme(name: &str, scheme: Scheme) -> Result<(), Refusal> {
    let name = name.to_owned();
    match scheme.m == 0 || scheme.m > M_MAX || scheme.k > K_MAX {
        true => Err(Refusal::BadScheme { name, scheme }),
        false => Ok(()),
    }
}

fn check_budget(name: &str, bytes: u64) -> Result<(), Refusal> {
    let name = name.to_owned();
    match bytes < PAGE_BYTES as u64 {
        true => Err(Refusal::BadBudget { name, bytes }),
        false => Ok(()),
    }
}
