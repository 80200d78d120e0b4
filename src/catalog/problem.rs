//! What went wrong while a snapshot was built, for operators to see in `/status`.
//!
//! Nothing here stops a snapshot: a broken item costs itself and nothing else.

use std::fmt;

use super::{HeaderFault, Kind, OutputSchemaFault};
use crate::config::ServerLimits;
use crate::mcp::json::{self, Raw};
use crate::names::{ProfileName, Scope, ServerName};

/// One oddity in what a server offers.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct CatalogProblem {
    /// The server that offers it.
    pub server: ServerName,
    /// The kind of item, when it is about one.
    pub kind: Option<Kind>,
    /// What is odd, and what was done about it.
    pub cause: ProblemCause,
}

/// What a problem costs clients.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ProblemImpact {
    /// An item that is not served, although nobody said that it should not be.
    Item,
    /// Nothing, but perhaps a name: all that can be served is.
    Nothing,
    /// An item whose name goes to another one, as `naming.conflict` asks for.
    LostName,
}

impl CatalogProblem {
    /// What it costs clients.
    pub fn impact(&self) -> ProblemImpact {
        match &self.cause {
            ProblemCause::Collision { outcome, .. } => match outcome {
                NameOutcome::Exposed(_) => ProblemImpact::Nothing,
                NameOutcome::Hidden(Some(_)) => ProblemImpact::LostName,
                NameOutcome::Hidden(None) => ProblemImpact::Item,
            },
            ProblemCause::Header { dropped, .. } if *dropped => ProblemImpact::Item,
            ProblemCause::NoName { .. }
            | ProblemCause::NotAnObject { .. }
            | ProblemCause::Oversized { .. }
            | ProblemCause::ProfileRenamedOver { .. }
            | ProblemCause::RenamedOver { .. }
            | ProblemCause::ListUnreadable => ProblemImpact::Item,
            ProblemCause::CircularPages
            | ProblemCause::Duplicate { .. }
            | ProblemCause::Header { .. }
            | ProblemCause::InstructionsCut { .. }
            | ProblemCause::Repaired { .. }
            | ProblemCause::MethodNotFound { .. }
            | ProblemCause::PrefixConflict { .. }
            | ProblemCause::ListMembersDropped { .. }
            | ProblemCause::OutputSchema { .. }
            | ProblemCause::Schema { .. }
            | ProblemCause::SchemasUnchecked { .. }
            | ProblemCause::NameShortened { .. }
            | ProblemCause::TemplatesUnmatched { .. } => ProblemImpact::Nothing,
        }
    }

    /// Whether it is about what the route of `scope` shows.
    pub fn affects_route(&self, scope: &Scope) -> bool {
        match &self.cause {
            // Servers keep their names on routes of their own, and all else.
            ProblemCause::Collision { .. }
            | ProblemCause::InstructionsCut { .. }
            | ProblemCause::Repaired { .. }
            | ProblemCause::PrefixConflict { .. }
            | ProblemCause::NameShortened { .. }
            | ProblemCause::OutputSchema { .. }
            | ProblemCause::TemplatesUnmatched { .. } => !matches!(scope, Scope::Server(_)),
            ProblemCause::ProfileRenamedOver { profile, .. } => {
                matches!(scope, Scope::Profile(shown) if shown == profile)
            }
            ProblemCause::CircularPages
            | ProblemCause::Duplicate { .. }
            | ProblemCause::Header { .. }
            | ProblemCause::MethodNotFound { .. }
            | ProblemCause::NoName { .. }
            | ProblemCause::NotAnObject { .. }
            | ProblemCause::Oversized { .. }
            | ProblemCause::RenamedOver { .. }
            | ProblemCause::ListMembersDropped { .. }
            | ProblemCause::Schema { .. }
            | ProblemCause::SchemasUnchecked { .. }
            | ProblemCause::ListUnreadable => true,
        }
    }
}

impl fmt::Display for CatalogProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.server)?;
        if let Some(kind) = self.kind {
            write!(f, "{}: ", kind.member())?;
        }
        self.cause.fmt(f)
    }
}

/// What is odd about an item, and what was done about it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ProblemCause {
    /// The cursor of a page leads back to a page before it; the server can mend it.
    #[error(
        "circular pagination: a cursor points back to an earlier page; the items read so far \
        are served"
    )]
    CircularPages,
    /// Several items claim one exposed name or URI; the operator can rename one of them.
    #[error("`{original}` has the same exposed name `{name}` as {}; {outcome}", server_list(.with))]
    Collision {
        /// The server's own name or URI.
        original: String,
        /// What the naming rules make of it.
        name: String,
        /// Servers of the other claimants; this one as well when it claims the name twice.
        with: Vec<ServerName>,
        /// What became of this item.
        outcome: NameOutcome,
    },
    /// Another item of the server has the same name or URI; the server can mend it.
    #[error("`{name}` is listed more than once; only the first is served")]
    Duplicate {
        /// The name or URI.
        name: String,
    },
    /// An annotation breaks a rule of its own; the server can mend it.
    #[error("`{tool}`: {fault}; {}", if *dropped { "the tool is not served" } else { "the \
        annotation is ignored" })]
    Header {
        /// The tool's original name.
        tool: String,
        /// The rule.
        fault: HeaderFault,
        /// Whether the whole tool is left out, as clients over HTTP must do.
        dropped: bool,
    },
    /// The server's instructions are longer than merged ones may be.
    #[error("instructions are truncated to {limit} characters on merged routes")]
    InstructionsCut {
        /// Characters kept.
        limit: usize,
    },
    /// Members of items are of the wrong type, or one that they need is missing; the server can mend
    /// them.
    #[error("{}: {} missing or of the wrong type; repaired on merged \
        routes", count_phrase(original, *more), quoted_list(.members))]
    Repaired {
        /// The server's own name or URI of the first of them.
        original: String,
        /// Its members.
        members: Vec<&'static str>,
        /// How many further items of the kind are mended, these members of them or others.
        more: usize,
    },
    /// The server declares a list and answers that it has no such method; the server can mend it.
    #[error("the server declares this list but does not implement `{method}`; the list is empty")]
    MethodNotFound {
        /// The method.
        method: &'static str,
    },
    /// The item has no name or URI, or one that is not a non-empty string; the server can mend it.
    #[error("item {index} has no valid `{member}`; skipped")]
    NoName {
        /// Position in the server's listing, from 0.
        index: usize,
        /// The member that should hold it.
        member: &'static str,
    },
    /// The item is not an object; the server can mend it.
    #[error("item {index} is not an object; skipped")]
    NotAnObject {
        /// Position in the server's listing, from 0.
        index: usize,
    },
    /// Another server's name maps to the same URI prefix; the operator can choose a namespace.
    #[error("the URI prefix `{prefix}` is also used by another server; using `{used}` instead")]
    PrefixConflict {
        /// The prefix both claim.
        prefix: String,
        /// The one in use.
        used: String,
    },
    /// A `rename` of a profile gives the name to another item; the operator can mend it.
    #[error("`{original}` is not served in profile `{profile}`, which renames `{by}` to `{name}`")]
    ProfileRenamedOver {
        /// The profile.
        profile: ProfileName,
        /// The item that is left out, by its name on merged routes.
        original: String,
        /// The item that has the name, by its name on merged routes.
        by: String,
        /// The name.
        name: String,
    },
    /// A `rename` of the config gives the name to another item; the operator can mend it.
    #[error("`{original}` is not served because the config renames `{by}` to `{name}`")]
    RenamedOver {
        /// The item that is left out.
        original: String,
        /// The item that has the name.
        by: String,
        /// The name.
        name: String,
    },
    /// An item is larger or nested deeper than the server's may be; the server can mend it, or the
    /// operator raise the limit.
    #[error("`{name}` is not served: {excess}")]
    Oversized {
        /// How the name or URI begins.
        name: String,
        /// What is too much.
        excess: ItemExcess,
    },
    /// What came with a list is larger or nested deeper than an item may be; the server can mend it.
    #[error("extra members of the list were dropped: {excess}")]
    ListMembersDropped {
        /// What is too much.
        excess: ItemExcess,
    },
    /// The input schema of a tool does not compile; the server can mend it. Calls pass unchecked.
    #[error("`{tool}`: invalid `inputSchema`: {reason}")]
    Schema {
        /// The tool's original name.
        tool: String,
        /// What is wrong with it.
        reason: String,
    },
    /// Looking at the input schemas took too long; the server can make them simpler.
    #[error("timed out checking schemas; the `inputSchema` of {count} tools was not checked")]
    SchemasUnchecked {
        /// How many were left.
        count: usize,
    },
    /// Clients that compile output schemas would show no tool because of this one; the server can mend
    /// it.
    #[error("`{tool}`: {fault}")]
    OutputSchema {
        /// The tool's original name.
        tool: String,
        /// What is wrong, and what was done about it.
        fault: OutputSchemaFault,
    },
    /// The exposed name would be longer than `naming.max_length`.
    #[error(
        "`{original}` is exposed as `{exposed}`: its name is longer than `naming.max_length` \
         ({limit}; Claude Code allows 64 with its prefix `mcp__tollbridge__`)"
    )]
    NameShortened {
        /// The server's own name.
        original: String,
        /// The exposed name.
        exposed: String,
        /// The characters that a name may have.
        limit: usize,
    },
    /// Templates are too long, or too many, for URIs without a prefix to be held against them; the
    /// server can make them simpler.
    #[error(
        "too many or too long templates to match URIs exactly: {count}; URIs are matched by their \
         literal prefix"
    )]
    TemplatesUnmatched {
        /// How many of them.
        count: usize,
    },
    /// The list could not be read, which is tried again; the state of the server says why.
    #[error("the list could not be read; the previous list is served, if there is one")]
    ListUnreadable,
}

/// What is too much of an item.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum ItemExcess {
    /// Its nesting.
    #[error("nested deeper than `limits.item_depth` ({limit} levels)")]
    Deep {
        /// The levels that it may have.
        limit: usize,
    },
    /// Its size.
    #[error("{size} bytes exceed `limits.item` ({limit})")]
    Large {
        /// Its bytes.
        size: usize,
        /// The bytes that it may have.
        limit: usize,
    },
}

impl ItemExcess {
    /// What of `json` is beyond `limits`.
    pub(super) fn of(json: &Raw, limits: &ServerLimits) -> Option<Self> {
        let (bytes, limit) = (json.as_bytes(), limits.item);
        if bytes.len() > limit {
            let size = bytes.len();
            return Some(Self::Large { size, limit });
        }
        let limit = limits.item_depth;
        json::is_nested_deeper(bytes, limit).then_some(Self::Deep { limit })
    }
}

/// What became of an item whose name others claim too.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum NameOutcome {
    /// It is listed under this name.
    Exposed(String),
    /// It is not listed; this server's item has the name, if any has.
    Hidden(Option<ServerName>),
}

impl fmt::Display for NameOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exposed(name) => write!(f, "exposed as `{name}`"),
            Self::Hidden(Some(server)) => write!(f, "not listed; {server} keeps the name"),
            Self::Hidden(None) => f.write_str("not listed"),
        }
    }
}

fn count_phrase(first: &str, more: usize) -> String {
    match more {
        0 => format!("`{first}`"),
        _ => format!("`{first}`, as the first of {}", more + 1),
    }
}

fn quoted_list(members: &[&str]) -> String {
    let quoted: Vec<String> = members.iter().map(|it| format!("`{it}`")).collect();
    quoted.join(", ")
}

fn server_list(servers: &[ServerName]) -> String {
    servers
        .iter()
        .map(ServerName::as_str)
        .collect::<Vec<_>>()
        .join(", ")
}
