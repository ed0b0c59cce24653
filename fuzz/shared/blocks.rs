//! The invariants of a node's memory of blocks, which mounts map, whatever is in it.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

use rustix::fs::{MemfdFlags, SealFlags};
use staves_store::blocks::{BLOCK_BYTES, BlockKey, BlockMapping, Blocks, PART_BYTES};

/// Bytes of the node's memory.
const MEMORY_BYTES: u64 = 16 * PART_BYTES as u64;
/// Blocks that the node has: a whole part and a piece of another, at a file's end.
const KEYS: [BlockKey; 3] = [
    BlockKey {
        file: [1, 2],
        block: 0,
    },
    BlockKey {
        file: [1, 2],
        block: 1,
    },
    BlockKey {
        file: [u64::MAX, 3],
        block: u32::MAX,
    },
];
const BYTES: usize = PART_BYTES + 777;

/// A node's memory with some blocks in it, of which the bytes that follow change some: seven bytes each, where (four, little-endian),
/// how (one), and what (two). Whoever maps it reads what the node put in, or nothing, as long as one bit alone has changed, and
/// never beyond it. How many reads gave bytes; `None` if it is not taken for such a memory.
pub fn blocks(data: &[u8]) -> Option<usize> {
    static WRITTEN: OnceLock<Vec<u8>> = OnceLock::new();
    let mut memory = WRITTEN.get_or_init(written).clone();
    let mut flips = 0;
    for change in data.chunks_exact(7) {
        let at = u32::from_le_bytes([change[0], change[1], change[2], change[3]]) as usize;
        let at = at % memory.len();
        match change[4] {
            how @ 0..=7 => {
                memory[at] ^= 1 << how;
                flips += 1;
            }
            8 => memory.truncate(at),
            how => {
                let len = usize::from(how).min(memory.len() - at);
                let with = [change[5], change[6]];
                (0..len).for_each(|i| memory[at + i] = with[i % 2]);
                flips += 2;
            }
        }
        if memory.is_empty() {
            break;
        }
    }
    let mapping = BlockMapping::open(sealed(&memory)).ok()?;
    let mut read = 0;
    for (at, key) in KEYS.into_iter().enumerate() {
        for range in [
            0..BYTES,
            0..1,
            4095..4097,
            PART_BYTES..BYTES,
            BYTES - 1..BYTES,
            0..BLOCK_BYTES,
            BLOCK_BYTES..BLOCK_BYTES + 1,
        ] {
            let mut bytes = vec![0; range.len()];
            if mapping.read(key, range.start, &mut bytes).is_err() {
                continue;
            }
            read += 1;
            // A node that lies may sum up what it likes; a bit that fell over cannot.
            if flips < 2 {
                assert!(
                    range.end <= BYTES && bytes == pattern(at)[range.clone()],
                    "{key:?}, {range:?}"
                );
            }
        }
    }
    let stranger = BlockKey {
        file: [7, 7],
        block: 7,
    };
    assert!(flips > 1 || mapping.read(stranger, 0, &mut [0]).is_err());
    Some(read)
}

/// Reads of untouched memory that give bytes: of each block all that lie within it.
pub const READS: usize = KEYS.len() * 5;

fn pattern(block: usize) -> Vec<u8> {
    (0..BYTES)
        .map(|i| (i * 31 + i / 256 + block * 97) as u8)
        .collect()
}

/// The content that a node has written there.
fn written() -> Vec<u8> {
    let blocks = Blocks::new(MEMORY_BYTES, 1).expect("some memory");
    for (at, key) in KEYS.into_iter().enumerate() {
        for (part, bytes) in pattern(at).chunks(PART_BYTES).enumerate() {
            blocks
                .put(key, BYTES, part, bytes, 0)
                .expect("there is room");
        }
    }
    let memory = File::from(blocks.descriptor().expect("a descriptor"));
    let mut bytes = vec![0; memory.metadata().expect("its length").len() as usize];
    memory.read_exact_at(&mut bytes, 0).expect("it can be read");
    bytes
}

fn sealed(bytes: &[u8]) -> OwnedFd {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let memory = rustix::fs::memfd_create(c"strange", flags).expect("some memory");
    let memory = File::from(memory);
    memory.write_all_at(bytes, 0).expect("there is room");
    rustix::fs::fcntl_add_seals(&memory, SealFlags::SHRINK | SealFlags::GROW)
        .expect("it can be sealed");
    memory.into()
}
