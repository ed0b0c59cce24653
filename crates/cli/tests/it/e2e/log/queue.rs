//! A work queue in a log, from the shell.

use super::{Cluster, make_pool};

#[test]
fn items_are_pushed_taken_acknowledged_and_given_back_from_the_shell() {
    let cluster = Cluster::start(2);
    make_pool(&cluster, "ram");
    cluster.log(0, &["create", "jobs"], "");
    let queue = |node: usize, command: &str, input: &str| {
        let args: Vec<&str> = command.split(' ').collect();
        cluster.log(node, &[&["queue"], &args[..]].concat(), input)
    };
    let refused = |command: &str| {
        let args: Vec<&str> = command.split(' ').collect();
        cluster.no_log(&[&["queue"], &args[..]].concat(), "")
    };
    assert_eq!(queue(0, "take jobs", ""), "");
    assert_eq!(queue(0, "push jobs --deliveries 1", "a\nb\n"), "0\n1\n");
    let first = queue(1, "take jobs --lease 1h --wait 30s", "");
    let claim = first.strip_suffix(" a\n").expect("the first item");
    assert!(claim.starts_with("0:"), "{claim}");
    let second = queue(0, "take jobs --lease 1h -o json", "");
    let second: serde_json::Value = serde_json::from_str(&second).expect("a line of JSON");
    assert_eq!(
        (&second["value"], &second["deliveries"]),
        (&"b".into(), &1.into())
    );
    assert_eq!(queue(0, "take jobs", ""), "", "both are held");
    let done = queue(0, &format!("ack jobs {claim}"), "");
    assert_eq!(done, "1 items of log 'jobs': acknowledged\n");
    let again = refused(&format!("ack jobs {claim}"));
    assert!(
        again.contains("these were not") && again.contains(": 0."),
        "{again}"
    );
    let second = second["claim"].as_str().expect("a claim");
    queue(1, &format!("return jobs {second}"), "");
    // It was delivered as often as it may be.
    let stat = queue(0, "stat jobs -o json", "");
    let stat: serde_json::Value = serde_json::from_str(&stat).expect("JSON");
    assert_eq!(
        (&stat["dead"], &stat["oldest"]),
        (&1.into(), &1.into()),
        "{stat}"
    );
    assert_eq!(queue(0, "dead jobs", ""), "1 b\n");
    queue(0, "revive jobs 1", "");
    let held = queue(0, "take jobs", "");
    assert!(held.ends_with(" b\n"), "{held}");
    queue(
        0,
        &format!("return jobs {}", held.trim_end_matches(" b\n")),
        "",
    );
    queue(1, "discard jobs 1", "");
    let cursor = cluster.log(0, &["cursor", "get", "jobs", "queue-1"], "");
    assert!(
        cursor.trim().parse::<u64>().is_ok_and(|at| at > 1),
        "{cursor}"
    );
    let wrong = refused("discard jobs 1");
    assert!(wrong.contains("queue stat jobs"), "{wrong}");
    is_refused_where_items_would_go(&cluster);
}

/// Acknowledgements would find the log full, too, or the items would go.
fn is_refused_where_items_would_go(cluster: &Cluster) {
    for rule in ["refuse", "discard"] {
        let create = ["create", rule, "--keep-records", "5", "--when-full", rule];
        cluster.log(0, &create, "");
        let wrong = cluster.no_log(&["queue", "take", rule], "");
        assert!(wrong.contains("--when-full keep"), "{wrong}");
    }
}
