//! The first words to a server: which era it speaks, and what it says about itself.
//!
//! Source of the verdicts: Spec 2026-07-28, versioning, backward compatibility.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    backend::{
        BackendError,
        link::{Deadlines, Exchange, Link, era::NO_SESSION_CODE},
    },
    config::EraPin,
    mcp::{Era, Method, Outcome, Raw, Revision, error, meta, method::notice},
    session::{self, Cancel},
};

/// Silence after which `initialize` is tried beside an unanswered `server/discover`: legacy
/// servers may ignore what comes before it, slow modern ones are still starting.
const DISCOVER_TIMEOUT: Duration = Duration::from_secs(3);

/// What a server said about itself.
#[derive(Clone, Debug)]
pub(crate) struct ServerInitialization {
    /// The revision that is spoken on this link.
    pub revision: Revision,
    /// Its capabilities, an object.
    pub capabilities: Raw,
    /// Its name and version.
    pub info: Option<Raw>,
    /// Its advice for the model.
    pub instructions: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Initialized {
    protocol_version: String,
    #[serde(default)]
    instructions: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Discovered {
    #[serde(default)]
    supported_versions: Vec<String>,
    #[serde(default)]
    instructions: Option<String>,
}

/// What a `server/discover` proved.
enum DiscoverVerdict {
    /// It speaks our revision after all.
    Retry,
    Legacy,
    Modern(ServerInitialization),
    /// It speaks our revision, and refuses the greeting with this error.
    Refused(Raw),
    /// It speaks neither of the revisions we do.
    Incompatible(Vec<String>),
}

/// Greets the server in the era that `pin` says, or that it turns out to speak.
pub(crate) async fn handshake(
    link: &Link,
    pin: EraPin,
    capabilities: &Raw,
) -> Result<ServerInitialization, BackendError> {
    let hello = match pin {
        EraPin::Legacy => initialize(link, capabilities).await?,
        EraPin::Modern => match verdict_with_retry(link, discover(link).await?).await? {
            DiscoverVerdict::Modern(hello) => hello,
            DiscoverVerdict::Retry | DiscoverVerdict::Legacy => {
                return Err(BackendError::Era { era: Era::Modern });
            }
            DiscoverVerdict::Refused(error) => return Err(BackendError::Refused { error }),
            DiscoverVerdict::Incompatible(offered) => return Err(incompatible_error(&offered)),
        },
        EraPin::Auto => probe_era(link, capabilities).await?,
    };
    if let Some(http) = link.as_http()
        && hello.revision.era() == Era::Modern
    {
        // The `initialize` that was tried beside has left its own.
        http.reset();
        http.set_revision(hello.revision);
    }
    Ok(hello)
}

fn incompatible_error(offered: &[String]) -> BackendError {
    BackendError::Revision {
        offered: offered.join(", "),
    }
}

async fn probe_era(link: &Link, capabilities: &Raw) -> Result<ServerInitialization, BackendError> {
    let discovered = discover(link);
    tokio::pin!(discovered);
    let outcome = tokio::select! {
        outcome = &mut discovered => outcome,
        () = tokio::time::sleep(DISCOVER_TIMEOUT) => {
            // Whichever is answered well decides; a late answer to the other is ignored.
            tokio::select! {
                biased;
                outcome = &mut discovered => outcome,
                hello = initialize(link, capabilities) => match hello {
                    Ok(hello) => return Ok(hello),
                    Err(BackendError::Refused { .. }) => discovered.await,
                    Err(failure) if failure.is_legacy_rejection() => discovered.await,
                    Err(failure) => return Err(failure),
                },
            }
        }
    };
    let verdict = match outcome {
        Ok(outcome) => verdict_with_retry(link, outcome).await?,
        // Nor is what is no answer one of this era.
        Err(failure) if failure.is_legacy_rejection() || is_protocol_violation(&failure) => {
            DiscoverVerdict::Legacy
        }
        Err(failure) => return Err(failure),
    };
    match verdict {
        DiscoverVerdict::Modern(hello) => Ok(hello),
        DiscoverVerdict::Retry | DiscoverVerdict::Legacy => initialize(link, capabilities).await,
        DiscoverVerdict::Refused(error) => Err(BackendError::Refused { error }),
        DiscoverVerdict::Incompatible(offered) => Err(incompatible_error(&offered)),
    }
}

/// The verdict; a server that refused our revision and lists it all the same is asked once more.
async fn verdict_with_retry(
    link: &Link,
    outcome: Outcome,
) -> Result<DiscoverVerdict, BackendError> {
    match verdict(outcome) {
        DiscoverVerdict::Retry => Ok(verdict(discover(link).await?)),
        settled @ (DiscoverVerdict::Legacy
        | DiscoverVerdict::Modern(_)
        | DiscoverVerdict::Refused(_)
        | DiscoverVerdict::Incompatible(_)) => Ok(settled),
    }
}

/// The `_meta` members of our own requests. They declare what we can relay for a client that has
/// it, so that lists hold what some client can use.
pub(in crate::backend) fn gateway_meta() -> String {
    let info = Raw::from_value(&session::server_info());
    meta::modern_members(Some(&info), &RELAYED_CAPABILITIES, None)
}

/// The params of a modern request of our own that has no others.
pub(in crate::backend) fn gateway_params() -> Raw {
    let params = format!(r#"{{"_meta":{{{}}}}}"#, gateway_meta());
    Raw::parse(params).expect("our own JSON")
}

/// Capabilities of clients that are relayed.
pub(in crate::backend) const RELAYED_CAPABILITIES: Raw =
    Raw::from_static(r#"{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{}}"#);

async fn discover(link: &Link) -> Result<Outcome, BackendError> {
    link.request(&control_exchange(&Method::Discover, Some(gateway_params())))
        .await
}

fn verdict(outcome: Outcome) -> DiscoverVerdict {
    match outcome {
        Ok(result) => match result.read::<Discovered>() {
            Ok(discovered) if speaks_modern(&discovered.supported_versions) => {
                DiscoverVerdict::Modern(ServerInitialization {
                    revision: Revision::MODERN,
                    capabilities: object_or_empty(&result, "capabilities"),
                    info: result
                        .get("_meta")
                        .and_then(|meta| meta.get(meta::SERVER_INFO)),
                    instructions: discovered.instructions,
                })
            }
            Ok(discovered) => legacy_or_incompatible(discovered.supported_versions),
            Err(_) => DiscoverVerdict::Legacy,
        },
        Err(refusal) => match error::code(&refusal) {
            Some(error::UNSUPPORTED_VERSION) => match offered_revisions(&refusal) {
                Some(offered) if speaks_modern(&offered) => DiscoverVerdict::Retry,
                Some(offered) => legacy_or_incompatible(offered),
                None => DiscoverVerdict::Legacy,
            },
            // No other revision has them.
            Some(error::HEADER_MISMATCH | error::MISSING_CAPABILITY) => {
                DiscoverVerdict::Refused(refusal)
            }
            Some(_) | None => DiscoverVerdict::Legacy,
        },
    }
}

fn speaks_modern(offered: &[String]) -> bool {
    offered.iter().any(|date| date == Revision::MODERN.as_str())
}

fn legacy_or_incompatible(offered: Vec<String>) -> DiscoverVerdict {
    let legacy = offered.is_empty()
        || offered.iter().any(|date| {
            Revision::parse(date).is_some_and(|revision| revision.era() == Era::Legacy)
        });
    if legacy {
        DiscoverVerdict::Legacy
    } else {
        DiscoverVerdict::Incompatible(offered)
    }
}

/// `data.supported` of a refusal; some servers write `supportedVersions`.
fn offered_revisions(refusal: &Raw) -> Option<Vec<String>> {
    let data: Value = refusal.get("data")?.read().ok()?;
    let list = data
        .get("supported")
        .or_else(|| data.get("supportedVersions"))?
        .as_array()?;
    Some(
        list.iter()
            .filter_map(|date| date.as_str().map(str::to_owned))
            .collect(),
    )
}

/// Whether this answer to `server/discover` or `ping` in `era` shows that another server has taken
/// the place of the one that was greeted, which spoke it.
pub(in crate::backend) fn contradicts_era(
    era: Era,
    answer: &Result<Outcome, BackendError>,
) -> bool {
    match (era, answer) {
        (Era::Legacy, Ok(Err(refusal))) => matches!(
            error::code(refusal),
            Some(error::UNSUPPORTED_VERSION | error::HEADER_MISMATCH)
        ),
        (Era::Modern, Ok(Ok(result))) => {
            !matches!(verdict(Ok(result.clone())), DiscoverVerdict::Modern(_))
        }
        (Era::Modern, Ok(Err(refusal))) => rejects_modern(refusal),
        (Era::Modern, Err(failure)) => failure.is_legacy_rejection(),
        (Era::Legacy, Ok(Ok(_)) | Err(_)) => false,
    }
}

/// Whether this answer to `server/discover` shows that the server speaks 2026-07-28, and no longer the
/// revision that it `spoke`. Many speak both.
pub(in crate::backend) fn has_upgraded(
    spoke: Revision,
    answer: &Result<Outcome, BackendError>,
) -> bool {
    let versions = match answer {
        Ok(Ok(result)) => result.read::<Discovered>().map(|it| it.supported_versions),
        Ok(Err(refusal)) => Ok(offered_revisions(refusal).unwrap_or_default()),
        Err(_) => return false,
    };
    let versions = versions.unwrap_or_default();
    speaks_modern(&versions) && !versions.iter().any(|date| date == spoke.as_str())
}

/// Whether this refusal of `server/discover` is one of a server that does not speak our revision. Any
/// other says no more than that the server is out of order.
fn rejects_modern(refusal: &Raw) -> bool {
    match error::code(refusal) {
        Some(error::METHOD_NOT_FOUND) => true,
        Some(error::UNSUPPORTED_VERSION) => {
            offered_revisions(refusal).is_none_or(|offered| !speaks_modern(&offered))
        }
        Some(error::INVALID_REQUEST | error::INVALID_PARAMS | NO_SESSION_CODE) => {
            mentions_era_mismatch(refusal)
        }
        Some(_) | None => false,
    }
}

/// Whether a refusal says that there is no session or that none was opened, or that the revision or the
/// method is unknown. There is no code for that; these are the words of SDKs.
fn mentions_era_mismatch(refusal: &Raw) -> bool {
    const ERA_WORDS: [&str; 4] = [
        "initializ",
        "invalid request parameters",
        "protocol version",
        "session",
    ];
    let message = refusal.get("message");
    let message = message.as_ref().and_then(Raw::as_text).unwrap_or_default();
    let message = message.to_ascii_lowercase();
    ERA_WORDS.iter().any(|words| message.contains(words))
}

fn is_protocol_violation(failure: &BackendError) -> bool {
    matches!(failure, BackendError::ProtocolViolation { .. })
}

/// What we say of ourselves, or of the client that we speak for. Its capabilities are what it wrote:
/// a [`Value`] holds neither every number nor every string nor every depth.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct InitializeArgs<'a> {
    protocol_version: &'a str,
    capabilities: &'a Raw,
    client_info: Value,
}

/// The handshake of the legacy era.
pub(crate) async fn initialize(
    link: &Link,
    capabilities: &Raw,
) -> Result<ServerInitialization, BackendError> {
    let params = Raw::from_value(&InitializeArgs {
        protocol_version: Revision::LEGACY.as_str(),
        capabilities,
        client_info: session::server_info(),
    });
    if let Some(http) = link.as_http() {
        http.reset();
    }
    let outcome = link
        .request(&control_exchange(&Method::Initialize, Some(params)))
        .await?;
    let result = outcome.map_err(|refusal| BackendError::Refused { error: refusal })?;
    let said: Initialized = result.read().map_err(|_| {
        BackendError::protocol_violation("the answer to `initialize` has no `protocolVersion`")
    })?;
    let revision = Revision::parse(&said.protocol_version)
        .filter(|revision| revision.era() == Era::Legacy)
        .ok_or(BackendError::Revision {
            offered: said.protocol_version,
        })?;
    if let Some(http) = link.as_http() {
        http.set_revision(revision);
    }
    link.notify(notice::INITIALIZED, None).await?;
    Ok(ServerInitialization {
        revision,
        capabilities: object_or_empty(&result, "capabilities"),
        info: result.get("serverInfo"),
        instructions: said.instructions,
    })
}

fn object_or_empty(result: &Raw, key: &str) -> Raw {
    result
        .get(key)
        .filter(Raw::is_object)
        .unwrap_or(Raw::from_static("{}"))
}

/// A request of our own; the caller bounds it in time.
pub(crate) fn control_exchange(method: &Method, params: Option<Raw>) -> Exchange<'_> {
    Exchange {
        method,
        params: params.map(Cow::Owned),
        may_name_token: true,
        tool: None,
        caller: None,
        header_params: Vec::new(),
        correlation: None,
        limits: UNBOUNDED,
        cancel: Cow::Owned(Cancel::default()),
    }
}

/// Longer than any process lives, short enough for the arithmetic of timers.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// No deadline, for what the caller bounds itself and for streams.
pub(in crate::backend) const UNBOUNDED: Deadlines = Deadlines {
    idle: FOREVER,
    idle_key: "timeout",
    total: FOREVER,
};

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    #[test]
    fn only_a_server_of_another_era_contradicts() {
        let check = |era, answer: Result<Result<&str, &str>, BackendError>, expect: bool| {
            let raw = |text: &str| Raw::parse(text.to_owned()).unwrap();
            let answer = answer.map(|outcome| outcome.map(raw).map_err(raw));
            assert_eq!(contradicts_era(era, &answer), expect, "{era} {answer:?}");
        };
        let modern = |answer, expect| check(Era::Modern, Ok(answer), expect);
        modern(Ok(r#"{"supportedVersions":["2026-07-28"]}"#), false);
        modern(Ok(r#"{"supportedVersions":["2025-11-25"]}"#), true);
        modern(Ok(r#"{"supportedVersions":["2036-07-28"]}"#), true);
        modern(Ok("{}"), true);
        modern(Err(r#"{"code":-32601,"message":"no"}"#), true);
        modern(Err(r#"{"code":-32022,"message":"no"}"#), true);
        modern(
            Err(r#"{"code":-32022,"message":"no","data":{"supported":["2025-11-25"]}}"#),
            true,
        );
        modern(
            Err(r#"{"code":-32022,"message":"no","data":{"supported":["2026-07-28"]}}"#),
            false,
        );
        for session in [
            r#"{"code":-32000,"message":"Bad Request: Server not initialized"}"#,
            r#"{"code":-32000,"message":"Bad Request: Mcp-Session-Id header is required"}"#,
            r#"{"code":-32600,"message":"Bad Request: Missing session ID"}"#,
            r#"{"code":-32000,"message":"Bad Request: Unsupported protocol version: 2026-07-28"}"#,
            r#"{"code":-32602,"message":"Invalid request parameters","data":""}"#,
        ] {
            modern(Err(session), true);
        }
        for ill in [
            r#"{"code":-32603,"message":"the database is down"}"#,
            r#"{"code":-32603,"message":"the session store is down"}"#,
            r#"{"code":-32000,"message":"try again"}"#,
            r#"{"code":-32600,"message":"try again"}"#,
            r#"{"code":-32602,"message":"no"}"#,
            r#"{"code":-32020,"message":"no"}"#,
            r#"{"code":-32021,"message":"no"}"#,
            r#"{"code":-31999,"message":"no"}"#,
        ] {
            modern(Err(ill), false);
            check(Era::Legacy, Ok(Err(ill)), ill.contains("-32020"));
        }
        let status = |status| BackendError::Http {
            status,
            body: String::new(),
            retry_after: None,
        };
        for (code, expect) in [
            (StatusCode::BAD_REQUEST, true),
            (StatusCode::TOO_MANY_REQUESTS, false),
            (StatusCode::BAD_GATEWAY, false),
        ] {
            check(Era::Modern, Err(status(code)), expect);
            check(Era::Legacy, Err(status(code)), false);
        }
        check(Era::Legacy, Ok(Ok("{}")), false);
        check(Era::Legacy, Ok(Err(r#"{"code":-32022}"#)), true);
    }
}
