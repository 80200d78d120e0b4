//! Rules about arguments of tools: compiled once, read from the raw JSON of a call, pure.
//!
//! What a rule reads must be what the server will read. Where two readers may differ, the call is
//! refused: a doubled member on the way to a value or inside it, text that cannot be decoded. Other
//! parts of the arguments are never looked at.

use regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::number::{Decimal, Readings};
use super::policy::{Globs, Item};
use crate::{
    config::{ArgumentAction, ArgumentRule, Condition},
    mcp::{
        Raw,
        json::{self, Step},
    },
};

/// Bytes that a compiled regular expression may take.
const REGEX_BYTES_MAX: usize = 1 << 20;

/// The rules that apply to one agent on one route, ready to check.
#[derive(Debug)]
pub struct ArgumentRules {
    rules: Vec<Compiled>,
    /// The globs of all rules at once, each with the position of its rule.
    globs: Globs<usize>,
}

/// Which of the [`ArgumentRules`] that made it are about a tool, in the order they were given.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct About(Vec<usize>);

impl About {
    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[derive(Debug)]
struct Compiled {
    name: String,
    observe: bool,
    check: Check,
}

/// What is asked of one argument.
#[derive(Debug)]
struct Check {
    action: ArgumentAction,
    path: Vec<String>,
    tests: Vec<Test>,
}

/// A condition on one argument, where something else than a refusal follows from it.
#[derive(Debug)]
pub struct ArgumentTest(Check);

impl ArgumentTest {
    /// Compiles the condition on what stands at the JSON pointer `at` in the arguments.
    ///
    /// # Errors
    /// Says what cannot be used. The operator mends it.
    pub fn new(at: &str, condition: &Condition) -> Result<Self, Unusable> {
        let check = Check::new(at, condition, ArgumentAction::Refuse)?;
        Ok(Self(check))
    }

    /// Whether it holds of `params`, the params of `tools/call`, as a rule that refuses reads them:
    /// where readings differ, one for which it holds is enough.
    pub fn holds(&self, params: Option<&Raw>) -> bool {
        self.0.refuses(&arguments(params))
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
pub struct Findings {
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
    pub fn new<'c>(rules: impl IntoIterator<Item = &'c ArgumentRule>) -> Result<Self, InvalidRule> {
        let (mut compiled, mut globs) = (Vec::new(), Vec::new());
        for rule in rules {
            let at = compiled.len();
            globs.extend(rule.tools.iter().map(|glob| (at, glob)));
            compiled.push(Compiled::new(rule)?);
        }
        let globs = Globs::new(globs.into_iter()).map_err(|error| InvalidRule {
            rule: compiled
                .first()
                .map_or_else(String::new, |rule| rule.name.clone()),
            cause: Unusable::Globs(error.to_string()),
        })?;
        Ok(Self {
            rules: compiled,
            globs,
        })
    }

    /// The rules about `tool`, whatever it is called with.
    pub fn about(&self, tool: &Item<'_>) -> About {
        let mut about = self.globs.owners(tool);
        about.sort_unstable();
        about.dedup();
        About(about)
    }

    /// The names of `about`, the rules about a tool, each with whether it only counts.
    pub fn named(&self, about: &About) -> impl Iterator<Item = (&str, bool)> {
        let rules = about.0.iter().map(|at| &self.rules[*at]);
        rules.map(|rule| (rule.name.as_str(), rule.observe))
    }

    /// What `about`, the rules about a tool, say of a call of it with `params`, the params of
    /// `tools/call`.
    pub fn check(&self, about: &About, params: Option<&Raw>) -> Findings {
        let mut findings = Findings::default();
        if about.0.is_empty() {
            return findings;
        }
        let arguments = arguments(params);
        for at in &about.0 {
            let rule = &self.rules[*at];
            if !rule.check.refuses(&arguments) {
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

impl Compiled {
    fn new(rule: &ArgumentRule) -> Result<Self, InvalidRule> {
        let check = Check::new(&rule.at, &rule.condition, rule.action);
        Ok(Self {
            name: rule.name.clone(),
            observe: rule.observe,
            check: check.map_err(|cause| InvalidRule {
                rule: rule.name.clone(),
                cause,
            })?,
        })
    }
}

impl Check {
    fn new(at: &str, condition: &Condition, action: ArgumentAction) -> Result<Self, Unusable> {
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
                tests.push(test(Decimal::of_f64(limit).ok_or(Unusable::Number)?));
            }
        }
        Ok(Self {
            action,
            path: pointer(at)?,
            tests,
        })
    }

    fn refuses(&self, arguments: &Found<'_>) -> bool {
        let value = match arguments {
            Found::Value(json) => walk(json, &self.path),
            Found::Doubled => Found::Doubled,
            Found::Nothing => Found::Nothing,
        };
        match (value, self.action) {
            (Found::Doubled, _) | (Found::Nothing, ArgumentAction::Allow) => true,
            (Found::Nothing, ArgumentAction::Refuse) => false,
            (Found::Value(json), _) if is_doubled_within(json) => true,
            (Found::Value(json), action) => {
                // Every reading of the value must pass.
                let readings = Readings::of(json);
                let holds = |reading| self.tests.iter().all(|test| test.holds(json, reading));
                match action {
                    ArgumentAction::Allow => !readings.iter().all(holds) || is_unclear(json),
                    ArgumentAction::Refuse => readings.iter().any(holds) || is_unclear(json),
                }
            }
        }
    }
}

impl Test {
    /// Whether it holds of the value `json`, which is read as `number` if it is one.
    fn holds(&self, json: &[u8], number: Option<&Decimal>) -> bool {
        match self {
            Self::Matches(regex) => json::text(json).is_some_and(|text| regex.is_match(&text)),
            Self::Max(limit) => number.is_some_and(|number| number <= limit),
            Self::Min(limit) => number.is_some_and(|number| number >= limit),
            Self::OneOf(values) => values.iter().any(|value| equals(json, value, number)),
        }
    }
}

/// What stands at a place of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Found<'a> {
    /// More than one member has the name, or one has it in another case; servers differ in which they
    /// take.
    Doubled,
    /// Nothing.
    Nothing,
    /// This value.
    Value(&'a [u8]),
}

/// The arguments in the params of a call; what is no object has no values.
fn arguments(params: Option<&Raw>) -> Found<'_> {
    let Some(params) = params else {
        return Found::Nothing;
    };
    match member(params.as_bytes(), "arguments") {
        Found::Value(json) if json.first() != Some(&b'{') => Found::Nothing,
        found @ (Found::Doubled | Found::Nothing | Found::Value(_)) => found,
    }
}

/// Follows a pointer from the value `json`.
fn walk<'a>(json: &'a [u8], path: &[String]) -> Found<'a> {
    let mut at = json;
    for token in path {
        let found = match at.first() {
            Some(b'{') => member(at, token),
            Some(b'[') => element(at, token),
            Some(_) | None => Found::Nothing,
        };
        match found {
            Found::Value(value) => at = value,
            Found::Doubled | Found::Nothing => return found,
        }
    }
    Found::Value(at)
}

fn member<'a>(json: &'a [u8], key: &str) -> Found<'a> {
    let mut found = json::members(json, 0).filter(|member| member.is_alike(json, key));
    match (found.next(), found.next()) {
        (None, _) => Found::Nothing,
        (Some(member), None) if member.is(json, key) => Found::Value(&json[member.value]),
        (Some(_), _) => Found::Doubled,
    }
}

/// RFC 6901: digits without leading zeros; `-` names what does not exist.
fn element<'a>(json: &'a [u8], token: &str) -> Found<'a> {
    let is_index = token.bytes().all(|byte| byte.is_ascii_digit())
        && (token == "0" || !token.starts_with('0'));
    let index = token.parse::<usize>().ok().filter(|_| is_index);
    let span = index.and_then(|index| json::elements(json, 0).nth(index));
    span.map_or(Found::Nothing, |span| Found::Value(&json[span]))
}

/// Whether any object in `json` has a key twice, in whatever case.
fn is_doubled_within(json: &[u8]) -> bool {
    let mut within: Vec<Vec<Option<String>>> = Vec::new();
    for step in json::steps(json) {
        match step {
            Step::Object | Step::Array => within.push(Vec::new()),
            Step::Key(span) => {
                if let Some(keys) = within.last_mut() {
                    keys.push(json::text(&json[span]).map(|key| json::without_case(&key)));
                }
            }
            Step::Plain(_) => {}
            Step::End => {
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
fn is_unclear(json: &[u8]) -> bool {
    json.first() == Some(&b'"') && json::text(json).is_none()
}

/// Whether `json`, which has no doubled members, means `value`; numbers are compared by value.
fn equals(json: &[u8], value: &Value, number: Option<&Decimal>) -> bool {
    match (json.first(), value) {
        (Some(b'n'), Value::Null) => true,
        (Some(b't'), Value::Bool(value)) => *value,
        (Some(b'f'), Value::Bool(value)) => !*value,
        (Some(b'"'), Value::String(value)) => json::text(json).is_some_and(|text| text == *value),
        (Some(b'-' | b'0'..=b'9' | b'"'), Value::Number(value)) => {
            number == Decimal::parse(&value.to_string()).as_ref()
        }
        (Some(b'['), Value::Array(values)) => {
            let parts: Vec<_> = json::elements(json, 0).collect();
            parts.len() == values.len()
                && parts
                    .into_iter()
                    .zip(values)
                    .all(|(span, value)| inner_equals(&json[span], value))
        }
        (Some(b'{'), Value::Object(values)) => {
            let parts: Vec<_> = json::members(json, 0).collect();
            parts.len() == values.len()
                && parts.into_iter().all(|part| {
                    let key = json::text(&json[part.key]);
                    let value = key.and_then(|key| values.get(&*key));
                    value.is_some_and(|value| inner_equals(&json[part.value], value))
                })
        }
        _ => false,
    }
}

/// Like [`equals`], for a value inside another: any reading of a number may be the one meant, but a
/// string is no number there.
fn inner_equals(json: &[u8], value: &Value) -> bool {
    if json.first() == Some(&b'"') {
        return equals(json, value, None);
    }
    let readings = Readings::of(json);
    readings.iter().any(|number| equals(json, value, number))
}

/// The tokens of a JSON pointer (RFC 6901).
fn pointer(text: &str) -> Result<Vec<String>, Unusable> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let rest = text.strip_prefix('/').ok_or(Unusable::Pointer)?;
    let unescape = |token: &str| {
        let mut parts = token.split('~');
        let mut out = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            match part.as_bytes().first() {
                Some(b'0') => out.push('~'),
                Some(b'1') => out.push('/'),
                Some(_) | None => return Err(Unusable::Pointer),
            }
            out.push_str(&part[1..]);
        }
        Ok(out)
    };
    rest.split('/').map(unescape).collect()
}

/// A rule that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the argument rule `{rule}` cannot be used: {cause}")]
pub struct InvalidRule {
    /// Its name.
    pub rule: String,
    /// What is wrong with it.
    pub cause: Unusable,
}

/// What is wrong with a rule. The operator mends it.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// Its globs are too large to match together with those of the other rules.
    #[error("{0}")]
    Globs(String),
    /// `min` or `max` is not finite.
    #[error("a limit is not a number")]
    Number,
    /// `at` is not a JSON pointer.
    #[error("`at` is not a JSON pointer (RFC 6901), such as `/amount`")]
    Pointer,
    /// `matches` is not a regular expression, or too large a one.
    #[error("`matches` is not a usable regular expression: {0}")]
    Regex(#[from] Box<regex::Error>),
}

#[cfg(test)]
mod tests;
