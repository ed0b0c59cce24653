//! How fast the code is on this machine, beside memcpy and XOR and beside two other crates (row H9,
//! multiplication rate): `cargo run --release -p staves-erasure --example rates [KERNEL]`.
//!
//! Rates are of the bytes that are read: m buffers for an encoding or a decoding, one for a delta. Each
//! figure is the median of [`ROUNDS`] rounds of at least [`ROUND`], with buffers that are used again and
//! again, so that small ones stay in the cache. `reed-solomon-erasure` works in the same field;
//! `reed-solomon-simd` in one of 2^16 elements with another algorithm. Run it on a machine with nothing
//! else to do.

use std::hint::black_box;
use std::time::{Duration, Instant};

use reed_solomon_erasure::galois_8::ReedSolomon;
use reed_solomon_simd::{ReedSolomonDecoder, ReedSolomonEncoder};
use staves_erasure::{Code, Kernel};

const SCHEMES: [(usize, usize); 3] = [(4, 2), (8, 3), (10, 4)];
const SIZES: [usize; 3] = [4 << 10, 64 << 10, 1 << 20];
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(40);

fn main() {
    let kernel = match std::env::args().nth(1) {
        None => Kernel::best(),
        Some(name) => name.parse().unwrap_or_else(|why| {
            eprintln!("rates: {why}");
            std::process::exit(2);
        }),
    };
    if !kernel.is_available() {
        eprintln!("rates: this machine does not run the kernel {kernel}");
        std::process::exit(2);
    }
    println!("kernel {kernel}; GB/s of bytes read, median of {ROUNDS} rounds");
    println!(
        "\n{:>8} {:>8} {:>8} {:>8}",
        "bytes", "memcpy", "xor", "delta"
    );
    for bytes in SIZES {
        single(kernel, bytes);
    }
    println!(
        "\n{:>6} {:>8} {:>8} {:>9} {:>9} {:>11} {:>11} {:>9} {:>9}",
        "scheme",
        "bytes",
        "encode",
        "decode 1",
        "decode k",
        "rse encode",
        "rse decode",
        "rss enc",
        "rss dec"
    );
    for (m, k) in SCHEMES {
        for bytes in SIZES {
            scheme(kernel, m, k, bytes);
        }
    }
}

/// One buffer into another: a copy, a sum, and a delta times a coefficient that is not 1.
fn single(kernel: Kernel, bytes: usize) {
    let source = buffer(bytes, 1);
    let mut target = buffer(bytes, 2);
    let code = Code::new(4, 2).expect("a small code").with_kernel(kernel);
    let copy = rate(bytes, || {
        black_box(&mut target).copy_from_slice(black_box(&source))
    });
    let xor = rate(bytes, || {
        for (t, s) in black_box(&mut target).iter_mut().zip(black_box(&source)) {
            *t ^= s;
        }
    });
    let delta = rate(bytes, || {
        code.apply(1, 1, black_box(&source), black_box(&mut target))
    });
    println!("{bytes:>8} {copy:>8.2} {xor:>8.2} {delta:>8.2}");
}

fn scheme(kernel: Kernel, m: usize, k: usize, bytes: usize) {
    let data: Vec<Vec<u8>> = (0..m).map(|d| buffer(bytes, d as u64)).collect();
    let ours = ours(kernel, k, &data);
    let (rse_encode, rse_decode) = same_field(k, &data);
    let (rss_encode, rss_decode) = wide_field(k, &data);
    println!(
        "{:>6} {bytes:>8} {:>8.2} {:>9.2} {:>9.2} {rse_encode:>11.2} {rse_decode:>11.2} {rss_encode:>9.2} {rss_decode:>9.2}",
        format!("{m}+{k}"),
        ours[0],
        ours[1],
        ours[2]
    );
}

/// Encoding; decoding of one lost data buffer; of k. The recipe is made each time, as for one page.
fn ours(kernel: Kernel, k: usize, data: &[Vec<u8>]) -> [f64; 3] {
    let (m, bytes) = (data.len(), data[0].len());
    let code = Code::new(m, k).expect("a small code").with_kernel(kernel);
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; bytes]; k];
    let encode = rate(m * bytes, || {
        let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(black_box(&sources), &mut outputs);
    });
    let decode = |lost: usize| {
        let members: Vec<usize> = (lost..m + lost).collect();
        let wanted: Vec<usize> = (0..lost).collect();
        let buffers = data.iter().chain(&parity).map(Vec::as_slice);
        let sources: Vec<&[u8]> = buffers.skip(lost).take(m).collect();
        let mut made = vec![vec![0; bytes]; lost];
        let rate = rate(m * bytes, || {
            let recipe = code.recipe(&members, &wanted).expect("m of the members");
            let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
            recipe.make(black_box(&sources), &mut outputs);
        });
        assert!(made[..] == data[..lost], "what was lost is made again");
        rate
    };
    [encode, decode(1), decode(k)]
}

/// The crate `reed-solomon-erasure`: encoding, and decoding of k lost data buffers.
fn same_field(k: usize, data: &[Vec<u8>]) -> (f64, f64) {
    let (m, bytes) = (data.len(), data[0].len());
    let code = ReedSolomon::new(m, k).expect("a small code");
    let mut parity = vec![vec![0u8; bytes]; k];
    let encode = rate(m * bytes, || {
        code.encode_sep(black_box(data), &mut parity)
            .expect("buffers of one length");
    });
    let all: Vec<Option<Vec<u8>>> = data.iter().chain(&parity).cloned().map(Some).collect();
    let mut shards = all.clone();
    let decode = rate(m * bytes, || {
        shards[..k].fill(None);
        code.reconstruct_data(&mut shards).expect("m are there");
    });
    assert!(shards == all, "what was lost is made again");
    (encode, decode)
}

/// The crate `reed-solomon-simd`: the same.
fn wide_field(k: usize, data: &[Vec<u8>]) -> (f64, f64) {
    let (m, bytes) = (data.len(), data[0].len());
    let mut encoder = ReedSolomonEncoder::new(m, k, bytes).expect("a small code");
    let mut parity: Vec<Vec<u8>> = Vec::new();
    let encode = rate(m * bytes, || {
        for buffer in data {
            encoder
                .add_original_shard(black_box(buffer))
                .expect("m of them");
        }
        let made = encoder.encode().expect("all m were added");
        parity = made.recovery_iter().map(<[u8]>::to_vec).collect();
    });
    let mut decoder = ReedSolomonDecoder::new(m, k, bytes).expect("a small code");
    let decode = rate(m * bytes, || {
        for (at, buffer) in data.iter().enumerate().skip(k) {
            decoder
                .add_original_shard(at, black_box(buffer))
                .expect("a new one");
        }
        for (at, buffer) in parity.iter().enumerate() {
            decoder
                .add_recovery_shard(at, black_box(buffer))
                .expect("a new one");
        }
        let made = decoder.decode().expect("m are there");
        let right = |(at, bytes): (usize, &[u8])| bytes[0] == data[at][0];
        assert!(made.restored_original_iter().all(right));
    });
    (encode, decode)
}

/// Gigabytes (10^9) a second of something that reads so many bytes.
fn rate(bytes: usize, mut work: impl FnMut()) -> f64 {
    work();
    let mut rates: Vec<f64> = (0..ROUNDS)
        .map(|_| {
            let (begun, mut times) = (Instant::now(), 0u64);
            while begun.elapsed() < ROUND {
                for _ in 0..8 {
                    work();
                }
                times += 8;
            }
            times as f64 * bytes as f64 / begun.elapsed().as_secs_f64() / 1e9
        })
        .collect();
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

/// Bytes that no kernel can take a short cut with.
fn buffer(bytes: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x as u8
    };
    (0..bytes).map(|_| next()).collect()
}
