//! What a glob with a `/` may be about beside a server: `web/search` can be the tool `search` of a server `web`,
//! or a name that has a `/` in it.

use std::collections::HashSet;

use crate::config::{Charset, Config, Naming};

/// Which names of items may have a `/` in a config.
#[derive(Debug)]
pub(super) struct QualifiedNames {
    naming: Naming,
    /// What stands before the `/` of names that profiles give.
    aliases: HashSet<String>,
}

impl QualifiedNames {
    pub(super) fn of(config: &Config) -> Self {
        let renames = config.profiles.values().flat_map(|it| it.rename.values());
        let before = renames.filter_map(|name| name.split_once('/'));
        Self {
            naming: config.naming.clone(),
            aliases: before.map(|(before, _)| before.to_owned()).collect(),
        }
    }

    /// Whether a profile gives tools or prompts a name that begins with `first` and a `/`.
    pub(super) fn may_start_alias(&self, first: &str) -> bool {
        self.aliases.contains(first)
    }

    /// Whether merged routes may give them one.
    pub(super) fn may_start_name(&self, first: &str) -> bool {
        let Naming {
            template, charset, ..
        } = &self.naming;
        let literal = template.split('{').next().unwrap_or_default();
        if let Some((before, _)) = literal.split_once('/') {
            return before == first;
        }
        let may_end = template.contains('/') || *charset == Charset::Original;
        may_end && first.starts_with(literal)
    }

    /// Whether URIs are exposed as servers have them.
    pub(super) fn exposes_original_uris(&self) -> bool {
        !self.naming.namespace_resources
    }
}
