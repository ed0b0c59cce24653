//! INFO and CONFIG GET: the node in the words of Redis, for tools that read them.

use std::fmt::Write;

use super::facts::Facts;
use super::parse::Args;
use super::redirect::Redirect;

/// The version of Redis whose behaviour the door follows, for clients that choose features by it.
pub const REDIS_VERSION: &str = "7.0.15";

/// The section's name, whether it is among the default ones, and what writes it.
type Section = (&'static str, fn(&Facts, &mut String));

const SECTIONS: &[Section] = &[
    ("Server", server),
    ("Clients", clients),
    ("Memory", memory),
    ("Persistence", persistence),
    ("Stats", stats),
    ("Replication", replication),
    ("CPU", cpu),
    ("Cluster", cluster),
    ("Staves", staves),
    ("Keyspace", keyspace),
];

/// The text of `INFO [section ...]`.
pub fn info(args: Args<'_>, facts: &Facts) -> String {
    let asked: Vec<String> = args
        .iter_from(1)
        .map(|a| String::from_utf8_lossy(a).to_ascii_lowercase())
        .collect();
    let all = asked.is_empty()
        || asked
            .iter()
            .any(|a| matches!(a.as_str(), "all" | "default" | "everything"));
    let mut text = String::new();
    for (name, write) in SECTIONS {
        if all || asked.contains(&name.to_ascii_lowercase()) {
            if !text.is_empty() {
                text.push_str("\r\n");
            }
            let _ = write!(text, "# {name}\r\n");
            write(facts, &mut text);
        }
    }
    text
}

macro_rules! lines {
    ($text:expr, $($key:literal = $value:expr),* $(,)?) => {
        // Writing to a String cannot fail.
        $(let _ = write!($text, "{}:{}\r\n", $key, $value);)*
    };
}

fn server(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "redis_version" = REDIS_VERSION,
        "staves_version" = facts.brief.version,
        "redis_mode" = facts.brief.redirect.mode(),
        "os" = std::env::consts::OS,
        "arch_bits" = usize::BITS,
        "process_id" = std::process::id(),
        "run_id" = super::cluster::node_name(facts.map.cluster, facts.node),
        "tcp_port" = facts.port,
        "server_time_usec" = facts.brief.unix_time.as_micros(),
        "uptime_in_seconds" = facts.brief.uptime.as_secs(),
        "uptime_in_days" = facts.brief.uptime.as_secs() / 86_400,
        "config_file" = facts.config_file,
    );
}

fn clients(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "connected_clients" = facts.connected.max(1),
        "maxclients" = facts.clients_max,
        "blocked_clients" = 0,
    );
}

fn memory(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "used_memory" = facts.used_bytes,
        "used_memory_human" = human(facts.used_bytes),
        "maxmemory" = facts.budget_bytes,
        "maxmemory_human" = human(facts.budget_bytes),
        "maxmemory_policy" = "noeviction",
    );
}

fn persistence(_: &Facts, text: &mut String) {
    lines!(
        text,
        "loading" = 0,
        "rdb_bgsave_in_progress" = 0,
        "aof_enabled" = 0
    );
}

fn stats(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "total_connections_received" = facts.connections_total,
        "total_commands_processed" = facts.commands_total,
        "keyspace_hits" = facts.hits_total,
        "keyspace_misses" = facts.misses_total,
        "expired_keys" = 0,
        "evicted_keys" = 0,
    );
}

fn replication(_: &Facts, text: &mut String) {
    // Every node takes writes; copies are per bucket.
    lines!(text, "role" = "master", "connected_slaves" = 0);
}

fn cpu(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "used_cpu_sys" = format_args!("{:.6}", facts.cpu_system.as_secs_f64()),
        "used_cpu_user" = format_args!("{:.6}", facts.cpu_user.as_secs_f64()),
    );
}

fn cluster(facts: &Facts, text: &mut String) {
    lines!(
        text,
        "cluster_enabled" = u8::from(facts.brief.redirect == Redirect::Moved)
    );
}

fn staves(facts: &Facts, text: &mut String) {
    let scheme = facts
        .pool()
        .map(|p| p.scheme.to_string())
        .unwrap_or_default();
    lines!(
        text,
        "node" = facts.node,
        "cluster" = facts.map.cluster,
        "map_revision" = facts.map.revision,
        "pool" = facts.pool,
        "scheme" = scheme,
        "directory_leader" = u8::from(facts.leads_directory),
    );
}

fn keyspace(facts: &Facts, text: &mut String) {
    if facts.keys > 0 {
        let _ = write!(text, "db0:keys={},expires=0,avg_ttl=0\r\n", facts.keys);
    }
}

/// The options of Redis that clients and tools read by CONFIG GET, with their values here.
pub fn config_options(facts: &Facts) -> Vec<(&'static str, String)> {
    let text = String::from;
    let cluster = match facts.brief.redirect {
        Redirect::Forward => "no",
        Redirect::Moved => "yes",
    };
    vec![
        ("save", text("")),
        ("appendonly", text("no")),
        ("appendfsync", text("no")),
        ("maxmemory", facts.budget_bytes.to_string()),
        ("maxmemory-policy", text("noeviction")),
        ("maxclients", facts.clients_max.to_string()),
        ("databases", text("1")),
        ("timeout", text("0")),
        ("port", facts.port.to_string()),
        ("cluster-enabled", text(cluster)),
        ("proto-max-bulk-len", facts.value_bytes_max.to_string()),
        ("notify-keyspace-events", text("")),
        ("requirepass", text("")),
    ]
}

/// Bytes as Redis shows them.
fn human(bytes: u64) -> String {
    let units = [
        ("T", 1u64 << 40),
        ("G", 1 << 30),
        ("M", 1 << 20),
        ("K", 1 << 10),
    ];
    let unit = units.into_iter().find(|(_, size)| bytes >= *size);
    unit.map_or(format!("{bytes}B"), |(name, size)| {
        format!("{:.2}{name}", bytes as f64 / size as f64)
    })
}
