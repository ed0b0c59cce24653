//! Manifests: text files that list the files of a web server, since most servers cannot.
//!
//! A line is a path, relative to the dataset's root, and perhaps, after tabs, the file's size and its ETag; empty lines
//! and lines that begin with `#` are comments. A list with sizes and ETags saves a request for each file.

use std::collections::BTreeMap;

use crate::remote::address::is_plain;

/// Bytes of the longest manifest.
pub const MANIFEST_BYTES_MAX: u64 = 16 << 20;

/// Characters of a line that is no entry in the message about it: it may be a whole page.
const LINE_CHARS_MAX: usize = 80;

/// A manifest: files by their paths.
#[derive(Debug, Default)]
pub struct Manifest {
    files: BTreeMap<String, Option<Claim>>,
    has_sizes: bool,
}

/// A manifest's claim about a file: its size and its ETag. It may be out of date: only for display.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Bytes.
    pub size: u64,
    /// In quotes.
    pub etag: String,
}

/// An entry at a path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A file, and its claim.
    File(Option<Claim>),
    /// A folder.
    Folder,
}

impl Manifest {
    /// From its text. The error is a reason.
    pub fn parse(text: &str) -> Result<Manifest, String> {
        let (mut files, mut has_sizes) = (BTreeMap::new(), false);
        for (i, line) in text.lines().enumerate() {
            let line = line.trim_end();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split('\t');
            let path = words.next().unwrap_or_default();
            let path = path.strip_prefix("./").unwrap_or(path);
            let wrong = |what: &str| format!("its line {} {what}: {}", i + 1, shown(line));
            // A page with the status of success, whose text reports that there is nothing.
            let is_markup = path.starts_with('<');
            if is_markup || !is_plain(path) {
                return Err(wrong("is no path below the dataset's root"));
            }
            let size = words.next().map(|size| size.trim().parse::<u64>());
            let size = size.transpose();
            let size = size.map_err(|_| wrong("has no size after the first tab"))?;
            has_sizes |= size.is_some();
            let etag = words.next().and_then(super::strong);
            let claim = size.zip(etag).map(|(size, etag)| Claim { size, etag });
            files.insert(path.to_owned(), claim);
        }
        match files.is_empty() {
            true => Err("it names no file".to_owned()),
            false => Ok(Manifest { files, has_sizes }),
        }
    }

    /// True if a line has a size: no page for people does.
    pub fn has_sizes(&self) -> bool {
        self.has_sizes
    }

    /// The first file of a manifest's text that names none of these.
    pub fn stranger(&self, text: &str) -> Option<String> {
        let other = Manifest::parse(text).ok()?;
        let shared = other.files.keys().any(|path| self.files.contains_key(path));
        other.files.into_keys().find(|_| !shared)
    }

    /// The entry at a path; the root is the empty one.
    pub fn get(&self, path: &str) -> Option<Entry> {
        match self.files.get(path) {
            Some(claim) => Some(Entry::File(claim.clone())),
            None if path.is_empty() || self.below(path).next().is_some() => Some(Entry::Folder),
            None => None,
        }
    }

    /// The names in a folder.
    pub fn list(&self, folder: &str) -> BTreeMap<String, Entry> {
        let mut names = BTreeMap::new();
        for (rest, claim) in self.below(folder) {
            match rest.split_once('/') {
                // A file of that name hides the folder.
                Some((name, _)) => {
                    names.entry(name.to_owned()).or_insert(Entry::Folder);
                }
                None => {
                    names.insert(rest.to_owned(), Entry::File(claim.clone()));
                }
            }
        }
        names
    }

    fn below(&self, folder: &str) -> impl Iterator<Item = (&str, &Option<Claim>)> {
        let start = match folder {
            "" => String::new(),
            folder => format!("{folder}/"),
        };
        let from = self.files.range(start.clone()..);
        from.map_while(move |(path, claim)| Some((path.strip_prefix(&start)?, claim)))
    }
}

/// A line as a message has it.
fn shown(line: &str) -> String {
    let start: String = line.chars().take(LINE_CHARS_MAX).collect();
    match start.len() < line.len() {
        true => format!("'{start}…' ({} bytes)", line.len()),
        false => format!("'{line}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_make_folders() {
        let text = "# made by hand\n\nhg38.fa\n./sub/x y\t12\n sub\nsub/deep/z\t3\t\"e\"\r\nsub0\n";
        let all = Manifest::parse(text).unwrap();
        let names: Vec<String> = all.list("").into_keys().collect();
        assert_eq!(names, [" sub", "hg38.fa", "sub", "sub0"]);
        assert_eq!(all.get(""), Some(Entry::Folder));
        assert_eq!(all.get("sub/deep"), Some(Entry::Folder));
        assert_eq!(all.get("sub/x y"), Some(Entry::File(None)));
        assert_eq!((all.get("su"), all.get("sub/deep/z/")), (None, None));
        let z = &all.list("sub/deep")["z"];
        let (size, etag) = (3, "\"e\"".to_owned());
        assert_eq!(*z, Entry::File(Some(Claim { size, etag })));
        assert_eq!(all.list("sub").len(), 2);
    }

    #[test]
    fn what_is_no_manifest_is_refused() {
        for (text, reason) in [
            ("a\n../b\n", "its line 2 is no path"),
            ("/etc/passwd", "is no path"),
            ("a\tmuch", "has no size"),
            ("# nothing\n", "names no file"),
            ("<html>\n<a href=\"/\">", "is no path"),
        ] {
            let error = Manifest::parse(text).unwrap_err();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
        let error = Manifest::parse(&format!("a\n/{}", "é".repeat(100_000))).unwrap_err();
        assert!(error.contains("line 2") && error.len() < 300, "{error}");
        assert!(error.contains("(200001 bytes)"), "{error}");
    }
}
