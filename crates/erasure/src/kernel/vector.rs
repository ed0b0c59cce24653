//! The loop over vectors, once for all instruction sets. Everything here is inlined into a function that
//! has the instruction set's features turned on, and is unsafe for that reason: whoever calls it says
//! that the machine has them.
#![allow(unsafe_code)]

/// A vector of bytes and what the loop does with it.
pub(super) trait Vector: Copy {
    /// Bytes in it.
    const BYTES: usize;
    /// Whether there are 32 registers of it, not 16.
    const MANY: bool;
    /// A source's vector, made ready to be multiplied several times.
    type Ready: Copy;
    /// A coefficient, made ready.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    unsafe fn ready(self) -> Self::Ready;
    unsafe fn factor(c: u8) -> Self::Factor;
    unsafe fn times(ready: Self::Ready, factor: Self::Factor) -> Self;
}

/// One pass: outputs are `rows.len() / sources.len()`, at most four.
///
/// # Safety
/// The machine has the features of `V`; all pointers are good for `len` bytes, the outputs' for writing,
/// and no output overlaps a source or another output.
#[inline(always)]
pub(super) unsafe fn pass<V: Vector>(
    rows: &[u8],
    sources: &[*const u8],
    outputs: &[*mut u8],
    len: usize,
    add: bool,
) {
    // A first row of ones, which a code has, needs no multiplication.
    let ones = rows[..sources.len()].iter().all(|c| *c == 1);
    unsafe {
        match (outputs.len(), V::MANY) {
            (1, _) if ones => run::<V, 1, 4, true>(rows, sources, outputs, len, add),
            (1, _) => run::<V, 1, 4, false>(rows, sources, outputs, len, add),
            (2, true) if ones => run::<V, 2, 4, true>(rows, sources, outputs, len, add),
            (2, true) => run::<V, 2, 4, false>(rows, sources, outputs, len, add),
            (2, false) if ones => run::<V, 2, 2, true>(rows, sources, outputs, len, add),
            (2, false) => run::<V, 2, 2, false>(rows, sources, outputs, len, add),
            (3, true) if ones => run::<V, 3, 4, true>(rows, sources, outputs, len, add),
            (3, true) => run::<V, 3, 4, false>(rows, sources, outputs, len, add),
            (3, false) if ones => run::<V, 3, 2, true>(rows, sources, outputs, len, add),
            (3, false) => run::<V, 3, 2, false>(rows, sources, outputs, len, add),
            (4, true) if ones => run::<V, 4, 4, true>(rows, sources, outputs, len, add),
            (4, true) => run::<V, 4, 4, false>(rows, sources, outputs, len, add),
            (4, false) if ones => run::<V, 4, 2, true>(rows, sources, outputs, len, add),
            (4, false) => run::<V, 4, 2, false>(rows, sources, outputs, len, add),
            (n, _) => unreachable!("a pass makes 1 to 4 outputs, not {n}"),
        }
    }
}

#[inline(always)]
unsafe fn run<V: Vector, const N: usize, const U: usize, const ONES: bool>(
    rows: &[u8],
    sources: &[*const u8],
    outputs: &[*mut u8],
    len: usize,
    add: bool,
) {
    let mut at = 0;
    unsafe {
        while at + U * V::BYTES <= len {
            step::<V, N, U, ONES>(rows, sources, outputs, at, add);
            at += U * V::BYTES;
        }
        while at + V::BYTES <= len {
            step::<V, N, 1, ONES>(rows, sources, outputs, at, add);
            at += V::BYTES;
        }
        if at < len {
            rest::<V, N>(rows, sources, outputs, at, len - at, add);
        }
    }
}

// U vectors of each of N outputs.
#[inline(always)]
unsafe fn step<V: Vector, const N: usize, const U: usize, const ONES: bool>(
    rows: &[u8],
    sources: &[*const u8],
    outputs: &[*mut u8],
    at: usize,
    add: bool,
) {
    let m = sources.len();
    unsafe {
        let mut sums = [[V::zero(); U]; N];
        if add {
            for (sums, output) in sums.iter_mut().zip(outputs) {
                for (u, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(output.add(at + u * V::BYTES));
                }
            }
        }
        for (s, source) in sources.iter().enumerate() {
            let mut vectors = [V::zero(); U];
            for (u, vector) in vectors.iter_mut().enumerate() {
                *vector = V::load(source.add(at + u * V::BYTES));
            }
            let first = if ONES {
                for (sum, vector) in sums[0].iter_mut().zip(vectors) {
                    *sum = sum.xor(vector);
                }
                1
            } else {
                0
            };
            if first == N {
                continue;
            }
            for (u, vector) in vectors.iter().enumerate() {
                let ready = vector.ready();
                for (r, sums) in sums.iter_mut().enumerate().skip(first) {
                    let factor = V::factor(*rows.get_unchecked(r * m + s));
                    sums[u] = sums[u].xor(V::times(ready, factor));
                }
            }
        }
        for (sums, output) in sums.iter().zip(outputs) {
            for (u, sum) in sums.iter().enumerate() {
                sum.store(output.add(at + u * V::BYTES));
            }
        }
    }
}

// Less than a vector: through buffers that are long enough.
#[inline(always)]
unsafe fn rest<V: Vector, const N: usize>(
    rows: &[u8],
    sources: &[*const u8],
    outputs: &[*mut u8],
    at: usize,
    len: usize,
    add: bool,
) {
    let m = sources.len();
    unsafe {
        let mut sums = [V::zero(); N];
        let mut buffer = [0u8; 64];
        for (s, source) in sources.iter().enumerate() {
            source
                .add(at)
                .copy_to_nonoverlapping(buffer.as_mut_ptr(), len);
            let ready = V::load(buffer.as_ptr()).ready();
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(V::times(ready, V::factor(rows[r * m + s])));
            }
        }
        for (sum, output) in sums.iter().zip(outputs) {
            sum.store(buffer.as_mut_ptr());
            for (i, byte) in buffer[..len].iter().enumerate() {
                let to = output.add(at + i);
                *to = if add { *to ^ byte } else { *byte };
            }
        }
    }
}
