//! A client's session with the volume, by either door.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use staves_grpc::{AttachOptions, AttachedVolume, ClientOptions, VolumesClient, VolumesError};
use staves_testkit::load::Random;
use staves_testkit::nbd::NbdClient;
use tonic::Code;

use super::VolumeLoad;
use crate::lab::CLIENTS;
use crate::load::Shared;
use crate::nodes::{GRPC_PORT, NBD_PORT};

/// The times that a client waits for an answer, each half of the time: nodes wait for up to 30 s, and clients need not. A short one makes writes that come
/// late, after the next session.
pub(super) const PATIENCE: [Duration; 2] = [Duration::from_secs(12), Duration::from_millis(400)];
/// The time to wait for a former session to end.
const WAIT: Duration = Duration::from_secs(5);

/// A connection in which the volume may be written.
pub(super) enum WriteSession {
    /// By NBD: it begins with the first write.
    Nbd(Box<NbdClient>),
    /// By gRPC.
    Grpc(Box<AttachedVolume>),
}

/// A write that was not answered as done.
#[derive(Debug)]
pub(super) enum Unanswered {
    /// It may be done later; the session may go on.
    Late,
    /// It may be done until the next session's first answer; this one is over.
    Over,
    /// No such answer is ever right.
    Wrong(String),
}

impl WriteSession {
    /// A session through any node, by any door; `None` if there is none to be had at present.
    pub(super) async fn begin(
        of: (&Shared, &VolumeLoad),
        random: &mut Random,
    ) -> Option<WriteSession> {
        let patience = PATIENCE[random.below(2) as usize];
        if random.below(2) == 0 {
            let (shared, volume) = of;
            let at = any_node(shared, random);
            let client = connect_nbd(shared, at, volume.name, patience).ok()?;
            volume.note_door(at);
            return (!client.is_read_only()).then(|| WriteSession::Nbd(Box::new(client)));
        }
        let options = AttachOptions {
            wait: WAIT,
            take_over: false,
        };
        WriteSession::attach(of, random, (options, patience)).await
    }

    /// One that ends whatever other there is.
    pub(super) async fn take_over(
        of: (&Shared, &VolumeLoad),
        random: &mut Random,
    ) -> Option<WriteSession> {
        let options = AttachOptions {
            wait: WAIT,
            take_over: true,
        };
        WriteSession::attach(of, random, (options, PATIENCE[0])).await
    }

    async fn attach(
        (shared, volume): (&Shared, &VolumeLoad),
        random: &mut Random,
        (options, patience): (AttachOptions, Duration),
    ) -> Option<WriteSession> {
        let at = any_node(shared, random);
        let client = grpc_client(shared, at, patience).ok()?;
        let attached = client.attach(volume.name, options).await.ok()?;
        volume.note_door(at);
        Some(WriteSession::Grpc(Box::new(attached)))
    }

    pub(super) async fn write(&mut self, offset: u64, bytes: Vec<u8>) -> Result<(), Unanswered> {
        match self {
            WriteSession::Nbd(client) => match client.write(offset, &bytes) {
                Ok(()) => Ok(()),
                Err(failure) if failure.number().is_some_and(|n| !MAY_BE.contains(&n)) => {
                    Err(Unanswered::Wrong(format!("NBD: {failure:?}")))
                }
                Err(_) => Err(Unanswered::Over),
            },
            WriteSession::Grpc(volume) => match volume.write(offset, bytes).await {
                Ok(()) => Ok(()),
                Err(VolumesError::Deadline(_)) => Err(Unanswered::Late),
                Err(VolumesError::SessionOver(_)) => Err(Unanswered::Over),
                Err(error) if error.code().is_some_and(|code| !IS_WRONG.contains(&code)) => {
                    Err(Unanswered::Over)
                }
                Err(error) => Err(Unanswered::Wrong(format!("gRPC: {error}"))),
            },
        }
    }

    /// Sends a write whose answer nobody waits for, where the door can do that; true if it can.
    pub(super) fn send(&mut self, offset: u64, bytes: &[u8]) -> bool {
        match self {
            WriteSession::Nbd(client) => client.send_write(offset, bytes).is_ok(),
            WriteSession::Grpc(_) => false,
        }
    }
}

/// Numbers of errors that a client of NBD may get: EPERM, EIO and ESHUTDOWN, for all that is lost or taken over.
const MAY_BE: [u32; 3] = [1, 5, 108];
/// Answers by gRPC that a write never has here: the volume is there, has room, and the write lies within it.
const IS_WRONG: [Code; 6] = [
    Code::ResourceExhausted,
    Code::InvalidArgument,
    Code::NotFound,
    Code::OutOfRange,
    Code::Internal,
    Code::DataLoss,
];

/// The place of a node.
pub(super) fn any_node(shared: &Shared, random: &mut Random) -> usize {
    random.below(shared.doors().max(1) as u64) as usize
}

/// A connection to a node.
pub(super) fn connect_nbd(
    shared: &Shared,
    at: usize,
    export: &str,
    patience: Duration,
) -> Result<NbdClient, String> {
    let from: Ipv4Addr = CLIENTS.parse().map_err(|error| format!("{error}"))?;
    let door = shared.door(at).ok_or("there are no nodes yet")?;
    let address = SocketAddr::new(door.ip(), NBD_PORT);
    NbdClient::connect_within(from, address, export, patience)
}

/// A client that asks all nodes, beginning with this one.
pub(super) fn grpc_client(
    shared: &Shared,
    first: usize,
    patience: Duration,
) -> Result<VolumesClient, VolumesError> {
    let nodes = shared.doors();
    let in_turn = (0..nodes).filter_map(|n| shared.door((first + n) % nodes));
    let addresses: Vec<String> = in_turn
        .map(|door| format!("{}:{GRPC_PORT}", door.ip()))
        .collect();
    let options = ClientOptions { deadline: patience };
    VolumesClient::new(&addresses, options)
}
