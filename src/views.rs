//! Views: what one conversation sees of the catalog, made over the API for a time.
//!
//! A [`View`] is a profile with changes. The store has them for all gateways on it; [`Views`] is what this gateway read
//! there last. `catalog` says what one shows, `proxy` whose it is; `api` and the command line change them.

use std::{collections::HashMap, sync::Arc};

use arc_swap::ArcSwap;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::{Mutex, watch};

use crate::{
    clock,
    names::{AgentId, ProfileName, Scope, ServerName, ViewId},
    store::{EntryWrite, StoreError, StoredView, ViewStore},
};

/// A view.
#[derive(Clone, Debug, PartialEq)]
pub struct View {
    /// Its id.
    pub id: ViewId,
    /// Who made it: nobody else uses it.
    pub agent: AgentId,
    /// What it shows.
    pub content: ViewContent,
    /// When it was made.
    pub created: Timestamp,
    /// When it ends.
    pub expires: Timestamp,
    /// When it was last changed, which tells versions apart.
    pub changed: Timestamp,
}

/// What a view shows.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub struct ViewContent {
    /// The profile that it begins with; `None` begins with nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// Servers of which it shows everything beside that.
    pub servers: Vec<ServerName>,
    /// Globs over names of tools, as those of policies; what they match is not shown.
    pub disabled_tools: Vec<String>,
    /// What its maker gives the model as `tool_choice`, of which [`ToolChoice::of`] says what it means here.
    pub tool_choice: Value,
}

/// What is left of the tools of a view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ToolChoice<'v> {
    /// All.
    All,
    /// None.
    None,
    /// The one of this name.
    One(&'v str),
}

impl<'v> ToolChoice<'v> {
    /// What `tool_choice` means, in the forms of model APIs: `"none"`, or an object with this `type`; an object that
    /// names a tool by `name` or by `function.name`. Anything else leaves all.
    pub fn of(tool_choice: &'v Value) -> Self {
        let member = |key: &str| tool_choice.get(key);
        let name = member("name").or_else(|| member("function")?.get("name"));
        match (tool_choice, name, member("type")) {
            (Value::String(text), _, _) if text == "none" => Self::None,
            (_, Some(Value::String(name)), _) => Self::One(name),
            (_, _, Some(Value::String(kind))) if kind == "none" => Self::None,
            _ => Self::All,
        }
    }
}

impl View {
    /// Reads what [`View::to_stored`] wrote; `None` for what this version does not understand.
    pub fn from_stored(stored: &StoredView) -> Option<Self> {
        Some(Self {
            id: stored.id,
            agent: stored.agent,
            content: serde_json::from_str(&stored.document).ok()?,
            created: stored.created,
            expires: stored.expires,
            changed: stored.changed,
        })
    }

    /// As the store has it.
    pub fn to_stored(&self) -> StoredView {
        StoredView {
            id: self.id,
            agent: self.agent,
            document: serde_json::to_string(&self.content).unwrap_or_default(),
            created: self.created,
            expires: self.expires,
            changed: self.changed,
        }
    }

    /// The scope of its route.
    pub fn scope(&self) -> Scope {
        Scope::View {
            id: self.id,
            profile: self.content.profile.clone(),
        }
    }
}

/// A change to the views of the store.
#[derive(Clone, Debug)]
pub enum ViewChange {
    /// One is made, unless its agent has `per_agent_max` already.
    Create {
        /// The view.
        view: View,
        /// How many its agent may have.
        per_agent_max: usize,
    },
    /// One ends, where it has still the version that it has here.
    End(View),
    /// One shows something else, or ends at another time, where it has still the version that it has here.
    Replace(View),
}

/// What became of a change to a view.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ViewOutcome {
    /// It was made; the view has this version now.
    Done(Timestamp),
    /// Somebody else changed it meanwhile, to this version: nothing was changed.
    Conflict(Timestamp),
    /// It has ended.
    Missing,
    /// Its agent has as many as it may have.
    TooMany,
}

impl ViewChange {
    /// The view, as it is after the change, or was before its end.
    pub fn view(&self) -> &View {
        match self {
            Self::Create { view, .. } | Self::End(view) | Self::Replace(view) => view,
        }
    }

    /// Makes it in `store`.
    ///
    /// # Errors
    /// The store's.
    pub async fn write(&self, store: &dyn ViewStore) -> Result<ViewOutcome, StoreError> {
        let written = match self {
            Self::Create {
                view,
                per_agent_max,
            } => {
                let is_added = store.add(&view.to_stored(), *per_agent_max).await?;
                return Ok(if is_added {
                    ViewOutcome::Done(view.changed)
                } else {
                    ViewOutcome::TooMany
                });
            }
            Self::End(view) => store.remove(view.id, view.changed).await?,
            Self::Replace(view) => store.replace(&view.to_stored(), clock::now()).await?,
        };
        Ok(match written {
            EntryWrite::Done(version) => ViewOutcome::Done(version),
            EntryWrite::Conflict(version) => ViewOutcome::Conflict(version),
            EntryWrite::Missing => ViewOutcome::Missing,
        })
    }
}

/// The views of the store, as this gateway read them last.
#[derive(Debug, Default)]
pub struct Views {
    known: ArcSwap<HashMap<ViewId, Arc<View>>>,
    /// Held while the store is read, so that nothing older is taken after something newer.
    reading: Mutex<()>,
    changes: watch::Sender<u64>,
}

impl Views {
    /// The view of this id, unless it has ended.
    pub fn get(&self, id: ViewId) -> Option<Arc<View>> {
        let known = self.known.load();
        let view = known.get(&id)?;
        (view.expires > clock::now()).then(|| Arc::clone(view))
    }

    /// Those that have not ended, by id.
    pub fn all(&self) -> Vec<Arc<View>> {
        let now = clock::now();
        let known = self.known.load();
        let mut all: Vec<_> = known
            .values()
            .filter(|view| view.expires > now)
            .cloned()
            .collect();
        all.sort_by_key(|view| view.id);
        all
    }

    /// Reads them from `store`. Who follows [`Views::changes`] hears of it where they are others than before.
    ///
    /// # Errors
    /// Why they cannot be read; those of before hold.
    pub async fn reread(&self, store: &dyn ViewStore) -> Result<(), StoreError> {
        let _reading = self.reading.lock().await;
        self.update(&store.views().await?);
        Ok(())
    }

    fn update(&self, stored: &[StoredView]) {
        let before = self.known.load();
        let mut known = HashMap::with_capacity(stored.len());
        for stored in stored {
            let same = before.get(&stored.id);
            let same = same.filter(|view| view.changed == stored.changed);
            let view = same.cloned().or_else(|| {
                let read = View::from_stored(stored);
                if read.is_none() {
                    tracing::warn!(view = %stored.id, "ignored a view of another version of Tollbridge");
                }
                read.map(Arc::new)
            });
            known.extend(view.map(|view| (view.id, view)));
        }
        let is_same = known.len() == before.len()
            && known.iter().all(|(id, view)| {
                let old = before.get(id);
                old.is_some_and(|old| Arc::ptr_eq(old, view))
            });
        if !is_same {
            self.known.store(Arc::new(known));
            self.note_change();
        }
    }

    /// Tells whoever follows that views changed, or ended since their time has passed.
    pub fn note_change(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Tells of every change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// When the next one ends that the store still has.
    pub fn next_expiry(&self) -> Option<Timestamp> {
        let known = self.known.load();
        known.values().map(|view| view.expires).min()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tool_choices_of_every_form_are_understood() {
        let named = json!({ "name": "mcp_x_y" });
        let of_chat = json!({ "type": "function", "function": { "name": "mcp_x_y" } });
        for (written, expect) in [
            (json!("auto"), ToolChoice::All),
            (json!("required"), ToolChoice::All),
            (json!({ "type": "any" }), ToolChoice::All),
            (json!({ "allowed": [] }), ToolChoice::All),
            (Value::Null, ToolChoice::All),
            (json!("none"), ToolChoice::None),
            (json!({ "type": "none" }), ToolChoice::None),
            (named, ToolChoice::One("mcp_x_y")),
            (of_chat, ToolChoice::One("mcp_x_y")),
        ] {
            assert_eq!(ToolChoice::of(&written), expect, "{written}");
        }
    }
}
