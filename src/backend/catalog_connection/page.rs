//! What one page of a list says.

use crate::{
    catalog::{FirstPage, Kind},
    mcp::json::{self, Member, Patch, Raw},
};

/// One page of a list.
pub(super) struct ListPage {
    pub(super) items: Vec<Raw>,
    pub(super) next: Option<Raw>,
    /// What it says of the list, where it is the first.
    pub(super) first: FirstPage,
}

impl ListPage {
    /// Reads a result, and at most `items_max` of its items.
    pub(super) fn read(result: &Raw, kind: Kind, items_max: usize) -> Self {
        let json = result.as_bytes();
        // Walked once: it may be large.
        let members: Vec<Member> = json::members(json, 0).collect();
        let last = |key: &str| {
            let member = members.iter().rfind(|member| member.matches(json, key))?;
            Some(result.slice(member.value.clone()))
        };
        let items = members
            .iter()
            .rfind(|member| member.matches(json, kind.member()));
        let items = items.map(|member| json::elements(json, member.value.start));
        let items = items.into_iter().flatten().take(items_max);
        let is_known = |member: &Member| {
            let mut known = [kind.member()].into_iter().chain(KNOWN_MEMBERS);
            known.any(|key| member.matches(json, key))
        };
        let has_more = members.iter().any(|member| !is_known(member));
        let rest = has_more.then(|| {
            let mut patch = Patch::new(json);
            patch.remove_from(&members, is_known);
            patch.finish()
        });
        Self {
            items: items.map(|span| result.slice(span)).collect(),
            next: last("nextCursor").filter(|next| next.as_str() != "null"),
            first: FirstPage {
                ttl_ms: last("ttlMs").and_then(|ttl| ttl.as_str().parse().ok()),
                public: last("cacheScope")
                    .as_ref()
                    .and_then(Raw::as_text)
                    .as_deref()
                    == Some("public"),
                rest,
            },
        }
    }
}

/// The members of a page, beside its items, that we understand.
const KNOWN_MEMBERS: [&str; 4] = ["nextCursor", "resultType", "ttlMs", "cacheScope"];
