//! A disk before its node has a life: its files, whose they are, and the members that they have.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use staves_disk::{DiskId, FileDevice};
use staves_durable::{
    DiskFiles, DiskOpenError, DiskSizes, OpenedDisk, create_files, open, open_pages_again,
};
use staves_model::{Claim, ClusterId, NodeId};
use staves_net::read_small_file;
use staves_store::Residency;
use tokio::sync::Notify;

use super::{DrivenJournal, NodeDisk, NodeDiskError};

/// The file in it that says whose it is: the ids of the cluster, in hexadecimal digits, and of the node.
const OWNER: &str = "owner";
/// Bytes of the longest one.
const OWNER_BYTES_MAX: usize = 1024;
/// The file that is there if a page could not be read.
const SUSPECT: &str = "check";
/// The time for which a start waits for files that are open elsewhere, and between two looks.
const OPEN_WAIT: Duration = Duration::from_secs(3);
const OPEN_LOOK: Duration = Duration::from_millis(50);

/// A disk before its node has a life.
pub(crate) struct ClosedDisk {
    pub(crate) opened: OpenedDisk,
    pub(super) files: DiskFiles<FileDevice>,
    /// The page file once more, for the journal's thread.
    pub(super) placed: FileDevice,
    /// The cluster and the node that it is of.
    pub(crate) owner: Option<(ClusterId, NodeId)>,
    pub(super) folder: PathBuf,
}

/// The next start of a disk is to look at every page.
pub(super) fn suspect(folder: &Path) -> io::Result<()> {
    std::fs::write(folder.join(SUSPECT), "a page could not be read\n")?;
    std::fs::File::open(folder)?.sync_all()
}

/// Makes a disk of so many bytes in a folder that is not there yet; the one around it is.
pub(crate) fn create(folder: &Path, page_bytes: u64) -> Result<(), NodeDiskError> {
    let sizes = DiskSizes::of(page_bytes);
    let path = folder.display().to_string();
    tracing::info!(%path, bytes = sizes.total(), "making a disk");
    create_files(folder, sizes, DiskId(rand::random())).map_err(|reason| NodeDiskError::Create {
        bytes: sizes.total(),
        path,
        reason,
    })
}

impl ClosedDisk {
    /// Opens the disk in a folder.
    pub(crate) fn open(folder: PathBuf) -> Result<ClosedDisk, NodeDiskError> {
        let path = || folder.display().to_string();
        let wrong = |reason| NodeDiskError::Open {
            path: path(),
            reason,
        };
        let began = Instant::now();
        let owner = read_owner(&folder)?;
        let files = open_files(&folder).map_err(wrong)?;
        let placed = open_pages_again(&folder).map_err(wrong)?;
        let mut opened = open(&files).map_err(wrong)?;
        if folder.join(SUSPECT).exists() {
            tracing::warn!(path = %path(), "a page of the disk could not be read: all are looked at");
            let bad = opened.check(&files);
            tracing::info!(bad, buckets = opened.bad.len(), "all pages were looked at");
            // A start that finds all of them good is the last that looks.
            if bad == 0 {
                let _ = std::fs::remove_file(folder.join(SUSPECT));
            }
        }
        for group in &opened.rotten {
            tracing::warn!(
                path = %path(), %group,
                "bytes of the journal's records of a bucket have rotted: it is filled anew from other nodes, if those have it"
            );
        }
        let (pages, free) = opened.store.page_file().places();
        tracing::info!(
            path = %path(), buckets = opened.members.len(), dropped = opened.dropped.len(), pages, free,
            ms = began.elapsed().as_millis() as u64,
            "the disk is open"
        );
        Ok(ClosedDisk {
            opened,
            files,
            placed,
            owner,
            folder,
        })
    }

    /// The members that it has, for the directory.
    pub(crate) fn claims(&self) -> Vec<Claim> {
        let claim = |(group, epoch)| Claim { group, epoch };
        self.opened.claims().map(claim).collect()
    }
}

/// The files of a disk, which a process that ends may hold a little longer.
fn open_files(folder: &Path) -> Result<DiskFiles<FileDevice>, DiskOpenError> {
    let until = Instant::now() + OPEN_WAIT;
    loop {
        match DiskFiles::open(folder) {
            Err(DiskOpenError::File { error, .. })
                if error.kind() == io::ErrorKind::WouldBlock && Instant::now() < until =>
            {
                std::thread::sleep(OPEN_LOOK);
            }
            opened => return opened,
        }
    }
}

/// The cluster and the node that a disk is of, as its folder says.
fn read_owner(folder: &Path) -> Result<Option<(ClusterId, NodeId)>, NodeDiskError> {
    let path = folder.join(OWNER);
    let text = match read_small_file(&path, OWNER_BYTES_MAX) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(owner_error(&path, error.to_string())),
    };
    let mut words = text.split_whitespace();
    let cluster = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
    let node = words.next().and_then(|w| w.parse().ok());
    match cluster.zip(node) {
        Some((cluster, node)) => Ok(Some((ClusterId(cluster), NodeId(node)))),
        None => Err(owner_error(
            &path,
            "it is no id of a cluster and of a node".to_owned(),
        )),
    }
}

fn owner_error(path: &Path, reason: String) -> NodeDiskError {
    let path = path.display().to_string();
    NodeDiskError::Owner { path, reason }
}

/// Refuses the disk in a folder if it is another node's, and marks it as this one's if it is nobody's yet.
fn own(
    folder: &Path,
    theirs: Option<(ClusterId, NodeId)>,
    ours: (ClusterId, NodeId),
) -> Result<(ClusterId, NodeId), NodeDiskError> {
    match theirs {
        Some(theirs) if theirs != ours => {
            let path = folder.display().to_string();
            return Err(NodeDiskError::Foreign { path, theirs, ours });
        }
        Some(_) => return Ok(ours),
        None => {}
    }
    let path = folder.join(OWNER);
    let write = || {
        let new = folder.join(format!("{OWNER}.new"));
        std::fs::write(&new, format!("{} {}\n", ours.0, ours.1.0))?;
        std::fs::File::open(&new)?.sync_all()?;
        std::fs::rename(&new, &path)?;
        std::fs::File::open(folder)?.sync_all()
    };
    write().map_err(|error: io::Error| owner_error(&path, error.to_string()))?;
    Ok(ours)
}

/// A disk that is open, while its node has no life yet.
pub(crate) struct StartedDisk {
    pub(crate) disk: Arc<NodeDisk>,
    pub(crate) journal: DrivenJournal,
    pub(crate) claims: Vec<Claim>,
    pub(crate) owner: Option<(ClusterId, NodeId)>,
}

impl StartedDisk {
    /// The disk in a folder. `residency`: of the pages of all disks that may be in memory; `failing` is woken when it fails.
    pub(crate) fn open(
        folder: PathBuf,
        residency: Arc<Residency>,
        failing: Arc<Notify>,
    ) -> Result<StartedDisk, NodeDiskError> {
        let closed = ClosedDisk::open(folder)?;
        let (claims, owner) = (closed.claims(), closed.owner);
        let (disk, journal) = NodeDisk::new(closed, residency, failing)?;
        Ok(StartedDisk {
            disk,
            journal,
            claims,
            owner,
        })
    }

    /// Refuses a disk that is another node's, and marks one that is nobody's yet.
    pub(crate) fn own(&mut self, cluster: ClusterId, node: NodeId) -> Result<(), NodeDiskError> {
        self.owner = Some(own(self.disk.folder(), self.owner, (cluster, node))?);
        Ok(())
    }
}
