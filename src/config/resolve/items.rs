//! Rules for the items of a server: which ones are shown, and as what.

use globset::Glob;
use indexmap::IndexMap;

use super::{Resolver, is_name_char, quoted_or_hidden, server::TIMEOUT_MIN};
use crate::config::{
    ItemRules,
    diagnostics::report::Diagnostic,
    file::{self, ItemKindSection},
    model::governance::glob,
    node::ValuePath,
};

/// The longest name the specification allows a tool (2025-11-25, tool names).
const NAME_LENGTH_MAX: usize = 128;

impl Resolver<'_> {
    pub(super) fn tool_rules(&mut self, rules: file::ToolRules, at: &ValuePath<'_>) -> ItemRules {
        let limits = at.child("timeout");
        let timeout = rules.timeout.into_iter().map(|(tool, limit)| {
            let limit = self.time(limit, TIMEOUT_MIN, &limits.child(&tool));
            (tool, limit)
        });
        let timeout = timeout.collect();
        let price = rules.price.into_iter();
        ItemRules {
            price: price.map(|(tool, price)| (tool, price.0)).collect(),
            timeout,
            ..self.item_rules(rules.items, ItemKindSection::Tools, at)
        }
    }

    pub(super) fn item_rules(
        &mut self,
        rules: file::ItemRulesSection,
        kind: ItemKindSection,
        at: &ValuePath<'_>,
    ) -> ItemRules {
        self.check_renames(&rules.rename, kind, &at.child("rename"));
        ItemRules {
            allow: rules
                .allow
                .map(|allow| self.globs(&allow, &at.child("allow"))),
            deny: self.globs(&rules.deny, &at.child("deny")),
            rename: rules.rename,
            describe: rules.describe,
            price: IndexMap::new(),
            timeout: IndexMap::new(),
        }
    }

    pub(super) fn globs(&mut self, globs: &[String], at: &ValuePath<'_>) -> Vec<Glob> {
        let mut parsed = Vec::new();
        for (index, text) in globs.iter().enumerate() {
            match glob(text) {
                Ok(glob) => parsed.push(glob),
                Err(error) => {
                    let at = at.item_at(index);
                    self.findings.add(
                        Diagnostic::error(format!("{} is not a glob", quoted_or_hidden(text, &at)))
                            .at(at.span(), error.kind().to_string())
                            .help("`*`, `?`, `[a-z]` and `{a,b}` are special; `\\` escapes them"),
                    );
                }
            }
        }
        parsed
    }

    pub(super) fn check_renames(
        &mut self,
        rename: &IndexMap<String, String>,
        kind: ItemKindSection,
        at: &ValuePath<'_>,
    ) {
        let mut taken: IndexMap<&str, &str> = IndexMap::new();
        for (original, new) in rename {
            let entry = at.child(original);
            if !is_item_name(new, kind) {
                self.findings.add(
                    Diagnostic::error(format!(
                        "{} is not a valid \
                        name",
                        quoted_or_hidden(new, &entry)
                    ))
                    .at(entry.span(), "invalid name")
                    .help(match kind {
                        ItemKindSection::Resources => "use a display name on one line",
                        ItemKindSection::Prompts | ItemKindSection::Tools => {
                            "names consist of 1 to 128 letters, digits, `_`, `-`, `.` and `/`"
                        }
                    }),
                );
            }
            if kind != ItemKindSection::Resources
                && let Some(other) = taken.insert(new, original)
            {
                self.findings.add(
                    Diagnostic::error(format!(
                        "two entries of `{}` map to the same \
                        name",
                        at.path()
                    ))
                    .at(entry.span(), format!("`{original}` is renamed to this"))
                    .at(
                        at.child(other).span(),
                        format!("which `{other}` already has"),
                    ),
                );
            }
        }
    }
}

fn is_item_name(name: &str, kind: ItemKindSection) -> bool {
    match kind {
        // The URI stays: this is the name that people see.
        ItemKindSection::Resources => !name.trim().is_empty() && !name.contains(char::is_control),
        ItemKindSection::Prompts | ItemKindSection::Tools => {
            (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.chars().all(is_name_char)
        }
    }
}
