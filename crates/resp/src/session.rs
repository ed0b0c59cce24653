//! The state that a connection has negotiated, and the commands that are answered on the spot.

use std::time::Duration;

use super::cluster;
use super::command_docs;
use super::facts::{Brief, ClientFacts, ServerInfo};
use super::info;
use super::output::{Output, Protocol};
use super::parse::{Args, integer};
use super::subcommand::{help, subcommand};
use super::table::CommandName;

/// The fate of the connection after an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum After {
    /// It goes on.
    Open,
    /// It is closed once the answer is written (QUIT).
    Close,
}

/// The state of one connection.
///
/// Commands change it in the order in which they are read. An answer that comes later (the driver waits
/// for other nodes) is written in the protocol that held when its command was read: the driver keeps
/// [`Session::protocol`] of that moment beside the [`Join`](super::Join).
#[derive(Debug)]
pub struct Session {
    me: ClientFacts,
    protocol: Protocol,
}

impl Session {
    /// A new connection: its number, its two ends, and the node's uptime.
    pub fn new(id: u64, addr: String, local_addr: String, uptime: Duration) -> Session {
        let me = ClientFacts {
            id,
            addr,
            local_addr,
            protocol: 2,
            connected: uptime,
            ..ClientFacts::default()
        };
        Session {
            me,
            protocol: Protocol::Resp2,
        }
    }

    /// The protocol that the client asked for.
    #[inline]
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// The connection as CLIENT LIST shows it.
    pub fn client(&self) -> &ClientFacts {
        &self.me
    }

    /// Answers a [`Command::Local`](super::Command::Local).
    pub fn answer(
        &mut self,
        name: CommandName,
        args: Args<'_>,
        server: &impl ServerInfo,
        out: &mut Output,
    ) -> After {
        match name {
            CommandName::Ping => ping(args, out),
            CommandName::Echo => out.bulk(args.at(1)),
            CommandName::Hello => self.hello(args, server.brief(), out),
            CommandName::Auth => out.error(NO_AUTH),
            CommandName::Select => select(args, out),
            CommandName::Asking | CommandName::ReadOnly | CommandName::ReadWrite => out.ok(),
            CommandName::Reset => self.reset(out),
            CommandName::Time => time(server.brief().unix_time, out),
            CommandName::Info => out.text(self.protocol, &info::info(args, &server.facts())),
            CommandName::Command => command_docs::command(args, self.protocol, out),
            CommandName::Client => self.client_command(args, server, out),
            CommandName::Config => config(args, self.protocol, server, out),
            CommandName::Cluster => cluster::answer(args, self.protocol, || server.facts(), out),
            CommandName::Quit => {
                out.ok();
                return After::Close;
            }
            // Data commands never come here; `command.rs` makes operations of them.
            other => out.error(&format!("ERR {other:?} is not answered on the spot")),
        }
        After::Open
    }

    /// `HELLO [version [AUTH user password] [SETNAME name]]`: all of it or nothing.
    fn hello(&mut self, args: Args<'_>, brief: Brief, out: &mut Output) {
        let (protocol, name) = match self.hello_wish(args) {
            Ok(wish) => wish,
            Err(refusal) => return out.error(&refusal),
        };
        self.set_protocol(protocol);
        if let Some(name) = name {
            self.me.name = name;
        }
        out.map(protocol, 7);
        let texts = [("server", "redis"), ("version", info::REDIS_VERSION)];
        for (key, value) in texts {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        }
        out.bulk(b"proto");
        out.integer(i64::from(self.me.protocol));
        out.bulk(b"id");
        out.integer(self.me.id as i64);
        for (key, value) in [("mode", brief.redirect.mode()), ("role", "master")] {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        }
        out.bulk(b"modules");
        out.array(1);
        out.map(protocol, 2);
        for (key, value) in [("name", "staves"), ("ver", brief.version)] {
            out.bulk(key.as_bytes());
            out.bulk(value.as_bytes());
        }
    }

    fn hello_wish(&self, args: Args<'_>) -> Result<(Protocol, Option<String>), String> {
        let protocol = match args.get(1).map(integer) {
            None => self.protocol,
            Some(None) => {
                return Err("ERR Protocol version is not an integer or out of range".into());
            }
            Some(Some(2)) => Protocol::Resp2,
            Some(Some(3)) => Protocol::Resp3,
            Some(Some(_)) => return Err("NOPROTO unsupported protocol version".into()),
        };
        let mut name = None;
        let mut options = args.iter_from(2);
        while let Some(option) = options.next() {
            if option.eq_ignore_ascii_case(b"auth") && options.len() >= 2 {
                return Err(NO_AUTH.into());
            } else if option.eq_ignore_ascii_case(b"setname")
                && let Some(text) = options.next()
            {
                name = Some(client_name(text)?);
            } else {
                let option = String::from_utf8_lossy(option);
                return Err(format!("ERR Syntax error in HELLO option '{option}'"));
            }
        }
        Ok((protocol, name))
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
        self.me.protocol = if protocol == Protocol::Resp3 { 3 } else { 2 };
    }

    fn reset(&mut self, out: &mut Output) {
        self.set_protocol(Protocol::Resp2);
        self.me.name.clear();
        out.simple("RESET");
    }

    fn client_command(&mut self, args: Args<'_>, server: &impl ServerInfo, out: &mut Output) {
        let protocol = self.protocol;
        match subcommand(args).as_str() {
            "id" => out.integer(self.me.id as i64),
            "getname" if self.me.name.is_empty() => out.nil(protocol),
            "getname" => out.bulk(self.me.name.as_bytes()),
            "setname" => match client_name(args.at(2)) {
                Ok(name) => {
                    self.me.name = name;
                    out.ok();
                }
                Err(refusal) => out.error(&refusal),
            },
            "setinfo" => self.set_info(args, out),
            "info" => out.text(protocol, &self.me.line(server.brief().uptime)),
            "list" if args.len() > 2 => out.error("ERR syntax error"),
            "list" => {
                let (all, uptime) = (server.clients(), server.brief().uptime);
                let others = all.iter().filter(|c| c.id != self.me.id);
                let lines = others.chain([&self.me]).map(|c| c.line(uptime));
                out.text(protocol, &lines.collect::<String>());
            }
            "no-evict" | "no-touch" => match args.at(2).to_ascii_lowercase().as_slice() {
                b"on" | b"off" => out.ok(),
                _ => out.error("ERR syntax error"),
            },
            "reply" => match args.at(2).to_ascii_lowercase().as_slice() {
                b"on" => out.ok(),
                b"off" | b"skip" => out.error(
                    "ERR CLIENT REPLY OFF and SKIP are not supported: every command is answered",
                ),
                _ => out.error("ERR syntax error"),
            },
            _ => help("client", out),
        }
    }

    fn set_info(&mut self, args: Args<'_>, out: &mut Output) {
        let value = args.at(3);
        let option = || String::from_utf8_lossy(args.at(2)).to_ascii_lowercase();
        if value.len() > NAME_BYTES_MAX {
            let option = option();
            return out.error(&format!(
                "ERR {option} has at most {NAME_BYTES_MAX} bytes here."
            ));
        }
        if !is_name(value) {
            let option = option();
            return out.error(&format!(
                "ERR {option} cannot contain spaces, newlines or special characters."
            ));
        }
        let value = String::from_utf8_lossy(value).into_owned();
        match args.at(2).to_ascii_lowercase().as_slice() {
            b"lib-name" => self.me.library = value,
            b"lib-ver" => self.me.library_version = value,
            other => {
                let other = String::from_utf8_lossy(other);
                return out.error(&format!("ERR Unrecognized option '{other}'"));
            }
        }
        out.ok();
    }
}

const NO_AUTH: &str =
    "ERR AUTH is called although this cluster takes no credentials yet: connect without a password";

/// Longest name that a client may give itself, in bytes.
const NAME_BYTES_MAX: usize = 256;

fn is_name(text: &[u8]) -> bool {
    text.iter().all(u8::is_ascii_graphic)
}

fn client_name(text: &[u8]) -> Result<String, String> {
    if text.len() > NAME_BYTES_MAX {
        return Err(format!(
            "ERR Client names have at most {NAME_BYTES_MAX} bytes here."
        ));
    }
    if !is_name(text) {
        return Err(
            "ERR Client names cannot contain spaces, newlines or special characters.".into(),
        );
    }
    Ok(String::from_utf8_lossy(text).into_owned())
}

fn ping(args: Args<'_>, out: &mut Output) {
    match args.len() {
        1 => out.simple("PONG"),
        2 => out.bulk(args.at(1)),
        _ => out.error("ERR wrong number of arguments for 'ping' command"),
    }
}

fn select(args: Args<'_>, out: &mut Output) {
    match integer(args.at(1)) {
        Some(0) => out.ok(),
        Some(_) => out.error("ERR DB index is out of range: there is database 0 and no other; keep applications apart by prefixes of their keys"),
        None => out.error("ERR value is not an integer or out of range"),
    }
}

fn time(unix_time: Duration, out: &mut Output) {
    out.array(2);
    out.bulk(unix_time.as_secs().to_string().as_bytes());
    out.bulk(unix_time.subsec_micros().to_string().as_bytes());
}

fn config(args: Args<'_>, protocol: Protocol, server: &impl ServerInfo, out: &mut Output) {
    match subcommand(args).as_str() {
        "get" => {
            let options = info::config_options(&server.facts());
            let wanted = |name: &str| {
                args.iter_from(2).any(|pattern| glob(&pattern.to_ascii_lowercase(), name.as_bytes()))
            };
            let found: Vec<_> = options.iter().filter(|(name, _)| wanted(name)).collect();
            out.map(protocol, found.len());
            for (name, value) in found {
                out.bulk(name.as_bytes());
                out.bulk(value.as_bytes());
            }
        }
        "set" => out.error(
            "ERR CONFIG SET is not supported: options are set in the configuration file, by STAVES_* \
             variables or by the flags of 'staves up'; pools by 'staves pool set'",
        ),
        "resetstat" => out.ok(),
        _ => help("config", out),
    }
}

/// Patterns as in CONFIG GET: `*` any run, `?` any byte; the rest stands for itself. Never recursive:
/// a stranger's pattern must not cost more than its length times the text's.
fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(b) if *b == b'?' || *b == text[t] => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    star = Some((at, from + 1));
                    p = at + 1;
                    t = from + 1;
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn patterns_match_as_in_config_get() {
        for (pattern, text) in [
            ("*", ""),
            ("*", "x"),
            ("max*", "maxmemory"),
            ("*mem?ry*", "maxmemory-policy"),
            ("a*b*c", "aXbYbc"),
        ] {
            assert!(
                glob(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
        for (pattern, text) in [
            ("", "x"),
            ("max", "maxmemory"),
            ("*x", "xy"),
            ("a?", "a"),
            ("a*b*c", "aXbY"),
        ] {
            assert!(
                !glob(pattern.as_bytes(), text.as_bytes()),
                "{pattern} {text}"
            );
        }
    }

    #[test]
    fn a_hostile_pattern_is_cheap() {
        assert!(!glob(
            "*a".repeat(5_000).as_bytes(),
            "a".repeat(4_000).as_bytes()
        ));
    }
}
