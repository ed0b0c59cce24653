//! Bounded answers: a list is in memory as a whole, and its length is the server's choice.

use std::future::Future;
use std::pin::Pin;

use bytes::{Bytes, BytesMut};
use futures_util::StreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse,
    HttpResponseBody, HttpService, ReqwestConnector,
};

/// Names of one folder; a process takes some 500 bytes for each while it lists them.
pub const NAMES_MAX: usize = 250_000;
/// Lists that a process asks for at a time.
pub const LISTS_AT_ONCE: usize = 4;

/// A list is longer than it may be.
#[derive(Debug, thiserror::Error)]
#[error(
    "what it says of this folder is longer than {}: spread its files over folders below it, or give a manifest",
    binary(*bytes_max)
)]
pub struct TooLong {
    bytes_max: usize,
}

/// A WebDAV server has no folder of that name. The library takes that for an empty one.
#[derive(Debug, thiserror::Error)]
#[error("there is no such folder")]
struct NoFolder;

/// Asks servers, and takes no more bytes of a list than these.
#[derive(Debug)]
pub struct Bounded(pub usize);

#[derive(Debug)]
struct Client {
    plain: HttpClient,
    list_bytes_max: usize,
}

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = ReqwestConnector::default().connect(options)?;
        let list_bytes_max = self.0;
        Ok(HttpClient::new(Client {
            plain,
            list_bytes_max,
        }))
    }
}

type Answer = Result<HttpResponse, HttpError>;

impl HttpService for Client {
    fn call<'a, 'b>(&'a self, ask: HttpRequest) -> Pin<Box<dyn Future<Output = Answer> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let is_of_folder = ask.method().as_str() == "PROPFIND";
        let is_list = is_of_folder || ask.uri().query().is_some_and(|q| q.contains("list-type="));
        Box::pin(async move {
            let answer = self.plain.execute(ask).await?;
            if !is_list {
                return Ok(answer); // who asks takes what it wants of it
            }
            if is_of_folder && answer.status().as_u16() == 404 {
                return Err(HttpError::new(HttpErrorKind::Unknown, NoFolder));
            }
            let (head, body) = answer.into_parts();
            let length = head.headers.get("content-length");
            let length = length.and_then(|text| text.to_str().ok()?.parse::<usize>().ok());
            if length.is_some_and(|length| length > self.list_bytes_max) {
                return Err(too_long(self.list_bytes_max));
            }
            let body = whole(body, self.list_bytes_max).await?;
            Ok(HttpResponse::from_parts(head, body.into()))
        })
    }
}

async fn whole(body: HttpResponseBody, bytes_max: usize) -> Result<Bytes, HttpError> {
    let mut bytes = BytesMut::new();
    let mut stream = body.bytes_stream();
    while let Some(some) = stream.next().await {
        let some = some?;
        if bytes.len() + some.len() > bytes_max {
            return Err(too_long(bytes_max));
        }
        bytes.extend_from_slice(&some);
    }
    Ok(bytes.freeze())
}

fn binary(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{} KiB", bytes >> 10),
        mib => format!("{mib} MiB"),
    }
}

fn too_long(bytes_max: usize) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, TooLong { bytes_max })
}

/// The reason, if an answer failed because it was too long.
pub fn too_long_of<'a>(error: &'a (dyn std::error::Error + 'static)) -> Option<&'a TooLong> {
    let here = error.downcast_ref::<TooLong>();
    here.or_else(|| too_long_of(error.source()?))
}

/// True if a folder is not there.
pub fn is_no_folder(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<NoFolder>() || error.source().is_some_and(is_no_folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer without a stated length is bounded, too.
    #[tokio::test]
    async fn an_answer_is_taken_up_to_its_bound() {
        let body = |bytes: usize| HttpResponseBody::from(Bytes::from(vec![b'x'; bytes]));
        assert_eq!(whole(body(1000), 1000).await.unwrap().len(), 1000);
        let error = whole(body(1001), 1000).await.unwrap_err();
        assert!(too_long_of(&error).is_some(), "{error}");
    }
}
