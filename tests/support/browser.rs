//! A browser of a person who signs in: it keeps cookies, follows redirects, and sends every form that it meets.
//!
//! It stands alone, as `issuer.rs` beside it does.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "each test target needs a part of it, and fails by panicking"
)]

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use http::{Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use regex::Regex;
use url::{Url, form_urlencoded};

/// More pages than a sign-in has.
const PAGES_MAX: usize = 25;
const PATIENCE: Duration = Duration::from_secs(10);

/// A browser and the person before it.
#[derive(Clone, Debug)]
pub(crate) struct Browser {
    client: Client<HttpConnector, Full<Bytes>>,
    /// By host and name; ports share cookies.
    cookies: BTreeMap<(String, String), String>,
    /// The one-time code that the person was given.
    pub(crate) code: Option<String>,
    /// Every URL that was opened, without its query.
    pub(crate) visited: Vec<String>,
    /// The pages with forms that were shown.
    pub(crate) pages: Vec<String>,
}

impl Browser {
    pub(crate) fn new() -> Self {
        Self {
            client: Client::builder(TokioExecutor::new()).build_http(),
            cookies: BTreeMap::new(),
            code: None,
            visited: Vec::new(),
            pages: Vec::new(),
        }
    }

    /// Opens `url`, and goes on until it is sent to a URL that begins with `end`, which it does not open.
    pub(crate) async fn sign_in(&mut self, url: &str, end: &str) -> Url {
        let mut request = Request::get(url).body(String::new()).unwrap();
        for _ in 0..PAGES_MAX {
            let page = Url::parse(&request.uri().to_string()).unwrap();
            let response = self.open(request).await;
            let location = response.headers().get(header::LOCATION);
            if let Some(location) = location.map(|it| it.to_str().unwrap().to_owned()) {
                assert!(response.status().is_redirection(), "{response:?}");
                let next = page.join(&location).unwrap();
                if next.as_str().starts_with(end) {
                    return next;
                }
                request = Request::get(next.as_str()).body(String::new()).unwrap();
                continue;
            }
            let text = String::from_utf8_lossy(response.body()).into_owned();
            assert!(
                response.status().is_success(),
                "{page}: {}: {text}",
                response.status()
            );
            request = self.fill(&page, &text);
            self.pages.push(text);
        }
        panic!("no end: {:?}", self.visited);
    }

    /// The response to one request, whose cookies are kept.
    pub(crate) async fn open(&mut self, mut request: Request<String>) -> Response<Bytes> {
        let url = Url::parse(&request.uri().to_string()).unwrap();
        let host = url.host_str().unwrap().to_owned();
        self.visited.push(without_query(&url));
        let cookies = self.cookies.iter().filter(|((of, _), _)| *of == host);
        let cookies: Vec<String> = cookies
            .map(|((_, name), value)| format!("{name}={value}"))
            .collect();
        if !cookies.is_empty() {
            let cookies = cookies.join("; ").parse().unwrap();
            request.headers_mut().insert(header::COOKIE, cookies);
        }
        let request = request.map(|body| Full::from(Bytes::from(body)));
        let response = tokio::time::timeout(PATIENCE, self.client.request(request)).await;
        let (parts, body) = response.unwrap().unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        for cookie in parts.headers.get_all(header::SET_COOKIE) {
            let cookie = cookie.to_str().unwrap();
            let pair = cookie.split(';').next().unwrap();
            let (name, value) = pair.split_once('=').unwrap();
            let place = (host.clone(), name.trim().to_owned());
            let is_gone = cookie.to_ascii_lowercase().contains("max-age=0");
            if value.is_empty() || is_gone {
                self.cookies.remove(&place);
            } else {
                self.cookies.insert(place, value.to_owned());
            }
        }
        Response::from_parts(parts, body)
    }

    /// The form of `text` with what the person knows, and the button pressed that agrees.
    fn fill(&self, page: &Url, text: &str) -> Request<String> {
        let forms = Regex::new(r"(?s)<form\b([^>]*)>(.*?)</form>").unwrap();
        let form = forms.captures(text);
        let form = form.unwrap_or_else(|| panic!("{page} leads nowhere: {text}"));
        let action = attribute(&form[1], "action");
        let action = page.join(&action.unwrap_or_default()).unwrap();
        let mut pairs = Vec::new();
        let inputs = Regex::new(r"<input\b([^>]*)>").unwrap();
        for input in inputs.captures_iter(&form[2]) {
            let kind = attribute(&input[1], "type").unwrap_or_else(|| "text".to_owned());
            let Some(name) = attribute(&input[1], "name") else {
                continue;
            };
            let value = attribute(&input[1], "value").unwrap_or_default();
            match kind.as_str() {
                "submit" => {}
                "checkbox" | "radio" if !input[1].contains("checked") => {}
                "hidden" | "checkbox" | "radio" => pairs.push((name, value)),
                _ => {
                    let code = self.code.clone();
                    pairs.push((name, code.expect("the page asks for a code")));
                }
            }
        }
        let buttons = Regex::new(r"(?s)<button\b([^>]*)>(.*?)</button>").unwrap();
        let agrees =
            Regex::new(r"(?i)\b(allow|approve|accept|authorize|continue|log ?in|sign ?in)\b")
                .unwrap();
        let pressed = buttons
            .captures_iter(&form[2])
            .find(|button| agrees.is_match(&button[0]));
        if let Some(pressed) = pressed
            && let Some(name) = attribute(&pressed[1], "name")
        {
            pairs.push((name, attribute(&pressed[1], "value").unwrap_or_default()));
        }
        let body = form_urlencoded::Serializer::new(String::new())
            .extend_pairs(pairs)
            .finish();
        Request::post(action.as_str())
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .header(header::ORIGIN, action.origin().ascii_serialization())
            .body(body)
            .unwrap()
    }
}

/// The value of an attribute, without its escapes.
fn attribute(attributes: &str, name: &str) -> Option<String> {
    let pattern = Regex::new(&format!(r#"\b{name}="([^"]*)""#)).unwrap();
    let value = pattern.captures(attributes)?[1].to_owned();
    let escapes = [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&amp;", "&"),
    ];
    Some(
        escapes
            .iter()
            .fold(value, |value, (from, to)| value.replace(from, to)),
    )
}

fn without_query(url: &Url) -> String {
    let mut shown = url.clone();
    shown.set_query(None);
    shown.to_string()
}
