//! The instruction sets of x86-64.
//!
//! Unsafe, because the compiler cannot know which machine this runs on: [`pass`] is reached only through
//! `Kernel::combine`, which asks the machine and checks all lengths.
#![allow(unsafe_code)]

use std::arch::x86_64::*;

use super::vector::{self, Vector};
use super::{Kernel, Pass};
use crate::field::{AFFINE, NIBBLES};

/// Makes up to four outputs over a part of the buffers.
pub(super) fn pass(kernel: Kernel, pass: &mut Pass<'_, '_>) {
    let (end, sources) = (pass.from + pass.len, &pass.sources);
    debug_assert!(sources.iter().all(|s| s.len() >= end));
    debug_assert!(pass.outputs.iter().all(|o| o.len() >= end));
    debug_assert_eq!(pass.rows.len(), sources.len() * pass.outputs.len());
    // SAFETY: `combine` has asked whether the machine has the kernel's features. It has checked that all
    // buffers have the part, and that there is a coefficient for each pair of them; outputs are `&mut`, so they
    // overlap nothing.
    unsafe {
        match kernel {
            Kernel::Gfni512 => gfni512(pass),
            Kernel::Gfni256 => gfni256(pass),
            Kernel::Avx2 => avx2(pass),
            Kernel::Ssse3 | Kernel::Portable => ssse3(pass),
        }
    }
}

#[target_feature(enable = "gfni,avx512f,avx512bw")]
unsafe fn gfni512(pass: &mut Pass<'_, '_>) {
    unsafe { vector::pass::<Matrix512>(pass) }
}

#[target_feature(enable = "gfni,avx2")]
unsafe fn gfni256(pass: &mut Pass<'_, '_>) {
    unsafe { vector::pass::<Matrix256>(pass) }
}

#[target_feature(enable = "avx2")]
unsafe fn avx2(pass: &mut Pass<'_, '_>) {
    unsafe { vector::pass::<Shuffle256>(pass) }
}

#[target_feature(enable = "ssse3")]
unsafe fn ssse3(pass: &mut Pass<'_, '_>) {
    unsafe { vector::pass::<Shuffle128>(pass) }
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
    unsafe fn xor3(self, a: Self, b: Self) -> Self {
        // 0x96: a bit is set if an odd number of the three are.
        unsafe { Matrix512(_mm512_ternarylogic_epi64::<0x96>(self.0, a.0, b.0)) }
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
