//! The files of a dataset below some paths, as its source lists them.

use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, no_source};
use staves_client::{Dataset, Kind, OpenFile, Stat};

use super::{below_source, source_of, within};

/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;

/// A file that was found.
pub struct FoundFile {
    pub file: OpenFile,
    /// It changed just then, so that nodes do not keep it yet.
    pub fresh: bool,
}

impl FoundFile {
    pub fn path(&self) -> String {
        String::from_utf8_lossy(&self.file.version().path).into_owned()
    }
}

/// The files below some paths of a dataset.
pub struct FoundBelow {
    pub files: Vec<FoundFile>,
    /// The paths of those that the source lists and does not let be read.
    pub unreadable: Vec<String>,
}

impl FoundBelow {
    /// A message about those that cannot be read, if there are any.
    pub fn refused(&self) -> Option<String> {
        let first = self.unreadable.first()?;
        Some(match self.unreadable.len() {
            1 => format!("{first} cannot be read at its source, and is left out"),
            all => format!(
                "{first} and {} more cannot be read at their source, and are left out",
                all - 1
            ),
        })
    }
}

/// All files below some paths of a dataset, opened. A folder's files are opened as its list has them: looked at one by one, many
/// would take longer than anybody waits.
pub fn files_below(data: &Dataset, paths: &[String]) -> anyhow::Result<FoundBelow> {
    let source = source_of(data);
    let mut found = FilesBelow {
        data,
        found: FoundBelow {
            files: Vec::new(),
            unreadable: Vec::new(),
        },
        folders: Vec::new(),
    };
    let root = [String::new()];
    let paths = if paths.is_empty() { &root[..] } else { paths };
    for path in paths {
        let path = within(below_source(&source, path))?;
        let stat = data.stat(&path).map_err(no_source)?;
        // Links are shown, never followed; that one was asked for by its name must be said.
        if let Kind::Link(to) = &stat.kind {
            let text = format!(
                "{} is a link to {}: give the path of what it leads to, if that is in the dataset",
                String::from_utf8_lossy(&path),
                String::from_utf8_lossy(to)
            );
            return Err(Failure::Own(Own::Usage, text).into());
        }
        found.add(path, &stat, 0);
    }
    while let Some((path, depth)) = found.folders.pop() {
        for (name, stat) in data.list(&path).map_err(no_source)? {
            let below = match path.is_empty() {
                true => name,
                false => [&path[..], b"/", &name].concat(),
            };
            found.add(below, &stat, depth + 1);
        }
    }
    let mut found = found.found;
    let files = &mut found.files;
    files.sort_by(|a, b| a.file.version().path.cmp(&b.file.version().path));
    // A folder and a file in it may both have been given.
    files.dedup_by(|a, b| a.file.version().path == b.file.version().path);
    found.unreadable.sort();
    found.unreadable.dedup();
    Ok(found)
}

struct FilesBelow<'a> {
    data: &'a Dataset,
    found: FoundBelow,
    /// Folders to be listed, with how deep they lie.
    folders: Vec<(Vec<u8>, usize)>,
}

impl FilesBelow<'_> {
    fn add(&mut self, path: Vec<u8>, stat: &Stat, depth: usize) {
        match stat.kind {
            Kind::File { fresh, .. } => {
                let file = self.data.file(&path, stat);
                let file = file.map(|file| FoundFile { file, fresh });
                self.found.files.extend(file);
            }
            Kind::Unreadable => {
                let path = String::from_utf8_lossy(&path).into_owned();
                self.found.unreadable.push(path);
            }
            Kind::Folder if depth < DEPTH_MAX => self.folders.push((path, depth)),
            Kind::Folder | Kind::Link(_) => {}
        }
    }
}
