//! Rules about arguments of tools: compiled once, read from the raw JSON of a call, pure.
//!
//! What a rule reads must be what the server will read, and servers on common SDKs convert: text that is
//! JSON to what it says, text to numbers and truth values, one name of a member to another. So a rule that
//! refuses looks at all that a server may make of a value (`ValueReadings`), and one that allows holds only
//! where it holds of all. What cannot be judged is refused: a doubled member on the way to a value or
//! inside it, text that cannot be decoded. Other parts of the arguments are never looked at.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::{
    decimal::{self, Decimal},
    policy::PolicyItem,
};
use crate::{
    catalog::{
        Prefixes,
        globs::{GlobTarget, GlobWidth, Globs},
    },
    config::{ArgumentAction, ArgumentRule, Condition},
    mcp::{
        Raw,
        json::{self, JsonStep},
    },
};

use coercion::ValueReadings;
use json_types::JsonTypes;
use pointer::{Decoded, Pointer, PointerTarget, sole_element};

mod coercion;
mod json_types;
mod pointer;

/// Bytes that a compiled regular expression may take.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// The rules that apply to one agent on one route, ready to check.
#[derive(Debug)]
pub struct ArgumentRules {
    rules: Vec<CompiledRule>,
    /// The globs of all rules at once, each with the position of its rule.
    globs: Globs<usize>,
}

/// Which of the [`ArgumentRules`] that made it are about a tool, in the order they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct ApplicableRules(Vec<(usize, JsonTypes)>);

impl ApplicableRules {
    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug)]
struct CompiledRule {
    name: String,
    observe: bool,
    condition: ArgumentCheck,
}

/// What is asked of one argument.
#[derive(Debug)]
struct ArgumentCheck {
    action: ArgumentAction,
    at: Pointer,
    tests: Vec<Test>,
}

/// A condition on one argument, where something else than a refusal follows from it.
#[derive(Debug)]
pub struct ArgumentTest(ArgumentCheck);

impl ArgumentTest {
    /// Compiles the condition on what stands at the JSON pointer `at` in the arguments.
    ///
    /// # Errors
    /// Says what cannot be used. The operator mends it.
    pub fn new(at: &str, condition: &Condition) -> Result<Self, RuleFault> {
        let check = ArgumentCheck::new(at, condition, ArgumentAction::Refuse)?;
        Ok(Self(check))
    }

    /// Whether it holds of `params`, the params of `tools/call`, as a rule that refuses reads them:
    /// where readings differ, one for which it holds is enough.
    pub fn matches(&self, params: Option<&Raw>) -> bool {
        self.0.refuses(arguments_of(params), JsonTypes::ANY)
    }
}

/// One comparison; all of a rule must hold.
#[derive(Debug)]
enum Test {
    Matches(Regex),
    Max(Decimal),
    Min(Decimal),
    OneOf(Vec<Value>),
}

/// What rules say of one call, by name and in the order they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RuleFindings {
    /// Those that refuse it.
    pub refused: Vec<String>,
    /// Those that would refuse it, if they did more than count.
    pub observed: Vec<String>,
}

impl ArgumentRules {
    /// Compiles rules; those of an agent, its profile and everybody hold together.
    ///
    /// # Errors
    /// Names the rule that cannot be used. The operator mends it.
    pub fn new<'c>(
        rules: impl IntoIterator<Item = &'c ArgumentRule>,
        prefixes: &Prefixes,
    ) -> Result<Self, InvalidRule> {
        let (mut compiled, mut globs) = (Vec::new(), Vec::new());
        for rule in rules {
            let at = compiled.len();
            globs.extend(rule.tools.iter().map(|glob| (at, glob)));
            compiled.push(CompiledRule::new(rule)?);
        }
        let globs = Globs::new(
            globs.into_iter(),
            GlobTarget::Names,
            GlobWidth::Broad,
            prefixes,
        );
        let globs = globs.map_err(|error| InvalidRule {
            rule: compiled
                .first()
                .map_or_else(String::new, |rule| rule.name.clone()),
            cause: RuleFault::Globs(error.to_string()),
        })?;
        Ok(Self {
            rules: compiled,
            globs,
        })
    }

    /// The rules about `tool`, whatever it is called with; `schema` is its input schema.
    pub fn applicable_to(&self, tool: &PolicyItem<'_>, schema: Option<&Raw>) -> ApplicableRules {
        let mut about = self.globs.matching_owners(&tool.glob_forms());
        about.sort_unstable();
        about.dedup();
        let about = about.into_iter();
        ApplicableRules(
            about
                .map(|at| (at, self.rules[at].condition.expected_types(schema)))
                .collect(),
        )
    }

    /// Whether one of `about`, the rules about a tool, does more than count.
    pub fn is_enforced(&self, about: &ApplicableRules) -> bool {
        about.0.iter().any(|(at, _)| !self.rules[*at].observe)
    }

    /// The names of `about`, the rules about a tool, each with whether it only counts.
    pub fn rule_names(&self, about: &ApplicableRules) -> impl Iterator<Item = (&str, bool)> {
        let rules = about.0.iter().map(|(at, _)| &self.rules[*at]);
        rules.map(|rule| (rule.name.as_str(), rule.observe))
    }

    /// What `about`, the rules about a tool, say of a call of it with `params`, the params of
    /// `tools/call`.
    pub fn check(&self, about: &ApplicableRules, params: Option<&Raw>) -> RuleFindings {
        let mut findings = RuleFindings::default();
        if about.0.is_empty() {
            return findings;
        }
        let arguments = arguments_of(params);
        for (at, types) in &about.0 {
            let rule = &self.rules[*at];
            if !rule.condition.refuses(arguments, *types) {
                continue;
            }
            if rule.observe {
                findings.observed.push(rule.name.clone());
            } else {
                findings.refused.push(rule.name.clone());
            }
        }
        findings
    }
}

impl CompiledRule {
    fn new(rule: &ArgumentRule) -> Result<Self, InvalidRule> {
        let check = ArgumentCheck::new(&rule.at, &rule.condition, rule.action);
        Ok(Self {
            name: rule.name.clone(),
            observe: rule.observe,
            condition: check.map_err(|cause| InvalidRule {
                rule: rule.name.clone(),
                cause,
            })?,
        })
    }
}

impl ArgumentCheck {
    fn new(at: &str, condition: &Condition, action: ArgumentAction) -> Result<Self, RuleFault> {
        let mut tests = Vec::new();
        if let Some(value) = &condition.equals {
            tests.push(Test::OneOf(vec![value.clone()]));
        }
        if let Some(values) = &condition.one_of {
            tests.push(Test::OneOf(values.clone()));
        }
        if let Some(pattern) = &condition.matches {
            let regex = RegexBuilder::new(pattern)
                .size_limit(REGEX_BYTES_MAX)
                .build();
            tests.push(Test::Matches(regex.map_err(Box::new)?));
        }
        for (limit, test) in [
            (condition.min, Test::Min as fn(Decimal) -> Test),
            (condition.max, Test::Max),
        ] {
            if let Some(limit) = limit {
                tests.push(test(Decimal::from_f64(limit).ok_or(RuleFault::Number)?));
            }
        }
        Ok(Self {
            action,
            at: Pointer::parse(at)?,
            tests,
        })
    }

    /// What the schema of a tool wants at its place.
    fn expected_types(&self, schema: Option<&Raw>) -> JsonTypes {
        JsonTypes::expected_at(self.at.tokens(), schema)
    }

    /// Whether a call with `arguments` is refused, of which the schema wants `types` there.
    fn refuses(&self, arguments: PointerTarget<'_>, types: JsonTypes) -> bool {
        let is_lax = self.action == ArgumentAction::Refuse;
        let mut refuses = |place: PointerTarget<'_>| match (place, self.action) {
            (PointerTarget::Ambiguous, _) | (PointerTarget::Missing, ArgumentAction::Allow) => true,
            (PointerTarget::Missing, ArgumentAction::Refuse) => false,
            (PointerTarget::Value(json), _) if has_duplicate_keys(json) || is_ambiguous(json) => {
                true
            }
            (PointerTarget::Value(json), ArgumentAction::Allow) => !self.must_match(json, types),
            (PointerTarget::Value(json), ArgumentAction::Refuse) => self.may_match(json, types),
        };
        match arguments {
            PointerTarget::Value(json) => self.at.any_target(json, is_lax, &mut refuses),
            other @ (PointerTarget::Missing | PointerTarget::Ambiguous) => refuses(other),
        }
    }

    /// Whether the condition holds of the value `json`, or of anything that a server may take it for.
    fn may_match(&self, json: &[u8], types: JsonTypes) -> bool {
        let readings = ValueReadings::lax(json, types);
        let is_of_structures = || self.tests.iter().any(Test::compares_structures);
        self.tests.iter().all(|test| test.matches(&readings))
            || sole_element(json).is_some_and(|element| self.may_match(element, types))
            || match Decoded::of(json) {
                Decoded::Json(inner) => self.may_match(inner.as_bytes(), types),
                Decoded::TooDeep => true,
                // Some read what is not quite JSON.
                Decoded::Malformed => is_of_structures(),
                Decoded::Plain => false,
            }
    }

    /// Whether the condition holds of the value `json`, and of all that a server may take it for.
    fn must_match(&self, json: &[u8], types: JsonTypes) -> bool {
        let holds =
            |readings: &ValueReadings<'_>| self.tests.iter().all(|test| test.matches(readings));
        // What is listed letter by letter is meant, whatever the server makes of it.
        let is_listed = self.tests.iter().any(|test| matches!(test, Test::OneOf(_)));
        let is_all = is_listed || self.tests.is_empty() || types.is_subset_of(JsonTypes::STRING);
        ValueReadings::exact(json).iter().all(holds)
            && (is_all
                || match Decoded::of(json) {
                    Decoded::Json(inner) => self.must_match(inner.as_bytes(), types),
                    Decoded::TooDeep => false,
                    Decoded::Malformed | Decoded::Plain => true,
                })
    }
}

/// The arguments in the params of a call; what is no object has no values.
fn arguments_of(params: Option<&Raw>) -> PointerTarget<'_> {
    let Some(params) = params else {
        return PointerTarget::Missing;
    };
    let json = params.as_bytes();
    let mut found =
        json::members(json, 0).filter(|member| member.matches_ignoring_case(json, "arguments"));
    match (found.next(), found.next()) {
        (None, _) => PointerTarget::Missing,
        (Some(member), None) if member.matches(json, "arguments") => match &json[member.value] {
            value if value.first() == Some(&b'{') => PointerTarget::Value(value),
            _ => PointerTarget::Missing,
        },
        (Some(_), _) => PointerTarget::Ambiguous,
    }
}

/// Whether any object in `json` has a key twice, in whatever case.
fn has_duplicate_keys(json: &[u8]) -> bool {
    let mut within: Vec<Vec<Option<String>>> = Vec::new();
    for step in json::steps(json) {
        match step {
            JsonStep::Object | JsonStep::Array => within.push(Vec::new()),
            JsonStep::Key(span) => {
                if let Some(keys) = within.last_mut() {
                    keys.push(json::decode_string(&json[span]).map(|key| json::case_folded(&key)));
                }
            }
            JsonStep::Scalar(_) => {}
            JsonStep::End => {
                let mut keys = within.pop().unwrap_or_default();
                keys.sort_unstable();
                if keys.array_windows().any(|[a, b]| a == b) {
                    return true;
                }
            }
        }
    }
    false
}

/// Whether it is a string that has no one meaning: a lone surrogate, which servers read as they like.
fn is_ambiguous(json: &[u8]) -> bool {
    json.first() == Some(&b'"') && json::decode_string(json).is_none()
}

/// A rule that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("invalid argument rule `{rule}`: {cause}")]
pub struct InvalidRule {
    /// Its name.
    pub rule: String,
    /// What is wrong with it.
    pub cause: RuleFault,
}

/// What is wrong with a rule. The operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum RuleFault {
    /// Its globs are too large to match together with those of the other rules.
    #[error("{0}")]
    Globs(String),
    /// `min` or `max` is not finite.
    #[error("`min` or `max` is not a finite number")]
    Number,
    /// `at` is not a JSON pointer.
    #[error("`at` is not a JSON pointer (RFC 6901), such as `/amount`")]
    Pointer,
    /// `matches` is not a regular expression, or too large a one.
    #[error("`matches` is not a valid regular expression: {0}")]
    Regex(#[from] Box<regex::Error>),
}

#[cfg(test)]
mod tests;
