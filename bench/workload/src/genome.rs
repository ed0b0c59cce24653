//! Chromosomes with repeats, and reads of them with mutations.

use crate::random::Random;

/// Families of repeats, of which each copy is a little different.
const FAMILIES: u64 = 60;
/// Bases of 1,000 in which a copy differs from its family.
const COPY_DIFFERS: u64 = 80;
/// Bases of 1,000 in which a read differs from where it is from; one in five of these is an insertion or deletion.
const READ_DIFFERS: u64 = 15;

/// The repeats that are all over a genome.
pub struct Families(Vec<Vec<u8>>);

impl Families {
    /// Short ones and long ones.
    pub fn new(random: &mut Random) -> Families {
        let family = |i| {
            let bases = match i % 3 {
                0 => 2000 + random.below(4000),
                _ => 200 + random.below(400),
            };
            let mut family = Vec::new();
            fresh(random, bases as usize, &mut family);
            family
        };
        Families((0..FAMILIES).map(family).collect())
    }

    /// So many bases: what is found once, copies of families, and short repeats one after the other, in turn.
    pub fn chromosome(&self, random: &mut Random, bases: usize) -> Vec<u8> {
        let mut sequence = Vec::with_capacity(bases + 20_000);
        while sequence.len() < bases {
            match random.below(10) {
                0..5 => {
                    let length = 500 + random.below(3000);
                    fresh(random, length as usize, &mut sequence);
                }
                5..9 => self.copy(random, &mut sequence),
                _ => tandem(random, &mut sequence),
            }
        }
        sequence.truncate(bases);
        sequence
    }

    fn copy(&self, random: &mut Random, into: &mut Vec<u8>) {
        let family = &self.0[random.below(self.0.len() as u64) as usize];
        let from = into.len();
        into.extend_from_slice(family);
        if random.below(2) == 0 {
            reverse_complement(&mut into[from..]);
        }
        for base in &mut into[from..] {
            if random.happens(COPY_DIFFERS) {
                *base = any_base(random);
            }
        }
    }
}

/// A short motif, again and again.
fn tandem(random: &mut Random, into: &mut Vec<u8>) {
    let mut motif = Vec::new();
    let bases = 2 + random.below(30);
    fresh(random, bases as usize, &mut motif);
    for _ in 0..5 + random.below(40) {
        into.extend_from_slice(&motif);
    }
}

/// Random bases, four of a number; 41 % are G or C.
fn fresh(random: &mut Random, bases: usize, into: &mut Vec<u8>) {
    let end = into.len() + bases;
    while into.len() < end {
        let mut bits = random.next();
        for _ in 0..4 {
            into.push(match bits as u16 {
                0..13_435 => b'G',
                13_435..26_870 => b'C',
                26_870..46_203 => b'A',
                _ => b'T',
            });
            bits >>= 16;
        }
    }
    into.truncate(end);
}

fn any_base(random: &mut Random) -> u8 {
    b"ACGT"[random.below(4) as usize]
}

fn reverse_complement(bases: &mut [u8]) {
    bases.reverse();
    for base in bases {
        *base = match base {
            b'A' => b'T',
            b'T' => b'A',
            b'G' => b'C',
            _ => b'G',
        };
    }
}

/// Lengths of chromosomes: the first is three times as long as the last, as genomes have them.
pub fn chromosome_bases(bases: u64, chromosomes: u64) -> Vec<u64> {
    let last = chromosomes.max(2) - 1;
    let weights: Vec<_> = (0..chromosomes).map(|i| 3 * last - 2 * i).collect();
    let all: u64 = weights.iter().sum();
    weights.iter().map(|weight| bases * weight / all).collect()
}

/// A read from anywhere in a sequence, from either strand, with mutations.
pub fn query(random: &mut Random, sequence: &[u8]) -> Vec<u8> {
    let length = 100 + random.below(151);
    let from = random.below(sequence.len() as u64 - length) as usize;
    let mut read = Vec::with_capacity(length as usize + 10);
    for &base in &sequence[from..from + length as usize] {
        if !random.happens(READ_DIFFERS) {
            read.push(base);
            continue;
        }
        match random.below(10) {
            0 => {}
            1 => read.extend([base, any_base(random)]),
            _ => read.push(any_base(random)),
        }
    }
    if random.below(2) == 0 {
        reverse_complement(&mut read);
    }
    read
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_genome_and_another_another() {
        let genome = |seed| {
            let mut random = Random::new(seed);
            Families::new(&mut random).chromosome(&mut random, 100_000)
        };
        assert_eq!(genome(1), genome(1));
        assert_ne!(genome(1), genome(2));
        // The bytes themselves: a change here makes figures of different days incomparable.
        assert_eq!(&genome(1)[..20], b"AGGCGTCAATATATTGTTGC");
    }

    #[test]
    fn chromosomes_have_repeats_and_the_bases_of_a_genome() {
        let mut random = Random::new(1);
        let sequence = Families::new(&mut random).chromosome(&mut random, 1_000_000);
        assert_eq!(sequence.len(), 1_000_000);
        let gc = sequence.iter().filter(|b| b"GC".contains(b)).count();
        assert!((380_000..450_000).contains(&gc), "{gc}");
        let mut seen = std::collections::HashSet::new();
        // By chance alone some hundred.
        let again = sequence.len() - sequence.windows(16).filter(|w| seen.insert(*w)).count();
        assert!(
            (30_000..700_000).contains(&again),
            "{again} of 16 bases were there before"
        );
    }

    #[test]
    fn a_genome_is_as_long_as_was_asked_for() {
        for chromosomes in [1, 2, 12, 25] {
            let bases = chromosome_bases(1_200_000_000, chromosomes);
            let all: u64 = bases.iter().sum();
            assert!(
                bases.len() as u64 == chromosomes && 1_200_000_000 - all < 100,
                "{all}"
            );
            assert!(bases.is_sorted_by(|a, b| a >= b) && bases.iter().all(|&b| b > 0));
        }
    }

    #[test]
    fn a_query_is_nearly_what_it_is_from() {
        let mut random = Random::new(5);
        let mut sequence = Vec::new();
        fresh(&mut random, 10_000, &mut sequence);
        for _ in 0..100 {
            let mut read = query(&mut random, &sequence);
            assert!((90..270).contains(&read.len()));
            let found = |read: &[u8]| {
                read.windows(12)
                    .filter(|w| sequence.windows(12).any(|s| s == *w))
                    .count()
            };
            let forward = found(&read);
            reverse_complement(&mut read);
            assert!(forward.max(found(&read)) > 30);
        }
    }
}
