//! A volume as people and programs are shown it.

use serde_json::{Value, json};
use staves_cli_common::output::{Column, bytes, count, number, properties};
use staves_client::VolumeStat;
use staves_model::{ClusterMap, ImageKind, ImageState, SHARED_CLIENTS};

use super::waits::waits;
use crate::memory;

/// A volume, and what it waits for if it does.
pub(super) struct ShownVolume {
    pub(super) stat: VolumeStat,
    pub(super) waits: Option<String>,
}

impl ShownVolume {
    /// A volume as a map has it.
    pub(super) fn new(map: &ClusterMap, stat: VolumeStat) -> ShownVolume {
        let waits = waits(map, &stat.region.groups);
        ShownVolume { stat, waits }
    }

    pub(super) fn as_json(&self) -> Value {
        let mut json = as_json(&self.stat);
        json["waits"] = json!(self.waits);
        json
    }
}

pub(super) fn as_json(stat: &VolumeStat) -> Value {
    let region = &stat.region;
    json!({
        "volume": region.name,
        "pool": region.pool,
        "scheme": region.scheme,
        "size_bytes": region.size_bytes,
        "capacity_bytes": region.capacity_bytes,
        "data_buckets": memory::buckets_json(region),
        "session": stat.session,
        "shared": stat.is_shared,
        "shared_through": stat.doors,
        "attached_to": writer_json(stat),
        "limit": limit_json(stat),
        "cache": cache(stat),
        "copy": copy_json(stat),
        "lost_groups": region.lost.iter().map(|group| group.0).collect::<Vec<_>>(),
        "groups": region.groups.iter().map(|group| group.0).collect::<Vec<_>>(),
    })
}

fn cache(stat: &VolumeStat) -> &'static str {
    match stat.is_writeback {
        true => "writeback",
        false => "durable",
    }
}

fn answered(stat: &VolumeStat) -> &'static str {
    match stat.is_writeback {
        true => "once all copies hold them (write-back)",
        false => "once all copies have them, on disk where the pool is",
    }
}

fn copy_json(stat: &VolumeStat) -> Option<Value> {
    let image = stat.image?;
    Some(json!({
        "kind": kind(image.kind),
        "state": image_state(image.state),
        "of": stat.of,
        "at_ms": image.at_ms,
    }))
}

fn kind(kind: ImageKind) -> &'static str {
    match kind {
        ImageKind::Original => "original",
        ImageKind::Snapshot => "snapshot",
        ImageKind::Clone => "clone",
    }
}

fn image_state(state: ImageState) -> &'static str {
    match state {
        ImageState::Copying { .. } => "being made",
        ImageState::Ready => "in use",
        ImageState::Deleting => "being deleted",
    }
}

fn copy_of(stat: &VolumeStat) -> String {
    match (stat.image, &stat.of) {
        (None, _) => "-".into(),
        (Some(image), Some(of)) => format!("{} of {of}", kind(image.kind)),
        (Some(image), None) => kind(image.kind).into(),
    }
}

pub(super) fn writer_json(stat: &VolumeStat) -> Option<Value> {
    stat.writer.as_ref().map(|writer| {
        json!({
            "client": writer.client,
            "node": writer.node.0,
            "node_name": stat.node,
            "node_up": stat.node.is_some(),
        })
    })
}

pub(super) const COLUMNS: &[Column<ShownVolume>] = &[
    ("volume", |row| row.stat.region.name.clone()),
    ("pool", |row| row.stat.region.pool.clone()),
    ("scheme", |row| row.stat.region.scheme.clone()),
    ("size ", |row| bytes(row.stat.region.size_bytes)),
    ("groups ", |row| row.stat.region.groups.len().to_string()),
    ("limit", |row| limit(&row.stat, "-")),
    ("cache", |row| cache(&row.stat).into()),
    ("copy", |row| copy_of(&row.stat)),
    ("shared", |row| {
        if row.stat.is_shared { "yes" } else { "-" }.into()
    }),
    ("attached to", |row| attached(&row.stat)),
    ("state", state),
];

pub(super) fn attached(stat: &VolumeStat) -> String {
    match (&stat.writer, &stat.node) {
        _ if !stat.doors.is_empty() => {
            format!("{SHARED_CLIENTS} through {}", stat.doors.join(", "))
        }
        (None, _) => "nobody".into(),
        (Some(writer), Some(node)) => format!("{} through {node}", writer.client),
        (Some(writer), None) => format!(
            "nobody ({} had it through node {}, which has ended)",
            writer.client, writer.node
        ),
    }
}

fn state(row: &ShownVolume) -> String {
    let stat = &row.stat;
    match (stat.region.lost.len(), stat.region.groups.len()) {
        (0, _) if row.waits.is_some() => row.waits.clone().unwrap_or_default(),
        (0, _) => stat
            .image
            .map_or("in use", |image| image_state(image.state))
            .into(),
        (lost, of) => format!("{lost} of {of} groups lost"),
    }
}

fn can_grow_to(stat: &VolumeStat) -> String {
    let kind = stat.image.map(|image| image.kind);
    match kind == Some(ImageKind::Snapshot) {
        true => "nothing: a snapshot stays as it is".into(),
        false => bytes(stat.region.capacity_bytes),
    }
}

fn copied(stat: &VolumeStat) -> String {
    let at = stat.image.and_then(|image| {
        let at = chrono::DateTime::from_timestamp_millis(image.at_ms as i64)?;
        let at = at.format("%Y-%m-%d %H:%M:%S");
        (image.at_ms > 0).then(|| format!(", {at} UTC"))
    });
    format!("{}{}", copy_of(stat), at.unwrap_or_default())
}

pub(super) fn described(row: &ShownVolume) -> String {
    let stat = &row.stat;
    let region = &stat.region;
    let groups: Vec<String> = region.groups.iter().map(ToString::to_string).collect();
    properties([
        ("name", region.name.clone()),
        ("pool", region.pool.clone()),
        ("scheme", region.scheme.clone()),
        (
            "ends at",
            format!(
                "{} ({})",
                bytes(region.size_bytes),
                count(region.size_bytes, "byte")
            ),
        ),
        ("can grow to, with its groups", can_grow_to(stat)),
        ("data buckets", memory::buckets(region)),
        ("limit", limit(stat, "none")),
        ("writes are answered", answered(stat).into()),
        ("copy", copied(stat)),
        ("shared", if stat.is_shared { "yes" } else { "no" }.into()),
        ("attached to", attached(stat)),
        ("sessions so far", stat.session.to_string()),
        ("groups", groups.join(" ")),
        ("state", state(row)),
    ])
}

/// A volume's limit as programs read it.
fn limit_json(stat: &VolumeStat) -> Option<Value> {
    stat.limit.map(|limit| {
        json!({
            "iops": limit.iops,
            "bytes_per_second": limit.bytes_per_second,
            "burst_seconds": limit.burst_ms as f64 / 1000.0,
        })
    })
}

/// A volume's limit in words, or this if it has none.
pub(super) fn limit(stat: &VolumeStat, none: &str) -> String {
    let Some(limit) = stat.limit else {
        return none.to_owned();
    };
    let requests = limit
        .iops
        .map(|iops| format!("{} requests/s", number(iops)));
    let bytes = limit
        .bytes_per_second
        .map(|count| format!("{}/s", bytes(count)));
    let parts: Vec<String> = requests.into_iter().chain(bytes).collect();
    parts.join(", ")
}
