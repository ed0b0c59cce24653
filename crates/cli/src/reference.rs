//! `staves reference`: the reference in Markdown, made from the tables that the program itself works by.
//! The files of `docs/reference` are this output.

use clap::{Arg, ArgAction, Command, CommandFactory};
use staves_node::config::{KEYS, Key};
use staves_node::metrics;

use crate::args::CommandLine;
use crate::explain::{Explained, explained};
use clap::ValueEnum;
use staves_cli_common::codes::Code;
use staves_cli_common::output;

/// A page of the reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Page {
    /// Every command with its flags
    Commands,
    /// Every key of a node's configuration
    Config,
    /// Every metric
    Metrics,
    /// Every error code
    Errors,
}

/// Prints a page.
pub fn run(page: Page) -> anyhow::Result<()> {
    output::print(&match page {
        Page::Commands => commands(),
        Page::Config => config(),
        Page::Metrics => metrics(),
        Page::Errors => errors(),
    })
}

/// A table. What would end a cell early is escaped.
fn table(headings: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| {
        let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
        format!("| {} |\n", cells.join(" | "))
    };
    let head: Vec<String> = headings.iter().map(|h| (*h).to_owned()).collect();
    let rule: Vec<String> = headings.iter().map(|_| "---".to_owned()).collect();
    let rows: String = rows.into_iter().map(|row| line(&row)).collect();
    format!("{}{}{rows}", line(&head), line(&rule))
}

fn code(text: impl std::fmt::Display) -> String {
    format!("`{text}`")
}

/// Code where there is something.
fn code_or_nothing(text: &str) -> String {
    match text {
        "" => String::new(),
        text => code(text),
    }
}

fn commands() -> String {
    let mut program = CommandLine::command();
    program.build();
    let mut page = String::from("# Commands\n\n");
    if let Some(about) = program.get_about() {
        page += &format!("{about}\n\n");
    }
    page += "Flags of every command:\n\n";
    page += &flags(program.get_arguments().filter(|arg| arg.is_global_set()));
    page +=
        "\nA time is written with its unit (`500ms`, `5s`, `2m`), a size too (`512MiB`, `1GB`).\n";
    for command in program.get_subcommands().filter(|c| is_shown(c)) {
        describe(command, "staves", &mut page);
    }
    page
}

fn is_shown(command: &Command) -> bool {
    !command.is_hide_set() && command.get_name() != "help"
}

/// A command, or, if it only stands for others, those.
fn describe(command: &Command, above: &str, page: &mut String) {
    let name = format!("{above} {}", command.get_name());
    if command.has_subcommands() {
        let below = command.get_subcommands().filter(|c| is_shown(c));
        return below.for_each(|command| describe(command, &name, page));
    }
    *page += &format!("\n## {name}\n\n");
    if let Some(about) = command.get_about() {
        *page += &format!("{about}.\n");
    }
    let own = |arg: &&Arg| {
        let given = matches!(
            arg.get_action(),
            ArgAction::Help | ArgAction::HelpLong | ArgAction::Version
        );
        !arg.is_global_set() && !arg.is_hide_set() && !given
    };
    if command.get_arguments().any(|arg| own(&arg)) {
        *page += &format!("\n{}", flags(command.get_arguments().filter(own)));
    }
}

fn flags<'a>(args: impl Iterator<Item = &'a Arg>) -> String {
    let rows = args.map(|arg| {
        let help = arg
            .get_help()
            .map(|help| help.to_string())
            .unwrap_or_default();
        vec![
            code(spelt(arg)),
            code_or_nothing(&default(arg)),
            env(arg),
            meaning(arg, help),
        ]
    });
    table(&["argument", "default", "variable", "meaning"], rows)
}

/// As it is written on a command line; in angles what must be given.
fn spelt(arg: &Arg) -> String {
    let takes = arg.get_action().takes_values();
    let value = arg
        .get_value_names()
        .and_then(|names| names.first())
        .map_or_else(
            || arg.get_id().to_string().to_uppercase(),
            |n| n.to_string(),
        );
    let more = match arg.get_action() {
        ArgAction::Append => "...",
        _ => "",
    };
    let flag = match (arg.get_short(), arg.get_long()) {
        (Some(short), Some(long)) => format!("-{short}, --{long}"),
        (Some(short), None) => format!("-{short}"),
        (None, Some(long)) => format!("--{long}"),
        (None, None) if arg.is_required_set() => return format!("<{value}>{more}"),
        (None, None) => return format!("[{value}]{more}"),
    };
    match takes {
        true => format!("{flag} <{value}>"),
        false => flag,
    }
}

/// The key of a node's configuration that a flag sets. Other commands have flags of the same names.
fn key_of(arg: &Arg) -> Option<&'static Key> {
    let help = arg.get_help()?.to_string();
    let id = arg.get_id().as_str();
    KEYS.iter()
        .find(|key| key.name == id && help.starts_with(key.doc))
}

fn default(arg: &Arg) -> String {
    if let Some(key) = key_of(arg) {
        return key.default.to_owned();
    }
    let defaults = arg.get_default_values().iter().map(|d| d.to_string_lossy());
    match arg.get_action().takes_values() {
        true => defaults.collect::<Vec<_>>().join(","),
        false => String::new(),
    }
}

fn env(arg: &Arg) -> String {
    if let Some(key) = key_of(arg) {
        return code(key.variable());
    }
    let variable = arg
        .get_env()
        .map(|name| name.to_string_lossy().into_owned());
    code_or_nothing(&variable.unwrap_or_default())
}

fn meaning(arg: &Arg, help: String) -> String {
    if let Some(key) = key_of(arg) {
        return key.doc.to_owned();
    }
    let values: Vec<String> = match arg.get_action().takes_values() {
        true => arg
            .get_possible_values()
            .iter()
            .map(|value| code(value.get_name()))
            .collect(),
        false => Vec::new(),
    };
    match values[..] {
        [] => format!("{help}."),
        _ => format!("{help}: {}.", values.join(", ")),
    }
}

fn config() -> String {
    let mut page = String::from(
        "# Configuration\n\nEvery key of a node's configuration. The file (`staves up --config FILE`) has it by its name, the\n\
         environment by its variable, which goes over the file, and the command line by its flag, which goes over\n\
         both. A time or a size is written with its unit; where the key's own name says the unit (`_ms`, `_bytes`)\n\
         a plain number is taken in it.\n\n",
    );
    let rows = KEYS.iter().map(|key| {
        vec![
            code(key.name),
            code(format!("--{}", key.name.replace('_', "-"))),
            code(key.variable()),
            code_or_nothing(key.default),
            key.doc.to_owned(),
        ]
    });
    page += &table(&["key", "flag", "variable", "default", "meaning"], rows);
    page
}

fn metrics() -> String {
    let mut page = String::from(
        "# Metrics\n\nWhat `/metrics` on the admin door tells, in Prometheus's text format. Each is about the node that is asked.\n\n",
    );
    let rows = metrics::all().map(|metric| {
        let labels = metric.labels().into_iter().flat_map(|(label, values)| {
            let value = move |v| code(format!("{label}=\"{v}\""));
            values.into_iter().map(value)
        });
        let labels: Vec<String> = labels.collect();
        vec![
            code(metric.name),
            metric.kind.word().to_owned(),
            metric.unit.to_owned(),
            labels.join(", "),
            metric.help.to_owned(),
        ]
    });
    page += &table(&["metric", "type", "unit", "labels", "meaning"], rows);
    page
}

fn errors() -> String {
    let mut page = String::from(
        "# Errors\n\nEvery error code. The program ends an error with its code in brackets, or has it as `code` with `-o json`;\n\
         the native protocol sends its number; Redis's protocol begins the error with the word in the third column.\n\
         `staves explain CODE` says the same; it takes the word of Redis and the number, too.\n\n",
    );
    let rows = Code::all().map(|code_| {
        let Explained {
            happened,
            why,
            remedy,
        } = explained(code_);
        vec![
            code(code_.word()),
            code_.number().map(|n| n.to_string()).unwrap_or_default(),
            code_or_nothing(code_.resp().unwrap_or_default()),
            code_.exit_code().map(|e| e.to_string()).unwrap_or_default(),
            happened.to_owned(),
            why.to_owned(),
            remedy.to_owned(),
        ]
    });
    let headings = [
        "code",
        "number",
        "RESP",
        "exit",
        "what happened",
        "why",
        "what to do",
    ];
    page += &table(&headings, rows);
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_key_metric_and_code_has_its_line() {
        let page = commands();
        let mut program = CommandLine::command();
        program.build();
        for command in program.get_subcommands().filter(|c| is_shown(c)) {
            let heading = format!("\n## staves {}", command.get_name());
            assert!(page.contains(&heading), "{heading} in\n{page}");
        }
        assert!(page.contains("\n## staves node drain\n"), "{page}");
        assert!(
            page.contains("| `--deadline <TIME>` | `5s` | `STAVES_DEADLINE` |"),
            "{page}"
        );
        for key in KEYS {
            assert!(
                config().contains(&format!("| `{}` |", key.variable())),
                "{}",
                key.name
            );
        }
        for metric in metrics::all() {
            assert!(
                metrics().contains(&format!("| `{}` |", metric.name)),
                "{}",
                metric.name
            );
        }
        for each in Code::all() {
            assert!(
                errors().contains(&format!("| `{}` |", each.word())),
                "{}",
                each.word()
            );
        }
    }

    #[test]
    fn every_argument_has_a_meaning_and_the_default_that_is_its_own() {
        let page = commands();
        for line in page.lines().filter(|line| line.starts_with("| `")) {
            let meaning = line.rsplit(" | ").next().unwrap_or_default();
            assert!(meaning.len() > ". |".len(), "no meaning: {line}");
        }
        let memory = "| `--memory <SIZE>` |  |  | Memory that each node may give to it";
        assert!(page.contains(memory), "a pool's, not a node's: {page}");
        assert!(page.contains("| `--memory <VALUE>` | `1GiB` | `STAVES_MEMORY` |"));
    }

    #[test]
    fn every_row_of_a_table_has_the_cells_of_its_head() {
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        for page in [commands(), config(), metrics(), errors()] {
            let mut width = None;
            for line in page.lines() {
                match line.starts_with('|') {
                    true => assert_eq!(*width.get_or_insert(cells(line)), cells(line), "{line}"),
                    false => width = None,
                }
            }
        }
    }
}
