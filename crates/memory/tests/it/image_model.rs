//! A bucket with images beside plain copies of all their bytes.

use std::collections::BTreeMap;

use bytes::Bytes;
use staves_model::{CHUNK_BYTES, REGION_BUCKET_BYTES_MAX};
use staves_wire::memory::{Action, ChunkBits};
use staves_wire::service::Answer;

use crate::cluster::Cluster;

/// The chunks that are used: of the head of the table, of the pages behind it, and the last.
pub const CHUNKS: [u64; 7] = [0, 1, 2, 3, 1023, 1024, 16_383];
pub const CHUNK: usize = CHUNK_BYTES as usize;

/// Numbers from a seed.
pub struct Rng(pub u64);

impl Rng {
    pub fn below(&mut self, most: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

/// The bytes of an image: nothing where it has no chunk.
pub type Content = BTreeMap<u64, Vec<u8>>;

/// A bucket with its images, and what they are to hold.
pub struct Images {
    pub cluster: Cluster,
    pub scheme: (u8, u8),
    pub seats: usize,
    pub model: BTreeMap<u32, Content>,
    pub sessions: BTreeMap<u32, u64>,
    pub requests: u64,
    pub newest: u32,
}

pub fn copy(of: u32, session: u64, image: u32) -> Action {
    Action::Copy { of, session, image }
}

impl Images {
    pub fn new(scheme: (u8, u8)) -> Images {
        Images {
            cluster: Cluster::new(
                scheme.0,
                scheme.1,
                usize::from(scheme.0 + scheme.1) + 1,
                400,
            ),
            scheme,
            seats: 0,
            model: BTreeMap::from([(0, Content::new())]),
            sessions: BTreeMap::from([(0, 1)]),
            requests: 0,
            newest: 0,
        }
    }

    pub fn run(&mut self, action: &Action) -> Answer {
        self.requests += 1;
        let request = self.requests;
        self.cluster.run(0, Some(request), action)
    }

    pub fn ok(&mut self, action: &Action) -> Result<(), String> {
        match self.run(action) {
            Answer::Ok => Ok(()),
            other => Err(format!("{action:?} is answered {other:?}")),
        }
    }

    pub fn put(&mut self, image: u32, offset: u64, bytes: &[u8]) -> Result<(), String> {
        self.ok(&Action::Put {
            image,
            session: self.sessions[&image],
            offset,
            bytes: Bytes::copy_from_slice(bytes),
        })?;
        let content = self.model.entry(image).or_default();
        let chunk = content.entry(offset / CHUNK_BYTES);
        let chunk = chunk.or_insert_with(|| vec![0; CHUNK]);
        let within = (offset % CHUNK_BYTES) as usize;
        chunk[within..within + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    pub fn zero(&mut self, image: u32, offset: u64, len: usize) -> Result<(), String> {
        self.ok(&Action::Zero {
            image,
            session: self.sessions[&image],
            offset,
            len: len as u32,
        })?;
        let content = self.model.entry(image).or_default();
        let chunk = offset / CHUNK_BYTES;
        if len == CHUNK {
            content.remove(&chunk);
        } else if let Some(bytes) = content.get_mut(&chunk) {
            let within = (offset % CHUNK_BYTES) as usize;
            bytes[within..within + len].fill(0);
        }
        Ok(())
    }

    /// A copy that somebody may write to; a snapshot is one to which nobody does.
    pub fn copy(&mut self, of: u32) -> Result<u32, String> {
        self.newest += 1;
        let image = self.newest;
        let session = self.sessions[&of] + 1;
        // And once more, as a node does that has lost the answer.
        for _ in 0..2 {
            self.ok(&copy(of, session, image))?;
        }
        self.sessions.insert(of, session);
        self.sessions.insert(image, 0);
        let content = self.model[&of].clone();
        self.model.insert(image, content);
        Ok(image)
    }

    pub fn drop_image(&mut self, image: u32) -> Result<(), String> {
        for _ in 0..40 {
            match self.run(&Action::Drop { image }) {
                Answer::Int(0) => {
                    self.model.remove(&image);
                    self.sessions.remove(&image);
                    return Ok(());
                }
                Answer::Int(1) => {}
                other => return Err(format!("a deletion is answered {other:?}")),
            }
        }
        Err("a deletion does not end".into())
    }

    pub fn check_image(&mut self, image: u32) -> Result<(), String> {
        let content = self.model[&image].clone();
        for chunk in CHUNKS {
            let read = Action::Read {
                image,
                offset: chunk * CHUNK_BYTES,
                len: CHUNK as u32,
            };
            let expected = content.get(&chunk).cloned();
            let expected = expected.unwrap_or_else(|| vec![0; CHUNK]);
            match self.run(&read) {
                Answer::Value(bytes) if bytes == expected => {}
                Answer::Value(bytes) => {
                    let at = bytes.iter().zip(&expected).position(|(a, b)| a != b);
                    return Err(format!("image {image}, chunk {chunk}: differs at {at:?}"));
                }
                other => return Err(format!("{read:?} is answered {other:?}")),
            }
        }
        let set = self.bits(&Action::Allocated {
            image,
            offset: 0,
            len: REGION_BUCKET_BYTES_MAX as u32,
        })?;
        match set == content.keys().copied().collect::<Vec<u64>>() {
            true => Ok(()),
            false => Err(format!("image {image} has the chunks {set:?}")),
        }
    }

    pub fn bits(&mut self, action: &Action) -> Result<Vec<u64>, String> {
        match self.run(action) {
            Answer::Value(bits) => {
                let all = 0..action.chunks();
                Ok(all.filter(|at| ChunkBits::is_set(&bits, *at)).collect())
            }
            other => Err(format!("{action:?} is answered {other:?}")),
        }
    }

    /// Chunks that are told to be the same in two images are.
    pub fn check_changed(&mut self, image: u32, since: u32) -> Result<(), String> {
        let changed = self.bits(&Action::Changed {
            image,
            since,
            offset: 0,
            len: REGION_BUCKET_BYTES_MAX as u32,
        })?;
        let (one, other) = (&self.model[&image], &self.model[&since]);
        let hidden = CHUNKS
            .iter()
            .find(|chunk| !changed.contains(chunk) && one.get(chunk) != other.get(chunk));
        match hidden {
            None => Ok(()),
            Some(chunk) => Err(format!("chunk {chunk} of {image} differs from {since}")),
        }
    }

    /// Another member serves from now on.
    pub fn take_over(&mut self) {
        self.cluster.settle();
        let (m, k) = self.scheme;
        if k == 0 {
            return; // nobody else has its bytes
        }
        let nodes = usize::from(m + k) + 1;
        self.seats = match m {
            1 => (self.seats + 1) % nodes,
            _ => nodes - 1 - self.seats,
        };
        // Copies go round; of data buckets the first moves to the node that has none.
        let first = self.seats;
        let seats: Vec<usize> = match m {
            1 => (0..nodes - 1).map(|seat| (first + seat) % nodes).collect(),
            _ => std::iter::once(first).chain(1..nodes - 1).collect(),
        };
        self.cluster.change(&seats);
        self.cluster.settle();
    }

    pub fn check(&mut self) -> Result<(), String> {
        for image in self.model.keys().copied().collect::<Vec<u32>>() {
            self.check_image(image)?;
        }
        self.cluster.settle();
        self.cluster.check();
        self.cluster.check_code();
        Ok(())
    }

    /// One step that a seed chooses.
    pub fn step(&mut self, rng: &mut Rng) -> Result<(), String> {
        let images: Vec<u32> = self.model.keys().copied().collect();
        let mut any = |count: usize| rng.below(count);
        let image = images[any(images.len())];
        let chunk = CHUNKS[any(CHUNKS.len())];
        match any(20) {
            0..=8 => {
                let whole = any(4) == 0;
                let len = if whole { CHUNK } else { 1 + any(9000) };
                let within = if whole { 0 } else { any(CHUNK - len) };
                let bytes = vec![1 + any(250) as u8; len];
                // Somebody must have begun to write to a copy.
                let session = self
                    .sessions
                    .get_mut(&image)
                    .ok_or("an image without a session")?;
                *session = (*session).max(1);
                let session = *session;
                self.ok(&Action::Fence { image, session })?;
                self.put(image, chunk * CHUNK_BYTES + within as u64, &bytes)
            }
            9..=11 => {
                let whole = any(2) == 0;
                let len = if whole { CHUNK } else { 1 + any(9000) };
                let within = if whole { 0 } else { any(CHUNK - len) };
                self.zero(image, chunk * CHUNK_BYTES + within as u64, len)
            }
            12..=13 if images.len() < 9 => self.copy(image).map(drop),
            14 if image != 0 => self.drop_image(image),
            15..=17 => self.check_image(image),
            18 => self.check_changed(image, images[any(images.len())]),
            _ => Ok(()),
        }
    }
}
