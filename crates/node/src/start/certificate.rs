//! The certificate of a configuration.

use std::sync::Arc;

use super::StartError;
use crate::config::Config;
use crate::tls::{Tls, TlsFiles};

/// TLS with the certificate of the configuration, if it has one.
pub(crate) fn certificate(config: &Config) -> Result<Option<Arc<Tls>>, StartError> {
    let (Some(cert), Some(key)) = (&config.tls_cert, &config.tls_key) else {
        return Ok(None);
    };
    let client_ca = config.tls_client_ca.as_deref();
    let files = TlsFiles {
        cert,
        key,
        client_ca,
    };
    Ok(Some(Arc::new(Tls::load(&files)?)))
}
