//! A mount of bytes in memory, for measurement: the most that any local hit can give. Nothing is kept by the kernel
//! between reads (O_DIRECT; pages dropped before each pass).
//!
//! ```text
//! cargo run --release -p staves-mount --example hit -- [THREADS] [KERNEL_READ_AHEAD_KIB]
//! ```

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::fs::{Advice, OFlags, fadvise};
use staves_mount::{FileError, Files, Kind, Listing, Options, Stat, Version, mount};

const SIZE: u64 = 512 << 20;
const BLOCK: usize = 8192;
const PASS: Duration = Duration::from_secs(3);

struct Ram(Vec<u8>);

fn stat(kind: Kind) -> Stat {
    Stat {
        kind,
        size: SIZE,
        modified: SystemTime::UNIX_EPOCH,
        mode: 0o755,
        version: Version([0, 0]),
        fresh: false,
        has_holes: false,
        links: 1,
    }
}

impl Files for Ram {
    type File = Stat;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        match path.to_str() {
            Some("") => Ok(stat(Kind::Folder)),
            Some("file") => Ok(stat(Kind::File)),
            _ => Err(FileError::NotFound),
        }
    }

    fn list(&self, _: &Path) -> Result<Listing, FileError> {
        Ok(Listing::from_iter([("file".into(), stat(Kind::File))]))
    }

    fn open(&self, _: &Path) -> Result<Stat, FileError> {
        Ok(stat(Kind::File))
    }

    fn stat_open<'a>(&self, file: &'a Stat) -> &'a Stat {
        file
    }

    fn read(&self, _: &Stat, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        into.copy_from_slice(&self.0[offset as usize..offset as usize + into.len()]);
        Ok(into.len())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mut options = Options::default();
    if let Some(threads) = args.next() {
        options.threads = threads.parse()?;
    }
    if let Some(kib) = args.next() {
        options.kernel_read_ahead_kib = kib.parse()?;
    }
    let words = (0..SIZE / 8).map(|i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let bytes = words.flat_map(u64::to_le_bytes).collect();
    let dir = tempfile::tempdir()?;
    let (threads, kib) = (options.threads, options.kernel_read_ahead_kib);
    let mounted = mount(Ram(bytes), dir.path(), &options)?;
    println!("{threads} threads, {kib} KiB of the kernel's read-ahead");
    let path = dir.path().join("file");
    for jobs in [1, 4] {
        let rate = random(&path, jobs)?;
        println!("random {BLOCK} B, {jobs} jobs    {rate:>10.0} /s");
    }
    for kib in [1024, 32] {
        let mut rates = (0..3)
            .map(|_| sequential(&path, kib << 10))
            .collect::<Result<Vec<_>, _>>()?;
        rates.sort_by(f64::total_cmp);
        println!("sequential, {kib:>4} KiB reads {:>9.0} MB/s", rates[1]);
    }
    println!("random page faults       {:>10} /s", mapped(&path, FAULTS)?);
    println!(
        "mapped, in order         {:>10} MB/s",
        mapped(&path, IN_ORDER)?
    );
    mounted.unmount()?;
    Ok(())
}

fn random(path: &Path, jobs: u64) -> std::io::Result<f64> {
    let reads = AtomicU64::new(0);
    let since = Instant::now();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..jobs)
            .map(|job| {
                let reads = &reads;
                scope.spawn(move || -> std::io::Result<()> {
                    let direct = OFlags::DIRECT.bits() as i32;
                    let file = File::options().read(true).custom_flags(direct).open(path)?;
                    let mut buffer = vec![0; BLOCK + 4096];
                    let skip = buffer.as_ptr().align_offset(4096);
                    let into = &mut buffer[skip..skip + BLOCK];
                    let mut x = job + 1;
                    while since.elapsed() < PASS {
                        x ^= x << 13;
                        x ^= x >> 7;
                        x ^= x << 17;
                        let at = x % (SIZE / BLOCK as u64) * BLOCK as u64;
                        file.read_exact_at(into, at)?;
                        let word = (at / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                        assert_eq!(into[..8], word.to_le_bytes());
                        reads.fetch_add(1, Ordering::Relaxed);
                    }
                    Ok(())
                })
            })
            .collect();
        for job in running {
            job.join().expect("a reader panicked")?;
        }
        Ok::<(), std::io::Error>(())
    })?;
    Ok(reads.load(Ordering::Relaxed) as f64 / since.elapsed().as_secs_f64())
}

fn sequential(path: &Path, bytes: usize) -> std::io::Result<f64> {
    let mut file = File::open(path)?;
    fadvise(&file, 0, None, Advice::DontNeed)?;
    let mut buffer = vec![0; bytes];
    let since = Instant::now();
    let mut bytes = 0;
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            read => bytes += read,
        }
    }
    Ok(bytes as f64 / 1e6 / since.elapsed().as_secs_f64())
}

const FAULTS: &str = "\
    at = [p * 4096 for p in random.Random(1).sample(range(len(m) // 4096), 20000)]\n\
    t = time.perf_counter()\n\
    for a in at: m[a]\n\
    print(round(len(at) / (time.perf_counter() - t)))";
const IN_ORDER: &str = "\
    t = time.perf_counter()\n\
    assert m.find(b'not there at all') < 0\n\
    print(round(len(m) / 1e6 / (time.perf_counter() - t)))";

/// By Python, for mapping memory is no safe thing to do here. What it does between faults is a part of a microsecond.
fn mapped(path: &Path, what: &str) -> std::io::Result<String> {
    fadvise(File::open(path)?, 0, None, Advice::DontNeed)?;
    let open = "import sys, mmap, time, random\n\
        f = open(sys.argv[1], 'rb')\n\
        m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n";
    let program = format!("{open}{what}");
    let run = Command::new("python3")
        .args(["-c", &program])
        .arg(path)
        .output()?;
    Ok(String::from_utf8_lossy(&run.stdout).trim().to_owned())
}
