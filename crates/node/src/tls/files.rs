//! The files of TLS: certificates and keys in PEM, bounded and checked, and errors that say which one is wrong.

use std::fmt::Display;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{Error, RootCertStore};
use staves_net::read_small_file;

/// Longest file of certificates or of a key.
const FILE_BYTES_MAX: usize = 1 << 20;

/// The files of a node.
pub(crate) struct TlsFiles<'a> {
    /// Its certificate, and those of intermediate authorities.
    pub(crate) cert: &'a Path,
    /// The certificate's private key.
    pub(crate) key: &'a Path,
    /// The authorities of clients, which then need a certificate.
    pub(crate) client_ca: Option<&'a Path>,
}

/// The use of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TlsFile {
    /// The node's certificate.
    Certificate,
    /// Its private key.
    Key,
    /// The authorities of clients.
    ClientCa,
}

/// A reason not to begin with the files of TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// It cannot be read.
    #[error("{} {} cannot be read: {reason}; name another with {}", file.name(), path.display(), file.flag())]
    Unreadable {
        /// Its use.
        file: TlsFile,
        /// The file.
        path: PathBuf,
        /// The system's error.
        reason: io::Error,
    },
    /// Others than its owner and group may read or change the key.
    #[error(
        "the private key {} is open to others (mode {mode:04o}): 'chmod o= {}' closes it", path.display(), path.display()
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// It has not what it is named for.
    #[error("{} {} cannot be used: {reason}", file.name(), path.display())]
    Refused {
        /// Its use.
        file: TlsFile,
        /// The file.
        path: PathBuf,
        /// The fault and the remedy.
        reason: String,
    },
    /// Each is sound, and they are not of one pair.
    #[error(
        "the private key {} does not fit the certificate {}: name the key with which the certificate was made (--tls-key), and put the \
         node's own certificate first in its file (--tls-cert)", key.display(), cert.display()
    )]
    Mismatch {
        /// The certificate's file.
        cert: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

impl TlsFile {
    fn name(self) -> &'static str {
        match self {
            TlsFile::Certificate => "the TLS certificate",
            TlsFile::Key => "the private key",
            TlsFile::ClientCa => "the certificates of clients' authorities",
        }
    }

    fn flag(self) -> &'static str {
        match self {
            TlsFile::Certificate => "--tls-cert",
            TlsFile::Key => "--tls-key",
            TlsFile::ClientCa => "--tls-client-ca",
        }
    }

    /// An error of such a file.
    pub(super) fn refused(self, path: &Path, reason: impl Display) -> TlsError {
        TlsError::Refused {
            file: self,
            path: path.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// An error of its form.
    fn misshapen(self, path: &Path, error: &pem::Error) -> TlsError {
        let damage = match error {
            pem::Error::NoItemsFound => return self.refused(path, self.nothing()),
            pem::Error::MissingSectionEnd { .. } => "a section has no END line".to_owned(),
            pem::Error::IllegalSectionStart { .. } => "a BEGIN line is malformed".to_owned(),
            other => other.to_string(),
        };
        let reason = format!("its PEM is damaged ({damage}); copy the file anew");
        self.refused(path, reason)
    }

    /// The reason for a file without what it is named for.
    fn nothing(self) -> String {
        match self {
            TlsFile::Certificate | TlsFile::ClientCa => format!(
                "there is no certificate in it ('-----BEGIN CERTIFICATE-----'): name a PEM file that has one with {}",
                self.flag()
            ),
            TlsFile::Key => "there is no private key in it ('-----BEGIN PRIVATE KEY-----'): name a PEM file that has one with \
                             --tls-key; if it has a password, 'openssl pkey -in FILE -out NEW' writes one without"
                .to_owned(),
        }
    }

    fn read(self, path: &Path) -> Result<Vec<u8>, TlsError> {
        read_small_file(path, FILE_BYTES_MAX).map_err(|reason| TlsError::Unreadable {
            file: self,
            path: path.to_owned(),
            reason,
        })
    }

    fn certificates(self, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let bytes = self.read(path)?;
        let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match all {
            Ok(all) if all.is_empty() => Err(self.refused(path, self.nothing())),
            Ok(all) => Ok(all),
            Err(error) => Err(self.misshapen(path, &error)),
        }
    }
}

impl TlsFiles<'_> {
    /// The error of a certificate and a key that are not taken together.
    pub(super) fn unfit(&self, error: Error) -> TlsError {
        match error {
            Error::InconsistentKeys(_) => TlsError::Mismatch {
                cert: self.cert.to_owned(),
                key: self.key.to_owned(),
            },
            Error::InvalidCertificate(_) => {
                let reason = format!("{error}; a certificate of X.509 version 3 is needed");
                TlsFile::Certificate.refused(self.cert, reason)
            }
            error => {
                let reason =
                    format!("{error}; keys of RSA, ECDSA (P-256, P-384) and Ed25519 are taken");
                TlsFile::Key.refused(self.key, reason)
            }
        }
    }
}

/// The node's certificate, and those behind it.
pub(super) fn chain(path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    TlsFile::Certificate.certificates(path)
}

/// A private key that others may not read.
pub(super) fn key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    if let Ok(found) = path.metadata() {
        let mode = found.permissions().mode() & 0o7777;
        if found.is_file() && mode & 0o007 != 0 {
            return Err(TlsError::Open {
                path: path.to_owned(),
                mode,
            });
        }
    }
    let bytes = TlsFile::Key.read(path)?;
    PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| TlsFile::Key.misshapen(path, &error))
}

/// The authorities whose clients are let in.
pub(super) fn authorities(path: &Path) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in TlsFile::ClientCa.certificates(path)? {
        roots
            .add(certificate)
            .map_err(|error| TlsFile::ClientCa.refused(path, error))?;
    }
    Ok(roots)
}
