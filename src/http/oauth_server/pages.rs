//! The pages that people see. What clients say of themselves is shown as text, never as markup, and no page has a
//! script.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use http::{
    HeaderValue, Response, StatusCode,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY},
};
use maud::{DOCTYPE, Markup, PreEscaped, html};
use sha2::{Digest, Sha256};

use crate::{
    authorization_server::RedirectUri,
    escape,
    http::body::{self, Body},
};

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:3em auto;max-width:34em;padding:0 1em;\
color:#1b1f24;background:#fff}h1{font-size:1.3em}button{font:inherit;padding:.5em 1.2em;margin-right:.6em;\
border:1px solid #57606a;border-radius:6px;background:#fff}button.main{background:#1f6feb;border-color:#1f6feb;\
color:#fff}input{font:inherit;width:100%;box-sizing:border-box;padding:.5em;margin:.3em 0 1em}\
.warn{border-left:4px solid #d4a72c;padding:.1em 0 .1em 1em}.wrong{color:#b00020}code{word-break:break-all}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}button{background:#21262d;color:#e6edf3}\
input{background:#0d1117;color:#e6edf3;border:1px solid #57606a}}";

/// Asks somebody whether a client may.
#[derive(Debug)]
pub(super) struct Consent<'p> {
    pub(super) action: String,
    pub(super) client_name: Option<&'p str>,
    pub(super) client_id: &'p str,
    pub(super) redirect_uri: &'p Option<RedirectUri>,
    pub(super) who: &'p str,
    pub(super) scopes: Vec<&'p str>,
    pub(super) resources: Vec<String>,
    /// Where somebody else logs in: a link, since browsers hold all redirects after a form to the policy.
    pub(super) switch: String,
    /// The sealed request.
    pub(super) page: &'p str,
}

impl Consent<'_> {
    pub(super) fn render(&self) -> Response<Body> {
        let target = self.redirect_uri.as_ref().map(RedirectUri::target);
        let is_local = self
            .redirect_uri
            .as_ref()
            .is_some_and(RedirectUri::is_local);
        let content = html! {
            h1 { "Allow " strong { (client(self.client_name)) } " to use this gateway?" }
            p { "You are logged in as " strong { (text(self.who)) } ". The program will act as you:" }
            ul {
                @for scope in &self.scopes { li { (scope_meaning(scope)) } }
            }
            p { "On:" }
            ul {
                @for resource in &self.resources { li { (text(resource)) } }
            }
            p {
                "Access goes to " strong { (text(target.as_deref().unwrap_or_default())) }
                ". The program says that it is " code { (text(self.client_id)) } "."
            }
            @if is_local {
                p class="warn" {
                    "This is a program on your own computer, and any program there can say that it has this \
                     name. Allow it only if you have just started to connect it."
                }
            }
            form method="post" action=(self.action) {
                input type="hidden" name="page" value=(self.page);
                button class="main" name="decision" value="allow" { "Allow" }
                button name="decision" value="deny" { "Deny" }
            }
            p { a href=(self.switch) { "Log in as somebody else" } }
        };
        render(
            StatusCode::OK,
            "Allow access",
            &content,
            self.redirect_uri.as_ref(),
        )
    }
}

/// Asks somebody for a login code.
#[derive(Debug)]
pub(super) struct Login<'p> {
    pub(super) action: String,
    pub(super) client_name: Option<&'p str>,
    pub(super) redirect_uri: &'p Option<RedirectUri>,
    /// Why the last code did not do.
    pub(super) wrong: Option<&'p str>,
    /// The sealed request.
    pub(super) page: &'p str,
}

impl Login<'_> {
    pub(super) fn render(&self) -> Response<Body> {
        let content = html! {
            h1 { "Log in to connect " strong { (client(self.client_name)) } }
            p {
                "Enter the login code that the administrator of this gateway gave you. It is made with "
                code { "tollbridge login-code AGENT" } "."
            }
            @if let Some(wrong) = self.wrong { p class="wrong" role="alert" { (wrong) } }
            form method="post" action=(self.action) {
                input type="hidden" name="page" value=(self.page);
                label for="code" { "Login code" }
                input id="code" name="code" autocomplete="one-time-code" autofocus required;
                button class="main" { "Log in" }
            }
        };
        let status = if self.wrong.is_some() {
            StatusCode::FORBIDDEN
        } else {
            StatusCode::OK
        };
        render(status, "Log in", &content, self.redirect_uri.as_ref())
    }
}

/// Says why somebody cannot go on.
pub(super) fn error(status: StatusCode, why: &str) -> Response<Body> {
    let content = html! {
        h1 { "This does not work" }
        p { (text(why)) }
    };
    render(status, "Error", &content, None)
}

/// What a scope lets a client do.
fn scope_meaning(scope: &str) -> String {
    match scope {
        "tools:read" => "see what you may use: tools, prompts and resources".to_owned(),
        "tools:call" => "use them, and spend your budget".to_owned(),
        other => match other.strip_prefix("profile:") {
            Some(profile) => format!("use the profile {profile}"),
            None => text(other),
        },
    }
}

fn client(name: Option<&str>) -> String {
    name.map_or_else(|| "a program without a name".to_owned(), text)
}

/// Text of others: without characters that steer what is shown around it.
fn text(text: &str) -> String {
    escape::escape_controls(text, &[])
}

/// A page. Its forms lead here, and on to `target`, since browsers hold redirects after a form to the policy too.
fn render(
    status: StatusCode,
    title: &str,
    content: &Markup,
    target: Option<&RedirectUri>,
) -> Response<Body> {
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                title { "Tollbridge: " (title) }
                style { (PreEscaped(STYLE)) }
            }
            body { (content) }
        }
    };
    let mut response = Response::new(body::full_body(page.into_string()));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    let html = HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(CONTENT_TYPE, html);
    // With `no-referrer` browsers send the forms of a page with `Origin: null`.
    headers.insert(REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    let style = BASE64_STANDARD.encode(Sha256::digest(STYLE));
    let target = target.map(|uri| format!(" {}", uri.csp_source()));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style}'; base-uri 'none'; frame-ancestors 'none'; \
         form-action 'self'{}",
        target.unwrap_or_default()
    );
    if let Ok(policy) = HeaderValue::from_str(&policy) {
        headers.insert(CONTENT_SECURITY_POLICY, policy);
    }
    response
}
