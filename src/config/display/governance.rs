//! What governs calls, as a config would say it.

use indexmap::IndexMap;

use super::globs;
use crate::{
    config::{
        AgentConfig, ArgumentRule, Audit, Budget, GovernanceConfig, Policy, Profile, Scan, Terms,
        file,
        units::{Amount, Size, Time},
    },
    names::ProfileName,
};

/// `None` for what holds without the section: writing the section changes the defaults.
pub(super) fn governance(governance: &GovernanceConfig) -> Option<file::GovernanceSection> {
    if *governance == GovernanceConfig::default() {
        return None;
    }
    let teams = governance.teams.iter().map(|(name, budget)| {
        let budget = (!budget.is_empty()).then(|| budgets(budget));
        (name.clone(), file::Team { budget })
    });
    Some(file::GovernanceSection {
        auth: governance.auth,
        errors: governance.errors,
        error_codes: governance.error_codes,
        price: Amount(governance.price),
        charge_errors: governance.charge_errors,
        key_lifetime: Time(governance.key_lifetime.unwrap_or_default()),
        refusal_rate: file::RateSection::of(governance.refusal_rate),
        teams: teams.collect(),
        terms: terms(&governance.terms),
    })
}

pub(super) fn audit(audit: &Audit) -> file::AuditSection {
    file::AuditSection {
        enabled: audit.enabled,
        durability: audit.durability,
        arguments: audit.arguments,
        retention: Time(audit.retention.unwrap_or_default()),
        retention_size: audit.retention_size.map(Size),
        quota: audit.quota.map(Size),
    }
}

pub(super) fn agents(
    agents: &IndexMap<String, AgentConfig>,
) -> IndexMap<String, file::AgentSection> {
    let shown = agents.iter().map(|(name, agent)| {
        let profiles = agent.profiles.as_ref();
        let shown = file::AgentSection {
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
) -> IndexMap<String, file::ProfileSection> {
    let shown = profiles.iter().map(|(name, profile)| {
        let shown = file::ProfileSection {
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

fn terms(terms: &Terms) -> file::TermsSection {
    file::TermsSection {
        policy: terms.policy.as_ref().map(policy),
        budget: terms.budget.as_deref().map(budgets),
        rate: terms.rate.map(file::RateSection::of),
        tool_rate: terms.tool_rate.map(file::RateSection::of),
        scan: terms.scan.as_ref().map(scan),
        args: terms.args.iter().map(argument_rule).collect(),
        observe: terms.observe.clone(),
    }
}

fn policy(policy: &Policy) -> file::PolicySection {
    file::PolicySection {
        mode: policy.mode,
        tools: globs(&policy.tools),
        prompts: globs(&policy.prompts),
        resources: globs(&policy.resources),
        methods: globs(&policy.methods),
        deny: globs(&policy.deny),
    }
}

pub(super) fn budgets(budgets: &[Budget]) -> file::BudgetsSection {
    let shown = |budget: &Budget| file::BudgetSection {
        limit: Amount(budget.limit),
        window: budget.window,
    };
    match budgets {
        [] => file::BudgetsSection::Off(file::Off::Off),
        [only] => file::BudgetsSection::One(shown(only)),
        several => file::BudgetsSection::Many(several.iter().map(shown).collect()),
    }
}

pub(super) fn scan(scan: &Scan) -> file::ScanSection {
    file::ScanSection {
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

fn argument_rule(rule: &ArgumentRule) -> file::ArgumentRuleSection {
    let condition = &rule.condition;
    file::ArgumentRuleSection {
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
