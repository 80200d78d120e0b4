//! The `_meta` of a request: progress token, and the per-request envelope of 2026-07-28.

use std::{borrow::Cow, ops::Range};

use super::{
    json::{self, Member, Patch, Raw, validator},
    params::Params,
    revision::Revision,
};

/// Where a request says what is about it rather than in it.
const META: &str = "_meta";
/// What names a request in its progress.
const PROGRESS_TOKEN: &str = "progressToken";
/// The revision of a 2026-07-28 request.
pub const PROTOCOL_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
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
#[derive(Clone, Debug, PartialEq)]
pub struct Meta {
    /// The whole `_meta` object.
    pub span: Option<Range<usize>>,
    /// `progressToken`.
    pub progress_token: Option<Range<usize>>,
    /// See [`PROTOCOL_VERSION`].
    pub version: Option<Range<usize>>,
    /// See [`CLIENT_INFO`].
    pub client_info: Option<Range<usize>>,
    /// See [`CLIENT_CAPABILITIES`].
    pub client_capabilities: Option<Range<usize>>,
    /// See [`LOG_LEVEL`].
    pub log_level: Option<Range<usize>>,
    /// Whether something else is there, or one of these more than once or of another type.
    has_other: bool,
}

impl Meta {
    /// Nothing is there.
    pub(super) const fn empty() -> Self {
        Self {
            span: None,
            progress_token: None,
            version: None,
            client_info: None,
            client_capabilities: None,
            log_level: None,
            has_other: false,
        }
    }

    /// Finds the parts in `params`.
    pub fn from_params(params: &Raw) -> Self {
        match Params::parse_fast(params.as_str(), params.bytes(), 0) {
            Some((params, _)) => params.into_meta(),
            None => Self::parse_slow(params),
        }
    }

    /// The same, however unusual the params are.
    pub(super) fn parse_slow(params: &Raw) -> Self {
        let json = params.as_bytes();
        let Some(span) = json::find_member(json, 0, META).filter(|span| json[span.start] == b'{')
        else {
            return Self::empty();
        };
        let mut meta = Self::empty();
        for member in json::members(json, span.start) {
            // A key that has no text is none of those that are looked for.
            let key = json::decode_string(&json[member.key]);
            let first = json.get(member.value.start);
            meta.add_member(key.as_deref().unwrap_or_default(), member.value, first);
        }
        meta.span = Some(span);
        meta
    }

    /// The parts of the object at `at`, which is the `_meta` of `params`, and where it ends; found
    /// while it is checked that it is one. `None` where anything about it is unusual.
    pub(super) fn parse_fast(params: &str, at: usize) -> Option<(Self, usize)> {
        let mut meta = Self::empty();
        let end = validator::object_end(params, at, |key, value| {
            let end = validator::value_end(params.as_bytes(), value)?;
            meta.add_member(key, value..end, params.as_bytes().get(value));
            Some(end)
        })?;
        meta.span = Some(at..end);
        Some((meta, end))
    }

    /// Notes a member, and how its value begins.
    fn add_member(&mut self, key: &str, value: Range<usize>, first: Option<&u8>) {
        let (slot, begins) = match key {
            PROGRESS_TOKEN => (&mut self.progress_token, &b"\"-0123456789"[..]),
            PROTOCOL_VERSION => (&mut self.version, &b"\""[..]),
            CLIENT_INFO => (&mut self.client_info, &b"{"[..]),
            CLIENT_CAPABILITIES => (&mut self.client_capabilities, &b"{"[..]),
            LOG_LEVEL => (&mut self.log_level, &b"\""[..]),
            _ => {
                self.has_other = true;
                return;
            }
        };
        let is_of_type = first.is_some_and(|first| begins.contains(first));
        self.has_other |= slot.replace(value).is_some() || !is_of_type;
    }

    /// Whether nothing is there but these parts, each once and of its type.
    pub(super) fn is_standard(&self) -> bool {
        !self.has_other
    }

    /// Adds `members` (`"key":value,...`) to `_meta`, creating it where there is none.
    pub fn insert(&self, members: &str, into: &mut Patch<'_>) {
        match &self.span {
            Some(span) => into.insert_members(span.start, members),
            None => into.insert_members(0, &format!(r#""_meta":{{{members}}}"#)),
        }
    }
}

/// Whether a server may find a progress token in `params`, so that [`with_progress_token`] is worth the
/// walk through them.
pub(crate) fn may_contain_progress_token(params: &Params) -> bool {
    !params.is_standard() || params.meta().progress_token.is_some()
}

/// `params` with `token` for all that a server may read as the progress token, be it doubled or in
/// letters of another case; without any of that where there is none.
pub(crate) fn with_progress_token(params: &Raw, token: Option<u64>) -> Cow<'_, Raw> {
    let json = params.as_bytes();
    let is_token = |member: &Member| member.matches_ignoring_case(json, PROGRESS_TOKEN);
    let mut patch = Patch::new(json);
    for object in json::members(json, 0).filter(|member| member.matches_ignoring_case(json, META)) {
        let at = object.value.start;
        let Some(token) = token else {
            patch.remove_members(at, is_token);
            continue;
        };
        for member in json::members(json, at).filter(is_token) {
            patch.replace(member.value, token.to_string().into_bytes());
        }
    }
    if patch.is_empty() {
        return Cow::Borrowed(params);
    }
    Cow::Owned(patch.finish())
}

/// The members that make a request one of 2026-07-28.
pub fn modern_members(
    client_info: Option<&Raw>,
    capabilities: &Raw,
    log_level: Option<&str>,
) -> String {
    use std::fmt::Write;

    let version = Revision::MODERN;
    let mut out = format!(
        r#""{PROTOCOL_VERSION}":"{version}","{CLIENT_CAPABILITIES}":{capabilities}"#,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_token_but_ours_is_left() {
        for (params, ours, none) in [
            (r#"{"name":"a"}"#, r#"{"name":"a"}"#, r#"{"name":"a"}"#),
            (
                r#"{"_meta":{"progressToken":"mine","x":1}}"#,
                r#"{"_meta":{"progressToken":7,"x":1}}"#,
                r#"{"_meta":{"x":1}}"#,
            ),
            (
                r#"{"_meta":{"progressToken":5, "x":1, "progressToken":"mine"}}"#,
                r#"{"_meta":{"progressToken":7, "x":1, "progressToken":7}}"#,
                r#"{"_meta":{"x":1}}"#,
            ),
            (
                r#"{"_meta":{"progre\u0073sToken":5},"_META":{"progre\u017f\u017fTOKEN":6}}"#,
                r#"{"_meta":{"progre\u0073sToken":7},"_META":{"progre\u017f\u017fTOKEN":7}}"#,
                r#"{"_meta":{},"_META":{}}"#,
            ),
            (
                r#"{"arguments":{"_meta":{"progressToken":5}},"_meta":{"a":{"progressToken":5}}}"#,
                r#"{"arguments":{"_meta":{"progressToken":5}},"_meta":{"a":{"progressToken":5}}}"#,
                r#"{"arguments":{"_meta":{"progressToken":5}},"_meta":{"a":{"progressToken":5}}}"#,
            ),
            (r#"{"_meta":5}"#, r#"{"_meta":5}"#, r#"{"_meta":5}"#),
            ("[]", "[]", "[]"),
        ] {
            let raw = Raw::from_static(params);
            assert_eq!(
                with_progress_token(&raw, Some(7)).as_str(),
                ours,
                "{params}"
            );
            assert_eq!(with_progress_token(&raw, None).as_str(), none, "{params}");
        }
    }
}
