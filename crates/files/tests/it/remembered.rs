//! A file system that remembers for long what it was told of a file, as clients of file servers do, while the file is changed on the server.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use staves_files::{FileVersion, Keep, Kind, Source, SourceError};

const SIZE: u64 = 1 << 20;
const FILE: INodeNo = INodeNo(2);
/// The kernel asks again after this, or when it is made to.
const REMEMBERED: Duration = Duration::from_secs(3600);

/// The file `f`, all bytes of which are the number of its version.
struct Server(Arc<AtomicU64>);

impl Server {
    fn attr(&self, ino: INodeNo) -> FileAttr {
        let version = self.0.load(Ordering::Relaxed);
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + version);
        let is_file = ino == FILE;
        FileAttr {
            ino,
            size: if is_file { SIZE } else { 0 },
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_file {
                FileType::RegularFile
            } else {
                FileType::Directory
            },
            perm: if is_file { 0o644 } else { 0o755 },
            nlink: 1,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 4096,
            flags: 0,
        }
    }
}

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name == "f" {
            true => reply.entry(&REMEMBERED, &self.attr(FILE), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&REMEMBERED, &self.attr(ino));
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let bytes = SIZE.saturating_sub(offset).min(size.into());
        reply.data(&vec![self.0.load(Ordering::Relaxed) as u8; bytes as usize]);
    }
}

/// Regression: the look after a read was answered from what the kernel remembered, and bytes of the next version were taken for those
/// of the version that was asked for (row D9).
#[tokio::test]
async fn d9_bytes_of_a_file_that_changed_on_its_server_are_refused_though_the_kernel_remembers_it()
{
    if !staves_testkit::tools::can_mount() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let version = Arc::new(AtomicU64::new(1));
    let mut config = Config::default();
    config.mount_options = vec![fuser::MountOption::RO];
    let mounted = fuser::spawn_mount(Server(version.clone()), dir.path(), &config).unwrap();
    let source = Source::parse(dir.path().to_str().unwrap()).unwrap();
    let stat = tokio::task::spawn_blocking({
        let source = source.clone();
        move || source.stat(b"f")
    });
    let stat = stat.await.unwrap().unwrap();
    let Kind::File { version: first, .. } = stat.kind else {
        panic!("it is a file");
    };
    let file = FileVersion {
        dataset: "d".into(),
        path: b"f".to_vec(),
        version: first,
        size: SIZE,
    };
    let (bytes, keep) = source.read(&file, 0, 4096).await.unwrap();
    assert_eq!((bytes[0], keep), (1, Keep::Yes));
    version.store(2, Ordering::Relaxed);
    let read = source.read(&file, 8192, 4096).await;
    let changed = SourceError::Changed { path: "f".into() };
    assert_eq!(read.map(|(bytes, _)| bytes[0]), Err(changed));
    drop((source, mounted));
}
