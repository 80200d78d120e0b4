//! What governs calls: `[governance]`, `[profiles.X]`, and the keys that servers share with them. Agents, scans and argument rules have files of their own.

use indexmap::IndexMap;

use super::Resolver;
use crate::{
    config::{
        Authentication, Budget, GovernanceConfig, Policy, PolicyMode, Profile, Terms, Window,
        Workspace,
        diagnostics::{report::Diagnostic, suggest},
        file,
        model::items::ItemKindSection,
        node::ValuePath,
    },
    money::Micros,
    names::{InvalidName, ProfileName},
};

mod agents;
mod arguments;
mod certificates;
mod scan;
mod workspaces;

/// What each agent may spend in total, where `[governance]` says nothing else.
const DEFAULT_BUDGET: Budget = Budget {
    limit: Micros::new(10_000_000),
    window: Window::Total,
};

/// Whether nobody can say who they are; false where it is not known what was meant.
pub(super) fn is_anonymous(file: &file::ConfigFile, root: &ValuePath<'_>) -> bool {
    let governance = file.governance.as_ref();
    let auth = governance.map_or(Authentication::ANONYMOUS, |governance| governance.auth);
    let at = root.child("governance").child("auth");
    let is_mistyped = at.is_written() && at.text() != Some("anonymous");
    auth == Authentication::ANONYMOUS && !is_mistyped
}

impl Resolver<'_> {
    pub(super) fn governance(
        &mut self,
        written: Option<GovernanceConfig>,
        (agents, workspaces): (
            &IndexMap<String, file::AgentSection>,
            &IndexMap<String, Workspace>,
        ),
        root: &ValuePath<'_>,
    ) -> GovernanceConfig {
        let Some(mut governance) = written else {
            return GovernanceConfig::default();
        };
        let at = root.child("governance");
        governance.is_auth_written = at.child("auth").is_written();
        if !self.context.is_incomplete {
            let mut known = self.empty_teams(&governance.teams, agents, root);
            known.extend(workspaces.keys().cloned());
            self.unknown_teams(&governance.teams, agents, &known, root);
        }
        for (name, workspace) in workspaces.iter().filter(|(_, it)| !it.budget.is_empty()) {
            let budget = workspace.budget.clone();
            governance.teams.insert(name.clone(), budget);
        }
        let terms = &mut governance.terms;
        self.check_terms(terms, &at);
        terms.policy.get_or_insert_with(|| Policy {
            mode: if governance.auth.identifies_callers() {
                PolicyMode::None
            } else {
                PolicyMode::All
            },
            ..Policy::default()
        });
        terms.budget.get_or_insert_with(|| vec![DEFAULT_BUDGET]);
        governance
    }

    /// Warns of teams that no agent is in, and gives the names that several agents have in their
    /// place. What only one has is most likely a slip of its own, and told of where it is written.
    fn empty_teams(
        &mut self,
        teams: &IndexMap<String, Vec<Budget>>,
        agents: &IndexMap<String, file::AgentSection>,
        root: &ValuePath<'_>,
    ) -> Vec<String> {
        let at = root.child("governance").child("teams");
        let named = || agents.values().filter_map(|agent| agent.team.as_deref());
        let is_shared = |team: &&str| {
            !teams.contains_key(*team) && named().filter(|other| other == team).count() > 1
        };
        let mut reported_teams = Vec::new();
        for name in teams.keys() {
            if named().any(|team| team == name) {
                continue;
            }
            let close = suggest::closest(name, named().filter(is_shared));
            if close.is_none() && named().any(|team| similar_team(team, teams) == Some(name)) {
                continue;
            }
            reported_teams.extend(close.map(str::to_owned));
            self.findings.add(
                Diagnostic::warning(format!("team `{name}` has no members"))
                    .at(
                        at.child(name).key_span(),
                        "no configured agent has this `team`",
                    )
                    .help_if(close.map(|close| format!("did you mean `{close}`?"))),
            );
        }
        reported_teams
    }

    /// Warns of agents whose team has no budget although teams have: most often it is another that
    /// is meant. Those of `known` were reported already, or are workspaces.
    fn unknown_teams(
        &mut self,
        teams: &IndexMap<String, Vec<Budget>>,
        agents: &IndexMap<String, file::AgentSection>,
        known: &[String],
        root: &ValuePath<'_>,
    ) {
        for (name, agent) in agents {
            let Some(team) = &agent.team else { continue };
            if teams.contains_key(team) || known.contains(team) {
                continue;
            }
            let at = root.child("agents").child(name).child("team");
            let (close, finding) = if teams.is_empty() {
                let Some(close) = likely_team_typo(team, agents) else {
                    continue;
                };
                let finding = Diagnostic::warning(format!("team `{team}` has only one member"));
                (Some(close), finding.at(at.span(), "the only member"))
            } else {
                let close = similar_team(team, teams);
                let finding = Diagnostic::warning(format!("team `{team}` has no budget"));
                let finding = finding.at(at.span(), "not defined in `[governance.teams]`");
                (close, finding)
            };
            let help = close.map(|close| format!("did you mean `{close}`?"));
            self.findings.add(finding.help_if(help));
        }
    }

    /// Reports what is wrong with the terms of somebody.
    pub(super) fn check_terms(&mut self, terms: &Terms, at: &ValuePath<'_>) {
        if let Some(policy) = &terms.policy {
            self.warn_of_empty_policy(policy, &at.child("policy"));
        }
        if let Some(scan) = &terms.scan {
            self.check_scan(scan, &at.child("scan"));
        }
        self.check_argument_rules(&terms.args, &at.child("args"));
    }

    fn warn_of_empty_policy(&mut self, policy: &Policy, at: &ValuePath<'_>) {
        let lists = ["tools", "prompts", "resources", "methods"].map(|list| at.child(list));
        let all_or_nothing = match policy.mode {
            PolicyMode::All => Some("everything is allowed"),
            PolicyMode::Allowlist | PolicyMode::Denylist => None,
            PolicyMode::None => Some("nothing is allowed"),
        };
        for (why, list) in all_or_nothing.iter().flat_map(|why| {
            let written = lists.iter().filter(|list| list.has_content());
            written.map(move |list| (why, list))
        }) {
            self.findings.add(
                Diagnostic::warning(format!("`{}` has no effect", list.path()))
                    .at(list.key_span(), format!("{why} with this `mode`"))
                    .help("use `mode = \"allowlist\"` or `mode = \"denylist\"`"),
            );
        }
        if policy.mode == PolicyMode::Allowlist
            && !lists.iter().any(ValuePath::is_written)
            && !self.context.is_incomplete
        {
            self.findings.add(
                Diagnostic::warning(format!("`{}` allows nothing", at.path()))
                    .at(at.full_span(), "no list given")
                    .help(
                        "add `tools = [\"SERVER/*\"]`, or use `mode = \"none\"` to allow \
                        nothing",
                    ),
            );
        }
    }

    pub(super) fn profiles(
        &mut self,
        profiles: IndexMap<String, Profile>,
        tags: &[String],
        at: &ValuePath<'_>,
    ) -> IndexMap<ProfileName, Profile> {
        let mut resolved = IndexMap::new();
        for (name, profile) in profiles {
            let at = at.child(&name);
            match ProfileName::parse(&name) {
                Ok(name) => {
                    self.check_profile(&profile, tags, &at);
                    resolved.insert(name, profile);
                }
                Err(error) => {
                    let label = match error {
                        InvalidName::Character { found } => {
                            format!("`{found}` is not allowed")
                        }
                        InvalidName::Length { found } => {
                            format!("has {found} characters; 1 to 64 are allowed")
                        }
                        InvalidName::AgentPrefix => error.to_string(),
                    };
                    self.findings.add(
                        Diagnostic::error("invalid profile name")
                            .at(at.key_span(), label)
                            .help("names are part of URLs: for example `read-only`"),
                    );
                }
            }
        }
        resolved
    }

    fn check_profile(&mut self, profile: &Profile, tags: &[String], at: &ValuePath<'_>) {
        if let Some(wanted) = &profile.tags {
            self.warn_of_unknown_tags(wanted, tags, &at.child("tags"));
        }
        self.check_renames(&profile.rename, ItemKindSection::Tools, &at.child("rename"));
        self.check_terms(&profile.terms, at);
    }

    /// Warns of tags that select nothing.
    fn warn_of_unknown_tags(&mut self, wanted: &[String], known: &[String], at: &ValuePath<'_>) {
        for (index, tag) in wanted.iter().enumerate() {
            if known.contains(tag) || self.context.is_incomplete {
                continue;
            }
            let item = at.item_at(index);
            let close = suggest::closest(tag, known.iter().map(String::as_str));
            self.findings.add(
                Diagnostic::warning(format!(
                    "no server has the tag \
                    {}",
                    super::quoted_or_hidden(tag, &item)
                ))
                .at(item.span(), "selects nothing")
                .help_if(close.map(|close| format!("did you mean \"{close}\"?"))),
            );
        }
    }
}

/// The team of `teams`, which do not have `team`, that is most likely meant by it.
fn similar_team<'t>(team: &str, teams: &'t IndexMap<String, Vec<Budget>>) -> Option<&'t str> {
    if teams.contains_key(team) {
        return None;
    }
    let mut known = teams.keys().map(String::as_str);
    // How many letters may be wrong depends on the word: the longer of the two decides.
    suggest::closest(team, known.clone())
        .or_else(|| known.find(|name| suggest::closest(name, [team]).is_some()))
}

/// The team of several agents that the only one in `team` most likely means. Names such as `a1` and
/// `a2` are near each other on purpose.
fn likely_team_typo<'a>(
    team: &str,
    agents: &'a IndexMap<String, file::AgentSection>,
) -> Option<&'a str> {
    let named = || agents.values().filter_map(|agent| agent.team.as_deref());
    let count = |name: &str| named().filter(|other| *other == name).count();
    let but_last = |name: &str| name.chars().rev().skip(1).collect::<String>();
    if count(team) > 1 {
        return None;
    }
    let is_near = |name: &&str| count(name) > 1 && but_last(name) != but_last(team);
    suggest::closest(team, named().filter(is_near))
}
