//! The HTTP client towards servers: one pool for each server, TLS only where the URL asks for it.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Uri, header::AUTHORIZATION};
use http_body_util::Full;
use hyper_rustls::{ConfigBuilderExt, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};

use super::Failure;
use crate::config::{Auth, Remote};

/// How long an idle connection is kept. Many servers close theirs after 5 s; a request that meets
/// the closing is lost, and only its sender can know whether it may be repeated.
pub(super) const POOL_IDLE: Duration = Duration::from_secs(4);

/// A pooling HTTP client.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Full<Bytes>>;

/// A client for `url`.
pub(crate) fn new(url: &Uri, connect: Duration) -> Result<HttpClient, Failure> {
    let connector = HttpsConnectorBuilder::new()
        .with_tls_config(tls(url.scheme_str() == Some("https"))?)
        .https_or_http()
        .enable_http1()
        .enable_http2()
        .wrap_connector(connector(connect));
    let client = Client::builder(TokioExecutor::new())
        .pool_idle_timeout(POOL_IDLE)
        .pool_timer(TokioTimer::new())
        .build(connector);
    Ok(client)
}

/// What opens TCP connections, each within `connect`.
pub(super) fn connector(connect: Duration) -> HttpConnector {
    let mut tcp = HttpConnector::new();
    tcp.set_connect_timeout(Some(connect));
    tcp.set_nodelay(true);
    tcp.enforce_http(false);
    tcp
}

/// TLS with the system's roots; without any roots where it is not needed.
pub(crate) fn tls(needed: bool) -> Result<ClientConfig, Failure> {
    let broken = |error: &dyn std::fmt::Display| Failure::Tls {
        reason: error.to_string(),
    };
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions()
        .map_err(|error| broken(&error))?;
    let builder = if needed {
        builder
            .with_native_roots()
            .map_err(|error| broken(&error))?
    } else {
        builder.with_root_certificates(RootCertStore::empty())
    };
    Ok(builder.with_no_client_auth())
}

/// The headers that every request to `remote` carries.
pub(crate) fn headers(remote: &Remote) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    let mut put = |name: &str, value: &str| {
        let invalid = || Failure::Header {
            name: name.to_owned(),
        };
        let header = HeaderName::try_from(name).map_err(|_| invalid())?;
        let mut value = HeaderValue::try_from(value).map_err(|_| invalid())?;
        value.set_sensitive(true);
        headers.insert(header, value);
        Ok(())
    };
    for (name, value) in &remote.headers {
        put(name, value.expose())?;
    }
    match &remote.auth {
        Auth::Bearer { token } => put(
            AUTHORIZATION.as_str(),
            &format!("Bearer {}", token.expose()),
        )?,
        Auth::Header { name, value } => put(name, value.expose())?,
        Auth::None => {}
    }
    Ok(headers)
}

/// The innermost cause of a failed request, which is what a person needs to read.
pub(crate) fn explain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
