//! Mounting, serving until it is over, unmounting.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use fuser::{Config, MountOption, Session, SessionACL};
use rustix::io::Errno;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::files::Files;
use crate::outdated;
use crate::points::{self, Health, MARK};
use crate::requests::Requests;
use crate::serve::Serve;

/// The options of a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The source, as `mount` and `df` show it.
    pub name: String,
    /// The time that the kernel caches names and attributes: a change at the source is seen this much later
    /// at most. Open files are checked at each read that the page cache does not answer.
    pub lifetime: Duration,
    /// Requests that are served at a time.
    pub threads: usize,
    /// Bytes that [`Files::will_read`] announces ahead of a reader in order; 0 for none.
    pub read_ahead_bytes: u64,
    /// KiB that the kernel itself reads ahead, and around each page fault; set where that is permitted (root), else 128.
    /// It is little by default: Linux reads so much at each random page fault of a mapped file, however
    /// many there are. Who reads in order with large reads gets requests of 128 KiB all the same.
    pub kernel_read_ahead_kib: u32,
    /// Inodes above which the kernel is asked to forget some; at twice as many no more files are shown.
    pub inodes_max: usize,
    /// Other users may read too, as far as permissions go.
    pub others: bool,
    /// The time that [`Mounted::unmount`] waits for programs that have files open.
    pub linger: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            name: "files".into(),
            lifetime: Duration::from_secs(1),
            threads: 8,
            read_ahead_bytes: 8 << 20,
            kernel_read_ahead_kib: 16,
            inodes_max: 1 << 18,
            others: false,
            linger: Duration::from_secs(1),
        }
    }
}

/// The reason that nothing was mounted or unmounted.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // The messages document them.
pub enum MountError {
    #[error("there is no folder {dir} to mount at: make it with mkdir")]
    NoFolder { dir: PathBuf },
    #[error(
        "{dir} lies within {source_dir}, which it would show: whoever read it would wait for himself; mount at a folder outside of it"
    )]
    WithinSource { dir: PathBuf, source_dir: PathBuf },
    #[error("{dir} is not a folder: mount at an empty one")]
    NotAFolder { dir: PathBuf },
    #[error(
        "{dir} is not empty, it has {entry} in it, which nobody would see any more: mount at an empty folder"
    )]
    NotEmpty { dir: PathBuf, entry: String },
    #[error("{name} is mounted at {dir} and alive: unmount it, or mount at another folder")]
    Mounted { dir: PathBuf, name: String },
    #[error(
        "{name} is mounted at {dir} and does not answer: 'staves unmount --lazily {dir}', then try again"
    )]
    Silent { dir: PathBuf, name: String },
    #[error("something dead, and not ours, is mounted at {dir}: umount -l {dir}, then try again")]
    Dead { dir: PathBuf },
    #[error(
        "there is no /dev/fuse: load the kernel's module (modprobe fuse), or give the container the device"
    )]
    NoDevice,
    #[error(
        "this user must not mount at {dir} ({reason}): install FUSE's helper (Debian's package fuse3), be the folder's owner, or be root; \
         for other users to read, /etc/fuse.conf must say user_allow_other"
    )]
    NotPermitted { dir: PathBuf, reason: io::Error },
    #[error("nothing is mounted at {dir}")]
    NotMounted { dir: PathBuf },
    #[error(
        "{name} ({kind}) is mounted at {dir}, and not by Staves: unmount it with umount {dir}, if that is meant"
    )]
    NotOurs {
        dir: PathBuf,
        name: String,
        kind: String,
    },
    #[error(
        "a program has a file or folder of {dir} open, or works in it: see `fuser -vm {dir}`, or unmount with --lazily"
    )]
    Busy { dir: PathBuf },
    #[error("cannot {what} {dir}: {reason}")]
    Failed {
        what: &'static str,
        dir: PathBuf,
        reason: io::Error,
    },
}

/// The interval between checks that serving is over, where that is waited for.
const LOOK: Duration = Duration::from_millis(10);

/// The lifetime of pages of a file that may be changing without a sign.
const SETTLE_EVERY: Duration = Duration::from_secs(1);

/// A mount that is being served. Dropping it unmounts, without waiting for programs that have files open.
///
/// It takes away what it mounted and nothing else: once that is gone, another may have mounted at the same folder.
#[derive(Debug)]
pub struct Mounted {
    dir: PathBuf,
    /// The kernel's name for it, for as long as it is there.
    device: String,
    /// None once it was asked how it ended.
    serving: Option<JoinHandle<io::Result<()>>>,
    linger: Duration,
}

/// The signals that end a process, caught from its creation on. Created before the mount: one that came between
/// the mount and [`Mounted::serve`] would end the process and leave the folder without anybody who serves it.
pub struct EndSignals(Signals);

impl EndSignals {
    /// Catches SIGTERM, SIGINT and SIGHUP.
    ///
    /// # Errors
    /// The system's.
    pub fn catch() -> io::Result<EndSignals> {
        Signals::new([SIGTERM, SIGINT, SIGHUP]).map(EndSignals)
    }
}

/// Mounts files at an empty folder.
///
/// What is left of a mount of ours whose process was killed is taken away first.
///
/// # Errors
/// See [`MountError`].
pub fn mount<S: Files>(files: S, dir: &Path, options: &Options) -> Result<Mounted, MountError> {
    let dir = ready(dir, None)?;
    let (queue, work) = outdated::queue();
    let serve = Arc::new(Serve::new(files, options, queue));
    let served = Arc::downgrade(&serve);
    let requests = Requests(serve);
    let session = Session::new(requests, &dir, &config(options)).map_err(|e| refused(&dir, e))?;
    let device = points::at(&dir).map_err(failed("look at", &dir))?;
    let device = device.map(|point| point.device).unwrap_or_default();
    let notifier = session.notifier();
    let mut session = session.spawn().map_err(failed("start threads for", &dir))?;
    // At its end the session would unmount whatever is at its path by then, even if what it mounted is long gone: it is
    // left to Mounted, which looks first. What is forgotten with it is the session's device, until this process ends.
    let serving = std::mem::replace(&mut session.guard, std::thread::spawn(|| Ok(())));
    std::mem::forget(session);
    let mounted = Mounted {
        dir,
        device,
        serving: Some(serving),
        linger: options.linger,
    };
    let told = Builder::new().name("mount-outdated".into());
    let told = told.spawn(move || work.run(&notifier));
    // Dropping it unmounts.
    told.map_err(failed("start threads for", &mounted.dir))?;
    let settling = Builder::new().name("mount-settling".into());
    let settling = settling.spawn(move || settle(&served));
    settling.map_err(failed("start threads for", &mounted.dir))?;
    set_read_ahead(&mounted.device, options.kernel_read_ahead_kib);
    Ok(mounted)
}

/// Looks after files that were open while they changed, until the mount is over.
fn settle<S: Files>(served: &Weak<Serve<S>>) {
    while let Some(serve) = served.upgrade() {
        serve.settle();
        drop(serve);
        std::thread::sleep(SETTLE_EVERY);
    }
}

/// Unmounts what is mounted at a folder by any process. `lazily`: even if it is in use; who has files open keeps them as long as
/// the process that serves them lives.
///
/// # Errors
/// See [`MountError`].
pub fn unmount(dir: &Path, lazily: bool) -> Result<(), MountError> {
    let none = || MountError::NotMounted { dir: dir.into() };
    let dir = points::resolve(dir).map_err(|_| none())?;
    let point = points::at(&dir).map_err(failed("look at", &dir))?;
    let point = point.ok_or_else(none)?;
    if point.ours().is_none() {
        let (name, kind) = (point.source.to_string_lossy().into_owned(), point.kind);
        return Err(MountError::NotOurs { dir, name, kind });
    }
    points::unmount(&dir, lazily).map_err(|error| match error {
        Errno::BUSY => MountError::Busy { dir },
        Errno::INVAL => MountError::NotMounted { dir },
        _ => MountError::Failed {
            what: "unmount",
            dir,
            reason: error.into(),
        },
    })
}

impl Mounted {
    /// The folder, without links.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Serves until it is unmounted from outside or the process receives SIGTERM, SIGINT or SIGHUP; then unmounts.
    ///
    /// # Errors
    /// It cannot be unmounted, or serving failed.
    pub fn serve(mut self, mut signals: EndSignals) -> Result<(), MountError> {
        loop {
            if signals.0.pending().next().is_some() {
                return self.unmount();
            }
            if let Some(result) = self.over(Duration::from_millis(100)) {
                return result.map_err(failed("serve", &self.dir));
            }
        }
    }

    /// Unmounts, and waits a little for programs that have files open; lazily if they do not close them. Then they
    /// keep them until this process ends.
    ///
    /// # Errors
    /// It cannot be unmounted, or serving had failed.
    pub fn unmount(mut self) -> Result<(), MountError> {
        self.detach()?;
        match self.over(self.linger) {
            None => {
                let dir = self.dir.display();
                tracing::warn!(%dir, "unmounted, though programs have files open: they fail once this process ends");
                Ok(())
            }
            Some(result) => result.map_err(failed("serve", &self.dir)),
        }
    }

    /// The result of serving, if it ended or ends within this time.
    fn over(&mut self, within: Duration) -> Option<io::Result<()>> {
        let until = Instant::now() + within;
        while self.is_serving() {
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(LOOK);
        }
        let ended = self.serving.take().map_or(Ok(Ok(())), JoinHandle::join);
        let ended =
            ended.unwrap_or_else(|_| Err(io::Error::other("a thread that serves it panicked")));
        // Whoever reads a request just when the kernel ends the connection is told so instead of that nothing is mounted.
        Some(ended.or_else(|error| match error.kind() {
            io::ErrorKind::ConnectionAborted => Ok(()),
            _ => Err(error),
        }))
    }

    fn is_serving(&self) -> bool {
        self.serving.as_ref().is_some_and(|all| !all.is_finished())
    }

    /// Unmounts at once, unless that was done: another mount at the folder stays, and so does one over it.
    fn detach(&self) -> Result<(), MountError> {
        if !self.is_serving() {
            return Ok(());
        }
        // A folder above may have another name by now.
        for dir in points::of_device(&self.device).map_err(failed("look at", &self.dir))? {
            let gone = match points::unmount(&dir, false) {
                Err(Errno::BUSY) => points::unmount(&dir, true),
                gone => gone,
            };
            match gone {
                // Somebody else was faster.
                Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
                Err(error) => return Err(failed("unmount", &dir)(error.into())),
            }
        }
        Ok(())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!("{error}");
        }
    }
}

fn failed(what: &'static str, dir: &Path) -> impl FnOnce(io::Error) -> MountError {
    let dir = dir.to_owned();
    move |reason| MountError::Failed { what, dir, reason }
}

/// Checks that a folder can be mounted at, and takes away what a killed process of ours has left there. Its path
/// without links. `source`: a folder that is to be seen there, its path without links: who looks into it must
/// not come by what shows it.
///
/// # Errors
/// See [`MountError`].
pub fn ready(dir: &Path, source: Option<&Path>) -> Result<PathBuf, MountError> {
    let dir = points::resolve(dir).map_err(|e| unusable(dir, e))?;
    if let Some(source_dir) = source.filter(|source| dir.starts_with(source)) {
        let source_dir = source_dir.to_owned();
        return Err(MountError::WithinSource { dir, source_dir });
    }
    // Each killed process may have left one, on top of the others.
    while let Some(point) = points::at(&dir).map_err(failed("look at", &dir))? {
        let name = point.ours().map(|n| n.to_string_lossy().into_owned());
        match (points::health(&dir), name) {
            (Health::Alive, None) => break,
            (Health::Alive, Some(name)) => return Err(MountError::Mounted { dir, name }),
            (Health::Dead, None) => return Err(MountError::Dead { dir }),
            (Health::Silent, name) => {
                let name = name.unwrap_or_else(|| point.source.to_string_lossy().into_owned());
                return Err(MountError::Silent { dir, name });
            }
            (Health::Dead, Some(name)) => {
                tracing::info!(dir = %dir.display(), name, "taking away a mount whose process is gone");
                points::unmount(&dir, true).map_err(|e| refused(&dir, e.into()))?;
            }
        }
    }
    match std::fs::metadata(&dir) {
        Ok(seen) if seen.is_dir() => {}
        Ok(_) => return Err(MountError::NotAFolder { dir }),
        Err(error) => return Err(unusable(&dir, error)),
    }
    match std::fs::read_dir(&dir).map(|mut entries| entries.next()) {
        Ok(None) => Ok(dir),
        Ok(Some(Ok(entry))) => {
            let entry = entry.file_name().to_string_lossy().into_owned();
            Err(MountError::NotEmpty { dir, entry })
        }
        Ok(Some(Err(error))) | Err(error) => Err(failed("look into", &dir)(error)),
    }
}

fn unusable(dir: &Path, error: io::Error) -> MountError {
    match error.kind() {
        io::ErrorKind::NotFound => MountError::NoFolder { dir: dir.into() },
        io::ErrorKind::NotADirectory => MountError::NotAFolder { dir: dir.into() },
        _ => failed("look at", dir)(error),
    }
}

/// Says in our words why it could not be mounted.
fn refused(dir: &Path, error: io::Error) -> MountError {
    if !Path::new("/dev/fuse").exists() {
        return MountError::NoDevice;
    }
    let root = rustix::process::geteuid().is_root();
    let denied = error.kind() == io::ErrorKind::PermissionDenied;
    if denied || !root {
        let dir = dir.into();
        return MountError::NotPermitted { dir, reason: error };
    }
    failed("mount at", dir)(error)
}

fn config(options: &Options) -> Config {
    let mut config = Config::default();
    // The kernel parts options at commas.
    let name = options.name.replace(',', "_");
    config.mount_options = vec![
        MountOption::RO,
        MountOption::FSName(format!("{MARK}{name}")),
        MountOption::DefaultPermissions,
    ];
    config.acl = match options.others {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    config.n_threads = Some(options.threads.max(1));
    config.clone_fd = options.threads > 1;
    config
}

/// Tells the kernel how far to read ahead on this mount. It takes effect on files opened from now on.
fn set_read_ahead(device: &str, kib: u32) {
    let knob = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&knob, kib.to_string()) {
        tracing::info!("the kernel's read-ahead stays as it is: cannot write {knob}: {error}");
    }
}
