//! `/status`: how the gateway and every server do, for people and for monitors.

mod metrics;

use std::{
    fmt::Write as _,
    sync::{Arc, Mutex},
};

use serde::Serialize;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    backend::{BreakerReport, InstanceReport, Report, State, Transition},
    catalog::{Catalog, Kind},
    clock,
    governance::{self, budget::Budgets},
    lock::lock,
    names::Scope,
    proxy::Proxy,
    text,
};
pub use metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;

/// Gathers the status.
#[derive(Debug)]
pub struct Status {
    proxy: Arc<Proxy>,
    start: Instant,
    started_at: jiff::Timestamp,
    draining: CancellationToken,
    config: Mutex<ConfigReport>,
}

/// The whole status.
#[derive(Clone, Debug, Serialize)]
pub struct Overview {
    /// Of this program.
    pub version: &'static str,
    /// `serving`, `draining`, `failed` when every enabled server has failed, or `cannot_record` while
    /// calls are refused since they cannot be recorded.
    pub status: &'static str,
    /// RFC 3339.
    pub started_at: String,
    /// Since the start.
    pub uptime_seconds: u64,
    /// Which config runs; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ConfigReport>,
    /// What governance did; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governance: Option<Governed>,
    /// Legacy sessions of HTTP clients; for those who may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<Vec<SessionReport>>,
    /// What the merged routes list.
    pub listed: Counts,
    /// What each profile lists.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub profiles: Vec<ProfileReport>,
    /// Every server.
    pub servers: Vec<ServerReport>,
}

/// Which config runs.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigReport {
    /// The files it was read from.
    pub files: Vec<String>,
    /// When it was read, RFC 3339.
    pub loaded_at: String,
    /// Changed configs that were taken since the start.
    pub reloads: u64,
    /// Keys whose new values count after a restart only.
    pub needs_restart: Vec<&'static str>,
    /// Servers whose former connections finish what they are doing.
    pub ending: Vec<String>,
    /// Why the files as they stand are not what runs.
    pub error: Option<ConfigError>,
}

/// Why a changed config was refused.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigError {
    /// The usual report.
    pub message: String,
    /// The file of the first mistake, where it is in one.
    pub file: Option<String>,
    /// When it was refused first, RFC 3339.
    pub since: String,
}

/// How much of the status somebody may see.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Insight {
    /// How servers do, without what they wrote, their processes and their clients.
    States,
    /// Everything.
    Whole,
}

/// Why no clients should be sent here, for anybody who asks.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum NotReady {
    /// The disk is full or the audit is gone; the operator can mend that.
    #[error("calls cannot be recorded")]
    CannotRecord,
    /// It was told to stop.
    #[error("it is stopping")]
    Draining,
    /// The status says why; the operator can mend that.
    #[error("every server has failed")]
    Failed,
    /// The start is not over.
    #[error("its servers have not listed anything yet")]
    Unlisted,
}

/// What governance did since the start.
#[derive(Clone, Debug, Serialize)]
pub struct Governed {
    /// What was refused, and what would have been.
    #[serde(flatten)]
    pub counts: governance::Counts,
    /// The chain of the audit that is written; `null` when there is none.
    pub audit_chain: Option<String>,
    /// Why no call can be recorded; `null` while the audit can be written.
    pub audit_error: Option<String>,
    /// Records lost because the disk was full for long.
    pub audit_lost: u64,
    /// Why the store did not keep what budgets told it last; `null` once it has.
    pub budget_error: Option<String>,
}

/// One server: how it does, and what it offers.
#[derive(Clone, Debug, Serialize)]
pub struct ServerReport {
    /// How it does.
    #[serde(flatten)]
    pub report: Report,
    /// What it offers on its own route.
    pub offers: Counts,
    /// Set while what it offers is what it listed before the gateway was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredReport>,
    /// What the check of arguments against input schemas did, where `validate` is on; for those who
    /// may see everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub validation: Option<governance::validate::Validation>,
    /// What is odd about its items.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub problems: Vec<String>,
}

/// A listing of an earlier process, served until the server has been listed anew.
#[derive(Clone, Debug, Serialize)]
pub struct StoredReport {
    /// When the server was listed, RFC 3339.
    pub listed: String,
    /// How long ago that is.
    pub age_seconds: u64,
}

impl StoredReport {
    fn new(listed: jiff::Timestamp) -> Self {
        let age = clock::now().duration_since(listed).as_secs();
        Self {
            listed: listed.to_string(),
            age_seconds: u64::try_from(age).unwrap_or(0),
        }
    }
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
    /// What the log, the audit and instances of its own call it.
    pub session: String,
    /// Whose it is.
    pub agent: String,
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
        let started_at = clock::now();
        Self {
            proxy,
            start: Instant::now(),
            started_at,
            draining,
            config: Mutex::new(ConfigReport {
                files: Vec::new(),
                loaded_at: started_at.to_string(),
                reloads: 0,
                needs_restart: Vec::new(),
                ending: Vec::new(),
                error: None,
            }),
        }
    }

    /// Notes which files the config was read from.
    pub fn note_files(&self, files: Vec<String>) {
        lock(&self.config).files = files;
    }

    /// Notes that a changed config runs, but for these keys.
    pub fn note_reload(&self, needs_restart: Vec<&'static str>) {
        let mut config = lock(&self.config);
        config.loaded_at = clock::now().to_string();
        config.reloads += 1;
        config.needs_restart = needs_restart;
        config.error = None;
    }

    /// Notes that a changed config was refused.
    pub fn note_refused(&self, message: String, file: Option<String>) {
        let mut config = lock(&self.config);
        let first = config.error.take().map(|error| error.since);
        config.error = Some(ConfigError {
            message,
            file,
            since: first.unwrap_or_else(|| clock::now().to_string()),
        });
    }

    fn config(&self) -> ConfigReport {
        let ending = self.proxy.backends().retiring_servers();
        ConfigReport {
            ending: ending.iter().map(ToString::to_string).collect(),
            ..lock(&self.config).clone()
        }
    }

    /// Whether requests can be served: not while draining, nor when every enabled server failed. Lists
    /// are also while calls cannot be recorded.
    pub fn is_serving(&self) -> bool {
        !self.draining.is_cancelled() && !self.all_failed()
    }

    /// Whether the gateway takes new work, can record it, and has lists for clients.
    ///
    /// # Errors
    /// What is in the way.
    pub fn ready(&self) -> Result<(), NotReady> {
        self.blocked()?;
        let patience = self.proxy.settings().first_list_wait;
        if self.proxy.board().has_lists(patience) {
            Ok(())
        } else {
            Err(NotReady::Unlisted)
        }
    }

    /// What keeps calls from being served, if anything does.
    fn blocked(&self) -> Result<(), NotReady> {
        if self.draining.is_cancelled() {
            Err(NotReady::Draining)
        } else if self.all_failed() {
            Err(NotReady::Failed)
        } else if self.proxy.governance().audit().ready().is_err() {
            Err(NotReady::CannotRecord)
        } else {
            Ok(())
        }
    }

    fn all_failed(&self) -> bool {
        let mut enabled = self
            .proxy
            .backends()
            .all()
            .filter(|b| b.is_enabled())
            .peekable();
        enabled.peek().is_some()
            && enabled.all(|backend| match backend.state() {
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
                validation: match insight {
                    Insight::States => None,
                    Insight::Whole => self.proxy.governance().validation(&backend.name),
                },
                offers: Counts {
                    tools: offers.tools,
                    resources: offers.resources,
                    templates: offers.templates,
                    prompts: offers.prompts,
                },
                stored: self
                    .proxy
                    .board()
                    .stored(&backend.name)
                    .map(StoredReport::new),
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
            status: self.word(),
            started_at: self.started_at.to_string(),
            uptime_seconds: self.start.elapsed().as_secs(),
            config: match insight {
                Insight::States => None,
                Insight::Whole => Some(self.config()),
            },
            sessions: match insight {
                Insight::States => None,
                Insight::Whole => Some(self.sessions()),
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

    /// What it does, in a word.
    fn word(&self) -> &'static str {
        match self.blocked() {
            Err(NotReady::CannotRecord) => "cannot_record",
            Err(NotReady::Draining) => "draining",
            Err(NotReady::Failed) => "failed",
            Err(NotReady::Unlisted) | Ok(()) => "serving",
        }
    }

    fn governed(&self) -> Governed {
        let governance = self.proxy.governance();
        let audit = governance.audit();
        Governed {
            counts: governance.counts(),
            audit_chain: audit.chain().map(|chain| chain.to_string()),
            audit_error: audit.ready().err().map(|error| error.to_string()),
            audit_lost: audit.lost(),
            budget_error: governance.budgets().and_then(Budgets::failure),
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
                session: session.mark.clone(),
                agent: session.agent.name.clone(),
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
             <p><b class={status}>{status}</b>, started {uptime} s ago; {sessions}{tools} tools, \
             {resources} resources, {prompts} prompts listed. \
             The same as <a href='?format=json'>JSON</a>.</p>{trouble}{lost}\
             <table><tr><th>Server<th>State<th>Transport<th>Revision<th>Tools<th>Resources\
             <th>Prompts<th>Calls<th>p50 ms<th>p99 ms<th>Restarts<th>Last listed{rows}</table>{governance}",
            trouble = overview.config.as_ref().map(trouble).unwrap_or_default(),
            lost = overview.governance.as_ref().map(unkept).unwrap_or_default(),
            governance = overview
                .governance
                .as_ref()
                .map(counted)
                .unwrap_or_default(),
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

/// What an operator has to mend or to know of the config.
fn trouble(config: &ConfigReport) -> String {
    let mut text = String::new();
    if let Some(error) = &config.error {
        let (since, message) = (escape(&error.since), escape(&error.message));
        write!(
            text,
            "<p class=failed>The changed config is refused since {since}:</p><pre>{message}</pre>"
        )
        .expect("a String takes all");
    }
    if !config.needs_restart.is_empty() {
        let keys = config.needs_restart.join(", ");
        write!(
            text,
            "<p class=draining>Changed, but needs a restart: {keys}</p>"
        )
        .expect("a String takes all");
    }
    text
}

/// Why calls cannot be recorded, or what they cost cannot be kept.
fn unkept(governed: &Governed) -> String {
    let errors = [
        ("audit_error", &governed.audit_error),
        ("budget_error", &governed.budget_error),
    ];
    let told = errors.into_iter().filter_map(|(name, error)| {
        let error = escape(error.as_deref()?);
        Some(format!("<p class=failed>{name}: {error}</p>"))
    });
    told.collect()
}

/// What governance did.
fn counted(governed: &Governed) -> String {
    let governance::Counts {
        refused,
        observed,
        unauthenticated,
    } = &governed.counts;
    let counts = [
        ("refused", refused),
        ("observed", observed),
        ("unauthenticated", unauthenticated),
    ];
    let mut text = "<h2>Governance</h2><table>".to_owned();
    for (name, counts) in counts {
        let counts: Vec<String> = counts.iter().map(|(of, n)| format!("{of} {n}")).collect();
        let counts = match &counts[..] {
            [] => "none".to_owned(),
            some => escape(&some.join(", ")),
        };
        write!(text, "<tr><th>{name}<td>{counts}").expect("a String takes all");
    }
    let chain = governed.audit_chain.as_deref().unwrap_or("none");
    write!(
        text,
        "<tr><th>audit_chain<td>{}<tr><th>audit_lost<td>{}</table>",
        escape(chain),
        governed.audit_lost
    )
    .expect("a String takes all");
    text
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
.connected,.serving{color:#0a7d33}.failed,.needs_reauth,.degraded,.cannot_record{color:#b3261e}\
.connecting,.disconnected,.draining{color:#9a6700}.disabled{color:#777}\
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#333}\
pre{color:#aaa}a{color:#8ab4f8}}";

fn row(server: &ServerReport) -> String {
    let report = &server.report;
    let state = report.state.as_str();
    let millis = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    let mut row = format!(
        "<tr><td><b>{}</b><td class={state} title='since {}'>{state}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        escape(&report.name),
        escape(&report.since),
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
    notes.extend(breaker_note(&report.breaker));
    notes.extend(history_notes(&report.history));
    notes.extend(instance_notes(&report.instances));
    if let Some(stored) = &server.stored {
        let age = stored.age_seconds;
        notes.push(format!(
            "stored: it offers what it listed {age} s ago, before this start"
        ));
    }
    notes.extend(server.problems.iter().cloned());
    let unusable = server.validation.iter().flat_map(|it| &it.unusable);
    notes.extend(
        unusable.map(|(tool, problem)| {
            format!("the input schema of `{tool}` cannot be used: {problem}")
        }),
    );
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

/// What there is to say of a breaker that holds calls back.
fn breaker_note(breaker: &BreakerReport) -> Option<String> {
    if breaker.state == "closed" {
        return None;
    }
    let wait = breaker
        .retry_in_ms
        .map(|wait| format!(", for another {wait} ms"));
    Some(format!(
        "breaker {}{}: it keeps failing, and calls are answered at once",
        breaker.state,
        wait.unwrap_or_default()
    ))
}

/// The last changes of state of a server that was in another state than it should.
fn history_notes(history: &[Transition]) -> impl Iterator<Item = String> {
    let is_odd = history.iter().any(|past| past.state.is_trouble());
    let shown = if is_odd { HISTORY_SHOWN } else { 0 };
    let last = &history[history.len().saturating_sub(shown)..];
    last.iter().map(|past| {
        let reason = past.reason.as_deref().map(|reason| format!(": {reason}"));
        let (at, state) = (&past.at, past.state.as_str());
        format!("{at} {state}{}", reason.unwrap_or_default())
    })
}

/// A line for each instance beside the catalog's, as far as there is room; those that do not do well come first.
fn instance_notes(instances: &[InstanceReport]) -> Vec<String> {
    let is_well = |it: &InstanceReport| it.asleep || !it.state.is_trouble();
    let mut ordered: Vec<&InstanceReport> = instances.iter().collect();
    ordered.sort_by_key(|instance| is_well(instance));
    let shown = ordered.iter().take(INSTANCES_SHOWN);
    let mut notes: Vec<String> = shown.map(|it| instance_note(it)).collect();
    let more = ordered.len().saturating_sub(INSTANCES_SHOWN);
    if more > 0 {
        notes.push(format!("instances that only the JSON has: {more}"));
    }
    notes
}

fn instance_note(instance: &InstanceReport) -> String {
    let whose = match (&instance.agent, &instance.session) {
        (Some(agent), Some(session)) => format!(" of {agent}, session {session}"),
        (Some(agent), None) => format!(" of {agent}"),
        (None, _) => String::new(),
    };
    let replica = instance.replica.as_ref();
    let replica = replica.map(|name| format!(" at replica {name}"));
    let state = if instance.asleep {
        "asleep"
    } else {
        instance.state.as_str()
    };
    let reason = instance.reason.as_deref().map(|it| format!(": {it}"));
    format!(
        "{} instance {}{}{whose} is {state}{}",
        instance.since,
        instance.number,
        replica.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}

/// Instances of a server on the page; the JSON has more.
const INSTANCES_SHOWN: usize = 20;

/// Changes of state on the page; the JSON has more.
const HISTORY_SHOWN: usize = 6;

/// Lines of stderr on the page; the JSON has more.
const STDERR_SHOWN: usize = 5;

/// `text` on the page, whose source may be read in a terminal.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text::escaped(text, &['\n', '\t']).chars() {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Checks;

    #[test]
    fn what_servers_say_is_neither_markup_nor_steering() {
        let said = "<b>\u{1b}[2J & 'x'\n\u{202e}\"";
        let expect = "&lt;b&gt;\\u001b[2J &amp; &#39;x&#39;\n\\u202e&quot;";
        assert_eq!(escape(said), expect);
    }

    #[test]
    fn of_many_instances_those_in_trouble_are_shown() {
        let instance = |number, state| InstanceReport {
            number,
            replica: Some("b".to_owned()),
            agent: None,
            session: None,
            era: "legacy",
            state,
            since: "then".to_owned(),
            asleep: false,
            reason: None,
            history: Vec::new(),
            pid: None,
            restarts: 0,
            failed_starts: 0,
            health_checks: Checks::default(),
            in_flight: 0,
            odd_lines: 0,
            stderr: Vec::new(),
        };
        let shown = u64::try_from(INSTANCES_SHOWN).unwrap();
        let mut all: Vec<_> = (1..shown)
            .map(|number| instance(number, State::Connected))
            .collect();
        all.push(instance(shown, State::Failed));
        let notes = instance_notes(&all);
        assert_eq!(notes.len(), INSTANCES_SHOWN);
        let failed = format!("then instance {shown} at replica b is failed");
        assert_eq!(notes[0], failed);
        assert_eq!(notes[1], "then instance 1 at replica b is connected");
        all.push(instance(shown + 1, State::Connected));
        let last = instance_notes(&all).pop();
        assert_eq!(last.unwrap(), "instances that only the JSON has: 1");
    }
}
