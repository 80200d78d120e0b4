//! Clients whose `client_id` is the URL of a document about them (Client ID Metadata Documents).

use std::{collections::HashMap, sync::Mutex, time::Duration};

use http::{Request, StatusCode, header::CACHE_CONTROL};
use tokio::time::Instant;
use url::Url;

use super::client::{ClientAuth, ClientMetadata, GrantClient, InvalidClientMetadata};
use crate::{egress::EgressClient, lock::lock};

/// Documents that are kept; of more, those that are kept longest go.
const DOCUMENTS_MAX: usize = 1_000;
/// How long a document is kept that does not say so, and within what one may say so.
const KEPT_DEFAULT: Duration = Duration::from_secs(60 * 60);
const KEPT_MIN: Duration = Duration::from_secs(5 * 60);
const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// The documents that were fetched.
#[derive(Debug, Default)]
pub(super) struct DocumentCache(Mutex<HashMap<String, CachedDocument>>);

#[derive(Debug)]
struct CachedDocument {
    client: GrantClient,
    until: Instant,
}

/// Why there is no client behind a URL.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// It is no URL that clients are named by.
    #[error(
        "a client_id that is a URL has `https:`, a path, and no fragment, user or dot segments"
    )]
    Url,
    /// The config does not let clients be named by one.
    #[error("clients with a metadata document are off here: the client registers itself")]
    Off,
    /// It was not fetched.
    #[error("the client metadata document cannot be fetched: {0}")]
    Fetch(String),
    /// It is none.
    #[error("the client metadata document is not valid: {0}")]
    Invalid(String),
    /// What it says is not taken.
    #[error(transparent)]
    Metadata(#[from] InvalidClientMetadata),
}

/// Whether `client_id` names a document.
pub(super) fn is_document(client_id: &str) -> bool {
    client_id.starts_with("https://") || client_id.starts_with("http://")
}

impl DocumentCache {
    /// The client that the document at `client_id` is about.
    pub(super) async fn client(
        &self,
        client_id: &str,
        egress: &EgressClient,
    ) -> Result<GrantClient, DocumentError> {
        let now = Instant::now();
        if let Some(known) = lock(&self.0).get(client_id)
            && now < known.until
        {
            return Ok(known.client.clone());
        }
        check_url(client_id)?;
        let (client, kept) = fetch(client_id, egress).await?;
        let mut documents = lock(&self.0);
        if documents.len() >= DOCUMENTS_MAX && !documents.contains_key(client_id) {
            documents.retain(|_, known| now < known.until);
            let oldest = documents.iter().min_by_key(|(_, known)| known.until);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone())
                && documents.len() >= DOCUMENTS_MAX
            {
                documents.remove(&oldest);
            }
        }
        let known = CachedDocument {
            client: client.clone(),
            until: now + kept,
        };
        documents.insert(client_id.to_owned(), known);
        Ok(client)
    }
}

/// Whether the text is a URL as clients are named by it. Which hosts may be asked, and whether one needs no TLS,
/// the egress rules say.
fn check_url(client_id: &str) -> Result<(), DocumentError> {
    let url = Url::parse(client_id).map_err(|_| DocumentError::Url)?;
    let is_plain = url.fragment().is_none()
        && url.username().is_empty()
        && url.password().is_none()
        && url.path() != "/";
    // A URL that is written otherwise than it is fetched could be two clients.
    let is_normal = url.as_str() == client_id;
    (is_plain && is_normal)
        .then_some(())
        .ok_or(DocumentError::Url)
}

/// The client of a document, and how long that is kept.
async fn fetch(
    client_id: &str,
    egress: &EgressClient,
) -> Result<(GrantClient, Duration), DocumentError> {
    let request = Request::get(client_id).header("accept", "application/json");
    let request = request.body(Vec::new()).map_err(|_| DocumentError::Url)?;
    // Where a document is, is who the client is: redirects are not followed.
    let response = egress.fetch_unredirected(request).await;
    let response = response.map_err(|error| DocumentError::Fetch(error.to_string()))?;
    if response.status() != StatusCode::OK {
        let status = response.status().as_u16();
        return Err(DocumentError::Fetch(format!("{client_id}: HTTP {status}")));
    }
    let metadata: ClientMetadata = serde_json::from_slice(response.body())
        .map_err(|error| DocumentError::Invalid(error.to_string()))?;
    if metadata.client_id.as_deref() != Some(client_id) {
        return Err(InvalidClientMetadata::ClientId(client_id.to_owned()).into());
    }
    match metadata.token_endpoint_auth_method.as_deref() {
        None | Some("none") => {}
        Some(method) => return Err(InvalidClientMetadata::AuthMethod(method.to_owned()).into()),
    }
    let caching = response.headers().get(CACHE_CONTROL);
    let caching = caching.and_then(|value| value.to_str().ok());
    let kept = caching.and_then(max_age).unwrap_or(KEPT_DEFAULT);
    let client = metadata.to_client(client_id, ClientAuth::Public)?;
    Ok((client, kept.clamp(KEPT_MIN, KEPT_MAX)))
}

/// `max-age` of a header `Cache-Control`.
fn max_age(caching: &str) -> Option<Duration> {
    let mut directives = caching.split(',').map(str::trim);
    let age = directives.find_map(|it| it.strip_prefix("max-age="))?;
    age.trim_matches('"').parse().ok().map(Duration::from_secs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_by_a_url_of_one_form() {
        let check = |id: &str, expect: bool| assert_eq!(check_url(id).is_ok(), expect, "{id}");
        check("https://app.example/oauth/client.json", true);
        check("https://app.example:8443/client.json?v=1", true);
        check("https://app.example/", false);
        check("https://app.example", false);
        check("https://app.example/a/../client.json", false);
        check("https://APP.example/client.json", false);
        check("https://u@app.example/client.json", false);
        check("https://app.example/client.json#x", false);
        check("https://app.example:443/client.json", false);
    }

    #[test]
    fn a_document_says_how_long_it_is_kept() {
        assert_eq!(max_age("public, max-age=60"), Some(Duration::from_secs(60)));
        assert_eq!(max_age("no-store"), None);
    }
}
