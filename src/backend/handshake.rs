//! The first words to a server: which era it speaks, and what it says about itself.
//!
//! Source of the verdicts: Spec 2026-07-28, versioning, backward compatibility.

use std::{borrow::Cow, time::Duration};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Failure,
    link::{Deadlines, Exchange, Link},
};
use crate::{
    config::EraPin,
    mcp::{Era, Method, Outcome, Raw, Revision, error, meta, method::notice},
    session::{self, Cancel},
};

/// Silence after which `initialize` is tried beside an unanswered `server/discover`: legacy
/// servers may ignore what comes before it, slow modern ones are still starting.
const DISCOVER_PATIENCE: Duration = Duration::from_secs(3);

/// What a server said about itself.
#[derive(Clone, Debug)]
pub struct Hello {
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
enum Verdict {
    /// It speaks our revision after all.
    Again,
    Legacy,
    Modern(Hello),
    /// It speaks neither of the revisions we do.
    Stranger(Vec<String>),
}

/// Greets the server in the era that `pin` says, or that it turns out to speak.
pub(crate) async fn greet(link: &Link, pin: EraPin, capabilities: &Raw) -> Result<Hello, Failure> {
    match pin {
        EraPin::Legacy => initialize(link, capabilities).await,
        EraPin::Modern => match settle(link, discover(link).await?).await? {
            Verdict::Modern(hello) => Ok(hello),
            Verdict::Again | Verdict::Legacy => Err(Failure::Era { era: Era::Modern }),
            Verdict::Stranger(offered) => Err(Failure::Revision {
                offered: offered.join(", "),
            }),
        },
        EraPin::Auto => probe(link, capabilities).await,
    }
}

async fn probe(link: &Link, capabilities: &Raw) -> Result<Hello, Failure> {
    let discovered = discover(link);
    tokio::pin!(discovered);
    let outcome = tokio::select! {
        outcome = &mut discovered => outcome,
        () = tokio::time::sleep(DISCOVER_PATIENCE) => {
            // Whichever is answered well decides; a late answer to the other is ignored.
            tokio::select! {
                biased;
                outcome = &mut discovered => outcome,
                hello = initialize(link, capabilities) => match hello {
                    Ok(hello) => return Ok(hello),
                    Err(Failure::Refused { .. }) => discovered.await,
                    Err(failure) => return Err(failure),
                },
            }
        }
    };
    let verdict = match outcome {
        Ok(outcome) => settle(link, outcome).await?,
        Err(failure) if is_old_refusal(&failure) => Verdict::Legacy,
        Err(failure) => return Err(failure),
    };
    match verdict {
        Verdict::Modern(hello) => Ok(hello),
        Verdict::Again | Verdict::Legacy => initialize(link, capabilities).await,
        Verdict::Stranger(offered) => Err(Failure::Revision {
            offered: offered.join(", "),
        }),
    }
}

/// The verdict; a server that refused our revision and lists it all the same is asked once more.
async fn settle(link: &Link, outcome: Outcome) -> Result<Verdict, Failure> {
    match verdict(outcome) {
        Verdict::Again => Ok(verdict(discover(link).await?)),
        settled @ (Verdict::Legacy | Verdict::Modern(_) | Verdict::Stranger(_)) => Ok(settled),
    }
}

/// The `_meta` members of our own requests. They declare what we can relay for a client that has
/// it, so that lists hold what some client can use.
pub(super) fn own_envelope() -> String {
    let info = Raw::from_value(&session::server_info());
    meta::envelope(Some(&info), &RELAYED, None)
}

/// Capabilities of clients that are relayed.
pub(super) const RELAYED: Raw =
    Raw::from_static(r#"{"elicitation":{"form":{},"url":{}},"roots":{},"sampling":{}}"#);

async fn discover(link: &Link) -> Result<Outcome, Failure> {
    let params = format!(r#"{{"_meta":{{{}}}}}"#, own_envelope());
    let params = Raw::parse(params).expect("our own JSON");
    if let Some(http) = link.as_http() {
        http.speak(Revision::MODERN);
    }
    link.request(&control(&Method::Discover, Some(params)))
        .await
}

fn verdict(outcome: Outcome) -> Verdict {
    match outcome {
        Ok(result) => match result.read::<Discovered>() {
            Ok(discovered) if speaks_modern(&discovered.supported_versions) => {
                Verdict::Modern(Hello {
                    revision: Revision::MODERN,
                    capabilities: object(&result, "capabilities"),
                    info: result
                        .get("_meta")
                        .and_then(|meta| meta.get(meta::SERVER_INFO)),
                    instructions: discovered.instructions,
                })
            }
            Ok(discovered) => legacy_or_stranger(discovered.supported_versions),
            Err(_) => Verdict::Legacy,
        },
        Err(refusal) if error::code(&refusal) == Some(error::UNSUPPORTED_VERSION) => {
            match offered(&refusal) {
                Some(offered) if speaks_modern(&offered) => Verdict::Again,
                Some(offered) => legacy_or_stranger(offered),
                None => Verdict::Legacy,
            }
        }
        Err(_) => Verdict::Legacy,
    }
}

fn speaks_modern(offered: &[String]) -> bool {
    offered.iter().any(|date| date == Revision::MODERN.as_str())
}

fn legacy_or_stranger(offered: Vec<String>) -> Verdict {
    let legacy = offered.is_empty()
        || offered.iter().any(|date| {
            Revision::parse(date).is_some_and(|revision| revision.era() == Era::Legacy)
        });
    if legacy {
        Verdict::Legacy
    } else {
        Verdict::Stranger(offered)
    }
}

/// `data.supported` of a refusal; some servers write `supportedVersions`.
fn offered(refusal: &Raw) -> Option<Vec<String>> {
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

/// Whether this answer is one that a server of another era than the one that was greeted may give.
/// Errors of tools look alike, so whoever doubts asks `server/discover` or `ping`.
pub(super) fn casts_doubt(answer: &Result<Outcome, Failure>) -> bool {
    match answer {
        Ok(Ok(_)) => false,
        Ok(Err(refusal)) => error::code(refusal).is_some_and(|code| DOUBTFUL.contains(&code)),
        Err(failure) => is_old_refusal(failure),
    }
}

/// Codes of servers that meet a request of another era: those of 2026-07-28, and two that SDKs of
/// the legacy era have for requests without a session.
const DOUBTFUL: [i64; 5] = [
    error::HEADER_MISMATCH,
    error::MISSING_CAPABILITY,
    error::UNSUPPORTED_VERSION,
    error::INVALID_REQUEST,
    -32000,
];

/// Whether this answer to `server/discover` or `ping` in `era` shows that another server has taken
/// the place of the one that was greeted, which spoke it.
pub(super) fn is_contradiction(era: Era, answer: &Result<Outcome, Failure>) -> bool {
    match (era, answer) {
        (Era::Legacy, Ok(Err(refusal))) => {
            error::code(refusal) == Some(error::UNSUPPORTED_VERSION)
                || error::code(refusal) == Some(error::HEADER_MISMATCH)
        }
        (Era::Modern, Ok(outcome)) => match verdict(outcome.clone()) {
            Verdict::Again | Verdict::Modern(_) => false,
            Verdict::Legacy | Verdict::Stranger(_) => true,
        },
        (Era::Modern, Err(failure)) => is_old_refusal(failure),
        (Era::Legacy, Ok(Ok(_)) | Err(_)) => false,
    }
}

/// A client error without a JSON-RPC body is how old HTTP servers meet unknown requests.
fn is_old_refusal(failure: &Failure) -> bool {
    matches!(failure, Failure::Http { status, .. }
        if status.is_client_error() && *status != http::StatusCode::TOO_MANY_REQUESTS)
}

/// What we say of ourselves, or of the client that we speak for. Its capabilities are what it wrote:
/// a [`Value`] holds neither every number nor every string nor every depth.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Introduced<'a> {
    protocol_version: &'a str,
    capabilities: &'a Raw,
    client_info: Value,
}

/// The handshake of the legacy era.
pub(crate) async fn initialize(link: &Link, capabilities: &Raw) -> Result<Hello, Failure> {
    let params = Raw::from_value(&Introduced {
        protocol_version: Revision::LEGACY.as_str(),
        capabilities,
        client_info: session::server_info(),
    });
    if let Some(http) = link.as_http() {
        http.forget();
    }
    let outcome = link
        .request(&control(&Method::Initialize, Some(params)))
        .await?;
    let result = outcome.map_err(|refusal| Failure::Refused { error: refusal })?;
    let said: Initialized = result.read().map_err(|_| Failure::Garbled {
        what: "the answer to `initialize` has no `protocolVersion`".to_owned(),
    })?;
    let revision = Revision::parse(&said.protocol_version)
        .filter(|revision| revision.era() == Era::Legacy)
        .ok_or(Failure::Revision {
            offered: said.protocol_version,
        })?;
    if let Some(http) = link.as_http() {
        http.speak(revision);
    }
    link.notify(notice::INITIALIZED, None).await?;
    Ok(Hello {
        revision,
        capabilities: object(&result, "capabilities"),
        info: result.get("serverInfo"),
        instructions: said.instructions,
    })
}

fn object(result: &Raw, key: &str) -> Raw {
    result
        .get(key)
        .filter(Raw::is_object)
        .unwrap_or(Raw::from_static("{}"))
}

/// A request of our own; the caller bounds it in time.
pub(crate) fn control(method: &Method, params: Option<Raw>) -> Exchange<'_> {
    Exchange {
        method,
        params: params.map(Cow::Owned),
        tool: None,
        caller: None,
        header_params: Vec::new(),
        traceparent: None,
        limits: UNBOUNDED,
        cancel: Cow::Owned(Cancel::default()),
    }
}

/// Longer than any process lives, short enough for the arithmetic of timers.
const EVER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// No deadline, for what the caller bounds itself and for streams.
pub(super) const UNBOUNDED: Deadlines = Deadlines {
    idle: EVER,
    total: EVER,
};
