//! How pages ask the API.

use std::fmt::Display;

use bytes::Bytes;
use http::{
    HeaderValue, Method, StatusCode,
    header::{ETAG, IF_MATCH},
};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC};
use serde_json::{Value, json};

use super::Viewer;
use crate::api::Api;

/// The API, for one person.
pub(super) struct ApiClient<'v> {
    api: &'v Api,
    viewer: &'v Viewer,
}

/// An answer of the API.
#[derive(Debug, Default)]
pub(super) struct VersionedAnswer {
    pub(super) body: Value,
    /// The version of what was asked for; empty where it has none.
    pub(super) version: String,
}

/// Why the API did not do what a page needs.
#[derive(Debug)]
pub(super) struct ApiFailure {
    pub(super) status: StatusCode,
    pub(super) title: String,
    pub(super) detail: String,
}

impl ApiFailure {
    pub(super) fn not_found() -> Self {
        Self {
            status: StatusCode::NOT_FOUND,
            title: "Not found".to_owned(),
            detail: "There is no such page.".to_owned(),
        }
    }

    /// A form that says something that cannot be used.
    pub(super) fn invalid(detail: impl Display) -> Self {
        Self {
            status: StatusCode::UNPROCESSABLE_ENTITY,
            title: "Invalid input".to_owned(),
            detail: detail.to_string(),
        }
    }
}

impl<'v> ApiClient<'v> {
    pub(super) fn new(api: &'v Api, viewer: &'v Viewer) -> Self {
        Self { api, viewer }
    }

    /// What is at `path`.
    pub(super) async fn get(&self, path: &str) -> Result<Value, ApiFailure> {
        let answer = self.send((Method::GET, path), None, "").await;
        answer.map(|answer| answer.body)
    }

    /// What is at `path`, with its version.
    pub(super) async fn get_versioned(&self, path: &str) -> Result<VersionedAnswer, ApiFailure> {
        self.send((Method::GET, path), None, "").await
    }

    /// What is at `path`; nothing where the person may not see it.
    pub(super) async fn get_allowed(&self, path: &str) -> Result<Option<Value>, ApiFailure> {
        match self.get(path).await {
            Ok(found) => Ok(Some(found)),
            Err(failure) if failure.status == StatusCode::FORBIDDEN => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// Posts `body` to `path`.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, ApiFailure> {
        let answer = self.send((Method::POST, path), Some(body), "").await;
        answer.map(|answer| answer.body)
    }

    /// Does `method` at `path`, where that still has `version`, unless this is empty.
    pub(super) async fn send(
        &self,
        (method, path): (Method, &str),
        body: Option<&Value>,
        version: &str,
    ) -> Result<VersionedAnswer, ApiFailure> {
        let body = body.map(ToString::to_string).unwrap_or_default();
        let mut request = self.viewer.request(method, path, Bytes::from(body));
        if !version.is_empty()
            && let Ok(version) = HeaderValue::from_str(version)
        {
            request.headers_mut().insert(IF_MATCH, version);
        }
        let response = self.api.handle(request).await;
        let (status, version) = (response.status(), response.headers().get(ETAG).cloned());
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await;
        let body: Value = serde_json::from_slice(&body.unwrap_or_default()).unwrap_or_default();
        if status.is_success() {
            let version = version.as_ref().and_then(|it| it.to_str().ok());
            let version = version.unwrap_or_default().to_owned();
            return Ok(VersionedAnswer { body, version });
        }
        Err(ApiFailure {
            status,
            title: body.text("title").to_owned(),
            detail: body.text("detail").to_owned(),
        })
    }
}

/// Reading answers of the API, whose shape its description fixes.
pub(super) trait JsonFields {
    /// The string at `key`; empty where there is none.
    fn text(&self, key: &str) -> &str;

    /// The items of the list at `key`.
    fn list(&self, key: &str) -> &[Value];

    /// The whole number at `key`; 0 where there is none.
    fn number(&self, key: &str) -> u64;

    /// Whether `key` is true.
    fn is(&self, key: &str) -> bool;
}

impl JsonFields for Value {
    fn text(&self, key: &str) -> &str {
        self[key].as_str().unwrap_or_default()
    }

    fn list(&self, key: &str) -> &[Value] {
        self[key].as_array().map_or(&[], Vec::as_slice)
    }

    fn number(&self, key: &str) -> u64 {
        self[key].as_u64().unwrap_or_default()
    }

    fn is(&self, key: &str) -> bool {
        self[key] == json!(true)
    }
}

/// What is encoded in a part of a path: all but the unreserved characters (RFC 3986, 2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// `part` as one part of a path.
pub(super) fn encoded(part: &str) -> String {
    percent_encoding::utf8_percent_encode(part, RESERVED).to_string()
}

/// One part of a path, decoded.
pub(super) fn decoded(part: &str) -> String {
    let part = percent_encoding::percent_decode_str(part);
    part.decode_utf8_lossy().into_owned()
}

/// A query of `fields`, without those that are empty; with its question mark, where there is one.
pub(super) fn query(fields: &[(&str, &str)]) -> String {
    let mut query = url::form_urlencoded::Serializer::new(String::new());
    query.extend_pairs(fields.iter().filter(|(_, value)| !value.is_empty()));
    let query = query.finish();
    if query.is_empty() {
        query
    } else {
        format!("?{query}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_paths_survive() {
        for part in [
            "github",
            "a b",
            "a+b",
            "notes@agent_1",
            "a/b?c=d&e=f%25",
            "é",
        ] {
            let written = encoded(part);
            assert!(!written.contains(['/', '?', '&', ' ', '+']), "{written}");
            assert_eq!(decoded(&written), part);
        }
    }

    #[test]
    fn queries_leave_out_what_is_empty() {
        assert_eq!(query(&[("a", ""), ("b", "x y&z")]), "?b=x+y%26z");
        assert_eq!(query(&[("a", "")]), "");
    }
}
