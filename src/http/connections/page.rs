//! What `/connections` looks like.

use http::{
    HeaderMap, HeaderValue,
    header::{
        CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, REFERRER_POLICY,
        X_CONTENT_TYPE_OPTIONS, X_FRAME_OPTIONS,
    },
};
use maud::{DOCTYPE, Markup, html};
use url::Url;

use super::shown_host;
use crate::{
    browser_login::Person,
    names::ServerName,
    oauth_client::{GrantStatus, GrantSummary},
    sign_in::LinkTarget,
};

/// What the browser may do with a page: show it, and send its forms to us.
const POLICY: &str = "default-src 'none'; style-src 'sha256-OeV7mxunPNw+lUwBOzRGJsh/0HEkwkavFO51Qr1jkGo='; base-uri 'none'; form-action 'self'; \
     frame-ancestors 'none'";

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2em auto;max-width:45em;padding:0 1em;\
color:#222;background:#fff}table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.5em .7em;\
border-bottom:1px solid #ddd;vertical-align:top}form{display:inline}button,input{font:inherit;padding:.3em .8em}\
.notice{border-left:4px solid #1f6feb;padding:.5em 1em;background:#f2f6fc}.error{border-color:#b3261e;\
background:#fdf1f0}.connected{color:#0a7d33}.expired{color:#b3261e}";

/// What every page shows.
pub(super) struct PageContext<'p> {
    /// Who uses the browser.
    pub(super) person: Option<&'p Person>,
    /// The servers that they can sign in to.
    pub(super) connections: Vec<GrantSummary>,
    /// For forms.
    pub(super) token: String,
    /// Where forms go.
    pub(super) path: String,
    /// How people can log in.
    pub(super) login: LoginForms,
}

/// How people can log in.
#[derive(Default)]
pub(super) struct LoginForms {
    /// With the key of an agent.
    pub(super) keys: bool,
    /// With a login code.
    pub(super) login_codes: bool,
    /// At this issuer.
    pub(super) issuer: Option<String>,
}

/// What a page says first.
pub(super) enum PageNotice {
    None,
    /// Something went wrong.
    Failed(String),
    /// The form is not one of ours, or too old.
    InvalidForm,
    /// The browser goes on to an issuer.
    Leaving(Option<ServerName>, Url),
    /// A link was opened, with its code.
    Link(LinkTarget, String),
    /// The same where nobody is logged in yet; with why the last try failed.
    LogInFirst(LinkTarget, String, Option<String>),
    /// The sign-in was begun in another browser.
    OtherBrowser,
    /// The link is for somebody else than who uses the browser.
    OtherPerson(Person),
    SignedIn(ServerName),
    UnknownCode,
}

/// Lets a browser show a page, and nothing else.
pub(super) fn set_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        // With none at all, browsers do not say of which site a form is.
        (REFERRER_POLICY, "same-origin"),
        (CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A page.
pub(super) fn render(page: &PageContext<'_>, notice: &PageNotice) -> Markup {
    let is_of_link = matches!(notice, PageNotice::Link(..) | PageNotice::LogInFirst(..));
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width";
                @if let PageNotice::Leaving(_, url) = notice {
                    meta http-equiv="refresh" content=(format!("0;url={url}"));
                }
                title { "Tollbridge: connections" }
                style { (maud::PreEscaped(STYLE)) }
            }
            body {
                main {
                    h1 { "Connections" }
                    (render_notice(page, notice))
                    @if !matches!(notice, PageNotice::Leaving(..)) {
                        @match page.person {
                            Some(person) => (render_person(page, person)),
                            None => @if !is_of_link { (render_entrance(page)) },
                        }
                    }
                }
            }
        }
    }
}

fn render_notice(page: &PageContext<'_>, notice: &PageNotice) -> Markup {
    let error = |text: Markup| html! { p.notice.error role="alert" { (text) } };
    match notice {
        PageNotice::None => html! {},
        PageNotice::Failed(reason) => error(html! { "This did not work: " (reason) }),
        PageNotice::InvalidForm => error(html! { "The form has expired. Try again." }),
        PageNotice::Leaving(server, url) => html! {
            p.notice role="status" {
                "To sign in" @if let Some(server) = server { " to " b { (server.as_str()) } } ", go on to "
                a href=(url) { (shown_host(url)) } "."
            }
        },
        PageNotice::Link(LinkTarget { person, server, .. }, code) => html! {
            p.notice role="status" {
                @if let Some(server) = server {
                    "You are about to sign in to " b { (server.as_str()) } ". "
                }
                "What you sign in to will be used by " b { (person.name()) }
                ". Go on only if this code is the one that your own client shows: " b { (code) }
            }
            (button(page, "enter", ("code", code), "Continue"))
        },
        PageNotice::LogInFirst(LinkTarget { person, server, .. }, code, failed) => html! {
            p.notice role="status" {
                "This link is for " b { (person.name()) }
                @if let Some(server) = server { ", to sign in to " b { (server.as_str()) } }
                ". Log in first, so that nobody else connects an account to " (person.name()) "."
            }
            @if let Some(reason) = failed { (error(html! { "This did not work: " (reason) })) }
            (render_login(page, Some(code)))
        },
        PageNotice::OtherBrowser => error(html! {
            "This sign-in was not begun in this browser, so nothing was connected. Open the link of your client again."
        }),
        PageNotice::OtherPerson(person) => error(html! {
            "This link is for " b { (person.name()) } ", and this browser is used by somebody else. Nothing was \
             connected. Log out first if you are " (person.name()) "."
        }),
        PageNotice::SignedIn(server) => html! {
            p.notice role="status" {
                "You are signed in to " b { (server.as_str()) } ". Return to your client and go on there."
            }
        },
        PageNotice::UnknownCode => error(html! {
            "The code is unknown, used or expired. Make the call again to get a new link."
        }),
    }
}

/// How a person gets on who is not logged in.
fn render_entrance(page: &PageContext<'_>) -> Markup {
    html! {
        (render_login(page, None))
        p { "Your client gave you a link? Open it, or enter its code here." }
        form method="post" action=(page.path) {
            (hidden(page, "enter"))
            label for="code" { "Code of the link " }
            input id="code" name="code" autocomplete="off" autocapitalize="characters" required;
            " " button { "Continue" }
        }
    }
}

/// How a person logs in, to go on with a link.
fn render_login(page: &PageContext<'_>, link: Option<&str>) -> Markup {
    let LoginForms {
        keys,
        login_codes,
        issuer,
    } = &page.login;
    let hidden = |action| {
        html! {
            (hidden(page, action))
            @if let Some(link) = link { input type="hidden" name="link" value=(link); }
        }
    };
    html! {
        @if let Some(issuer) = issuer {
            form method="post" action=(page.path) {
                (hidden("issuer"))
                button { "Log in with " (issuer) }
            }
        }
        @if *login_codes {
            p { "Log in with a login code, which the administrator of this gateway gives you." }
            form method="post" action=(page.path) {
                (hidden("login-code"))
                label for="login-code" { "Login code " }
                input id="login-code" name="code" autocomplete="one-time-code" required;
                " " button { "Log in" }
            }
        }
        @if *keys {
            p { "Log in with the API key of your agent." }
            form method="post" action=(page.path) {
                (hidden("key"))
                label for="key" { "API key " }
                input id="key" name="key" type="password" autocomplete="off" required;
                " " button { "Log in" }
            }
        }
    }
}

fn render_person(page: &PageContext<'_>, person: &Person) -> Markup {
    html! {
        p {
            "Servers that " b { (person.name()) } " uses. "
            (button(page, "log-out", ("server", ""), "Log out"))
        }
        @if page.connections.is_empty() {
            p { "There is no server to sign in to." }
        } @else {
            table {
                thead { tr { th { "Server" } th { "State" } th { "Scopes" } th { "Actions" } } }
                tbody {
                    @for connection in &page.connections { (render_connection(page, connection)) }
                }
            }
        }
    }
}

fn render_connection(page: &PageContext<'_>, connection: &GrantSummary) -> Markup {
    let server = connection.server.as_str();
    let (class, text, action) = match connection.status {
        GrantStatus::Connected => ("connected", "connected", None),
        GrantStatus::Expired => ("expired", "expired", Some("Sign in again")),
        GrantStatus::NeedsSignIn => ("needs", "needs you", Some("Sign in")),
    };
    html! {
        tr {
            th scope="row" { (server) }
            td class=(class) { (text) }
            td { (connection.scopes.join(" ")) }
            td {
                @if let Some(action) = action {
                    (button(page, "start", ("server", server), action)) " "
                }
                @if connection.status != GrantStatus::NeedsSignIn {
                    (button(page, "switch", ("server", server), "Sign in with another account"))
                    " " (button(page, "revoke", ("server", server), "Revoke"))
                }
            }
        }
    }
}

/// A form that is only a button.
fn button(page: &PageContext<'_>, action: &str, (name, value): (&str, &str), text: &str) -> Markup {
    html! {
        form method="post" action=(page.path) {
            (hidden(page, action))
            input type="hidden" name=(name) value=(value);
            button { (text) @if name == "server" && !value.is_empty() { " (" (value) ")" } }
        }
    }
}

fn hidden(page: &PageContext<'_>, action: &str) -> Markup {
    html! {
        input type="hidden" name="action" value=(action);
        input type="hidden" name="token" value=(page.token);
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn only_our_style_is_used() {
        let hash = STANDARD.encode(Sha256::digest(STYLE));
        assert!(POLICY.contains(&format!("'sha256-{hash}'")), "{hash}");
        assert!(POLICY.starts_with("default-src 'none';"));
    }

    #[test]
    fn foreign_text_is_no_markup() {
        let context = PageContext {
            person: None,
            connections: Vec::new(),
            token: "t".to_owned(),
            path: "/connections".to_owned(),
            login: LoginForms::default(),
        };
        let said = "<script>alert(1)</script>\"'&".to_owned();
        let page = render(&context, &PageNotice::Failed(said)).into_string();
        assert!(!page.contains("<script"), "{page}");
        let url = Url::parse("https://issuer.example/a?b=\"><script>&c=1").unwrap();
        let server = ServerName::parse("x").unwrap();
        let page = render(&context, &PageNotice::Leaving(Some(server), url)).into_string();
        assert!(!page.contains("<script"), "{page}");
    }
}
