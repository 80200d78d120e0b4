//! What an agent of the store may do, as it is written on a command line and shown to people.

pub(super) mod data;

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use globset::Glob;

use super::super::{
    data_dir::{CommandError, DataDir, unknown_name},
    output::eprint,
    qualified_names::QualifiedNames,
    suggest::did_you_mean,
};
use crate::{
    agent_change,
    config::{
        Budget, Config, InvalidBudget, InvalidRate, Policy, PolicyMode, Rate, Role, RuleKind,
        Terms, glob,
    },
    names::{ProfileName, ServerName},
    store::StoredAgent,
};
use data::ScanArg;

/// What an agent is and may do; what is not given stays as it is.
#[derive(Args, Debug)]
pub(super) struct Flags {
    /// Team whose budget it shares
    #[arg(long, value_name = "TEAM", conflicts_with = "no_team")]
    team: Option<String>,
    /// Remove it from its team
    #[arg(long)]
    no_team: bool,
    /// The same as `--role admin`, or `--role agent` where it is `false`
    #[arg(
        long,
        conflicts_with = "role",
        value_name = "BOOL",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "true"
    )]
    admin: Option<bool>,
    /// What of the admin API is open to it. An `admin` or `auditor` sees everything in /status and /metrics
    #[arg(long, value_name = "ROLE", value_parser = parse_role)]
    role: Option<Role>,
    /// What the lists below mean; `default` is the policy of the config. Default with lists:
    /// allowlist
    #[arg(long, value_name = "MODE")]
    policy: Option<Mode>,
    /// Globs over tools: exposed names or `server/tool`. Only the first `/` is special: `SERVER/*` is
    /// every tool of the server
    #[arg(long, value_name = "GLOB", num_args = 0.., value_parser = glob)]
    tools: Option<Vec<Glob>>,
    /// Globs over prompts
    #[arg(long, value_name = "GLOB", num_args = 0.., value_parser = glob)]
    prompts: Option<Vec<Glob>>,
    /// Globs over resource URIs
    #[arg(long, value_name = "GLOB", num_args = 0.., value_parser = glob)]
    resources: Option<Vec<Glob>>,
    /// Globs over vendor methods, `server/method`
    #[arg(long, value_name = "GLOB", num_args = 0.., value_parser = glob)]
    methods: Option<Vec<Glob>>,
    /// Globs over names of any kind that are refused whatever the lists say
    #[arg(long, value_name = "GLOB", num_args = 0.., value_parser = glob)]
    deny: Option<Vec<Glob>>,
    /// Spending limit in USD: AMOUNT/day, AMOUNT/month or AMOUNT/total (AMOUNT alone is total).
    /// Several limits all apply. `off` is unlimited, `default` the budget of the config
    #[arg(long, value_name = "LIMIT", num_args = 1.., value_parser = BudgetArg::parse)]
    budget: Option<Vec<BudgetArg>>,
    /// Rate limit over all tools, such as 120/1m, or 120/1m/20 for bursts of 20; or `default`
    #[arg(long, value_name = "RATE", value_parser = RateArg::parse)]
    rate: Option<RateArg>,
    /// Rate limit on each tool, in the same format
    #[arg(long, value_name = "RATE", value_parser = RateArg::parse)]
    tool_rate: Option<RateArg>,
    /// Scanning: a table as in the config, such as { results = { api_key = "redact" } }; `off` or
    /// `default`
    #[arg(long, value_name = "TABLE", value_parser = ScanArg::parse)]
    scan: Option<ScanArg>,
    /// Argument rules: tables as in the config, such as { name = "small", at = "/limit", max = 9,
    /// action = "allow" }. Without a value all rules are removed
    #[arg(long, value_name = "TABLE", num_args = 0.., value_parser = data::parse_table)]
    args: Option<Vec<String>>,
    /// Kinds of rules that only count what they would refuse: args, budget, policy, rate, scan
    #[arg(long, value_name = "RULE", num_args = 0.., value_parser = data::parse_rule_kind)]
    observe: Option<Vec<RuleKind>>,
    /// Profiles it may use, and no other route
    #[arg(long, value_name = "PROFILE", num_args = 1.., conflicts_with = "all_profiles")]
    profiles: Option<Vec<String>>,
    /// Allow every route
    #[arg(long)]
    all_profiles: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq, ValueEnum)]
enum Mode {
    All,
    Allowlist,
    Denylist,
    None,
    Default,
}

impl Mode {
    const fn policy(self) -> Option<PolicyMode> {
        match self {
            Self::All => Some(PolicyMode::All),
            Self::Allowlist => Some(PolicyMode::Allowlist),
            Self::Denylist => Some(PolicyMode::Denylist),
            Self::None => Some(PolicyMode::None),
            Self::Default => None,
        }
    }
}

fn parse_role(text: &str) -> Result<Role, String> {
    let mut roles = Role::ALL.into_iter();
    roles.find(|role| role.as_str() == text).ok_or_else(|| {
        let names = Role::ALL.map(Role::as_str).join(", ");
        format!("the roles are {names}")
    })
}

/// A budget on a command line.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(in crate::cli) enum BudgetArg {
    /// What holds for everybody.
    Default,
    Given(Budget),
    /// No limit.
    Off,
}

impl BudgetArg {
    /// Reads `2.50/day`, `10`, `off` or `default`.
    pub(in crate::cli) fn parse(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            "default" => Ok(Self::Default),
            _ => text
                .parse()
                .map(Self::Given)
                .map_err(|error: InvalidBudget| error.to_string()),
        }
    }

    /// What `limits` mean in terms.
    pub(in crate::cli) fn to_budgets(limits: &[Self]) -> Result<Option<Vec<Budget>>, CommandError> {
        match limits {
            [Self::Off] => return Ok(Some(Vec::new())),
            [Self::Default] => return Ok(None),
            _ => {}
        }
        let budgets = limits.iter().map(|limit| match limit {
            Self::Given(budget) => Ok(*budget),
            Self::Off | Self::Default => Err(CommandError::usage(
                "`off` and `default` cannot be combined with limits",
            )),
        });
        budgets.collect::<Result<_, _>>().map(Some)
    }
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum RateArg {
    Default,
    Given(Rate),
}

impl RateArg {
    /// What it means in terms.
    const fn to_rate(self) -> Option<Rate> {
        match self {
            Self::Default => None,
            Self::Given(rate) => Some(rate),
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        if text == "default" {
            return Ok(Self::Default);
        }
        let rate = text.parse().map(Self::Given);
        rate.map_err(|error: InvalidRate| error.to_string())
    }
}

/// Says that nothing limits what `team` spends, where teams have budgets: most often it is another
/// that is meant.
fn warn_if_team_unlimited(team: &str, data_dir: &DataDir) {
    let teams = &data_dir.config.governance.teams;
    if teams.is_empty() || teams.contains_key(team) {
        return;
    }
    let near = did_you_mean(team, teams.keys().map(|known| [known.as_str()]));
    let known = if near.is_empty() {
        let names: Vec<&str> = teams.keys().map(String::as_str).collect();
        format!("; these have one: {}", names.join(", "))
    } else {
        near
    };
    eprint(&format!(
        "warning: `[governance.teams]` has no budget for the team `{team}`{known}\n"
    ));
}

/// What a new agent may use, where no flag said it, and how that is changed.
pub(super) fn default_access_note(agent: &StoredAgent, data_dir: &DataDir) -> Option<String> {
    let name = &agent.name;
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    let written = if name.chars().all(plain) {
        name.clone()
    } else {
        format!("'{}'", name.replace('\'', "'\\''"))
    };
    let change = format!("tollbridge agents set {written} --tools 'SERVER/*'");
    let default = data_dir.config.governance.terms.policy.as_ref();
    let policy = agent.terms.policy.as_ref().or(default);
    let owner = if agent.terms.policy.is_some() {
        "its policy"
    } else {
        "the default policy"
    };
    let nothing = policy.is_none_or(|policy| match policy.mode {
        PolicyMode::None => true,
        PolicyMode::Allowlist => {
            let lists = [&policy.tools, &policy.prompts, &policy.resources];
            policy.methods.is_empty() && lists.into_iter().all(Vec::is_empty)
        }
        PolicyMode::All | PolicyMode::Denylist => false,
    });
    if nothing {
        let mode = policy.map_or("none", |policy| policy.mode.as_str());
        return Some(format!(
            "`{name}` may use nothing: {owner} is `{mode}` and lists nothing; `{change}` lets it call tools\n"
        ));
    }
    let (None, Some(policy)) = (&agent.terms.policy, policy) else {
        return None;
    };
    let may = if policy.mode == PolicyMode::All && policy.deny.is_empty() {
        "everything"
    } else {
        "what the default policy allows"
    };
    let shown = display_policy(&Terms {
        policy: Some(policy.clone()),
        ..Terms::default()
    });
    Some(format!(
        "`{name}` may use {may} ({shown}); use `{change}` to restrict it\n"
    ))
}

impl Flags {
    /// Writes what is given into `agent`, and says what that was.
    pub(super) fn apply(
        &self,
        agent: &mut StoredAgent,
        data_dir: &DataDir,
    ) -> Result<Vec<String>, CommandError> {
        let mut done = Vec::new();
        if let Some(team) = &self.team {
            agent_change::check_team(team).map_err(|fault| {
                CommandError::usage(format!(
                    "{fault}; use --no-team to remove the agent from its team"
                ))
            })?;
            warn_if_team_unlimited(team, data_dir);
            agent.team = Some(team.clone());
            done.push(format!("team {team}"));
        } else if self.no_team {
            agent.team = None;
            done.push("no team".to_owned());
        }
        let of_flag = |is_admin| if is_admin { Role::Admin } else { Role::Agent };
        if let Some(role) = self.role.or_else(|| self.admin.map(of_flag)) {
            agent.role = role;
            done.push(format!("role {role}"));
        }
        if let Some(names) = &self.profiles {
            agent.profiles = Some(parse_profiles(names, data_dir)?);
            done.push(format!("profiles {}", names.join(" ")));
        } else if self.all_profiles {
            agent.profiles = None;
            done.push("all profiles".to_owned());
        }
        let before = agent.terms.clone();
        self.apply_terms(&mut agent.terms, &mut done)?;
        if let Err(failure) = agent_change::check_terms(agent, &data_dir.config) {
            if agent.terms != before {
                return Err(failure.into());
            }
            // They were so before, and what is asked for is another matter.
            eprint(&format!(
                "warning: `{}` may use nothing: {failure}\n",
                agent.name
            ));
        }
        self.warn_unknown_servers(agent.terms.policy.as_ref(), &data_dir.config);
        Ok(done)
    }

    /// Says which globs of `policy` are about a server that there is none of, and about nothing else that has
    /// a `/`. Whether the others match something only servers know: `check --connect` asks them.
    fn warn_unknown_servers(&self, policy: Option<&Policy>, config: &Config) {
        // An allowlist takes nothing by an exposed name that reads like an item of another server.
        let refuses = policy.is_some_and(|policy| policy.mode == PolicyMode::Denylist);
        let qualified = QualifiedNames::of(config);
        let names = |first: &str| {
            qualified.may_start_alias(first) || refuses && qualified.may_start_name(first)
        };
        let uris = |_: &str| refuses && qualified.exposes_original_uris();
        let any = |first: &str| {
            qualified.may_start_alias(first)
                || qualified.may_start_name(first)
                || qualified.exposes_original_uris()
        };
        let servers = &config.servers;
        for (flag, globs, begins_other) in [
            ("--tools", &self.tools, &names as &dyn Fn(&str) -> bool),
            ("--prompts", &self.prompts, &names),
            ("--resources", &self.resources, &uris),
            ("--methods", &self.methods, &|_| refuses),
            ("--deny", &self.deny, &any),
        ] {
            for glob in globs.iter().flatten().map(Glob::glob) {
                let first = glob.split_once('/').map(|(first, _)| first);
                let parsed = first.and_then(|first| ServerName::parse(first).ok());
                let unknown = parsed.filter(|server| {
                    !servers.keys().any(|it| it.is_called(server.as_str()))
                        && !begins_other(server.as_str())
                });
                let Some(server) = unknown else { continue };
                let near = did_you_mean(server.as_str(), servers.keys().map(|it| [it.as_str()]));
                eprint(&format!(
                    "warning: {flag}: `{glob}` matches nothing: unknown server `{server}`{near}\n"
                ));
            }
        }
    }

    fn apply_terms(&self, terms: &mut Terms, done: &mut Vec<String>) -> Result<(), CommandError> {
        if self.policy.is_some() || self.has_lists() || self.deny.is_some() {
            terms.policy = self.updated_policy(terms.policy.take())?;
            done.push(format!("policy {}", display_policy(terms)));
        }
        if let Some(limits) = &self.budget {
            terms.budget = BudgetArg::to_budgets(limits)?;
            done.push(format!("budget {}", display_budgets(terms)));
        }
        if let Some(pace) = self.rate {
            terms.rate = pace.to_rate();
            done.push(format!("rate {}", display_rate(terms.rate)));
        }
        if let Some(pace) = self.tool_rate {
            terms.tool_rate = pace.to_rate();
            done.push(format!("tool rate {}", display_rate(terms.tool_rate)));
        }
        self.apply_data(terms, done)
    }

    fn apply_data(&self, terms: &mut Terms, done: &mut Vec<String>) -> Result<(), CommandError> {
        let or_none = |shown: String| {
            if shown.is_empty() {
                "none".to_owned()
            } else {
                shown
            }
        };
        if let Some(look) = &self.scan {
            terms.scan = look.to_scan()?;
            done.push(format!("scan {}", data::display_scan(terms)));
        }
        if let Some(tables) = &self.args {
            terms.args = data::argument_rules(tables)?;
            done.push(format!(
                "args {}",
                or_none(data::display_argument_rules(terms))
            ));
        }
        if let Some(rules) = &self.observe {
            terms.observe.clone_from(rules);
            done.push(format!(
                "observe {}",
                or_none(data::display_observed(terms))
            ));
        }
        Ok(())
    }

    fn has_lists(&self) -> bool {
        let lists = [&self.tools, &self.prompts, &self.resources, &self.methods];
        lists.into_iter().any(Option::is_some)
    }

    /// The policy that the flags make of the one that there was.
    fn updated_policy(&self, old: Option<Policy>) -> Result<Option<Policy>, CommandError> {
        let mode = match self.policy {
            Some(mode) => match mode.policy() {
                Some(mode) => mode,
                None if self.has_lists() || self.deny.is_some() => {
                    let message = "--policy default cannot be combined with lists";
                    return Err(CommandError::usage(message));
                }
                None => return Ok(None),
            },
            None => match &old {
                Some(old) => old.mode,
                None if self.has_lists() => PolicyMode::Allowlist,
                None => {
                    return Err(CommandError::usage("--deny requires --policy"));
                }
            },
        };
        if self.has_lists() && matches!(mode, PolicyMode::All | PolicyMode::None) {
            return Err(CommandError::usage(format!(
                "--tools, --prompts, --resources and --methods have no effect with policy `{}`; \
                 use --policy allowlist or --policy denylist",
                mode.as_str()
            )));
        }
        let mut policy = old.unwrap_or_default();
        policy.mode = mode;
        let lists = [
            (&mut policy.tools, &self.tools),
            (&mut policy.prompts, &self.prompts),
            (&mut policy.resources, &self.resources),
            (&mut policy.methods, &self.methods),
            (&mut policy.deny, &self.deny),
        ];
        for (list, given) in lists {
            if let Some(given) = given {
                list.clone_from(given);
            }
        }
        Ok(Some(policy))
    }
}

fn parse_profiles(names: &[String], data_dir: &DataDir) -> Result<Vec<ProfileName>, CommandError> {
    let known = data_dir.config.profiles.keys();
    let find = |name: &String| {
        agent_change::find_profile(name, &data_dir.config).map_err(|_| {
            let known: Vec<&str> = known.clone().map(ProfileName::as_str).collect();
            unknown_name("profile", name, &known, "profiles are set in the config")
        })
    };
    names.iter().map(find).collect()
}

/// The policy on one line.
pub(super) fn display_policy(terms: &Terms) -> String {
    let Some(policy) = &terms.policy else {
        return "default".to_owned();
    };
    let mut text = policy.mode.as_str().to_owned();
    let lists = [
        ("tools", &policy.tools),
        ("prompts", &policy.prompts),
        ("resources", &policy.resources),
        ("methods", &policy.methods),
        ("deny", &policy.deny),
    ];
    for (name, list) in lists {
        if !list.is_empty() {
            let globs: Vec<&str> = list.iter().map(Glob::glob).collect();
            write!(text, " {name}={}", globs.join(",")).expect("a String takes all");
        }
    }
    text
}

/// The budgets on one line.
pub(in crate::cli) fn display_budgets(terms: &Terms) -> String {
    match terms.budget.as_deref() {
        None => "default".to_owned(),
        Some([]) => "off".to_owned(),
        Some(budgets) => {
            let shown = |budget: &Budget| {
                format!("{}/{}", budget.limit.to_decimal(), budget.window.as_str())
            };
            budgets.iter().map(shown).collect::<Vec<_>>().join(" ")
        }
    }
}

/// The rate on one line.
pub(super) fn display_rate(rate: Option<Rate>) -> String {
    rate.map_or_else(
        || "default".to_owned(),
        |rate| {
            let per = humantime::format_duration(rate.per).to_string();
            format!("{}/{}/{}", rate.calls, per.replace(' ', ""), rate.burst)
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_as_they_are_shown() {
        let check = |text: &str, expect: Result<&str, &str>| {
            let read = BudgetArg::parse(text).map(|limit| {
                let budget = BudgetArg::to_budgets(&[limit]).expect("one alone");
                display_budgets(&Terms {
                    budget,
                    ..Terms::default()
                })
            });
            match expect {
                Ok(shown) => assert_eq!(read.as_deref(), Ok(shown), "{text}"),
                Err(part) => assert!(read.as_ref().is_err_and(|e| e.contains(part)), "{read:?}"),
            }
        };
        check("2.50/day", Ok("2.50/day"));
        check("10", Ok("10.00/total"));
        check("0.000001/month", Ok("0.000001/month"));
        check("off", Ok("off"));
        check("default", Ok("default"));
        check("2.50/week", Err("unknown window `week`"));
        check("-1", Err("cannot be negative"));
        check("0.0000001", Err("six decimal places"));
        assert!(BudgetArg::to_budgets(&[BudgetArg::Off, BudgetArg::Off]).is_err());
    }

    #[test]
    fn rates_are_read_as_they_are_shown() {
        let check = |text: &str, expect: Result<&str, &str>| {
            let read = RateArg::parse(text).map(|pace| display_rate(pace.to_rate()));
            match expect {
                Ok(shown) => assert_eq!(read.as_deref(), Ok(shown), "{text}"),
                Err(part) => assert!(read.as_ref().is_err_and(|e| e.contains(part)), "{read:?}"),
            }
        };
        check("120/1m", Ok("120/1m/120"));
        check(
            "120/1m30s/20",
            Ok("120/1m 30s/20".replace(' ', "").as_str()),
        );
        check("default", Ok("default"));
        check("1000000/24h", Ok("1000000/1day/1000000"));
        check("1000001/1m", Err("not a valid number of calls"));
        check("0/1m", Err("not a valid number of calls"));
        check("1/25h", Err("between 1s and 24h"));
        check("1/999ms", Err("between 1s and 24h"));
        check("120", Err("CALLS/PERIOD"));
        check("1/1m/1/1", Err("CALLS/PERIOD"));
    }
}
