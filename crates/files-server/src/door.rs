//! Gives this node's blocks to mounts on its own machine, and records their reads.

use std::os::unix::net::UnixStream as Stream;
use std::sync::Arc;

use staves_files::attach::{asked, give, listen};
use tokio::io::AsyncReadExt;
use tokio::net::{UnixListener, UnixStream};

use super::{Files, FilesPool};

/// Entries of reads that are received at once.
const HEARD: usize = 4096;
/// Most mounts at a time.
const MOUNTS_MAX: usize = 64;

pub(super) async fn run(files: Arc<Files>) {
    let life = files.life;
    let opened = listen(life.cluster, life.node, life.incarnation);
    let listener = match opened.and_then(UnixListener::from_std) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(%error, "mounts on this machine will ask by messages: their door does not open");
            return;
        }
    };
    let room = Arc::new(tokio::sync::Semaphore::new(MOUNTS_MAX));
    loop {
        let Ok(place) = room.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a mount did not come in");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let files = files.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(files, stream).await {
                tracing::debug!(%error, "a mount has gone");
            }
            drop(place);
        });
    }
}

async fn serve(files: Arc<Files>, stream: UnixStream) -> std::io::Result<()> {
    let stream = stream.into_std()?;
    stream.set_nonblocking(false)?;
    let (pool, stream) = {
        let files = files.clone();
        let given = tokio::task::spawn_blocking(move || hand_over(&files, stream)).await;
        given.map_err(std::io::Error::other)??
    };
    let Some(pool) = pool else {
        return Ok(());
    };
    stream.set_nonblocking(true)?;
    hear(&files, &pool, UnixStream::from_std(stream)?).await
}

type Given = (Option<Arc<FilesPool>>, Stream);

fn hand_over(files: &Files, mut stream: Stream) -> std::io::Result<Given> {
    let pool = files.pool(asked(&mut stream)?).ok();
    let memory = pool.as_ref().map(|pool| pool.blocks.descriptor());
    give(&stream, memory.transpose()?)?;
    Ok((pool, stream))
}

/// Until the mount goes.
async fn hear(files: &Files, pool: &FilesPool, mut stream: UnixStream) -> std::io::Result<()> {
    let mut bytes = vec![0; HEARD * 4];
    let mut have = 0;
    loop {
        let came = stream.read(&mut bytes[have..]).await?;
        if came == 0 {
            return Ok(());
        }
        have += came;
        let whole = have / 4 * 4;
        let entries: Vec<u32> = bytes[..whole]
            .chunks_exact(4)
            .map(|e| u32::from_le_bytes([e[0], e[1], e[2], e[3]]))
            .collect();
        pool.blocks.touch(&entries, files.moment());
        bytes.copy_within(whole..have, 0);
        have -= whole;
    }
}
