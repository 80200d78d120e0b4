//! What governs calls, as a config would say it.

use indexmap::IndexMap;

use super::globs;
use crate::{
    config::{
        Agent, ArgumentRule, Audit, Budget, Governance, Policy, Profile, Scan, Terms, file,
        units::{Amount, Size, Time},
    },
    names::ProfileName,
};

/// `None` for what holds without the section: writing the section changes the defaults.
pub(super) fn governance(governance: &Governance) -> Option<file::Governance> {
    if *governance == Governance::default() {
        return None;
    }
    let teams = governance.teams.iter().map(|(name, budget)| {
        let budget = (!budget.is_empty()).then(|| budgets(budget));
        (name.clone(), file::Team { budget })
    });
    Some(file::Governance {
        auth: governance.auth,
        errors: governance.errors,
        error_codes: governance.error_codes,
        price: Amount(governance.price),
        charge_errors: governance.charge_errors,
        key_lifetime: Time(governance.key_lifetime.unwrap_or_default()),
        refusals: file::Rate::of(governance.refusals),
        teams: teams.collect(),
        terms: terms(&governance.terms),
    })
}

pub(super) fn audit(audit: &Audit) -> file::Audit {
    file::Audit {
        enabled: audit.enabled,
        durability: audit.durability,
        arguments: audit.arguments,
        retention: Time(audit.retention.unwrap_or_default()),
        retention_size: audit.retention_size.map(Size),
        quota: audit.quota.map(Size),
    }
}

pub(super) fn agents(agents: &IndexMap<String, Agent>) -> IndexMap<String, file::Agent> {
    let shown = agents.iter().map(|(name, agent)| {
        let profiles = agent.profiles.as_ref();
        let shown = file::Agent {
            id: Some(agent.id.to_string()),
            team: agent.team.clone(),
            enabled: agent.enabled,
            admin: agent.admin,
            keys: agent.keys.clone(),
            profiles: profiles.map(|names| names.iter().map(ToString::to_string).collect()),
            terms: terms(&agent.terms),
        };
        (name.clone(), shown)
    });
    shown.collect()
}

pub(super) fn profiles(
    profiles: &IndexMap<ProfileName, Profile>,
) -> IndexMap<String, file::Profile> {
    let shown = profiles.iter().map(|(name, profile)| {
        let shown = file::Profile {
            tools: profile.tools.as_deref().map(globs),
            prompts: profile.prompts.as_deref().map(globs),
            resources: profile.resources.as_deref().map(globs),
            tags: profile.tags.clone(),
            rename: profile.rename.clone(),
            describe: profile.describe.clone(),
            terms: terms(&profile.terms),
        };
        (name.to_string(), shown)
    });
    shown.collect()
}

fn terms(terms: &Terms) -> file::Terms {
    file::Terms {
        policy: terms.policy.as_ref().map(policy),
        budget: terms.budget.as_deref().map(budgets),
        rate: terms.rate.map(file::Rate::of),
        tool_rate: terms.tool_rate.map(file::Rate::of),
        scan: terms.scan.as_ref().map(scan),
        args: terms.args.iter().map(argument_rule).collect(),
        observe: terms.observe.clone(),
    }
}

fn policy(policy: &Policy) -> file::Policy {
    file::Policy {
        mode: policy.mode,
        tools: globs(&policy.tools),
        prompts: globs(&policy.prompts),
        resources: globs(&policy.resources),
        methods: globs(&policy.methods),
        deny: globs(&policy.deny),
    }
}

pub(super) fn budgets(budgets: &[Budget]) -> file::Budgets {
    let shown = |budget: &Budget| file::Budget {
        limit: Amount(budget.limit),
        window: budget.window,
    };
    match budgets {
        [] => file::Budgets::Off(file::Off::Off),
        [only] => file::Budgets::One(shown(only)),
        several => file::Budgets::Many(several.iter().map(shown).collect()),
    }
}

pub(super) fn scan(scan: &Scan) -> file::Scan {
    file::Scan {
        arguments: scan.arguments.clone(),
        results: scan.results.clone(),
        resources: scan.resources.clone(),
        prompts: scan.prompts.clone(),
        notifications: scan.notifications.clone(),
        mask: scan.mask,
        countries: scan.countries.clone(),
        custom: scan.custom.clone(),
        dictionaries: scan.dictionaries.clone(),
        detectors: scan.detectors.clone(),
        allow: scan.allow.clone(),
        base64: scan.base64.clone(),
    }
}

fn argument_rule(rule: &ArgumentRule) -> file::ArgumentRule {
    let condition = &rule.condition;
    file::ArgumentRule {
        name: rule.name.clone(),
        tools: globs(&rule.tools),
        at: rule.at.clone(),
        equals: condition.equals.clone(),
        one_of: condition.one_of.clone(),
        matches: condition.matches.clone(),
        min: condition.min,
        max: condition.max,
        action: rule.action,
        observe: rule.observe,
    }
}
