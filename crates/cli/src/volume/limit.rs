//! `staves volume limit`: the most that a volume's clients may do each second.

use staves_model::VolumeLimit;
use staves_node::config::{Millis, Size};

use super::print_result;
use super::shown;
use staves_cli_common::cluster::Cluster;
use staves_cli_common::options::Format;

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
        Some(_) => format!("limited to {}", shown::limit(&stat, "nothing")),
        None => "not limited".into(),
    };
    print_result(out, &stat, &what, None)
}
