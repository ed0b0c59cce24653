//! Calls on their way to a service: volumes', or one of the two that gRPC has for all servers.

use std::sync::Arc;

use axum::body::Body as WholeBody;
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode, header};
use staves_grpc::logs_v1::logs_server::{self, LogsServer};
use staves_grpc::v1::volumes_server::{SERVICE_NAME, VolumesServer};
use staves_grpc::{DESCRIPTORS, WRITE_BYTES_MAX};
use tokio::sync::watch;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};
use tonic_reflection::server::Builder;
use tonic_reflection::server::v1::ServerReflectionServer;

use super::GrpcDoor;
use super::bodies::{in_pieces, receive};
use super::connection::GrpcConnection;
use super::logs::{APPEND_MESSAGE_BYTES_MAX, LogService};
use super::service::VolumeService;
use crate::door::Phase;

/// Most bytes of a message of calls other than writes, and of a write beside its data.
const MESSAGE_BYTES_MAX: usize = 4 << 10;
/// Most bytes of an answer: above a read's or a list's.
const ANSWER_BYTES_MAX: usize = 2 << 20;

/// gRPC's own services: health, and reflection, by which tools learn what calls there are.
pub(super) struct StandardServices {
    reporter: HealthReporter,
}

impl StandardServices {
    pub(super) fn new() -> StandardServices {
        StandardServices {
            reporter: HealthReporter::new(),
        }
    }

    fn health(&self) -> HealthServer<HealthService> {
        let service = HealthService::from_health_reporter(self.reporter.clone());
        HealthServer::new(service).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

/// Reports the node's health as its phase is: serving while it is part of its cluster and means to stay.
pub(super) async fn report_health(door: Arc<GrpcDoor>, mut phase: watch::Receiver<Phase>) {
    loop {
        let status = match *phase.borrow_and_update() {
            Phase::Open => ServingStatus::Serving,
            _ => ServingStatus::NotServing,
        };
        for service in ["", SERVICE_NAME, logs_server::SERVICE_NAME] {
            let reporter = &door.standard.reporter;
            reporter.set_service_status(service, status).await;
        }
        if phase.changed().await.is_err() {
            return;
        }
    }
}

/// The services of one connection.
#[derive(Clone)]
pub(super) struct ConnectionCalls {
    connection: Arc<GrpcConnection>,
    volumes: VolumesServer<VolumeService>,
    logs: LogsServer<LogService>,
}

impl ConnectionCalls {
    pub(super) fn new(connection: &Arc<GrpcConnection>) -> ConnectionCalls {
        let service = VolumeService::new(connection.clone());
        let volumes = VolumesServer::new(service)
            .max_decoding_message_size(WRITE_BYTES_MAX + MESSAGE_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX);
        let service = LogService::new(connection.clone());
        let logs = LogsServer::new(service)
            .max_decoding_message_size(APPEND_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(ANSWER_BYTES_MAX);
        ConnectionCalls {
            connection: connection.clone(),
            volumes,
            logs,
        }
    }

    /// Answers a call.
    pub(super) async fn answer(mut self, request: Request<Incoming>) -> Response<Body> {
        self.connection.called();
        let kind = request.headers().get(header::CONTENT_TYPE);
        if !kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/grpc")) {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return response;
        }
        let path = request.uri().path();
        let service = path.strip_prefix('/').and_then(|path| path.split_once('/'));
        match service {
            Some((SERVICE_NAME, method)) => {
                let bytes_max = match method {
                    "Write" => WRITE_BYTES_MAX + MESSAGE_BYTES_MAX,
                    _ => MESSAGE_BYTES_MAX,
                };
                self.answer_volumes(request, bytes_max).await
            }
            Some((logs_server::SERVICE_NAME, method)) => {
                let bytes_max = match method {
                    "Append" => APPEND_MESSAGE_BYTES_MAX,
                    _ => MESSAGE_BYTES_MAX,
                };
                self.answer_logs(request, bytes_max).await
            }
            Some(("grpc.health.v1.Health", _)) => {
                let mut health = self.connection.door.standard.health();
                health
                    .call(request)
                    .await
                    .unwrap_or_else(|never| match never {})
            }
            Some(("grpc.reflection.v1.ServerReflection", _)) => reflect(request).await,
            _ => {
                let text = format!(
                    "this door serves {SERVICE_NAME}, {}, gRPC's health and reflection",
                    logs_server::SERVICE_NAME
                );
                Status::unimplemented(text).into_http()
            }
        }
    }

    async fn answer_volumes(
        &mut self,
        request: Request<Incoming>,
        bytes_max: usize,
    ) -> Response<Body> {
        let running = match self.connection.running() {
            Ok(running) => running.clone(),
            Err(not_yet) => return not_yet.into_http(),
        };
        let (head, body) = request.into_parts();
        let (message, _part) = match receive(body, bytes_max, &running.in_flight).await {
            Ok(received) => received,
            Err(refused) => return refused.into_http(),
        };
        let request = Request::from_parts(head, WholeBody::from(message));
        let answered = self.volumes.call(request).await;
        let response = answered.unwrap_or_else(|never| match never {});
        in_pieces(response, &self.connection)
    }

    async fn answer_logs(
        &mut self,
        request: Request<Incoming>,
        bytes_max: usize,
    ) -> Response<Body> {
        let (head, body) = request.into_parts();
        // Apart from the memory that the requests of the node's client need.
        let memory = &self.connection.door.logs.figures.memory;
        let (message, _part) = match receive(body, bytes_max, memory).await {
            Ok(received) => received,
            Err(refused) => return refused.into_http(),
        };
        let request = Request::from_parts(head, WholeBody::from(message));
        let answered = self.logs.call(request).await;
        let response = answered.unwrap_or_else(|never| match never {});
        in_pieces(response, &self.connection)
    }
}

/// Answers what calls there are.
async fn reflect(request: Request<Incoming>) -> Response<Body> {
    let built = Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1();
    match built {
        Ok(reflection) => {
            let mut reflection: ServerReflectionServer<_> =
                reflection.max_decoding_message_size(MESSAGE_BYTES_MAX);
            let answered = reflection.call(request).await;
            answered.unwrap_or_else(|never| match never {})
        }
        Err(error) => Status::internal(error.to_string()).into_http(),
    }
}
