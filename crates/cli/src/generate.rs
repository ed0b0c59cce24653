//! `staves completions` and `staves man`: made from the command line's own description.

use std::path::Path;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::shells;

use crate::args::CommandLine;
use clap::ValueEnum;
use staves_cli_common::output;

/// A shell whose completions can be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

/// Prints the completions of a shell.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    output::print(&script(shell)?)
}

/// Prints the program's man page, or writes one for each command into `folder`.
pub fn man(folder: Option<&Path>) -> anyhow::Result<()> {
    match folder {
        None => output::print(&page()?)?,
        Some(folder) => clap_mangen::generate_to(CommandLine::command(), folder)
            .with_context(|| format!("cannot write man pages to {}", folder.display()))?,
    }
    Ok(())
}

fn script(shell: Shell) -> anyhow::Result<String> {
    let mut command = CommandLine::command();
    let mut script = Vec::new();
    let out = &mut script;
    match shell {
        Shell::Bash => clap_complete::generate(shells::Bash, &mut command, "staves", out),
        Shell::Zsh => clap_complete::generate(shells::Zsh, &mut command, "staves", out),
        Shell::Fish => clap_complete::generate(shells::Fish, &mut command, "staves", out),
    }
    String::from_utf8(script).context("the completions are no text")
}

fn page() -> anyhow::Result<String> {
    let mut page = Vec::new();
    clap_mangen::Man::new(CommandLine::command()).render(&mut page)?;
    String::from_utf8(page).context("the page is no text")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All commands as they are typed, without the program's name.
    fn commands(of: &clap::Command) -> Vec<String> {
        let mut all = Vec::new();
        for command in of.get_subcommands() {
            let name = command.get_name();
            all.push(name.to_owned());
            all.extend(commands(command).iter().map(|sub| format!("{name} {sub}")));
        }
        all
    }

    #[test]
    fn completions_name_every_command_and_its_flags() {
        let all = commands(&CommandLine::command());
        assert!(all.contains(&"node drain".to_owned()), "{all:?}");
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(shell).expect("made");
            for command in &all {
                let word = command.rsplit(' ').next().expect("a word");
                assert!(script.contains(word), "{shell:?}: {command}");
            }
            for flag in ["wait-when-lost", "deadline", "volatile-votes"] {
                assert!(script.contains(flag), "{shell:?}: --{flag}");
            }
        }
    }

    #[test]
    fn man_pages_name_every_command() {
        let page = page().expect("made");
        for command in CommandLine::command().get_subcommands() {
            let name = format!("staves\\-{}(1)", command.get_name().replace('-', "\\-"));
            assert!(page.contains(&name), "{name} in {page}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        man(Some(folder.path())).expect("written");
        for command in commands(&CommandLine::command()) {
            let file = format!("staves-{}.1", command.replace(' ', "-"));
            assert!(folder.path().join(&file).is_file(), "{file}");
        }
        let missing = man(Some(&folder.path().join("none"))).expect_err("no folder");
        assert!(missing.to_string().contains("none"), "{missing}");
    }
}
