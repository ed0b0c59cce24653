//! Warnings and refusals of a start.

use super::*;

#[test]
fn a_node_without_a_data_folder_is_told_what_ends_with_it() {
    let mut config = Config::default();
    let voter = forgets(&config, true).expect("it has none");
    assert!(
        voter.contains("the cluster ends with this process"),
        "{voter}"
    );
    let watcher = forgets(&config, false).expect("it has none");
    assert!(watcher.contains("a new id at each start"), "{watcher}");
    config.data = Some("/var/lib/staves".into());
    assert_eq!(forgets(&config, true), None);
}

/// Regression: a node took `--memory 1000GiB` on any machine, and said of memory that it could not have twice why.
#[test]
fn memory_beyond_the_machines_is_refused_in_one_sentence() {
    let total = crate::resident::total_bytes().expect("/proc is there");
    assert!(fits(Size(total), Some(total)).is_ok());
    assert!(fits(Size(u64::MAX), None).is_ok(), "nobody knows");
    let error = fits(Size(total + 1), Some(total)).expect_err("one more");
    assert!(matches!(error, StartError::Memory { .. }), "{error:?}");
    let error = fits(Size(1000 << 30), Some(24 << 30)).expect_err("more");
    assert_eq!(
        error.to_string(),
        "memory is 1000GiB, and this machine has (or lets this process have) 24576 MiB in all; ask for less with --memory"
    );
}

#[test]
fn a_node_that_others_reach_is_warned_if_it_has_no_secret() {
    let mut config = Config::default();
    let [here, others] = ["127.0.0.1:1600", "10.0.0.7:1600"].map(|addr| addr.parse().expect("one"));
    assert_eq!(trusts(&config, here), None);
    assert!(trusts(&config, others).is_some());
    config.secret_file = Some("/etc/staves/secret".into());
    assert_eq!(trusts(&config, others), None);
}
