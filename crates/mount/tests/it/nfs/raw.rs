//! A client that says just what a test wants said.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

pub const NFS: u32 = 100_003;
pub const MOUNT: u32 = 100_005;
pub const STALE: u32 = 70;

pub struct Client {
    pub stream: TcpStream,
    xid: u32,
}

/// An answer, read from its beginning.
pub struct Answer {
    bytes: Vec<u8>,
    at: usize,
}

impl Answer {
    pub fn u32(&mut self) -> u32 {
        self.at += 4;
        u32::from_be_bytes(self.bytes[self.at - 4..self.at].try_into().unwrap())
    }

    pub fn u64(&mut self) -> u64 {
        u64::from(self.u32()) << 32 | u64::from(self.u32())
    }

    pub fn string(&mut self) -> Vec<u8> {
        let len = self.u32() as usize;
        let from = self.at;
        self.at += len.next_multiple_of(4);
        self.bytes[from..from + len].to_vec()
    }

    /// Attributes: the type, the size and the inode's number.
    pub fn attributes(&mut self) -> (u32, u64, u64) {
        let kind = self.u32();
        self.at += 16;
        let size = self.u64();
        self.at += 24;
        let number = self.u64();
        self.at += 24;
        (kind, size, number)
    }

    pub fn left(&self) -> usize {
        self.bytes.len() - self.at
    }
}

/// Arguments: words and strings.
#[derive(Default)]
pub struct Say(Vec<u8>);

impl Say {
    pub fn u32(mut self, word: u32) -> Say {
        self.0.extend(word.to_be_bytes());
        self
    }

    pub fn u64(self, words: u64) -> Say {
        self.u32((words >> 32) as u32).u32(words as u32)
    }

    pub fn string(mut self, bytes: &[u8]) -> Say {
        self = self.u32(bytes.len() as u32);
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }
}

pub fn say() -> Say {
    Say::default()
}

impl Client {
    pub fn connect(to: SocketAddr) -> Client {
        let stream = TcpStream::connect(to).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        Client { stream, xid: 0 }
    }

    pub fn send(&mut self, head: [u32; 6], args: Say) {
        let Say(mut call) = head.into_iter().fold(say(), Say::u32);
        // No credentials.
        call.extend([0; 16]);
        call.extend(args.0);
        let mark = call.len() as u32 | 1 << 31;
        let all = [&mark.to_be_bytes()[..], &call].concat();
        self.stream.write_all(&all).unwrap();
    }

    /// None if the server has closed the connection.
    pub fn hear(&mut self) -> Option<Answer> {
        let mut mark = [0; 4];
        self.stream.read_exact(&mut mark).ok()?;
        let mut bytes = vec![0; (u32::from_be_bytes(mark) & !(1 << 31)) as usize];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(Answer { bytes, at: 0 })
    }

    /// The answer to a call, behind its number: whether it was accepted, and how.
    pub fn call(&mut self, program: u32, version: u32, procedure: u32, args: Say) -> Answer {
        self.xid += 1;
        self.send([self.xid, 0, 2, program, version, procedure], args);
        let mut answer = self.hear().unwrap();
        assert_eq!((answer.u32(), answer.u32()), (self.xid, 1));
        answer
    }

    /// The answer of a procedure that was run.
    pub fn run(&mut self, program: u32, procedure: u32, args: Say) -> Answer {
        let mut answer = self.call(program, 3, procedure, args);
        for word in [0, 0, 0, 0] {
            assert_eq!(answer.u32(), word, "accepted, and run");
        }
        answer
    }

    pub fn root(&mut self) -> Vec<u8> {
        self.mount(b"/").unwrap()
    }

    pub fn mount(&mut self, path: &[u8]) -> Result<Vec<u8>, u32> {
        let mut answer = self.run(MOUNT, 1, say().string(path));
        match answer.u32() {
            0 => Ok(answer.string()),
            status => Err(status),
        }
    }

    pub fn look_up(&mut self, folder: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
        let mut answer = self.run(NFS, 3, say().string(folder).string(name));
        match answer.u32() {
            0 => Ok(answer.string()),
            status => Err(status),
        }
    }

    /// From the root.
    pub fn walk(&mut self, path: &str) -> Vec<u8> {
        let root = self.root();
        let names = path.split('/').map(str::as_bytes);
        names.fold(root, |at, name| self.look_up(&at, name).unwrap())
    }

    pub fn read(&mut self, file: &[u8], offset: u64, len: u32) -> Result<(Vec<u8>, bool), u32> {
        let mut answer = self.run(NFS, 6, say().string(file).u64(offset).u32(len));
        let status = answer.u32();
        assert_eq!(answer.u32(), 0, "no attributes with a read");
        if status != 0 {
            return Err(status);
        }
        let (count, end) = (answer.u32(), answer.u32() == 1);
        let bytes = answer.string();
        assert_eq!((bytes.len(), answer.left()), (count as usize, 0));
        Ok((bytes, end))
    }

    /// A piece of a listing: names with their places and, with `plus`, handles.
    #[allow(clippy::type_complexity)]
    pub fn list(
        &mut self,
        folder: &[u8],
        place: u64,
        max: u32,
        plus: bool,
    ) -> Result<(Vec<(Vec<u8>, u64, Vec<u8>)>, bool), u32> {
        let args = say().string(folder).u64(place).u64(0).u32(max);
        let mut answer = match plus {
            true => self.run(NFS, 17, args.u32(max)),
            false => self.run(NFS, 16, args),
        };
        // The status is not counted.
        assert!(answer.left() <= max as usize + 4, "{} bytes", answer.left());
        let status = answer.u32();
        if answer.u32() == 1 {
            answer.attributes();
        }
        if status != 0 {
            return Err(status);
        }
        answer.u64();
        let mut names = Vec::new();
        while answer.u32() == 1 {
            let number = answer.u64();
            let (name, place) = (answer.string(), answer.u64());
            let mut handle = Vec::new();
            if plus {
                assert_eq!(answer.u32(), 1);
                assert_eq!(answer.attributes().2, number, "one number everywhere");
                assert_eq!(answer.u32(), 1);
                handle = answer.string();
            }
            names.push((name, place, handle));
        }
        let end = answer.u32() == 1;
        assert_eq!(answer.left(), 0);
        Ok((names, end))
    }
}
