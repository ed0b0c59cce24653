//! The blocks of 4 KiB that become durable in a second: `cargo run --release -p staves-disk --example commits -- FOLDER`.
//!
//! Beside the journal, in turns: one write and one sync for each block, by as many threads, on a file of the same folder.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use staves_disk::{BLOCK_BYTES, Committer, Device, DiskId, FileDevice, Journal, JournalError};

const BYTES: u64 = 256 << 20;
const EACH: Duration = Duration::from_millis(1500);
const DISK: DiskId = DiskId([1; 16]);
const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = std::env::args().nth(1).ok_or("which folder?")?;
    let folder = Path::new(&folder);
    println!(
        "{:>8} {:>18} {:>18} {:>10}",
        "writers", "journal, blocks/s", "one sync each", "ratio"
    );
    for writers in [1, 4, 16, 32, 64] {
        let mut rates = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            rates.0.push(journal(&folder.join("journal"), writers)?);
            rates.1.push(alone(&folder.join("blocks"), writers)?);
        }
        let (with, without) = (median(rates.0), median(rates.1));
        let ratio = with / without;
        println!("{writers:>8} {with:>18.0} {without:>18.0} {ratio:>10.2}");
    }
    Ok(())
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn journal(path: &Path, writers: usize) -> Result<f64, Box<dyn std::error::Error>> {
    let device = FileDevice::create_journal(path, BYTES, DISK)?;
    let journal = Journal::open(&device, &mut |_, _| Ok(()))?;
    let committer = Committer::start(journal, Box::new(device), |_| {})?;
    let rate = rate(writers, &|_| loop {
        match committer.append(&[7; BLOCK_BYTES]) {
            Ok(number) => {
                let durable = committer.wait(number, PATIENCE);
                assert!(durable.is_ok_and(|durable| durable), "not durable");
                return;
            }
            // What is durable is needed no more here.
            Err(JournalError::Full { .. }) => committer.let_go(committer.synced() + 1),
            Err(JournalError::Busy) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    });
    committer.close()?;
    std::fs::remove_file(path)?;
    Ok(rate)
}

fn alone(path: &Path, writers: usize) -> Result<f64, Box<dyn std::error::Error>> {
    // A file that was made in the same way, and is written over.
    let device = FileDevice::create_journal(path, BYTES, DISK)?;
    let next = AtomicU64::new(0);
    let rate = rate(writers, &|_| {
        let block = next.fetch_add(1, Ordering::Relaxed) % (BYTES / BLOCK_BYTES as u64);
        let written = device.write(block * BLOCK_BYTES as u64, &[7; BLOCK_BYTES]);
        written
            .and_then(|()| device.sync())
            .expect("the disk is well");
    });
    std::fs::remove_file(path)?;
    Ok(rate)
}

/// The times a second that so many threads do it.
fn rate(writers: usize, once: &(dyn Fn(usize) + Sync)) -> f64 {
    let done = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let done = done.clone();
            scope.spawn(move || {
                while began.elapsed() < EACH {
                    once(writer);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    done.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}
