//! The client that makes snapshots and clones: it reads them, writes to clones, and deletes them in any order, while volumes are written.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use staves_grpc::AttachOptions;
use staves_testkit::load::Random;

use super::history::{BLOCK_BYTES, BlockWrite};
use super::images::ImageHistory;
use super::session::{Unanswered, WriteSession, any_node, connect_nbd, grpc_client};
use super::writer::{VolumeWriter, bytes_of};
use super::{PAUSE, RUN, VolumeLoad, block_reads, offset, run};
use crate::lab::tool;
use crate::load::{Shared, lock, runtime};

/// Most snapshots and clones that are not to be deleted yet, and most that are.
const KEPT_MAX: usize = 6;
/// See [`KEPT_MAX`].
const DOOMED_MAX: usize = 8;
/// The time that an answer may take; faults last longer than that, and another turn comes.
const PATIENCE: Duration = Duration::from_secs(4);
/// The same of a command. A copy that not every bucket has made is given up after 5 s.
const COMMAND: &str = "8s";
/// The numbers of clones' own writes: none is one of a volume's.
const OF_CLONES: u64 = 1 << 30;

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
    state: ImageState,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum ImageState {
    /// It may be read. If its command failed it may not be there.
    Kept,
    /// Its deletion is, or was, asked for; it may be there.
    Doomed,
    /// It is deleted.
    Gone,
}

/// A command that makes images: its words, and the name, the volume and the origin of each.
struct CopyCommand {
    words: Vec<String>,
    images: Vec<(String, usize, Option<String>)>,
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

    /// The places of those in this state.
    fn in_state(&self, state: ImageState) -> Vec<usize> {
        let images = lock(&self.images);
        let all = images.iter().enumerate();
        all.filter(|(_, image)| image.state == state)
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
        self.change(at, |image| image.state = ImageState::Doomed);
    }

    fn is_gone(&self, at: usize) {
        self.change(at, |image| image.state = ImageState::Gone);
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
            let client = ImageClient {
                shared: &copier,
                program,
                random: two,
                commands: 0,
            };
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

struct ImageClient<'a> {
    shared: &'a Shared,
    program: PathBuf,
    random: Random,
    commands: u64,
}

impl ImageClient<'_> {
    async fn go(mut self) {
        while !self.shared.stopped() {
            self.turn().await;
            let rest = Instant::now() + Duration::from_millis(20 + self.random.below(150));
            let asked = &self.shared.images.asked;
            while Instant::now() < rest && !asked.load(Ordering::Relaxed) && !self.shared.stopped()
            {
                tokio::time::sleep(PAUSE / 6).await;
            }
        }
    }

    async fn turn(&mut self) {
        let images = &self.shared.images;
        let kept = images.in_state(ImageState::Kept);
        let doomed = images.in_state(ImageState::Doomed);
        if images.asked.swap(false, Ordering::Relaxed) {
            return self.make().await;
        }
        if let Some(at) = self.any(&doomed)
            && self.random.below(2) == 0
        {
            return self.delete(at);
        }
        let has_room = kept.len() < KEPT_MAX && doomed.len() < DOOMED_MAX;
        let Some(at) = self.any(&kept) else {
            return self.make().await;
        };
        match self.random.below(8) {
            0..4 if has_room => self.make().await,
            0..5 => {
                images.doom(at);
                self.delete(at);
            }
            5 => self.write().await,
            _ => self.read(at).await,
        }
    }

    fn any(&mut self, of: &[usize]) -> Option<usize> {
        let at = self.random.below(of.len().max(1) as u64);
        of.get(at as usize).copied()
    }

    /// A read that fails says nothing, but that a copy whose command failed may not be there.
    async fn read(&mut self, at: usize) {
        let read = read_image(self.shared, &mut self.random, at).await;
        let was_seen = self.shared.images.history(at).returned.is_some();
        if read.is_err() && !was_seen && self.random.below(2) == 0 {
            self.shared.images.doom(at);
        }
    }

    /// What is read here may have been written to by this client alone.
    fn snapshots(&self) -> Vec<usize> {
        let images = &self.shared.images;
        let mut kept = images.in_state(ImageState::Kept);
        kept.retain(|at| {
            let of = images.history(*at);
            of.name.contains('@') && of.returned.is_some()
        });
        kept
    }

    fn draw(&mut self) -> CopyCommand {
        self.commands += 1;
        let number = self.commands;
        let volumes = [self.shared.volume.name, self.shared.second_volume.name];
        let snapshot = |volume: usize| (format!("{}@s{number}", volumes[volume]), volume, None);
        let clone = format!("clone-{number}");
        let snapshots = self.snapshots();
        let origin = self.any(&snapshots);
        let (verb, images) = match (self.random.below(7), origin) {
            (0..2, Some(at)) => {
                let of = self.shared.images.history(at);
                ("clone", vec![(clone, of.volume, Some(of.name))])
            }
            (2, _) => {
                let volume = self.random.below(2) as usize;
                ("clone", vec![(clone, volume, None)])
            }
            (3, _) => ("snapshot", vec![snapshot(0)]),
            _ => ("snapshot", vec![snapshot(0), snapshot(1)]),
        };
        let mut words = vec!["volume".to_owned(), verb.to_owned()];
        for (name, volume, of) in &images {
            let origin = of.as_deref().unwrap_or(volumes[*volume]).to_owned();
            words.extend((verb == "clone").then_some(origin));
            words.push(name.clone());
        }
        CopyCommand { words, images }
    }

    async fn make(&mut self) {
        let command = self.draw();
        let words: Vec<&str> = command.words.iter().map(String::as_str).collect();
        let call = self.shared.now();
        let made = staves(self.shared, &self.program, &words);
        let returned = made.is_ok().then(|| self.shared.now());
        let images = &self.shared.images;
        let first = lock(&images.images).len();
        if returned.is_none() {
            images.failed.fetch_add(1, Ordering::Relaxed);
        }
        let made = command.images.into_iter().map(|(name, volume, of)| Image {
            history: ImageHistory {
                name,
                volume,
                of,
                command: self.commands,
                call,
                returned,
                ..ImageHistory::default()
            },
            state: ImageState::Kept,
        });
        lock(&images.images).extend(made);
        let last = lock(&images.images).len();
        for at in first..last {
            self.read(at).await;
        }
    }

    /// Writes to a clone of which all is known, in a session of its own.
    async fn write(&mut self) {
        let mut clones = self.shared.images.in_state(ImageState::Kept);
        clones.retain(|at| {
            let image = self.shared.images.history(*at);
            let blocks = volume_of(self.shared, image.volume).runs() * RUN;
            !image.name.contains('@') && image.blocks.reads.len() as u64 >= blocks
        });
        let Some(at) = self.any(&clones) else {
            return;
        };
        let image = self.shared.images.history(at);
        let volume = volume_of(self.shared, image.volume);
        let node = any_node(self.shared, &mut self.random);
        let Ok(client) = grpc_client(self.shared, node, PATIENCE) else {
            return;
        };
        let options = AttachOptions {
            wait: PATIENCE / 2,
            take_over: false,
        };
        let Ok(attached) = client.attach(&image.name, options).await else {
            return;
        };
        let mut door = WriteSession::Grpc(Box::new(attached));
        let session = self.number();
        for _ in 0..=self.random.below(3) {
            let run = self.random.below(volume.runs());
            let (number, call) = (OF_CLONES + self.number(), self.shared.now());
            let blocks = volume.block(run)..volume.block(run) + 1 + self.random.below(RUN);
            let written = blocks.map(|block| BlockWrite {
                block,
                number,
                session,
                call,
                returned: None,
            });
            let written: Vec<BlockWrite> = written.collect();
            let images = &self.shared.images;
            images.change(at, |image| {
                image.history.blocks.writes.extend_from_slice(&written);
            });
            match door.write(offset(run), bytes_of(&written)).await {
                Ok(()) => {
                    let now = self.shared.now();
                    images.change(at, |image| {
                        let all = image.history.blocks.writes.iter_mut();
                        all.filter(|write| write.number == number)
                            .for_each(|write| write.returned = Some(now));
                    });
                }
                Err(Unanswered::Wrong(why)) => {
                    let text = format!("a write to '{}' was refused: {why}", image.name);
                    return self.shared.complain(text);
                }
                Err(_) => return,
            }
        }
    }

    fn number(&self) -> u64 {
        self.shared.images.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Deletes one. A failure may be a command that was done, or a clone that is attached yet: it is asked for again.
    fn delete(&self, at: usize) {
        let name = self.shared.images.history(at).name;
        let delete = ["volume", "delete", &name, "--yes"];
        let _ = staves(self.shared, &self.program, &delete);
        let Ok(listed) = listed(self.shared, &self.program) else {
            return;
        };
        if listed.iter().all(|(there, _)| *there != name) {
            self.shared.images.is_gone(at);
        }
    }
}

/// Reads all that is kept once more, deletes all, and waits until nothing is left of it, until that time; what is wrong, in words.
pub fn settle(shared: &Shared, program: &Path, until: Instant) -> anyhow::Result<Vec<String>> {
    let (images, mut random) = (&shared.images, Random(0x7365_7474));
    let mut wrong = Vec::new();
    let reading = async {
        for at in images.in_state(ImageState::Kept) {
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
