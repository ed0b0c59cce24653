//! The name of a dataset.

use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;

/// The name that was given, or the source's last word, as far as a dataset may be called so.
pub fn name(given: Option<&str>, source: &str) -> anyhow::Result<String> {
    let name = given.map_or_else(|| last_word(source), str::to_owned);
    let text = match (given, fits(&name)) {
        (_, true) => return Ok(name),
        (Some(_), _) => format!(
            "--dataset '{name}' is no name: a dataset's has at least one character and at most {BYTES_MAX} bytes, no blanks, slashes or \
             colons, and is neither . nor .."
        ),
        (None, _) => format!("{source} has no name to call the dataset by: give --dataset NAME"),
    };
    Err(Failure::Own(Own::Usage, text).into())
}

/// The cluster's own bound for names.
const BYTES_MAX: usize = staves_model::NAME_BYTES_MAX;

fn is_odd(c: char) -> bool {
    c.is_whitespace() || c.is_control() || c == ':' || c == '/'
}

fn fits(name: &str) -> bool {
    let len = (1..=BYTES_MAX).contains(&name.len());
    len && !name.contains(is_odd) && !matches!(name, "." | "..")
}

fn last_word(source: &str) -> String {
    let place = source.split('#').next().unwrap_or_default();
    let (_, path) = place.split_once("://").unwrap_or(("", place));
    let words = path.trim_end_matches('/').rsplit('/');
    words.take(1).collect::<String>().replace(is_odd, "-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_called_after_the_last_word_of_their_source() {
        for (source, called) in [
            ("/srv/genomes", "genomes"),
            ("/srv/two words", "two-words"),
            ("s3://bucket", "bucket"),
            ("s3://bucket/hg/38", "38"),
            ("s3://bucket#endpoint=http://10.0.0.9:9000", "bucket"),
            ("http://host:8080", "host-8080"),
            ("https://host/a/b", "b"),
        ] {
            assert_eq!(name(None, source).unwrap(), called);
        }
        assert!(name(None, "/").is_err());
    }

    #[test]
    fn names_that_the_cluster_would_not_take_are_a_slip_of_the_command_line() {
        let long = "x".repeat(BYTES_MAX + 1);
        for wrong in ["", ".", "..", "a/b", "a b", "a:b", "a\n", &long] {
            let error = name(Some(wrong), "/srv/genomes").unwrap_err();
            assert!(error.to_string().contains("--dataset"), "{wrong}: {error}");
        }
        for right in ["a", "...", "hg38.fa", &long[1..]] {
            assert_eq!(name(Some(right), "/srv/genomes").unwrap(), right);
        }
    }
}
