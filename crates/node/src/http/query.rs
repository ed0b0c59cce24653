//! Paths and queries, taken apart.

use std::time::Duration;

use tokio::time::Instant;

use super::answers::HttpError;
use crate::log_gateway::{LogTarget, REQUEST_MAX};

/// Text of a path or a query without its percent signs.
pub(super) fn decoded(what: &str, text: &str) -> Result<String, HttpError> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, behind)) = rest.split_first() {
        rest = behind;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digit = |at: usize| rest.get(at).and_then(|d| char::from(*d).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            let text = format!("{what} has a '%' without two hexadecimal digits behind it");
            return Err(HttpError::malformed(text));
        };
        bytes.push((high * 16 + low) as u8);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).map_err(|_| HttpError::malformed(format!("{what} is no UTF-8")))
}

/// The settings of a request's query.
#[derive(Default, Debug)]
pub(super) struct QueryPairs(Vec<(String, String)>);

impl QueryPairs {
    /// Of a query whose keys are all of `known`, each once at most.
    pub(super) fn parse(query: Option<&str>, known: &[&str]) -> Result<QueryPairs, HttpError> {
        let mut pairs: Vec<(String, String)> = Vec::new();
        let parts = query.unwrap_or_default().split('&');
        for part in parts.filter(|part| !part.is_empty()) {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let key = decoded("a key of the query", key)?;
            let value = decoded("a value of the query", &value.replace('+', " "))?;
            if !known.contains(&key.as_str()) {
                let key: String = key.chars().take(40).collect();
                let text = match known {
                    [] => format!("there is no '{key}' here: this request has no query"),
                    known => format!("there is no '{key}' here: there are {}", known.join(", ")),
                };
                return Err(HttpError::malformed(text));
            }
            if pairs.iter().any(|(other, _)| *other == key) {
                return Err(HttpError::malformed(format!("'{key}' is there twice")));
            }
            pairs.push((key, value));
        }
        Ok(QueryPairs(pairs))
    }

    pub(super) fn text(&self, key: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(name, _)| name == key);
        pair.map(|(_, value)| value.as_str())
    }

    /// A whole number that is not negative.
    pub(super) fn number(&self, key: &str) -> Result<Option<u64>, HttpError> {
        self.text(key).map(|text| whole(key, text)).transpose()
    }

    /// Whole numbers with commas between them; none without the key.
    pub(super) fn numbers(&self, key: &str) -> Result<Vec<u64>, HttpError> {
        let Some(text) = self.text(key) else {
            return Ok(Vec::new());
        };
        text.split(',').map(|text| whole(key, text)).collect()
    }

    /// A setting that is there or not: by its key alone, or as true or false.
    pub(super) fn flag(&self, key: &str) -> Result<bool, HttpError> {
        match self.text(key) {
            None | Some("false") => Ok(false),
            Some("" | "true") => Ok(true),
            Some(_) => {
                let text = format!("{key} is true or false, or stands alone");
                Err(HttpError::malformed(text))
            }
        }
    }

    /// A whole number from 1 to a most, which it is by default.
    pub(super) fn count(&self, key: &str, most: usize) -> Result<usize, HttpError> {
        match self.number(key)? {
            None => Ok(most),
            Some(count) if (1..=most as u64).contains(&count) => Ok(count as usize),
            Some(count) => {
                let text = format!("{key} is {count}: it is from 1 to {most}");
                Err(HttpError::malformed(text))
            }
        }
    }

    /// The log of this name, in the pool that the query names.
    pub(super) fn target(&self, name: String) -> LogTarget {
        LogTarget {
            name,
            pool: self.text("pool").map(str::to_owned),
        }
    }

    /// The end of the request's time.
    pub(super) fn until(&self) -> Result<Instant, HttpError> {
        let ms = self.count("timeout_ms", REQUEST_MAX.as_millis() as usize)?;
        Ok(Instant::now() + Duration::from_millis(ms as u64))
    }
}

fn whole(key: &str, text: &str) -> Result<u64, HttpError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|_| is_number);
    number.ok_or_else(|| {
        let shown: String = text.chars().take(40).collect();
        let text = format!("{key} is a whole number from 0 to 2^64 - 1, and not '{shown}'");
        HttpError::malformed(text)
    })
}
