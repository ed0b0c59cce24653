//! The options of a client and the answer to each; the state that they agree on.

use bytes::{BufMut, BytesMut};

use crate::constants::{
    ALLOCATION, ALLOCATION_ID, OPTION_REPLY_MAGIC, answer, handshake_flag, info, option,
};
use crate::error::ProtocolError;
use crate::export::{Export, Exports, OpenError};
use crate::handshake::HandshakeStep;
use crate::text::{STRING_BYTES_MAX, clipped};
use crate::tls::{TlsPhase, TlsPolicy};
use crate::transmission::Transmission;

/// Longest list of exports, in bytes of its answer.
pub const LIST_BYTES_MAX: usize = 1 << 20;

/// Zeroes behind the answer to `EXPORT_NAME`, for clients that want them.
const RESERVED_ZEROES: usize = 124;

/// A refusal of an option: the kind of its answer, and a text for people.
type Refusal = (u32, String);

/// The agreements so far.
#[derive(Debug, Default)]
pub(crate) struct Negotiation {
    tls: TlsPhase,
    fixed_newstyle: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which `base:allocation` was selected last.
    allocation_of: Option<String>,
}

impl Negotiation {
    /// Nothing agreed on, with this policy of TLS.
    pub(crate) fn with_tls(policy: TlsPolicy) -> Negotiation {
        Negotiation {
            tls: TlsPhase::Plain(policy),
            ..Negotiation::default()
        }
    }

    /// Takes the client's flags.
    pub(crate) fn set_client_flags(&mut self, flags: u32) -> Result<(), ProtocolError> {
        let offered = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
        if flags & !u32::from(offered) != 0 {
            return Err(ProtocolError::ClientFlags(flags));
        }
        let has = |flag: u16| flags & u32::from(flag) != 0;
        self.no_zeroes = has(handshake_flag::NO_ZEROES);
        self.fixed_newstyle = has(handshake_flag::FIXED_NEWSTYLE);
        // Such a client knows neither TLS nor an answer that refuses it.
        if self.tls == TlsPhase::Plain(TlsPolicy::Required) && !self.fixed_newstyle {
            return Err(ProtocolError::TlsRequired);
        }
        Ok(())
    }

    /// Returns whether an option starts TLS.
    pub(crate) fn may_start_tls(&self, option: u32, data: &[u8]) -> bool {
        let has_tls = matches!(
            self.tls,
            TlsPhase::Plain(TlsPolicy::Offered | TlsPolicy::Required)
        );
        option == option::STARTTLS && data.is_empty() && has_tls && self.fixed_newstyle
    }

    /// Answers the option that starts TLS. Of what was agreed on before, only the client's flags are left.
    pub(crate) fn secured(&self, out: &mut BytesMut) -> Negotiation {
        put_reply(out, option::STARTTLS, answer::ACK, &[]);
        Negotiation {
            tls: TlsPhase::Secured,
            fixed_newstyle: self.fixed_newstyle,
            no_zeroes: self.no_zeroes,
            ..Negotiation::default()
        }
    }

    /// Returns whether an option is not done before TLS has begun.
    fn needs_tls(&self, option: u32) -> bool {
        self.tls == TlsPhase::Plain(TlsPolicy::Required)
            && option != option::STARTTLS
            && option != option::ABORT
    }

    /// The refusal of a `STARTTLS` without data.
    fn tls_refusal(&self) -> Refusal {
        let (kind, text) = match self.tls {
            TlsPhase::Secured => (
                answer::ERR_INVALID,
                "TLS has begun already; go on within it",
            ),
            TlsPhase::Plain(TlsPolicy::Off) => (
                answer::ERR_POLICY,
                "this server has no TLS; connect without it",
            ),
            TlsPhase::Plain(_) => (
                answer::ERR_POLICY,
                "TLS needs a client of the fixed newstyle; use one",
            ),
        };
        (kind, text.to_owned())
    }

    /// Answers an option; returns a step if it was the last one.
    pub(crate) fn answer(
        &mut self,
        option: u32,
        data: &[u8],
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<Option<HandshakeStep>, ProtocolError> {
        let answered = match option {
            option::EXPORT_NAME if self.needs_tls(option) => {
                return Err(ProtocolError::TlsRequired);
            }
            _ if self.needs_tls(option) => Err(tls_required()),
            option::EXPORT_NAME => return self.export_name(data, exports, out).map(Some),
            option::ABORT => {
                put_reply(out, option, answer::ACK, &[]);
                return Ok(Some(HandshakeStep::Ended));
            }
            option::GO | option::INFO => match self.describe(option, data, exports, out) {
                Ok((export, name)) if option == option::GO => {
                    return Ok(Some(self.began(&export, name)));
                }
                described => described.map(drop),
            },
            option::LIST => no_data(data).and_then(|()| list(exports, out)),
            option::STRUCTURED_REPLY => no_data(data).map(|()| {
                self.structured = true;
                put_reply(out, option, answer::ACK, &[]);
            }),
            option::LIST_META_CONTEXT => self.list_contexts(data, exports, out),
            option::SET_META_CONTEXT => self.set_contexts(data, exports, out),
            option::STARTTLS => no_data(data).and_then(|()| Err(self.tls_refusal())),
            _ => Err((
                answer::ERR_UNSUP,
                format!("this server does not know the option {option}"),
            )),
        };
        if let Err((kind, text)) = answered {
            put_reply(out, option, kind, &[clipped(&text).as_bytes()]);
        }
        Ok(None)
    }

    /// Answers an option whose data was too long and is skipped; true if it was the last one.
    pub(crate) fn answer_too_long(&self, option: u32, out: &mut BytesMut) -> bool {
        // Data of this one means nothing.
        if option == option::ABORT {
            put_reply(out, option, answer::ACK, &[]);
            return true;
        }
        let (kind, text) = match self.needs_tls(option) {
            true => tls_required(),
            false => (
                answer::ERR_TOO_BIG,
                "the option's data is too long; send less".to_owned(),
            ),
        };
        put_reply(out, option, kind, &[text.as_bytes()]);
        false
    }

    fn began(&self, export: &Export, name: String) -> HandshakeStep {
        let allocation = self.structured && self.allocation_of.as_ref() == Some(&name);
        let transmission = Transmission::new(export, self.structured, allocation);
        HandshakeStep::Began(transmission, name)
    }

    fn export_name(
        &self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<HandshakeStep, ProtocolError> {
        let opened = checked_name(data)
            .and_then(|name| Ok((open(exports, name)?, name)))
            .map_err(|(_, text)| ProtocolError::ExportName(clipped(&text).to_owned()));
        let (export, name) = opened?;
        out.put_u64(export.size_bytes);
        out.put_u16(export.flags(self.structured));
        if !self.no_zeroes {
            out.put_bytes(0, RESERVED_ZEROES);
        }
        Ok(self.began(&export, name.to_owned()))
    }

    /// Answers `INFO` or `GO`.
    fn describe(
        &self,
        option: u32,
        data: &[u8],
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<(Export, String), Refusal> {
        let mut rest = data;
        let name = checked_name(take_string(&mut rest)?)?;
        let count = take_u16(&mut rest)?;
        if rest.len() != usize::from(count) * 2 {
            return Err(misshapen());
        }
        let export = open(exports, name)?;
        let asks = |kind: u16| {
            rest.chunks_exact(2)
                .any(|asked| asked == kind.to_be_bytes())
        };
        put_info(
            out,
            option,
            info::EXPORT,
            &[
                &export.size_bytes.to_be_bytes(),
                &export.flags(self.structured).to_be_bytes(),
            ],
        );
        if asks(info::NAME) {
            put_info(out, option, info::NAME, &[name.as_bytes()]);
        }
        if asks(info::DESCRIPTION) && !export.description.is_empty() {
            let description = clipped(&export.description).as_bytes();
            put_info(out, option, info::DESCRIPTION, &[description]);
        }
        if asks(info::BLOCK_SIZE) {
            let sizes = [1, export.block_preferred, export.block_max].map(u32::to_be_bytes);
            put_info(out, option, info::BLOCK_SIZE, &[sizes.as_flattened()]);
        }
        put_reply(out, option, answer::ACK, &[]);
        Ok((export, name.to_owned()))
    }

    fn list_contexts(
        &self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        let (name, queries) = self.meta_context(data)?;
        open(exports, name)?;
        let matches = |query: &&[u8]| [b"", &b"base:"[..], ALLOCATION.as_bytes()].contains(query);
        if queries.is_empty() || queries.iter().any(matches) {
            put_context(out, option::LIST_META_CONTEXT, 0);
        }
        put_reply(out, option::LIST_META_CONTEXT, answer::ACK, &[]);
        Ok(())
    }

    fn set_contexts(
        &mut self,
        data: &[u8],
        exports: &impl Exports,
        out: &mut BytesMut,
    ) -> Result<(), Refusal> {
        // The earlier selection is over even if this one fails.
        self.allocation_of = None;
        let (name, queries) = self.meta_context(data)?;
        open(exports, name)?;
        if queries.contains(&ALLOCATION.as_bytes()) {
            self.allocation_of = Some(name.to_owned());
            put_context(out, option::SET_META_CONTEXT, ALLOCATION_ID);
        }
        put_reply(out, option::SET_META_CONTEXT, answer::ACK, &[]);
        Ok(())
    }

    /// The export's name and the queries of an option about metadata contexts.
    fn meta_context<'a>(&self, data: &'a [u8]) -> Result<(&'a str, Vec<&'a [u8]>), Refusal> {
        if !self.structured {
            let text = "metadata contexts need structured replies; ask for those first";
            return Err((answer::ERR_INVALID, text.to_owned()));
        }
        let mut rest = data;
        let name = checked_name(take_string(&mut rest)?)?;
        let count = take_u32(&mut rest)?;
        // The data bounds the queries: each takes four bytes of it.
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(take_string(&mut rest)?);
        }
        if !rest.is_empty() {
            return Err(misshapen());
        }
        Ok((name, queries))
    }
}

/// Answers `LIST`.
fn list(exports: &impl Exports, out: &mut BytesMut) -> Result<(), Refusal> {
    let start = out.len();
    for listed in exports.list() {
        let (name, description) = (listed.name.as_bytes(), clipped(&listed.description));
        if name.len() > STRING_BYTES_MAX {
            continue;
        }
        let data = [
            &(name.len() as u32).to_be_bytes(),
            name,
            description.as_bytes(),
        ];
        put_reply(out, option::LIST, answer::SERVER, &data);
        if out.len() - start > LIST_BYTES_MAX {
            out.truncate(start);
            let text = "there are more exports than a list can hold; open one by its name";
            return Err((answer::ERR_TOO_BIG, text.to_owned()));
        }
    }
    put_reply(out, option::LIST, answer::ACK, &[]);
    Ok(())
}

fn open(exports: &impl Exports, name: &str) -> Result<Export, Refusal> {
    let opened = exports.open(name).map(Export::with_valid_blocks);
    opened.map_err(|error| match error {
        OpenError::Unknown => (
            answer::ERR_UNKNOWN,
            format!("there is no export {name:?}; list the exports"),
        ),
        OpenError::Policy(text) => (answer::ERR_POLICY, text),
        OpenError::Shutdown(text) => (answer::ERR_SHUTDOWN, text),
    })
}

fn tls_required() -> Refusal {
    let text = "this server requires TLS; connect with it";
    (answer::ERR_TLS_REQD, text.to_owned())
}

fn no_data(data: &[u8]) -> Result<(), Refusal> {
    if data.is_empty() {
        return Ok(());
    }
    let text = "this option has no data; send none";
    Err((answer::ERR_INVALID, text.to_owned()))
}

fn misshapen() -> Refusal {
    let text = "the lengths within the option do not add up to its own";
    (answer::ERR_INVALID, text.to_owned())
}

fn checked_name(name: &[u8]) -> Result<&str, Refusal> {
    let invalid = |text: &str| (answer::ERR_INVALID, text.to_owned());
    if name.len() > STRING_BYTES_MAX {
        return Err(invalid("an export's name has 4096 bytes at most"));
    }
    match std::str::from_utf8(name) {
        Ok(name) if !name.contains('\0') => Ok(name),
        _ => Err(invalid("an export's name is UTF-8 without zero bytes")),
    }
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Result<&'a [u8], Refusal> {
    let (taken, left) = rest.split_at_checked(bytes).ok_or_else(misshapen)?;
    *rest = left;
    Ok(taken)
}

fn take_u16(rest: &mut &[u8]) -> Result<u16, Refusal> {
    let (taken, left) = rest.split_first_chunk().ok_or_else(misshapen)?;
    *rest = left;
    Ok(u16::from_be_bytes(*taken))
}

fn take_u32(rest: &mut &[u8]) -> Result<u32, Refusal> {
    let (taken, left) = rest.split_first_chunk().ok_or_else(misshapen)?;
    *rest = left;
    Ok(u32::from_be_bytes(*taken))
}

/// Takes a string with its length before it.
fn take_string<'a>(rest: &mut &'a [u8]) -> Result<&'a [u8], Refusal> {
    let bytes = take_u32(rest)?;
    take(rest, bytes as usize)
}

fn put_reply(out: &mut BytesMut, option: u32, kind: u32, data: &[&[u8]]) {
    let bytes: usize = data.iter().map(|part| part.len()).sum();
    out.put_u64(OPTION_REPLY_MAGIC);
    out.put_u32(option);
    out.put_u32(kind);
    out.put_u32(bytes as u32);
    for part in data {
        out.put_slice(part);
    }
}

fn put_info(out: &mut BytesMut, option: u32, kind: u16, data: &[&[u8]]) {
    let kind = kind.to_be_bytes();
    let data: Vec<&[u8]> = std::iter::once(&kind[..])
        .chain(data.iter().copied())
        .collect();
    put_reply(out, option, answer::INFO, &data);
}

fn put_context(out: &mut BytesMut, option: u32, id: u32) {
    let data = [&id.to_be_bytes()[..], ALLOCATION.as_bytes()];
    put_reply(out, option, answer::META_CONTEXT, &data);
}
