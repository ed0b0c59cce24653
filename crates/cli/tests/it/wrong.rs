//! Values of flags that are no values.

use crate::staves;

/// Regression: of a size below zero it was said that there is no flag `-1`.
#[test]
fn sizes_and_times_below_zero_are_told_as_such() {
    let size = "is negative; a size is written for example 64MiB";
    let time = "is negative; a time is written for example 500ms or 2s";
    for (command, said) in [
        ("up --memory -16MiB", size),
        ("up --in-flight-bytes-max -1", size),
        ("up --lease-ms -5s", time),
        ("up --threads -1", "'-1' is no whole number"),
        ("config check --log-bytes-max -1MiB", size),
        ("pool create p --memory -1GiB", size),
        ("pool set p --memory -1GiB", size),
        ("mount a b --read-ahead -1MiB", size),
        ("memory read r --offset -1B", size),
        ("node drain n --wait -5s", time),
        ("status --deadline -5s", time),
        ("bench cache --duration -5s", time),
        ("bench cache --sizes -5", size),
        ("bench memory --size -5MiB", size),
    ] {
        let ran = staves(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(2), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{command}: {}", ran.stderr);
        let unknown = "unexpected argument";
        assert!(!ran.stderr.contains(unknown), "{command}: {}", ran.stderr);
    }
    // A flag whose value is missing is told of all the same.
    let ran = staves(&["up", "--data", "--memory", "1GiB"]);
    assert!(ran.stderr.contains("'--data <VALUE>'"), "{}", ran.stderr);
}

#[test]
fn more_than_anybody_can_use_is_refused() {
    for (command, said) in [
        (
            "mount a b --read-ahead 100TiB",
            "100TiB is too much to fetch ahead of one reader: 1GiB at most",
        ),
        (
            "up --memory 64MiB --in-flight-bytes-max 65MiB",
            "at most memory (or 32MiB, if that is more)",
        ),
        (
            "config check --memory 16MiB --in-flight-bytes-max 33MiB",
            "at most memory (or 32MiB, if that is more)",
        ),
    ] {
        let ran = staves(&command.split(' ').collect::<Vec<_>>());
        assert!(matches!(ran.code, Some(1 | 2)), "{command}: {}", ran.stderr);
        assert!(ran.stderr.contains(said), "{command}: {}", ran.stderr);
    }
    for command in [
        "config show --memory 16MiB --in-flight-bytes-max 32MiB",
        "config show --memory 16MiB",
        "config show --memory 64MiB --in-flight-bytes-max 64MiB",
    ] {
        let ran = staves(&command.split(' ').collect::<Vec<_>>());
        assert_eq!(ran.code, Some(0), "{command}: {}", ran.stderr);
    }
}
