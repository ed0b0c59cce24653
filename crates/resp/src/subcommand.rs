//! Commands with subcommands: the name of the one that is asked for, and the answer to HELP.

use super::output::Output;
use super::parse::Args;
use super::table::lookup;

/// The subcommand in lower case; "" without one.
pub(super) fn subcommand(args: Args<'_>) -> String {
    args.get(1)
        .map(|s| String::from_utf8_lossy(s).to_ascii_lowercase())
        .unwrap_or_default()
}

/// HELP of a command with subcommands.
pub(super) fn help(name: &str, out: &mut Output) {
    let subcommands = lookup(name.as_bytes()).map_or(&[][..], |entry| entry.subcommands);
    out.array(subcommands.len() + 1);
    out.simple(&format!(
        "{} <subcommand> [<arg> ...]. Subcommands are:",
        name.to_uppercase()
    ));
    subcommands
        .iter()
        .for_each(|sub| out.simple(&sub.text.to_uppercase()));
}
