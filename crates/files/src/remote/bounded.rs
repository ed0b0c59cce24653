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
/// Bytes of one answer that lists names: a WebDAV server sends a folder's all at once, some 700 bytes each.
const LIST_BYTES_MAX: usize = 64 << 20;
/// Lists that a process asks for at a time.
pub const LISTS_AT_ONCE: usize = 4;

/// A list is longer than it may be.
#[derive(Debug, thiserror::Error)]
#[error(
    "what it says of this folder is longer than {} MiB: spread its files over folders below it, or give a manifest",
    LIST_BYTES_MAX >> 20
)]
pub struct TooLong;

/// A WebDAV server has no folder of that name. The library takes that for an empty one.
#[derive(Debug, thiserror::Error)]
#[error("there is no such folder")]
struct NoFolder;

/// Asks servers, and takes no more of a list than that.
#[derive(Debug)]
pub struct Bounded;

#[derive(Debug)]
struct Client(HttpClient);

impl HttpConnector for Bounded {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let plain = ReqwestConnector::default().connect(options)?;
        Ok(HttpClient::new(Client(plain)))
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
            let answer = self.0.execute(ask).await?;
            if !is_list {
                return Ok(answer); // who asks takes what it wants of it
            }
            if is_of_folder && answer.status().as_u16() == 404 {
                return Err(HttpError::new(HttpErrorKind::Unknown, NoFolder));
            }
            let (head, body) = answer.into_parts();
            let length = head.headers.get("content-length");
            let length = length.and_then(|text| text.to_str().ok()?.parse::<usize>().ok());
            if length.is_some_and(|length| length > LIST_BYTES_MAX) {
                return Err(too_long());
            }
            let body = whole(body, LIST_BYTES_MAX).await?;
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
            return Err(too_long());
        }
        bytes.extend_from_slice(&some);
    }
    Ok(bytes.freeze())
}

fn too_long() -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, TooLong)
}

/// True if an answer failed because it was too long.
pub fn is_too_long(error: &(dyn std::error::Error + 'static)) -> bool {
    error.is::<TooLong>() || error.source().is_some_and(is_too_long)
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
        assert!(is_too_long(&error), "{error}");
    }
}
