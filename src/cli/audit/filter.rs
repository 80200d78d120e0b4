//! Which records are wanted, as it is said on a command line.

use std::fmt::Write as _;

use clap::Args;
use jiff::{Timestamp, civil, tz::TimeZone};
use uuid::Uuid;

use super::super::{
    data_dir::{CommandError, KnownAgents},
    output::eprint,
    suggest::did_you_mean,
};
use crate::{
    audit::{RecordFilter, RecordedDecision},
    clock,
    names::{AgentId, InvocationId, ServerName},
};

/// Which records are wanted; everything that is given must hold.
#[derive(Args, Debug)]
pub(super) struct FilterArgs {
    /// Only calls of this agent (name or id)
    #[arg(long, value_name = "NAME")]
    agent: Option<String>,
    /// Only calls of this server
    #[arg(long, value_name = "NAME")]
    server: Option<String>,
    /// Only calls of this tool: the server's name, `server/tool`, or the exposed name
    #[arg(long, value_name = "NAME")]
    tool: Option<String>,
    /// Only this decision: allowed, failed, interrupted, observed or refused
    #[arg(long, value_name = "DECISION")]
    decision: Option<RecordedDecision>,
    /// Not before: a time (2026-11-22T10:00:00Z, or a date, UTC) or an age (2h)
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    since: Option<Timestamp>,
    /// Before: a time or an age
    #[arg(long, value_name = "WHEN", value_parser = parse_time)]
    pub(super) until: Option<Timestamp>,
    /// Only the call with this id, `inv_...`
    #[arg(long, value_name = "ID", value_parser = parse_invocation)]
    id: Option<InvocationId>,
}

/// The same as the log understands it.
#[derive(Debug)]
pub(super) struct RecordQuery {
    pub(super) filter: RecordFilter,
    /// What to say when nothing is found: there is no such agent.
    pub(super) unknown_agent: Option<CommandError>,
}

impl FilterArgs {
    pub(super) fn resolve(&self, agents: &KnownAgents) -> Result<RecordQuery, CommandError> {
        check_order(self.since, self.until)?;
        let (agent, unknown_agent) = match self.agent.as_deref() {
            None => (None, None),
            Some(name) => match agents.agent(name) {
                Ok(agent) => (Some(agent.id), None),
                // It may have been removed; its records stay.
                Err(unknown) => {
                    let id = name.parse().unwrap_or_else(|_| AgentId::from_name(name));
                    (Some(id), Some(unknown))
                }
            },
        };
        let (server, tool) = self.split_server_and_tool(agents);
        Ok(RecordQuery {
            filter: RecordFilter {
                agent: agent.map(|id| id.to_string()),
                tool,
                server,
                decision: self.decision,
                since: self.since,
                until: self.until,
                limit: None,
                id: self.id,
            },
            unknown_agent,
        })
    }

    /// Says that no record is of that kind, and what may have been meant instead.
    ///
    /// # Errors
    /// When there is no such agent.
    pub(super) fn report_nothing_found(
        &self,
        unknown_agent: Option<CommandError>,
        agents: &KnownAgents,
    ) -> Result<(), CommandError> {
        if let Some(unknown) = unknown_agent {
            return Err(unknown);
        }
        let (server, tool) = self.split_server_and_tool(agents);
        let known = || agents.config.servers.keys().map(ServerName::as_str);
        let mut text = "no record matches".to_owned();
        if let Some(server) = server.filter(|server| known().all(|name| name != server)) {
            let near = did_you_mean(&server, known().map(|name| [name]));
            write!(text, "; unknown server `{server}`{near}").expect("a String takes all");
        } else if let Some(tool) = tool
            && let Some((server, _)) = tool.split_once('/')
        {
            let near = did_you_mean(server, known().map(|name| [name]));
            write!(text, "; unknown server `{server}`{near}").expect("a String takes all");
        }
        text.push('\n');
        eprint(&text);
        Ok(())
    }

    /// `server/tool` says both.
    fn split_server_and_tool(&self, agents: &KnownAgents) -> (Option<String>, Option<String>) {
        let both = self.tool.as_deref().and_then(|tool| tool.split_once('/'));
        let is_server = |name: &str| {
            let mut servers = agents.config.servers.keys();
            servers.any(|server| server.as_str() == name)
        };
        match both.filter(|(server, _)| self.server.is_none() && is_server(server)) {
            Some((server, tool)) => (Some(server.to_owned()), Some(tool.to_owned())),
            None => (self.server.clone(), self.tool.clone()),
        }
    }
}

/// Refuses two ends of a time that has nothing in it, which are most likely swapped.
///
/// # Errors
/// Says so.
pub(super) fn check_order(
    since: Option<Timestamp>,
    until: Option<Timestamp>,
) -> Result<(), CommandError> {
    let (Some(since), Some(until)) = (since, until) else {
        return Ok(());
    };
    if since < until {
        return Ok(());
    }
    Err(CommandError::usage(format!(
        "--since {since:.0} is not before --until {until:.0}"
    )))
}

/// Reads a time, a date or a duration before now.
pub(super) fn parse_time(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(time);
    }
    let utc = |at: civil::DateTime| at.to_zoned(TimeZone::UTC).map(|at| at.timestamp());
    if let Ok(at) = text.parse::<civil::DateTime>() {
        return utc(at).map_err(|error| error.to_string());
    }
    let ago = humantime::parse_duration(text).ok();
    let time = ago.and_then(|ago| clock::now().checked_sub(ago).ok());
    time.ok_or_else(|| {
        "use a time such as 2026-11-22T10:00:00Z, a date, or a duration before now such as \
         2h"
        .to_owned()
    })
}

fn parse_invocation(text: &str) -> Result<InvocationId, String> {
    let uuid = text.strip_prefix("inv_").map(Uuid::try_parse);
    match uuid {
        Some(Ok(uuid)) => Ok(InvocationId(uuid)),
        Some(Err(_)) | None => Err("an id consists of `inv_` and a UUID".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_times_dates_and_durations() {
        let check = |text: &str, expect: &str| {
            let read = parse_time(text).map(|at| at.to_string());
            assert_eq!(read.as_deref(), Ok(expect), "{text}");
        };
        check("2026-11-22T10:00:00Z", "2026-11-22T10:00:00Z");
        check("2026-11-22T10:00:00+02:00", "2026-11-22T08:00:00Z");
        check("2026-11-22T10:00:00", "2026-11-22T10:00:00Z");
        check("2026-11-22 10:00", "2026-11-22T10:00:00Z");
        check("2026-11-22", "2026-11-22T00:00:00Z");
        let then = parse_time("2h").expect("a duration");
        let ago = clock::now().duration_since(then);
        assert!((7200..7260).contains(&ago.as_secs()), "{ago}");
        for wrong in ["", "yesterday", "2026-13-01", "-2h", "99999999y"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn ids_are_read_as_they_are_written() {
        let id = InvocationId(Uuid::now_v7());
        assert_eq!(parse_invocation(&id.to_string()), Ok(id));
        for wrong in ["", "inv_", "inv_x", &id.0.to_string()] {
            assert!(parse_invocation(wrong).is_err(), "{wrong}");
        }
    }
}
