//! What is put in the place of found values, so that structured content still fits the schema of its tool.

use std::{collections::HashMap, ops::Range};

use serde_json::Value;

use super::{
    document_walk::{self, EditedValue, Redactions},
    scan_sink::{Replacement, ScanSink},
    schema::{self, Redacted},
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
    pub(in crate::scan) fn fit_to_schema(
        &self,
        schema: &OutputSchema,
        structured: &Range<usize>,
        changes: &Redactions,
    ) -> SchemaFit {
        let inside = |leaf: &&EditedValue| {
            structured.start <= leaf.span.start && leaf.span.end <= structured.end
        };
        let leaves: Vec<&EditedValue> = changes.leaves.iter().filter(inside).collect();
        let Some(first) = leaves.first() else {
            return SchemaFit::Valid;
        };
        let impossible = |leaf: &EditedValue| SchemaFit::Impossible { class: leaf.class };
        let original: Option<Value> = serde_json::from_str(&self.text[structured.clone()]).ok();
        let (Some(original), Some(mut current)) = (original, self.redacted_content(changes)) else {
            return impossible(first);
        };
        if schema.accepts(&current) || !schema.accepts(&original) {
            return SchemaFit::Valid;
        }
        let (other_changes, alternate) = self.alternate_redaction();
        let Some(alternate) = alternate else {
            return impossible(first);
        };
        if let Some(key) = leaves.iter().find(|leaf| leaf.key) {
            // Names of members are not filled in one by one: the other mask fits, or nothing does.
            return if schema.accepts(&alternate) {
                SchemaFit::Changed(other_changes)
            } else {
                impossible(key)
            };
        }
        let redacted = self.redacted_values(&leaves, &original, &alternate);
        let compiled = self.compiled;
        let mut probe =
            ScanSink::new(compiled, self.rules, compiled.mask).with_seen_values(self.known);
        let mut harmless = |leaf: &Redacted, value: &Value| {
            let own = leaf.pointer.rsplit('/').next().unwrap_or_default();
            let names = Names {
                own,
                ..Names::default()
            };
            probe.matches(&to_plain_text(value), names).is_empty()
        };
        match schema::fit_redaction(schema, &mut current, &redacted, &mut harmless) {
            Ok(replaced) => {
                SchemaFit::Changed(self.apply_replacements(&leaves, &redacted, &replaced, &current))
            }
            Err(unfit) => impossible(leaves[unfit]),
        }
    }

    /// The structured content after `changes`.
    fn redacted_content(&self, changes: &Redactions) -> Option<Value> {
        let patched = apply_redactions(self.text, changes);
        patched.get(self.member)?.read().ok()
    }

    /// The redacted values with what they were; `leaves` are in `original`.
    fn redacted_values(
        &self,
        leaves: &[&EditedValue],
        original: &Value,
        alternate: &Value,
    ) -> Vec<Redacted> {
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
    fn alternate_redaction(&self) -> (Redactions, Option<Value>) {
        let compiled = self.compiled;
        let other = match compiled.mask {
            Mask::Length => Mask::Type,
            Mask::Type => Mask::Length,
        };
        let mut sink = ScanSink::new(compiled, self.rules, other).with_seen_values(self.known);
        let changes = document_walk::walk_document(self.text, Names::default(), &mut sink, 0);
        let structured = self.redacted_content(&changes);
        (changes, structured)
    }

    /// Changes that make the structured content what was `accepted`, and put what is `replaced` in
    /// its twin wherever the same values stand.
    fn apply_replacements(
        &self,
        leaves: &[&EditedValue],
        redacted: &[Redacted],
        replaced: &HashMap<String, Value>,
        accepted: &Value,
    ) -> Redactions {
        let replacement = |(redacted, leaf): (&Redacted, &&EditedValue)| {
            let with = to_plain_text(replaced.get(&redacted.pointer)?);
            let class = leaf.class;
            Some((
                to_plain_text(&redacted.original),
                Replacement { text: with, class },
            ))
        };
        let each = redacted.iter().zip(leaves);
        let replacements: HashMap<String, Replacement> = each.filter_map(replacement).collect();
        let compiled = self.compiled;
        let mut sink = ScanSink::new(compiled, self.rules, compiled.mask)
            .with_seen_values(self.known)
            .with_replacements(&replacements);
        let mut changes = document_walk::walk_document(self.text, Names::default(), &mut sink, 0);
        // One value may stand at several places that need different stand-ins, or none.
        let places: HashMap<usize, (&EditedValue, &Value)> = leaves
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
            .extend(places.values().map(|(leaf, value)| document_walk::Edit {
                span: leaf.span.clone(),
                text: value.to_string(),
                class: leaf.class,
            }));
        changes
    }
}

/// What a schema makes of a redaction.
pub(in crate::scan) enum SchemaFit {
    /// It is accepted, or there is nothing to keep valid.
    Valid,
    /// Nothing is accepted that hides the values.
    Impossible {
        /// The index of the class of one that cannot be hidden.
        class: usize,
    },
    Changed(Redactions),
}

/// A text as it is, another value as it is written.
fn to_plain_text(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

pub(in crate::scan) fn apply_redactions(text: &str, changes: &Redactions) -> Raw {
    let mut patch = Patch::new(text.as_bytes());
    for edit in &changes.edits {
        patch.replace(edit.span.clone(), edit.text.as_bytes());
    }
    patch.finish()
}
