//! The failures of a server, and their messages.

use std::time::Duration;

use crate::remote::bounded::{is_no_folder, too_long_of};
use crate::remote::roots;

/// Longest reason that is passed on: servers answer errors with whole pages.
const REASON_CHARS_MAX: usize = 300;

/// The reason that a try failed.
#[derive(Clone, Debug)]
pub enum Failure {
    NotFound,
    /// There is another version.
    Changed,
    Denied(String),
    /// The server gives no mark to tell versions apart.
    Unversioned,
    /// The server gives the whole file.
    NoRanges,
    /// It does not list what it has.
    NoList(String),
    /// Another status than was hoped for, and its text.
    Status(String, u16),
    Odd(String),
    Late(Duration),
    /// The server's certificate is not accepted.
    Certificate(String),
    Other(String),
}

/// The beginning of TLS errors about the server's certificate.
const CERTIFICATE: &str = "invalid peer certificate: ";

impl Failure {
    /// There is no mark of a version where there was one before.
    pub fn versionless() -> Failure {
        Failure::Odd(
            "the server gives neither an ETag nor a time of the last change any more: does something else answer in its place?".into(),
        )
    }

    /// Another try would find the same.
    pub fn is_clear(&self) -> bool {
        match self {
            Failure::NotFound
            | Failure::Changed
            | Failure::Denied(_)
            | Failure::Unversioned
            | Failure::Certificate(_)
            | Failure::NoList(_) => true,
            Failure::Status(_, status) => !matches!(status, 408 | 416 | 429 | 500..),
            Failure::NoRanges | Failure::Odd(_) | Failure::Late(_) | Failure::Other(_) => false,
        }
    }

    /// The server itself has said so, and would again.
    pub fn is_answer(&self) -> bool {
        self.is_clear() && !matches!(self, Failure::Certificate(_))
    }

    /// It is about one name, of which there is something, and others may do well.
    pub fn is_of_name(&self) -> bool {
        match self {
            Failure::Denied(_) | Failure::Unversioned => true,
            Failure::Status(..) => self.is_clear(),
            _ => false,
        }
    }

    /// Other credentials might do. To a question for a name only a bare 400 may be the answer, where they are too old.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Failure::Denied(_) | Failure::Status(_, 400))
    }
}

impl From<object_store::Error> for Failure {
    fn from(error: object_store::Error) -> Failure {
        use object_store::Error;
        if let Some(why) = too_long_of(&error) {
            return Failure::NoList(why.to_string());
        }
        match &error {
            Error::NotFound { .. } => Failure::NotFound,
            Error::Precondition { .. } => Failure::Changed,
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                Failure::Denied(reason(&error))
            }
            Error::NotSupported { .. } => Failure::NoRanges,
            _ if is_no_folder(&error) => Failure::NotFound,
            _ => match status(&error) {
                Some(404) => Failure::NotFound,
                // The library knows them in answers to some questions only.
                Some(401 | 403) => Failure::Denied(reason(&error)),
                Some(status) => Failure::Status(reason(&error), status),
                None => {
                    let reason = reason(&error);
                    match reason.strip_prefix(CERTIFICATE) {
                        Some(why) => Failure::Certificate(why.to_owned()),
                        None => Failure::Other(reason),
                    }
                }
            },
        }
    }
}

/// The reason that a server's certificate is not accepted, and the remedy.
pub fn certificate(why: &str) -> String {
    if why != "UnknownIssuer" {
        return format!("the server's certificate is not accepted: {why}");
    }
    let is = trusted();
    format!(
        "nobody whom this machine trusts has signed the server's certificate ({why}): if it is of your own authority, name the file of \
         that one's certificate in SSL_CERT_FILE ({is}), for this program and for the nodes"
    )
}

/// The reason that no client could be made, and the remedy.
pub fn no_client(error: &dyn std::error::Error) -> String {
    let why = reason(error);
    if !why.contains("CA certificates") {
        return why;
    }
    let is = trusted();
    format!(
        "{why}: install those of your system (ca-certificates), or name a file of some in SSL_CERT_FILE ({is}), for this program and for \
         the nodes"
    )
}

/// The file of the certificates of those whom this process trusts.
fn trusted() -> String {
    match std::env::var_os(roots::VARIABLE) {
        Some(file) => format!("which is {} now", file.display()),
        None => "which is not set".to_owned(),
    }
}

/// The status that a server answered with. The library has it in its words only.
fn status(error: &dyn std::error::Error) -> Option<u16> {
    let text = error.to_string();
    let said = text
        .split_once("status code: ")
        .and_then(|(_, rest)| rest.get(..3));
    let said = said.and_then(|said| said.parse().ok());
    said.or_else(|| status(error.source()?))
}

/// The root of an error, in one short line.
pub fn reason(error: &dyn std::error::Error) -> String {
    let mut all = vec![error.to_string()];
    let mut next = error.source();
    while let Some(error) = next {
        all.push(error.to_string());
        next = error.source();
    }
    // An object store's own words, if it has any.
    let words = all.iter().rev().find_map(|text| {
        let between = |tag: &str| {
            let (_, rest) = text.split_once(&format!("<{tag}>"))?;
            Some(rest.split_once('<')?.0)
        };
        Some(format!("{} ({})", between("Message")?, between("Code")?))
    });
    let mut last = words.unwrap_or_else(|| all.pop().unwrap_or_default());
    if let Some((before, _)) = last.split_once('<') {
        last = before.trim_end_matches([' ', ':']).to_owned(); // and a page for people
    }
    if let Some(outer) = all.last().filter(|_| last.len() < 20) {
        last = format!("{outer}: {last}");
    }
    let line = last.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(REASON_CHARS_MAX).collect()
}
