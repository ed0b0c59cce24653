//! Metrics: every name, unit and meaning in one place. Stable names; what is asked for is counted then.

use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::node::Running;

/// All metrics of a node in Prometheus's text format.
pub(crate) fn text(running: &Running) -> String {
    let mut page = Page::default();
    door(running, &mut page);
    buckets(running, &mut page);
    directory(running, &mut page);
    links(running, &mut page);
    page.0
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "gauge", help);
        let _ = writeln!(self.0, "{name} {value}");
    }

    fn labelled(&mut self, name: &str, label: &str, of: &str, value: u64) {
        let _ = writeln!(self.0, "{name}{{{label}=\"{of}\"}} {value}");
    }
}

fn now(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn door(running: &Running, page: &mut Page) {
    let door = &running.door;
    page.counter(
        "staves_resp_commands_total",
        "Commands taken on the RESP door.",
        now(&door.commands_total),
    );
    page.counter(
        "staves_resp_connections_total",
        "Connections accepted on the RESP door.",
        now(&door.connections_total),
    );
    page.counter(
        "staves_resp_connections_rejected_total",
        "Connections refused because clients_max were open.",
        now(&door.rejected_total),
    );
    page.gauge(
        "staves_resp_connections",
        "Connections open on the RESP door.",
        u64::from(door.connections.load(Ordering::Relaxed)),
    );
    page.counter(
        "staves_resp_read_bytes_total",
        "Bytes read on the RESP door.",
        now(&door.read_bytes_total),
    );
    page.counter(
        "staves_resp_written_bytes_total",
        "Bytes written on the RESP door.",
        now(&door.written_bytes_total),
    );
    page.counter(
        "staves_resp_detoured_operations_total",
        "Operations that took the way by another node or round a takeover.",
        now(&door.detoured_total),
    );
}

fn buckets(running: &Running, page: &mut Page) {
    let host = &running.host;
    let figures = host.figures();
    let name = "staves_cache_buckets";
    page.head(name, "gauge", "Buckets on this node, by what they do.");
    page.labelled(name, "role", "serving", figures.serving);
    page.labelled(name, "role", "opening", figures.waiting_to_serve);
    page.labelled(name, "role", "copy", figures.parity);
    page.gauge(
        "staves_cache_keys",
        "Keys in the data buckets that this node serves.",
        figures.keys,
    );
    page.gauge(
        "staves_cache_live_bytes",
        "Bytes of keys and values in the data buckets that this node serves.",
        figures.live_bytes,
    );
    page.counter(
        "staves_cache_reads_total",
        "Reads answered by this node's buckets.",
        figures.reads,
    );
    page.counter(
        "staves_cache_hits_total",
        "Reads that found a value.",
        figures.hits,
    );
    page.counter(
        "staves_cache_writes_total",
        "Writes that took effect in this node's buckets.",
        figures.writes,
    );
    page.gauge(
        "staves_cache_requests_waiting",
        "Requests that wait at a bucket for its copies or for its epoch.",
        figures.requests_waiting,
    );
    page.gauge(
        "staves_group_unstable_updates",
        "Updates that not every copy has acknowledged.",
        figures.unstable,
    );
    page.gauge(
        "staves_group_missing_pages",
        "Pages that buckets of this node have yet to fetch.",
        figures.missing_pages,
    );
    page.gauge(
        "staves_group_filling_pages",
        "Pages of the buckets that are being filled.",
        figures.filling_pages,
    );
    page.gauge(
        "staves_group_filled_pages_per_second",
        "Pages that lately came in to buckets that are being filled.",
        host.fill_rate(),
    );
    let (used, budget) = host.memory(None);
    page.gauge(
        "staves_store_used_bytes",
        "Bytes of pages that pools have taken.",
        used,
    );
    page.gauge(
        "staves_store_budget_bytes",
        "Bytes of pages that pools may take.",
        budget,
    );
    page.gauge(
        "staves_store_arena_bytes",
        "Bytes of pages that this node has for all pools.",
        host.arena().bytes(),
    );
}

fn directory(running: &Running, page: &mut Page) {
    let status = running.directory.status();
    page.gauge(
        "staves_directory_term",
        "The directory's term.",
        status.term,
    );
    page.gauge(
        "staves_directory_leads",
        "Whether this node leads the directory.",
        u64::from(status.leader == Some(running.host.life.node)),
    );
    page.gauge(
        "staves_directory_leader_known",
        "Whether this node knows a leader of the directory.",
        u64::from(status.leader.is_some()),
    );
    page.gauge(
        "staves_directory_voters",
        "Nodes that vote.",
        status.voters.len() as u64,
    );
    page.gauge(
        "staves_directory_log_index",
        "The last entry of the directory's log.",
        status.last_log,
    );
    page.gauge(
        "staves_directory_map_revision",
        "The revision of this node's map.",
        status.revision.0,
    );
}

fn links(running: &Running, page: &mut Page) {
    let stats = running.host.peers.stats();
    let up = stats.iter().filter(|s| s.connected).count();
    page.gauge(
        "staves_net_links",
        "Other nodes that this one has a link to.",
        stats.len() as u64,
    );
    page.gauge(
        "staves_net_links_up",
        "Links that are connected.",
        up as u64,
    );
    page.gauge(
        "staves_net_queued_bytes",
        "Bytes of group traffic that wait to be sent.",
        stats.iter().map(|s| s.queued_bytes as u64).sum(),
    );
    page.counter(
        "staves_net_group_sent_total",
        "Group messages handed to the kernel.",
        stats.iter().map(|s| s.group_sent).sum(),
    );
    page.counter(
        "staves_net_group_dropped_total",
        "Group messages let go for want of room or of a connection.",
        stats.iter().map(|s| s.group_dropped).sum(),
    );
}
