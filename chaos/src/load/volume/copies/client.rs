//! The turns of the client that makes copies.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use staves_grpc::AttachOptions;
use staves_testkit::load::Random;

use super::super::history::BlockWrite;
use super::super::images::ImageHistory;
use super::super::session::{Unanswered, WriteSession, any_node, grpc_client};
use super::super::writer::bytes_of;
use super::super::{PAUSE, RUN, offset};
use super::{Image, ImageStage, PATIENCE, Shared, listed, lock, read_image, staves, volume_of};

/// Most snapshots and clones that are not to be deleted yet, and most that are.
const KEPT_MAX: usize = 6;
/// See [`KEPT_MAX`].
const DOOMED_MAX: usize = 8;
/// The numbers of clones' own writes: none is one of a volume's.
const OF_CLONES: u64 = 1 << 30;

/// A command that makes images: its words, and the name, the volume and the origin of each.
struct CopyCommand {
    words: Vec<String>,
    images: Vec<(String, usize, Option<String>)>,
}

/// The client.
pub(super) struct ImageClient<'a> {
    shared: &'a Shared,
    program: PathBuf,
    random: Random,
    commands: u64,
}

impl<'a> ImageClient<'a> {
    pub(super) fn new(shared: &'a Shared, program: PathBuf, random: Random) -> ImageClient<'a> {
        ImageClient {
            shared,
            program,
            random,
            commands: 0,
        }
    }

    pub(super) async fn go(mut self) {
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
        let kept = images.in_stage(ImageStage::Kept);
        let doomed = images.in_stage(ImageStage::Doomed);
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

    /// Those of which new clones can be made.
    fn snapshots(&self) -> Vec<usize> {
        let images = &self.shared.images;
        let mut kept = images.in_stage(ImageStage::Kept);
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
            stage: ImageStage::Kept,
        });
        lock(&images.images).extend(made);
        let last = lock(&images.images).len();
        for at in first..last {
            self.read(at).await;
        }
    }

    /// Writes to a clone of which all is known, in a session of its own.
    async fn write(&mut self) {
        let mut clones = self.shared.images.in_stage(ImageStage::Kept);
        clones.retain(|at| {
            let image = self.shared.images.history(*at);
            let blocks = volume_of(self.shared, image.volume).runs() * RUN;
            !image.name.contains('@') && image.blocks.reads.len() as u64 >= blocks
        });
        if let Some(at) = self.any(&clones) {
            self.write_to(at).await;
        }
    }

    async fn write_to(&mut self, at: usize) {
        let image = self.shared.images.history(at);
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
            let number = OF_CLONES + self.number();
            let (run, written) = self.begin(image.volume, (session, number));
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

    /// A write to a place of a clone.
    fn begin(&mut self, volume: usize, (session, number): (u64, u64)) -> (u64, Vec<BlockWrite>) {
        let volume = volume_of(self.shared, volume);
        let (run, more) = (self.random.below(volume.runs()), self.random.below(RUN));
        let call = self.shared.now();
        let written = (volume.block(run)..=volume.block(run) + more).map(|block| BlockWrite {
            block,
            number,
            session,
            call,
            returned: None,
        });
        (run, written.collect())
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
