//! Values without parts: words, texts, numbers, and numbers with a unit.

use std::{cmp::Ordering, fmt::Display};

use serde_json::Value as Json;

use super::{ShapeCheck, quoted_words};
use crate::{
    config::{
        diagnostics::{redact, renamed_keys, report::Diagnostic, suggest},
        model::{
            egress::{EGRESS_FORMAT, EgressTarget},
            limits::{BUDGET_FORMAT, Budget, RATE_FORMAT, Rate},
            policy::{GlobList, glob},
        },
        node::{ConfigValue, Node, ValueOrigin},
        schema::integer_bounds,
        units::{MAX_KEYWORD, MIN_KEYWORD, Size, Time, UNIT_KEYWORD, ZERO_KEYWORD},
    },
    money::{InvalidAmount, Micros},
};

/// How budgets and rates are written.
const BUDGET_EXAMPLES: &str = "for example \"2.50/day\", or { limit = \"2.50\", window = \"day\" }";
const RATE_EXAMPLES: &str = "for example \"120/1m\", or { calls = 120, per = \"1m\" }";

impl ShapeCheck<'_, '_> {
    pub(super) fn check_word(&mut self, node: &mut Node, words: &[&str], path: &str) -> bool {
        let Some(written) = node.as_text() else {
            let help = format!(
                "valid values are {}",
                suggest::join_words(&quoted_words(words, ""), "and")
            );
            self.report_type(node, "a string", Some(help), path);
            return false;
        };
        if words.contains(&written) {
            return true;
        }
        let message = match self.displayable_text(node) {
            Some(written) => format!("`{written}` is not a valid value for `{path}`"),
            None => format!("invalid value for `{path}`"),
        };
        let label = if renamed_keys::is_planned_word(path, written) {
            "not supported by this version".to_owned()
        } else if let Some(close) = suggest::closest(written, words.iter().copied()) {
            format!("did you mean \"{close}\"?")
        } else {
            "not allowed".to_owned()
        };
        let help = format!(
            "valid values are {}",
            suggest::join_words(&quoted_words(words, ""), "and")
        );
        self.findings.add(
            Diagnostic::error(message)
                .at(Some(node.span), label)
                .help(help),
        );
        false
    }

    pub(super) fn check_text(&mut self, node: &mut Node, schema: &Json, path: &str) -> bool {
        match node.value {
            ConfigValue::Text(_) => true,
            // Other programs take these for strings.
            ConfigValue::Bool(_) | ConfigValue::Float(_) | ConfigValue::Integer(_)
                if self.sources.get(node.span.source).is_foreign =>
            {
                node.value = ConfigValue::Text(self.sources.source_text(node.span).to_owned());
                true
            }
            ConfigValue::Bool(_) | ConfigValue::Float(_) | ConfigValue::Integer(_) => {
                let help = match schema.get("format").and_then(Json::as_str) {
                    Some(BUDGET_FORMAT) => BUDGET_EXAMPLES,
                    Some(RATE_FORMAT) => RATE_EXAMPLES,
                    _ => "add quotes",
                };
                self.report_type(node, "a string", Some(help.to_owned()), path);
                false
            }
            ConfigValue::List(_) if path.rsplit('.').next() == Some("command") => {
                self.report_type(
                    node,
                    "a string",
                    command_words(node)
                        .as_deref()
                        .map(suggest::command_suggestion),
                    path,
                );
                false
            }
            ConfigValue::List(_) | ConfigValue::Null | ConfigValue::Table(_) => {
                self.wrong_type(node, "a string", path)
            }
        }
    }

    pub(super) fn check_boolean(&mut self, node: &mut Node, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Bool(value);
        }
        if let ConfigValue::Bool(_) = node.value {
            return true;
        }
        // YAML 1.1 took these for booleans, or they stand in quotes.
        let help = match node.as_text().map(str::to_lowercase).as_deref() {
            Some("on" | "true" | "y" | "yes") => Some("use `true`".to_owned()),
            Some("false" | "n" | "no" | "off") => Some("use `false`".to_owned()),
            _ => None,
        };
        self.report_type(node, "`true` or `false`", help, path);
        false
    }

    pub(super) fn check_number(&mut self, node: &mut Node, schema: &Json, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Float(value);
        }
        #[expect(clippy::cast_precision_loss, reason = "bounds of numbers are small")]
        let value = match node.value {
            ConfigValue::Float(value) => value,
            ConfigValue::Integer(value) => value as f64,
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_)
            | ConfigValue::Text(_) => return self.wrong_type(node, "a number", path),
        };
        let bound = |keyword: &str| schema.get(keyword).and_then(Json::as_f64);
        self.check_bounds(node, &value, (bound("minimum"), bound("maximum")), path)
    }

    pub(super) fn check_integer(&mut self, node: &mut Node, schema: &Json, path: &str) -> bool {
        if node.origin.is_untyped()
            && let Some(value) = node.as_text().and_then(|text| text.trim().parse().ok())
        {
            node.value = ConfigValue::Integer(value);
        }
        let ConfigValue::Integer(value) = node.value else {
            let help = match node.value {
                ConfigValue::Float(_) => "remove the fraction",
                ConfigValue::Text(_) if node.origin.is_untyped() => {
                    "the variable must contain only digits"
                }
                ConfigValue::Bool(_)
                | ConfigValue::Integer(_)
                | ConfigValue::List(_)
                | ConfigValue::Null
                | ConfigValue::Table(_)
                | ConfigValue::Text(_) => "use a number without quotes",
            };
            self.report_type(node, "a whole number", Some(help.to_owned()), path);
            return false;
        };
        let (min, max) = integer_bounds(schema);
        self.check_bounds(node, &value, (Some(min), Some(max)), path)
    }

    /// Reports a value that is not between its bounds.
    fn check_bounds<T: Display + PartialOrd>(
        &mut self,
        node: &Node,
        value: &T,
        (min, max): (Option<T>, Option<T>),
        path: &str,
    ) -> bool {
        let is_enough = min.as_ref().is_none_or(|min| value >= min);
        let label = match (min, max) {
            (Some(min), _) if !is_enough => format!("must be at least {min}"),
            // Not a number is not more than the greatest, either.
            (_, Some(max)) if value.partial_cmp(&max).is_none_or(Ordering::is_gt) => {
                format!("must be at most {max}")
            }
            _ => return true,
        };
        self.report_out_of_range(node, label, path)
    }

    /// Reports a time or a size, which was checked to be one, that is not between the bounds that the
    /// schema of its key names, or else that of its unit. It stays all the same: checks that compare
    /// it with others would compare them with its default.
    pub(super) fn check_quantity_bounds(&mut self, node: &Node, schemas: [&Json; 2], path: &str) {
        let text = node.as_text().unwrap_or_default();
        let keyword = |keyword: &str| schemas.iter().find_map(|schema| schema.get(keyword));
        let bound = |name: &str| keyword(name).and_then(Json::as_str);
        let (min, max) = (bound(MIN_KEYWORD), bound(MAX_KEYWORD));
        if bound(UNIT_KEYWORD) == Some(Size::KEYWORD) {
            let bounds = (min.and_then(Size::parse), max.and_then(Size::parse));
            if let Some(size) = Size::parse(text) {
                self.check_bounds(node, &size, bounds, path);
            }
            return;
        }
        let bounds = min.and_then(Time::parse).zip(max.and_then(Time::parse));
        let Some(((min, max), time)) = bounds.zip(Time::parse(text)) else {
            return;
        };
        let may_be_zero = keyword(ZERO_KEYWORD).is_some();
        if (min..=max).contains(&time) || (may_be_zero && time.0.is_zero()) {
            return;
        }
        let zero = if may_be_zero { "0, or " } else { "" };
        let label = format!("must be {zero}between {min} and {max}");
        self.report_out_of_range(node, label, path);
    }

    /// Reports a value that its key does not allow; false, for the caller to return.
    fn report_out_of_range(&mut self, node: &Node, label: String, path: &str) -> bool {
        let diagnostic = Diagnostic::error(format!("`{path}` is out of range"));
        self.findings.add(diagnostic.at(Some(node.span), label));
        false
    }

    /// A text of which the schema says more than that it is one.
    pub(super) fn check_format(&mut self, node: &Node, schema: &Json, path: &str) -> bool {
        let text = node.as_text().unwrap_or_default();
        let (noun, invalid, help) = match schema.get("format").and_then(Json::as_str) {
            Some(GlobList::FORMAT) => (
                "glob",
                glob(text).err().map(|error| error.kind().to_string()),
                "`*`, `?`, `[a-z]` and `{a,b}` are special; `\\` escapes them",
            ),
            Some(BUDGET_FORMAT) => (
                "budget",
                text.parse::<Budget>().err().map(|error| error.to_string()),
                BUDGET_EXAMPLES,
            ),
            Some(RATE_FORMAT) => (
                "rate",
                text.parse::<Rate>().err().map(|error| error.to_string()),
                RATE_EXAMPLES,
            ),
            Some(EGRESS_FORMAT) => (
                "place",
                text.parse::<EgressTarget>()
                    .err()
                    .map(|error| error.to_string()),
                "for example \"10.1.0.0/16\", \"192.168.1.5\" or \"internal.example\"",
            ),
            _ => return true,
        };
        let Some(invalid) = invalid else {
            return true;
        };
        let (message, label) = match self.displayable_text(node) {
            Some(text) => (format!("`{text}` is not a {noun}"), invalid),
            None => (
                format!("the value of `{path}` is not a {noun}"),
                "not valid".to_owned(),
            ),
        };
        let finding = Diagnostic::error(message).at(Some(node.span), label);
        self.findings.add(finding.help(help));
        false
    }

    pub(super) fn check_quantity(&mut self, node: &mut Node, unit: &str, path: &str) -> bool {
        let is_time = unit == Time::KEYWORD;
        if is_time && matches!(node.value, ConfigValue::Integer(0)) {
            node.value = ConfigValue::Text("0s".to_owned());
        }
        let (noun, units, examples) = if is_time {
            ("a duration", ["s", "ms"], "\"500ms\", \"30s\" or \"1m30s\"")
        } else {
            ("a size", ["KiB", "MiB"], "\"64KiB\" or \"4MiB\"")
        };
        let bare = match &node.value {
            ConfigValue::Text(text) => {
                let parsed = if is_time {
                    Time::parse(text).is_some()
                } else {
                    Size::parse(text).is_some()
                };
                if parsed {
                    return true;
                }
                text.trim().parse::<f64>().is_ok()
            }
            ConfigValue::Float(_) | ConfigValue::Integer(_) => true,
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => false,
        };
        let written = self
            .sources
            .source_text(node.span)
            .trim_matches(['"', '\'']);
        let bytes = written.parse().ok().filter(|_| !is_time).map(Size);
        let (label, help) = if bare && self.displayable_text(node).is_some() {
            // So many are bytes, as other programs count them.
            let help = match bytes {
                Some(size) if size.0 >= Size::KIB => format!("use \"{size}\" for so many bytes"),
                _ => {
                    let [small, large] = units.map(|unit| format!("\"{written}{unit}\""));
                    format!("use {small} or {large}")
                }
            };
            ("missing unit", help)
        } else {
            (
                if bare { "missing unit" } else { "not valid" },
                format!("for example {examples}"),
            )
        };
        let diagnostic = Diagnostic::error(format!("`{path}` must be {noun} with a unit"));
        self.findings
            .add(diagnostic.at(Some(node.span), label).help(help));
        false
    }

    /// An amount of money. Numbers count as they are written, which is exact.
    pub(super) fn check_money(&mut self, node: &mut Node, path: &str) -> bool {
        if matches!(node.value, ConfigValue::Float(_) | ConfigValue::Integer(_)) {
            let written = self.sources.source_text(node.span);
            if written.parse::<Micros>().is_ok() {
                node.value = ConfigValue::Text(written.to_owned());
            }
        }
        let node = &*node;
        let written = match node.value {
            ConfigValue::Text(_) => node.as_text().unwrap_or_default(),
            ConfigValue::Float(_) | ConfigValue::Integer(_) => self.sources.source_text(node.span),
            ConfigValue::Bool(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => "",
        };
        let parsed = written.trim().parse::<Micros>();
        let label = match (&node.value, &parsed) {
            (ConfigValue::Text(_), Ok(_)) => return true,
            (ConfigValue::Text(_), Err(invalid)) => invalid.to_string(),
            _ => format!("this is {}", node.kind()),
        };
        let meant = written.trim().trim_start_matches(['$', '+']).trim_start();
        let is_shown = self.displayable_text(node).is_some();
        let help = match meant.parse::<Micros>() {
            Ok(_) if is_shown => format!("use \"{meant}\""),
            Err(InvalidAmount::TooPrecise) => {
                "the smallest amount is \"0.000001\", a micro-dollar".to_owned()
            }
            Ok(_)
            | Err(InvalidAmount::Malformed | InvalidAmount::Negative | InvalidAmount::TooLarge) => {
                "for example \"0.015\"".to_owned()
            }
        };
        let diagnostic = Diagnostic::error(match node.value {
            ConfigValue::Text(_) => format!("`{path}` is not a valid USD amount"),
            ConfigValue::Bool(_)
            | ConfigValue::Float(_)
            | ConfigValue::Integer(_)
            | ConfigValue::List(_)
            | ConfigValue::Null
            | ConfigValue::Table(_) => format!("`{path}` must be an amount of US dollars"),
        });
        self.findings
            .add(diagnostic.at(Some(node.span), label).help(help));
        false
    }
}

/// The words of a command that is a list, as other programs have it, without what is secret in them;
/// `None` where some are no words, or from a variable.
fn command_words(node: &Node) -> Option<Vec<String>> {
    let items = node.as_list().into_iter().flatten();
    let words = items.map(|item| {
        item.as_text()
            .filter(|_| item.origin == ValueOrigin::Written)
    });
    let words: Vec<&str> = words.collect::<Option<_>>()?;
    Some(redact::redact_words(&words))
}
