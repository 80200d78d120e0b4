//! Argument rules about tools whose arguments are not held to their schemas, where somebody said so.

use globset::Glob;

use crate::{
    config::{
        Config, Terms, Validate,
        diagnostics::report::{Diagnostic, Diagnostics},
        node::ValuePath,
    },
    names::ServerName,
};

/// Warns of servers that take arguments of the wrong type although rules are about them.
pub(super) fn check(config: &Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    for (name, server) in config.servers.iter().filter(|(_, server)| server.enabled) {
        let says = match server.validate {
            Validate::Off => "off",
            Validate::Report => "report",
            Validate::Auto | Validate::Refuse => continue,
        };
        let terms = std::iter::once(&config.governance.terms)
            .chain(config.profiles.values().map(|profile| &profile.terms))
            .chain(config.agents.values().map(|agent| &agent.terms));
        let Some(rule) = terms.flat_map(|terms| enforcing_rules(terms, name)).next() else {
            continue;
        };
        let at = root.child("servers").child(name.as_str()).child("validate");
        diagnostics.add(
            Diagnostic::warning(format!(
                "the argument rule `{rule}` can be bypassed with values of the wrong type"
            ))
            .at(at.span(), format!("\"{says}\" accepts them"))
            .help("remove the key, or use \"refuse\""),
        );
    }
}

/// The names of rules that may refuse calls of tools of `server`.
fn enforcing_rules<'t>(terms: &'t Terms, server: &'t ServerName) -> impl Iterator<Item = &'t str> {
    let rules = terms.args.iter().filter(|rule| !rule.observe);
    let about = rules.filter(|rule| rule.tools.iter().any(|glob| may_match(glob, server)));
    about.map(|rule| rule.name.as_str())
}

/// Whether a glob may match tools of `server`; one of exposed names may match those of all.
fn may_match(glob: &Glob, server: &ServerName) -> bool {
    let Some((of_server, _)) = glob.glob().split_once('/') else {
        return true;
    };
    let of_server = Glob::new(of_server).map(|glob| glob.compile_matcher());
    of_server.map_or(true, |of_server| {
        of_server.is_match(server.as_str()) || of_server.is_match(server.local())
    })
}
