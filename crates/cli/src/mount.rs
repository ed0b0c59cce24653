//! `staves mount` and `staves unmount`: a dataset as a folder, for programs that know nothing of us (row D8).
//!
//! The mount is a process of its own, so that a node's end is not that of whoever reads. Without `--foreground` this
//! command starts that process, waits until the folder is there, and goes.

mod ahead;
mod log;
mod named;
mod nfs;
mod tree;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use staves_client::{Client, ClientError, ClientOptions, Dataset};
use staves_mount::{EndSignals, MountError, Options};
use staves_node::config::Size;

use self::tree::Tree;
use crate::background::{self, Background};
use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, failed, no_source, not_reached};
use staves_cli_common::options::{Format, GlobalOptions};
use staves_cli_common::output;
use staves_cli_common::served::{SERVING, Served, WITHOUT_NODES};

#[derive(clap::Args, Debug)]
pub struct Mount {
    /// The source of the files: a folder, s3://BUCKET/PREFIX, http://HOST/PATH or https://HOST/PATH
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    pub source: String,

    /// The folder to show them in, which must be empty
    #[arg(required_unless_present = "nfs")]
    pub dir: Option<PathBuf>,

    /// Serve them by NFSv3 here instead, for hosts without FUSE, until this process is told to end. A port alone is one that only
    /// this machine reaches
    #[arg(long, value_name = "ADDR", conflicts_with_all = ["dir", "others"], value_parser = nfs::address)]
    pub nfs: Option<SocketAddr>,

    /// The pool whose memory holds them
    #[arg(long, default_value = "files")]
    pub pool: String,

    /// The dataset's name, the same on all machines; the source's last word if not given
    #[arg(long, value_name = "NAME")]
    pub dataset: Option<String>,

    /// Stay, and end when it is unmounted or this process is told to end
    #[arg(long)]
    pub foreground: bool,

    /// Bytes that are fetched ahead of a program that reads in order, 0B for none; for all files together at most eight times as much
    #[arg(long, value_name = "SIZE", default_value = "8MiB", value_parser = ahead::wanted)]
    pub read_ahead: Size,

    /// Other users may read too
    #[arg(long)]
    pub others: bool,

    /// The file for the log of failures: without it stderr if this process stays, else nowhere
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,

    /// Started by this command itself
    #[arg(long, hide = true)]
    pub in_background: bool,

    /// Unmount when the process of this id is no longer the parent
    #[arg(long, value_name = "PID", hide = true)]
    pub parent_pid: Option<u32>,
}

impl Mount {
    fn dir(&self) -> &Path {
        self.dir.as_deref().expect("asked for, without --nfs")
    }
}

#[derive(clap::Args, Debug)]
pub struct Unmount {
    /// The folder that it is mounted at
    pub dir: PathBuf,

    /// Even if programs have files open
    #[arg(long)]
    pub lazily: bool,
}

/// The dataset to be mounted, by the words that other machines find it by.
struct WantedDataset {
    source: String,
    /// The dataset's name.
    name: String,
    pool: String,
}

impl WantedDataset {
    fn of(mount: &Mount) -> anyhow::Result<WantedDataset> {
        let source = Dataset::address(&mount.source).map_err(no_source)?;
        Ok(WantedDataset {
            name: named::name(mount.dataset.as_deref(), &source)?,
            pool: mount.pool.clone(),
            source,
        })
    }

    /// The source, where it is a folder of this machine.
    fn folder(&self) -> Option<&Path> {
        self.source
            .starts_with('/')
            .then(|| Path::new(&self.source))
    }

    fn as_json(&self) -> serde_json::Value {
        json!({ "source": self.source, "dataset": self.name, "pool": self.pool })
    }

    /// Says so where there is nothing to be seen, which is most often a slip, and where no node answers.
    fn warn(&self, nodes: Nodes, out: Format, answer: &mut serde_json::Value) {
        let mut warnings = Vec::new();
        if nodes == Nodes::Silent {
            let text = "no node answers: files are read from their source alone until one does; the addresses come from --cluster and STAVES_CLUSTER";
            warnings.push(text.to_owned());
        }
        if self.folder().is_some() && Dataset::is_empty_folder(&self.source) {
            let text = format!("nothing is in {}: is its file system mounted?", self.source);
            warnings.push(text);
        }
        if !warnings.is_empty() {
            output::warn(out, answer, warnings.join("; "));
        }
    }
}

/// The cluster as a mount finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nodes {
    Answer,
    /// None answers, so far.
    Silent,
}

impl std::fmt::Display for WantedDataset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let WantedDataset { source, name, pool } = self;
        write!(f, "{source} (dataset '{name}' of the pool '{pool}')")
    }
}

pub fn run(global: &GlobalOptions, mount: &Mount, out: Format) -> anyhow::Result<()> {
    if mount.in_background {
        background::let_go_of_inherited();
    }
    let wanted = WantedDataset::of(mount)?;
    if mount.foreground || mount.nfs.is_some() {
        return serve(global, mount, wanted);
    }
    let nodes = start()?;
    let mut answer = wanted.as_json();
    answer["dir"] = json!(mount.dir());
    answer["result"] = "mounted".into();
    wanted.warn(nodes, out, &mut answer);
    output::answer(out, &answer, |_| {
        format!("{wanted} is mounted at {}", mount.dir().display())
    })
}

/// Starts the process that serves, and waits until it does.
fn start() -> anyhow::Result<Nodes> {
    let mut process = Background::start()?;
    let mut nodes = Nodes::Answer;
    loop {
        match process.line()?.as_str() {
            SERVING => return Ok(nodes),
            WITHOUT_NODES => nodes = Nodes::Silent,
            _ => return Err(process.failure()),
        }
    }
}

fn serve(global: &GlobalOptions, mount: &Mount, wanted: WantedDataset) -> anyhow::Result<()> {
    log::open(mount)?;
    // Before the pool hears of it: what cannot be mounted leaves nothing behind.
    if let Some(dir) = &mount.dir {
        staves_mount::ready(dir, wanted.folder()).map_err(mount_failed)?;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the program's runtime")?;
    let (data, nodes) = open(global, &wanted, &runtime)?;
    let tree = Tree::new(data.clone(), runtime.handle().clone(), mount.read_ahead.0);
    if let Some(address) = mount.nfs {
        let opened = nfs::Opened {
            tree,
            wanted,
            data,
            nodes,
        };
        return nfs::serve(global, mount, address, opened, &runtime);
    }
    let options = Options {
        name: wanted.name.clone(),
        read_ahead_bytes: mount.read_ahead.0,
        others: mount.others,
        ..Options::default()
    };
    data.used_by(format!("{}:{}", host(), whole(mount.dir()).display()));
    let signals = EndSignals::catch().context("the signals that end a mount cannot be caught")?;
    let mounted = staves_mount::mount(tree, mount.dir(), &options).map_err(mount_failed)?;
    let refreshed = data.clone();
    runtime.spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            refreshed.refresh().await;
        }
    });
    if let Some(parent) = mount.parent_pid {
        unmount_with(parent, mounted.dir().to_owned());
    }
    if nodes == Nodes::Silent {
        output::line(WITHOUT_NODES)?;
    }
    output::line(SERVING)?;
    output::flush()?;
    if !mount.in_background && global.output == Format::Table {
        let dir = mounted.dir().display();
        output::say(format_args!(
            "staves: {wanted} is mounted at {dir} until this process ends: Ctrl-C, or 'staves unmount {dir}'"
        ));
        wanted.warn(nodes, global.output, &mut json!({}));
    }
    mounted.serve(signals).map_err(mount_failed)?;
    match mount.in_background {
        true => Ok(()), // nobody listens any more
        false => output::answer(
            global.output,
            &Served::of(data.figures()),
            Served::to_string,
        ),
    }
}

/// Opens the dataset. Where no node answers, it is read from its source until one does: whoever starts a machine need not start
/// the cluster first.
fn open(
    global: &GlobalOptions,
    wanted: &WantedDataset,
    runtime: &tokio::runtime::Runtime,
) -> anyhow::Result<(Dataset, Nodes)> {
    let addresses: Vec<String> = global.cluster.iter().map(ToString::to_string).collect();
    let options = ClientOptions {
        deadline: global.deadline.duration(),
        secret: global.secret()?,
        ..ClientOptions::default()
    };
    let WantedDataset { source, name, pool } = wanted;
    match runtime.block_on(Client::connect(&addresses, options.clone())) {
        Ok(client) => {
            let data = runtime.block_on(client.dataset(pool, name, source));
            Ok((data.map_err(failed)?, Nodes::Answer))
        }
        Err(ClientError::Unreachable { .. }) => {
            let client = Client::unconnected(&addresses, options);
            let data = runtime.block_on(client.dataset_without_nodes(pool, name, source));
            Ok((data.map_err(failed)?, Nodes::Silent))
        }
        Err(error) => Err(not_reached(error)),
    }
}

/// Unmounts when `parent` is no longer this process's parent: the mount of `staves demo` must not outlive it,
/// however it ends.
fn unmount_with(parent: u32, dir: PathBuf) {
    const LOOK: Duration = Duration::from_millis(200);
    std::thread::spawn(move || {
        while std::os::unix::process::parent_id() == parent {
            std::thread::sleep(LOOK);
        }
        if let Err(error) = staves_mount::unmount(&dir, true) {
            tracing::warn!("{error}");
        }
    });
}

/// This machine's name, for people.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname");
    name.map_or_else(|_| "?".to_owned(), |name| name.trim().to_owned())
}

fn whole(dir: &Path) -> PathBuf {
    std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned())
}

pub fn unmount(unmount: &Unmount, out: Format) -> anyhow::Result<()> {
    staves_mount::unmount(&unmount.dir, unmount.lazily).map_err(mount_failed)?;
    let answer = json!({ "dir": unmount.dir, "result": "unmounted" });
    output::answer(out, &answer, |_| {
        format!("{} is unmounted", unmount.dir.display())
    })
}

fn mount_failed(error: MountError) -> anyhow::Error {
    match error {
        MountError::NotMounted { .. } | MountError::NoFolder { .. } => {
            Failure::NotFound(error.to_string()).into()
        }
        MountError::WithinSource { .. } => Failure::Own(Own::Usage, error.to_string()).into(),
        _ => Failure::Own(Own::Failed, error.to_string()).into(),
    }
}
