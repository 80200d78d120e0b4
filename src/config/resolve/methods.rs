//! Methods that policies allow: what precedes the first `/` is a server.

use crate::{
    config::{
        Config, Policy, PolicyMode,
        diagnostics::report::{Diagnostic, Diagnostics},
        node::ValuePath,
    },
    names::ServerName,
};

/// Warns of globs that allow methods of a server that there is none of: such as `tasks/*`, by which the
/// methods `tasks/...` of all servers may have been meant.
pub(super) fn check(config: &Config, root: &ValuePath<'_>, findings: &mut Diagnostics) {
    let default = (root.key("governance"), &config.governance.terms);
    let agents = config.agents.iter();
    let agents = agents.map(|(name, agent)| (root.key("agents").key(name), &agent.terms));
    let profiles = config.profiles.iter();
    let profiles =
        profiles.map(|(name, profile)| (root.key("profiles").key(name.as_str()), &profile.terms));
    for (at, terms) in std::iter::once(default).chain(agents).chain(profiles) {
        let policy = terms.policy.as_ref();
        if let Some(policy) = policy.filter(|policy| policy.mode == PolicyMode::Allowlist) {
            let at = at.key("policy").key("methods");
            check_policy(policy, config, &at, findings);
        }
    }
}

fn check_policy(policy: &Policy, config: &Config, at: &ValuePath<'_>, findings: &mut Diagnostics) {
    for (index, glob) in policy.methods.iter().enumerate() {
        let text = glob.glob();
        let first = text.split_once('/').map(|(first, _)| first);
        let Some(server) = first.and_then(|first| ServerName::parse(first).ok()) else {
            continue;
        };
        if config.servers.contains_key(&server) {
            continue;
        }
        let at = at.item(index);
        findings.add(
            Diagnostic::warning(format!("`{}` allows no method", at.path()))
                .at(at.span(), format!("no server is called `{server}`"))
                .help(format!(
                    "what precedes the first `/` is the server; for methods of all servers write `*/{text}`"
                )),
        );
    }
}
