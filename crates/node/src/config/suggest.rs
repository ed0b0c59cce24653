//! The nearest word, for those who slipped.

/// The word that needs the fewest edits to become this one, if it is near enough to be meant.
pub fn nearest(word: &str, words: impl Iterator<Item = &'static str>) -> Option<&'static str> {
    let near_enough = 1 + word.len() / 4;
    words
        .map(|candidate| (edits(word.as_bytes(), candidate.as_bytes()), candidate))
        .filter(|(edits, _)| *edits <= near_enough)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, replacements and swaps of neighbours that lead from one to the other (the
/// restricted Damerau-Levenshtein distance). Words longer than any key are far from all of them.
fn edits(a: &[u8], b: &[u8]) -> usize {
    const LONGEST: usize = 64;
    if a.len() > LONGEST {
        return a.len();
    }
    // Three rows of the usual table: two above the present one for swaps.
    let mut before: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(before[j - 2] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let cases = [
            ("", "", 0),
            ("a", "", 1),
            ("memory", "memroy", 1),
            ("kitten", "sitting", 3),
            ("zone", "zones", 1),
        ];
        for (a, b, expected) in cases {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), expected, "{a} {b}");
            assert_eq!(edits(b.as_bytes(), a.as_bytes()), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_what_is_near_is_suggested() {
        let words = ["memory", "listen", "lease_ms"];
        assert_eq!(nearest("memroy", words.into_iter()), Some("memory"));
        assert_eq!(nearest("lease", words.into_iter()), None);
        assert_eq!(nearest("lease_m", words.into_iter()), Some("lease_ms"));
        assert_eq!(nearest(&"x".repeat(10_000), words.into_iter()), None);
    }
}
