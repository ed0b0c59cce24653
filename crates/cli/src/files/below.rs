//! The files of a dataset below some paths, as its source lists them.

use staves_cli_common::codes::Own;
use staves_cli_common::failure::{Failure, no_source};
use staves_client::{Dataset, Kind, OpenFile, SourceError, Stat};

use super::{below_source, source_of, within};

/// Folders within folders that are followed.
const DEPTH_MAX: usize = 64;
/// Files and folders that are gone through, some 300 bytes of memory each.
const FOUND_MAX: usize = 4_000_000;
/// With so many folders in a row of which there is no answer, the source is taken for gone.
const IN_A_ROW: usize = 3;

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
    /// Folders below these whose content is not known.
    pub unlisted: UnlistedFolders,
}

/// Folders that could not be listed, and the first one's reason.
#[derive(Default)]
pub struct UnlistedFolders {
    pub count: usize,
    first: Option<String>,
    /// Those without an answer since the last answer.
    in_a_row: usize,
}

impl UnlistedFolders {
    fn add(&mut self, why: String) {
        self.count += 1;
        self.first.get_or_insert(why);
    }

    /// Notes a folder that could not be listed. An error: the source as a whole says nothing any more.
    fn note(&mut self, error: SourceError) -> anyhow::Result<()> {
        match &error {
            SourceError::Unreachable { .. } => self.in_a_row += 1,
            SourceError::Absent { .. } | SourceError::Malformed { .. } => {
                return Err(no_source(error));
            }
            _ => self.in_a_row = 0,
        }
        if self.in_a_row == IN_A_ROW {
            return Err(no_source(error));
        }
        self.add(error.to_string());
        Ok(())
    }

    fn message(&self) -> Option<String> {
        let first = self.first.as_ref()?;
        Some(match self.count {
            1 => format!("a folder is left out: {first}"),
            all => format!("{all} folders are left out: {first} (and so on)"),
        })
    }
}

impl FoundBelow {
    /// Messages about all that was left out.
    pub fn left_out(&self) -> Vec<String> {
        let all = self.refused().into_iter().chain(self.unlisted.message());
        all.collect()
    }

    /// True if all could be found that is there.
    pub fn is_whole(&self) -> bool {
        self.unreadable.is_empty() && self.unlisted.count == 0
    }

    /// A message about those that cannot be read, if there are any.
    fn refused(&self) -> Option<String> {
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
/// would take longer than anybody waits. A folder below the paths that cannot be listed is left out, and noted.
pub fn files_below(data: &Dataset, paths: &[String]) -> anyhow::Result<FoundBelow> {
    let source = source_of(data);
    let mut found = FilesBelow {
        data,
        found: FoundBelow {
            files: Vec::new(),
            unreadable: Vec::new(),
            unlisted: UnlistedFolders::default(),
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
        let names = match data.list(&path) {
            Ok(names) => names,
            Err(error) if depth == 0 => return Err(no_source(error)),
            // It went meanwhile.
            Err(SourceError::NotFound { .. }) if !is_listed_still(data, &path) => continue,
            Err(error) => {
                found.found.unlisted.note(error)?;
                continue;
            }
        };
        found.found.unlisted.in_a_row = 0;
        for (name, stat) in names {
            found.may_hold_more()?;
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

/// True if a folder is there, as far as its source says.
fn is_listed_still(data: &Dataset, path: &[u8]) -> bool {
    let stat = data.stat(path);
    !matches!(stat, Err(SourceError::NotFound { .. }))
}

struct FilesBelow<'a> {
    data: &'a Dataset,
    found: FoundBelow,
    /// Folders to be listed, with how deep they lie.
    folders: Vec<(Vec<u8>, usize)>,
}

impl FilesBelow<'_> {
    /// Ends a search that finds more than memory is meant for.
    fn may_hold_more(&self) -> anyhow::Result<()> {
        let found = &self.found;
        let all = found.files.len() + found.unreadable.len() + self.folders.len();
        if all < FOUND_MAX {
            return Ok(());
        }
        let text = format!(
            "there are more than {FOUND_MAX} files and folders: name some of the folders, one after the other"
        );
        Err(Failure::Own(Own::Usage, text).into())
    }

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
            Kind::Folder => {
                let path = String::from_utf8_lossy(&path);
                let why = format!("{path} lies deeper than {DEPTH_MAX} folders: give its path");
                self.found.unlisted.add(why);
            }
            Kind::Link(_) => {}
        }
    }
}
