//! The procedures of NFS, version 3 (RFC 1813, section 3), and of MOUNT (section 5), which gives the first handle.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::time::{SystemTime, UNIX_EPOCH};

use super::export::{DOTS, Export, NAME_BYTES_MAX, Status};
use super::handle::{HANDLE_BYTES_MAX, Handle, number};
use super::rpc::{Accepted, RpcCall};
use super::xdr::{Garbage, XdrReader, XdrWriter};
use crate::files::{Files, Kind, Stat};

const NFS: u32 = 100_003;
const MOUNT: u32 = 100_005;
const VERSION: u32 = 3;

/// Most bytes of a read.
pub const READ_BYTES_MAX: u32 = 256 << 10;
/// Most bytes of a piece of a listing.
const LISTING_BYTES_MAX: u32 = 64 << 10;
/// The most bytes of a write, for clients that ask: an attempt is answered with an error.
const WRITE_BYTES: u32 = 64 << 10;
/// Longest path that can be mounted, by the protocol.
const MOUNT_PATH_BYTES_MAX: usize = 1024;

/// The reason that a procedure has no answer but this.
enum NfsRefusal {
    Garbage,
    Status(Status),
}

impl From<Garbage> for NfsRefusal {
    fn from(_: Garbage) -> NfsRefusal {
        NfsRefusal::Garbage
    }
}

impl From<Status> for NfsRefusal {
    fn from(status: Status) -> NfsRefusal {
        NfsRefusal::Status(status)
    }
}

type Answered = Result<(), NfsRefusal>;

impl<S: Files> Export<S> {
    /// Answers a call.
    pub fn call(&self, call: &RpcCall, args: &mut XdrReader, reply: &mut XdrWriter) -> Accepted {
        match (call.program, call.version, call.procedure) {
            (NFS | MOUNT, VERSION, 0) => Accepted::Success,
            (NFS, VERSION, 1..=21) => self.file(call.procedure, args, reply),
            (MOUNT, VERSION, 1..=5) => self.mount(call.procedure, args, reply),
            (NFS | MOUNT, VERSION, _) => Accepted::NoProcedure,
            (NFS | MOUNT, _, _) => Accepted::NoVersion { have: VERSION },
            _ => Accepted::NoProgram,
        }
    }

    fn file(&self, procedure: u32, args: &mut XdrReader, reply: &mut XdrWriter) -> Accepted {
        let at = reply.len();
        reply.u32(0);
        let answered = match procedure {
            1 => self.getattr(args, reply),
            3 => self.lookup(args, reply),
            4 => self.access(args, reply),
            5 => self.readlink(args, reply),
            6 => self.read_some(args, reply),
            16 => self.readdir(args, reply, false),
            17 => self.readdir(args, reply, true),
            18 => self.fsstat(args, reply),
            19 => self.fsinfo(args, reply),
            20 => self.pathconf(args, reply),
            _ => Err(Status::ROFS.into()),
        };
        let status = match answered {
            Ok(()) => return Accepted::Success,
            Err(NfsRefusal::Garbage) => return Accepted::Garbage,
            Err(NfsRefusal::Status(status)) => status,
        };
        reply.truncate(at);
        reply.u32(status.0);
        // Attributes are optional: so many zero words stand for absent ones.
        let untold = match procedure {
            1 => 0,
            3..=6 | 16..=20 => 1,
            14 => 4,
            15 => 3,
            _ => 2,
        };
        (0..untold).for_each(|_| reply.u32(0));
        Accepted::Success
    }

    fn getattr(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let (path, stat) = self.stat(&handle(args)?)?;
        self.attributes(reply, &path, &stat);
        Ok(())
    }

    fn lookup(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let folder = handle(args)?;
        let name = OsStr::from_bytes(args.bytes(MOUNT_PATH_BYTES_MAX)?);
        if name.len() > NAME_BYTES_MAX {
            return Err(Status::NAMETOOLONG.into());
        }
        let known = self.path(&folder)?;
        let path = match name.as_bytes() {
            b"." => known.to_path_buf(),
            b".." => known.parent().unwrap_or(&known).to_path_buf(),
            b"" => return Err(Status::INVAL.into()),
            bytes if bytes.contains(&b'/') || bytes.contains(&0) => {
                return Err(Status::INVAL.into());
            }
            _ => known.join(name),
        };
        let stat = match self.look_up(&path) {
            // Whether it is the folder that is not there.
            Err(Status::NOENT) => {
                return Err(self.folder(&folder).err().unwrap_or(Status::NOENT).into());
            }
            other => other?,
        };
        reply.string(self.handle(&path, &stat).as_bytes());
        self.attributes_told(reply, &path, &stat);
        reply.u32(0);
        Ok(())
    }

    fn access(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let handle = handle(args)?;
        let wanted = args.u32()?;
        let (path, stat) = self.stat(&handle)?;
        let (read, look_up, execute) = (0x1, 0x2, 0x20);
        let may = match stat.kind {
            _ if stat.mode & 0o004 == 0 => 0,
            Kind::Folder => read | look_up | execute,
            _ if stat.mode & 0o111 != 0 => read | execute,
            _ => read,
        };
        self.attributes_told(reply, &path, &stat);
        reply.u32(wanted & may);
        Ok(())
    }

    fn readlink(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let (path, stat) = self.stat(&handle(args)?)?;
        let Kind::Link(target) = &stat.kind else {
            return Err(Status::INVAL.into());
        };
        self.attributes_told(reply, &path, &stat);
        reply.string(target.as_os_str().as_bytes());
        Ok(())
    }

    fn read_some(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let handle = handle(args)?;
        let (offset, len) = (args.u64()?, args.u32()?.min(READ_BYTES_MAX));
        self.read(&handle, offset, u64::from(len), |stat, bytes| {
            reply.u32(0);
            reply.u32(bytes as u32);
            reply.u32(u32::from(offset.saturating_add(bytes as u64) >= stat.size));
            reply.u32(bytes as u32);
            reply.room(bytes)
        })?;
        reply.fill();
        Ok(())
    }

    fn readdir(&self, args: &mut XdrReader, reply: &mut XdrWriter, plus: bool) -> Answered {
        let handle = handle(args)?;
        let place = args.u64()?;
        let _verifier = args.u64()?;
        let names_max = args.u32()?;
        let all_max = if plus { args.u32()? } else { names_max };
        let limit = reply.len() + all_max.min(LISTING_BYTES_MAX) as usize;
        let (path, stat) = self.stat(&handle)?;
        if stat.kind != Kind::Folder {
            return Err(Status::NOTDIR.into());
        }
        self.may_read(&path, &stat)?;
        let listing = self.list(&path, place)?;
        self.attributes_told(reply, &path, &stat);
        // Places are good for ever: nothing need distinguish listings.
        reply.u64(0);
        let parent = path.parent().unwrap_or(&path);
        let above = (parent != &*path).then(|| self.look_up(parent)).transpose();
        let above = above?.unwrap_or_else(|| stat.clone());
        let dots = [
            (DOTS[0], ".", &*path, &stat),
            (DOTS[1], "..", parent, &above),
        ];
        let dots = dots.into_iter().filter(|(at, ..)| *at > place);
        let dots = dots.map(|(at, name, path, stat)| (at, OsStr::new(name), path.to_owned(), stat));
        let names = listing.after(place);
        let names = names.map(|(at, name, stat)| (at, name, path.join(name), stat));
        let mut some = false;
        for (at, name, path, stat) in dots.chain(names) {
            let before = reply.len();
            reply.u32(1);
            reply.u64(number(&path, stat));
            reply.string(name.as_bytes());
            reply.u64(at);
            if plus {
                self.attributes_told(reply, &path, stat);
                reply.u32(1);
                reply.string(self.handle(&path, stat).as_bytes());
            }
            // Two words are still to come.
            if reply.len() + 8 > limit {
                reply.truncate(before);
                if !some {
                    return Err(Status::TOOSMALL.into());
                }
                reply.u32(0);
                reply.u32(0);
                return Ok(());
            }
            some = true;
        }
        reply.u32(0);
        reply.u32(1);
        Ok(())
    }

    fn fsstat(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let (path, stat) = self.stat(&handle(args)?)?;
        self.attributes_told(reply, &path, &stat);
        // All that there is, and nothing free: nothing can be written.
        let used = self.files().used();
        for amount in [used.bytes, 0, 0, used.files, 0, 0] {
            reply.u64(amount);
        }
        reply.u32(0);
        Ok(())
    }

    fn fsinfo(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let (path, stat) = self.stat(&handle(args)?)?;
        self.attributes_told(reply, &path, &stat);
        for size in [READ_BYTES_MAX, READ_BYTES_MAX, 4096] {
            reply.u32(size);
        }
        for size in [WRITE_BYTES, WRITE_BYTES, 4096, LISTING_BYTES_MAX] {
            reply.u32(size);
        }
        reply.u64(i64::MAX as u64);
        // Times are exact to the nanosecond.
        reply.u32(0);
        reply.u32(1);
        let (links, alike) = (0x2, 0x8);
        reply.u32(links | alike);
        Ok(())
    }

    fn pathconf(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let (path, stat) = self.stat(&handle(args)?)?;
        self.attributes_told(reply, &path, &stat);
        let (links_max, no_cut, owners_stay, any_case, case_kept) = (1, 1, 1, 0, 1);
        for word in [
            links_max,
            NAME_BYTES_MAX as u32,
            no_cut,
            owners_stay,
            any_case,
            case_kept,
        ] {
            reply.u32(word);
        }
        Ok(())
    }

    fn attributes_told(&self, reply: &mut XdrWriter, path: &Path, stat: &Stat) {
        reply.u32(1);
        self.attributes(reply, path, stat);
    }

    fn attributes(&self, reply: &mut XdrWriter, path: &Path, stat: &Stat) {
        let kind = match stat.kind {
            Kind::File => 1,
            Kind::Folder => 2,
            Kind::Link(_) => 5,
        };
        let owner = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        for word in [kind, u32::from(stat.mode & 0o777), stat.links, owner, group] {
            reply.u32(word);
        }
        reply.u64(stat.size);
        reply.u64(stat.size);
        reply.u64(0); // no device
        reply.u64(self.dataset());
        reply.u64(number(path, stat));
        for _ in 0..3 {
            time(reply, stat.modified);
        }
    }

    fn mount(&self, procedure: u32, args: &mut XdrReader, reply: &mut XdrWriter) -> Accepted {
        let at = reply.len();
        let answered = match procedure {
            1 => self.first_handle(args, reply),
            // The list of mounts: it is not kept.
            2 => {
                reply.u32(0);
                Ok(())
            }
            3 => args
                .bytes(MOUNT_PATH_BYTES_MAX)
                .map(|_| ())
                .map_err(NfsRefusal::from),
            4 => Ok(()),
            _ => {
                // One thing to mount, for everybody, and nothing else.
                reply.u32(1);
                reply.string(b"/");
                reply.u32(0);
                reply.u32(0);
                Ok(())
            }
        };
        match answered {
            Ok(()) => Accepted::Success,
            Err(NfsRefusal::Garbage) => Accepted::Garbage,
            Err(NfsRefusal::Status(status)) => {
                reply.truncate(at);
                reply.u32(match status {
                    Status::NOENT | Status::NOTDIR | Status::ACCES | Status::INVAL => status.0,
                    _ => Status::IO.0,
                });
                Accepted::Success
            }
        }
    }

    fn first_handle(&self, args: &mut XdrReader, reply: &mut XdrWriter) -> Answered {
        let asked = Path::new(OsStr::from_bytes(args.bytes(MOUNT_PATH_BYTES_MAX)?));
        let mut path = std::path::PathBuf::new();
        for part in asked.components() {
            match part {
                Component::Normal(name) => path.push(name),
                Component::ParentDir => return Err(Status::INVAL.into()),
                _ => {}
            }
        }
        let stat = self.look_up(&path)?;
        if stat.kind != Kind::Folder {
            return Err(Status::NOTDIR.into());
        }
        reply.u32(0);
        reply.string(self.handle(&path, &stat).as_bytes());
        // The caller's identity is optional: nothing checks it.
        let (by_name, unnamed) = (1, 0);
        for word in [2, by_name, unnamed] {
            reply.u32(word);
        }
        Ok(())
    }
}

fn handle(args: &mut XdrReader) -> Result<Handle, NfsRefusal> {
    let sent = args.bytes(HANDLE_BYTES_MAX)?;
    Ok(Handle::parse(sent).ok_or(Status::BADHANDLE)?)
}

fn time(reply: &mut XdrWriter, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    reply.u32(u32::try_from(since.as_secs()).unwrap_or(u32::MAX));
    reply.u32(since.subsec_nanos());
}
