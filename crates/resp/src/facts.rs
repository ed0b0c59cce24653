//! Facts about the node and the cluster, gathered by the driver when a command asks for them.

use std::sync::Arc;
use std::time::Duration;

use staves_model::{ClusterMap, NodeId, Pool};

use super::redirect::Redirect;

/// The source of facts about the node and the cluster.
///
/// Each command asks only for what it needs: all clients of a node that died greet the next one at the same time, and the cost
/// of a greeting must not grow with their number.
pub trait ServerInfo {
    /// The facts that cost nothing to gather.
    fn brief(&self) -> Brief;
    /// The node and the cluster.
    fn facts(&self) -> Facts;
    /// Open connections, as far as the driver lists them; the asking one need not be among them. Takes time by their number.
    fn clients(&self) -> Vec<ClientFacts>;
}

/// The facts that greetings and clocks need.
#[derive(Clone, Copy, Debug, Default)]
pub struct Brief {
    /// The treatment of keys that another node serves.
    pub redirect: Redirect,
    /// The program's version.
    pub version: &'static str,
    /// Since the process started.
    pub uptime: Duration,
    /// The wall clock, since 1970.
    pub unix_time: Duration,
}

/// A snapshot of all that local commands answer from.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The node's newest map.
    pub map: Arc<ClusterMap>,
    /// This node.
    pub node: NodeId,
    /// The name of the pool that the door serves.
    pub pool: String,
    /// The facts of greetings.
    pub brief: Brief,
    /// The RESP door's port.
    pub port: u16,
    /// The largest value that the node takes.
    pub value_bytes_max: usize,
    /// Most connections at a time.
    pub clients_max: u32,
    /// Open connections.
    pub connected: usize,
    /// Connections accepted since the start.
    pub connections_total: u64,
    /// Commands done since the start.
    pub commands_total: u64,
    /// Reads that found a value, since the start.
    pub hits_total: u64,
    /// Reads that found none.
    pub misses_total: u64,
    /// Keys in the data buckets that this node serves.
    pub keys: u64,
    /// Bytes of pages that this node holds for the pool, copies included.
    pub used_bytes: u64,
    /// The bytes that the pool may use on this node.
    pub budget_bytes: u64,
    /// The processor time of the process in the program.
    pub cpu_user: Duration,
    /// The processor time of the process in the kernel.
    pub cpu_system: Duration,
    /// This node leads the directory.
    pub leads_directory: bool,
    /// No leader of the directory with a majority has answered this node for some time.
    pub directory_silent: bool,
    /// The configuration file, if there is one.
    pub config_file: String,
}

impl Facts {
    /// The pool that the door serves, once it exists.
    pub fn pool(&self) -> Option<&Pool> {
        self.map.pool_named(&self.pool)
    }
}

/// One connection, as CLIENT LIST shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientFacts {
    /// Its number.
    pub id: u64,
    /// The far end.
    pub addr: String,
    /// This end.
    pub local_addr: String,
    /// As the client named itself.
    pub name: String,
    /// As the client's library named itself.
    pub library: String,
    /// The library's version.
    pub library_version: String,
    /// 2 or 3.
    pub protocol: u8,
    /// The node's uptime when it connected.
    pub connected: Duration,
}

impl ClientFacts {
    /// The line of CLIENT LIST, in the order of Redis's fields.
    pub fn line(&self, uptime: Duration) -> String {
        let age = uptime.saturating_sub(self.connected).as_secs();
        format!(
            "id={} addr={} laddr={} fd=-1 name={} age={age} idle=0 flags=N db=0 sub=0 psub=0 ssub=0 \
             multi=-1 events=r cmd=NULL user=default redir=-1 resp={} lib-name={} lib-ver={}\n",
            self.id,
            self.addr,
            self.local_addr,
            self.name,
            self.protocol,
            self.library,
            self.library_version,
        )
    }
}
