//! Sessions of gRPC's clients: one writes, and nothing of a former one takes effect.

use std::net::Ipv4Addr;
use std::time::Duration;

use staves_client::Client;
use staves_grpc::{VolumesError, v1};
use staves_testkit::cluster::TestCluster;
use staves_testkit::nbd::{EPERM, NbdClient};
use staves_testkit::wait_until;
use tonic::Code;

use crate::grpc_volumes::{AT_ONCE, TAKE_OVER, client_of, cluster, stub};
use crate::memory::pattern;
use crate::volumes::{MIB, create};

#[test]
fn b1_a_session_that_another_has_followed_writes_nothing() {
    let (cluster, client, runtime) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let (a, b) = (client_of(&cluster, &[0]), client_of(&cluster, &[1]));
        let first = a.attach("v", AT_ONCE).await.expect("attached");
        first.write(1, pattern(1, 5000)).await.expect("written");
        wait_until("the other node knows", || {
            cluster.nodes[1]
                .map()
                .region_named("v")
                .is_some_and(|(_, r)| {
                    r.volume
                        .as_ref()
                        .is_some_and(|volume| volume.writer.is_some())
                })
        });
        let busy = b.attach("v", AT_ONCE).await.expect_err("it has a writer");
        assert_eq!(busy.code(), Some(Code::FailedPrecondition), "{busy}");
        assert!(busy.to_string().contains("attached to 127.0.0.1"), "{busy}");
        first.write(1, pattern(2, 5000)).await.expect("it goes on");
        let second = b.attach("v", TAKE_OVER).await.expect("taken over");
        assert_eq!(second.session(), 2);
        let late = first.write(1, pattern(3, 5000)).await;
        assert!(
            matches!(late, Err(VolumesError::SessionOver(_))),
            "{late:?}"
        );
        // Nor does it by hand, in its own session or the other's, by its own connection or a new one.
        let mut stub = stub(&cluster, 0).await;
        for session in [1, 2, 77] {
            let write = v1::WriteRequest {
                volume: "v".into(),
                session,
                offset: 0,
                data: "late".into(),
            };
            let refused = stub.write(write).await.expect_err("refused");
            assert_eq!(refused.code(), Code::Aborted, "{refused}");
        }
        let read = second.read(1, 5000).await.expect("read");
        assert!(read == pattern(2, 5000), "nothing of the first was done");
        second.write(3, pattern(4, 4096)).await.expect("written");
        std::mem::forget(second);
    });
    // And NBD's clients are kept out by it.
    wait_until("the door knows", || {
        connect_elsewhere(&cluster).is_read_only()
    });
    let refused = connect_elsewhere(&cluster).write(0, b"no");
    assert_eq!(refused.expect_err("taken").number(), Some(EPERM));
}

fn connect_elsewhere(cluster: &TestCluster) -> NbdClient {
    let from = Ipv4Addr::new(127, 0, 0, 7);
    let nbd = cluster.nodes[1].addresses.nbd.expect("the door");
    NbdClient::connect_from(from, nbd, "v").expect("it connects")
}

#[test]
fn b1_a_second_session_of_one_connection_ends_the_first() {
    let (cluster, client, runtime) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let mut stub = stub(&cluster, 0).await;
        let attach = |take_over| v1::AttachRequest {
            volume: "v".into(),
            wait_ms: 0,
            take_over,
        };
        let first = stub.attach(attach(false)).await.expect("attached");
        assert_eq!(first.into_inner().session, 1);
        let refused = stub.attach(attach(false)).await.expect_err("its own");
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let second = stub.attach(attach(true)).await.expect("taken over");
        assert_eq!(second.into_inner().session, 2);
        let write = |session| v1::WriteRequest {
            volume: "v".into(),
            session,
            offset: 0,
            data: "second".into(),
        };
        let refused = stub.write(write(1)).await.expect_err("over");
        assert_eq!(refused.code(), Code::Aborted);
        stub.write(write(2)).await.expect("written");
        let detach = |session| v1::DetachRequest {
            volume: "v".into(),
            session,
        };
        let refused = stub.detach(detach(1)).await.expect_err("over");
        assert_eq!(refused.code(), Code::Aborted);
        stub.detach(detach(2)).await.expect("detached");
        let refused = stub.write(write(2)).await.expect_err("over");
        assert_eq!(refused.code(), Code::Aborted);
    });
}

/// Waits until a volume has no writer.
fn wait_for_free(cluster: &TestCluster, client: &Client, what: &str) {
    wait_until(what, || {
        let stat = cluster.nodes[0].runtime().block_on(client.volume("v"));
        stat.is_ok_and(|stat| stat.writer.is_none())
    });
}

#[test]
fn b1_a_client_that_goes_without_a_word_lets_go_of_its_volume() {
    let (cluster, client, dies) = cluster(2, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    let within = dies.enter();
    let gone = client_of(&cluster, &[0]);
    drop(within);
    let held = dies.block_on(gone.attach("v", AT_ONCE)).expect("attached");
    dies.block_on(held.write(0, pattern(1, 4096)))
        .expect("written");
    dies.shutdown_timeout(Duration::from_secs(1));
    drop((held, gone));
    wait_for_free(&cluster, &client, "the connection's end is noticed");
}

/// A write that waits for a node, and that its client gives up; the client writes something else then.
#[test]
fn b1_a_write_that_its_client_gave_up_does_not_follow_what_comes_next() {
    let (cluster, client, runtime) = cluster(3, "1+1");
    create(&cluster, &client, "v", 10 * MIB);
    runtime.block_on(async {
        let volume = client_of(&cluster, &[0]).attach("v", AT_ONCE).await;
        let volume = volume.expect("attached");
        volume.write(5, "placed").await.expect("written");
        volume.detach().await.expect("detached");
    });
    let map = cluster.nodes[0].map();
    let region = map.region_named("v").expect("made").1;
    let group = &map.groups[&region.groups().next().expect("one")];
    let at = cluster.position(group.members[0].expect("a data bucket").id.node);
    runtime.block_on(async {
        let mut stub = stub(&cluster, (at + 1) % 3).await;
        let attach = v1::AttachRequest {
            volume: "v".into(),
            ..v1::AttachRequest::default()
        };
        let attached = stub.attach(attach.clone()).await.expect("attached");
        let first = attached.into_inner().session;
        let write = |session, data: &'static str| v1::WriteRequest {
            volume: "v".into(),
            session,
            offset: 5,
            data: data.into(),
        };
        stub.write(write(first, "first")).await.expect("written");
        // Its bucket's node stands still; the door is another's.
        cluster.nodes[at].pause(Duration::from_millis(1500));
        let late = stub.write(write(first, "late!"));
        let late = tokio::time::timeout(Duration::from_millis(500), late).await;
        assert!(late.is_err(), "it waits for its bucket: {late:?}");
        // On a loaded machine it may not have come to the door at all, and then nothing is over.
        if let Err(over) = stub.write(write(first, "newer")).await {
            assert_eq!(over.code(), Code::Aborted, "{over}");
            let attached = stub.attach(v1::AttachRequest {
                wait_ms: 30_000,
                ..attach
            });
            let second = attached.await.expect("attached").into_inner().session;
            assert!(second > first);
            stub.write(write(second, "newer")).await.expect("written");
        }
        tokio::time::sleep(Duration::from_millis(2000)).await;
        let reader = client_of(&cluster, &[at]);
        let read = reader.read("v", 5, 5).await.expect("read");
        assert_eq!(&read[..], b"newer");
    });
}
