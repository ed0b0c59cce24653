//! `staves volume limit`: the most that a volume's clients may do each second.

use serde_json::{Value, json};
use staves_client::VolumeStat;
use staves_model::VolumeLimit;
use staves_node::config::{Millis, Size};

use super::print_result;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;
use staves_cli_common::output::{bytes, number};

// No doc comment: clap would take it for the command's description.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("limit").required(true).multiple(true).args(["iops", "bytes_per_second", "none"]))]
pub struct LimitOptions {
    /// Its name
    name: String,
    /// Most reads, writes, discards and zeroes a second, together; any number if it is not given
    #[arg(long, value_name = "N")]
    iops: Option<u64>,
    /// Most bytes a second, read and written together; any number if it is not given
    #[arg(long, value_name = "SIZE")]
    bytes_per_second: Option<Size>,
    /// A volume at rest saves up what it may have in this time
    #[arg(long, value_name = "TIME", default_value = "1s")]
    burst: Millis,
    /// Take the limit away
    #[arg(long, conflicts_with_all = ["iops", "bytes_per_second", "burst"])]
    none: bool,
}

pub fn run(session: &Cluster, options: &LimitOptions, out: Format) -> anyhow::Result<()> {
    let name = &options.name;
    let limit = (!options.none).then(|| VolumeLimit {
        iops: options.iops,
        bytes_per_second: options.bytes_per_second.map(|bytes| bytes.0),
        burst_ms: options.burst.0,
    });
    session.wait(session.client.limit_volume(name, limit))?;
    let stat = session.wait(session.client.volume(name))?;
    let what = match limit {
        Some(_) => format!("limited to {}", of(&stat, "nothing")),
        None => "not limited".into(),
    };
    print_result(out, &stat, &what, None)
}

/// A volume's limit as programs read it.
pub fn as_json(stat: &VolumeStat) -> Option<Value> {
    stat.limit.map(|limit| {
        json!({
            "iops": limit.iops,
            "bytes_per_second": limit.bytes_per_second,
            "burst_seconds": limit.burst_ms as f64 / 1000.0,
        })
    })
}

/// A volume's limit in words, or this if it has none.
pub fn of(stat: &VolumeStat, none: &str) -> String {
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
