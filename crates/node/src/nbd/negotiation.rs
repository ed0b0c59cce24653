//! The choice of a volume: what a client may have, and how.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::BytesMut;
use staves_model::{ClusterMap, ImageKind, ImageState, Region, RegionId, with_unit};
use staves_nbd::{
    Export, Exports, Handshake, HandshakeStep, ListedExport, OpenError, Transmission,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::DoorTls;
use crate::running::Running;
use crate::tls::DoorStream;
use crate::volumes::attachment::is_same_client;
use crate::volumes::newest::newest_map;

/// The unit that costs least: a page of the volume's groups.
const BLOCK_PREFERRED: u32 = staves_model::PAGE_BYTES as u32;
/// Longest read and longest payload of a write.
const BLOCK_MAX: u32 = 32 << 20;
/// The volumes of the cluster, as one client may have them.
struct Volumes<'a> {
    map: Arc<ClusterMap>,
    running: &'a Running,
    client: SocketAddr,
}

impl Volumes<'_> {
    fn is_snapshot(&self, region: &Region) -> bool {
        let image = self.map.image(region.id);
        image.is_some_and(|image| image.kind == ImageKind::Snapshot)
    }
}

impl Exports for Volumes<'_> {
    fn list(&self) -> Vec<ListedExport> {
        let pools = self.map.pools.values();
        let volumes =
            pools.flat_map(|pool| pool.regions().iter().map(move |region| (pool, region)));
        let volumes = volumes.filter(|(_, r)| r.volume.is_some() && self.map.is_in_use(r.id));
        let listed = volumes.map(|(pool, region)| ListedExport {
            name: region.name.clone(),
            description: format!(
                "{}{}, pool {} ({})",
                if self.is_snapshot(region) {
                    "snapshot, "
                } else {
                    ""
                },
                with_unit(region.size_bytes),
                pool.name,
                pool.scheme
            ),
        });
        listed.collect()
    }

    fn open(&self, name: &str) -> Result<Export, OpenError> {
        if self.running.is_stopping() {
            return Err(OpenError::Shutdown(
                "the node is stopping: connect to another".into(),
            ));
        }
        let (_, region) = self.map.region_named(name).ok_or(OpenError::Unknown)?;
        if region.volume.is_none() {
            let text = format!("'{name}' is a region of memory and no volume");
            return Err(OpenError::Policy(text));
        }
        match self.map.image(region.id).map(|image| image.state) {
            None | Some(ImageState::Ready) => {}
            Some(ImageState::Deleting) => return Err(OpenError::Unknown),
            Some(ImageState::Copying { .. }) => {
                let text = format!("'{name}' is being made: try again in a moment");
                return Err(OpenError::Policy(text));
            }
        }
        let is_snapshot = self.is_snapshot(region);
        // Who comes second gets it to read only; a client that connects anew leaves its former connection.
        let client = self.client.to_string();
        let is_shared = self.map.is_shared(region.id);
        let writer = self.map.live_writer(region).filter(|_| !is_shared);
        let other = writer.filter(|writer| !is_same_client(&writer.client, &client));
        let description = match other {
            Some(writer) => format!(
                "read-only: attached to {} through node {}",
                writer.client, writer.node
            ),
            None if is_snapshot => "read-only: a snapshot".into(),
            None => String::new(),
        };
        Ok(Export {
            size_bytes: region.size_bytes,
            description,
            read_only: other.is_some() || is_snapshot,
            // A connection is a session, but where all share one: what a broken one left on its way must not count for its successor.
            multi_conn: is_shared,
            block_preferred: BLOCK_PREFERRED,
            block_max: BLOCK_MAX,
        })
    }
}

/// A volume that a client has chosen, and the connection to it.
pub(super) struct Negotiated {
    pub(super) stream: DoorStream,
    pub(super) transmission: Transmission,
    pub(super) id: RegionId,
}

/// Until the client has chosen a volume; `None` if it leaves first.
pub(super) async fn negotiate(
    mut stream: DoorStream,
    tls: &DoorTls,
    input: &mut BytesMut,
    running: &Running,
    client: SocketAddr,
) -> io::Result<Option<Negotiated>> {
    let mut handshake = Handshake::with_tls(tls.policy);
    let mut out = BytesMut::new();
    handshake.greeting(&mut out);
    loop {
        send(&mut stream, &mut out).await?;
        if stream.read_buf(input).await? == 0 {
            return Ok(None);
        }
        let exports = Volumes {
            map: newest_map(running).await,
            running,
            client,
        };
        let step = handshake.next(input, &exports, &mut out);
        match step.map_err(io::Error::other)? {
            HandshakeStep::More => {}
            HandshakeStep::StartTls(within) => {
                send(&mut stream, &mut out).await?;
                stream = tls.start(stream).await?;
                handshake = within;
            }
            HandshakeStep::Ended => {
                send(&mut stream, &mut out).await?;
                return Ok(None);
            }
            HandshakeStep::Began(transmission, name) => {
                send(&mut stream, &mut out).await?;
                let named = exports.map.region_named(&name);
                return Ok(named.map(|(_, region)| Negotiated {
                    stream,
                    transmission,
                    id: region.id,
                }));
            }
        }
    }
}

async fn send(stream: &mut DoorStream, out: &mut BytesMut) -> io::Result<()> {
    stream.write_all(&out.split()).await?;
    stream.flush().await
}
