//! Rules about arguments of tools.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

use crate::config::{
    ArgumentRule, Condition,
    diagnostics::report::Diagnostic,
    file,
    node::ValuePath,
    resolve::{Resolver, quote},
};

/// The keys of conditions, of which a rule needs one.
const CONDITIONS: [&str; 5] = ["equals", "matches", "max", "min", "one_of"];

impl Resolver<'_> {
    pub(super) fn argument_rules(
        &mut self,
        rules: Vec<file::ArgumentRuleSection>,
        at: &ValuePath<'_>,
    ) -> Vec<ArgumentRule> {
        let mut names: HashMap<String, ValuePath<'_>> = HashMap::new();
        let mut resolved = Vec::new();
        for (index, rule) in rules.into_iter().enumerate() {
            let item = at.item(index);
            let name = item.key("name");
            if rule.name.trim().is_empty() {
                // A name that is missing, or no text, was reported already.
                if name.text().is_some_and(|written| written.trim().is_empty()) {
                    self.findings.add(
                        Diagnostic::mistake(format!("`{}` is empty", name.path()))
                            .at(name.span(), "write what the audit shall call it"),
                    );
                }
            } else if let Some(other) = names.insert(rule.name.clone(), name.clone()) {
                self.findings.add(
                    Diagnostic::mistake(format!(
                        "two rules are called {}",
                        quote(&rule.name, &name)
                    ))
                    .at(name.span(), "this one")
                    .at(other.span(), "and this one")
                    .help("the audit names the rule that refused: give each its own name"),
                );
            }
            resolved.push(self.argument_rule(rule, &item));
        }
        resolved
    }

    fn argument_rule(
        &mut self,
        rule: file::ArgumentRuleSection,
        at: &ValuePath<'_>,
    ) -> ArgumentRule {
        self.pointer(&rule.at, &at.key("at"));
        if !CONDITIONS.iter().any(|key| at.key(key).is_written()) {
            self.findings.add(
                Diagnostic::mistake(format!("`{}` has no condition", at.path()))
                    .at(at.whole_span(), "it would say nothing about the argument")
                    .help("write `equals`, `one_of`, `matches`, `min` or `max`"),
            );
        }
        self.warn_of_cap(&rule, at);
        ArgumentRule {
            tools: self.globs(&rule.tools, &at.key("tools")),
            condition: self.condition(&rule, at),
            name: rule.name,
            at: rule.at,
            action: rule.action,
            observe: rule.observe,
        }
    }

    /// Warns of bounds that nobody said what they are for: read as limits, they refuse what they should
    /// let pass.
    fn warn_of_cap(&mut self, rule: &file::ArgumentRuleSection, at: &ValuePath<'_>) {
        let bounds = [("min", rule.min), ("max", rule.max)];
        let bound = bounds.iter().find(|(_, bound)| bound.is_some());
        let Some((key, _)) = bound.filter(|_| !at.key("action").is_written()) else {
            return;
        };
        let key = at.key(key);
        self.findings.add(
            Diagnostic::warning(format!("`{}` refuses what is within its bounds", at.path()))
                .at(key.span(), "no limit: calls beyond it pass")
                .help("write `action = \"allow\"` to let only these pass, or \"refuse\" if it is meant"),
        );
    }

    pub(in crate::config::resolve) fn pointer(&mut self, pointer: &str, at: &ValuePath<'_>) {
        let escapes = pointer.split('~').skip(1);
        let is_escaped = escapes.clone().all(|rest| rest.starts_with(['0', '1']));
        let (label, help) = if !pointer.is_empty() && !pointer.starts_with('/') {
            let path = pointer.trim_start_matches(['$', '.', '#']);
            let meant = format!("/{}", path.trim_start_matches('/').replace('.', "/"));
            ("it begins with `/`", format!("write \"{meant}\""))
        } else if !is_escaped {
            let help = "write `~0` for `~` and `~1` for `/` in a name".to_owned();
            ("`~` is special", help)
        } else {
            return;
        };
        self.findings.add(
            Diagnostic::mistake(format!("{} is not a JSON pointer", quote(pointer, at)))
                .at(at.span(), label)
                .help_if(at.is_quotable().then_some(help)),
        );
    }

    pub(in crate::config::resolve) fn condition(
        &mut self,
        rule: &file::ArgumentRuleSection,
        at: &ValuePath<'_>,
    ) -> Condition {
        let values = rule.one_of.iter().flatten().chain(&rule.equals);
        if values.clone().any(has_null) {
            let key = if rule.equals.as_ref().is_some_and(has_null) {
                at.key("equals")
            } else {
                at.key("one_of")
            };
            self.findings.add(
                Diagnostic::mistake(format!("`{}` has a null", key.path()))
                    .at(key.span(), "null stands for a missing key in a config"),
            );
        }
        if rule.one_of.as_ref().is_some_and(Vec::is_empty) {
            let key = at.key("one_of");
            self.findings.add(
                Diagnostic::mistake(format!("`{}` is empty", key.path()))
                    .at(key.span(), "no value is one of none"),
            );
        }
        if let Some(regex) = &rule.matches {
            self.regex(regex, &at.key("matches"));
        }
        self.bounds(rule.min, rule.max, at);
        Condition {
            equals: rule.equals.clone(),
            one_of: rule.one_of.clone(),
            matches: rule.matches.clone(),
            min: rule.min,
            max: rule.max,
        }
    }

    fn bounds(&mut self, min: Option<f64>, max: Option<f64>, at: &ValuePath<'_>) {
        for (key, bound) in [("min", min), ("max", max)] {
            if bound.is_some_and(|bound| !bound.is_finite()) {
                self.wrong(&at.key(key), "no argument compares with it");
            }
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let key = at.key("min");
            self.findings.add(
                Diagnostic::mistake(format!("`{}` is more than `max`", key.path()))
                    .at(key.span(), "no number is both")
                    .at(
                        at.key("max").span(),
                        "at least the one and at most the other",
                    ),
            );
        }
    }

    /// `pattern` as a regular expression.
    pub(super) fn regex(&mut self, pattern: &str, at: &ValuePath<'_>) -> Option<Regex> {
        match Regex::new(pattern) {
            Ok(regex) => Some(regex),
            Err(error) => {
                // The report of the parser draws the pattern; its last line says what is wrong.
                let report = error.to_string();
                let why = report.rsplit("error: ").next().unwrap_or_default();
                self.findings.add(
                    Diagnostic::mistake(format!(
                        "{} is not a regular expression",
                        quote(pattern, at)
                    ))
                    .at(at.span(), why.trim())
                    .help("the syntax is that of RE2: no look-around, no references back"),
                );
                None
            }
        }
    }
}

/// Whether `value` is or holds a null.
fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(items) => items.iter().any(has_null),
        Value::Object(entries) => entries.values().any(has_null),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}
