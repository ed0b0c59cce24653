//! Asking before something is deleted.

use std::io::{IsTerminal, Write};

use anyhow::Context;

use staves_cli_common::cluster::Cluster;
use staves_cli_common::codes::Own;
use staves_cli_common::failure::Failure;
use staves_cli_common::options::Format;
use staves_cli_common::output;

/// Asks on the terminal whether to delete this; where there is none, nobody can confirm.
pub fn confirm(session: &Cluster, what: &str, out: Format) -> anyhow::Result<()> {
    let would = format!("{what} would be deleted with all that it holds");
    let not_done = format!("{what} was not deleted");
    confirmed(session, &would, "Delete it?", "deletes it", &not_done, out)
}

/// Asks on the terminal about what would be; `--yes` answers for it.
pub fn confirmed(
    session: &Cluster,
    would: &str,
    question: &str,
    yes_does: &str,
    not_done: &str,
    out: Format,
) -> anyhow::Result<()> {
    let not_confirmed = |text: String| Err(Failure::Own(Own::NotConfirmed, text).into());
    let (stdin, mut stderr) = (std::io::stdin(), std::io::stderr());
    if !stdin.is_terminal() || !stderr.is_terminal() || out == Format::Json {
        return not_confirmed(format!("{would}; nothing was changed (--yes {yes_does})"));
    }
    output::show(format_args!("{would}. {question} (yes/no) "));
    stderr.flush().context("cannot ask on the terminal")?;
    let mut answer = String::new();
    stdin
        .read_line(&mut answer)
        .context("cannot read the answer")?;
    match answer.trim().to_ascii_lowercase().as_str() {
        "yes" | "y" => {
            // The time that a person takes is not the cluster's.
            session.begin_again();
            Ok(())
        }
        _ => not_confirmed(format!("{not_done}; nothing was changed")),
    }
}
