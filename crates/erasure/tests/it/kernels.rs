//! Each kernel gives the bytes that the definition gives, whatever the lengths and alignments.

use proptest::prelude::*;
use staves_erasure::{Kernel, field};

fn by_definition(rows: &[u8], sources: &[&[u8]], before: &[Vec<u8>], add: bool) -> Vec<Vec<u8>> {
    let m = sources.len();
    let output = |(r, before): (usize, &Vec<u8>)| {
        let byte = |i: usize| {
            let old = if add { before[i] } else { 0 };
            (0..m).fold(old, |sum, s| {
                sum ^ field::mul(rows[r * m + s], sources[s][i])
            })
        };
        (0..before.len()).map(byte).collect()
    };
    before.iter().enumerate().map(output).collect()
}

#[test]
fn every_kernel_of_this_machine_is_tried() {
    let here: Vec<_> = Kernel::ALL
        .into_iter()
        .filter(|k| k.is_available())
        .collect();
    println!("kernels here: {here:?}, best {}", Kernel::best());
    assert!(here.contains(&Kernel::Portable) && here.contains(&Kernel::best()));
    for kernel in Kernel::ALL {
        assert_eq!(kernel.name().parse(), Ok(kernel));
    }
    let unknown = "neon7".parse::<Kernel>().unwrap_err().to_string();
    assert!(
        unknown.contains("neon7") && unknown.contains("gfni512"),
        "{unknown}"
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn kernels_agree_with_the_definition(
        sources in 0usize..11,
        outputs in 1usize..10,
        len in prop_oneof![0usize..300, 4000usize..9000],
        skew in 0usize..64,
        coefficients in prop::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 100),
        ones in any::<bool>(),
        add in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut x = seed | 1;
        let mut random = |n: usize| -> Vec<u8> {
            (0..n).map(|_| { x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1); (x >> 56) as u8 }).collect()
        };
        let mut rows = coefficients[..sources * outputs].to_vec();
        if ones {
            rows[..sources].fill(1);
        }
        let pool: Vec<Vec<u8>> = (0..sources).map(|_| random(len + 64)).collect();
        // Each source begins at another alignment.
        let sources: Vec<&[u8]> = pool.iter().enumerate().map(|(i, b)| &b[(skew + 7 * i) % 64..][..len]).collect();
        let before: Vec<Vec<u8>> = (0..outputs).map(|_| random(len)).collect();
        let expected = by_definition(&rows, &sources, &before, add);
        for kernel in Kernel::ALL.into_iter().filter(|k| k.is_available()) {
            // Guards around each output: nothing else may be written.
            let mut held: Vec<Vec<u8>> = before.iter().map(|b| [&[0xA5; 64][..], b, &[0x5A; 64]].concat()).collect();
            let mut outputs: Vec<&mut [u8]> = held.iter_mut().map(|h| &mut h[64..64 + len]).collect();
            kernel.combine(&rows, &sources, &mut outputs, add);
            for (held, expected) in held.iter().zip(&expected) {
                prop_assert!(held[64..64 + len] == expected[..], "{kernel} differs");
                prop_assert!(held[..64] == [0xA5; 64] && held[64 + len..] == [0x5A; 64], "{kernel} wrote outside");
            }
        }
    }
}

#[test]
#[should_panic(expected = "must be of one length")]
fn buffers_of_different_lengths_are_refused() {
    Kernel::best().combine(&[1], &[&[1, 2]], &mut [&mut [0; 3]], false);
}

#[test]
#[should_panic(expected = "one coefficient for each source")]
fn too_few_coefficients_are_refused() {
    Kernel::best().combine(&[1], &[&[1], &[2]], &mut [&mut [0; 1]], false);
}
