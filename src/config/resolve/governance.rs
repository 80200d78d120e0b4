//! What governs calls: `[governance]`, `[profiles.X]`, `[audit]`, and the keys that servers share
//! with them. Agents, scans and argument rules have files of their own.

use std::{num::NonZeroU32, time::Duration};

use indexmap::IndexMap;

use super::Resolver;
use crate::{
    config::{
        Audit, Authentication, Budget, GovernanceConfig, Policy, PolicyMode, Profile, Rate, Terms,
        Window,
        diagnostics::{report::Diagnostic, suggest},
        file::{self, ItemKindSection},
        node::ValuePath,
        units::{Size, Time},
    },
    money::Micros,
    names::{InvalidServerName, ProfileName},
};

mod agents;
mod arguments;
mod scan;

/// Records are kept, and keys are good for, at least this long, so that they can be used at all.
const TIME_MIN: Duration = Duration::from_secs(1);

/// The longest of these times, unless it is for ever.
const DAYS_MAX: u64 = 36_500;

/// A quota of the audit has room for what is kept for allowed calls, and for segments that may go.
const AUDIT_BYTES_MIN: u64 = 16 * Size::MIB;

/// What each agent may spend in total, where `[governance]` says nothing else.
const DEFAULT_BUDGET: Budget = Budget {
    limit: Micros::new(10_000_000),
    window: Window::Total,
};

/// Whether nobody can say who they are; false where it is not known what was meant.
pub(super) fn is_anonymous(file: &file::ConfigFile, root: &ValuePath<'_>) -> bool {
    let governance = file.governance.as_ref();
    let auth = governance.map_or(Authentication::Anonymous, |governance| governance.auth);
    let at = root.child("governance").child("auth");
    let is_mistyped = at.is_written() && at.text() != Some("anonymous");
    auth == Authentication::Anonymous && !is_mistyped
}

impl Resolver<'_> {
    pub(super) fn governance(
        &mut self,
        written: Option<file::GovernanceSection>,
        agents: &IndexMap<String, file::AgentSection>,
        root: &ValuePath<'_>,
    ) -> GovernanceConfig {
        let Some(governance) = written else {
            return GovernanceConfig::default();
        };
        let mode = match governance.auth {
            Authentication::Anonymous => PolicyMode::All,
            Authentication::Keys => PolicyMode::None,
        };
        let mut terms = self.terms(governance.terms, &root.child("governance"));
        terms.policy.get_or_insert_with(|| Policy {
            mode,
            ..Policy::default()
        });
        terms.budget.get_or_insert_with(|| vec![DEFAULT_BUDGET]);
        GovernanceConfig {
            auth: governance.auth,
            is_auth_written: root.child("governance").child("auth").is_written(),
            errors: governance.errors,
            error_codes: governance.error_codes,
            price: governance.price.0,
            charge_errors: governance.charge_errors,
            key_lifetime: self.time_or_unlimited(
                governance.key_lifetime,
                &root.child("governance").child("key_lifetime"),
            ),
            refusal_rate: self.rate(
                governance.refusal_rate,
                &root.child("governance").child("refusal_rate"),
            ),
            teams: self.teams(governance.teams, agents, root),
            terms,
        }
    }

    fn teams(
        &mut self,
        teams: IndexMap<String, file::Team>,
        agents: &IndexMap<String, file::AgentSection>,
        root: &ValuePath<'_>,
    ) -> IndexMap<String, Vec<Budget>> {
        if !self.context.is_incomplete {
            let slips = self.empty_teams(&teams, agents, root);
            self.unknown_teams(&teams, agents, &slips, root);
        }
        let budgets = |team: file::Team| team.budget.map(budgets).unwrap_or_default();
        teams
            .into_iter()
            .map(|(name, team)| (name, budgets(team)))
            .collect()
    }

    /// Warns of teams that no agent is in, and gives the names that several agents have in their
    /// place. What only one has is most likely a slip of its own, and told of where it is written.
    fn empty_teams(
        &mut self,
        teams: &IndexMap<String, file::Team>,
        agents: &IndexMap<String, file::AgentSection>,
        root: &ValuePath<'_>,
    ) -> Vec<String> {
        let at = root.child("governance").child("teams");
        let named = || agents.values().filter_map(|agent| agent.team.as_deref());
        let is_shared = |team: &&str| {
            !teams.contains_key(*team) && named().filter(|other| other == team).count() > 1
        };
        let mut slips = Vec::new();
        for name in teams.keys() {
            if named().any(|team| team == name) {
                continue;
            }
            let close = suggest::closest(name, named().filter(is_shared));
            if close.is_none() && named().any(|team| similar_team(team, teams) == Some(name)) {
                continue;
            }
            slips.extend(close.map(str::to_owned));
            self.findings.add(
                Diagnostic::warning(format!("team `{name}` has no members"))
                    .at(
                        at.child(name).key_span(),
                        "no configured agent has this `team`",
                    )
                    .help_if(close.map(|close| format!("did you mean `{close}`?"))),
            );
        }
        slips
    }

    /// Warns of agents whose team has no budget although teams have: most often it is another that
    /// is meant. Those of `slips` were reported already.
    fn unknown_teams(
        &mut self,
        teams: &IndexMap<String, file::Team>,
        agents: &IndexMap<String, file::AgentSection>,
        slips: &[String],
        root: &ValuePath<'_>,
    ) {
        for (name, agent) in agents {
            let Some(team) = &agent.team else { continue };
            if teams.contains_key(team) || slips.contains(team) {
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

    pub(super) fn terms(&mut self, terms: file::TermsSection, at: &ValuePath<'_>) -> Terms {
        Terms {
            policy: terms
                .policy
                .map(|policy| self.policy(&policy, &at.child("policy"))),
            budget: terms.budget.map(budgets),
            rate: terms.rate.map(|rate| self.rate(rate, &at.child("rate"))),
            tool_rate: terms
                .tool_rate
                .map(|rate| self.rate(rate, &at.child("tool_rate"))),
            scan: terms.scan.map(|scan| self.scan(scan, &at.child("scan"))),
            args: self.argument_rules(terms.args, &at.child("args")),
            observe: terms.observe,
        }
    }

    fn policy(&mut self, policy: &file::PolicySection, at: &ValuePath<'_>) -> Policy {
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
        let [tools, prompts, resources, methods] = lists;
        Policy {
            mode: policy.mode,
            tools: self.globs(&policy.tools, &tools),
            prompts: self.globs(&policy.prompts, &prompts),
            resources: self.globs(&policy.resources, &resources),
            methods: self.globs(&policy.methods, &methods),
            deny: self.globs(&policy.deny, &at.child("deny")),
        }
    }

    pub(super) fn rate(&mut self, rate: file::RateSection, at: &ValuePath<'_>) -> Rate {
        let calls = self.check_range(rate.calls, 1, Rate::CALLS_MAX, &at.child("calls"));
        let burst = match rate.burst {
            Some(burst) => self.check_range(burst, 1, Rate::CALLS_MAX, &at.child("burst")),
            None => calls,
        };
        let positive = |count| NonZeroU32::new(count).unwrap_or(NonZeroU32::MIN);
        Rate {
            calls: positive(calls),
            per: self.time(rate.per, Rate::PER_MIN, &at.child("per")),
            burst: positive(burst),
        }
    }

    pub(super) fn profiles(
        &mut self,
        profiles: IndexMap<String, file::ProfileSection>,
        tags: &[String],
        at: &ValuePath<'_>,
    ) -> IndexMap<ProfileName, Profile> {
        let mut resolved = IndexMap::new();
        for (name, profile) in profiles {
            let at = at.child(&name);
            match ProfileName::parse(&name) {
                Ok(name) => {
                    resolved.insert(name, self.profile(profile, tags, &at));
                }
                Err(error) => {
                    let label = match error {
                        InvalidServerName::Character { found } => {
                            format!("`{found}` is not allowed")
                        }
                        InvalidServerName::Length { found } => {
                            format!("has {found} characters; 1 to 64 are allowed")
                        }
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

    fn profile(
        &mut self,
        profile: file::ProfileSection,
        tags: &[String],
        at: &ValuePath<'_>,
    ) -> Profile {
        if let Some(wanted) = &profile.tags {
            self.check_tags(wanted, tags, &at.child("tags"));
        }
        self.check_renames(&profile.rename, ItemKindSection::Tools, &at.child("rename"));
        let mut globs = |list: Option<Vec<String>>, key: &str| {
            list.map(|list| self.globs(&list, &at.child(key)))
        };
        Profile {
            tools: globs(profile.tools, "tools"),
            prompts: globs(profile.prompts, "prompts"),
            resources: globs(profile.resources, "resources"),
            tags: profile.tags,
            rename: profile.rename,
            describe: profile.describe,
            terms: self.terms(profile.terms, at),
        }
    }

    /// Warns of tags that select nothing.
    fn check_tags(&mut self, wanted: &[String], known: &[String], at: &ValuePath<'_>) {
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

    pub(super) fn audit(&mut self, audit: file::AuditSection, at: &ValuePath<'_>) -> Audit {
        let sizes = [
            ("retention_size", audit.retention_size),
            ("quota", audit.quota),
        ];
        for (key, size) in sizes {
            if size.is_some_and(|size| size.0 < AUDIT_BYTES_MIN) {
                let label = format!("must be at least {}", Size(AUDIT_BYTES_MIN));
                self.report_invalid(&at.child(key), &label);
            }
        }
        Audit {
            enabled: audit.enabled,
            durability: audit.durability,
            arguments: audit.arguments,
            retention: self.time_or_unlimited(audit.retention, &at.child("retention")),
            retention_size: audit.retention_size.map(|size| size.0),
            quota: audit.quota.map(|size| size.0),
        }
    }

    /// A time of which 0 is none.
    fn time_or_unlimited(&mut self, time: Time, at: &ValuePath<'_>) -> Option<Duration> {
        let longest = Time::days(DAYS_MAX);
        if !time.0.is_zero() && !(TIME_MIN..=longest.0).contains(&time.0) {
            let label = format!("must be 0, or between {} and {longest}", Time(TIME_MIN));
            self.report_invalid(at, &label);
        }
        Some(time.0).filter(|time| !time.is_zero())
    }
}

/// The team of `teams`, which do not have `team`, that is most likely meant by it.
fn similar_team<'t>(team: &str, teams: &'t IndexMap<String, file::Team>) -> Option<&'t str> {
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

/// The budgets that `written` stands for.
pub(super) fn budgets(written: file::BudgetsSection) -> Vec<Budget> {
    let budget = |budget: file::BudgetSection| Budget {
        limit: budget.limit.0,
        window: budget.window,
    };
    match written {
        file::BudgetsSection::Off(file::Off::Off) => Vec::new(),
        file::BudgetsSection::One(one) => vec![budget(one)],
        file::BudgetsSection::Many(many) => many.into_iter().map(budget).collect(),
    }
}
