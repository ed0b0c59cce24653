//! The shared secret, and how each side of a connection proves to know it without sending it.
//!
//! ```text
//! connecting side                                 accepting side
//! hello, with 32 random bytes as credentials  ->
//!                                             <-  challenge: 32 random bytes
//! prove: hash(key, "connects", hello, challenge) ->
//!                                             <-  proven: hash(key, "accepts ", hello, challenge, welcome); welcome
//! ```
//!
//! The hash is BLAKE3's keyed one, over the bytes as they were sent: whatever the two sides said of themselves (role, cluster,
//! node, life, versions, features) is bound. The connecting side proves first, so that a stranger gets nothing to guess a weak
//! secret by. The two labels are why no proof can be sent back as the other side's own.
//!
//! A proof does not say for whom it is meant, and cannot: tools know an address, which may lead to a node by other names than its own. So
//! somebody may have two honest sides prove themselves to each other through him. He gains nothing: all that follows is sealed with keys
//! that both sides make of the secret (`seal.rs`).

use std::fmt;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use blake3::{Hash, Hasher};
use bytes::{Bytes, BytesMut};
use staves_wire::hello::{Role, SECRET_BYTES};

use crate::seal::{Opener, Sealer, Seals};
use crate::small_file;

/// The bounds of a secret file's content.
const SECRET_BYTES_MIN: usize = 16;
const SECRET_BYTES_MAX: usize = 4096;
/// Bytes of the longest file that is read for one.
const FILE_BYTES_MAX: usize = 64 << 10;

/// A derived key of another use never equals this one.
const CONTEXT: &str = "staves native protocol 2026 hello";

/// The side of a connection that proves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Prover {
    Connects,
    Accepts,
}

/// A reason not to take a file for a secret.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// It cannot be read.
    #[error("the secret file {} cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// Others than its owner may read or change it.
    #[error(
        "the secret file {} is open to others (mode {mode:04o}): 'chmod 600 {}' closes it", path.display(), path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Too short to be a secret, or too long to be meant.
    #[error(
        "the secret file {} has {bytes} bytes, and {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} are taken: \
         'head -c 32 /dev/urandom | base64' makes a good one", path.display()
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Its bytes, without blanks at the end.
        bytes: usize,
    },
}

/// A shared secret, as the key that is made of it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Hash);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

impl Secret {
    /// The secret of these bytes.
    pub fn new(bytes: &[u8]) -> Secret {
        Secret(Hash::from_bytes(blake3::derive_key(CONTEXT, bytes)))
    }

    /// Reads a file that nobody but its owner may read. Blanks and line ends at its end do not count.
    pub fn read(path: &Path) -> Result<Secret, SecretError> {
        let unreadable = |reason| SecretError::Unreadable {
            path: path.to_owned(),
            reason,
        };
        let file = small_file::open(path).map_err(unreadable)?;
        let found = file.metadata().map_err(unreadable)?;
        let mode = found.permissions().mode() & 0o7777;
        if found.is_file() && mode & 0o077 != 0 {
            return Err(SecretError::Open {
                path: path.to_owned(),
                mode,
            });
        }
        let bytes = small_file::read_opened(file, FILE_BYTES_MAX).map_err(unreadable)?;
        let secret = bytes.trim_ascii_end();
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&secret.len()) {
            return Err(SecretError::Size {
                path: path.to_owned(),
                bytes: secret.len(),
            });
        }
        Ok(Secret::new(secret))
    }

    /// The proof of one side, over what was sent so far.
    pub(crate) fn proof(&self, side: Prover, parts: &[&[u8]]) -> Hash {
        self.hash(
            match side {
                Prover::Connects => b"connects",
                Prover::Accepts => b"accepts ",
            },
            parts,
        )
    }

    /// The seals of one side for all that follows the greeting; `came` has come behind it already.
    pub(crate) fn seals(
        &self,
        side: Prover,
        hello: &[u8],
        challenge: &[u8],
        came: BytesMut,
    ) -> Seals {
        let key = |label| *self.hash(label, &[hello, challenge]).as_bytes();
        let (connecting, accepting) = (key(b"seals 1 "), key(b"seals 2 "));
        let (own, other) = match side {
            Prover::Connects => (connecting, accepting),
            Prover::Accepts => (accepting, connecting),
        };
        Seals {
            sealer: Sealer::new(own),
            opener: Opener::new(other, came),
        }
    }

    fn hash(&self, label: &[u8; 8], parts: &[&[u8]]) -> Hash {
        let mut hasher = Hasher::new_keyed(self.0.as_bytes());
        hasher.update(label);
        for part in parts {
            hasher.update(&(part.len() as u64).to_le_bytes());
            hasher.update(part);
        }
        hasher.finalize()
    }

    /// Compares in constant time.
    pub(crate) fn is_proof(&self, proof: &[u8], side: Prover, parts: &[&[u8]]) -> bool {
        let proof = <[u8; SECRET_BYTES]>::try_from(proof);
        proof.is_ok_and(|proof| self.proof(side, parts) == Hash::from_bytes(proof))
    }
}

/// The secrets of an accepting side, by rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Secrets {
    /// Nodes prove to know this one. Clients and tools may, too.
    pub nodes: Secret,
    /// This one suffices for clients and tools.
    pub clients: Option<Secret>,
}

impl Secrets {
    /// The secret that this role proved to know.
    pub(crate) fn proven(&self, role: Role, proof: &[u8], parts: &[&[u8]]) -> Option<&Secret> {
        let clients = self.clients.as_ref().filter(|_| role != Role::Node);
        let mut enough = [Some(&self.nodes), clients].into_iter().flatten();
        enough.find(|secret| secret.is_proof(proof, Prover::Connects, parts))
    }
}

/// Random bytes that no side has seen before.
pub(crate) fn nonce() -> Bytes {
    Bytes::copy_from_slice(&rand::random::<[u8; SECRET_BYTES]>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn secret(byte: u8) -> Secret {
        Secret::new(&[byte; 32])
    }

    #[test]
    fn a_proof_is_of_one_side_one_secret_and_every_part() {
        let parts: [&[u8]; 2] = [b"hello", b"challenge"];
        let proof = secret(1).proof(Prover::Connects, &parts);
        let holds =
            |secret: &Secret, side, parts: &[&[u8]]| secret.is_proof(proof.as_bytes(), side, parts);
        assert!(holds(&secret(1), Prover::Connects, &parts));
        assert!(!holds(&secret(2), Prover::Connects, &parts));
        assert!(!holds(&secret(1), Prover::Accepts, &parts), "sent back");
        assert!(!holds(
            &secret(1),
            Prover::Connects,
            &[b"hell", b"ochallenge"]
        ));
        assert!(!secret(1).is_proof(b"", Prover::Connects, &parts));
        assert!(!secret(1).is_proof(&proof.as_bytes()[..31], Prover::Connects, &parts));
    }

    #[test]
    fn a_clients_secret_makes_no_node() {
        let secrets = Secrets {
            nodes: secret(1),
            clients: Some(secret(2)),
        };
        let parts: [&[u8]; 1] = [b"said"];
        let proof = |byte| secret(byte).proof(Prover::Connects, &parts);
        let enough = |role, byte| {
            let proof = proof(byte);
            secrets.proven(role, proof.as_bytes(), &parts).is_some()
        };
        for role in [Role::Node, Role::Client, Role::Admin] {
            assert!(enough(role, 1), "{role:?}");
            assert_eq!(enough(role, 2), role != Role::Node, "{role:?}");
            assert!(!enough(role, 3), "{role:?}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_no_secret() {
        use std::fs::{Permissions, set_permissions, write};
        let path = std::env::temp_dir().join(format!("staves-secret-{}", std::process::id()));
        let said = |content: &[u8], mode: u32| {
            write(&path, content).expect("a file");
            set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
            Secret::read(&path).map_err(|error| error.to_string())
        };
        let long = b"0123456789abcdef";
        assert_eq!(said(long, 0o600), Ok(Secret::new(long)));
        assert_eq!(said(b"0123456789abcdef\r\n", 0o400), Ok(Secret::new(long)));
        for mode in [0o640, 0o604, 0o660, 0o610] {
            let text = said(long, mode).expect_err("open");
            assert!(text.contains("chmod 600"), "{text}");
        }
        let text = said(b"0123456789abcde\n", 0o600).expect_err("short");
        assert!(text.contains("has 15 bytes"), "{text}");
        let text = said(&[b'x'; 5000], 0o600).expect_err("long");
        assert!(text.contains("16 to 4096"), "{text}");
        std::fs::remove_file(&path).expect("it is there");
        let text = Secret::read(&path).expect_err("gone").to_string();
        assert!(text.contains("cannot be read"), "{text}");
        assert_eq!(format!("{:?}", secret(7)), "Secret");
    }
}
