//! Versions of what the API shows: `ETag` and `If-Match` (RFC 9110, 8.8.3 and 13.1.1).

use http::HeaderMap;
use jiff::Timestamp;

use super::problem::{Problem, ProblemType};
use crate::config_change::EntryPrecondition;

/// The tag of what was last changed at `version`.
pub(super) fn of_version(version: Timestamp) -> String {
    format!("\"{}\"", version.as_millisecond())
}

/// What `If-Match` asks of an entry that is to be changed.
pub(super) fn precondition(headers: &HeaderMap) -> Result<EntryPrecondition, Problem> {
    let Some(written) = headers.get(http::header::IF_MATCH) else {
        return Ok(EntryPrecondition::Present);
    };
    let text = written.to_str().unwrap_or_default().trim();
    if text == "*" {
        return Ok(EntryPrecondition::Present);
    }
    let version = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .and_then(|text| text.parse().ok())
        .and_then(|number| Timestamp::from_millisecond(number).ok());
    version.map(EntryPrecondition::Version).ok_or_else(|| {
        Problem::new(
            ProblemType::PreconditionFailed,
            "`If-Match` is not the `ETag` of this: send the one of the last answer, or `*`",
        )
    })
}
