//! Resources that methods of the skills extension list: what an agent may not read is not in them.
//!
//! Called by the spine with what a server answered. Only the route of one server has such methods, so
//! the lists are the server's own, in its own names, and pass as they are but for whole entries.

use std::sync::Arc;

use super::Proxy;
use crate::{
    auth::Agent,
    catalog::Catalog,
    governance::{CallOutcome, ServerAnswer, Visibility},
    mcp::{
        Method, Raw,
        json::{self, Patch},
    },
    names::{Scope, ServerName},
    router::{ItemSubject, Routed},
    task::run_blocking_if_large,
};

/// Methods whose results list resources, each with the member that does (SEP-2640, extension
/// `io.modelcontextprotocol/skills`). What a skill says of its own files is left whole: clients verify it.
const LIST_METHODS: [(&str, &str); 2] = [
    ("resources/directory/read", "resources"),
    ("skills/list", "skills"),
];

/// What is needed of a call whose answer lists resources.
#[derive(Debug)]
pub(super) struct SkillsListing {
    member: &'static str,
    server: ServerName,
    agent: Arc<Agent>,
    scope: Scope,
}

impl SkillsListing {
    /// That of `routed`, where its answer is a list.
    pub(super) fn of(routed: &Routed) -> Option<Self> {
        let Method::Other(method) = &routed.call.method else {
            return None;
        };
        let (_, member) = LIST_METHODS
            .into_iter()
            .find(|(name, _)| **name == **method)?;
        Some(Self {
            member,
            server: routed.server.clone(),
            agent: Arc::clone(&routed.call.client.agent),
            scope: routed.call.scope.clone(),
        })
    }

    /// `list` with the entries that are in `visibility`.
    fn visible_entries(&self, list: &Raw, visibility: &Visibility, catalog: &Catalog) -> Raw {
        let json = list.as_bytes();
        let is_seen = |uri: &str| {
            let shown = ItemSubject::visible_resource(&self.server, uri, catalog);
            shown.is_some_and(|it| visibility.shows_resource(&self.server, &it.names, &it.original))
        };
        // A client may take either of two members, and who names nothing names nothing that is seen.
        let is_entry_seen = |at: usize| {
            let uris =
                json::members(json, at).filter(|member| member.matches_ignoring_case(json, "uri"));
            let mut seen = uris
                .map(|uri| json::decode_string(&json[uri.value]).is_some_and(|it| is_seen(&it)));
            seen.next() == Some(true) && seen.all(|it| it)
        };
        let mut patch = Patch::new(json);
        let lists = json::members(json, 0).filter(|it| it.matches_ignoring_case(json, self.member));
        for listed in lists.map(|list| list.value) {
            patch.retain_elements(listed, is_entry_seen);
        }
        if patch.is_empty() {
            return list.clone();
        }
        patch.finish()
    }
}

impl Proxy {
    /// How the call of `listing` ended, as far as its agent may know of what is listed.
    pub(super) async fn filter_skills_outcome(
        &self,
        listing: SkillsListing,
        outcome: CallOutcome,
    ) -> CallOutcome {
        let visibility = self.governance.visibility(&listing.agent, &listing.scope);
        let owners = self.owners_seen_by(&listing.agent);
        let catalog = self.catalog_store.catalog((&owners, &listing.scope));
        let is_whole =
            matches!(visibility, Visibility::All) && catalog.shows_every_resource(&listing.server);
        let CallOutcome::Answered(ServerAnswer {
            outcome: Ok(list),
            revision,
            same_task_id: same_id,
        }) = outcome
        else {
            return outcome;
        };
        let bytes = list.as_bytes().len();
        let seen = if is_whole {
            list
        } else {
            run_blocking_if_large(bytes, move || {
                listing.visible_entries(&list, &visibility, &catalog)
            })
            .await
        };
        CallOutcome::Answered(ServerAnswer {
            outcome: Ok(seen),
            revision,
            same_task_id: same_id,
        })
    }
}
