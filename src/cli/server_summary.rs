//! How servers do, for `check --connect` and `list servers`.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};

use super::output::{eprint, escape_terminal};
use crate::{
    backend::{
        ReplicaReport, STDERR_SEPARATOR, ServerState, ServerStatusReport, reason_from_stderr,
    },
    catalog::{ByKind, Kind},
    store::GrantOwner,
};

/// What is read of a server in the status of a running gateway.
#[derive(Debug, Deserialize)]
struct ReportedServer {
    name: String,
    state: ServerState,
    transport: String,
    revision: Option<String>,
    server_info: Option<serde_json::Value>,
    last_listed: Option<String>,
    offers: ReportedCounts,
    reason: Option<String>,
    lists_from: Option<String>,
    #[serde(default)]
    stderr: Vec<String>,
}

#[derive(Debug, Deserialize)]
struct ReportedCounts {
    tools: usize,
    resources: usize,
    templates: usize,
    prompts: usize,
}

/// The servers in the `status` of a running gateway.
///
/// # Errors
/// When it is not the status of a gateway of this version.
pub(super) fn servers_in_status(
    status: &serde_json::Value,
) -> Result<Vec<FoundServer>, serde_json::Error> {
    let servers = Vec::<ReportedServer>::deserialize(&status["servers"])?;
    Ok(servers.into_iter().map(FoundServer::from).collect())
}

impl From<ReportedServer> for FoundServer {
    fn from(reported: ReportedServer) -> Self {
        let offers = reported.offers;
        let is_listed = reported.last_listed.is_some();
        Self {
            server: reported.name,
            state: reported.state,
            transport: reported.transport.into(),
            revision: reported.revision.map(Cow::from),
            server_info: reported.server_info,
            latency_ms: None,
            tools: offers.tools,
            resources: offers.resources,
            templates: offers.templates,
            prompts: offers.prompts,
            known: ByKind::from_fn(|_| is_listed),
            reason: reported.reason,
            lists_from: reported.lists_from,
            replicas: Vec::new(),
            stderr: reported.stderr,
        }
    }
}

/// One server.
#[derive(Debug, Serialize)]
pub(super) struct FoundServer {
    /// Its name.
    pub(super) server: String,
    /// As in `/status`.
    pub(super) state: ServerState,
    /// How it is reached.
    pub(super) transport: Cow<'static, str>,
    /// The revision it speaks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) revision: Option<Cow<'static, str>>,
    /// What it calls itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) server_info: Option<serde_json::Value>,
    /// From the start to the end of its lists, milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) latency_ms: Option<f64>,
    /// How many it has.
    pub(super) tools: usize,
    /// How many it has.
    pub(super) resources: usize,
    /// How many it has.
    pub(super) templates: usize,
    /// How many it has.
    pub(super) prompts: usize,
    /// Why it is not connected, or not well.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
    /// Whose grant its lists come from, as in `/status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) lists_from: Option<String>,
    /// Whether it is known how many.
    #[serde(skip)]
    known: ByKind<bool>,
    /// Its replicas, as in `/status`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) replicas: Vec<ReplicaReport>,
    /// Its last lines on stderr, when it is not connected.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) stderr: Vec<String>,
}

impl FoundServer {
    /// From what is known of a server `latency` after its start.
    pub(super) fn new(
        report: ServerStatusReport,
        offers: ByKind<usize>,
        latency: Duration,
    ) -> Self {
        let connected = report.state == ServerState::Connected;
        Self {
            server: report.name,
            state: report.state,
            transport: report.transport.into(),
            revision: report.revision.map(Cow::from),
            server_info: report.server_info,
            latency_ms: connected.then(|| round_ms(latency)),
            tools: offers.tools,
            resources: offers.resources,
            templates: offers.templates,
            prompts: offers.prompts,
            known: ByKind::default(),
            reason: report.reason,
            lists_from: report.list_owner.map(|owner| match owner {
                GrantOwner::Agent(agent) => agent.to_string(),
                GrantOwner::Gateway => "gateway".to_owned(),
            }),
            replicas: report.replicas,
            stderr: if connected { Vec::new() } else { report.stderr },
        }
    }

    /// The same where it is `known` or not how many it has.
    pub(super) fn with_known(self, known: ByKind<bool>) -> Self {
        Self { known, ..self }
    }

    /// What is wrong with single replicas of a server that is there all the same.
    pub(super) fn unhealthy_replicas(&self) -> impl Iterator<Item = String> {
        let replicas = self.replicas.iter().filter(|_| self.is_up());
        let odd = replicas.filter(|replica| replica.state != ServerState::Connected);
        odd.map(|replica| {
            let (server, name, state) = (&self.server, &replica.name, replica.state.as_str());
            let reason = replica.reason.as_ref().map(|reason| format!(": {reason}"));
            let reason = reason.unwrap_or_default();
            format!("{server}: replica `{name}` is {state}{reason}")
        })
    }

    pub(super) fn is_connected(&self) -> bool {
        self.state == ServerState::Connected
    }

    /// Whether it is connected, however well.
    pub(super) fn is_up(&self) -> bool {
        match self.state {
            ServerState::Connected | ServerState::Degraded => true,
            ServerState::Connecting
            | ServerState::Disabled
            | ServerState::Disconnected
            | ServerState::Failed
            | ServerState::NeedsReauth
            | ServerState::NeedsSignIn => false,
        }
    }

    /// Whether a running gateway lists what it has: it may be asleep until it is used.
    pub(super) fn is_listed(&self) -> bool {
        let is_asleep = self.state == ServerState::Disconnected && self.known.tools;
        self.is_up() || is_asleep || self.state == ServerState::Disabled
    }

    /// Says on stderr that it is in `state`, and why.
    pub(super) fn report(&self, state: &str) {
        let line = format!(
            "server `{}` is {state}: {}",
            self.server,
            self.explanation()
        );
        eprint(&format!("{}\n", escape_terminal(&line)));
    }

    /// The state in a word.
    pub(super) fn state(&self) -> &'static str {
        self.state.as_str()
    }

    /// How many items of `kinds` it has, for people; nothing where that is not known.
    pub(super) fn count(&self, kinds: &[Kind]) -> String {
        let is_known = kinds.iter().all(|kind| self.known[*kind]);
        if !self.is_up() || !is_known {
            return String::new();
        }
        let counts = kinds.iter().map(|kind| match kind {
            Kind::Tools => self.tools,
            Kind::Resources => self.resources,
            Kind::Templates => self.templates,
            Kind::Prompts => self.prompts,
        });
        counts.sum::<usize>().to_string()
    }

    /// Why it is not connected, with its own words where they are not part of that; why it is not well.
    pub(super) fn explanation(&self) -> String {
        let source = self.lists_from.as_ref().filter(|_| self.is_connected());
        let source = source.map(|source| format!("listed with the grant of {source}"));
        let reason = self.reason.clone().or(source).unwrap_or_default();
        // That of a program that ended has them; the lines here are of earlier starts too.
        if self.is_up() || reason.contains(STDERR_SEPARATOR) {
            return reason;
        }
        let lines: Vec<_> = self.stderr.iter().map(String::as_str).collect();
        match reason_from_stderr(&lines) {
            Some(words) if !reason.contains(&words) => format!("{reason}{STDERR_SEPARATOR}{words}"),
            Some(_) | None => reason,
        }
    }
}

/// Milliseconds with one decimal.
fn round_ms(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e4).round() / 10.0
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The words of a program are shown once, and those of its last start alone where that is known.
    #[test]
    fn an_explanation_has_the_words_of_a_program_once() {
        let check = |state: &str, reason: &str, stderr: &[&str], expect: &str| {
            let offers = json!({ "tools": 0, "resources": 0, "templates": 0, "prompts": 0 });
            let server = json!({
                "name": "a", "state": state, "transport": "stdio", "offers": offers, "reason": reason,
                "stderr": stderr,
            });
            let servers = servers_in_status(&json!({ "servers": [server] })).unwrap();
            assert_eq!(servers[0].explanation(), expect);
        };
        let words = ["starting", "no key", "starting", "no key"];
        let ended = "connection lost: exited (exit status: 1); on stderr: starting | no key";
        check("failed", ended, &words, ended);
        check(
            "failed",
            "no response yet",
            &words[..2],
            "no response yet; on stderr: starting | no key",
        );
        check("degraded", "slow", &words, "slow");
        check("failed", "no such file", &[], "no such file");
    }
}
