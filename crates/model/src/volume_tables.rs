//! The tables of volumes that the map has beside their regions: limits, and images.
//!
//! They lie at the map's end, by region, and not in the regions: postcard names no fields, and what was stored or sent before there were
//! limits ends where they begin, or before there were images where those do. Such a map has none, and a map without any has the bytes that
//! it had before.

use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde::ser::{SerializeTuple, Serializer};
use serde::{Deserialize, Serialize};

use crate::ids::RegionId;
use crate::image::Images;
use crate::volume_limit::VolumeLimits;

/// The tables of volumes, by region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct VolumeTables {
    /// The limits of those that have one.
    pub limits: VolumeLimits,
    /// Snapshots and clones, and what they were copied from while that is being deleted.
    pub images: Images,
}

impl VolumeTables {
    /// True if there is nothing in them.
    pub(crate) fn is_empty(&self) -> bool {
        self.limits.is_empty() && self.images.is_empty()
    }
}

impl Serialize for VolumeTables {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if self.images.is_empty() {
            return self.limits.serialize(to);
        }
        let mut tables = to.serialize_tuple(2)?;
        tables.serialize_element(&self.limits)?;
        tables.serialize_element(&self.images)?;
        tables.end()
    }
}

/// Reads the tables at the end of a map; those are empty that it ends before.
pub(crate) fn at_end<'de, D: Deserializer<'de>>(map: D) -> Result<VolumeTables, D::Error> {
    map.deserialize_tuple(2, TablesVisitor)
}

struct TablesVisitor;

impl<'de> Visitor<'de> for TablesVisitor {
    type Value = VolumeTables;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("limits and images of volumes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut tables: A) -> Result<VolumeTables, A::Error> {
        Ok(VolumeTables {
            limits: table(&mut tables)?,
            images: table(&mut tables)?,
        })
    }
}

/// The next table; empty if there is nothing.
fn table<'de, A: SeqAccess<'de>, V: Deserialize<'de>>(
    tables: &mut A,
) -> Result<BTreeMap<RegionId, V>, A::Error> {
    let mut begins = false;
    let table = tables.next_element_seed(TableSeed(&mut begins, PhantomData));
    match table {
        Err(_) if !begins => Ok(BTreeMap::new()),
        Ok(None) => Err(A::Error::custom("a table of volumes is missing")),
        Ok(Some(table)) => Ok(table),
        Err(error) => Err(error),
    }
}

/// Reads a table, and notes that there is one.
struct TableSeed<'a, V>(&'a mut bool, PhantomData<V>);

impl<'de, V: Deserialize<'de>> DeserializeSeed<'de> for TableSeed<'_, V> {
    type Value = BTreeMap<RegionId, V>;

    fn deserialize<D: Deserializer<'de>>(self, table: D) -> Result<Self::Value, D::Error> {
        table.deserialize_map(self)
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for TableSeed<'_, V> {
    type Value = BTreeMap<RegionId, V>;

    fn expecting(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str("a table by volume")
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
