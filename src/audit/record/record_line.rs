//! The lines of the log: what they hold, how they are written, how they are read back.
//!
//! A line is written by hand, since it is on the way of every call; it is read with serde. Members
//! without a value are left out. The first member is `kind`, so that a reader knows from the first
//! bytes whether a line concerns it.

use std::{borrow::Cow, fmt, str::FromStr, time::Duration};

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::{
    changed_values::{CHANGES_BYTES_MAX, ChangedValues},
    line_writer::LineWriter,
};
use crate::{
    audit::hash_chain::Hash,
    money::Micros,
    names::{AgentId, InvocationId, ServerId},
};

/// Bytes of a text in a line; what is longer is cut and ends in `…`. Clients choose some of them.
pub const TEXT_BYTES_MAX: usize = 1024;

/// Bytes of recorded arguments; longer ones are left out, and `arguments_bytes` says how long
/// they were.
pub const ARGUMENTS_BYTES_MAX: usize = 256 << 10;

/// Room for most lines with their seals, bytes.
const LINE_BYTES_TYPICAL: usize = 1024;

/// What a line is about.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LineType {
    /// A segment begins; the first line of each.
    Begin,
    /// A call is over: its record.
    Call,
    /// Nothing but a signature.
    Checkpoint,
    /// The chain ends.
    End,
    /// Something that is not a call happened.
    Event,
    /// A call is about to reach its server.
    Opened,
    /// A segment was removed.
    Retired,
}

impl LineType {
    const ALL: [Self; 7] = [
        Self::Begin,
        Self::Call,
        Self::Checkpoint,
        Self::End,
        Self::Event,
        Self::Opened,
        Self::Retired,
    ];

    /// How every line of the kind begins.
    pub(super) const fn prefix(self) -> &'static str {
        match self {
            Self::Begin => r#"{"kind":"begin","#,
            Self::Call => r#"{"kind":"call","#,
            Self::Checkpoint => r#"{"kind":"checkpoint","#,
            Self::End => r#"{"kind":"end","#,
            Self::Event => r#"{"kind":"event","#,
            Self::Opened => r#"{"kind":"opened","#,
            Self::Retired => r#"{"kind":"retired","#,
        }
    }

    /// The kind of a line, unless only a newer version knows it.
    pub fn of(line: &[u8]) -> Option<Self> {
        let is_of = |kind: &Self| line.starts_with(kind.prefix().as_bytes());
        Self::ALL.into_iter().find(is_of)
    }

    /// Whether lines of the kind are signed: those that say what is not there to be looked at.
    pub(in crate::audit) fn is_signed(self) -> bool {
        match self {
            Self::Begin | Self::Checkpoint | Self::End | Self::Retired => true,
            Self::Call | Self::Event | Self::Opened => false,
        }
    }

    /// The line of this kind with these members.
    pub(in crate::audit) fn wrap(self, members: &[u8]) -> Vec<u8> {
        [self.prefix().as_bytes(), members].concat()
    }

    /// What follows the kind in a line of this kind.
    pub(in crate::audit) fn members(self, line: &[u8]) -> Option<&[u8]> {
        line.strip_prefix(self.prefix().as_bytes())
    }
}

/// SHA-256 of a call's arguments as the client sent them, so that somebody who knows them can tell
/// whether a record is about them although the log does not hold them.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ArgumentsDigest(pub(super) Hash);

impl ArgumentsDigest {
    /// The digest of `arguments`, the raw JSON text before any redaction.
    pub fn of(arguments: &[u8]) -> Self {
        Self(Hash::of(arguments))
    }
}

/// 64 hex digits.
impl fmt::Display for ArgumentsDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<'de> Deserialize<'de> for ArgumentsDigest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Cow::<'_, str>::deserialize(deserializer)?;
        let hash = Hash::parse_text(&text);
        hash.map(Self)
            .ok_or_else(|| de::Error::custom("a digest is 64 hex digits"))
    }
}

/// A call that is about to reach its server, with what must be known of it if we die meanwhile.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct Opened<'a> {
    /// The invocation.
    #[serde(deserialize_with = "invocation")]
    pub id: InvocationId,
    /// When it was opened.
    #[serde(deserialize_with = "time")]
    pub ts: Timestamp,
    /// Who calls.
    pub agent_id: AgentId,
    /// The agent's name.
    pub agent_name: Cow<'a, str>,
    /// The agent's team.
    pub team: Option<Cow<'a, str>>,
    /// The user behind the agent, as the issuer of their token calls them.
    pub subject: Option<Cow<'a, str>>,
    /// Who acts for the user, by the claim `act` of the token.
    pub act: Option<Cow<'a, str>>,
    /// The server that will be called.
    pub server: Cow<'a, str>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The tool's original name.
    pub tool: Option<Cow<'a, str>>,
    /// The name the client used.
    pub exposed: Option<Cow<'a, str>>,
    /// Of the arguments as the client sent them.
    pub arguments_digest: Option<ArgumentsDigest>,
    /// What the call costs when it reaches its server.
    #[serde(rename = "price_micros", deserialize_with = "micros")]
    pub price: Micros,
    /// The budget accounts that hold the price.
    #[serde(default)]
    pub accounts: Vec<Cow<'a, str>>,
}

/// The one record of an invocation, allowed or refused.
#[derive(Clone, Debug, Deserialize)]
pub struct Record<'a> {
    /// The invocation.
    #[serde(deserialize_with = "invocation")]
    pub id: InvocationId,
    /// When the record was made, which is when the call was over; of a call whose end nobody saw, when
    /// it was opened.
    #[serde(deserialize_with = "time")]
    pub ts: Timestamp,
    /// When it was found that nobody saw the end of the call.
    #[serde(default, deserialize_with = "maybe_time")]
    pub reconciled: Option<Timestamp>,
    /// Who called.
    pub agent_id: AgentId,
    /// The agent's name.
    pub agent_name: Cow<'a, str>,
    /// The agent's team.
    pub team: Option<Cow<'a, str>>,
    /// The workspace whose servers the agent sees: that of its team.
    #[serde(default)]
    pub workspace: Option<Cow<'a, str>>,
    /// The view on whose route it came.
    #[serde(default)]
    pub view: Option<Cow<'a, str>>,
    /// The user behind the agent, as the issuer of their token calls them.
    pub subject: Option<Cow<'a, str>>,
    /// Who acts for the user, by the claim `act` of the token.
    pub act: Option<Cow<'a, str>>,
    /// What the client called itself.
    pub client: Option<Cow<'a, str>>,
    /// The client's session: a short hash of its id, never the id itself.
    pub session_id: Option<Cow<'a, str>>,
    /// The protocol revision between the client and us.
    pub client_revision: Option<Cow<'a, str>>,
    /// The server that was called or would have been; none when the tool is unknown.
    pub server: Option<Cow<'a, str>>,
    /// The id of that server.
    #[serde(default, deserialize_with = "server_id")]
    pub server_id: Option<ServerId>,
    /// The protocol revision between us and the server.
    pub server_revision: Option<Cow<'a, str>>,
    /// The method.
    pub method: Cow<'a, str>,
    /// The tool's original name.
    pub tool: Option<Cow<'a, str>>,
    /// The name the client used.
    pub exposed: Option<Cow<'a, str>>,
    /// Of the arguments as the client sent them.
    pub arguments_digest: Option<ArgumentsDigest>,
    /// The arguments, with PII and secrets redacted by the caller; left out unless
    /// `audit.arguments` is on.
    pub arguments: Option<Cow<'a, RawValue>>,
    /// The result that the client got, with PII and secrets redacted by the caller; left out unless
    /// `audit.results` is on.
    #[serde(default)]
    pub result: Option<Cow<'a, RawValue>>,
    /// How long a result was that is longer than `audit.result_limit` and left out therefore, bytes.
    #[serde(default)]
    pub result_bytes: Option<u64>,
    /// What became of the call.
    pub decision: RecordedDecision,
    /// The discriminator of the error the client got, such as `BUDGET_EXCEEDED`.
    pub code: Option<Cow<'a, str>>,
    /// The rule that refused or would have.
    pub rule: Option<Cow<'a, str>>,
    /// What the call cost in the end.
    #[serde(rename = "price_micros", deserialize_with = "micros")]
    pub price: Micros,
    /// The budget accounts that paid; each paid all of the price.
    #[serde(default)]
    pub accounts: Vec<Cow<'a, str>>,
    /// How long the call took.
    #[serde(rename = "execution_time_ms", deserialize_with = "millis")]
    pub execution_time: Duration,
    /// Bytes of the request's body.
    pub bytes_in: u64,
    /// Bytes of the answer.
    pub bytes_out: u64,
    /// The trace the call belongs to.
    pub trace_id: Option<Cow<'a, str>>,
    /// What called, within the trace.
    pub parent_id: Option<Cow<'a, str>>,
}

/// What became of a call.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, Ord, PartialEq, PartialOrd)]
#[serde(rename_all = "lowercase")]
pub enum RecordedDecision {
    /// It reached its server and the answer went back.
    Allowed,
    /// It was allowed, but there is no answer of the server: `code` says why.
    Failed,
    /// The gateway stopped or died while it was under way; whether the server acted on it is not known.
    Interrupted,
    /// It was allowed although `rule`, which is only observed, would have refused it.
    Observed,
    /// `rule` refused it, or withheld its result.
    Refused,
}

impl RecordedDecision {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::Allowed,
        Self::Failed,
        Self::Interrupted,
        Self::Observed,
        Self::Refused,
    ];

    /// As it stands in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Failed => "failed",
            Self::Interrupted => "interrupted",
            Self::Observed => "observed",
            Self::Refused => "refused",
        }
    }
}

impl fmt::Display for RecordedDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for RecordedDecision {
    type Err = InvalidDecision;

    fn from_str(text: &str) -> Result<Self, InvalidDecision> {
        let decision = Self::ALL.into_iter().find(|it| it.as_str() == text);
        decision.ok_or(InvalidDecision)
    }
}

/// A text that is no decision.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[error("a decision is `allowed`, `failed`, `interrupted`, `observed` or `refused`")]
pub struct InvalidDecision;

/// Something that is not a call.
#[derive(Clone, Debug, Deserialize, PartialEq)]
pub struct AuditEvent<'a> {
    /// When it happened.
    #[serde(deserialize_with = "time")]
    pub ts: Timestamp,
    /// What happened.
    pub event: EventKind,
    /// What it happened to: a server, a client, an address, an agent, the id of a key (never the key),
    /// a file.
    pub subject: Cow<'a, str>,
    /// Who did it: an agent, `cli`, `config`; none when nobody did.
    pub actor: Option<Cow<'a, str>>,
    /// More, for people; free of secrets.
    pub detail: Option<Cow<'a, str>>,
    /// What a change made of each key; nothing where it is no change, or they were too long.
    #[serde(default)]
    pub changes: ChangedValues,
}

/// What happened.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, PartialEq)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// An agent was made, changed or removed.
    AgentChanged,
    /// Requests were refused for a key that opens nothing; the subject is the address they came from.
    AuthenticationRefused,
    /// A budget was set, changed or reset.
    BudgetChanged,
    /// A server, which is the subject, asked a client something; the detail says what became of it.
    ClientAsked,
    /// A client connected.
    ClientConnected,
    /// A client went.
    ClientDisconnected,
    /// A changed config is in force.
    ConfigChanged,
    /// A changed config was refused; the old one holds.
    ConfigRefused,
    /// Somebody granted an OAuth client access; the subject is the id of the grant.
    GrantCreated,
    /// A grant of an OAuth client no longer holds; the subject is its id.
    GrantRevoked,
    /// An API key was made.
    KeyCreated,
    /// An API key no longer works.
    KeyRevoked,
    /// A link was made that opens the dashboard as the operator.
    DashboardLinkMade,
    /// A code was made with which a person logs in as the agent that is the subject.
    LoginCodeCreated,
    /// Lines could not be written and had to be given up; the detail says how many.
    LinesLost,
    /// The log has less than its index knows; the detail says how much of which segment.
    LogShortened,
    /// Calls of an agent, which is the subject, were refused and are not recorded one by one; the detail
    /// says how many and why.
    RefusalsSummed,
    /// A row of the store was refused, since neither a gateway nor the command line wrote it so; the
    /// subject is the name of the agent, or the id of the key.
    RowRefused,
    /// The segment that was being written, which is the subject, was removed, replaced or cut, could
    /// not be looked at, or its chain was not locked any more; the detail says which. The chain goes on
    /// in the next one.
    SegmentLost,
    /// A secret, which is the subject, was set or removed.
    SecretChanged,
    /// A server is connected.
    ServerConnected,
    /// A server is no longer connected.
    ServerDisconnected,
    /// Somebody, who is the subject, logged in to grant an OAuth client access.
    SignedIn,
    /// A client got tokens of a grant, which is the subject; the detail says how many times.
    TokensIssued,
    /// What a browser brought back from the issuer of a server was refused; the detail says why.
    ServerSignInRefused,
    /// Somebody signed in to a server, which is the subject, for the agent.
    ServerSignedIn,
    /// A grant towards a server, which is the subject, was given up.
    ServerSignedOut,
    /// A view, whose id is the subject, shows something else, or ends at another time.
    ViewChanged,
    /// A view, whose id is the subject, was made.
    ViewCreated,
    /// A view, whose id is the subject, has ended.
    ViewEnded,
}

impl EventKind {
    /// As it stands in the log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AgentChanged => "agent_changed",
            Self::AuthenticationRefused => "authentication_refused",
            Self::BudgetChanged => "budget_changed",
            Self::ClientAsked => "client_asked",
            Self::ClientConnected => "client_connected",
            Self::ClientDisconnected => "client_disconnected",
            Self::ConfigChanged => "config_changed",
            Self::ConfigRefused => "config_refused",
            Self::GrantCreated => "grant_created",
            Self::GrantRevoked => "grant_revoked",
            Self::KeyCreated => "key_created",
            Self::KeyRevoked => "key_revoked",
            Self::DashboardLinkMade => "dashboard_link_made",
            Self::LoginCodeCreated => "login_code_created",
            Self::LinesLost => "lines_lost",
            Self::LogShortened => "log_shortened",
            Self::RefusalsSummed => "refusals_summed",
            Self::RowRefused => "row_refused",
            Self::SecretChanged => "secret_changed",
            Self::SegmentLost => "segment_lost",
            Self::ServerConnected => "server_connected",
            Self::ServerDisconnected => "server_disconnected",
            Self::SignedIn => "signed_in",
            Self::TokensIssued => "tokens_issued",
            Self::ServerSignInRefused => "server_sign_in_refused",
            Self::ServerSignedIn => "server_signed_in",
            Self::ServerSignedOut => "server_signed_out",
            Self::ViewChanged => "view_changed",
            Self::ViewCreated => "view_created",
            Self::ViewEnded => "view_ended",
        }
    }
}

impl Opened<'_> {
    /// The record of a call that was under way when its process stopped in good order, at `at`.
    pub(in crate::audit) fn into_stopped_record(self, at: Timestamp) -> Record<'static> {
        Record {
            ts: at,
            rule: Some("the gateway stopped while the call was under way".into()),
            ..self.into_interrupted_record()
        }
    }

    /// The record of a call of whose end nothing is known, as somebody finds at `at`.
    pub(in crate::audit) fn into_recovered_record(self, at: Timestamp) -> Record<'static> {
        Record {
            rule: Some("the gateway crashed before the end of the call was recorded".into()),
            reconciled: Some(at),
            ..self.into_interrupted_record()
        }
    }

    /// The record of a call of which nothing more is known than that it was opened, and when.
    pub(in crate::audit) fn into_interrupted_record(self) -> Record<'static> {
        let lock = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        Record {
            id: self.id,
            ts: self.ts,
            reconciled: None,
            agent_id: self.agent_id,
            agent_name: lock(self.agent_name),
            workspace: self.team.clone().map(lock),
            view: None,
            team: self.team.map(lock),
            subject: self.subject.map(lock),
            act: self.act.map(lock),
            client: None,
            session_id: None,
            client_revision: None,
            server_id: Some(ServerId::from_name(&self.server)),
            server: Some(lock(self.server)),
            server_revision: None,
            method: lock(self.method),
            tool: self.tool.map(lock),
            exposed: self.exposed.map(lock),
            arguments_digest: self.arguments_digest,
            arguments: None,
            result: None,
            result_bytes: None,
            decision: RecordedDecision::Interrupted,
            code: None,
            rule: None,
            price: self.price,
            accounts: self.accounts.into_iter().map(lock).collect(),
            execution_time: Duration::ZERO,
            bytes_in: 0,
            bytes_out: 0,
            trace_id: None,
            parent_id: None,
        }
    }

    /// The line, without its seal.
    pub(in crate::audit) fn to_line(&self) -> Vec<u8> {
        let mut made = Vec::with_capacity(LINE_BYTES_TYPICAL);
        let mut line = LineWriter::begin(&mut made, LineType::Opened);
        line.id("id", "inv_", self.id.0);
        line.time("ts", self.ts);
        line.id("agent_id", "agent_", self.agent_id.0);
        line.text("agent_name", &self.agent_name);
        line.optional_text("team", self.team.as_deref());
        line.optional_text("subject", self.subject.as_deref());
        line.optional_text("act", self.act.as_deref());
        line.text("server", &self.server);
        line.text("method", &self.method);
        line.optional_text("tool", self.tool.as_deref());
        line.optional_text("exposed", self.exposed.as_deref());
        line.digest(self.arguments_digest);
        line.number("price_micros", self.price.get());
        line.texts("accounts", &self.accounts);
        made
    }
}

impl Record<'_> {
    /// The line, without its seal.
    pub(in crate::audit) fn to_line(&self) -> Vec<u8> {
        let mut made = Vec::with_capacity(LINE_BYTES_TYPICAL);
        let mut line = LineWriter::begin(&mut made, LineType::Call);
        line.id("id", "inv_", self.id.0);
        line.time("ts", self.ts);
        if let Some(at) = self.reconciled {
            line.time("reconciled", at);
        }
        line.id("agent_id", "agent_", self.agent_id.0);
        line.text("agent_name", &self.agent_name);
        line.optional_text("team", self.team.as_deref());
        line.optional_text("workspace", self.workspace.as_deref());
        line.optional_text("view", self.view.as_deref());
        line.optional_text("subject", self.subject.as_deref());
        line.optional_text("act", self.act.as_deref());
        line.optional_text("client", self.client.as_deref());
        line.optional_text("session_id", self.session_id.as_deref());
        line.optional_text("client_revision", self.client_revision.as_deref());
        line.optional_text("server", self.server.as_deref());
        if let Some(ServerId(id)) = self.server_id {
            line.id("server_id", ServerId::PREFIX, id);
        }
        line.optional_text("server_revision", self.server_revision.as_deref());
        line.text("method", &self.method);
        line.optional_text("tool", self.tool.as_deref());
        line.optional_text("exposed", self.exposed.as_deref());
        line.digest(self.arguments_digest);
        if let Some(arguments) = &self.arguments {
            line.json("arguments", arguments.get(), ARGUMENTS_BYTES_MAX);
        }
        if let Some(result) = &self.result {
            line.json("result", result.get(), usize::MAX);
        } else if let Some(bytes) = self.result_bytes {
            line.number("result_bytes", bytes);
        }
        line.plain_text("decision", self.decision.as_str());
        line.optional_text("code", self.code.as_deref());
        line.optional_text("rule", self.rule.as_deref());
        line.number("price_micros", self.price.get());
        line.texts("accounts", &self.accounts);
        line.millis("execution_time_ms", self.execution_time);
        line.number("bytes_in", self.bytes_in);
        line.number("bytes_out", self.bytes_out);
        line.optional_text("trace_id", self.trace_id.as_deref());
        line.optional_text("parent_id", self.parent_id.as_deref());
        made
    }
}

impl AuditEvent<'_> {
    /// The line, without its seal.
    pub(in crate::audit) fn to_line(&self) -> Vec<u8> {
        let mut made = Vec::with_capacity(LINE_BYTES_TYPICAL);
        let mut line = LineWriter::begin(&mut made, LineType::Event);
        line.time("ts", self.ts);
        line.plain_text("event", self.event.as_str());
        line.text("subject", &self.subject);
        line.optional_text("actor", self.actor.as_deref());
        line.optional_text("detail", self.detail.as_deref());
        if !self.changes.is_empty() {
            let changes = serde_json::to_string(&self.changes).expect("every key is a string");
            line.json("changes", &changes, CHANGES_BYTES_MAX);
        }
        made
    }
}

/// The invocation that a text names.
pub(in crate::audit) fn parse_invocation_id(text: &str) -> Option<InvocationId> {
    let uuid = text.strip_prefix("inv_")?;
    Uuid::try_parse(uuid).ok().map(InvocationId)
}

pub(in crate::audit) fn invocation<'de, D: Deserializer<'de>>(
    from: D,
) -> Result<InvocationId, D::Error> {
    let text = Cow::<'_, str>::deserialize(from)?;
    let id = parse_invocation_id(&text);
    id.ok_or_else(|| de::Error::custom("an invocation is `inv_` and a UUID"))
}

fn server_id<'de, D: Deserializer<'de>>(from: D) -> Result<Option<ServerId>, D::Error> {
    let text = Cow::<'_, str>::deserialize(from)?;
    let uuid = text.strip_prefix(ServerId::PREFIX).map(Uuid::try_parse);
    match uuid {
        Some(Ok(uuid)) => Ok(Some(ServerId(uuid))),
        Some(Err(_)) | None => Err(de::Error::custom("a server is `srv_` and a UUID")),
    }
}

pub(in crate::audit) fn time<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
    let text = Cow::<'_, str>::deserialize(from)?;
    text.parse().map_err(de::Error::custom)
}

fn maybe_time<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Timestamp>, D::Error> {
    time(from).map(Some)
}

pub(in crate::audit) fn micros<'de, D: Deserializer<'de>>(from: D) -> Result<Micros, D::Error> {
    u64::deserialize(from).map(Micros::new)
}

pub(in crate::audit) fn millis<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(from)? / 1000.0;
    let time = Duration::try_from_secs_f64(seconds).map_err(de::Error::custom)?;
    let micros = time.as_nanos().saturating_add(500) / 1000;
    Ok(Duration::from_micros(micros.try_into().unwrap_or(u64::MAX)))
}
