//! Views: the route of a profile with changes for one conversation.
//!
//! A view is cut from what the merged route lists when it is first used, for the snapshot of that moment: other routes
//! cost nothing for it.

use std::{
    collections::HashSet,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::Arc,
};

use super::{
    Catalog, ConfiguredNames, Freshness, Kind, ListEntry, Prefixes, Profiles, RouteTables,
    ServerOffer,
    globs::{GlobTarget, GlobWidth, Globs, GlobsTooLarge, ItemForms},
    profile::{ProfileCut, Selection},
    resource_routes::ResourceSite,
};
use crate::{
    config,
    names::{ServerName, ViewId},
    views::{ToolChoice, View},
};

/// Why the tools that a view disables cannot be matched; whoever made it mends them.
#[derive(Debug, thiserror::Error)]
pub enum DisabledToolsError {
    /// One is no glob.
    #[error("`{text}` is no glob: {error}")]
    Glob {
        /// As it was written.
        text: String,
        /// What is wrong with it.
        error: globset::Error,
    },
    /// They are too many, or too large.
    #[error(transparent)]
    TooLarge(#[from] GlobsTooLarge),
}

/// Which items a view shows.
#[derive(Debug)]
pub(super) struct ViewSelection {
    pub(super) id: ViewId,
    /// What its profile shows, and how that names it.
    base: Arc<Selection>,
    /// Servers of which it shows everything.
    servers: HashSet<ServerName>,
    /// What is matched is not shown.
    disabled: Globs<()>,
    tool_choice: serde_json::Value,
}

impl ViewSelection {
    /// Whether it may show something of `server`, which has these tags.
    pub(super) fn selects_server(&self, server: &ServerName, tags: &[String]) -> bool {
        self.shows_all_of(server) || self.base.selects_tags(tags)
    }

    /// Whether it shows everything of `server`, but for tools that are taken away.
    pub(super) fn shows_all_of(&self, server: &ServerName) -> bool {
        self.servers.contains(server)
    }

    /// Whether an item of `server`, which has these tags, is in it, before tools are taken away.
    pub(super) fn shows(
        &self,
        kind: Kind,
        (server, tags): (&ServerName, &[String]),
        item: (&str, &ConfiguredNames),
    ) -> bool {
        let base = &self.base;
        self.shows_all_of(server) || base.selects_tags(tags) && base.shows(kind, server, item)
    }

    /// Whether a tool is left that goes by `forms`, and that clients call by one of `names`.
    pub(super) fn leaves_tool(&self, forms: &ItemForms<'_>, names: [&str; 2]) -> bool {
        let is_chosen = match ToolChoice::of(&self.tool_choice) {
            ToolChoice::All => true,
            ToolChoice::None => false,
            ToolChoice::One(name) => {
                let qualified = name.split_once('/');
                names.contains(&name) || qualified == Some((forms.server.as_str(), forms.original))
            }
        };
        is_chosen && self.disabled.matching_name(forms).is_none()
    }
}

impl Profiles {
    /// The same with the selection of `view`, for what [`Catalog::with_view`] and `may_show` say of its route. What
    /// [`check_disabled_tools`] refuses hides every tool.
    #[must_use]
    pub fn with_view(&self, view: &View) -> Self {
        let content = &view.content;
        let base = content.profile.as_ref().and_then(|name| self.find(name));
        let disabled = compile(&content.disabled_tools, self.prefixes()).or_else(|_| {
            let all = [String::from("*"), String::from("*/*")];
            compile(&all, self.prefixes())
        });
        let selection = ViewSelection {
            id: view.id,
            base: base.cloned().unwrap_or_default(),
            servers: content.servers.iter().cloned().collect(),
            disabled: disabled.unwrap_or(Globs::empty()),
            tool_choice: content.tool_choice.clone(),
        };
        Self {
            view: Some(Arc::new(selection)),
            ..self.clone()
        }
    }
}

/// Checks the globs over names of tools that a view disables.
///
/// # Errors
/// The first that is none, or that they are too large to match.
pub fn check_disabled_tools(
    globs: &[String],
    prefixes: &Prefixes,
) -> Result<(), DisabledToolsError> {
    compile(globs, prefixes).map(drop)
}

fn compile(globs: &[String], prefixes: &Prefixes) -> Result<Globs<()>, DisabledToolsError> {
    let parsed = globs.iter().map(|text| {
        config::glob(text).map_err(|error| DisabledToolsError::Glob {
            text: text.clone(),
            error,
        })
    });
    let parsed = parsed.collect::<Result<Vec<_>, _>>()?;
    let globs = parsed.iter().map(|glob| ((), glob));
    Ok(Globs::new(
        globs,
        GlobTarget::Names,
        GlobWidth::Broad,
        prefixes,
    )?)
}

/// What a view shows.
#[derive(Debug)]
pub(super) struct ViewRoute {
    pub(super) id: ViewId,
    pub(super) tables: RouteTables,
    selection: Arc<ViewSelection>,
}

impl ViewRoute {
    /// Whether a resource of `site` may be read, listed or not.
    pub(super) fn shows_resource(&self, site: &ResourceSite, original: &str) -> bool {
        let kind = Kind::Resources;
        let names = site.names(kind, original);
        let server = (&site.server, site.tags.as_slice());
        self.selection.shows(kind, server, (original, &names))
    }
}

impl Catalog {
    /// The same with the route of the view of `profiles`, cut from what is listed here; `offers` is what it was built
    /// of.
    #[must_use]
    pub fn with_view(&self, profiles: &Profiles, offers: &[ServerOffer]) -> Self {
        let Some(selection) = &profiles.view else {
            return self.clone();
        };
        let selected = offers.iter();
        let selected = selected.filter(|it| selection.selects_server(&it.server, &it.config.tags));
        let cut = ProfileCut {
            // What a rename hides was told of the profile.
            profile: None,
            selection: &selection.base,
            prefixes: profiles.prefixes(),
            selected_offers: selected.collect(),
            view: Some(selection),
        };
        let mut tables = cut.tables(&self.merged, &mut Vec::new());
        let mut version = DefaultHasher::new();
        (self.version, selection.id).hash(&mut version);
        for kind in Kind::ALL {
            // It changes when its owner likes, of which servers know nothing.
            tables.lists[kind].freshness = Freshness {
                ttl_ms: 0,
                public: false,
            };
            version.write_u64(tables.lists[kind].digest());
        }
        let route = ViewRoute {
            id: selection.id,
            tables,
            selection: Arc::clone(selection),
        };
        Self {
            view: Some(Arc::new(route)),
            version: version.finish(),
            ..self.clone()
        }
    }
}

/// By what globs know `entry`.
pub(super) fn forms_of(entry: &ListEntry) -> ItemForms<'_> {
    ItemForms {
        server: &entry.server,
        original: &entry.original,
        plain: &entry.names.plain,
        distinct: &entry.names.distinct,
        alias: &entry.alias,
    }
}
