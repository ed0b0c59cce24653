//! The instruction sets of x86-64.
//!
//! Unsafe, because the compiler cannot know which machine this runs on: [`pass`] is reached only through
//! `Kernel::combine`, which asks the machine and checks all lengths.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::vector::{self, Vector};
use super::{Kernel, OUTPUTS_MAX};
use crate::field::{AFFINE, NIBBLES};

/// Most sources: a code has at most 256 members.
const SOURCES_MAX: usize = 256;

/// Makes up to four outputs over `from..upto`.
pub(super) fn pass(
    kernel: Kernel,
    rows: &[u8],
    sources: &[&[u8]],
    outputs: &mut [&mut [u8]],
    from: usize,
    upto: usize,
    add: bool,
) {
    assert!(
        sources.len() <= SOURCES_MAX,
        "{} sources, more than {SOURCES_MAX}",
        sources.len()
    );
    assert!(outputs.len() <= OUTPUTS_MAX);
    let mut source = [std::ptr::null(); SOURCES_MAX];
    for (pointer, bytes) in source.iter_mut().zip(sources) {
        *pointer = bytes[from..upto].as_ptr();
    }
    let mut output = [std::ptr::null_mut(); OUTPUTS_MAX];
    for (pointer, bytes) in output.iter_mut().zip(outputs.iter_mut()) {
        *pointer = bytes[from..upto].as_mut_ptr();
    }
    let (source, output, len) = (
        &source[..sources.len()],
        &output[..outputs.len()],
        upto - from,
    );
    // SAFETY: `combine` has asked whether the machine has the kernel's features. The pointers come from
    // slices of `len` bytes; outputs are `&mut`, so they overlap nothing.
    unsafe {
        match kernel {
            Kernel::Gfni512 => gfni512(rows, source, output, len, add),
            Kernel::Gfni256 => gfni256(rows, source, output, len, add),
            Kernel::Avx2 => avx2(rows, source, output, len, add),
            Kernel::Ssse3 | Kernel::Portable => ssse3(rows, source, output, len, add),
        }
    }
}

#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn gfni512(rows: &[u8], sources: &[*const u8], outputs: &[*mut u8], len: usize, add: bool) {
    unsafe { vector::pass::<Matrix512>(rows, sources, outputs, len, add) }
}

#[target_feature(enable = "gfni,avx2")]
unsafe fn gfni256(rows: &[u8], sources: &[*const u8], outputs: &[*mut u8], len: usize, add: bool) {
    unsafe { vector::pass::<Matrix256>(rows, sources, outputs, len, add) }
}

#[target_feature(enable = "avx2")]
unsafe fn avx2(rows: &[u8], sources: &[*const u8], outputs: &[*mut u8], len: usize, add: bool) {
    unsafe { vector::pass::<Shuffle256>(rows, sources, outputs, len, add) }
}

#[target_feature(enable = "ssse3")]
unsafe fn ssse3(rows: &[u8], sources: &[*const u8], outputs: &[*mut u8], len: usize, add: bool) {
    unsafe { vector::pass::<Shuffle128>(rows, sources, outputs, len, add) }
}

#[derive(Clone, Copy)]
struct Matrix512(__m512i);

impl Vector for Matrix512 {
    const BYTES: usize = 64;
    const MANY: bool = true;
    type Ready = __m512i;
    type Factor = __m512i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Matrix512(_mm512_setzero_si512()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Matrix512(_mm512_loadu_si512(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm512_storeu_si512(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Matrix512(_mm512_xor_si512(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn ready(self) -> __m512i {
        self.0
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> __m512i {
        unsafe { _mm512_set1_epi64(AFFINE[c as usize] as i64) }
    }
    #[inline(always)]
    unsafe fn times(ready: __m512i, factor: __m512i) -> Self {
        unsafe { Matrix512(_mm512_gf2p8affine_epi64_epi8::<0>(ready, factor)) }
    }
}

#[derive(Clone, Copy)]
struct Matrix256(__m256i);

impl Vector for Matrix256 {
    const BYTES: usize = 32;
    const MANY: bool = false;
    type Ready = __m256i;
    type Factor = __m256i;

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Matrix256(_mm256_setzero_si256()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Matrix256(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Matrix256(_mm256_xor_si256(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn ready(self) -> __m256i {
        self.0
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> __m256i {
        unsafe { _mm256_set1_epi64x(AFFINE[c as usize] as i64) }
    }
    #[inline(always)]
    unsafe fn times(ready: __m256i, factor: __m256i) -> Self {
        unsafe { Matrix256(_mm256_gf2p8affine_epi64_epi8::<0>(ready, factor)) }
    }
}

#[derive(Clone, Copy)]
struct Shuffle256(__m256i);

impl Vector for Shuffle256 {
    const BYTES: usize = 32;
    const MANY: bool = false;
    type Ready = (__m256i, __m256i);
    type Factor = (__m256i, __m256i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Shuffle256(_mm256_setzero_si256()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Shuffle256(_mm256_loadu_si256(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Shuffle256(_mm256_xor_si256(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn ready(self) -> (__m256i, __m256i) {
        unsafe {
            let low = _mm256_set1_epi8(15);
            let high = _mm256_srli_epi64::<4>(self.0);
            (_mm256_and_si256(self.0, low), _mm256_and_si256(high, low))
        }
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> (__m256i, __m256i) {
        let table = NIBBLES[c as usize].as_ptr();
        unsafe {
            let half = |at| _mm256_broadcastsi128_si256(_mm_loadu_si128(table.add(at).cast()));
            (half(0), half(16))
        }
    }
    #[inline(always)]
    unsafe fn times(ready: (__m256i, __m256i), factor: (__m256i, __m256i)) -> Self {
        unsafe {
            let low = _mm256_shuffle_epi8(factor.0, ready.0);
            let high = _mm256_shuffle_epi8(factor.1, ready.1);
            Shuffle256(_mm256_xor_si256(low, high))
        }
    }
}

#[derive(Clone, Copy)]
struct Shuffle128(__m128i);

impl Vector for Shuffle128 {
    const BYTES: usize = 16;
    const MANY: bool = false;
    type Ready = (__m128i, __m128i);
    type Factor = (__m128i, __m128i);

    #[inline(always)]
    unsafe fn zero() -> Self {
        unsafe { Shuffle128(_mm_setzero_si128()) }
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        unsafe { Shuffle128(_mm_loadu_si128(from.cast())) }
    }
    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        unsafe { _mm_storeu_si128(to.cast(), self.0) }
    }
    #[inline(always)]
    unsafe fn xor(self, other: Self) -> Self {
        unsafe { Shuffle128(_mm_xor_si128(self.0, other.0)) }
    }
    #[inline(always)]
    unsafe fn ready(self) -> (__m128i, __m128i) {
        unsafe {
            let low = _mm_set1_epi8(15);
            let high = _mm_srli_epi64::<4>(self.0);
            (_mm_and_si128(self.0, low), _mm_and_si128(high, low))
        }
    }
    #[inline(always)]
    unsafe fn factor(c: u8) -> (__m128i, __m128i) {
        let table = NIBBLES[c as usize].as_ptr();
        unsafe {
            (
                _mm_loadu_si128(table.cast()),
                _mm_loadu_si128(table.add(16).cast()),
            )
        }
    }
    #[inline(always)]
    unsafe fn times(ready: (__m128i, __m128i), factor: (__m128i, __m128i)) -> Self {
        unsafe {
            let low = _mm_shuffle_epi8(factor.0, ready.0);
            let high = _mm_shuffle_epi8(factor.1, ready.1);
            Shuffle128(_mm_xor_si128(low, high))
        }
    }
}
