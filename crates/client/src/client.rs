//! The client, as applications hold it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use staves_model::{ClientId, ClusterMap, NodeId, NodeState, ServiceId};
use staves_net::NetError;
use staves_wire::cache::{CacheStats, CacheStatsAnswer, Condition, OwnedOp};
use staves_wire::service::{Answer, PoolRef, ServiceAnswers, ServiceRequest};
use staves_wire::{ErrorCode, Message};
use tokio::task::JoinSet;

use crate::error::ClientError;
use crate::links::Links;
use crate::options::ClientOptions;
use crate::route::pool_of;
use crate::router::{Router, Transport};
use crate::turn::ServiceOp;

/// A client of a cluster. Clones are the same client; use one from as many tasks as you like.
#[derive(Clone)]
pub struct Client {
    router: Router<Arc<Links>>,
    options: ClientOptions,
    pool: PoolRef,
}

impl Client {
    /// Finds the cluster through any of these addresses (`host:port` of the native protocol). The list
    /// need not be complete, and not all of it need answer (row D1).
    pub async fn connect(
        addresses: &[String],
        options: ClientOptions,
    ) -> Result<Client, ClientError> {
        let links = Arc::new(Links::new(addresses.to_vec(), options.clone()));
        let deadline = Instant::now() + options.deadline;
        let nothing = ClusterMap::default();
        let map = Client::first_map(&links, &nothing, deadline).await?;
        Ok(Client::with_map(links, map, options))
    }

    /// The same without asking anybody: it knows no node and no pool until a [`Client::refresh`] has reached one.
    pub fn unconnected(addresses: &[String], options: ClientOptions) -> Client {
        let links = Arc::new(Links::new(addresses.to_vec(), options.clone()));
        Client::with_map(links, Arc::default(), options)
    }

    fn with_map(links: Arc<Links>, map: Arc<ClusterMap>, options: ClientOptions) -> Client {
        // A new id for each life: numbers begin at 1, and an old life's must not be taken for them.
        let id = ClientId(rand::random::<u64>().max(1));
        let router = Router::new(links, id, map, options.router.clone());
        Client {
            router,
            pool: PoolRef::Name(options.pool.clone()),
            options,
        }
    }

    async fn first_map(
        links: &Arc<Links>,
        nothing: &ClusterMap,
        deadline: Instant,
    ) -> Result<Arc<ClusterMap>, ClientError> {
        loop {
            match links.fetch(nothing, deadline).await? {
                Some(map) => return Ok(map),
                // A person may look at a node that has not joined yet.
                None if links.is_admin() => return Ok(Arc::default()),
                None if Instant::now() >= deadline => {
                    let text = "the node that answered is not part of a cluster yet";
                    return Err(ClientError::of(ErrorCode::NoQuorum, text));
                }
                None => {}
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The map that it works by.
    pub fn map(&self) -> Arc<ClusterMap> {
        self.router.map()
    }

    /// The number of its requests for a map.
    pub fn maps_asked(&self) -> u64 {
        self.router
            .transport()
            .maps_asked
            .load(std::sync::atomic::Ordering::Relaxed)
    }

    /// Fetches the newest map that the next node knows.
    pub async fn refresh(&self) -> Result<Arc<ClusterMap>, ClientError> {
        let newer = self
            .router
            .transport()
            .fetch(&self.map(), self.deadline())
            .await?;
        if let Some(map) = newer {
            self.router.set_map(map);
        }
        Ok(self.map())
    }

    /// The value of a key. What any client was told to be written before this was called is seen.
    pub async fn get(&self, key: impl Into<Bytes>) -> Result<Option<Bytes>, ClientError> {
        match self.one(OwnedOp::Get { key: key.into() }).await? {
            Answer::Nil => Ok(None),
            Answer::Value(value) => Ok(Some(value)),
            other => Err(unexpected("get", &other)),
        }
    }

    /// Gives a key a value. Once this returns, it is on every copy. An error may leave open whether it was
    /// done ([`ClientError::is_uncertain`]); so it is with [`Client::delete`].
    pub async fn put(
        &self,
        key: impl Into<Bytes>,
        value: impl Into<Bytes>,
    ) -> Result<(), ClientError> {
        let (key, value) = (key.into(), value.into());
        let op = OwnedOp::Set {
            key,
            value,
            condition: Condition::Always,
            get_old: false,
        };
        match self.one(op).await? {
            Answer::Ok => Ok(()),
            other => Err(unexpected("put", &other)),
        }
    }

    /// Takes a key's value away; whether there was one.
    pub async fn delete(&self, key: impl Into<Bytes>) -> Result<bool, ClientError> {
        match self.one(OwnedOp::Del { key: key.into() }).await? {
            Answer::Int(n) => Ok(n > 0),
            other => Err(unexpected("delete", &other)),
        }
    }

    /// Does operations on any keys, grouped by node (row X6). Each is atomic by itself; each has its own
    /// answer, in their order: [`Answer::Error`] where one failed, by its [code](ErrorCode::nothing_done)
    /// certainly not done or perhaps done. An error of the whole means that none was sent.
    pub async fn execute(&self, ops: Vec<OwnedOp>) -> Result<Vec<Answer>, ClientError> {
        self.execute_by(ops, self.deadline()).await
    }

    /// The same, with another deadline.
    pub async fn execute_by(
        &self,
        ops: Vec<OwnedOp>,
        deadline: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        let mut heads = BytesMut::with_capacity(64 * ops.len());
        let ops = ops.into_iter().map(|op| {
            let is_write = op.as_op().is_write();
            let (to, body) = op.into_body(&mut heads);
            ServiceOp {
                to,
                body,
                is_write,
                answer_bytes: 0,
            }
        });
        self.execute_for(ServiceId::CACHE, &self.pool, ops.collect(), deadline)
            .await
    }

    /// Does operations of any service on a pool, as [`Client::execute`] does those on keys.
    pub async fn execute_for(
        &self,
        service: ServiceId,
        pool: &PoolRef,
        ops: Vec<ServiceOp>,
        deadline: Instant,
    ) -> Result<Vec<Answer>, ClientError> {
        self.router.execute(service, pool, ops, deadline).await
    }

    /// Passes another client's request on, with that client's own numbers ([`Router::forward`]).
    pub async fn forward(&self, request: ServiceRequest, deadline: Instant) -> ServiceAnswers {
        self.router.forward(request, deadline).await
    }

    async fn one(&self, op: OwnedOp) -> Result<Answer, ClientError> {
        match self.execute(vec![op]).await?.pop() {
            Some(Answer::Error(code, text)) => Err(ClientError::Operation { code, text }),
            Some(answer) => Ok(answer),
            None => Err(unexpected("an operation", &Answer::Nil)),
        }
    }

    /// Each node's figures of the pool: those of nodes that did not answer are missing, with the reason.
    pub async fn stats(
        &self,
    ) -> Result<Vec<(NodeId, Result<CacheStatsAnswer, ClientError>)>, ClientError> {
        let map = self.refresh().await?;
        self.check_pool()?;
        let request = Message::CacheStats(CacheStats {
            pool: self.pool.clone(),
        });
        let nodes = map.nodes.values();
        let up = nodes.filter(|node| node.state == NodeState::Up);
        let (ids, asks): (Vec<NodeId>, Vec<_>) = up
            .map(|node| (node.id, (node.native.clone(), request.clone())))
            .unzip();
        let answers = self.ask_all(asks, self.deadline()).await.into_iter();
        let figures = answers.map(|answer| match answer? {
            Message::CacheStatsAnswer(answer) => Ok(answer),
            other => Err(senseless("cache-stats", other.opcode().word())),
        });
        Ok(ids.into_iter().zip(figures).collect())
    }

    /// Asks several nodes at once, each by its address. The answers come in the order of the requests.
    pub async fn ask_all(
        &self,
        asks: Vec<(String, Message)>,
        deadline: Instant,
    ) -> Vec<Result<Message, NetError>> {
        let mut tasks = JoinSet::new();
        for (at, (address, request)) in asks.into_iter().enumerate() {
            let client = self.clone();
            tasks.spawn(async move { (at, client.ask_at(&address, &request, deadline).await) });
        }
        let mut answers = tasks.join_all().await;
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    /// Asks one node of the map.
    pub async fn ask(
        &self,
        node: NodeId,
        request: Message,
        deadline: Instant,
    ) -> Result<Message, ClientError> {
        let map = self.map();
        let to = map.nodes.get(&node).ok_or_else(|| {
            let text = format!("the cluster has no node {node}");
            ClientError::of(ErrorCode::NotFound, text)
        })?;
        Ok(self.router.transport().call(to, request, deadline).await?)
    }

    /// Asks the node at an address.
    pub async fn ask_at(
        &self,
        address: &str,
        request: &Message,
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let links = self.router.transport();
        links.call_addr(address, request, deadline).await
    }

    /// The address of the node that answered the last request for a map.
    pub fn answered_at(&self) -> String {
        let links = self.router.transport();
        let first = || links.addresses_in_turn(&self.map()).into_iter().next();
        links.answered().or_else(first).unwrap_or_default()
    }

    /// The same client, for the keys of another pool.
    pub fn of_pool(&self, pool: &str) -> Client {
        let pool = PoolRef::Name(pool.to_owned());
        Client {
            pool,
            ..self.clone()
        }
    }

    /// Fails if the map at hand has no such pool of keys.
    pub fn check_pool(&self) -> Result<(), ClientError> {
        pool_of(&self.map(), ServiceId::CACHE, &self.pool).map(|_| ())
    }

    /// Asks nodes in turn until one answers. Only for requests that may be asked twice.
    pub async fn ask_any(&self, request: &Message) -> Result<Message, ClientError> {
        let (map, deadline) = (self.map(), self.deadline());
        self.router
            .transport()
            .ask_any(&map, request, deadline, self.options.router.try_max)
            .await
    }

    pub(crate) fn deadline(&self) -> Instant {
        Instant::now() + self.options.deadline
    }

    pub(crate) fn patience(&self) -> Duration {
        self.options.deadline
    }

    pub(crate) fn router(&self) -> &Router<Arc<Links>> {
        &self.router
    }
}

/// An answer of a service that does not belong to its operation.
pub(crate) fn unexpected(what: &str, got: &Answer) -> ClientError {
    senseless(what, &format!("{got:?}"))
}

/// An answer that does not belong to its request.
pub(crate) fn senseless(what: &str, got: &str) -> ClientError {
    let text = format!("{what} was answered with {got}, which makes no sense");
    ClientError::of(ErrorCode::Internal, text)
}
