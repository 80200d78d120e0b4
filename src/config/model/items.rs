//! The items of a server: which kinds and which ones are shown, and as what; and the roots it is offered.

use std::time::Duration;

use indexmap::IndexMap;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::policy::GlobList;
use crate::{
    config::units::{Time, times},
    money::Micros,
};

/// Which kinds of item are exposed on merged routes; in a config a list of them.
#[derive(Clone, Copy, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "Vec<ItemKindSection>", into = "Vec<ItemKindSection>")]
pub struct Expose {
    /// Tools.
    pub tools: bool,
    /// Resources and templates.
    pub resources: bool,
    /// Prompts.
    pub prompts: bool,
}

/// Kind of item.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum ItemKindSection {
    /// Tools.
    Tools,
    /// Resources and templates.
    Resources,
    /// Prompts.
    Prompts,
}

impl From<Vec<ItemKindSection>> for Expose {
    fn from(kinds: Vec<ItemKindSection>) -> Self {
        Self {
            tools: kinds.contains(&ItemKindSection::Tools),
            resources: kinds.contains(&ItemKindSection::Resources),
            prompts: kinds.contains(&ItemKindSection::Prompts),
        }
    }
}

impl From<Expose> for Vec<ItemKindSection> {
    fn from(shown: Expose) -> Self {
        let kinds = [
            shown.tools.then_some(ItemKindSection::Tools),
            shown.resources.then_some(ItemKindSection::Resources),
            shown.prompts.then_some(ItemKindSection::Prompts),
        ];
        kinds.into_iter().flatten().collect()
    }
}

/// A root offered to a server.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
#[serde(from = "RootSection", into = "RootSection")]
pub struct Root {
    /// A `file:` URI.
    pub uri: String,
    /// A name for people.
    pub name: Option<String>,
}

/// A root: a `file:` URI, or a table with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(untagged)]
pub(in crate::config) enum RootSection {
    /// The URI.
    Uri(String),
    /// The URI and a name.
    Named(NamedRoot),
}

/// A root with a name.
#[derive(Clone, Debug, Deserialize, JsonSchema, Serialize)]
#[serde(deny_unknown_fields)]
pub(in crate::config) struct NamedRoot {
    /// A `file:` URI.
    uri: String,
    /// Display name.
    #[serde(default)]
    name: Option<String>,
}

impl From<RootSection> for Root {
    fn from(written: RootSection) -> Self {
        match written {
            RootSection::Uri(uri) => Self { uri, name: None },
            RootSection::Named(NamedRoot { uri, name }) => Self { uri, name },
        }
    }
}

impl From<Root> for RootSection {
    fn from(Root { uri, name }: Root) -> Self {
        match name {
            None => Self::Uri(uri),
            Some(_) => Self::Named(NamedRoot { uri, name }),
        }
    }
}

/// Filters and overrides for the tools of a server. Names are the server's own.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "ToolRules")]
pub struct ItemRules {
    /// Globs; when set, only matching items are listed. `*` matches `/` in names, but not in URIs.
    #[serde(with = "GlobList")]
    pub allow: Option<Vec<globset::Glob>>,
    /// Globs; matching items are hidden. `*` matches `/` in names, but not in URIs.
    #[serde(with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<globset::Glob>,
    /// Name -> name shown to clients. A resource keeps its URI.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub rename: IndexMap<String, String>,
    /// Name -> description shown instead of the server's.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub describe: IndexMap<String, String>,
    // Tools only, see `CommonItemRules`.
    /// Name -> price of a call in USD.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub price: IndexMap<String, Micros>,
    // Tools only.
    /// Name -> `timeout` of this tool.
    #[serde(with = "times", skip_serializing_if = "IndexMap::is_empty")]
    #[schemars(with = "IndexMap<String, Time>")]
    pub timeout: IndexMap<String, Duration>,
}

impl ItemRules {
    pub(super) fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// [`ItemRules`] without what only tools have: the schema has two types, `ToolRules` and `ItemRules`.
pub(super) struct CommonItemRules;

impl JsonSchema for CommonItemRules {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ItemRules".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let mut schema = ItemRules::json_schema(generator);
        let text = "Filters and overrides for the items of a server. Names are the server's own.";
        schema.insert("description".to_owned(), text.into());
        let keys = schema.get_mut("properties").and_then(Value::as_object_mut);
        if let Some(keys) = keys {
            keys.retain(|key, _| !matches!(key.as_str(), "price" | "timeout"));
        }
        schema
    }
}
