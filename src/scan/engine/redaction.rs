//! What is put in the place of found values, so that structured content still fits the schema of its tool.

use std::{collections::HashMap, ops::Range};

use serde_json::Value;

use super::{
    schema::{self, Redacted},
    sink::{Replacement, ScanSink},
    walk::{self, Leaf, Redactions},
};
use crate::{
    config::Mask,
    mcp::json::{Patch, Raw},
    scan::{
        CompiledScan, OutputSchema, ScanRules,
        context::{Names, seen_values::SeenValues},
    },
};

/// A redaction under way whose structured content must fit a schema.
pub(in crate::scan) struct Redaction<'a> {
    pub(in crate::scan) compiled: &'a CompiledScan,
    pub(in crate::scan) rules: &'a ScanRules,
    pub(in crate::scan) known: &'a SeenValues,
    /// What must fit.
    pub(in crate::scan) member: &'static str,
    pub(in crate::scan) text: &'a str,
}

impl Redaction<'_> {
    /// Other changes than `changes`, where the schema needs them.
    pub(in crate::scan) fn mended(
        &self,
        schema: &OutputSchema,
        structured: &Range<usize>,
        changes: &Redactions,
    ) -> SchemaRepair {
        let inside =
            |leaf: &&Leaf| structured.start <= leaf.span.start && leaf.span.end <= structured.end;
        let leaves: Vec<&Leaf> = changes.leaves.iter().filter(inside).collect();
        let Some(first) = leaves.first() else {
            return SchemaRepair::AsIs;
        };
        let impossible = |leaf: &Leaf| SchemaRepair::Impossible { class: leaf.class };
        let original: Option<Value> = serde_json::from_str(&self.text[structured.clone()]).ok();
        let (Some(original), Some(mut current)) = (original, self.structured(changes)) else {
            return impossible(first);
        };
        if schema.accepts(&current) || !schema.accepts(&original) {
            return SchemaRepair::AsIs;
        }
        let (other_changes, alternate) = self.otherwise();
        let Some(alternate) = alternate else {
            return impossible(first);
        };
        if let Some(key) = leaves.iter().find(|leaf| leaf.key) {
            // Names of members are not filled in one by one: the other mask fits, or nothing does.
            return if schema.accepts(&alternate) {
                SchemaRepair::With(other_changes)
            } else {
                impossible(key)
            };
        }
        let redacted = self.redacted(&leaves, &original, &alternate);
        let compiled = self.compiled;
        let mut probe = ScanSink::new(compiled, self.rules, compiled.mask).knowing(self.known);
        let mut harmless = |leaf: &Redacted, value: &Value| {
            let own = leaf.pointer.rsplit('/').next().unwrap_or_default();
            let names = Names {
                own,
                ..Names::default()
            };
            probe.matches(&plain(value), names).is_empty()
        };
        match schema::fit(schema, &mut current, &redacted, &mut harmless) {
            Ok(replaced) => {
                SchemaRepair::With(self.replaced(&leaves, &redacted, &replaced, &current))
            }
            Err(unfit) => impossible(leaves[unfit]),
        }
    }

    /// The structured content after `changes`.
    fn structured(&self, changes: &Redactions) -> Option<Value> {
        let patched = patched(self.text, changes);
        patched.get(self.member)?.read().ok()
    }

    /// The redacted values with what they were; `leaves` are in `original`.
    fn redacted(&self, leaves: &[&Leaf], original: &Value, alternate: &Value) -> Vec<Redacted> {
        let root = self.member.len() + 1;
        let found = leaves.iter().map(|leaf| {
            let pointer = leaf.pointer.get(root..).unwrap_or_default().to_owned();
            Redacted {
                original: original.pointer(&pointer).cloned().unwrap_or_default(),
                alternate: alternate.pointer(&pointer).cloned().unwrap_or_default(),
                pointer,
            }
        });
        found.collect()
    }

    /// What the mask that is not configured makes of the message.
    fn otherwise(&self) -> (Redactions, Option<Value>) {
        let compiled = self.compiled;
        let other = match compiled.mask {
            Mask::Length => Mask::Type,
            Mask::Type => Mask::Length,
        };
        let mut sink = ScanSink::new(compiled, self.rules, other).knowing(self.known);
        let changes = walk::walk(self.text, Names::default(), &mut sink, 0);
        let structured = self.structured(&changes);
        (changes, structured)
    }

    /// Changes that make the structured content what was `accepted`, and put what is `replaced` in
    /// its twin wherever the same values stand.
    fn replaced(
        &self,
        leaves: &[&Leaf],
        redacted: &[Redacted],
        replaced: &HashMap<String, Value>,
        accepted: &Value,
    ) -> Redactions {
        let replacement = |(redacted, leaf): (&Redacted, &&Leaf)| {
            let with = plain(replaced.get(&redacted.pointer)?);
            let class = leaf.class;
            Some((plain(&redacted.original), Replacement { with, class }))
        };
        let each = redacted.iter().zip(leaves);
        let replacements: HashMap<String, Replacement> = each.filter_map(replacement).collect();
        let compiled = self.compiled;
        let mut sink = ScanSink::new(compiled, self.rules, compiled.mask)
            .knowing(self.known)
            .replacing(&replacements);
        let mut changes = walk::walk(self.text, Names::default(), &mut sink, 0);
        // One value may stand at several places that need different stand-ins, or none.
        let places: HashMap<usize, (&Leaf, &Value)> = leaves
            .iter()
            .zip(redacted)
            .filter_map(|(leaf, redacted)| {
                Some((
                    leaf.span.start,
                    (*leaf, accepted.pointer(&redacted.pointer)?),
                ))
            })
            .collect();
        let mut starts: Vec<&Range<usize>> = places.values().map(|(leaf, _)| &leaf.span).collect();
        starts.sort_by_key(|span| span.start);
        changes.edits.retain(|edit| {
            let after = starts.partition_point(|span| span.start <= edit.span.start);
            after == 0 || starts[after - 1].end < edit.span.end
        });
        changes
            .edits
            .extend(places.values().map(|(leaf, value)| walk::Edit {
                span: leaf.span.clone(),
                with: value.to_string(),
                class: leaf.class,
            }));
        changes
    }
}

/// What a schema makes of a redaction.
pub(in crate::scan) enum SchemaRepair {
    /// It is accepted, or there is nothing to keep valid.
    AsIs,
    /// Nothing is accepted that hides the values.
    Impossible {
        /// The index of the class of one that cannot be hidden.
        class: usize,
    },
    With(Redactions),
}

/// A text as it is, another value as it is written.
fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

pub(in crate::scan) fn patched(text: &str, changes: &Redactions) -> Raw {
    let mut patch = Patch::new(text.as_bytes());
    for edit in &changes.edits {
        patch.replace(edit.span.clone(), edit.with.as_bytes());
    }
    patch.finish()
}
