//! Which items may be used and with which arguments: globs, policies and rules about arguments.

use globset::{Glob, GlobBuilder, GlobMatcher};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Which tools, prompts, resources and methods may be used. A glob matches `server/name` (the part
/// before the first `/` is the server; `*` behind it matches any character, `/` too) or an exposed
/// name, which belongs to the server with the longest matching prefix. In URIs `*` does not match
/// `/`; `**` does.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// What the lists mean.
    pub mode: PolicyMode,
    /// Globs over tools.
    #[serde(default, with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Glob>,
    /// Globs over prompts.
    #[serde(default, with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub prompts: Vec<Glob>,
    /// Globs over resource URIs, including URIs in the params of vendor methods.
    #[serde(default, with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<Glob>,
    /// Globs over vendor methods on per-server routes, `server/method`; `*/tasks/*` matches the
    /// `tasks/...` methods of every server.
    #[serde(default, with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<Glob>,
    /// Globs over names of any kind, refused whatever the lists and more specific policies say.
    /// They apply to everything their text matches, on any server.
    #[serde(default, with = "GlobList", skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<Glob>,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            mode: PolicyMode::None,
            tools: Vec::new(),
            prompts: Vec::new(),
            resources: Vec::new(),
            methods: Vec::new(),
            deny: Vec::new(),
        }
    }
}

/// What the lists of a policy mean.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PolicyMode {
    /// Everything is allowed.
    All,
    /// Only what the lists match is allowed; a missing list matches nothing.
    Allowlist,
    /// Everything is allowed except what the lists match.
    Denylist,
    /// Nothing is allowed.
    None,
}

impl PolicyMode {
    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Allowlist => "allowlist",
            Self::Denylist => "denylist",
            Self::None => "none",
        }
    }
}

/// A rule about one argument of some tools. All given conditions must hold.
#[derive(Clone, Debug, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ArgumentRule {
    /// Name of the rule, shown to the caller and in the audit.
    pub name: String,
    /// Globs over tools. Default: all tools.
    #[serde(default = "GlobList::all", with = "GlobList")]
    pub tools: Vec<Glob>,
    /// JSON pointer (RFC 6901) to the argument, such as `/path`. `*` stands for every element or
    /// member; at the end for everything below.
    pub at: String,
    /// What the value is compared with.
    #[serde(flatten)]
    pub condition: Condition,
    /// Effect of the rule.
    #[serde(default)]
    pub action: ArgumentAction,
    /// Only count what the rule would refuse.
    #[serde(default)]
    pub observe: bool,
}

/// What a value is compared with; all that are given must hold.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema, PartialEq, Serialize)]
#[serde(default)]
pub struct Condition {
    /// The value equals this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub equals: Option<serde_json::Value>,
    /// The value is one of these.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub one_of: Option<Vec<serde_json::Value>>,
    /// The value is a string that matches this regular expression (not anchored).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub matches: Option<String>,
    /// The value is a number greater than or equal to this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min: Option<f64>,
    /// The value is a number less than or equal to this.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
}

/// Effect of an argument rule.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ArgumentAction {
    /// Refuse the call unless the conditions hold.
    Allow,
    /// Refuse the call when the conditions hold.
    #[default]
    Refuse,
}

/// The glob `text` as those over URIs are: `*` and `?` do not match `/`. What matches names compiles it anew,
/// see [`name_matcher`].
///
/// # Errors
/// What is wrong with it.
pub(crate) fn glob(text: &str) -> Result<Glob, globset::Error> {
    GlobBuilder::new(text).literal_separator(true).build()
}

/// The matcher of `glob` on names of a server's own: `*` and `?` match `/` too, since a server may name its
/// items as it likes.
pub(crate) fn name_matcher(glob: &Glob) -> GlobMatcher {
    let of_names = GlobBuilder::new(glob.glob())
        .literal_separator(false)
        .build();
    of_names.as_ref().unwrap_or(glob).compile_matcher()
}

/// Globs as texts, for `serde(with)`; what `globset` reads by itself would match `/`.
pub(in crate::config) struct GlobList;

impl GlobList {
    /// What the schema says of a text that is a glob.
    pub(in crate::config) const FORMAT: &str = "glob";

    /// Every tool has an exposed name.
    pub(super) fn all() -> Vec<Glob> {
        glob("*").into_iter().collect()
    }

    pub(in crate::config) fn serialize<T: Serialize, S: Serializer>(
        globs: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        globs.serialize(to)
    }

    pub(in crate::config) fn deserialize<'de, T: From<Vec<Glob>>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let texts = Vec::<String>::deserialize(from)?;
        let globs = texts.iter().map(|text| glob(text));
        let globs = globs.collect::<Result<Vec<_>, _>>();
        globs.map(Into::into).map_err(de::Error::custom)
    }
}

impl JsonSchema for GlobList {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        "GlobList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "items": { "type": "string", "format": Self::FORMAT },
        })
    }
}
