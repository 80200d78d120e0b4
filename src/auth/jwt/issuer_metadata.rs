//! The metadata of an issuer (RFC 8414): fetched for its keys, and kept for clients that look for them here.

use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use serde_json::{Map, Value};
use tokio::{sync::Mutex as TurnLock, time::Instant};
use url::Url;

use super::issuer_quirks::{is_metadata_issuer, without_slash};
use crate::{
    config::{AuthMethod, Config},
    egress::{EgressClient, EgressError},
};

/// How old metadata may be before they are fetched again.
const AGE_MAX: Duration = Duration::from_secs(60 * 60);

/// Pause after a fetch that failed.
const RETRY_PAUSE: Duration = Duration::from_secs(10);

/// Members that clients need.
const NEEDED_MEMBERS: [&str; 2] = ["authorization_endpoint", "token_endpoint"];

/// Why metadata cannot be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum MetadataUnavailable {
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("{0}: not a JSON object of the kind expected")]
    Malformed(Url),
    #[error("{0} is the metadata of another issuer: {1}")]
    OtherIssuer(Url, String),
    #[error("{0}: HTTP {1}")]
    Status(Url, StatusCode),
    #[error("{0} is not a URL")]
    Url(String),
}

/// The metadata of the external issuer, for clients of 2025-03-26, which look for them at the origin of the gateway.
#[derive(Debug)]
pub struct ExternalMetadata {
    issuer: String,
    egress: EgressClient,
    /// Who fetches; others wait for it.
    cached: TurnLock<CachedMetadata>,
}

#[derive(Debug, Default)]
struct CachedMetadata {
    document: Option<Bytes>,
    good_until: Option<Instant>,
}

impl ExternalMetadata {
    /// That of the issuer of `config`, where tokens are not issued here.
    pub fn new(config: &Config) -> Option<Self> {
        let issuer = config.oauth.external_issuer();
        let issuer = issuer.filter(|_| config.governance.auth.allows(AuthMethod::Oauth))?;
        let url = Url::parse(issuer).ok()?;
        let egress = EgressClient::new(&config.egress, [&url]);
        let egress = egress.inspect_err(
            |error| tracing::error!(%error, "the metadata of the issuer cannot be fetched"),
        );
        Some(Self {
            issuer: issuer.to_owned(),
            egress: egress.ok()?,
            cached: TurnLock::default(),
        })
    }

    /// The metadata, as the issuer has them; the last ones while it cannot be reached.
    pub async fn document(&self) -> Option<Bytes> {
        let mut cached = self.cached.lock().await;
        if cached
            .good_until
            .is_none_or(|until| Instant::now() >= until)
        {
            let fetched = fetch_metadata(&self.issuer, &self.egress, &NEEDED_MEMBERS).await;
            let pause = match fetched {
                Ok((_, document)) => {
                    cached.document = Some(Value::Object(document).to_string().into());
                    AGE_MAX
                }
                Err(why) => {
                    let (issuer, kept) = (&self.issuer, cached.document.is_some());
                    tracing::warn!(
                        issuer,
                        kept,
                        "the metadata of an issuer cannot be fetched: {why}"
                    );
                    RETRY_PAUSE
                }
            };
            cached.good_until = Some(Instant::now() + pause);
        }
        cached.document.clone()
    }
}

/// The metadata of `issuer`, which have the `needed` members, and where they are.
pub(super) async fn fetch_metadata(
    issuer: &str,
    egress: &EgressClient,
    needed: &[&str],
) -> Result<(Url, Map<String, Value>), MetadataUnavailable> {
    let mut failure = None;
    for url in metadata_urls(issuer)? {
        match metadata_at(&url, (issuer, egress), needed).await {
            Ok(document) => return Ok((url, document)),
            Err(why) => failure = Some(failure.unwrap_or(why)),
        }
    }
    Err(failure.unwrap_or_else(|| MetadataUnavailable::Url(issuer.to_owned())))
}

async fn metadata_at(
    url: &Url,
    (wanted, egress): (&str, &EgressClient),
    needed: &[&str],
) -> Result<Map<String, Value>, MetadataUnavailable> {
    let document = get_object(url, egress).await?;
    let text = |name: &str| document.get(name).and_then(Value::as_str);
    let issuer = text("issuer").filter(|_| needed.iter().all(|name| text(name).is_some()));
    let Some(issuer) = issuer else {
        return Err(MetadataUnavailable::Malformed(url.clone()));
    };
    if !is_metadata_issuer(wanted, issuer) {
        return Err(MetadataUnavailable::OtherIssuer(
            url.clone(),
            issuer.to_owned(),
        ));
    }
    Ok(document)
}

/// The JSON object at `url`.
pub(super) async fn get_object(
    url: &Url,
    egress: &EgressClient,
) -> Result<Map<String, Value>, MetadataUnavailable> {
    let response = egress.get(url).await?;
    if response.status() != StatusCode::OK {
        return Err(MetadataUnavailable::Status(url.clone(), response.status()));
    }
    let document = serde_json::from_slice(response.body());
    document.map_err(|_| MetadataUnavailable::Malformed(url.clone()))
}

pub(super) fn parse_url(url: &str) -> Result<Url, MetadataUnavailable> {
    Url::parse(url).map_err(|_| MetadataUnavailable::Url(url.to_owned()))
}

/// Where the metadata of an issuer may be, in the order of the specification: of OAuth with the path of the issuer
/// behind, of OpenID Connect the same, and of OpenID Connect below the issuer (RFC 8414, section 3.1).
fn metadata_urls(issuer: &str) -> Result<Vec<Url>, MetadataUnavailable> {
    let issuer = parse_url(without_slash(issuer))?;
    let path = without_slash(issuer.path()).to_owned();
    let at = |path: String| {
        let mut url = issuer.clone();
        url.set_path(&path);
        url
    };
    let oauth = at(format!("/.well-known/oauth-authorization-server{path}"));
    let oidc = at(format!("{path}/.well-known/openid-configuration"));
    Ok(if path.is_empty() {
        vec![oauth, oidc]
    } else {
        let inserted = at(format!("/.well-known/openid-configuration{path}"));
        vec![oauth, inserted, oidc]
    })
}
