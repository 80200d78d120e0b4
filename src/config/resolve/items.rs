//! Names that items of a server are given.

use indexmap::IndexMap;

use super::{Resolver, is_name_char, quoted_or_hidden};
use crate::config::{
    diagnostics::report::Diagnostic, model::items::ItemKindSection, node::ValuePath,
};

/// The longest name the specification allows a tool (2025-11-25, tool names).
const NAME_LENGTH_MAX: usize = 128;

impl Resolver<'_> {
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
