//! Changes of volumes beside those that others make.

use bytes::Bytes;
use staves_model::{
    Change, ClusterMap, ImageKind, Incarnation, NodeId, Region, Volume, VolumeCopy, VolumeWriter,
    testing,
};
use staves_net::Reply;
use staves_wire::Message;
use staves_wire::directory::{Propose, Proposed};

use crate::cluster::{Cluster, World, block_on};

impl World {
    /// Does what the directory does with a proposal.
    pub fn propose(&mut self, proposal: &Propose, reply: Reply) {
        let mut map = ClusterMap::clone(&self.map);
        if let Some(change) = self.made_before.take() {
            map.apply(None, &change).expect("it is made");
        }
        let change = postcard::from_bytes(&proposal.change).expect("a change");
        let made = map.apply(proposal.expected, &change);
        let revision = map.revision;
        self.map = map.into();
        reply.send(&Message::Proposed(match made {
            Ok(_) => Proposed::Applied {
                revision,
                outcome: Bytes::new(),
            },
            Err(refusal) => Proposed::Refused {
                revision,
                reason: refusal.to_string(),
            },
        }));
    }

    fn make(&mut self, change: &Change) {
        let mut map = ClusterMap::clone(&self.map);
        map.apply(None, change).expect("it is made");
        self.map = map.into();
    }
}

fn volume(map: &ClusterMap) -> (&Region, &Volume) {
    let (_, region) = map.region_named("v").expect("the volume");
    (region, region.volume.as_ref().expect("a volume"))
}

/// A snapshot raises the session, and the same client goes on: whoever ends the one of before ends nothing.
#[test]
fn a_volume_is_detached_though_a_snapshot_is_made_just_before() {
    block_on(async {
        let cluster = Cluster::start(1).await;
        let client = cluster.client().await;
        {
            let mut world = cluster.world.lock();
            world.make(&testing::create_memory_pool("memory", "1+0", 1 << 29));
            world.make(&Change::CreateVolume {
                pool: "memory".into(),
                name: "v".into(),
                size_bytes: 1 << 20,
            });
            let id = volume(&world.map).0.id;
            let node = NodeId(1);
            let incarnation = world.map.nodes.get(&node).map(|node| node.incarnation);
            world.make(&Change::AttachVolume {
                volume: id,
                after: 0,
                writer: VolumeWriter {
                    node,
                    incarnation: incarnation.unwrap_or(Incarnation::NONE),
                    client: "1.2.3.4:5".into(),
                },
            });
            world.made_before = Some(Change::CopyVolumes {
                copies: vec![VolumeCopy {
                    of: "v".into(),
                    name: "monday".into(),
                }],
                kind: ImageKind::Snapshot,
                at_ms: 0,
            });
        }
        let detached = client.detach_volume("v").await;
        assert!(detached.expect("it answers"), "somebody had it");
        let map = cluster.world.lock().map.clone();
        let (_, volume) = volume(&map);
        assert_eq!(volume.session, 2, "the snapshot came first");
        assert_eq!(volume.writer, None, "nobody has it any more");
    });
}
