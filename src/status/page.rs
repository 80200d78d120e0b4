//! The page of the status: what the JSON has, as far as it fits, for whoever may see that.

use std::fmt::Write as _;

use super::{
    ConfigReport, Confinement, Governed, ServerReport, StateReport, Status, StatusAccess,
    StatusStates,
};
use crate::{
    backend::{
        BreakerReport, CallerBreaker, InstanceReport, ReplicaReport, ServerState, Transition,
    },
    escape, governance,
};

impl Status {
    /// The page for a browser.
    pub fn render_page(&self, access: &StatusAccess) -> String {
        let Some(detail) = access.detail() else {
            return self.render_states_page();
        };
        let overview = self.overview(access, detail);
        let mut rows = String::new();
        for server in &overview.servers {
            rows.push_str(&server_row(server));
        }
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8>\
             <meta name=viewport content='width=device-width'><meta http-equiv=refresh content=5>\
             <title>Tollbridge: {status}</title><style>{STYLE}</style>\
             <h1>Tollbridge {version}</h1>\
             <p><b class={status}>{status}</b>, started {uptime} s ago; {sessions}{tools} tools, \
             {resources} resources, {prompts} prompts listed. \
             The same as <a href='?format=json'>JSON</a>.</p>{config_problems}{lost}{open}\
             <table><tr><th>Server<th>State<th>Transport<th>Revision<th>Tools<th>Resources\
             <th>Prompts<th>Calls<th>Under way<th>p50 ms<th>p99 ms<th>Pid<th>Restarts<th>Last listed{rows}</table>{governance}",
            config_problems = overview
                .config
                .as_ref()
                .map(config_problems)
                .unwrap_or_default(),
            lost = overview
                .governance
                .as_ref()
                .map(governance_problems)
                .unwrap_or_default(),
            open = overview
                .confinement
                .as_ref()
                .map(confinement_gaps)
                .unwrap_or_default(),
            governance = overview
                .governance
                .as_ref()
                .map(governance_counts)
                .unwrap_or_default(),
            status = overview.status,
            version = overview.version,
            uptime = overview.uptime_seconds,
            sessions = overview
                .sessions_open
                .map(|open| format!("{open} sessions, "))
                .unwrap_or_default(),
            tools = overview.listed.tools,
            resources = overview.listed.resources,
            prompts = overview.listed.prompts,
        )
    }
}

impl Status {
    /// The page for those who may see nothing but states.
    fn render_states_page(&self) -> String {
        let StatusStates { status, servers } = self.states();
        let mut rows = String::new();
        for StateReport { state } in servers {
            let state = state.as_str();
            write!(rows, "<tr><td class={state}>{state}").expect("a String takes all");
        }
        format!(
            "<!doctype html><html lang=en><meta charset=utf-8>\
             <meta name=viewport content='width=device-width'><meta http-equiv=refresh content=5>\
             <title>Tollbridge: {status}</title><style>{STYLE}</style><h1>Tollbridge</h1>\
             <p><b class={status}>{status}</b>. The same as <a href='?format=json'>JSON</a>; the key of an \
             agent shows more.</p><table><tr><th>State of a server{rows}</table>"
        )
    }
}

/// What an operator has to mend or to know of the config.
fn config_problems(config: &ConfigReport) -> String {
    let mut text = String::new();
    if let Some(error) = &config.error {
        let (since, message) = (escape_html(&error.since), escape_html(&error.message));
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

/// Why calls cannot be recorded, or what they cost cannot be kept, what became of the database, and which
/// keys expire soon.
fn governance_problems(report: &Governed) -> String {
    let errors = [
        ("audit_error", &report.audit_error),
        ("audit_warning", &report.audit_warning),
        ("budget_error", &report.budget_error),
        ("store_error", &report.store_error),
    ];
    let failing = errors.into_iter().filter_map(|(name, error)| {
        let error = escape_html(error.as_deref()?);
        Some(format!("<p class=failed>{name}: {error}</p>"))
    });
    let expiring = report.keys_expiring.iter().map(|it| {
        let (key, agent, expires) = (
            escape_html(&it.key),
            escape_html(&it.agent),
            escape_html(&it.expires),
        );
        format!("<p class=draining>The key {key} of {agent} expires at {expires}.</p>")
    });
    failing.chain(expiring).collect()
}

/// What programs are not kept from.
fn confinement_gaps(confinement: &Confinement) -> String {
    if confinement.lacking.is_empty() {
        return String::new();
    }
    format!("<p class=draining>{}</p>", confinement.lacking.join("; "))
}

/// What governance did.
fn governance_counts(report: &Governed) -> String {
    let governance::RefusalCounts {
        refused,
        observed,
        held_back,
        unauthenticated,
        forbidden,
    } = &report.counts;
    let counts = [
        ("refused", refused),
        ("observed", observed),
        ("unauthenticated", unauthenticated),
        ("forbidden", forbidden),
    ];
    let mut text = "<h2>Governance</h2><table>".to_owned();
    for (name, counts) in counts {
        let counts: Vec<String> = counts.iter().map(|(of, n)| format!("{of} {n}")).collect();
        let counts = match &counts[..] {
            [] => "none".to_owned(),
            some => escape_html(&some.join(", ")),
        };
        write!(text, "<tr><th>{name}<td>{counts}").expect("a String takes all");
    }
    let chain = report.audit_chain.as_deref().unwrap_or("none");
    write!(
        text,
        "<tr><th>held_back<td>{held_back}<tr><th>audit_chain<td>{}<tr><th>audit_lost<td>{}</table>",
        escape_html(chain),
        report.audit_lost
    )
    .expect("a String takes all");
    text
}

/// What lets a browser use the page as it is, and do nothing else with it. The hash is that of the style.
pub const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; \
    style-src 'sha256-g7OMnrHyPQcbTM3IXaIEtztjSJfaiKvSGwotF07z62s='; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'";

pub(super) const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;max-width:75em;\
padding:0 1em;color:#222;background:#fff}table{border-collapse:collapse;width:100%}\
th,td{text-align:left;padding:.35em .7em;border-bottom:1px solid #ddd;vertical-align:top}\
pre{margin:.3em 0;white-space:pre-wrap;font-size:13px;color:#555}\
.connected,.serving{color:#0a7d33}.failed,.needs_reauth,.degraded,.cannot_record{color:#b3261e}\
.connecting,.disconnected,.draining{color:#9a6700}.disabled{color:#777}\
@media(prefers-color-scheme:dark){body{background:#161616;color:#ddd}th,td{border-color:#333}\
pre{color:#aaa}a{color:#8ab4f8}}";

fn server_row(server: &ServerReport) -> String {
    let report = &server.report;
    let state = report.state.as_str();
    let millis = |value: Option<f64>| value.map(|value| format!("{value:.2}")).unwrap_or_default();
    let mut row = format!(
        "<tr><td><b>{}</b><td class={state} title='since {}'>{state}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}",
        escape_html(&report.name),
        escape_html(&report.since),
        report.transport,
        report.revision.unwrap_or_default(),
        offered_count(server, server.offers.tools, &["tools"]),
        offered_count(
            server,
            server.offers.resources + server.offers.templates,
            &["resources", "templates"]
        ),
        offered_count(server, server.offers.prompts, &["prompts"]),
        report.answered,
        report.in_flight,
        millis(report.latency_ms_p50),
        millis(report.latency_ms_p99),
        report.pid.map(|pid| pid.to_string()).unwrap_or_default(),
        report.restarts,
        escape_html(report.last_listed.as_deref().unwrap_or_default()),
    );
    let mut notes = report.reason.iter().cloned().collect::<Vec<_>>();
    notes.extend(breaker_note(&report.breaker));
    notes.extend(caller_breaker_notes(&report.caller_breakers));
    notes.extend(history_notes(&report.history));
    notes.extend(replica_notes(&report.replicas));
    notes.extend(instance_notes(&report.instances));
    if let Some(stored) = &server.stored {
        let age = stored.age_seconds;
        notes.push(format!("stored: listed {age} s ago, before this start"));
    }
    notes.extend(server.problems.iter().cloned());
    if let Some(line) = &report.last_odd_line {
        notes.push(format!(
            "{} stray lines on stdout, the last: {line}",
            report.odd_lines
        ));
    }
    if !notes.is_empty() || !report.stderr.is_empty() {
        let tail = report.stderr.iter().rev().take(STDERR_SHOWN).rev().cloned();
        let text: Vec<String> = notes.into_iter().chain(tail).collect();
        write!(
            row,
            "<tr><td colspan=14><pre>{}</pre>",
            escape_html(&text.join("\n"))
        )
        .expect("a String takes all");
    }
    row
}

/// How many of these `kinds` a server offers, where that is known.
fn offered_count(server: &ServerReport, count: usize, kinds: &[&str]) -> String {
    let is_unknown = kinds.iter().any(|kind| server.unlisted.contains(kind));
    if count == 0 && is_unknown {
        return "?".to_owned();
    }
    count.to_string()
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
        "circuit breaker {}{}: calls fail fast",
        breaker.state,
        wait.unwrap_or_default()
    ))
}

/// A line for each breaker that holds back the calls of one caller, as far as there is room.
fn caller_breaker_notes(breakers: &[CallerBreaker]) -> Vec<String> {
    let none_is_well = |_: &CallerBreaker| false;
    notes_up_to_limit(
        "breakers of callers",
        breakers,
        none_is_well,
        caller_breaker_note,
    )
}

fn caller_breaker_note(breaker: &CallerBreaker) -> String {
    let (agent, session) = (breaker.agent.as_deref(), breaker.session.as_deref());
    let agent = agent.map(|agent| format!(" for agent {agent}"));
    let session = session.map(|session| format!(", session {session}"));
    let replica = breaker.replica.as_ref();
    let replica = replica.map(|name| format!(" at replica {name}"));
    let note = breaker_note(&breaker.breaker).unwrap_or_default();
    format!(
        "{note}{}{}{}",
        agent.unwrap_or_default(),
        session.unwrap_or_default(),
        replica.unwrap_or_default()
    )
}

/// The last changes of state of a server that was in another state than it should.
fn history_notes(history: &[Transition]) -> impl Iterator<Item = String> {
    let is_odd = history.iter().any(|past| past.state.needs_attention());
    let shown = if is_odd { HISTORY_SHOWN } else { 0 };
    let last = &history[history.len().saturating_sub(shown)..];
    last.iter().map(|past| {
        let reason = past.reason.as_deref().map(|reason| format!(": {reason}"));
        let (at, state) = (&past.at, past.state.as_str());
        format!("{at} {state}{}", reason.unwrap_or_default())
    })
}

/// A line for each replica, as far as there is room.
fn replica_notes(replicas: &[ReplicaReport]) -> Vec<String> {
    let is_well = |it: &ReplicaReport| {
        it.out_for_ms.is_none()
            && it.breaker.state == "closed"
            && (it.asleep || !it.state.needs_attention())
    };
    notes_up_to_limit("replicas", replicas, is_well, replica_note)
}

fn replica_note(replica: &ReplicaReport) -> String {
    let state = state_text(replica.asleep, replica.state);
    let address = match &replica.address[..] {
        "" => String::new(),
        address => format!(" at {address}"),
    };
    let reason = replica.reason.as_deref().map(|it| format!(": {it}"));
    let breaker = match replica.breaker.state {
        "closed" => String::new(),
        other => format!(", breaker {other}"),
    };
    let out = replica.out_for_ms;
    let out = out.map(|wait| format!(", without calls for another {wait} ms"));
    format!(
        "replica {}{address} is {state}{breaker}{}{}",
        replica.name,
        out.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}

/// A line for each instance beside the catalog's, as far as there is room.
fn instance_notes(instances: &[InstanceReport]) -> Vec<String> {
    let is_well = |it: &InstanceReport| it.asleep || !it.state.needs_attention();
    notes_up_to_limit("instances", instances, is_well, instance_note)
}

/// A line for each of `all`; those that do not do well come first.
fn notes_up_to_limit<T>(
    name: &str,
    all: &[T],
    is_well: impl Fn(&T) -> bool,
    note: impl Fn(&T) -> String,
) -> Vec<String> {
    let mut ordered: Vec<&T> = all.iter().collect();
    ordered.sort_by_key(|it| is_well(it));
    let shown = ordered.iter().take(INSTANCES_SHOWN);
    let mut notes: Vec<String> = shown.map(|it| note(it)).collect();
    let more = ordered.len().saturating_sub(INSTANCES_SHOWN);
    if more > 0 {
        notes.push(format!("{name} shown only in the JSON: {more}"));
    }
    notes
}

fn state_text(asleep: bool, state: ServerState) -> &'static str {
    if asleep { "asleep" } else { state.as_str() }
}

fn instance_note(instance: &InstanceReport) -> String {
    let whose = match (&instance.agent, &instance.session) {
        (Some(agent), Some(session)) => format!(" of {agent}, session {session}"),
        (Some(agent), None) => format!(" of {agent}"),
        (None, _) => String::new(),
    };
    let replica = instance.replica.as_ref();
    let replica = replica.map(|name| format!(" at replica {name}"));
    let state = state_text(instance.asleep, instance.state);
    let reason = instance.reason.as_deref().map(|it| format!(": {it}"));
    format!(
        "{} instance {}{}{whose} is {state}{}",
        instance.since,
        instance.number,
        replica.unwrap_or_default(),
        reason.unwrap_or_default()
    )
}

/// Instances of a server on the page, and replicas; the JSON has more.
const INSTANCES_SHOWN: usize = 20;

/// Changes of state on the page; the JSON has more.
const HISTORY_SHOWN: usize = 6;

/// Lines of stderr on the page; the JSON has more.
const STDERR_SHOWN: usize = 5;

/// `text` on the page, whose source may be read in a terminal.
fn escape_html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in escape::escape_controls(text, &['\n', '\t']).chars() {
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
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use sha2::{Digest as _, Sha256};

    use super::*;
    use crate::backend::HealthChecks;

    #[test]
    fn browsers_take_the_style_and_nothing_else() {
        let hash = BASE64_STANDARD.encode(Sha256::digest(STYLE));
        let allowed = format!("style-src 'sha256-{hash}'");
        assert!(CONTENT_SECURITY_POLICY.contains(&allowed), "{allowed}");
        assert!(CONTENT_SECURITY_POLICY.starts_with("default-src 'none';"));
    }

    #[test]
    fn what_servers_say_is_neither_markup_nor_steering() {
        let said = "<b>\u{1b}[2J & 'x'\n\u{202e}\"";
        let expect = "&lt;b&gt;\\u001b[2J &amp; &#39;x&#39;\n\\u202e&quot;";
        assert_eq!(escape_html(said), expect);
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
            health_checks: HealthChecks::default(),
            in_flight: 0,
            odd_lines: 0,
            stderr: Vec::new(),
        };
        let shown = u64::try_from(INSTANCES_SHOWN).unwrap();
        let mut all: Vec<_> = (1..shown)
            .map(|number| instance(number, ServerState::Connected))
            .collect();
        all.push(instance(shown, ServerState::Failed));
        let notes = instance_notes(&all);
        assert_eq!(notes.len(), INSTANCES_SHOWN);
        let failed = format!("then instance {shown} at replica b is failed");
        assert_eq!(notes[0], failed);
        assert_eq!(notes[1], "then instance 1 at replica b is connected");
        all.push(instance(shown + 1, ServerState::Connected));
        let last = instance_notes(&all).pop();
        assert_eq!(last.unwrap(), "instances shown only in the JSON: 1");
    }
}
