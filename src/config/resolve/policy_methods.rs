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
pub(super) fn check(config: &Config, root: &ValuePath<'_>, diagnostics: &mut Diagnostics) {
    let default = (root.child("governance"), &config.governance.terms);
    let agents = config.agents.iter();
    let agents = agents.map(|(name, agent)| (root.child("agents").child(name), &agent.terms));
    let profiles = config.profiles.iter();
    let profiles = profiles
        .map(|(name, profile)| (root.child("profiles").child(name.as_str()), &profile.terms));
    for (at, terms) in std::iter::once(default).chain(agents).chain(profiles) {
        let policy = terms.policy.as_ref();
        if let Some(policy) = policy.filter(|policy| policy.mode == PolicyMode::Allowlist) {
            let at = at.child("policy").child("methods");
            check_policy(policy, config, &at, diagnostics);
        }
    }
}

fn check_policy(
    policy: &Policy,
    config: &Config,
    at: &ValuePath<'_>,
    diagnostics: &mut Diagnostics,
) {
    for (index, glob) in policy.methods.iter().enumerate() {
        let text = glob.glob();
        let first = text.split_once('/').map(|(first, _)| first);
        let Some(server) = first.and_then(|first| ServerName::parse(first).ok()) else {
            continue;
        };
        if config
            .servers
            .keys()
            .any(|it| it.is_called(server.as_str()))
        {
            continue;
        }
        let at = at.item_at(index);
        diagnostics.add(
            Diagnostic::warning(format!("`{}` allows no method", at.path()))
                .at(at.span(), format!("unknown server `{server}`"))
                .help(format!(
                    "the part before the first `/` is the server; use `*/{text}` for methods of \
                     all servers"
                )),
        );
    }
}
