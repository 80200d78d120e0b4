//! Variables in strings: `${VAR}` is required, `${VAR:default}` optional, `$$` is one `$`.
//!
//! A default may hold variables itself. The value of a variable is taken as it is: nothing in it
//! is expanded again, so that a token may contain `${`. A variable that is set to nothing is set.
//! In documents of other programs their own forms come first: `${env:X}`, `${input:X}`,
//! `${userHome}`, `${workspaceFolder}`, `${X:-default}`; `$$` means nothing there, and what is no
//! variable is taken as it stands. Forms without `${` are rewritten before (`import::notation`).
//!
//! `${secret:NAME}`, `${file:PATH}` and `${exec:COMMAND}` are values that stand elsewhere (`secret_values`), in our
//! own documents and where nobody shows what they hold.
//!
//! Runs after merging, so that a value which another file replaces needs no variable; a server
//! that is not enabled needs none either, unless it is the one that is asked for, nor does what is of no
//! use to the reader.

use std::ops::Range;

use super::secret_values::{MissingValue, SecretValues, ValueForm};
use crate::{
    config::{
        Environment, LoadScope, SecretKeyPlace,
        diagnostics::{
            masked, redact,
            report::{ConfigTexts, Diagnostic, Diagnostics, SourceText},
            suggest,
        },
        node::{ConfigValue, Node, Span, ValueOrigin},
    },
    names::{ServerName, ServerOwner},
};

/// Deepest nesting of defaults.
const DEFAULT_DEPTH_MAX: usize = 16;

/// Why a secret among the arguments of a program is none, and what to do.
const ARGUMENT_LABEL: &str = "other users of this machine can read it there";
const ARGUMENT_HELP: &str = "use `env`, if the program reads a variable";

/// Keys by which is known where other values come from, so that those cannot stand in them.
const SETTINGS: [&str; 2] = ["data_dir", "secrets"];

/// Expands the strings of `node` that say where secrets are.
pub(in crate::config) fn expand_settings<'e>(
    node: &mut Node,
    scope: (LoadScope<'e>, &'e Environment),
    sources: &ConfigTexts,
    found: (&mut SecretValues<'e>, &mut Diagnostics),
) {
    expand_keys(node, scope, sources, found, |key| SETTINGS.contains(&key));
}

/// Expands every string below `node` but those that [`expand_settings`] has; where a variable has no value, that is
/// reported, but where that is not used.
pub(in crate::config) fn expand_variables<'e>(
    node: &mut Node,
    scope: (LoadScope<'e>, &'e Environment),
    sources: &ConfigTexts,
    found: (&mut SecretValues<'e>, &mut Diagnostics),
) {
    expand_keys(node, scope, sources, found, |key| !SETTINGS.contains(&key));
}

fn expand_keys<'e>(
    node: &mut Node,
    (used, environment): (LoadScope<'e>, &'e Environment),
    sources: &ConfigTexts,
    (values, diagnostics): (&mut SecretValues<'e>, &mut Diagnostics),
    is_wanted: impl Fn(&str) -> bool,
) {
    let mut expander = Expander {
        used,
        environment,
        sources,
        values,
        findings: diagnostics,
        lenient: environment.is_assumed(),
    };
    for (key, entry) in node.as_table_mut().into_iter().flatten() {
        if is_wanted(key) {
            expander.expand_tree(&mut entry.node, &mut vec![key.clone()]);
        }
    }
}

/// Whether `enabled` of the server `node`, which is expanded, is false.
pub(in crate::config) fn is_switched_off(node: &Node) -> bool {
    let enabled = node.get("enabled").map(|entry| &entry.node);
    enabled.is_some_and(|enabled| {
        let text = enabled.as_text().map(str::trim);
        matches!(enabled.value, ConfigValue::Bool(false)) || text == Some("false")
    })
}

/// The names of the variables that strings below `node` refer to.
pub(super) fn variable_names(node: &Node) -> Vec<String> {
    let mut names = Vec::new();
    each_text(node, &mut |text| {
        for rest in text.replace("$$", "").split("${").skip(1) {
            let rest = rest.strip_prefix("env:").unwrap_or(rest);
            names.push(rest.chars().take_while(|c| is_name_char(*c)).collect());
        }
    });
    names
}

/// What strings below `node` refer to, as [`references_in`] has it.
pub(in crate::config) fn references(node: &Node) -> Vec<String> {
    let mut references = Vec::new();
    each_text(node, &mut |text| references.extend(references_in(text)));
    references
}

/// What `text` refers to, as it stands between the braces without a default; of a command only that it is one.
pub(in crate::config) fn references_in(text: &str) -> impl Iterator<Item = String> {
    let ranges = reference_ranges(text).into_iter();
    ranges.map(|range| {
        let inner = &text[range.start + 2..range.end - 1];
        match ValueForm::parse(inner) {
            Some((ValueForm::Exec, _)) => ValueForm::Exec.as_str().to_owned(),
            Some((ValueForm::File | ValueForm::Secret, _)) => inner.to_owned(),
            None => {
                let inner = inner.strip_prefix("env:").unwrap_or(inner);
                inner.chars().take_while(|c| is_name_char(*c)).collect()
            }
        }
    })
}

/// Where each `${...}` of `text` stands.
pub(in crate::config) fn reference_ranges(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while let Some(found) = text[at..].find('$') {
        let start = at + found;
        let after = &text[start + 1..];
        let end = after.strip_prefix('{').and_then(closing_brace);
        at = match end {
            Some(length) => {
                let end = start + length + "${}".len();
                ranges.push(start..end);
                end
            }
            // `$$` is one `$`.
            None => start + 1 + usize::from(after.starts_with('$')),
        };
    }
    ranges
}

/// Whether a value that stands elsewhere may stand at `path`.
pub(in crate::config) fn allows_references(path: &[String]) -> bool {
    FormUse::at(path) == FormUse::Allowed
}

/// Whose secrets the string at `path` may name: those of a server are its owner's. Nobody's where the server has no
/// valid name, which is reported where that stands.
pub(in crate::config) fn owner_at(path: &[String]) -> Option<ServerOwner> {
    match path {
        [section, name, ..] if section == "servers" => {
            ServerName::parse(name).ok().map(|name| name.owner())
        }
        _ => Some(ServerOwner::Gateway),
    }
}

fn each_text(node: &Node, visit: &mut impl FnMut(&str)) {
    if let Some(text) = node.as_text() {
        visit(text);
    }
    node.children().for_each(|child| each_text(child, visit));
}

struct Expander<'e, 'v> {
    used: LoadScope<'e>,
    environment: &'e Environment,
    sources: &'v ConfigTexts,
    values: &'v mut SecretValues<'e>,
    findings: &'v mut Diagnostics,
    /// Whether the name of a variable without a value stands for it, since nobody will use it.
    lenient: bool,
}

impl Expander<'_, '_> {
    fn expand_tree(&mut self, node: &mut Node, path: &mut Vec<String>) {
        let was_lenient = self.lenient;
        self.lenient |= self.is_unused(node, path);
        if node.origin == ValueOrigin::Written {
            self.expand_text(node, path);
        }
        if (!self.lenient || self.environment.is_assumed())
            && node
                .as_text()
                .is_some_and(|text| masked::is_masked(text, path))
        {
            self.findings.add(masked::masked_error(node, path));
            node.origin = ValueOrigin::Invalid;
        }
        if let ConfigValue::List(items) = &mut node.value {
            for item in items {
                self.expand_tree(item, path);
            }
        }
        for (key, entry) in node.as_table_mut().into_iter().flatten() {
            path.push(key.clone());
            self.expand_tree(&mut entry.node, path);
            path.pop();
        }
        self.lenient = was_lenient;
    }

    /// Whether nobody will use what stands at `path`.
    fn is_unused(&mut self, node: &mut Node, path: &[String]) -> bool {
        match path {
            [section, name] if section == "servers" => {
                let is_enabled = self.used.is_of_data_dir() || !self.is_disabled(node);
                !self.used.includes_server(name, is_enabled)
            }
            [section, _, key] => section == "agents" && key == "keys" && self.used.is_of_data_dir(),
            _ => false,
        }
    }

    /// Whether `enabled` of the server `node` is false, once expanded.
    fn is_disabled(&mut self, node: &mut Node) -> bool {
        let Some(entry) = node
            .as_table_mut()
            .and_then(|table| table.get_mut("enabled"))
        else {
            return false;
        };
        self.expand_tree(&mut entry.node, &mut vec!["enabled".to_owned()]);
        is_switched_off(node)
    }

    fn expand_text(&mut self, node: &mut Node, path: &[String]) {
        let ConfigValue::Text(text) = &node.value else {
            return;
        };
        if !text.contains('$') {
            return;
        }
        let source = self.sources.get(node.span.source);
        let (dotted, owner) = (path.join("."), owner_at(path));
        let mut expansion = Expansion {
            environment: self.environment,
            source,
            lenient: self.lenient,
            values: self.values,
            path: &dotted,
            owner: owner.as_ref(),
            forms: FormUse::at(path),
            form_count: 0,
            output: String::new(),
            shown: String::new(),
            has_variable: false,
            is_incomplete: false,
            problems: Vec::new(),
            suspicious_forms: Vec::new(),
        };
        expansion.run(text, 0);
        let Expansion {
            output,
            shown,
            has_variable,
            form_count,
            is_incomplete,
            problems,
            suspicious_forms: doubts,
            ..
        } = expansion;
        let place = |written: &str| Some(span_of_part(node.span, written, source));
        for doubt in doubts {
            self.findings.add(
                Diagnostic::warning(doubt.message)
                    .at(place(&doubt.written), "taken literally")
                    .help(doubt.help),
            );
        }
        if form_count > 0 && path.last().is_some_and(|key| key == "args") {
            let message = format!("`{dotted}` puts a secret on a command line");
            let warning = Diagnostic::warning(message).at(place("${"), ARGUMENT_LABEL);
            self.findings.add(warning.help(ARGUMENT_HELP));
        }
        if is_incomplete {
            self.findings.suppress(node.span);
        }
        if self.lenient && source.is_foreign && !problems.is_empty() {
            self.findings.suppress(node.span);
            return;
        }
        if problems.is_empty() {
            node.shown = (shown != output).then_some(shown);
            node.value = ConfigValue::Text(output);
            if has_variable {
                node.origin = ValueOrigin::Variable;
            }
            return;
        }
        for problem in problems {
            let diagnostic = problem.to_diagnostic(&dotted, self.environment);
            self.findings
                .add(diagnostic.at(place(problem.written()), "needed here"));
        }
        node.origin = ValueOrigin::Invalid;
    }
}

/// The part of `span` that reads `written`, or all of it.
fn span_of_part(span: Span, written: &str, source: &SourceText) -> Span {
    let whole = source.text.get(span.range()).unwrap_or_default();
    match whole.find(written) {
        Some(at) => {
            let start = span.start + at;
            Span::new(span.source, start..start + written.len())
        }
        None => span,
    }
}

/// Whether values that stand elsewhere may stand in a string.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum FormUse {
    Allowed,
    /// In what is displayed, as most settings are.
    Displayed,
    /// In another such form.
    Nested,
    /// Where it is said where they come from.
    Setting,
}

impl FormUse {
    /// For the string at `path`: where credentials stand nobody shows them.
    fn at(path: &[String]) -> Self {
        let mut keys = path.iter().map(String::as_str);
        let key = match keys.next() {
            Some("data_dir" | "secrets") => return Self::Setting,
            Some("oauth" | "jwt") => return Self::Allowed,
            Some("agents") => keys.nth(1).filter(|key| *key == "keys"),
            Some("servers") => keys
                .by_ref()
                .skip(1)
                .find(|key| *key != "replicas")
                .filter(|key| {
                    matches!(*key, "args" | "auth" | "env" | "headers" | "proxy" | "url")
                }),
            Some(_) | None => None,
        };
        key.map_or(Self::Displayed, |_| Self::Allowed)
    }
}

/// The expansion of one string.
struct Expansion<'e, 'v> {
    environment: &'e Environment,
    source: &'v SourceText,
    lenient: bool,
    values: &'v mut SecretValues<'e>,
    /// Where the string stands.
    path: &'v str,
    /// Whose secrets it may name; `None`: nobody's.
    owner: Option<&'v ServerOwner>,
    forms: FormUse,
    /// How many of its values stand elsewhere.
    form_count: usize,
    output: String,
    /// The same as our own configs would write it, with the names of variables for their values.
    shown: String,
    has_variable: bool,
    /// Whether the name of a variable stands in for its value.
    is_incomplete: bool,
    problems: Vec<VariableProblem>,
    suspicious_forms: Vec<SuspiciousForm>,
}

/// A form that is legal and yet most likely not what was meant.
struct SuspiciousForm {
    written: String,
    message: String,
    help: String,
}

impl Expansion<'_, '_> {
    fn run(&mut self, text: &str, depth: usize) {
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            self.push_literal(&rest[..at]);
            let after = &rest[at + 1..];
            if after.starts_with('$') && !self.source.is_foreign {
                self.push_literal("$");
                rest = &after[1..];
            } else if let Some(inner) = after.strip_prefix('{') {
                let Some(end) = closing_brace(inner) else {
                    if self.source.is_foreign {
                        self.push_literal(&rest[at..]);
                        return;
                    }
                    self.problems.push(VariableProblem::Unclosed {
                        written: rest[at..].to_owned(),
                    });
                    return;
                };
                self.expand_variable(&inner[..end], depth);
                rest = &inner[end + 1..];
            } else {
                self.output.push('$');
                let is_alone = after.starts_with(|next| next != '$');
                self.shown.push_str(if is_alone { "$" } else { "$$" });
                rest = after;
            }
        }
        self.push_literal(rest);
    }

    /// Puts out `text` as it is.
    fn push_literal(&mut self, text: &str) {
        self.output.push_str(text);
        self.shown.push_str(&text.replace('$', "$$"));
    }

    /// Puts out the `value` of the variable `name`.
    fn push_value(&mut self, name: &str, value: &str) {
        self.output.push_str(value);
        self.shown.extend(["${", name, "}"]);
    }

    /// Puts out what `${inner}` stands for.
    fn expand_variable(&mut self, inner: &str, depth: usize) {
        if depth >= DEFAULT_DEPTH_MAX {
            self.problems.push(VariableProblem::TooDeep {
                written: format!("${{{inner}}}"),
            });
            return;
        }
        self.has_variable = true;
        if self.source.is_stored && !inner.starts_with("secret:") {
            let written = format!("${{{inner}}}");
            self.problems.push(VariableProblem::Stored { written });
            return;
        }
        if self.source.is_foreign && self.expand_foreign(inner, depth) {
            return;
        }
        if let Some((form, rest)) = ValueForm::parse(inner)
            && !self.source.is_foreign
        {
            self.expand_form(form, rest, depth);
            return;
        }
        let (name, default) = match inner.split_once(':') {
            Some((name, default)) => (name, Some(default)),
            None => (inner, None),
        };
        if !is_name(name) && self.source.is_foreign {
            let written = format!("${{{inner}}}");
            self.push_literal(&written);
            self.suspicious_forms.push(SuspiciousForm {
                message: "this is no variable: its name is invalid".to_owned(),
                help: "names consist of letters, digits and `_`".to_owned(),
                written,
            });
            return;
        }
        if !is_name(name) {
            self.problems.push(VariableProblem::Name {
                written: format!("${{{inner}}}"),
            });
            return;
        }
        if !self.source.is_foreign {
            self.check_suspicious(inner, name, default);
        }
        self.expand_or_default(name, default, depth);
    }

    /// Puts out a value that stands elsewhere: where, `rest` says.
    fn expand_form(&mut self, form: ValueForm, rest: &str, depth: usize) {
        let written = format!("${{{}:{rest}}}", form.as_str());
        if self.forms != FormUse::Allowed {
            let refused = self.forms;
            self.problems
                .push(VariableProblem::Misplaced { written, refused });
            return;
        }
        self.form_count += 1;
        let (base, is_needed) = (self.source.base_dir(), !self.lenient);
        let found = match form {
            ValueForm::Secret => match self.owner {
                Some(owner) => self.values.secret((owner, rest), self.path, is_needed),
                None => Ok(None),
            },
            ValueForm::File => match self.expand_part(rest, depth) {
                Some(path) => self.values.file(&path, base, is_needed),
                None => return,
            },
            ValueForm::Exec => {
                let Some(words) = shlex::split(rest).filter(|words| !words.is_empty()) else {
                    self.problems.push(VariableProblem::Command { written });
                    return;
                };
                let words = words.iter().map(|word| self.expand_part(word, depth));
                match words.collect::<Option<Vec<String>>>() {
                    Some(command) => self.values.output(command, base, is_needed),
                    None => return,
                }
            }
        };
        match found {
            Ok(value) => {
                self.is_incomplete |= value.is_none();
                self.output.push_str(value.as_deref().unwrap_or(rest));
                self.shown.push_str(&written);
            }
            Err(missing) => self
                .problems
                .push(VariableProblem::NoValue { written, missing }),
        }
    }

    /// `text` with its variables expanded; nothing where that is a problem.
    fn expand_part(&mut self, text: &str, depth: usize) -> Option<String> {
        let mut part = Expansion {
            environment: self.environment,
            source: self.source,
            lenient: self.lenient,
            values: self.values,
            path: self.path,
            owner: self.owner,
            forms: FormUse::Nested,
            form_count: 0,
            output: String::new(),
            shown: String::new(),
            has_variable: false,
            is_incomplete: false,
            problems: Vec::new(),
            suspicious_forms: Vec::new(),
        };
        part.run(text, depth + 1);
        let is_right = part.problems.is_empty();
        let (output, mut problems, mut doubts) =
            (part.output, part.problems, part.suspicious_forms);
        self.problems.append(&mut problems);
        self.suspicious_forms.append(&mut doubts);
        is_right.then_some(output)
    }

    /// The value of the variable `name`, else `default`, else a problem.
    fn expand_or_default(&mut self, name: &str, default: Option<&str>, depth: usize) {
        match (self.environment.get(name), default) {
            _ if name == SecretKeyPlace::VARIABLE => self.problems.push(VariableProblem::SecretKey),
            (Some(value), _) => self.push_value(name, value),
            (None, Some(default)) => self.expand_default(name, default, depth),
            (None, None) if self.lenient => self.push_placeholder(name),
            (None, None) => self.problems.push(VariableProblem::Unset {
                name: name.to_owned(),
            }),
        }
    }

    /// Puts out the default of the variable `name`.
    fn expand_default(&mut self, name: &str, default: &str, depth: usize) {
        let start = self.shown.len();
        if self.environment.is_assumed() {
            self.shown.extend(["${", name, ":"]);
        }
        self.run(default, depth + 1);
        if self.environment.is_assumed() {
            self.shown.push('}');
        }
        if redact::sounds_secret(name) {
            self.shown.truncate(start);
            self.shown.push_str(redact::MASK);
        }
    }

    fn push_placeholder(&mut self, name: &str) {
        self.push_value(name, name);
        self.is_incomplete = true;
    }

    fn check_suspicious(&mut self, inner: &str, name: &str, default: Option<&str>) {
        let written = format!("${{{inner}}}");
        match default {
            Some(default) if default.starts_with('-') => {
                let meant = format!("${{{name}:{}}}", &default[1..]);
                self.suspicious_forms.push(SuspiciousForm {
                    message: format!("the default of `{name}` begins with a hyphen"),
                    help: format!("use `{meant}` if the hyphen is not intended"),
                    written,
                });
            }
            Some(default) if name == "env" || name == "input" => {
                self.suspicious_forms.push(SuspiciousForm {
                    message: format!("this reads variable `{name}` with default `{default}`"),
                    help: format!("use `${{{default}}}` for the variable `{default}`"),
                    written,
                });
            }
            _ => {}
        }
    }

    /// The forms of other programs; false when `inner` is none of them.
    fn expand_foreign(&mut self, inner: &str, depth: usize) -> bool {
        let folder = self.source.base_dir();
        match inner {
            "userHome" => self.expand_or_default("HOME", None, depth),
            // What is in the environment is so for the user's own reasons.
            "CLAUDE_PLUGIN_ROOT" | "CLAUDE_PROJECT_DIR"
                if self.environment.get(inner).is_some() =>
            {
                return false;
            }
            "CLAUDE_PLUGIN_ROOT" | "CLAUDE_PROJECT_DIR" | "extensionPath" | "workspaceFolder"
            | "workspacePath" | "workspaceRoot" => self.push_literal(&folder.to_string_lossy()),
            "workspaceFolderBasename" => {
                let name = folder.file_name().unwrap_or_default().to_string_lossy();
                self.push_literal(&name);
            }
            "pathSeparator" | "/" => self.push_literal(std::path::MAIN_SEPARATOR_STR),
            _ => return self.expand_foreign_prefix(inner, depth),
        }
        true
    }

    fn expand_foreign_prefix(&mut self, inner: &str, depth: usize) -> bool {
        let Some((prefix, rest)) = inner.split_once(':') else {
            return false;
        };
        match prefix {
            "env" => match rest.split_once(":-").or_else(|| rest.split_once(':')) {
                Some((name, default)) => self.expand_or_default(name, Some(default), depth),
                None => self.expand_or_default(rest, None, depth),
            },
            "input" => self.expand_input(rest),
            "command" | "config" | "exec" | "file" | "secret" => {
                self.problems.push(VariableProblem::Editor {
                    written: format!("${{{inner}}}"),
                });
            }
            "workspaceFolder" => self.push_literal(&self.source.base_dir().to_string_lossy()),
            name => match rest.strip_prefix('-') {
                // As in a shell, an empty variable takes the default too.
                Some(default) if self.environment.get(name).is_none_or(str::is_empty) => {
                    self.expand_default(name, default, depth);
                }
                Some(_) => self.expand_or_default(name, None, depth),
                None => return false,
            },
        }
        true
    }

    /// `${input:id}`: nobody can be asked, so that the answer comes from the environment.
    fn expand_input(&mut self, id: &str) {
        let name = input_variable(id);
        let default = self.source.inputs.get(id).cloned().flatten();
        match (self.environment.get(&name), default) {
            (Some(value), _) => self.push_value(&name, value),
            // Nothing in it is expanded; whether it is secret its name may say.
            (None, Some(default)) if redact::sounds_secret(id) => {
                self.output.push_str(&default);
                self.shown.push_str(redact::MASK);
            }
            (None, Some(default)) => self.push_literal(&default),
            (None, None) if self.lenient => self.push_placeholder(&name),
            (None, None) => self.problems.push(VariableProblem::Input {
                id: id.to_owned(),
                name,
            }),
        }
    }
}

/// The variable that answers the input `id`: `github-token` -> `GITHUB_TOKEN`.
pub(in crate::config) fn input_variable(id: &str) -> String {
    id.chars()
        .map(|c| {
            if c.is_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect()
}

/// Where the `}` that ends `inner` stands, past those of nested variables.
fn closing_brace(inner: &str) -> Option<usize> {
    let mut open = 0_usize;
    let mut before = ' ';
    for (at, c) in inner.char_indices() {
        match c {
            '{' if before == '$' => open += 1,
            '}' if open == 0 => return Some(at),
            '}' => open -= 1,
            _ => {}
        }
        before = c;
    }
    None
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(is_name_char)
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

/// Why a string has no value.
enum VariableProblem {
    /// Only an editor knows the value.
    Editor { written: String },
    /// An input that nobody answered.
    Input { id: String, name: String },
    /// Behind `exec:` stands no command.
    Command { written: String },
    /// A value from elsewhere where there cannot be one.
    Misplaced { written: String, refused: FormUse },
    /// A value from elsewhere that cannot be had.
    NoValue {
        written: String,
        missing: MissingValue,
    },
    /// The key of secrets is no value.
    SecretKey,
    /// What stands between the braces is no name.
    Name { written: String },
    /// An entry of the store has no other variables than secrets.
    Stored { written: String },
    /// Defaults in defaults, without end.
    TooDeep { written: String },
    /// The closing brace is missing.
    Unclosed { written: String },
    /// The environment has no such variable, and there is no default.
    Unset { name: String },
}

impl VariableProblem {
    /// The text to mark; a prefix of it is enough.
    fn written(&self) -> &str {
        match self {
            Self::Command { written }
            | Self::Editor { written }
            | Self::Misplaced { written, .. }
            | Self::NoValue { written, .. }
            | Self::Name { written }
            | Self::Stored { written }
            | Self::TooDeep { written }
            | Self::Unclosed { written } => written,
            Self::Input { id, .. } => id,
            Self::SecretKey => SecretKeyPlace::VARIABLE,
            Self::Unset { name } => name,
        }
    }

    fn to_diagnostic(&self, path: &str, environment: &Environment) -> Diagnostic {
        match self {
            Self::Command { .. } => {
                Diagnostic::error(format!("`{path}` names no command that can be read"))
                    .help("write `${exec:PROGRAM ARGUMENTS}`, with quotes that are closed")
            }
            Self::Misplaced { refused, .. } => misplaced(path, *refused),
            Self::NoValue { missing, .. } => {
                Diagnostic::error(missing.message.clone()).help(missing.help.clone())
            }
            Self::Stored { .. } => Diagnostic::error(format!(
                "`{path}` uses a variable of the environment or a file"
            ))
            .help("entries of the store have `${secret:NAME}` only; write `$$` for one `$`"),
            Self::SecretKey => Diagnostic::error(format!(
                "`{path}` uses the variable with the key of secrets"
            ))
            .help("use another variable, or `${secret:NAME}`"),
            Self::Editor { .. } => Diagnostic::error(format!(
                "`{path}` uses a variable that only an editor can \
                    resolve"
            ))
            .help("use the value, or `${VARIABLE}`"),
            Self::Input { id, name } => Diagnostic::error(format!("the input `{id}` has no value"))
                .help(format!(
                    "set the variable {name}: the gateway cannot prompt"
                )),
            Self::Name { .. } => {
                Diagnostic::error(format!("`{path}` has a variable with an invalid name"))
                    .help("names consist of letters, digits and `_`; use `$${` for a literal `${`")
            }
            Self::TooDeep { .. } => Diagnostic::error(format!(
                "`{path}` nests more than {DEFAULT_DEPTH_MAX} defaults"
            )),
            Self::Unclosed { .. } => {
                Diagnostic::error(format!("`{path}` has a `${{` without `}}`"))
                    .help("close it, or use `$${` for a literal `${`")
            }
            // A token that was taken for a name.
            Self::Unset { name } if redact::is_generated(name) => {
                Diagnostic::error(format!("`{path}` names a variable that is not set"))
                    .help("write the name of a variable, not its value")
            }
            Self::Unset { name } => {
                let close = suggest::closest(name, environment.names());
                Diagnostic::error(format!("the variable {name} is not set")).help(match close {
                    Some(close) => format!("did you mean {close}?"),
                    None => format!("set it, or add a default: `${{{name}:...}}`"),
                })
            }
        }
    }
}

/// Says why no value from elsewhere may stand at `path`.
fn misplaced(path: &str, refused: FormUse) -> Diagnostic {
    let (why, help) = match refused {
        FormUse::Nested => (
            "has a secret inside of `${file:...}` or `${exec:...}`",
            "use `${VARIABLE}` there",
        ),
        FormUse::Setting => (
            "is read before secrets are",
            "use the value, or `${VARIABLE}`",
        ),
        FormUse::Allowed | FormUse::Displayed => (
            "is displayed, so that it cannot hold a secret",
            "use the value, or `${VARIABLE}`; secrets may stand in `args`, `auth`, `env`, `headers`, `proxy` and \
             `url` of servers, and in `keys` of agents",
        ),
    };
    Diagnostic::error(format!("`{path}` {why}")).help(help)
}
