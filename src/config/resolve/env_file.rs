//! Variables of a program that stand in a file of their own, `.env` as a rule.

use dotenvor::{Error, parse_str};
use indexmap::IndexMap;

use super::Resolver;
use crate::config::{
    LoadScope, Secret,
    diagnostics::{masked::is_masked, report::Diagnostic},
    model::transport::TransportSection,
    node::{ValuePath, join_path},
};

impl Resolver<'_> {
    /// The variables of the program that is `written`: those of `env` over those of `env_file`.
    pub(super) fn server_variables(
        &mut self,
        written: &TransportSection,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> IndexMap<String, Secret> {
        self.check_env(&written.env, &at.child("env"));
        let mut variables = match &written.env_file {
            // Nobody who looks into the data directory has to be able to read it.
            Some(file) if !self.context.scope.is_of_data_dir() || self.is_used(at, false) => {
                self.env_file(file, is_enabled, &at.child("env_file"))
            }
            Some(_) | None => IndexMap::new(),
        };
        variables.extend(written.env.clone());
        variables
    }

    /// What stands in the file `written`. What is wrong with it is no mistake for a server that does
    /// not run. No value is told: it may be a secret.
    fn env_file(
        &mut self,
        written: &str,
        is_enabled: bool,
        at: &ValuePath<'_>,
    ) -> IndexMap<String, Secret> {
        let path = self.path(written, at);
        self.named_files.push(path.clone());
        let read = (self.context.files.read)(&path).map_err(|error| error.to_string());
        let variables = read.and_then(|text| parse_env_file(&text));
        variables.unwrap_or_else(|why| {
            let found = format!("cannot read the file of `{}`", at.path());
            let diagnostic = if self.is_used(at, is_enabled) {
                Diagnostic::error(found)
            } else {
                Diagnostic::warning(found)
            };
            let place = at
                .is_quotable()
                .then(|| format!("looked at {}", path.display()));
            self.findings
                .add(diagnostic.at(at.span(), why).help_if(place));
            IndexMap::new()
        })
    }

    /// Whether somebody uses the server that `at` is of.
    pub(super) fn is_used(&self, at: &ValuePath<'_>, is_enabled: bool) -> bool {
        let is_of = |name: &str| {
            let rest = at.path().strip_prefix(&*join_path("servers", name));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        match self.context.scope {
            LoadScope::EnabledAnd(name) => is_enabled || is_of(name),
            LoadScope::DataDir => false,
            LoadScope::Enabled => is_enabled,
            LoadScope::OneServer(name) => is_of(name),
        }
    }
}

/// The variables of `text`, of which the last of each name counts; else what is wrong, and where.
fn parse_env_file(text: &str) -> Result<IndexMap<String, Secret>, String> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let entries = parse_str(text).map_err(|error| match error {
        Error::Parse(error) => format!("line {}: {}", error.line, error.kind),
        Error::Io(_) | Error::InvalidEncoding(_) => error.to_string(),
    })?;
    if let Some(entry) = entries.iter().find(|entry| entry.value.contains('\0')) {
        return Err(format!("line {}: a NUL character", entry.line));
    }
    if let Some(entry) = entries.iter().find(|entry| is_masked(&entry.value, &[])) {
        let line = entry.line;
        return Err(format!("line {line}: `***` in place of a secret"));
    }
    Ok(entries
        .into_iter()
        .map(|entry| (entry.key, Secret::new(entry.value)))
        .collect())
}
