//! A host of one node, for tests: it serves the only bucket of a cache without copies, and has no lease yet.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use staves_client::RouterOptions;
use staves_directory::{CallFuture, Directory, Life, Transport, TransportError};
use staves_model::{
    Change, ClientId, ClusterMap, Epoch, GroupId, GroupStep, MemberId, MemberSlot, NewEpoch,
    NodeId, testing,
};
use staves_net::{Identity, InFlight, PeerOptions, Peers};
use staves_store::Arena;

use super::Host;
use super::services::SERVICES;
use crate::clock::Clock;
use crate::config::Config;
use crate::disks::{Disks, StartedDisks};
use crate::forward::{NodeRouter, NodeTransport};
use crate::witness::Witness;

struct Alone;

impl Transport for Alone {
    fn call(&self, _: Option<NodeId>, addr: &str, _: Bytes, _: Duration) -> CallFuture {
        let (addr, reason) = (addr.to_owned(), "nobody listens".to_owned());
        Box::pin(async move { Err(TransportError::Refused { addr, reason }) })
    }
}

/// The host, whose directory never starts: the test plays it.
pub(crate) fn host(lease: Duration) -> Arc<Host> {
    host_and_directory(lease).0
}

/// The same, and that directory.
pub(crate) fn host_and_directory(lease: Duration) -> (Arc<Host>, Directory) {
    let disks = StartedDisks::open(None, 0, 0).expect("none").disks;
    host_with_disks(lease, disks)
}

/// The same, with disks.
pub(super) fn host_with_disks(lease: Duration, disks: Arc<Disks>) -> (Arc<Host>, Directory) {
    let mut map = testing::cluster_with_pool(1, "1+0", 1);
    let (group, epoch) = (GroupId(1), Epoch(1));
    let life = Life {
        cluster: map.cluster,
        node: NodeId(1),
        incarnation: map.nodes[&NodeId(1)].incarnation,
    };
    let mut options = crate::start::host_options(&Config::default(), InFlight::new(usize::MAX));
    options.group.lease = lease;
    let identity = Identity::admin(life.cluster);
    let peers = Peers::new(identity, PeerOptions::default(), Arc::new(|_, _| {}));
    let arena = Arena::new(64 << 20).expect("memory");
    let clock = Clock::start();
    let host = Arc::new(Host::new(
        life,
        clock,
        arena,
        peers,
        options,
        SERVICES.to_vec(),
        disks,
    ));
    let facts = testing::node_facts("n1", 1 << 30);
    let directory = Directory::open(staves_directory::Options::new(facts), Arc::new(Alone));
    let directory = directory.expect("in memory");
    let (witness, _) = Witness::new(directory.map());
    let transport = NodeTransport::new(&host, directory.clone(), witness);
    let (client, options) = (ClientId(9), RouterOptions::default());
    host.set_router(NodeRouter::new(transport, client, Arc::default(), options));
    let mut follow = |change| {
        map.apply(None, &change).expect("by the rules");
        host.follow(Arc::new(ClusterMap::clone(&map)));
        host.tick();
    };
    follow(Change::CommitEpochs(vec![NewEpoch {
        group,
        epoch,
        members: vec![Some(MemberId::new(life.node, life.incarnation))],
        kept: vec![None],
        coordinator: MemberSlot(0),
        fresh: true,
    }]));
    follow(Change::step(GroupStep::Open { group, epoch }));
    assert_eq!(host.data_buckets(), 1, "it serves");
    (host, directory)
}
