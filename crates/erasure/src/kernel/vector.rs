//! The loop over vectors, once for all instruction sets. Everything here is inlined into a function that
//! has the instruction set's features turned on, and is unsafe for that reason: whoever calls it says
//! that the machine has them.
#![allow(unsafe_code)]

use super::Pass;

/// A vector of bytes and what the loop does with it.
pub(super) trait Vector: Copy {
    /// Bytes in it.
    const BYTES: usize;
    /// True if there are 32 registers of it, not 16.
    const MANY: bool;
    /// A source's vector, made ready to be multiplied several times.
    type Ready: Copy;
    /// A coefficient, made ready.
    type Factor: Copy;

    unsafe fn zero() -> Self;
    unsafe fn load(from: *const u8) -> Self;
    unsafe fn store(self, to: *mut u8);
    unsafe fn xor(self, other: Self) -> Self;
    /// The sum of three: one instruction where there is one.
    #[inline(always)]
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        unsafe { self.xor(a).xor(b) }
    }
    unsafe fn ready(self) -> Self::Ready;
    unsafe fn factor(c: u8) -> Self::Factor;
    unsafe fn times(ready: Self::Ready, factor: Self::Factor) -> Self;
}

/// One pass: outputs are `rows.len() / sources.len()`, at most four.
///
/// # Safety
/// The machine has the features of `V`, and all buffers have `from + len` bytes.
#[inline(always)]
pub(super) unsafe fn pass<V: Vector>(pass: &mut Pass<'_, '_>) {
    // A first row of ones, which a code has, needs no multiplication.
    let ones = pass.rows[..pass.sources.len()].iter().all(|c| *c == 1);
    unsafe {
        match (pass.outputs.len(), V::MANY) {
            (1, _) if ones => run::<V, 1, 4, true>(pass),
            (1, _) => run::<V, 1, 4, false>(pass),
            (2, true) if ones => run::<V, 2, 4, true>(pass),
            (2, true) => run::<V, 2, 4, false>(pass),
            (2, false) if ones => run::<V, 2, 2, true>(pass),
            (2, false) => run::<V, 2, 2, false>(pass),
            (3, true) if ones => run::<V, 3, 4, true>(pass),
            (3, true) => run::<V, 3, 4, false>(pass),
            (3, false) if ones => run::<V, 3, 2, true>(pass),
            (3, false) => run::<V, 3, 2, false>(pass),
            (4, true) if ones => run::<V, 4, 4, true>(pass),
            (4, true) => run::<V, 4, 4, false>(pass),
            (4, false) if ones => run::<V, 4, 2, true>(pass),
            (4, false) => run::<V, 4, 2, false>(pass),
            (n, _) => unreachable!("a pass makes 1 to 4 outputs, not {n}"),
        }
    }
}

#[inline(always)]
unsafe fn run<V: Vector, const N: usize, const U: usize, const ONES: bool>(
    pass: &mut Pass<'_, '_>,
) {
    let mut outputs = [std::ptr::null_mut(); N];
    for (to, bytes) in outputs.iter_mut().zip(pass.outputs.iter_mut()) {
        *to = bytes.as_mut_ptr();
    }
    let mut at = pass.from;
    let end = pass.from + pass.len;
    unsafe {
        while at + U * V::BYTES <= end {
            step::<V, N, U, ONES>(pass, outputs, at);
            at += U * V::BYTES;
        }
        while at + V::BYTES <= end {
            step::<V, N, 1, ONES>(pass, outputs, at);
            at += V::BYTES;
        }
        if at < end {
            rest::<V, N>(pass, outputs, at, end - at);
        }
    }
}

// U vectors of each of N outputs.
#[inline(always)]
unsafe fn step<V: Vector, const N: usize, const U: usize, const ONES: bool>(
    pass: &Pass<'_, '_>,
    outputs: [*mut u8; N],
    at: usize,
) {
    let m = pass.sources.len();
    unsafe {
        let mut sums = [[V::zero(); U]; N];
        if pass.add {
            for (sums, output) in sums.iter_mut().zip(outputs) {
                for (u, sum) in sums.iter_mut().enumerate() {
                    *sum = V::load(output.add(at + u * V::BYTES));
                }
            }
        }
        let load = |s: usize| {
            let from = pass.sources.get_unchecked(s).as_ptr().add(at);
            let mut vectors = [V::zero(); U];
            for (u, vector) in vectors.iter_mut().enumerate() {
                *vector = V::load(from.add(u * V::BYTES));
            }
            vectors
        };
        let factor = |r: usize, s: usize| V::factor(*pass.rows.get_unchecked(r * m + s));
        // Two sources at a time: a sum of three takes as long as one of two.
        let mut s = 0;
        while s + 2 <= m {
            let (a, b) = (load(s), load(s + 1));
            for (r, sums) in sums.iter_mut().enumerate() {
                if ONES && r == 0 {
                    for (u, sum) in sums.iter_mut().enumerate() {
                        *sum = sum.xor3(a[u], b[u]);
                    }
                    continue;
                }
                let (by_a, by_b) = (factor(r, s), factor(r, s + 1));
                for (u, sum) in sums.iter_mut().enumerate() {
                    let a = V::times(a[u].ready(), by_a);
                    let b = V::times(b[u].ready(), by_b);
                    *sum = sum.xor3(a, b);
                }
            }
            s += 2;
        }
        if s < m {
            let vectors = load(s);
            for (r, sums) in sums.iter_mut().enumerate() {
                let by = factor(r, s);
                for (u, sum) in sums.iter_mut().enumerate() {
                    *sum = match ONES && r == 0 {
                        true => sum.xor(vectors[u]),
                        false => sum.xor(V::times(vectors[u].ready(), by)),
                    };
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
    pass: &Pass<'_, '_>,
    outputs: [*mut u8; N],
    at: usize,
    len: usize,
) {
    let m = pass.sources.len();
    unsafe {
        let mut sums = [V::zero(); N];
        let mut buffer = [0u8; 64];
        for (s, source) in pass.sources.iter().enumerate() {
            buffer[..len].copy_from_slice(&source[at..at + len]);
            let ready = V::load(buffer.as_ptr()).ready();
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = sum.xor(V::times(ready, V::factor(pass.rows[r * m + s])));
            }
        }
        for (sum, output) in sums.iter().zip(outputs) {
            sum.store(buffer.as_mut_ptr());
            for (i, byte) in buffer[..len].iter().enumerate() {
                let to = output.add(at + i);
                *to = if pass.add { *to ^ byte } else { *byte };
            }
        }
    }
}
