//! The invariants of the NFS server, whatever a client sends.

use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use staves_mount::{FileError, Files, Kind, Listing, NfsOptions, Stat, Version, nfs_answers};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
/// Most bytes of an answer: those of the longest read, and its attributes.
const ANSWER_BYTES_MAX: usize = (256 << 10) + 256;
/// Of the one file.
const FILE_BYTES: u64 = 10_000;

/// A client's bytes. How many calls were answered: each by one record, of that call, within bounds.
pub fn nfs(data: &[u8]) -> usize {
    let answers = answers(data);
    for answer in &answers {
        assert!(answer.len() <= ANSWER_BYTES_MAX && answer.len().is_multiple_of(4));
        let mark = (answer.len() as u32 - 4) | 1 << 31;
        assert_eq!(answer[..4], mark.to_be_bytes());
        assert_eq!(answer[8..12], [0, 0, 0, 1], "it is an answer");
    }
    answers.len()
}

fn answers(data: &[u8]) -> Vec<Vec<u8>> {
    let options = NfsOptions {
        lifetime: Duration::from_secs(3600),
        read_ahead_bytes: 1 << 20,
        ..NfsOptions::default()
    };
    nfs_answers(Tree, &options, data)
}

/// Calls of every procedure, with handles that lead somewhere.
pub fn seeds() -> Vec<Vec<u8>> {
    let mount = |path: &[u8]| call(MOUNT, 1, &[], &[path], &[]);
    let handle_of = |call: &[u8]| {
        let answers = answers(call);
        let answer = &answers[0][28..];
        let len = u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]]);
        answer[8..8 + len as usize].to_vec()
    };
    let root = handle_of(&mount(b"/"));
    let file = handle_of(&call(NFS, 3, &root, &[b"file"], &[]));
    let deep = handle_of(&mount(b"/a/b"));
    let mut all = vec![mount(b"/"), mount(b"/a/b"), mount(b"/../x")];
    for handle in [&root, &file, &deep] {
        for procedure in 0..=21 {
            let (strings, words): (&[&[u8]], &[u32]) = match procedure {
                3 => (&[b"link"], &[]),
                6 => (&[], &[0, 100, 5000]),
                16 => (&[], &[0, 0, 0, 0, 4096]),
                17 => (&[], &[0, 0, 0, 0, 4096, 8192]),
                _ => (&[], &[63]),
            };
            all.push(call(NFS, procedure, handle, strings, words));
        }
    }
    all.extend((0..=5).map(|procedure| call(MOUNT, procedure, b"", &[], &[])));
    all
}

/// A call: a handle, strings, words.
fn call(program: u32, procedure: u32, handle: &[u8], strings: &[&[u8]], words: &[u32]) -> Vec<u8> {
    let mut body = Vec::new();
    let head = [7, 0, 2, program, 3, procedure, 0, 0, 0, 0];
    body.extend(head.into_iter().flat_map(u32::to_be_bytes));
    let handle = (!handle.is_empty()).then_some(handle);
    for string in handle.iter().chain(strings) {
        body.extend((string.len() as u32).to_be_bytes());
        body.extend_from_slice(string);
        body.resize(body.len().next_multiple_of(4), 0);
    }
    body.extend(words.iter().flat_map(|word| word.to_be_bytes()));
    let mark = body.len() as u32 | 1 << 31;
    [&mark.to_be_bytes()[..], &body].concat()
}

/// Some folders, a file and a link, in no memory at all.
struct Tree;

impl Files for Tree {
    type File = Stat;

    fn stat(&self, path: &Path) -> Result<Stat, FileError> {
        let (kind, size) = match path.to_str() {
            Some("" | "a" | "a/b") => (Kind::Folder, 0),
            Some("file" | "a/b/file") => (Kind::File, FILE_BYTES),
            Some("link") => (Kind::Link(PathBuf::from("a/b/file")), 8),
            _ => return Err(FileError::NotFound),
        };
        Ok(Stat {
            kind,
            size,
            modified: UNIX_EPOCH,
            mode: 0o755,
            version: Version([1, 2]),
            fresh: false,
            has_holes: false,
            links: 1,
        })
    }

    fn list(&self, path: &Path) -> Result<Listing, FileError> {
        let names: &[&str] = match path.to_str() {
            Some("") => &["a", "file", "link"],
            Some("a") => &["b"],
            Some("a/b") => &["file"],
            _ => return Err(FileError::NotFound),
        };
        let names = names
            .iter()
            .map(|name| Ok((name.into(), self.stat(&path.join(name))?)));
        names.collect()
    }

    fn open(&self, path: &Path) -> Result<Stat, FileError> {
        match self.stat(path)? {
            stat if stat.kind == Kind::File => Ok(stat),
            _ => Err(FileError::Io("no file".into())),
        }
    }

    fn stat_open<'a>(&self, file: &'a Stat) -> &'a Stat {
        file
    }

    fn read(&self, file: &Stat, offset: u64, into: &mut [u8]) -> Result<usize, FileError> {
        assert!(
            offset + into.len() as u64 <= file.size,
            "nothing is read beyond the end"
        );
        into.fill(0x5A);
        Ok(into.len())
    }

    fn will_read(&self, file: &Stat, offset: u64, bytes: u64) {
        assert!(offset + bytes <= file.size, "nor ahead of it");
    }
}
