//! What was decided about an item, and why, in words for people.

use std::fmt::{self, Write as _};

use super::{ItemKind, PolicyItem};
use crate::config::PolicyMode;

/// Whether an item may be used.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Decision<'r> {
    /// Whether it may.
    pub allowed: bool,
    /// What decided.
    pub reason: Reason<'r>,
}

impl<'r> Decision<'r> {
    pub(super) const fn allowed(reason: Reason<'r>) -> Self {
        Self {
            allowed: true,
            reason,
        }
    }

    pub(super) const fn refused(reason: Reason<'r>) -> Self {
        Self {
            allowed: false,
            reason,
        }
    }

    /// One paragraph for people: whether `who` may use `item`, and what decided.
    pub fn explain(&self, who: &str, item: &PolicyItem<'_>) -> String {
        let may = if self.allowed { "may" } else { "may not" };
        let verb = if item.kind == ItemKind::Tool {
            "call"
        } else {
            "use"
        };
        let qualified = format!("{}/{}", item.server, item.original);
        let mut text = format!("{who} {may} {verb} the {} `{qualified}`", item.kind.noun());
        let mut also = [item.exposed, item.alias]
            .into_iter()
            .filter(|name| !name.is_empty() && *name != item.original);
        if let Some(name) = also.next() {
            write!(text, " (exposed as `{name}`").expect("a String takes everything");
            for name in also {
                write!(text, ", in the profile as `{name}`").expect("a String takes everything");
            }
            text.push(')');
        }
        write!(text, ": {}.", self.reason).expect("a String takes everything");
        text
    }
}

/// What decided about an item.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Reason<'r> {
    /// Nobody knows what its server makes of the URI (`..`, backslashes, control characters).
    AmbiguousUri,
    /// A `deny` entry, which wins over every list.
    Denied {
        /// Whose entry.
        whose: PolicyLevel,
        /// The entry.
        glob: &'r str,
    },
    /// An entry of a list.
    Listed {
        /// Whose policy.
        whose: PolicyLevel,
        /// What its lists mean.
        mode: PolicyMode,
        /// The list.
        list: &'static str,
        /// The entry.
        glob: &'r str,
    },
    /// The mode, whatever the lists say.
    Mode {
        /// Whose policy.
        whose: PolicyLevel,
        /// The mode.
        mode: PolicyMode,
    },
    /// Nobody wrote a policy.
    NoPolicy,
    /// A vendor method names a resource by what is no text.
    AmbiguousResource,
    /// No entry of the list matches.
    Unlisted {
        /// Whose policy.
        whose: PolicyLevel,
        /// What its lists mean.
        mode: PolicyMode,
        /// The list.
        list: &'static str,
    },
}

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AmbiguousUri => f.write_str(
                "its URI is ambiguous (`..`, or characters not \
                allowed in URIs) and could bypass policies",
            ),
            Self::Denied { whose, glob } => {
                write!(
                    f,
                    "{whose} has `{glob}` in `deny`, which overrides all lists"
                )
            }
            Self::Listed {
                whose,
                mode,
                list,
                glob,
            } => write!(f, "{whose} is {} and `{list}` has `{glob}`", article(*mode)),
            Self::Mode { whose, mode } => match mode {
                PolicyMode::All => write!(f, "{whose} allows everything"),
                PolicyMode::None => write!(f, "{whose} allows nothing"),
                PolicyMode::Allowlist | PolicyMode::Denylist => {
                    write!(f, "{whose} is {}", article(*mode))
                }
            },
            Self::NoPolicy => f.write_str("no policy applies, so nothing is allowed"),
            Self::AmbiguousResource => f.write_str("its `uri` is not a string"),
            Self::Unlisted { whose, mode, list } => {
                write!(
                    f,
                    "{whose} is {} and no entry of `{list}` matches",
                    article(*mode)
                )
            }
        }
    }
}

const fn article(mode: PolicyMode) -> &'static str {
    match mode {
        PolicyMode::All => "`all`",
        PolicyMode::Allowlist => "an allowlist",
        PolicyMode::Denylist => "a denylist",
        PolicyMode::None => "`none`",
    }
}

/// Whose policy it is; the most specific first.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum PolicyLevel {
    /// The agent's.
    Agent,
    /// The profile's.
    Profile,
    /// Everybody's, of `[governance]`.
    Default,
}

impl fmt::Display for PolicyLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Agent => "the agent's own policy",
            Self::Profile => "the profile's policy",
            Self::Default => "the default policy",
        })
    }
}
