//! Serves a folder through FUSE at the pace of a medium that is not there: a disk with one head, or an object store.
//! What is measured against it is as fast on any machine.
//!
//! ```text
//! staves-bench-media --model disk|store|ram [--read-ahead-kib 128] SOURCE DIR...   # until SIGTERM
//! staves-bench-media --model disk|store --check                                    # how close it comes to its model
//! ```
//!
//! Several DIRs are one medium, each with pages of the kernel of its own, as a server's clients have them. The model `ram` waits for nothing and reads each file
//! into memory when it is opened: a yardstick. For each line on its input it says what was asked of it until then, as JSON.
//!
//! A disk is served by one thread, so that requests reach the head in the order that the kernel sends them. The kernel's pages are
//! as on any disk: what was read is not read again.

mod model;
mod slow;

use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_mount::{EndSignals, Folder, Mounted, Options, mount};

use crate::slow::{Medium, Model, Slow};

const USAGE: &str = "usage: staves-bench-media --model disk|store|ram [--read-ahead-kib KIB] (SOURCE DIR... | --check)";
/// Requests that an object store serves at a time.
const STORE_THREADS: usize = 64;

struct Args {
    model: Model,
    read_ahead_kib: u32,
    check: bool,
    paths: Vec<PathBuf>,
}

fn parse() -> Result<Args, Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1);
    let (mut model, mut read_ahead_kib, mut check, mut paths) = (None, 128, false, Vec::new());
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--model") => {
                model = match args.next().as_deref().and_then(|m| m.to_str()) {
                    Some("disk") => Some(Model::Disk),
                    Some("store") => Some(Model::Store),
                    Some("ram") => Some(Model::Ram),
                    _ => return Err(USAGE.into()),
                }
            }
            Some("--read-ahead-kib") => {
                let kib = args.next().ok_or(USAGE)?;
                read_ahead_kib = kib.to_str().ok_or(USAGE)?.parse()?;
            }
            Some("--check") => check = true,
            Some(other) if other.starts_with('-') => return Err(USAGE.into()),
            _ => paths.push(arg.into()),
        }
    }
    let model = model.ok_or(USAGE)?;
    Ok(Args {
        model,
        read_ahead_kib,
        check,
        paths,
    })
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let args = parse()?;
    match args.paths.as_slice() {
        [] if args.check => check(&args),
        [source, dirs @ ..] if !args.check && !dirs.is_empty() => {
            let medium = Arc::new(Medium::new(args.model));
            let mut mounts = Vec::new();
            for dir in dirs {
                mounts.push((EndSignals::catch()?, serve(&args, &medium, source, dir)?));
            }
            println!("serving {}", source.display());
            let told = medium.clone();
            std::thread::spawn(move || {
                for _ in std::io::stdin().lines().map_while(Result::ok) {
                    println!("{}", figures(&told));
                }
            });
            // Each waits for the signal that ends them all.
            let served = mounts.into_iter();
            let served = served.map(|(signals, m)| std::thread::spawn(|| m.serve(signals)));
            for serving in served.collect::<Vec<_>>() {
                serving.join().map_err(|_| "a mount panicked")??;
            }
            println!("{}", figures(&medium));
            Ok(())
        }
        _ => Err(USAGE.into()),
    }
}

fn figures(medium: &Medium) -> String {
    let figures = &medium.figures;
    let [asks, reads, bytes, ns] = [
        &figures.asks,
        &figures.reads,
        &figures.bytes,
        &figures.modelled_ns,
    ]
    .map(|figure| figure.load(Ordering::Relaxed));
    format!(r#"{{"asks": {asks}, "reads": {reads}, "bytes": {bytes}, "modelled_ns": {ns}}}"#)
}

fn serve(
    args: &Args,
    medium: &Arc<Medium>,
    source: &Path,
    dir: &Path,
) -> Result<Mounted, Box<dyn Error>> {
    let files = Slow::new(Folder::open(source)?, medium.clone());
    let options = Options {
        name: format!("{:?}-{}", args.model, source.display()).to_lowercase(),
        threads: match args.model {
            Model::Disk => 1,
            Model::Store => STORE_THREADS,
            Model::Ram => Options::default().threads,
        },
        kernel_read_ahead_kib: args.read_ahead_kib,
        lifetime: Duration::from_secs(60),
        ..Options::default()
    };
    Ok(mount(files, dir, &options)?)
}

/// Reads at random and in order, and prints how long it took beside how long the model says.
fn check(args: &Args) -> Result<(), Box<dyn Error>> {
    const SIZE: u64 = 128 << 20;
    let folder = std::env::temp_dir().join(format!("staves-bench-media-{}", std::process::id()));
    let (source, dir) = (folder.join("source"), folder.join("dir"));
    std::fs::create_dir_all(&source)?;
    std::fs::create_dir(&dir)?;
    let words = (0..SIZE / 8).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    for name in ["random", "in-order"] {
        std::fs::write(source.join(name), &bytes)?;
    }
    let medium = Arc::new(Medium::new(args.model));
    let (mounted, figures) = (serve(args, &medium, &source, &dir)?, &medium.figures);
    let measured = |what: &str, one_by_one: bool, reads: &dyn Fn() -> std::io::Result<()>| {
        let before = figures.modelled_ns.load(Ordering::Relaxed);
        let since = Instant::now();
        reads()?;
        let took = since.elapsed().as_secs_f64();
        let model = (figures.modelled_ns.load(Ordering::Relaxed) - before) as f64 / 1e9;
        // A store's requests overlap where the kernel reads ahead: then the sum says nothing.
        let beside = match one_by_one {
            true => format!(
                ", model {model:.3} s, {:+.1} %",
                (took / model - 1.0) * 100.0
            ),
            false => String::new(),
        };
        println!("{what}: {took:.3} s{beside}");
        std::io::Result::Ok(())
    };
    let random = File::open(dir.join("random"))?;
    measured("200 random reads of 8 KiB", true, &|| {
        for i in 1..=200u64 {
            let at = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) % (SIZE / 8192) * 8192;
            random.read_exact_at(&mut [0; 8192], at)?;
        }
        Ok(())
    })?;
    measured("128 MiB in order", args.model == Model::Disk, &|| {
        let mut file = File::open(dir.join("in-order"))?;
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    })?;
    drop(random);
    mounted.unmount()?;
    std::fs::remove_dir_all(folder)?;
    Ok(())
}
