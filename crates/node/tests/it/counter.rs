//! A service that the product does not have: one crate, one line in the node's table, one workload.

use std::sync::Arc;
use std::time::Duration;

use staves_conformance::counter::{self, Counter};
use staves_conformance::{Clients, Workload};
use staves_model::{Change, Medium, MemberSlot, PoolKind, ServiceId};
use staves_node::{HostedService, SERVICES};
use staves_service::Service;
use staves_testkit::cluster::{TestCluster, TestNode, config};
use staves_testkit::load::{Load, Native, Random};
use staves_testkit::wait_until;

/// The line.
const COUNTER: HostedService = HostedService {
    id: Counter::ID,
    bucket: |_, member| Box::new(counter::bucket(member)),
};
const CLIENTS: u32 = 12;
/// Of a thousand operations, so many read; they may be of any size.
const READS: (u64, u64) = (250, u64::MAX);

fn create(service: ServiceId, scheme: &str) -> Change {
    Change::CreatePool {
        name: "counters".into(),
        kind: PoolKind::Slots(service),
        scheme: scheme.parse().expect("a scheme"),
        medium: Medium::Ram,
        node_budget_bytes: 16 << 20,
        buckets: 8,
        may_start_empty: false,
    }
}

async fn run_client(
    client: u32,
    load: Arc<Load<counter::Load>>,
    mut door: Native,
) -> Result<(), String> {
    let mut random = Random(u64::from(client));
    let next = |clients: &mut Clients<_>, now| {
        let of = (client, random.below(counter::Load::OBJECTS));
        clients.draw(of, now, READS, &mut |n| random.below(n))
    };
    load.run(&mut door, next).await
}

/// The workload that conforms in one thread holds on real nodes, too, through the client's router, while the node of a
/// data bucket dies.
#[test]
fn a_service_of_one_line_loses_nothing_when_a_node_dies() {
    let services = [SERVICES, &[COUNTER]].concat();
    let mut cluster = TestCluster::start_hosting(4, &services, |_, _| {});
    let made = cluster.nodes[0].propose(&create(Counter::ID, "1+2"));
    made.expect("the pool is made");
    let groups = |cluster: &TestCluster| {
        let map = cluster.nodes[0].map();
        let pool = map.pool_named("counters").cloned();
        let groups = pool.map(|pool| map.groups_of(&pool).cloned().collect::<Vec<_>>());
        groups.unwrap_or_default()
    };
    wait_until("the pool's groups are open", || {
        let groups = groups(&cluster);
        groups.len() == 8 && groups.iter().all(|group| group.open)
    });
    let client = cluster.native_client();
    let runtime = cluster.nodes[0].runtime().handle().clone();
    runtime.block_on(client.refresh()).expect("a map");
    let mut door = Native {
        client,
        pool: "counters",
        patience: Duration::from_secs(10),
    };
    let load = Arc::new(Load::<counter::Load>::default());
    let clients = (0..CLIENTS).map(|at| runtime.spawn(run_client(at, load.clone(), door.clone())));
    let clients: Vec<_> = clients.collect();
    wait_until("the clients are under way", || load.answered() > 300);

    // Not the node that the clients' threads are on.
    let data = |at: usize| {
        groups(&cluster)[at]
            .member(MemberSlot(0))
            .map(|x| x.id.node)
    };
    let owners: Vec<_> = (0..8).filter_map(data).collect();
    let first = cluster.nodes[0].id;
    let victim = owners.iter().find(|node| **node != first);
    let victim = cluster.position(*victim.expect("four nodes share eight data buckets"));
    cluster.nodes[victim].kill();
    let dead = cluster.nodes[victim].id;
    wait_until("others answer for its data buckets", || {
        let groups = groups(&cluster);
        let moved = |data: &staves_model::Member| data.id.node != dead;
        groups
            .iter()
            .all(|group| group.open && group.member(MemberSlot(0)).is_some_and(moved))
    });
    let so_far = load.answered();
    wait_until("the clients go on", || load.answered() > so_far + 300);
    load.stop();
    runtime.block_on(async {
        for client in clients {
            let ended = client.await.expect("a client ends in order");
            ended.expect("counters answer so");
        }
        load.judge(&mut door)
            .await
            .expect("one order explains all answers");
    });
}

/// A pool of a service that nobody hosts would never open.
#[test]
fn a_pool_of_a_service_that_the_node_lacks_is_rejected() {
    let node = TestNode::start(config(None, &[]));
    for (service, why) in [
        (Counter::ID, "service 200"),
        (ServiceId::CACHE, "a kind of its own"),
    ] {
        let refused = node.propose(&create(service, "1+0"));
        let text = refused.expect_err("it is rejected");
        assert!(text.contains(why), "{text}");
    }
}
