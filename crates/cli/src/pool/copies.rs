//! `--min-copies`: the copies that writes to a pool wait for, as people give and are shown them.

use staves_model::Scheme;
use staves_model::units::count;
use staves_node::status::PoolStatus;

use super::KindName;

/// A value of `--min-copies`.
pub(super) fn copies_of(text: &str) -> Result<u8, String> {
    let copies = text.parse().ok().filter(|copies| *copies >= 1);
    copies.ok_or_else(|| {
        "give a number of copies: 1, with which writes never wait, or more, up to the second number of the scheme and one".into()
    })
}

/// The reason why writes to a pool cannot wait for so many copies.
pub(super) fn wrong_copies(
    name: &str,
    kind: &KindName,
    scheme: Scheme,
    copies: u8,
) -> Option<String> {
    if *kind == KindName::Files && copies > 1 {
        return Some(format!(
            "pool '{name}' of files takes no --min-copies: what it holds comes from a source, and no write waits for copies of it"
        ));
    }
    let most = scheme.k + 1;
    let means = match scheme.m {
        1 => String::new(),
        _ => format!(
            " (with data and parity the number is the losses of nodes that are borne while writes go on, and one: {most} waits while fewer than {} are)",
            scheme.k
        ),
    };
    (copies > most).then(|| {
        format!(
            "pool '{name}' cannot have writes wait for {copies} copies: with its scheme {scheme} choose from 1, which never waits, to {most}{means}"
        )
    })
}

/// The copies that writes to a pool wait for, in words.
pub(super) fn writes_wait(pool: &PoolStatus) -> String {
    let scheme = pool.scheme.parse::<Scheme>();
    let is_coded = scheme.is_ok_and(|scheme| scheme.m > 1);
    match (pool.copies_min, is_coded) {
        _ if pool.has_sources() => "nothing: nobody writes files".into(),
        (0 | 1, false) => "nothing: they go on with one copy".into(),
        (0 | 1, true) => "nothing: they go on while the data can be read".into(),
        (copies, false) => format!("{copies} complete copies"),
        (copies, true) => format!(
            "as many complete buckets as bear the loss of {} (--min-copies {copies})",
            count(u64::from(copies) - 1, "node")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_is_no_number_of_copies_is_refused_with_those_that_are() {
        assert_eq!(copies_of("2"), Ok(2));
        for wrong in ["x", "0", "-1", "300", ""] {
            let said = copies_of(wrong).expect_err("no number of copies");
            assert!(said.starts_with("give a number of copies: 1, "), "{said}");
        }
    }

    #[test]
    fn the_number_is_of_copies_or_with_parity_of_losses_and_files_have_none() {
        let wrong = |kind, scheme: &str, copies| {
            wrong_copies("p", &kind, scheme.parse().expect("a scheme"), copies)
        };
        assert_eq!(wrong(KindName::Memory, "1+1", 2), None);
        assert_eq!(wrong(KindName::Memory, "2+2", 3), None);
        assert_eq!(wrong(KindName::Files, "1+0", 1), None);
        let said = wrong(KindName::Memory, "2+2", 4).expect("too many");
        let says = "from 1, which never waits, to 3 (with data and parity the number is the losses";
        assert!(said.contains(says), "{said}");
        let said = wrong(KindName::Files, "1+0", 2).expect("nobody writes");
        assert!(said.contains("no write waits for copies of it"), "{said}");
    }
}
