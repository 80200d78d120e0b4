//! The dashboard: pages on the operations of the admin API, in the name of who is logged in.
//!
//! A page asks the API for what it shows, so that nobody sees or changes more here than there. Pages are whole without
//! the script: it adds live updates and comfort in forms. Text of servers, agents and clients is shown as text.

mod agents;
mod api_client;
mod budgets;
mod calls;
mod connect;
mod format;
mod layout;
mod overview;
mod playground;
mod profiles;
mod servers;
mod settings;
mod tools;

use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header::CONTENT_TYPE};
use maud::{Markup, html};
use serde_json::Value;

use crate::{
    api::{Api, ApiCaller},
    browser_login::FormFields,
};
use api_client::{ApiClient, ApiFailure};
pub(crate) use layout::{login_page, message_page};

/// Who looks at the dashboard.
#[derive(Clone, Debug)]
pub(crate) struct Viewer {
    /// As whom the API is asked.
    pub(crate) caller: ApiCaller,
    /// What they are called.
    pub(crate) name: String,
    /// What their forms have.
    pub(crate) form_token: String,
    /// The URL by which clients reach the gateway.
    pub(crate) base: Arc<String>,
}

impl Viewer {
    /// A request to the API in their name.
    pub(crate) fn request(&self, method: Method, path: &str, body: Bytes) -> Request<Bytes> {
        let mut request = Request::new(body);
        *request.method_mut() = method;
        if let Ok(path) = format!("/api/v1{path}").parse() {
            *request.uri_mut() = path;
        }
        let json = http::HeaderValue::from_static("application/json");
        request.headers_mut().insert(CONTENT_TYPE, json);
        request.extensions_mut().insert(self.caller.clone());
        request
    }
}

/// What is asked of the dashboard.
#[derive(Debug)]
pub(crate) struct PageRequest<'r> {
    /// The path below `/ui/`, without slashes at its ends.
    path: &'r str,
    query: FormFields,
    /// What was sent; its token has been checked.
    form: Option<FormFields>,
}

impl<'r> PageRequest<'r> {
    /// A request for the page at `path`; `form` was sent to it, by a form of that page.
    pub(crate) fn new(path: &'r str, query: FormFields, form: Option<FormFields>) -> Self {
        Self { path, query, form }
    }
}

/// What a browser gets.
#[derive(Debug)]
pub(crate) enum PageAnswer {
    /// A page.
    Page(StatusCode, Markup),
    /// The path of the page to go on at.
    SeeOther(String),
}

/// What a page is made of.
struct Content {
    /// What the tab and the first heading say.
    title: String,
    /// Which entry of the navigation it belongs to.
    section: &'static str,
    /// Beside the heading.
    actions: Markup,
    body: Markup,
}

/// What a page ends in.
enum PageResult {
    Content(Content),
    SeeOther(String),
}

/// What a form of a page did.
enum FormOutcome {
    /// None was sent.
    Nothing,
    /// The page shows it besides.
    Shown(Value),
    /// The path of the page to go on at.
    SeeOther(String),
}

/// One request for a page, by somebody who is logged in.
struct PageVisit<'v> {
    api: ApiClient<'v>,
    viewer: &'v Viewer,
    query: &'v FormFields,
    form: Option<&'v FormFields>,
}

impl PageVisit<'_> {
    /// What was asked to be done; empty where the page is only shown.
    fn action(&self) -> &str {
        self.form.map_or("", |form| form.get("action"))
    }

    /// A field of what was sent; empty where nothing was.
    fn sent(&self, name: &str) -> &str {
        self.form.map_or("", |form| form.get(name))
    }

    /// What every form has.
    fn token(&self) -> Markup {
        html! { input type="hidden" name="token" value=(self.viewer.form_token); }
    }
}

/// The page that `request` is for.
pub(crate) async fn answer(api: &Api, viewer: &Viewer, request: &PageRequest<'_>) -> PageAnswer {
    let visit = PageVisit {
        api: ApiClient::new(api, viewer),
        viewer,
        query: &request.query,
        form: request.form.as_ref(),
    };
    let path: Vec<String> = request.path.split('/').map(api_client::decoded).collect();
    let path: Vec<&str> = path.iter().map(String::as_str).collect();
    match Box::pin(show(&visit, &path)).await {
        Ok(PageResult::Content(content)) => {
            PageAnswer::Page(StatusCode::OK, layout::page(&visit, &content))
        }
        Ok(PageResult::SeeOther(path)) => PageAnswer::SeeOther(path),
        Err(failure) => PageAnswer::Page(failure.status, layout::failure_page(&visit, &failure)),
    }
}

async fn show(visit: &PageVisit<'_>, path: &[&str]) -> Result<PageResult, ApiFailure> {
    match path {
        [""] => overview::show(visit).await,
        ["servers"] => servers::list(visit).await,
        ["servers", "new"] => servers::add(visit).await,
        ["servers", name] => servers::show(visit, name).await,
        ["tools"] => tools::list(visit).await,
        ["playground"] => playground::show(visit).await,
        ["calls"] => calls::list(visit).await,
        ["calls", id] => calls::show(visit, id).await,
        ["agents"] => agents::list(visit).await,
        ["agents", name] => agents::show(visit, name).await,
        ["budgets"] => budgets::list(visit).await,
        ["profiles"] => profiles::list(visit).await,
        ["profiles", name] => profiles::show(visit, name).await,
        ["connect"] => Ok(connect::show(visit)),
        ["settings"] => settings::show(visit).await,
        _ => Err(ApiFailure::not_found()),
    }
}

/// The file of the dashboard at `path`: its media type and content.
pub(crate) fn asset(path: &str) -> Option<(&'static str, &'static str)> {
    layout::ASSETS
        .iter()
        .find(|asset| asset.path() == path)
        .map(|asset| (asset.kind, asset.content))
}

/// The stream of the API that scripts of the page read at `path`.
pub(crate) fn event_stream(path: &str) -> Option<String> {
    match path {
        "events" => Some("/events".to_owned()),
        "calls/events" => Some("/audit/follow".to_owned()),
        _ => {
            let server = path.strip_prefix("servers/")?.strip_suffix("/stderr")?;
            Some(format!("/servers/{server}/stderr"))
        }
    }
}

/// Where who is not logged in goes to get to `next`.
pub(crate) fn login_link(next: &str) -> String {
    let next: String = url::form_urlencoded::byte_serialize(next.as_bytes()).collect();
    format!("/ui/login?next={next}")
}

/// `next`, where it is a page of the dashboard; its first page otherwise.
pub(crate) fn local_path(next: &str) -> &str {
    let is_ours = next == "/ui" || next.starts_with("/ui/") || next.starts_with("/ui?");
    // Browsers take a backslash for a slash, and leave out control characters.
    let is_plain = next.chars().all(|c| c != '\\' && !c.is_control());
    if is_ours && is_plain { next } else { "/ui" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_login_leads_nowhere_else() {
        for (next, expect) in [
            ("/ui/servers?x=1", "/ui/servers?x=1"),
            ("/ui", "/ui"),
            ("//evil.example/ui", "/ui"),
            ("https://evil.example", "/ui"),
            ("/ui/\\evil", "/ui"),
            ("/ui/\nx", "/ui"),
            ("/uix", "/ui"),
            ("", "/ui"),
        ] {
            assert_eq!(local_path(next), expect, "{next}");
        }
    }
}
