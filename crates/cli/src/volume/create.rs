//! `staves volume create`: a new volume, and the pool that it is made in.

use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_client::{VolumeKind, VolumeStat};
use staves_model::policy::too_few_nodes;
use staves_model::{ClusterMap, Medium, Scheme, ServiceId};
use staves_node::config::Size;

use super::print_result;

/// The pool that a volume is made in where none is named.
const USUAL_POOL: &str = "memory";

/// The moment at which a write is answered.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum CacheMode {
    /// Once it is on the disks of all copies
    Durable,
    /// Once all copies hold it in memory
    Writeback,
}

// No doc comment: clap would take it for the command's description.
#[derive(clap::Args, Debug)]
pub struct CreateOptions {
    /// Its name, which is that of its NBD export
    name: String,
    /// Its length: the bytes that its clients see, whatever disks and memory nodes have for pools
    #[arg(long, value_name = "SIZE")]
    size: Size,
    /// The pool, of kind memory, on disk or not [default: that of the name 'memory']
    #[arg(long)]
    pool: Option<String>,
    /// Bytes of each data bucket of its groups, a power of two from 64MiB to 1GiB [default: as suits its length]
    #[arg(long, value_name = "SIZE")]
    bucket: Option<Size>,
    /// Let several clients write at a time, as file systems of clusters do: nothing keeps their writes apart but these
    #[arg(long, conflicts_with = "cache")]
    shared: bool,
    /// The moment at which a write is answered: once the disks of all copies have it, or once all copies hold it in memory and a flush
    /// waits for their disks
    #[arg(long, value_enum, default_value_t = CacheMode::Durable)]
    cache: CacheMode,
}

pub fn run(session: &Cluster, options: &CreateOptions, out: Format) -> anyhow::Result<()> {
    let pool = match &options.pool {
        Some(pool) => pool.clone(),
        None => usual_pool(&*session.map()?, &options.name)?,
    };
    session.check_regions(&pool)?;
    let client = &session.client;
    let (name, size) = (&options.name, options.size.0);
    let bucket = options.bucket.map(|bucket| bucket.0);
    let kind = match (options.shared, options.cache) {
        (true, _) => VolumeKind::Shared,
        (_, CacheMode::Writeback) => VolumeKind::Writeback,
        (_, CacheMode::Durable) => VolumeKind::Durable,
    };
    let stat = session.wait(client.create_volume_with(&pool, name, (size, bucket), kind))?;
    created(session, &stat, out)
}

/// The usual pool; if there is none of its name, an error with those that there are, or how to make one.
fn usual_pool(map: &ClusterMap, volume: &str) -> Result<String, Failure> {
    if map.pool_named(USUAL_POOL).is_some() {
        return Ok(USUAL_POOL.to_owned());
    }
    let able = map.pools.values();
    let able = able.filter(|pool| pool.kind.service() == Some(ServiceId::MEMORY));
    let able: Vec<String> = able
        .map(|pool| match pool.medium {
            Medium::Disk => format!("--pool {} (on disk)", pool.name),
            Medium::Ram => format!("--pool {} (in memory)", pool.name),
        })
        .collect();
    let text = match &able[..] {
        [] => format!(
            "volume '{volume}' needs a pool of kind memory, and there is none: 'staves pool create vols --kind memory --medium disk --memory SIZE' \
             makes one on the nodes' disks (without '--medium disk' in their memory); then give --pool vols"
        ),
        some => format!(
            "volume '{volume}' needs the name of its pool: there is none of the name '{USUAL_POOL}', so give {}",
            some.join(", or ")
        ),
    };
    Err(Failure::Own(Own::Usage, text))
}

fn created(session: &Cluster, stat: &VolumeStat, out: Format) -> anyhow::Result<()> {
    let scheme: Option<Scheme> = stat.region.scheme.parse().ok();
    let map = session.client.map();
    let few = scheme.and_then(|scheme| too_few_nodes(&map, &stat.region.name, scheme));
    let what = match stat.is_shared {
        true => "created, shared",
        false => "created",
    };
    print_result(out, stat, what, few.map(|few| few.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use staves_model::PoolKind;
    use staves_model::testing::cluster_with_pool;

    #[test]
    fn without_a_pools_name_those_that_there_are_are_named() {
        let mut map = cluster_with_pool(3, "1+1", 2);
        let said = |map: &ClusterMap| usual_pool(map, "disk").expect_err("none").to_string();
        assert!(
            said(&map).contains("--kind memory --medium disk"),
            "{}",
            said(&map)
        );
        let mut pool = map.pools.values().next().cloned().expect("a pool");
        pool.kind = PoolKind::Memory {
            regions: Vec::new(),
        };
        for (id, name, medium) in [(7, "scratch", Medium::Ram), (8, "vols", Medium::Disk)] {
            let mut pool = pool.clone();
            (pool.id, pool.name, pool.medium) = (staves_model::PoolId(id), name.into(), medium);
            map.pools.insert(pool.id, pool);
        }
        let text = said(&map);
        assert!(
            text.ends_with("give --pool scratch (in memory), or --pool vols (on disk)"),
            "{text}"
        );
        (pool.id, pool.name) = (staves_model::PoolId(9), USUAL_POOL.into());
        map.pools.insert(pool.id, pool);
        assert_eq!(usual_pool(&map, "disk").ok().as_deref(), Some(USUAL_POOL));
    }
}
