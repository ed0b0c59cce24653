//! The sockets of the doors that are open only where the configuration has an address for them: NBD, gRPC and HTTP.

use std::net::SocketAddr;
use std::sync::Arc;

use staves_net::Secrets;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::admin::HostNames;
use crate::client_doors::{ClientDoors, LogDoorFigures};
use crate::config::{Config, Endpoint};
use crate::door::Phase;
use crate::entry::Entry;
use crate::grpc::GrpcSocket;
use crate::http::HttpSocket;
use crate::log_gateway::LogGateway;
use crate::nbd::NbdSocket;
use crate::start::StartError;
use crate::tls::Tls;
use crate::volumes::attachments::Attachments;

/// Their sockets.
pub(crate) struct ClientSockets {
    nbd: NbdSocket,
    grpc: GrpcSocket,
    http: HttpSocket,
}

impl ClientSockets {
    pub(crate) async fn bind(
        config: &Config,
        certificate: Option<Arc<Tls>>,
    ) -> Result<ClientSockets, StartError> {
        Ok(ClientSockets {
            nbd: NbdSocket::bind(config, certificate).await?,
            grpc: GrpcSocket::bind(config).await?,
            http: HttpSocket::bind(config).await?,
        })
    }

    /// Of NBD, gRPC and HTTP.
    pub(crate) fn addresses(&self) -> [Option<SocketAddr>; 3] {
        [self.nbd.address(), self.grpc.address(), self.http.address()]
    }

    /// Begins to serve; the tasks that accept, and those that go on beside.
    pub(crate) fn serve(
        self,
        config: &Config,
        (entry, names, native): (&Arc<Entry>, HostNames, &Endpoint),
        secrets: Option<Secrets>,
        phase: &watch::Receiver<Phase>,
    ) -> (ClientDoors, Vec<JoinHandle<()>>, Vec<JoinHandle<()>>) {
        let addresses = config.door_addresses(self.addresses(), native);
        let secret = secrets.map(|secrets| secrets.nodes);
        let figures = LogDoorFigures::new(config.in_flight_bytes());
        let logs = LogGateway::new(entry.clone(), native.to_string(), secret, figures.clone());
        let attachments = Arc::<Attachments>::default();
        let max = config.clients_max;
        let volumes = (entry.clone(), attachments.clone());
        let (nbd, accepting_nbd) = self.nbd.serve(max, volumes, phase.clone());
        let all = (entry.clone(), attachments.clone(), logs.clone());
        let (grpc, accepting_grpc) = self.grpc.serve(max, all, phase.clone());
        let has_volumes = accepting_nbd.is_some() || accepting_grpc.is_some();
        let (http, accepting_http) = self.http.serve(max, (logs.clone(), names), phase.clone());
        let has_logs = accepting_grpc.is_some() || accepting_http.is_some();
        let mut tasks = Vec::new();
        if has_volumes {
            tasks.push(tokio::spawn(attachments.watch_over(entry.clone())));
        }
        if has_logs {
            tasks.push(tokio::spawn(logs.clone().close_idle()));
        }
        let doors = ClientDoors {
            nbd,
            grpc,
            http,
            addresses,
            logs: figures,
        };
        let accepting = [accepting_nbd, accepting_grpc, accepting_http];
        (doors, accepting.into_iter().flatten().collect(), tasks)
    }
}
