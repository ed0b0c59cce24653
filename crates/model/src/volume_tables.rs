//! The tables that the map has at its end: of volumes their limits, images, who shares them and what write-back needs, of pools their least copies.
//!
//! They lie at the map's end, by region or pool, and not in the regions and pools: postcard names no fields, and what was stored or sent before
//! there was a table ends where it begins. Such a map has none of it, and a map without any has the bytes that it had before.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

use crate::ids::{GroupId, NodeId, PoolId, RegionId};
use crate::image::Images;
use crate::volume_entries::SharedVolumes;
use crate::volume_limit::VolumeLimits;
use crate::writeback::Writeback;

/// The tables of volumes, by region, and of pools.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeTables {
    /// The limits of those that have one.
    pub limits: VolumeLimits,
    /// Snapshots and clones, and what they were copied from while that is being deleted.
    pub images: Images,
    /// The complete copies of a group below which writes wait, for pools where that is more than one.
    pub copies_min: BTreeMap<PoolId, u8>,
    /// Volumes that several clients write at a time.
    pub shared: SharedVolumes,
    /// The volumes whose writes are answered before disks have them.
    pub writeback: BTreeMap<RegionId, Writeback>,
    /// By group of such a volume: the nodes whose member of the last open epoch is there in a later life, without what its disk had not synced.
    pub broken: BTreeMap<GroupId, BTreeSet<NodeId>>,
}

impl VolumeTables {
    /// True if there is nothing in them.
    pub(crate) fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// The tables up to the last one that has something.
    fn count(&self) -> usize {
        let empty = [
            self.limits.is_empty(),
            self.images.is_empty(),
            self.copies_min.is_empty(),
            self.shared.is_empty(),
            self.writeback.is_empty(),
            self.broken.is_empty(),
        ];
        let last = empty.iter().rposition(|is_empty| !is_empty);
        last.map_or(0, |last| last + 1)
    }
}

impl Serialize for VolumeTables {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let count = self.count();
        let mut tables = to.serialize_tuple(count)?;
        if count > 0 {
            tables.serialize_element(&self.limits)?;
        }
        if count > 1 {
            tables.serialize_element(&self.images)?;
        }
        if count > 2 {
            tables.serialize_element(&self.copies_min)?;
        }
        if count > 3 {
            tables.serialize_element(&self.shared)?;
        }
        if count > 4 {
            tables.serialize_element(&self.writeback)?;
        }
        if count > 5 {
            tables.serialize_element(&self.broken)?;
        }
        tables.end()
    }
}

/// Reads the tables at the end of a map; those are empty that it ends before.
pub(crate) fn at_end<'de, D: Deserializer<'de>>(map: D) -> Result<VolumeTables, D::Error> {
    map.deserialize_tuple(6, TablesVisitor)
}

struct TablesVisitor;

impl<'de> Visitor<'de> for TablesVisitor {
    type Value = VolumeTables;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("the tables of volumes and pools")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<VolumeTables, A::Error> {
        Ok(VolumeTables {
            limits: table(&mut tables)?,
            images: table(&mut tables)?,
            copies_min: table(&mut tables)?,
            shared: table(&mut tables)?,
            writeback: table(&mut tables)?,
            broken: table(&mut tables)?,
        })
    }
}

/// The next table; empty if there is nothing.
fn table<'de, A: SeqAccess<'de>, K: Deserialize<'de> + Ord, V: Deserialize<'de>>(
    tables: &mut A,
) -> Result<BTreeMap<K, V>, A::Error> {
    let mut begins = false;
    let table = tables.next_element_seed(TableSeed(&mut begins, PhantomData));
    match table {
        Err(_) if !begins => Ok(BTreeMap::new()),
        Ok(None) => Err(A::Error::custom("a table of the map is missing")),
        Ok(Some(table)) => Ok(table),
        Err(error) => Err(error),
    }
}

/// Reads a table, and notes that there is one.
struct TableSeed<'a, K, V>(&'a mut bool, PhantomData<(K, V)>);

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> DeserializeSeed<'de>
    for TableSeed<'_, K, V>
{
    type Value = BTreeMap<K, V>;

    fn deserialize<D: Deserializer<'de>>(self, table: D) -> Result<Self::Value, D::Error> {
        table.deserialize_map(self)
    }
}

impl<'de, K: Deserialize<'de> + Ord, V: Deserialize<'de>> Visitor<'de> for TableSeed<'_, K, V> {
    type Value = BTreeMap<K, V>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a table by volume or pool")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        *self.0 = true;
        let mut table = BTreeMap::new();
        while let Some((id, entry)) = map.next_entry()? {
            table.insert(id, entry);
        }
        Ok(table)
    }
}
