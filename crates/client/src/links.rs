//! A client's own connections, made as they are needed, and where it gets its maps: from any node that
//! answers, of those that it was told of and those that maps name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use staves_model::{ClusterMap, Incarnation, Node, NodeId, NodeState, Revision};
use staves_net::{Connection, Dialer, Identity, NetError};
use staves_wire::directory::{Evidence, GetMap, Report, Sign};
use staves_wire::{ErrorCode, Message};

use crate::error::ClientError;
use crate::options::ClientOptions;
use crate::router::{Router, Transport};

/// After a failure to connect, the next who wants the node is told so for this long.
const FAILURE_KEPT: Duration = Duration::from_millis(100);
/// A node's trouble is reported no more often than this.
const REPORT_PAUSE: Duration = Duration::from_millis(250);

/// A node that did not answer in time is asked for a map after the others for this long.
const SILENT_KEPT: Duration = Duration::from_secs(2);

/// The connections.
pub struct Links {
    identity: Identity,
    options: ClientOptions,
    seeds: Vec<String>,
    dialer: Dialer,
    /// The node that is asked first for a map: the one that answered last.
    first: AtomicUsize,
    /// The address of that one, whoever is to be asked next.
    answered: Mutex<Option<String>>,
    /// One look-up at a time; others wait for what it brings.
    looking: tokio::sync::Mutex<()>,
    looking_behind: Mutex<bool>,
    reports: Mutex<BTreeMap<NodeId, Instant>>,
    /// Addresses that did not answer in time, and until when they are asked last.
    silent: Mutex<BTreeMap<String, Instant>>,
    /// The number of requests for a map, for tests and the curious.
    pub(crate) maps_asked: AtomicU64,
}

impl Links {
    pub(crate) fn new(seeds: Vec<String>, options: ClientOptions) -> Links {
        let identity = match options.admin {
            true => Identity::admin(options.cluster),
            false => Identity::client(options.cluster),
        };
        let identity = identity.with_secret(options.secret.clone());
        let dialer = Dialer::new(identity.clone(), options.connection.clone(), FAILURE_KEPT);
        Links {
            identity,
            dialer,
            options,
            seeds,
            first: AtomicUsize::new(0),
            answered: Mutex::default(),
            looking: tokio::sync::Mutex::default(),
            looking_behind: Mutex::new(false),
            reports: Mutex::default(),
            silent: Mutex::default(),
            maps_asked: AtomicU64::new(0),
        }
    }

    /// Asks whoever is at the address.
    pub(crate) async fn call_addr(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let answer = self.reach_and_call(addr, request, deadline).await;
        self.note_silence(addr, answer.as_ref().err());
        answer
    }

    async fn reach_and_call(
        &self,
        addr: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let connection = self.dialer.reach(addr, request, deadline).await?;
        self.hold_on_to_cluster(&connection);
        connection.call(request, deadline).await
    }

    fn note_silence(&self, addr: &str, error: Option<&NetError>) {
        let mut silent = self.silent.lock();
        let is_silent = matches!(error, Some(NetError::Deadline { heard: false, .. }))
            || error.is_some_and(|error| error.sign() == Some(Sign::Silent));
        if is_silent {
            let now = Instant::now();
            silent.retain(|_, until| *until > now);
            silent.insert(addr.to_owned(), now + SILENT_KEPT);
        } else if error.is_none() && !silent.is_empty() {
            silent.remove(addr);
        }
    }

    /// The first cluster that answers is the one that is meant from then on.
    fn hold_on_to_cluster(&self, connection: &Connection) {
        let mut who = self.identity.who();
        if who.cluster.0 == 0 {
            who.cluster = connection.welcome().cluster;
            self.identity.set(who);
        }
    }

    /// True if it is a person's tool, not an application.
    pub(crate) fn is_admin(&self) -> bool {
        self.options.admin
    }

    /// Addresses to ask: the nodes that are up first, then those that the user named. A person's tool asks the named ones first.
    fn addresses(&self, map: &ClusterMap) -> Vec<String> {
        let nodes = map.nodes.values();
        let up = nodes.filter(|node| node.state == NodeState::Up);
        let up = up.map(|node| node.native.clone());
        let mut all = match self.options.admin {
            true => self.seeds.clone(),
            false => Vec::new(),
        };
        for address in up.chain(self.seeds.iter().cloned()) {
            if !all.contains(&address) {
                all.push(address);
            }
        }
        all
    }

    /// The same addresses, from the one on that answered last.
    pub(crate) fn addresses_in_turn(&self, map: &ClusterMap) -> Vec<String> {
        let mut all = self.addresses(map);
        let first = self.first.load(Ordering::Relaxed);
        let first = first.checked_rem(all.len()).unwrap_or(0);
        all.rotate_left(first);
        all
    }

    /// The address of the node that answered last.
    pub(crate) fn answered(&self) -> Option<String> {
        self.answered.lock().clone()
    }

    /// The map from the first node that answers; passes over those that do not (row D1).
    pub(crate) async fn fetch(
        &self,
        known: &ClusterMap,
        deadline: Instant,
    ) -> Result<Option<Arc<ClusterMap>>, ClientError> {
        let request = Message::GetMap(GetMap {
            known: known.revision,
            wait_ms: 0,
        });
        self.maps_asked.fetch_add(1, Ordering::Relaxed);
        // With a map at hand there are others to ask, and an operation that waits.
        let try_max = match known.nodes.is_empty() {
            true => self.options.map_try_max,
            false => self.options.map_try_max.min(self.options.router.try_max),
        };
        let answer = self.ask_any(known, &request, deadline, try_max).await?;
        let Message::MapAnswer(answer) = answer else {
            return Err(ClientError::Net(NetError::Unexpected {
                addr: "a node".to_owned(),
                what: "get-map",
                got: answer.opcode().word(),
            }));
        };
        match answer.read() {
            Ok(map) => Ok(map.map(Arc::new)),
            Err(error) => {
                let text = format!(
                    "the map does not decode: {error}: is the client older than the cluster?"
                );
                Err(ClientError::of(ErrorCode::Unsupported, text))
            }
        }
    }

    /// Asks nodes in turn until one answers (an error packet, too, is an answer, unless another node may
    /// know better).
    pub(crate) async fn ask_any(
        &self,
        map: &ClusterMap,
        request: &Message,
        deadline: Instant,
        try_max: Duration,
    ) -> Result<Message, ClientError> {
        let addresses = self.addresses(map);
        if addresses.is_empty() {
            return Err(ClientError::NoAddress);
        }
        let first = self.first.load(Ordering::Relaxed);
        let (mut last, mut denied) = (String::new(), None);
        let mut order: Vec<usize> = (0..addresses.len())
            .map(|turn| (first + turn) % addresses.len())
            .collect();
        order.sort_by_key(|index| self.is_silent(&addresses[*index]));
        for index in order {
            let until = deadline.min(Instant::now() + try_max);
            match self.call_addr(&addresses[index], request, until).await {
                Ok(answer) => {
                    self.first.store(index, Ordering::Relaxed);
                    *self.answered.lock() = Some(addresses[index].clone());
                    return Ok(answer);
                }
                Err(NetError::Refused { packet, .. }) if !packet.code.worth_retrying() => {
                    return Err(ClientError::of(packet.code, packet.text));
                }
                Err(error) => {
                    let denies = |code: &ErrorCode| *code == ErrorCode::Denied;
                    let hello = matches!(&error, NetError::Hello { code, .. } if code.as_ref().is_some_and(denies));
                    denied = hello.then_some(ErrorCode::Denied);
                    last = error.to_string();
                }
            }
            if Instant::now() >= deadline {
                break;
            }
        }
        if let Some(code) = denied {
            // Those who were asked before are away, or would say the same.
            return Err(ClientError::of(code, last));
        }
        let late = Instant::now() >= deadline;
        Err(ClientError::Unreachable {
            tried: addresses.join(", "),
            last,
            late,
        })
    }

    fn is_silent(&self, addr: &str) -> bool {
        let until = self.silent.lock().get(addr).copied();
        until.is_some_and(|until| until > Instant::now())
    }

    /// Another node first, next time: the one that answered knows nothing newer.
    pub(crate) fn ask_another(&self) {
        self.first.fetch_add(1, Ordering::Relaxed);
    }
}

impl Transport for Arc<Links> {
    async fn call(
        &self,
        node: &Node,
        request: Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        self.call_addr(&node.native, &request, deadline).await
    }

    async fn newer_map(
        &self,
        known: &Arc<ClusterMap>,
        deadline: Instant,
    ) -> Option<Arc<ClusterMap>> {
        let looking = tokio::time::timeout_at(deadline.into(), self.looking.lock());
        let _looking = looking.await.ok()?;
        match self.fetch(known, deadline).await {
            Ok(Some(map)) => Some(map),
            Ok(None) => {
                self.ask_another();
                None
            }
            Err(error) => {
                tracing::debug!(%error, "no newer map");
                None
            }
        }
    }

    fn behind(&self, router: &Router<Arc<Links>>, newest: Revision) {
        if std::mem::replace(&mut *self.looking_behind.lock(), true) {
            return; // somebody looks already
        }
        let (links, router) = (self.clone(), router.clone());
        tokio::spawn(async move {
            let map = router.map();
            if map.revision < newest {
                let deadline = Instant::now() + links.options.deadline;
                if let Some(newer) = links.newer_map(&map, deadline).await {
                    router.set_map(newer);
                }
            }
            *links.looking_behind.lock() = false;
        });
    }

    /// Tells another node, which passes it on to the directory's leader (row D5).
    fn seen(&self, map: &ClusterMap, evidence: Evidence) {
        {
            let mut reports = self.reports.lock();
            let last = reports.get(&evidence.node);
            if last.is_some_and(|last| last.elapsed() < REPORT_PAUSE) {
                return;
            }
            reports.insert(evidence.node, Instant::now());
        }
        let suspect = map
            .nodes
            .get(&evidence.node)
            .map(|node| node.native.clone());
        let others = self
            .addresses(map)
            .into_iter()
            .filter(move |addr| Some(addr) != suspect.as_ref());
        let others: Vec<String> = others.take(3).collect();
        let links = self.clone();
        let report = Report {
            from: NodeId(0),
            incarnation: Incarnation(0),
            seen: vec![evidence],
        };
        tokio::spawn(async move {
            for addr in others {
                let until = Instant::now() + links.options.map_try_max;
                if links
                    .call_addr(&addr, &Message::Report(report.clone()), until)
                    .await
                    .is_ok()
                {
                    return;
                }
            }
        });
    }
}
