//! `/status`: how the gateway and every server do, for people and for monitors.

mod metrics;

use std::{fmt::Write as _, sync::Arc};

use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{Report, State},
    catalog::{Catalog, Kind},
    clock, governance,
    names::Scope,
    proxy::Proxy,
};
pub use metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;

/// Gathers the status.
#[derive(Debug)]
pub struct Status {
    proxy: Arc<Proxy>,
    start: Instant,
    started_at: jiff::Timestamp,
    draining: CancellationToken,
}

/// The whole status.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// Of this program.
    pub version: &'static str,
    /// `serving`, `failed` or `draining`.
    pub status: &'static str,
    /// RFC 3339.
    pub started_at: String,
    /// Since the start.
    pub uptime_seconds: u64,
    /// What governance did; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governance: Option<Governed>,
    /// Legacy sessions of HTTP clients; for those who may see everything.
    pub sessions: Vec<SessionReport>,
    /// What the merged routes list.
    pub listed: Counts,
    /// What each profile lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileReport>,
    /// Every server.
    pub servers: Vec<ServerReport>,
}

/// How much of the status somebody may see.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Insight {
    /// How servers do, without what they wrote, their processes and their clients.
    States,
    /// Everything.
    Whole,
}

/// What governance did since the start.
#[derive(Clone, Debug, Serialize)]
pub struct Governed {
    /// What was refused, and what would have been.
    #[serde(flatten)]
    pub counts: governance::Counts,
    /// The chain of the audit that is written; `null` when there is none.
    pub audit_chain: Option<String>,
    /// Records lost because the disk was full for long.
    pub audit_lost: u64,
}

/// One server: how it does, and what it offers.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// How it does.
    #[serde(flatten)]
    pub report: Report,
    /// What it offers on its own route.
    pub offers: Counts,
    /// What is odd about its items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// One profile.
#[derive(Clone, Debug, Serialize)]
pub struct ProfileReport {
    /// Its name.
    pub name: String,
    /// What it lists.
    pub listed: Counts,
}

/// Items of each kind.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Counts {
    /// Tools.
    pub tools: usize,
    /// Resources.
    pub resources: usize,
    /// Resource templates.
    pub templates: usize,
    /// Prompts.
    pub prompts: usize,
}

/// One session.
#[derive(Clone, Debug, Serialize)]
pub struct SessionReport {
    /// What the client calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<serde_json::Value>,
    /// The revision agreed on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<&'static str>,
    /// Calls under way.
    pub in_flight: usize,
}

/// Sessions shown; all are counted.
const SESSIONS_SHOWN: usize = 100;

impl Status {
    /// Begins to count the uptime. `draining` is cancelled when the gateway begins to stop.
    pub fn new(proxy: Arc<Proxy>, draining: CancellationToken) -> Self {
        Self {
            proxy,
            start: Instant::now(),
            started_at: clock::now(),
            draining,
        }
    }

    /// Whether requests can be served: not while draining, nor when every enabled server failed.
    pub fn is_serving(&self) -> bool {
        !self.draining.is_cancelled() && !self.all_failed()
    }

    /// Whether the gateway takes new work and knows what its servers offer.
    pub fn is_ready(&self) -> bool {
        self.is_serving() && self.proxy.board().is_settled()
    }

    fn all_failed(&self) -> bool {
        let mut enabled = self
            .proxy
            .backends()
            .all()
            .filter(|b| b.config.enabled)
            .peekable();
        enabled.peek().is_some()
            && enabled.all(|backend| match backend.report().state {
                State::Failed | State::NeedsReauth => true,
                State::Connected
                | State::Connecting
                | State::Degraded
                | State::Disabled
                | State::Disconnected => false,
            })
    }

    /// Everything.
    pub fn overview(&self, insight: Insight) -> Overview {
        let catalog = self.proxy.board().catalog();
        let servers = self.proxy.backends().all().map(|backend| {
            let offers = catalog.counts(&backend.name);
            let problems = catalog
                .problems()
                .iter()
                .filter(|p| insight == Insight::Whole && p.server == backend.name);
            ServerReport {
                report: match insight {
                    Insight::States => backend.report().without_details(),
                    Insight::Whole => backend.report(),
                },
                offers: Counts {
                    tools: offers.tools,
                    resources: offers.resources,
                    templates: offers.templates,
                    prompts: offers.prompts,
                },
                problems: problems.map(ToString::to_string).collect(),
            }
        });
        let profiles = self.proxy.board().profiles();
        let profiles = profiles.iter().map(|name| ProfileReport {
            name: name.to_string(),
            listed: counts(&catalog, &Scope::Profile(name.clone())),
        });
        Overview {
            version: env!("CARGO_PKG_VERSION"),
            status: if self.draining.is_cancelled() {
                "draining"
            } else if self.all_failed() {
                "failed"
            } else {
                "serving"
            },
            started_at: self.started_at.to_string(),
            uptime_seconds: self.start.elapsed().as_secs(),
            sessions: match insight {
                Insight::States => Vec::new(),
                Insight::Whole => self.sessions(),
            },
            governance: match insight {
                Insight::States => None,
                Insight::Whole => Some(self.governed()),
            },
            listed: counts(&catalog, &Scope::All),
            profiles: profiles.collect(),
            servers: servers.collect(),
        }
    }

    fn governed(&self) -> Governed {
        let governance = self.proxy.governance();
        let audit = governance.audit();
        Governed {
            counts: governance.counts(),
            audit_chain: audit.chain().map(|chain| chain.to_string()),
            audit_lost: audit.lost(),
        }
    }

    fn sessions(&self) -> Vec<SessionReport> {
        let mut reports = Vec::new();
        self.proxy.sessions().each(|session| {
            if reports.len() == SESSIONS_SHOWN {
                return;
            }
            let opening = session.opening();
            reports.push(SessionReport {
                client: opening.as_ref().and_then(|o| o.info.as_ref()?.read().ok()),
                revision: opening.as_ref().map(|opening| opening.revision.as_str()),
                in_flight: session.in_flight(),
            });
        });
        reports
    }

    /// The figures for Prometheus; `streams` are the event streams that clients read.
    pub fn metrics(&self, insight: Insight, streams: u64) -> String {
        metrics::render(self, insight, streams)
    }

    /// The page for a browser.
    pub fn page(&self, insight: Insight) -> String {
        let overview = self.overview(insight);
        let mut rows = String::new();
        for server in &overview.servers {
            rows.push_str(&row(server));
        }
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8>\
             <meta name=viewport content='width=device-width'><meta http-equiv=refresh content=5>\
             <title>Tollbridge: {status}</title><style>{STYLE}</style>\
             <h1>Tollbridge {version}</h1>\
             <p><b class={status}>{status}</b> for {uptime} s, {sessions}{tools} tools, \
             {resources} resources, {prompts} prompts listed. \
             The same as <a href='?format=json'>JSON</a>.</p>\
             <table><tr><th>Server<th>State<th>Transport<th>Revision<th>Tools<th>Resources\
             <th>Prompts<th>Calls<th>p50 ms<th>p99 ms<th>Restarts<th>Last listed{rows}</table>",
            status = overview.status,
            version = overview.version,
            uptime = overview.uptime_seconds,
            sessions = match insight {
                Insight::States => String::new(),
                Insight::Whole => format!("{} sessions, ", self.proxy.sessions().len()),
            },
            tools = overview.listed.tools,
            resources = overview.listed.resources,
            prompts = overview.listed.prompts,
        )
    }
}

fn counts(catalog: &Catalog, scope: &Scope) -> Counts {
    let listed = |kind| catalog.list(scope, kind).len();
    Counts {
        tools: listed(Kind::Tools),
        resources: listed(Kind::Resources),
        templates: listed(Kind::Templates),
        prompts: listed(Kind::Prompts),
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;\
padding:0 1em;color:#222;background:#fff}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35em .7em;border-bottom:1px solid #ddd;vertical-align:top}\
pre{margin:.3em 0;white-space:pre-wrap;font-size:13px;color:#555}\
.connected,.serving{color:#0a7d33}.failed,.needs_reauth,.degraded{color:#b3261e}\
.connecting,.disconnected,.draining{color:#9a6700}.disabled{color:#777}\
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#333}\
pre{color:#aaa}a{color:#8ab4f8}}";

fn row(server: &ServerReport) -> String {
    let report = &server.report;
    let state = report.state.as_str();
    let millis = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    let mut row = format!(
        "<tr><td><b>{}</b><td class={state}>{state}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        escape(&report.name),
        report.transport,
        report.revision.unwrap_or_default(),
        server.offers.tools,
        server.offers.resources + server.offers.templates,
        server.offers.prompts,
        report.answered,
        millis(report.latency_ms_p50),
        millis(report.latency_ms_p99),
        report.restarts,
        escape(report.last_listed.as_deref().unwrap_or_default()),
    );
    let mut notes = report.reason.iter().cloned().collect::<Vec<_>>();
    notes.extend(server.problems.iter().cloned());
    if let Some(line) = &report.last_odd_line {
        notes.push(format!(
            "{} odd lines on stdout, the last: {line}",
            report.odd_lines
        ));
    }
    if !notes.is_empty() || !report.stderr.is_empty() {
        let tail = report.stderr.iter().rev().take(STDERR_SHOWN).rev().cloned();
        let text: Vec<String> = notes.into_iter().chain(tail).collect();
        write!(
            row,
            "<tr><td colspan=12><pre>{}</pre>",
            escape(&text.join("\n"))
        )
        .expect("a String takes all");
    }
    row
}

/// Lines of stderr on the page; the JSON has more.
const STDERR_SHOWN: usize = 5;

fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            other => out.push(other),
        }
    }
    out
}
