//! Holders of the buckets of files pools, and datasets.

use super::outcome::{Outcome, Refusal, bad_name, check_text, too_many};
use crate::files::{DATASETS_MAX, Dataset, HOLDERS_MAX, Holder, Holdings, SOURCE_BYTES_MAX};
use crate::ids::{Incarnation, NodeId, PoolId};
use crate::map::{ClusterMap, PoolKind};

use serde::{Deserialize, Serialize};

/// The changes of one node to its own holdings of one pool, all or nothing (row D3).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewHoldings {
    /// The pool.
    pub pool: PoolId,
    /// The node.
    pub node: NodeId,
    /// Its life.
    pub incarnation: Incarnation,
    /// Buckets that it holds from now on: nobody holds them, or it has fetched all that they have.
    pub take: Vec<u32>,
    /// Buckets that it gives up: another holds each of them.
    pub leave: Vec<u32>,
    /// Buckets that it wants to give up as soon as another holds them.
    pub flag: Vec<u32>,
    /// Buckets that it wants to keep after all.
    pub unflag: Vec<u32>,
}

impl ClusterMap {
    pub(super) fn hold(&mut self, new: &NewHoldings) -> Result<Outcome, Refusal> {
        let (node, incarnation) = (new.node, new.incarnation);
        if !self.is_up(node, incarnation) {
            return Err(Refusal::HolderNotUp { node, incarnation });
        }
        let revision = self.revision.next();
        let holdings = self.files_pool(new.pool)?;
        let mut then = holdings.clone();
        let refuse = |bucket: u32, reason: &str| Refusal::BadHolding {
            node,
            bucket,
            reason: reason.to_owned(),
        };
        for bucket in &new.take {
            if then.place(*bucket, node, incarnation).is_some() {
                return Err(refuse(*bucket, "the node holds it already"));
            }
            let holders = then.buckets.get_mut(*bucket as usize);
            let holders = holders.ok_or_else(|| refuse(*bucket, "the pool has no such bucket"))?;
            if holders.len() >= HOLDERS_MAX {
                return Err(refuse(
                    *bucket,
                    "it has as many holders as a bucket may have",
                ));
            }
            holders.push(Holder {
                node,
                incarnation,
                leaving: false,
            });
        }
        for (buckets, leaving) in [(&new.flag, true), (&new.unflag, false)] {
            for bucket in buckets {
                let at = then.place(*bucket, node, incarnation);
                let at = at.ok_or_else(|| refuse(*bucket, "the node does not hold it"))?;
                then.buckets[*bucket as usize][at].leaving = leaving;
            }
        }
        for bucket in &new.leave {
            let at = then.place(*bucket, node, incarnation);
            let at = at.ok_or_else(|| refuse(*bucket, "the node does not hold it"))?;
            let holders = &mut then.buckets[*bucket as usize];
            if holders.len() == 1 {
                return Err(refuse(
                    *bucket,
                    "nobody else holds it: flag it and wait until somebody does",
                ));
            }
            holders.remove(at);
        }
        if then.buckets == holdings.buckets {
            return Ok(Outcome::Unchanged);
        }
        then.revision = revision;
        *self.holdings_mut(new.pool) = then;
        self.moved(Outcome::Done)
    }

    fn files_pool(&self, pool: PoolId) -> Result<&Holdings, Refusal> {
        let holdings = self.pools.get(&pool).and_then(|pool| pool.holdings());
        holdings.ok_or(Refusal::NoFilesPool { pool })
    }

    pub(super) fn holdings_mut(&mut self, pool: PoolId) -> &mut Holdings {
        match self.pools.get_mut(&pool).map(|pool| &mut pool.kind) {
            Some(PoolKind::Files(holdings)) => holdings,
            _ => unreachable!("looked up as a files pool"),
        }
    }

    /// A node's life is over, or another began: what it held is gone.
    pub(super) fn strike_holdings(&mut self, node: NodeId, but: Option<Incarnation>) {
        let revision = self.revision.next();
        for pool in self.pools.values_mut() {
            if let PoolKind::Files(holdings) = &mut pool.kind
                && holdings.strike(node, but)
            {
                holdings.revision = revision;
            }
        }
    }

    pub(super) fn set_dataset(
        &mut self,
        pool: &str,
        name: &str,
        source: &str,
    ) -> Result<Outcome, Refusal> {
        check_text("dataset name", name)?;
        let odd = |c: char| c.is_whitespace() || c == '/' || c == ':';
        let reason = match source {
            _ if name.contains(odd) => Some("a dataset's name has no blanks, slashes or colons"),
            "" => Some("its source is empty"),
            s if s.len() > SOURCE_BYTES_MAX => Some("its source is longer than 4096 bytes"),
            s if s.contains(char::is_control) => Some("its source holds a control character"),
            _ => None,
        };
        if let Some(reason) = reason {
            return Err(bad_name("dataset", name, reason));
        }
        let id = self.known_pool(pool)?.id;
        self.files_pool(id)?;
        if let Some((there, dataset)) = self.dataset(name) {
            return match there.id == id && dataset.source == source {
                true => Ok(Outcome::Unchanged),
                false => Err(Refusal::DatasetExists {
                    name: name.into(),
                    pool: there.name.clone(),
                    source_text: dataset.source.clone(),
                }),
            };
        }
        let all = self.pools.values().filter_map(|p| p.holdings());
        if all.map(|h| h.datasets.len()).sum::<usize>() >= DATASETS_MAX {
            return Err(too_many("datasets", DATASETS_MAX));
        }
        let datasets = &mut self.holdings_mut(id).datasets;
        let at = datasets.partition_point(|d| d.name.as_str() < name);
        let dataset = Dataset {
            name: name.to_owned(),
            source: source.to_owned(),
        };
        datasets.insert(at, dataset);
        self.moved(Outcome::Done)
    }

    pub(super) fn drop_dataset(&mut self, name: &str) -> Result<Outcome, Refusal> {
        let pool = self.pool_of_dataset(name)?.id;
        let holdings = self.holdings_mut(pool);
        holdings.datasets.retain(|d| d.name != name);
        holdings.pins.retain(|pin| pin.dataset != name);
        self.moved(Outcome::Done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::change::Change;
    use crate::ids::Revision;
    use crate::testing::{cluster, create_files_pool, node_down, node_up};

    fn files(nodes: u64) -> ClusterMap {
        let mut map = cluster(nodes);
        map.apply(None, &create_files_pool("files", 8, 1 << 20))
            .unwrap();
        map
    }

    fn hold(map: &ClusterMap, node: u64) -> NewHoldings {
        NewHoldings {
            pool: PoolId(1),
            node: NodeId(node),
            incarnation: map.nodes[&NodeId(node)].incarnation,
            take: vec![],
            leave: vec![],
            flag: vec![],
            unflag: vec![],
        }
    }

    fn holders(map: &ClusterMap, bucket: u32) -> Vec<u64> {
        let holdings = map.pools[&PoolId(1)].holdings().unwrap();
        holdings.holders(bucket).iter().map(|h| h.node.0).collect()
    }

    fn home(map: &ClusterMap, bucket: u32) -> Option<u64> {
        let holdings = map.pools[&PoolId(1)].holdings().unwrap();
        holdings.home(bucket).map(|h| h.node.0)
    }

    /// Row D3: a node adds, flags and removes its own buckets; the last holder stays.
    #[test]
    fn d3_a_bucket_always_keeps_a_holder() {
        let mut map = files(2);
        let take = NewHoldings {
            take: vec![3, 5],
            ..hold(&map, 1)
        };
        map.apply(None, &Change::Hold(take.clone())).unwrap();
        let again = map.clone().apply(None, &Change::Hold(take)).unwrap_err();
        assert!(again.to_string().contains("holds it already"), "{again}");
        let twice = NewHoldings {
            take: vec![4, 4],
            ..hold(&map, 1)
        };
        let twice = map.clone().apply(None, &Change::Hold(twice)).unwrap_err();
        assert!(twice.to_string().contains("holds it already"), "{twice}");
        let leave = NewHoldings {
            leave: vec![3],
            ..hold(&map, 1)
        };
        let alone = map
            .clone()
            .apply(None, &Change::Hold(leave.clone()))
            .unwrap_err();
        assert!(
            alone.to_string().contains("nobody else holds it"),
            "{alone}"
        );
        let flag = NewHoldings {
            flag: vec![3],
            ..hold(&map, 1)
        };
        map.apply(None, &Change::Hold(flag)).unwrap();
        assert_eq!(home(&map, 3), Some(1), "leaving, and yet the only one");
        let take = NewHoldings {
            take: vec![3],
            ..hold(&map, 2)
        };
        map.apply(None, &Change::Hold(take)).unwrap();
        assert_eq!((holders(&map, 3), home(&map, 3)), (vec![1, 2], Some(2)));
        map.apply(None, &Change::Hold(leave)).unwrap();
        assert_eq!(holders(&map, 3), [2]);
        // All or nothing.
        let mixed = NewHoldings {
            take: vec![3],
            leave: vec![5],
            ..hold(&map, 1)
        };
        let before = map.clone();
        assert!(map.apply(None, &Change::Hold(mixed)).is_err());
        assert_eq!(map, before);
        let beyond = NewHoldings {
            take: vec![8],
            ..hold(&map, 1)
        };
        assert!(map.apply(None, &Change::Hold(beyond)).is_err());
    }

    /// Row D3: what two nodes decide on the same map is not done twice; who comes second decides anew.
    #[test]
    fn d3_the_second_of_two_that_decided_at_once_is_refused() {
        let mut map = files(2);
        let seen = map.revision;
        let first = NewHoldings {
            take: vec![0],
            ..hold(&map, 1)
        };
        let second = NewHoldings {
            take: vec![0],
            ..hold(&map, 2)
        };
        map.apply(Some(seen), &Change::Hold(first)).unwrap();
        let refused = map
            .apply(Some(seen), &Change::Hold(second.clone()))
            .unwrap_err();
        assert!(matches!(refused, Refusal::MapMovedOn { .. }));
        // What else happens in the map does not hold it up.
        let seen = map.revision;
        map.apply(None, &node_up(None)).unwrap();
        map.apply(Some(seen), &Change::Hold(second)).unwrap();
        assert_eq!(holders(&map, 0), [1, 2]);
        let later = Some(Revision(map.revision.0 + 1));
        let ahead = NewHoldings {
            take: vec![1],
            ..hold(&map, 1)
        };
        assert!(map.apply(later, &Change::Hold(ahead)).is_err());
    }

    #[test]
    fn d5_what_a_dead_node_held_is_nobodys_and_a_new_life_holds_nothing() {
        let mut map = files(2);
        for node in [1, 2] {
            let take = NewHoldings {
                take: vec![0, node as u32],
                ..hold(&map, node)
            };
            map.apply(None, &Change::Hold(take)).unwrap();
        }
        let late = NewHoldings {
            take: vec![6],
            ..hold(&map, 1)
        };
        map.apply(None, &node_down(&map, 1)).unwrap();
        assert_eq!((holders(&map, 0), holders(&map, 1)), (vec![2], vec![]));
        assert!(map.apply(None, &Change::Hold(late)).is_err(), "it is down");
        map.apply(None, &node_up(Some(2))).unwrap();
        assert_eq!((holders(&map, 0), holders(&map, 2)), (vec![], vec![]));
    }

    #[test]
    fn datasets_have_one_source_each() {
        let mut map = files(1);
        let mut set = |name: &str, source: &str| {
            let (pool, name, source) = ("files".into(), name.into(), source.into());
            map.apply(None, &Change::SetDataset { pool, name, source })
        };
        set("genomes", "/data/genomes").unwrap();
        assert_eq!(set("genomes", "/data/genomes"), Ok(Outcome::Unchanged));
        let other = set("genomes", "s3://bucket/genomes")
            .unwrap_err()
            .to_string();
        assert!(other.contains("/data/genomes"), "{other}");
        for (name, source) in [
            ("", "/x"),
            ("a/b", "/x"),
            ("a b", "/x"),
            ("a", ""),
            ("a", "x\n"),
        ] {
            set(name, source).unwrap_err();
        }
        assert!(map.dataset("genomes").is_some());
        let name = "genomes".to_owned();
        map.apply(None, &Change::DropDataset { name: name.clone() })
            .unwrap();
        assert!(map.dataset("genomes").is_none());
        assert!(map.apply(None, &Change::DropDataset { name }).is_err());
    }
}
