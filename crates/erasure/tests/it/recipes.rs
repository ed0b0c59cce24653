//! Any k of m + k may be lost (row H1): every pattern of small shapes, random ones of large shapes.

use proptest::prelude::*;
use staves_erasure::{Code, CodeError};

/// All members' bytes: data by a formula, parity by the code.
fn members(code: &Code, len: usize, seed: u64) -> Vec<Vec<u8>> {
    let mut x = seed | 1;
    let mut byte = || {
        x = x.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1);
        (x >> 56) as u8
    };
    let data: Vec<Vec<u8>> = (0..code.m())
        .map(|_| (0..len).map(|_| byte()).collect())
        .collect();
    let mut parity = vec![vec![0; len]; code.k()];
    let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
    code.encode(&sources, &mut outputs);
    data.into_iter().chain(parity).collect()
}

fn rebuild(code: &Code, all: &[Vec<u8>], sources: &[usize], wanted: &[usize]) -> Vec<Vec<u8>> {
    let recipe = code.recipe(sources, wanted).unwrap();
    let bytes: Vec<&[u8]> = sources.iter().map(|s| all[*s].as_slice()).collect();
    let mut made = vec![vec![7; all[0].len()]; wanted.len()];
    let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    recipe.make(&bytes, &mut outputs);
    // The same, source by source.
    let mut added = vec![vec![0; all[0].len()]; wanted.len()];
    let mut outputs: Vec<&mut [u8]> = added.iter_mut().map(Vec::as_mut_slice).collect();
    for (at, bytes) in bytes.iter().enumerate() {
        recipe.add(at, bytes, &mut outputs);
    }
    assert_eq!(made, added);
    made
}

/// Row H1.
#[test]
fn every_pattern_of_loss_of_small_shapes_is_repaired() {
    for m in 1..=6usize {
        for k in 0..=4usize {
            let code = Code::new(m, k).unwrap();
            let all = members(&code, 19, (m * 31 + k) as u64);
            for there in 0u32..1 << (m + k) {
                if there.count_ones() as usize != m {
                    continue;
                }
                let is_there = |x: &usize| there >> x & 1 == 1;
                let sources: Vec<usize> = (0..m + k).filter(is_there).collect();
                let wanted: Vec<usize> = (0..m + k).filter(|x| !is_there(x)).collect();
                let lost: Vec<Vec<u8>> = wanted.iter().map(|w| all[*w].clone()).collect();
                assert_eq!(
                    rebuild(&code, &all, &sources, &wanted),
                    lost,
                    "{m}+{k}: {sources:?} -> {wanted:?}"
                );
            }
        }
    }
}

/// Row H1: the first parity is a plain XOR.
#[test]
fn the_first_parity_is_the_plain_xor_and_copies_are_copies() {
    for (m, k) in [(1, 3), (2, 1), (4, 2), (8, 3), (32, 8)] {
        let code = Code::new(m, k).unwrap();
        let all = members(&code, 40, 5);
        let xor: Vec<u8> = (0..40)
            .map(|i| all[..m].iter().fold(0, |sum, d| sum ^ d[i]))
            .collect();
        assert_eq!(all[m], xor, "{m}+{k}");
        if m == 1 {
            assert!(all.iter().all(|x| *x == all[0]));
        }
    }
}

#[test]
fn what_cannot_be_is_refused() {
    assert_eq!(Code::new(0, 2), Err(CodeError::Shape { m: 0, k: 2 }));
    assert_eq!(Code::new(250, 7), Err(CodeError::Shape { m: 250, k: 7 }));
    assert!(Code::new(usize::MAX, 7).is_err());
    let code = Code::new(4, 2).unwrap();
    assert_eq!(
        code.recipe(&[0, 1, 2], &[3]),
        Err(CodeError::Sources {
            given: 3,
            needed: 4
        })
    );
    assert_eq!(
        code.recipe(&[0, 1, 2, 2], &[3]),
        Err(CodeError::Sources {
            given: 3,
            needed: 4
        })
    );
    assert_eq!(
        code.recipe(&[0, 1, 2, 4, 5], &[3]),
        Err(CodeError::Sources {
            given: 5,
            needed: 4
        })
    );
    assert_eq!(
        code.recipe(&[0, 1, 2, 6], &[3]),
        Err(CodeError::Member {
            member: 6,
            members: 6
        })
    );
}

proptest! {
    #[test]
    fn random_losses_of_large_shapes_are_repaired(m in 1usize..33, k in 1usize..9, order in prop::collection::vec(any::<u32>(), 40), seed in any::<u64>()) {
        let code = Code::new(m, k).unwrap();
        let all = members(&code, 33, seed);
        let mut members: Vec<usize> = (0..m + k).collect();
        members.sort_by_key(|x| order[*x]);
        let (sources, wanted) = members.split_at(m);
        let lost: Vec<Vec<u8>> = wanted.iter().map(|w| all[*w].clone()).collect();
        prop_assert_eq!(rebuild(&code, &all, sources, wanted), lost);
    }

    /// Row H2: a change reaches parity as a delta, in any order of changes.
    #[test]
    fn deltas_keep_parity_right(m in 1usize..9, k in 1usize..4, changes in prop::collection::vec((any::<usize>(), any::<usize>(), any::<[u8; 9]>()), 1..20)) {
        let code = Code::new(m, k).unwrap();
        let mut all = members(&code, 64, 3);
        let (data, parity) = all.split_at_mut(m);
        for (d, at, new) in changes {
            let (d, at) = (d % m, at % 50);
            let delta: Vec<u8> = data[d][at..at + 9].iter().zip(new).map(|(old, new)| old ^ new).collect();
            data[d][at..at + 9].copy_from_slice(&new);
            for (p, parity) in parity.iter_mut().enumerate() {
                code.apply(p, d, &delta, &mut parity[at..at + 9]);
            }
        }
        let mut expected = vec![vec![0; 64]; k];
        let sources: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
        let mut outputs: Vec<&mut [u8]> = expected.iter_mut().map(Vec::as_mut_slice).collect();
        code.encode(&sources, &mut outputs);
        prop_assert_eq!(parity, &expected[..]);
    }
}
