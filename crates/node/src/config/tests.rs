//! Layers, slips, and the example file.

use super::*;

fn none() -> Vec<(String, String)> {
    Vec::new()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

fn refused(text: &str) -> String {
    match load_text(Path::new("staves.toml"), text, none(), none()) {
        Err(error) => error.to_string(),
        Ok(_) => format!("accepted: {text}"),
    }
}

#[test]
fn the_later_layer_wins() {
    let file = "memory = \"2GiB\"\njoin = [\"a:1\", \"b:2\"]\nlease_ms = 600\nzone = 'north'\n";
    let env = vec![
        pair("STAVES_MEMORY", "3GiB"),
        pair("STAVES_ZONE", "south"),
        pair("HOME", "/"),
    ];
    let flags = vec![pair("zone", "east")];
    let loaded = load_text(Path::new("f.toml"), file, env, flags).expect("sound");
    let config = &loaded.config;
    assert_eq!(config.memory, Size(3 << 30));
    assert_eq!(config.zone.as_deref(), Some("east"));
    assert_eq!(config.join.show(), "a:1,b:2");
    assert_eq!((config.lease_ms, config.tick_ms), (Millis(600), Millis(25)));
    let shown = loaded.show();
    for part in [
        ("zone = \"east\"", "# --zone"),
        ("memory = \"3GiB\"", "# STAVES_MEMORY"),
        ("join = [\"a:1\", \"b:2\"]", "# f.toml:2"),
        ("lease_ms = 600", "# f.toml:3"),
        ("tick_ms = 25", "# default"),
        ("# data is not set", "# default"),
    ] {
        let found = shown
            .lines()
            .any(|l| l.starts_with(part.0) && l.ends_with(part.1));
        assert!(found, "{part:?} in\n{shown}");
    }
}

#[test]
fn what_is_shown_reads_back_as_the_same() {
    let file =
        "memory = \"2GiB\"\njoin = [\"a:1\", \"b:2\"]\nadvertise = \"h,resp=r:1\"\ndata = \"/a b\"";
    let first = load_text(Path::new("f.toml"), file, none(), none()).expect("sound");
    let second = load_text(Path::new("g.toml"), &first.show(), none(), none()).expect("sound");
    assert_eq!(first.config, second.config);
}

#[test]
fn a_slip_is_named_with_file_line_and_suggestion() {
    assert_eq!(
        refused("zone = \"a\"\n\nmemroy = 1\n"),
        "staves.toml:3: unknown key 'memroy'; did you mean 'memory'?"
    );
    assert_eq!(
        refused("[section]\nmemory = 1\n"),
        "staves.toml:1: unknown key 'section'; 'staves config example' shows all keys"
    );
    assert_eq!(
        refused("\nmemory = \"lots\"\n"),
        "staves.toml:2: memory: 'lots' is no size; write for example 512MiB or 1GB"
    );
    assert!(refused("memory = 2024-01-01").starts_with("staves.toml:1: memory: a date"));
    assert!(refused("a = 1\nb = = 2\n").starts_with("staves.toml:2: "));
    assert!(
        refused("memory = 1\nmemory = 2\n").starts_with("staves.toml:2: "),
        "set twice"
    );
    let flags = vec![pair("value_bytes_max", "x")];
    let error = load_text(Path::new(""), "", none(), flags).expect_err("no size");
    assert!(
        error
            .to_string()
            .starts_with("--value-bytes-max: 'x' is no size")
    );
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let error =
        load(Some(Path::new("/no/such/staves.toml")), none(), none()).expect_err("not there");
    assert!(
        error
            .to_string()
            .starts_with("cannot read the configuration file /no/such/staves.toml: ")
    );
}

#[test]
fn values_must_go_together() {
    for (text, part) in [
        ("memory = \"1MiB\"", "memory must be at least"),
        ("voters_max = 4", "voters_max"),
        ("buckets = 48", "power of two"),
        ("scheme = \"2+1\"", "scheme must be 1+k"),
        ("lease_ms = 50", "lease_ms"),
        ("election_min_ms = 700", "election_max_ms"),
        ("value_bytes_max = \"1GiB\"", "value_bytes_max"),
        ("threads = 5000", "threads"),
        ("tls_cert = \"c\"", "tls_cert and tls_key go together"),
        ("tls_key = \"k\"", "tls_cert and tls_key go together"),
        ("tls_client_ca = \"a\"", "tls_client_ca needs both"),
        ("nbd_tls = \"offered\"", "nbd_tls needs a certificate"),
        ("nbd_tls = \"required\"", "nbd_tls needs a certificate"),
        ("nbd_tls = \"on\"", "'on' is none of 'off'"),
        (
            "listen = \"h:1\"\nadmin = \"h:1\"",
            "addresses of their own",
        ),
        // What only the directory or its map would refuse.
        ("listen = \"0.0.0.0:1600\"", "set advertise"),
        ("pool = \"\"", "pool name"),
        ("pool = \"a\\nb\"", "control character"),
        ("scheme = \"1+9\"", "1+9"),
        ("buckets = 8192", "buckets"),
    ] {
        let error = refused(text);
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// Regression: what did not hold together had no file, line or value.
#[test]
fn what_does_not_hold_together_is_named_with_file_line_and_value() {
    for (line, others, part) in [
        ("scheme = \"4+2\"", "", "scheme must be 1+k"),
        ("buckets = 63", "", "buckets must be a power of two"),
        ("memory = \"1KiB\"", "", "memory must be at least 16MiB"),
        ("voters_max = 4", "", "voters_max must be 1, 3"),
        ("clients_max = 0", "", "clients_max must be"),
        ("threads = 9999", "", "threads may be at most"),
        ("pool = \"\"", "", "pool name '"),
        ("pool = \"a\\nb\"", "", "pool name '"),
        ("value_bytes_max = \"1GiB\"", "", "value_bytes_max must be"),
        (
            "election_min_ms = 900",
            "; election_max_ms = 600 by default",
            "election_max_ms must be greater",
        ),
        (
            "lease_ms = 50",
            "; tick_ms = 25 by default",
            "lease_ms must be at least",
        ),
        ("listen = \"0.0.0.0:1600\"", "", "0.0.0.0:1600 stands for"),
        (
            "admin = \"127.0.0.1:1600\"",
            "",
            "listen, resp, admin, nbd, grpc and http",
        ),
    ] {
        let error = refused(&format!("zone = \"a\"\n{line}\nlog = \"warn\"\n"));
        let start = format!("staves.toml:2: {line}{others}: {part}");
        assert!(error.starts_with(&start), "{error}\n{start}");
    }
    // Both were set, and neither alone is wrong.
    let error = refused("listen = \"h:1\"\nadmin = \"h:1\"");
    let start = "staves.toml:1: listen = \"h:1\"; staves.toml:2: admin = \"h:1\": listen, resp";
    assert!(error.starts_with(start), "{error}");
    let env = vec![pair("STAVES_BUCKETS", "63")];
    let error = load_text(Path::new(""), "", env, none()).expect_err("63");
    let start = "STAVES_BUCKETS=63: buckets must be";
    assert!(error.to_string().starts_with(start), "{error}");
    let flags = vec![pair("voters_max", "4")];
    let error = load_text(Path::new(""), "", none(), flags).expect_err("4");
    let start = "--voters-max=4: voters_max must be";
    assert!(error.to_string().starts_with(start), "{error}");
    // Nobody set it where there is only the configuration.
    let config = Config {
        buckets: 63,
        ..Config::default()
    };
    let error = config.check().expect_err("63").to_string();
    assert!(
        error.starts_with("the configuration does not hold together: buckets"),
        "{error}"
    );
}

#[test]
fn a_variable_for_a_secret_that_is_empty_makes_no_open_node() {
    for key in [
        "STAVES_SECRET_FILE",
        "STAVES_CLIENT_SECRET_FILE",
        "STAVES_TLS_CLIENT_CA",
        "STAVES_NBD_TLS",
    ] {
        let error = load_text(Path::new(""), "", vec![pair(key, " ")], none()).expect_err("empty");
        assert!(
            error.to_string().contains("it is empty: name the file"),
            "{error}"
        );
    }
}

#[test]
fn tls_is_offered_where_there_is_a_certificate_unless_said_otherwise() {
    let policy = |text: &str| {
        let loaded = load_text(Path::new("f.toml"), text, none(), none()).expect("sound");
        loaded.config.nbd_tls_policy()
    };
    let with = "tls_cert = \"c\"\ntls_key = \"k\"\n";
    assert_eq!(policy(""), TlsPolicy::Off);
    assert_eq!(policy("nbd_tls = \"off\""), TlsPolicy::Off);
    assert_eq!(policy(with), TlsPolicy::Offered);
    for (text, expected) in [("off", TlsPolicy::Off), ("required", TlsPolicy::Required)] {
        assert_eq!(policy(&format!("{with}nbd_tls = \"{text}\"")), expected);
    }
}

#[test]
fn a_plain_number_is_taken_only_where_the_key_says_the_unit() {
    let file = "lease_ms = 600\ntick_ms = \"20ms\"\nlog_bytes_max = 1048576\n";
    let config = load_text(Path::new("f.toml"), file, none(), none())
        .expect("sound")
        .config;
    assert_eq!((config.lease_ms, config.tick_ms), (Millis(600), Millis(20)));
    assert_eq!(config.log_bytes_max, Size(1 << 20));
    assert_eq!(
        refused("memory = 100"),
        "f.toml:1: memory: '100' has no unit; say 100MiB, 100GiB or, for bytes, 100B"
            .replace("f.toml", "staves.toml")
    );
    let env = vec![pair("STAVES_LEASE_MS", "700")];
    let loaded = load_text(Path::new(""), "", env, none()).expect("sound");
    assert_eq!(loaded.config.lease_ms, Millis(700));
}

#[test]
fn strange_variables_are_not_ours_and_slips_are_warned_of() {
    let env = vec![
        pair("STAVES_SERVICE_HOST", "10.0.0.1"),
        pair("STAVES_PORT_1600_TCP", "tcp://10.0.0.1:1600"),
        pair("STAVES_CLUSTER", "10.0.0.1:1600"),
        pair("STAVES_MEMROY", "1GiB"),
    ];
    let loaded = load_text(Path::new(""), "", env, none()).expect("sound");
    assert_eq!(
        loaded.warnings,
        ["the variable STAVES_MEMROY is not one of ours; did you mean STAVES_MEMORY?"]
    );
}

#[test]
fn the_example_changes_nothing_and_names_every_key() {
    let text = example();
    let commented = load_text(Path::new("e.toml"), &text, none(), none()).expect("sound");
    assert_eq!(commented.config, Config::default());
    assert!(commented.origins.is_empty());
    // Taken literally, every line is right as well.
    let live: String = text
        .lines()
        .filter_map(|l| l.strip_prefix('#'))
        .filter(|l| !l.starts_with(' '))
        .map(|l| format!("{l}\n"))
        .collect();
    let literal = load_text(Path::new("e.toml"), &live, none(), none()).expect("sound");
    assert_eq!(literal.config, Config::default());
    assert_eq!(literal.origins.len(), KEYS.len());
    assert!(text.lines().all(|line| line.len() <= 100));
}

#[test]
fn every_key_has_a_variable_and_a_sentence() {
    for key in KEYS {
        assert_eq!(
            key.variable(),
            format!("STAVES_{}", key.name.to_uppercase())
        );
        assert!(key.doc.ends_with('.'), "{}", key.name);
    }
}

#[test]
fn clients_are_given_an_address_of_nbd_that_they_can_reach() {
    let given = |file: &str| {
        let loaded = load_text(Path::new("f.toml"), file, none(), none()).expect("sound");
        let native = "10.0.0.9:1600".parse().expect("an address");
        let bound = ([127, 0, 0, 1], 1234).into();
        loaded
            .config
            .door_addresses([Some(bound), None, None], &native)
            .nbd
    };
    assert_eq!(given(""), None);
    let address = |text: &str| Some(text.to_owned());
    assert_eq!(given("nbd = \"10.0.0.1:0\""), address("10.0.0.1:1234"));
    assert_eq!(given("nbd = \"0.0.0.0:0\""), address("10.0.0.9:1234"));
    let advertised = "nbd = \"0.0.0.0:0\"\nadvertise = \"away\"";
    assert_eq!(given(advertised), address("away:1234"));
}
