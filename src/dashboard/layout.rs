//! What all pages have: head, navigation, notices.

use std::sync::LazyLock;

use maud::{DOCTYPE, Markup, html};
use sha2::{Digest, Sha256};

use super::{
    Content, PageVisit,
    api_client::ApiFailure,
    format::{pill, plain},
};
use crate::{browser_login::FormFields, config::Role};

/// A file that pages load.
pub(super) struct Asset {
    name: &'static str,
    extension: &'static str,
    pub(super) kind: &'static str,
    pub(super) content: &'static str,
    /// Of the content, so that browsers may keep it for ever.
    hash: String,
}

impl Asset {
    /// Its path below `/ui/`.
    pub(super) fn path(&self) -> String {
        format!("{}-{}.{}", self.name, self.hash, self.extension)
    }
}

/// Style and script.
pub(super) static ASSETS: LazyLock<[Asset; 2]> = LazyLock::new(|| {
    [
        (
            "css",
            "text/css; charset=utf-8",
            include_str!("dashboard.css"),
        ),
        (
            "js",
            "text/javascript; charset=utf-8",
            include_str!("dashboard.js"),
        ),
    ]
    .map(|(extension, kind, content)| Asset {
        name: "dashboard",
        extension,
        kind,
        content,
        hash: hex::encode(&Sha256::digest(content)[..8]),
    })
});

/// An entry of the navigation: its section, path, and who sees it.
struct NavigationEntry(&'static str, &'static str, &'static [Role]);

const EVERYBODY: &[Role] = &[
    Role::Agent,
    Role::WorkspaceAdmin,
    Role::Auditor,
    Role::Admin,
];
const READERS: &[Role] = &[Role::Auditor, Role::Admin];
const WORKSPACE: &[Role] = &[Role::WorkspaceAdmin, Role::Auditor, Role::Admin];

/// The navigation, in groups.
const NAVIGATION: [&[NavigationEntry]; 3] = [
    &[
        NavigationEntry("Overview", "/ui", EVERYBODY),
        NavigationEntry("Servers", "/ui/servers", WORKSPACE),
        NavigationEntry("Tools", "/ui/tools", EVERYBODY),
        NavigationEntry("Playground", "/ui/playground", &[Role::Admin]),
        NavigationEntry("Calls", "/ui/calls", EVERYBODY),
    ],
    &[
        NavigationEntry("Agents", "/ui/agents", WORKSPACE),
        NavigationEntry("Budgets", "/ui/budgets", WORKSPACE),
        NavigationEntry("Profiles", "/ui/profiles", READERS),
    ],
    &[
        NavigationEntry("Connect a client", "/ui/connect", EVERYBODY),
        NavigationEntry("Settings", "/ui/settings", READERS),
    ],
];

/// A page of the dashboard.
pub(super) fn page(visit: &PageVisit<'_>, content: &Content) -> Markup {
    let viewer = visit.viewer;
    let role = viewer.caller.role;
    let sees_events = READERS.contains(&role);
    let events = match content.section {
        "Calls" => "/ui/calls/events",
        _ => "/ui/events",
    };
    document(
        &content.title,
        &html! {
            body data-events=[sees_events.then_some(events)] {
                a.skip href="#content" { "Skip to the content" }
                nav.main aria-label="Main" {
                    div.brand { "Tollbridge" }
                    @for (number, group) in NAVIGATION.iter().enumerate() {
                        @if number > 0 { hr; }
                        @for NavigationEntry(section, path, roles) in *group {
                            @if roles.contains(&role) {
                                a href=(path) aria-current=[(*section == content.section).then_some("page")] {
                                    (section)
                                }
                            }
                        }
                    }
                }
                main id="content" {
                    header {
                        h1 { (content.title) }
                        span.spacer {}
                        span.who { (plain(&viewer.name)) " · " (role.as_str()) }
                        (content.actions)
                        form.inline method="post" action="/ui/logout" {
                            (visit.token())
                            button { "Log out" }
                        }
                    }
                    (notices(visit))
                    (content.body)
                }
            }
        },
    )
}

/// What the page before has done.
fn notices(visit: &PageVisit<'_>) -> Markup {
    let done = visit.query.get("done");
    html! {
        @if !done.is_empty() { p.notice.done role="status" { (plain(done)) } }
    }
}

/// A page that says why there is none.
pub(super) fn failure_page(visit: &PageVisit<'_>, failure: &ApiFailure) -> Markup {
    page(
        visit,
        &Content {
            title: failure.title.clone(),
            section: "",
            actions: html! {},
            body: html! {
                p.notice.wrong role="alert" { (failure.detail) }
                p { "Go back to try again, or to the " a href="/ui" { "overview" } "." }
            },
        },
    )
}

/// Where people log in: with a code of `tollbridge ui`, or the key of an agent.
pub(crate) fn login_page(token: &str, fields: &FormFields, wrong: Option<&str>) -> Markup {
    let (code, next) = (fields.get("code"), fields.get("next"));
    let hidden = html! {
        input type="hidden" name="token" value=(token);
        input type="hidden" name="next" value=(next);
    };
    plain_page(
        "Log in",
        &html! {
            h1 { "Tollbridge" }
            @if let Some(wrong) = wrong { p.notice.wrong role="alert" { (wrong) } }
            section {
                @if code.is_empty() {
                    form method="post" action="/ui/login" {
                        (hidden)
                        div.field {
                            label for="key" { "API key of an agent" }
                            input id="key" name="key" type="password" autocomplete="current-password" required autofocus;
                        }
                        button.primary { "Log in" }
                    }
                    p.dim { "Or run " code { "tollbridge ui" } " on the machine of the gateway, and open its link." }
                } @else {
                    form method="post" action="/ui/login" {
                        (hidden)
                        input type="hidden" name="code" value=(code);
                        p { "This link logs you in as the operator of the gateway, once." }
                        button.primary autofocus { "Open the dashboard" }
                    }
                }
            }
        },
    )
}

/// A page that says one thing.
pub(crate) fn message_page(title: &str, message: &str) -> Markup {
    plain_page(
        title,
        &html! {
            h1 { (title) }
            section { p { (message) } a href="/ui" { "Overview" } }
        },
    )
}

fn plain_page(title: &str, content: &Markup) -> Markup {
    document(
        title,
        &html! { body.plain { main id="content" { (content) } } },
    )
}

fn document(title: &str, body: &Markup) -> Markup {
    let [style, script] = &*ASSETS;
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) " · Tollbridge" }
                // Browsers ask for one beside every page.
                link rel="icon" href="data:,";
                link rel="stylesheet" href=(format!("/ui/{}", style.path()));
                script src=(format!("/ui/{}", script.path())) defer {}
            }
            (body)
        }
    }
}

/// What a server's state looks like.
pub(super) fn state_pill(state: &str) -> Markup {
    let (kind, words) = match state {
        "connected" => ("ok", "Connected"),
        "failed" => ("bad", "Failed"),
        "needs_reauth" => ("warn", "Needs sign-in"),
        "disabled" => ("", "Disabled"),
        "" => ("", "Not running"),
        other => ("warn", other),
    };
    pill(kind, words)
}
