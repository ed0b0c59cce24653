//! Leases for the data buckets that this node serves: asked for together, often enough that one lost
//! answer does not end them (GROUP, promises and leases; rule 13 for nodes without any).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use staves_directory::Directory;
use staves_group::Event;
use tokio::sync::Semaphore;

use super::Host;

/// Most questions under way: a slow answer must not hold up the next question, whose lease is longer.
const UNDER_WAY_MAX: usize = 3;

/// Asks again and again.
pub(crate) async fn run(host: Arc<Host>, directory: Directory) {
    let lease = host.options.group.lease;
    // Three questions in the time of a lease.
    let every = lease * 3 / 10;
    let under_way = Arc::new(Semaphore::new(UNDER_WAY_MAX));
    loop {
        // Who is woken early still leaves the leader some rest: maps come in bursts.
        let early = async {
            tokio::time::sleep(every / 8).await;
            host.lease_wake.notified().await;
        };
        let _ = tokio::time::timeout(every, early).await;
        let Ok(permit) = under_way.clone().acquire_owned().await else {
            return;
        };
        let (host, directory) = (host.clone(), directory.clone());
        tokio::spawn(async move {
            ask(&host, &directory, lease).await;
            drop(permit);
        });
    }
}

async fn ask(host: &Host, directory: &Directory, patience: Duration) {
    let routes = host.routes();
    let wanted = routes.cells().filter_map(|cell| {
        let state = cell.lock();
        let member = state.bucket.as_ref()?.member();
        member.serving().then(|| (cell.group, member.epoch()))
    });
    // One that holds two data buckets of a group asks for both at once.
    let wanted: BTreeSet<_> = wanted.collect();
    let wanted = wanted.into_iter().collect();
    let clock = host.clock.now();
    let granted = match directory.lease(clock, wanted, patience).await {
        Ok(granted) => granted,
        Err(error) => {
            tracing::debug!(%error, "no leases");
            return;
        }
    };
    host.heard(clock, &granted.heard);
    let routes = host.routes();
    let incarnation = host.life.incarnation;
    for (group, epoch) in granted.granted {
        for cell in routes.cells_of(group) {
            let event = Event::Lease {
                epoch,
                incarnation,
                clock,
            };
            cell.step(host, host.clock.now(), event);
        }
    }
    host.peers.flush();
}
