//! Snapshots and clones under load: a client makes them, reads them, writes to clones, and deletes them in any order, while volumes are written.

mod client;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use staves_testkit::load::Random;

use self::client::ImageClient;
use super::history::BLOCK_BYTES;
use super::images::ImageHistory;
use super::session::{any_node, connect_nbd, grpc_client};
use super::writer::VolumeWriter;
use super::{PAUSE, RUN, VolumeLoad, block_reads, offset, run};
use crate::lab::tool;
use crate::load::{Shared, lock, runtime};

/// The time that an answer may take; faults last longer than that, and another turn comes.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same of a command. A copy that not every bucket has made is given up after 5 s.
const COMMAND: &str = "8s";

/// Snapshots and clones, and their client's state.
#[derive(Default)]
pub struct ImageLoad {
    images: Mutex<Vec<Image>>,
    asked: AtomicBool,
    numbers: AtomicU64,
    failed: AtomicUsize,
    deleted: AtomicUsize,
}

/// A snapshot or a clone.
#[derive(Clone)]
struct Image {
    history: ImageHistory,
    stage: ImageStage,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ImageStage {
    /// It may be read. If its command failed it may not be there.
    Kept,
    /// Its deletion is, or was, asked for; it may be there.
    Doomed,
    /// It is deleted.
    Gone,
}

impl ImageLoad {
    /// The client is to make a snapshot at once.
    pub fn ask(&self) {
        self.asked.store(true, Ordering::Relaxed);
    }

    /// Operations, by kind.
    pub fn counts(&self) -> [(&'static str, usize); 5] {
        let images = lock(&self.images);
        let all = || images.iter().map(|image| &image.history);
        [
            ("snapshot or clone made or begun", images.len()),
            ("copy that failed", self.failed.load(Ordering::Relaxed)),
            (
                "snapshot or clone deleted",
                self.deleted.load(Ordering::Relaxed),
            ),
            (
                "snapshot block read",
                all().map(|of| of.blocks.reads.len()).sum(),
            ),
            (
                "clone block written",
                all().map(|of| of.blocks.writes.len()).sum(),
            ),
        ]
    }

    /// The histories so far.
    pub fn histories(&self) -> Vec<ImageHistory> {
        let images = lock(&self.images);
        images.iter().map(|image| image.history.clone()).collect()
    }

    /// The places of those in this stage.
    fn in_stage(&self, stage: ImageStage) -> Vec<usize> {
        let images = lock(&self.images);
        let all = images.iter().enumerate();
        all.filter(|(_, image)| image.stage == stage)
            .map(|(at, _)| at)
            .collect()
    }

    /// The history of one.
    fn history(&self, at: usize) -> ImageHistory {
        let images = lock(&self.images);
        images
            .get(at)
            .map(|image| image.history.clone())
            .unwrap_or_default()
    }

    fn change<T>(&self, at: usize, change: impl FnOnce(&mut Image) -> T) -> Option<T> {
        lock(&self.images).get_mut(at).map(change)
    }

    fn doom(&self, at: usize) {
        self.change(at, |image| image.stage = ImageStage::Doomed);
    }

    fn is_gone(&self, at: usize) {
        self.change(at, |image| image.stage = ImageStage::Gone);
        self.deleted.fetch_add(1, Ordering::Relaxed);
    }
}

/// Starts the second volume's writer, and the client.
pub fn start(shared: &Arc<Shared>, seed: u64, program: &Path) -> Vec<JoinHandle<()>> {
    let (writer, copier, program) = (shared.clone(), shared.clone(), program.to_owned());
    let random = |client: u64| Random(seed ^ (0x496d_6700 + client) << 24);
    let (one, two) = (random(1), random(2));
    vec![
        std::thread::spawn(move || {
            let volume = VolumeWriter::new(&writer, &writer.second_volume, one);
            run(&writer, volume.write_all());
        }),
        std::thread::spawn(move || {
            let client = ImageClient::new(&copier, program, two);
            run(&copier, client.go());
        }),
    ]
}

/// Gives a command.
fn staves(shared: &Shared, program: &Path, words: &[&str]) -> anyhow::Result<String> {
    let doors = shared.native_doors().join(",");
    let head = ["--cluster", &doors, "--deadline", COMMAND, "-o", "json"];
    tool(&program.display().to_string(), &[&head, words].concat())
}

/// The names of all images that there are, and whether each is being deleted.
fn listed(shared: &Shared, program: &Path) -> anyhow::Result<Vec<(String, bool)>> {
    let said = staves(shared, program, &["volume", "list"])?;
    let rows: Vec<Value> = serde_json::from_str(&said)?;
    let volumes = [shared.volume.name, shared.second_volume.name];
    let images = rows.iter().filter_map(|row| {
        let name = row["volume"].as_str()?;
        let is_going = row["copy"]["state"] == "being deleted";
        (!volumes.contains(&name)).then(|| (name.to_owned(), is_going))
    });
    Ok(images.collect())
}

/// Reads all blocks of an image, through any node by either door; `Err` if some were not read.
async fn read_image(shared: &Shared, random: &mut Random, at: usize) -> Result<(), String> {
    let image = shared.images.history(at);
    let volume = volume_of(shared, image.volume);
    let node = any_node(shared, random);
    let len = RUN as usize * BLOCK_BYTES;
    let mut nbd = match random.below(2) {
        0 => Some(connect_nbd(shared, node, &image.name, PATIENCE)?),
        _ => None,
    };
    let grpc = grpc_client(shared, node, PATIENCE).map_err(|error| error.to_string())?;
    for run in 0..volume.runs() {
        let call = shared.now();
        let bytes = match &mut nbd {
            Some(client) => client
                .read(offset(run), len)
                .map_err(|failure| format!("{failure:?}"))?,
            None => {
                let read = grpc.read(&image.name, offset(run), len).await;
                read.map_err(|error| error.to_string())?.to_vec()
            }
        };
        let returned = shared.now();
        let reads = block_reads(volume.block(run), &bytes, (call, returned));
        shared.images.change(at, |image| {
            image.history.blocks.reads.extend(reads);
            image.history.returned.get_or_insert(returned);
        });
    }
    Ok(())
}

fn volume_of(shared: &Shared, volume: usize) -> &VolumeLoad {
    match volume {
        0 => &shared.volume,
        _ => &shared.second_volume,
    }
}

/// Reads all that is kept once more, deletes all, and waits until nothing is left of it, until that time; what is wrong, in words.
pub fn settle(shared: &Shared, program: &Path, until: Instant) -> anyhow::Result<Vec<String>> {
    let (images, mut random) = (&shared.images, Random(0x7365_7474));
    let mut wrong = Vec::new();
    let reading = async {
        for at in images.in_stage(ImageStage::Kept) {
            let image = images.history(at);
            // One whose command failed may not be there.
            while let Err(why) = read_image(shared, &mut random, at).await {
                if image.returned.is_none() {
                    break;
                }
                if Instant::now() >= until {
                    let name = &image.name;
                    wrong.push(format!("'{name}' could not be read at the end: {why}"));
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    };
    runtime()?.block_on(reading);
    loop {
        let left = listed(shared, program);
        match &left {
            Ok(left) if left.is_empty() => break,
            Ok(left) => {
                for (name, _) in left.iter().filter(|(_, is_going)| !is_going) {
                    // It is listed again if that was not done.
                    let _ = staves(shared, program, &["volume", "delete", name, "--yes"]);
                }
            }
            Err(_) => {}
        }
        if Instant::now() >= until {
            wrong.push(format!("there are snapshots and clones left: {left:?}"));
            break;
        }
        std::thread::sleep(PAUSE);
    }
    Ok(wrong)
}
