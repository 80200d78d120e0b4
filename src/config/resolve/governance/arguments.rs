//! Rules about arguments of tools.

use std::collections::HashMap;

use regex::Regex;
use serde_json::Value;

use crate::config::{
    ArgumentRule, Condition,
    diagnostics::report::Diagnostic,
    node::ValuePath,
    resolve::{Resolver, quoted_or_hidden},
};

/// The keys of conditions, of which a rule needs one.
const CONDITIONS: [&str; 5] = ["equals", "matches", "max", "min", "one_of"];

impl Resolver<'_> {
    pub(super) fn check_argument_rules(&mut self, rules: &[ArgumentRule], at: &ValuePath<'_>) {
        let mut names: HashMap<&str, ValuePath<'_>> = HashMap::new();
        for (index, rule) in rules.iter().enumerate() {
            let item = at.item_at(index);
            let name = item.child("name");
            if rule.name.trim().is_empty() {
                // A name that is missing, or no text, was reported already.
                if name.text().is_some_and(|written| written.trim().is_empty()) {
                    self.findings.add(
                        Diagnostic::error(format!("`{}` is empty", name.path()))
                            .at(name.span(), "set the name used in the audit log"),
                    );
                }
            } else if let Some(other) = names.insert(&rule.name, name.clone()) {
                self.findings.add(
                    Diagnostic::error(format!(
                        "duplicate rule name {}",
                        quoted_or_hidden(&rule.name, &name)
                    ))
                    .at(name.span(), "this one")
                    .at(other.span(), "and this one")
                    .help("the audit log refers to rules by name: use unique names"),
                );
            }
            self.check_argument_rule(rule, &item);
        }
    }

    fn check_argument_rule(&mut self, rule: &ArgumentRule, at: &ValuePath<'_>) {
        self.check_pointer(&rule.at, &at.child("at"));
        if !CONDITIONS.iter().any(|key| at.child(key).is_written()) {
            self.findings.add(
                Diagnostic::error(format!("`{}` has no condition", at.path()))
                    .at(at.full_span(), "the rule would have no condition")
                    .help("add `equals`, `one_of`, `matches`, `min` or `max`"),
            );
        }
        self.warn_of_likely_limit(&rule.condition, at);
        self.check_condition(&rule.condition, at);
    }

    /// Warns of bounds that nobody said what they are for: read as limits, they refuse what they should
    /// let pass.
    fn warn_of_likely_limit(&mut self, condition: &Condition, at: &ValuePath<'_>) {
        let bounds = [("min", condition.min), ("max", condition.max)];
        let bound = bounds.iter().find(|(_, bound)| bound.is_some());
        let Some((key, _)) = bound.filter(|_| !at.child("action").is_written()) else {
            return;
        };
        let key = at.child(key);
        self.findings.add(
            Diagnostic::warning(format!("`{}` refuses values within its bounds", at.path()))
                .at(key.span(), "not a limit: values beyond it are accepted")
                .help(
                    "use `action = \"allow\"` to accept only these values, or set \"refuse\" \
                    explicitly if intended",
                ),
        );
    }

    pub(in crate::config::resolve) fn check_pointer(&mut self, pointer: &str, at: &ValuePath<'_>) {
        let escapes = pointer.split('~').skip(1);
        let is_escaped = escapes.clone().all(|rest| rest.starts_with(['0', '1']));
        let (label, help) = if !pointer.is_empty() && !pointer.starts_with('/') {
            let path = pointer.trim_start_matches(['$', '.', '#']);
            let meant = format!("/{}", path.trim_start_matches('/').replace('.', "/"));
            ("must start with `/`", format!("use \"{meant}\""))
        } else if !is_escaped {
            let help = "escape `~` as `~0` and `/` as `~1`".to_owned();
            ("`~` is special", help)
        } else {
            return;
        };
        self.findings.add(
            Diagnostic::error(format!(
                "{} is not a JSON pointer",
                quoted_or_hidden(pointer, at)
            ))
            .at(at.span(), label)
            .help_if(at.is_quotable().then_some(help)),
        );
    }

    pub(in crate::config::resolve) fn check_condition(
        &mut self,
        condition: &Condition,
        at: &ValuePath<'_>,
    ) {
        let values = condition.one_of.iter().flatten().chain(&condition.equals);
        if values.clone().any(has_null) {
            let key = if condition.equals.as_ref().is_some_and(has_null) {
                at.child("equals")
            } else {
                at.child("one_of")
            };
            self.findings.add(
                Diagnostic::error(format!("`{}` contains null", key.path()))
                    .at(key.span(), "null means a missing key in a config"),
            );
        }
        if condition.one_of.as_ref().is_some_and(Vec::is_empty) {
            let key = at.child("one_of");
            self.findings.add(
                Diagnostic::error(format!("`{}` is empty", key.path()))
                    .at(key.span(), "an empty list matches no value"),
            );
        }
        if let Some(regex) = &condition.matches {
            self.compile_regex(regex, &at.child("matches"));
        }
        self.check_bounds(condition.min, condition.max, at);
    }

    fn check_bounds(&mut self, min: Option<f64>, max: Option<f64>, at: &ValuePath<'_>) {
        for (key, bound) in [("min", min), ("max", max)] {
            if bound.is_some_and(|bound| !bound.is_finite()) {
                self.report_invalid(&at.child(key), "arguments cannot be compared with it");
            }
        }
        if let (Some(min), Some(max)) = (min, max)
            && min > max
        {
            let key = at.child("min");
            self.findings.add(
                Diagnostic::error(format!("`{}` is more than `max`", key.path()))
                    .at(key.span(), "no number satisfies both")
                    .at(at.child("max").span(), "`min` must not exceed `max`"),
            );
        }
    }

    /// `pattern` as a regular expression.
    pub(super) fn compile_regex(&mut self, pattern: &str, at: &ValuePath<'_>) -> Option<Regex> {
        match Regex::new(pattern) {
            Ok(regex) => Some(regex),
            Err(error) => {
                // The report of the parser draws the pattern; its last line says what is wrong.
                let report = error.to_string();
                let why = report.rsplit("error: ").next().unwrap_or_default();
                self.findings.add(
                    Diagnostic::error(format!(
                        "{} is not a valid regular expression",
                        quoted_or_hidden(pattern, at)
                    ))
                    .at(at.span(), why.trim())
                    .help("RE2 syntax: no look-around and no backreferences"),
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
