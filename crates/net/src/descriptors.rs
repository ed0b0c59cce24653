//! The process's file descriptors, and the share of them that clients do not get.
//!
//! The kernel gives a new descriptor the lowest free number. So the number of an accepted socket shows how many are in
//! use, whatever for, and nothing has to be counted: a client whose socket lies in the reserve is refused.

use std::io;
use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use staves_wire::hello::Role;

/// The reserve: a quarter of all descriptors within these bounds, and never more than half.
const RESERVE_MIN: u64 = 64;
const RESERVE_MAX: u64 = 1024;

/// The limit of descriptors, and the reserve for nodes, the directory, tools and the admin door.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptors {
    /// Most descriptors of this process.
    pub limit: u64,
    /// The last of them, which clients do not get.
    pub reserve: u64,
}

impl Descriptors {
    /// The limit of this process as it is.
    pub fn of_process() -> Descriptors {
        Descriptors::within(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX))
    }

    /// Raises the limit to what the system allows this process.
    pub fn raise() -> io::Result<Descriptors> {
        let limit = getrlimit(Resource::Nofile);
        if limit.current != limit.maximum {
            let current = limit.maximum;
            setrlimit(Resource::Nofile, Rlimit { current, ..limit })?;
        }
        Ok(Descriptors::of_process())
    }

    fn within(limit: u64) -> Descriptors {
        let reserve = (limit / 4).clamp(RESERVE_MIN, RESERVE_MAX).min(limit / 2);
        Descriptors { limit, reserve }
    }

    /// True if an accepted connection of this role may stay. Tools get half of the reserve: they are how a node that
    /// has too many clients is looked at.
    pub fn allow(&self, role: Role, socket: &impl AsRawFd) -> bool {
        let below = match role {
            Role::Client => self.limit - self.reserve,
            Role::Admin => self.limit - self.reserve / 2,
            Role::Node => return true,
        };
        u64::try_from(socket.as_raw_fd()).is_ok_and(|number| number < below)
    }

    /// A share of the reserve, for a door that keeps a bound of its own.
    pub fn share(&self, divisor: u64) -> usize {
        (self.reserve / divisor).max(1) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(i32);

    impl AsRawFd for Number {
        fn as_raw_fd(&self) -> i32 {
            self.0
        }
    }

    #[test]
    fn clients_do_not_get_the_reserve_and_nodes_do() {
        let all = Descriptors::within(128);
        assert_eq!((all.limit, all.reserve), (128, 64));
        let allowed = |role, number| all.allow(role, &Number(number));
        assert!(allowed(Role::Client, 63) && !allowed(Role::Client, 64));
        assert!(allowed(Role::Admin, 95) && !allowed(Role::Admin, 96));
        assert!(allowed(Role::Node, 127));
    }

    #[test]
    fn the_reserve_leaves_at_least_half() {
        for (limit, reserve) in [(16, 8), (1024, 256), (1 << 20, 1024), (u64::MAX, 1024)] {
            assert_eq!(Descriptors::within(limit).reserve, reserve, "{limit}");
        }
        assert_eq!(Descriptors::within(16).share(8), 1, "never nothing");
    }
}
