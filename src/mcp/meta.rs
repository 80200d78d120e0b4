//! The `_meta` of a request: progress token, and the per-request envelope of 2026-07-28.

use std::ops::Range;

use super::{
    json::{self, Patch, Raw},
    revision::Revision,
};

/// Prefix of the keys that belong to the protocol and are hop-local.
pub const PROTOCOL_PREFIX: &str = "io.modelcontextprotocol/";
/// The revision of a 2026-07-28 request.
pub const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
/// Name and version of the client.
pub const CLIENT_INFO: &str = "io.modelcontextprotocol/clientInfo";
/// What the client can do for the server during this request.
pub const CLIENT_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
/// The least severe log message the client wants during this request.
pub const LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Name and version of the server, on results.
pub const SERVER_INFO: &str = "io.modelcontextprotocol/serverInfo";
/// The listen stream a notification belongs to.
pub const SUBSCRIPTION_ID: &str = "io.modelcontextprotocol/subscriptionId";

/// What the `_meta` of one request holds, as spans into its params.
#[derive(Clone, Debug, Default)]
pub struct Meta {
    /// The whole `_meta` object.
    pub span: Option<Range<usize>>,
    /// `progressToken`.
    pub progress_token: Option<Range<usize>>,
    /// See [`VERSION`].
    pub version: Option<Range<usize>>,
    /// See [`CLIENT_INFO`].
    pub client_info: Option<Range<usize>>,
    /// See [`CLIENT_CAPABILITIES`].
    pub client_capabilities: Option<Range<usize>>,
    /// See [`LOG_LEVEL`].
    pub log_level: Option<Range<usize>>,
}

impl Meta {
    /// Finds the parts in the params of a request, if it has any.
    pub fn of_any(params: Option<&Raw>) -> Self {
        params.map_or_else(Self::default, Self::of)
    }

    /// Finds the parts in `params`.
    pub fn of(params: &Raw) -> Self {
        let json = params.as_bytes();
        let Some(span) = json::find(json, 0, "_meta").filter(|span| json[span.start] == b'{')
        else {
            return Self::default();
        };
        let mut meta = Self {
            span: Some(span.clone()),
            ..Self::default()
        };
        for member in json::members(json, span.start) {
            let slot = match json::text(&json[member.key.clone()]).as_deref() {
                Some("progressToken") => &mut meta.progress_token,
                Some(VERSION) => &mut meta.version,
                Some(CLIENT_INFO) => &mut meta.client_info,
                Some(CLIENT_CAPABILITIES) => &mut meta.client_capabilities,
                Some(LOG_LEVEL) => &mut meta.log_level,
                Some(_) | None => continue,
            };
            *slot = Some(member.value);
        }
        meta
    }

    /// Adds `members` (`"key":value,...`) to `_meta`, creating it where there is none.
    pub fn insert(&self, members: &str, into: &mut Patch<'_>) {
        match &self.span {
            Some(span) => into.insert_members(span.start, members),
            None => into.insert_members(0, &format!(r#""_meta":{{{members}}}"#)),
        }
    }
}

/// The members that make a request one of 2026-07-28.
pub fn envelope(client_info: Option<&Raw>, capabilities: &Raw, log_level: Option<&str>) -> String {
    use std::fmt::Write;

    let version = Revision::MODERN;
    let mut out = format!(
        r#""{VERSION}":"{version}","{CLIENT_CAPABILITIES}":{capabilities}"#,
        capabilities = capabilities.as_str()
    );
    if let Some(info) = client_info {
        write!(out, r#","{CLIENT_INFO}":{}"#, info.as_str()).expect("a String takes all");
    }
    if let Some(level) = log_level {
        write!(out, r#","{LOG_LEVEL}":"{level}""#).expect("a String takes all");
    }
    out
}
