//! Buffers, hot or cold, at multiples of a page.

use crate::Set;

const PAGE: usize = 4096;

/// Sets of buffers of one length in one piece of memory.
pub(crate) struct Buffers {
    memory: Vec<u8>,
    /// The beginning of the first one.
    from: usize,
    size: usize,
    /// Bytes from one buffer's begin to the next.
    stride: usize,
    /// Buffers of a set.
    count: usize,
    sets: usize,
}

impl Buffers {
    /// As many sets as fill the working set, at least one.
    pub fn new(size: usize, count: usize, working_set: usize) -> Buffers {
        let stride = size.next_multiple_of(PAGE);
        let sets = (working_set / (stride * count)).max(1);
        let mut memory = vec![0; sets * count * stride + PAGE];
        // Bytes that no kernel can take a short cut with.
        let mut x = 0x9E37_79B9_7F4A_7C15_u64;
        for eight in memory.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            eight.copy_from_slice(&x.to_le_bytes());
        }
        let from = memory.as_ptr().align_offset(PAGE);
        Buffers {
            memory,
            from,
            size,
            stride,
            count,
            sets,
        }
    }

    /// All sets, in no order that the machine could foresee. Of each, buffers `first..` are the sources, and the last
    /// ones the outputs.
    pub fn sets(&mut self, first: usize, sources: usize, outputs: usize) -> Vec<Set<'_>> {
        let (count, size) = (self.count, self.size);
        let memory = &mut self.memory[self.from..][..self.sets * count * self.stride];
        let mut all: Vec<Set<'_>> = memory
            .chunks_exact_mut(count * self.stride)
            .map(|set| {
                let (read, written) = set.split_at_mut((count - outputs) * self.stride);
                let read = read.chunks_exact(self.stride).skip(first).take(sources);
                let written = written.chunks_exact_mut(self.stride);
                Set {
                    sources: read.map(|b| &b[..size]).collect(),
                    outputs: written.map(|b| &mut b[..size]).collect(),
                }
            })
            .collect();
        let mut x = 1_u64;
        for last in (1..all.len()).rev() {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            all.swap(last, (x >> 33) as usize % (last + 1));
        }
        all
    }
}
