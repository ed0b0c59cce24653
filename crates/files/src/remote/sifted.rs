//! Lists of buckets, without the keys that no path can have: the library refuses a whole page for one of them.
//!
//! A key is cut where it stops being a path: of `d/sub//c` the list says `d/sub/`. So the folder that the key lies in is still there,
//! and what is cut is a name of nothing in it.

use std::borrow::Cow;
use std::future::Future;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService,
};

use super::address;

/// The tags around keys in a list, and around their prefixes.
const TAGS: [(&str, &str); 2] = [("<Key>", "</Key>"), ("<Prefix>", "</Prefix>")];

/// The element that a list is, and the bytes in which it begins.
const TAG: &[u8] = b"ListBucketResult";
const HEAD_BYTES: usize = 4096;

/// Asks as another connector does, and cuts the keys of lists.
#[derive(Debug)]
pub struct Sifted<C>(pub C);

#[derive(Debug)]
struct SiftingClient(HttpClient);

impl<C: HttpConnector> HttpConnector for Sifted<C> {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(SiftingClient(self.0.connect(options)?)))
    }
}

/// The answer to a question for a list is something else, which the library takes for an empty one.
#[derive(Debug, thiserror::Error)]
#[error(
    "it answers with something else where a bucket's list was asked for: is the endpoint that of an object store?"
)]
struct NoBucketList;

/// True if a page says that it is a list, in whatever name space.
fn is_list_of_a_bucket(page: &[u8]) -> bool {
    let head = page.get(..HEAD_BYTES).unwrap_or(page);
    let mut parts = head.windows(TAG.len());
    parts.any(|part| part == TAG)
}

type HttpAnswer = Result<HttpResponse, HttpError>;

impl HttpService for SiftingClient {
    fn call<'a, 'b>(
        &'a self,
        ask: HttpRequest,
    ) -> Pin<Box<dyn Future<Output = HttpAnswer> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let query = ask.uri().query();
        let is_list = query.is_some_and(|query| query.contains("list-type="));
        Box::pin(async move {
            let answer = self.0.execute(ask).await?;
            if !is_list || !answer.status().is_success() {
                return Ok(answer);
            }
            let (head, body) = answer.into_parts();
            let mut page = BytesMut::new();
            let mut stream = body.bytes_stream();
            while let Some(some) = stream.next().await {
                page.extend_from_slice(&some?);
            }
            let page = page.freeze();
            if !is_list_of_a_bucket(&page) {
                return Err(HttpError::new(HttpErrorKind::Unknown, NoBucketList));
            }
            Ok(HttpResponse::from_parts(head, sifted(page).into()))
        })
    }
}

/// A page of a list with its keys cut.
fn sifted(page: Bytes) -> Bytes {
    let Ok(text) = std::str::from_utf8(&page) else {
        return page; // no list
    };
    let cut = TAGS.iter().fold(Cow::Borrowed(text), |text, tag| {
        cut_between(*tag, &text).map_or(text, Cow::Owned)
    });
    match cut {
        Cow::Borrowed(_) => page,
        Cow::Owned(text) => text.into(),
    }
}

/// With all keys between two tags cut, if there is anything to cut. In XML no text has a `<` in it.
fn cut_between((open, close): (&str, &str), text: &str) -> Option<String> {
    let mut done = String::new();
    let mut taken = 0;
    for (at, _) in text.match_indices(open) {
        let from = at + open.len();
        let len = text[from..].find(close)?;
        let kept = kept(&text[from..from + len]).len();
        if kept < len {
            done.push_str(&text[taken..from + kept]);
            taken = from + len;
        }
    }
    (taken > 0).then(|| done + &text[taken..])
}

/// The part of a key, as XML has it, that is a path.
fn kept(key: &str) -> &str {
    let mut end = 0;
    for part in key.split_inclusive('/') {
        let name = part.strip_suffix('/').unwrap_or(part);
        if !address::is_plain(&resolved(name)) {
            return &key[..end];
        }
        end += part.len();
    }
    key
}

/// With the characters that numbers stand for. One that is none counts as a control character.
fn resolved(text: &str) -> Cow<'_, str> {
    let mut parts = text.split("&#");
    let first = parts.next().unwrap_or_default();
    if first.len() == text.len() {
        return Cow::Borrowed(text);
    }
    let mut plain = first.to_owned();
    for part in parts {
        let (number, rest) = part.split_once(';').unwrap_or((part, ""));
        let code = match number.strip_prefix('x') {
            Some(digits) => u32::from_str_radix(digits, 16),
            None => number.parse(),
        };
        plain.push(code.ok().and_then(char::from_u32).unwrap_or_default());
        plain.push_str(rest);
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_cut_where_it_stops_being_a_path() {
        for (key, path) in [
            ("d/a", "d/a"),
            ("d/sub/", "d/sub/"),
            ("a &amp; b/&#252;/..c/d.", "a &amp; b/&#252;/..c/d."),
            ("d/sub//c", "d/sub/"),
            ("d/sub//", "d/sub/"),
            ("d/../c", "d/"),
            ("d/sub/.", "d/sub/"),
            ("/c", ""),
            ("../", ""),
            ("d/ctrl\u{1}x", "d/"),
            ("d/ctrl&#x1;x/c", "d/"),
            ("d/ctrl&#127;", "d/"),
            ("d/nul&#0;", "d/"),
            ("d/none&#xD800;", "d/"),
            ("d/&#46;&#x2E;/c", "d/"),
        ] {
            assert_eq!(kept(key), path, "{key:?}");
        }
    }

    #[test]
    fn only_what_is_cut_is_changed() {
        let page = "<R><Prefix>d/</Prefix><Contents><Key>d//b</Key><Size>1</Size></Contents><Contents><Key>d/a</Key></Contents><CommonPrefixes><Prefix>d//</Prefix></CommonPrefixes></R>";
        let cut = "<R><Prefix>d/</Prefix><Contents><Key>d/</Key><Size>1</Size></Contents><Contents><Key>d/a</Key></Contents><CommonPrefixes><Prefix>d/</Prefix></CommonPrefixes></R>";
        assert_eq!(sifted(Bytes::from(page)), cut);
        for same in ["", "<Key>d//b", "<Key/><Prefix/>", cut] {
            assert_eq!(sifted(Bytes::from(same)), same);
        }
        assert_eq!(
            sifted(Bytes::from_static(b"<Key>\xff</Key>")),
            b"<Key>\xff</Key>"[..]
        );
    }
}
