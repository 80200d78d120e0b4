//! Requests to URLs that the gateway learns from others: metadata and keys of OAuth issuers, metadata of clients.
//!
//! Whoever names such a URL could name one that only this machine can reach. So [`EgressRules`] decide about each
//! URL, about each address that a name is resolved to, and again after each redirect; responses are bounded in
//! size and time.

mod rules;

use std::{error::Error, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Method, Request, Response, StatusCode, Uri,
    header::{AUTHORIZATION, COOKIE, LOCATION, PROXY_AUTHORIZATION},
};
use reqwest::{
    Client, Proxy,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect::Policy,
};
use rmcp::transport::auth::{
    OAuthHttpClient, OAuthHttpClientFuture, OAuthHttpRedirectPolicy, OAuthHttpRequest,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use url::Url;

pub use self::rules::{EgressRefused, EgressRules};
use crate::config::Egress;

/// Redirects that are followed for one request.
const REDIRECTS_MAX: usize = 3;

/// Headers that go to no other origin.
const CREDENTIAL_HEADERS: [HeaderName; 3] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION];

/// Makes requests within [`EgressRules`].
#[derive(Clone, Debug)]
pub struct EgressClient {
    client: Client,
    rules: Arc<EgressRules>,
    response_max: usize,
    timeout: Duration,
}

/// Why a request has no response.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The client could not be made.
    #[error("TLS cannot be used: {0}")]
    Client(String),
    /// Nobody answered.
    #[error("{url}: {reason}")]
    Failed {
        /// What was asked for, without its query.
        url: String,
        /// The innermost cause.
        reason: String,
    },
    /// It led on and on.
    #[error("{0}: more than {REDIRECTS_MAX} redirects")]
    Redirects(String),
    /// It leads where the gateway does not go.
    #[error("{url}: {why}")]
    Refused {
        /// What was asked for, without its query.
        url: String,
        /// Why not.
        why: EgressRefused,
    },
    /// It took too long.
    #[error("{url}: no response within {limit:?} (egress.timeout)")]
    Timeout {
        /// What was asked for, without its query.
        url: String,
        /// The time.
        limit: Duration,
    },
    /// There is more of it than is read.
    #[error("{url}: the response has more than {limit} bytes (egress.response)")]
    TooLarge {
        /// What was asked for, without its query.
        url: String,
        /// The size.
        limit: usize,
    },
}

impl EgressClient {
    /// A client by `config`. The operator wrote the URLs `written`, whose hosts may be private therefore.
    ///
    /// # Errors
    /// [`EgressError::Client`].
    pub fn new<'u>(
        config: &Egress,
        written: impl IntoIterator<Item = &'u Url>,
    ) -> Result<Self, EgressError> {
        let rules = Arc::new(EgressRules::new(config).with_written(written));
        let proxies = config.proxies.clone();
        let proxy = Proxy::custom(move |url| {
            let url: Uri = url.as_str().parse().ok()?;
            let found = proxies.proxy_url(&url)?;
            Some(found.expose().to_owned())
        });
        let client = Client::builder()
            .redirect(Policy::none())
            .no_proxy()
            .proxy(proxy)
            .dns_resolver(Arc::new(EgressResolver {
                rules: Arc::clone(&rules),
                proxies: config.proxies.hosts(),
            }))
            .tls_backend_preconfigured(tls_config()?)
            .user_agent(concat!("tollbridge/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| EgressError::Client(root_cause(&error)))?;
        Ok(Self {
            client,
            rules,
            response_max: config.response,
            timeout: config.timeout,
        })
    }

    /// What it may reach.
    pub fn rules(&self) -> &EgressRules {
        &self.rules
    }

    /// Sends `request`, whose URI is absolute. A GET is redirected at most three times, and takes no
    /// credentials to another origin; nothing else is redirected.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn fetch(&self, request: Request<Vec<u8>>) -> Result<Response<Bytes>, EgressError> {
        let follows = *request.method() == Method::GET;
        self.fetch_within_limits(request, follows).await
    }

    async fn fetch_within_limits(
        &self,
        request: Request<Vec<u8>>,
        follows: bool,
    ) -> Result<Response<Bytes>, EgressError> {
        let url = shown(request.uri());
        let fetching = self.follow(request, follows);
        match tokio::time::timeout(self.timeout, fetching).await {
            Ok(response) => response,
            Err(_) => Err(EgressError::Timeout {
                url,
                limit: self.timeout,
            }),
        }
    }

    /// As [`EgressClient::fetch`], but a redirect is the response.
    ///
    /// # Errors
    /// Why there is no response.
    pub async fn fetch_unredirected(
        &self,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Bytes>, EgressError> {
        self.fetch_within_limits(request, false).await
    }

    /// A GET of `url`.
    ///
    /// # Errors
    /// As [`EgressClient::fetch`].
    pub async fn get(&self, url: &Url) -> Result<Response<Bytes>, EgressError> {
        let mut request = Request::new(Vec::new());
        *request.uri_mut() = to_uri(url)?;
        self.fetch(request).await
    }

    async fn follow(
        &self,
        mut request: Request<Vec<u8>>,
        follows: bool,
    ) -> Result<Response<Bytes>, EgressError> {
        let first = shown(request.uri());
        for _ in 0..=REDIRECTS_MAX {
            let url = Url::parse(&request.uri().to_string());
            let url = url.map_err(|_| EgressError::Refused {
                url: shown(request.uri()),
                why: EgressRefused::Scheme,
            })?;
            let response = self.send(&url, request.clone()).await?;
            let Some(next) = redirect_target(&url, &response).filter(|_| follows) else {
                return Ok(response);
            };
            if next.origin() != url.origin() {
                for name in CREDENTIAL_HEADERS {
                    request.headers_mut().remove(name);
                }
            }
            *request.uri_mut() = to_uri(&next)?;
        }
        Err(EgressError::Redirects(first))
    }

    async fn send(
        &self,
        url: &Url,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Bytes>, EgressError> {
        let shown = shown(request.uri());
        let checked = self.rules.check_url(url);
        checked.map_err(|why| EgressError::Refused {
            url: shown.clone(),
            why,
        })?;
        let failed = |error: reqwest::Error| EgressError::Failed {
            url: shown.clone(),
            reason: root_cause(&error),
        };
        let request = reqwest::Request::try_from(request).map_err(failed)?;
        let mut response = self.client.execute(request).await.map_err(failed)?;
        let mut head = Response::new(());
        *head.status_mut() = response.status();
        *head.headers_mut() = std::mem::take(response.headers_mut());
        let mut body = Vec::new();
        while let Some(part) = response.chunk().await.map_err(failed)? {
            if body.len() + part.len() > self.response_max {
                return Err(EgressError::TooLarge {
                    url: shown,
                    limit: self.response_max,
                });
            }
            body.extend_from_slice(&part);
        }
        Ok(head.map(|()| body.into()))
    }
}

/// Requests of the OAuth client library.
impl OAuthHttpClient for EgressClient {
    fn execute(&self, request: OAuthHttpRequest) -> OAuthHttpClientFuture<'_> {
        Box::pin(async move {
            let follows = matches!(request.redirect_policy, OAuthHttpRedirectPolicy::Follow);
            let response = self.fetch_within_limits(request.request, follows).await?;
            Ok(response.map(|body| body.to_vec()))
        })
    }
}

/// Where `response` to a request for `url` leads on.
fn redirect_target(url: &Url, response: &Response<Bytes>) -> Option<Url> {
    let leads_on = matches!(
        response.status(),
        StatusCode::MOVED_PERMANENTLY
            | StatusCode::FOUND
            | StatusCode::SEE_OTHER
            | StatusCode::TEMPORARY_REDIRECT
            | StatusCode::PERMANENT_REDIRECT
    );
    let location: Option<&HeaderValue> = response.headers().get(LOCATION);
    let location = location.filter(|_| leads_on)?.to_str().ok()?;
    url.join(location).ok()
}

/// Resolves names, and leaves out the addresses that may not be reached.
#[derive(Debug)]
struct EgressResolver {
    rules: Arc<EgressRules>,
    /// Hosts of proxies, which the operator chose.
    proxies: Vec<String>,
}

impl Resolve for EgressResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (rules, host) = (Arc::clone(&self.rules), name.as_str().to_owned());
        let is_proxy = self.proxies.contains(&host);
        Box::pin(async move {
            let found = tokio::net::lookup_host((host.as_str(), 0)).await?;
            let (mut allowed, mut refused) = (Vec::<SocketAddr>::new(), None);
            for address in found {
                match rules.check_address(&host, address.ip()) {
                    Err(why) if !is_proxy => refused = Some(why),
                    Ok(()) | Err(_) => allowed.push(address),
                }
            }
            if let (true, Some(why)) = (allowed.is_empty(), refused) {
                return Err(io::Error::other(why).into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

/// Certificates are verified with the CAs of the system, or with the file in `SSL_CERT_FILE`.
fn tls_config() -> Result<ClientConfig, EgressError> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    let builder = ClientConfig::builder_with_provider(ring::default_provider().into())
        .with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| EgressError::Client(error.to_string()))?;
    Ok(builder.with_root_certificates(roots).with_no_client_auth())
}

fn to_uri(url: &Url) -> Result<Uri, EgressError> {
    url.as_str().parse().map_err(|_| EgressError::Refused {
        url: url.host_str().unwrap_or_default().to_owned(),
        why: EgressRefused::Scheme,
    })
}

/// A URL as errors show it: a query may have a secret in it.
fn shown(uri: &Uri) -> String {
    let scheme = uri.scheme_str().unwrap_or_default();
    let host = uri.host().unwrap_or_default();
    let port = uri.port().map_or(String::new(), |port| format!(":{port}"));
    format!("{scheme}://{host}{port}{}", uri.path())
}

fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

#[cfg(test)]
mod tests;
