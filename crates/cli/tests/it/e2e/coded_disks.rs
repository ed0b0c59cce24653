//! Volumes on disk that are coded (m > 1): real nodes are killed, one or all at once, and what was answered is there.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::disks::{Versions, connect, make_volume, start};

/// Rows B7, B8 with two data buckets and one parity bucket: a node is killed while a client writes, and goes on without its disk's part; later all are
/// killed at once.
#[test]
fn b8_a_coded_volume_bears_a_node_and_then_the_power_of_all() {
    const NODES: usize = 4;
    let (mut cluster, ports) = start(NODES);
    make_volume(&cluster, "2+1");
    let mut versions = Versions::new();
    for victim in [1, 2, 3] {
        let stop = AtomicBool::new(false);
        let mut client = connect(ports[0]);
        let before = versions.next;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
            std::thread::sleep(Duration::from_millis(700));
            cluster.end(victim, "-KILL");
            std::thread::sleep(Duration::from_millis(2500));
            stop.store(true, Ordering::Relaxed);
            writer.join().expect("it ends");
        });
        let count = versions.next - before;
        assert!(count > 20, "{count} writes");
        // The bucket that it had is made of the others.
        versions.check(&mut client);
        cluster.up(victim);
        cluster.wait_for("all is whole again", 0, |s| s["state"] == "healthy");
        versions.check(&mut client);
    }
    for port in &ports[..2] {
        let mut client = connect(*port);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| versions.write_until(&mut client, &stop));
            std::thread::sleep(Duration::from_millis(1500));
            for at in 0..NODES {
                cluster.end(at, "-KILL");
            }
            writer.join().expect("it ends with the connection");
        });
        for at in 0..NODES {
            cluster.up(at);
        }
        versions.check(&mut connect(*port));
        cluster.wait_for("all is whole", 0, |s| s["state"] == "healthy");
    }
    // Each node alone may go then.
    for victim in 1..NODES {
        cluster.end(victim, "-KILL");
        versions.check(&mut connect(ports[0]));
        cluster.up(victim);
        cluster.wait_for("all is whole again", 0, |s| s["state"] == "healthy");
    }
}
