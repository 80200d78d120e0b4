//! The list of all keys that govern, each with the test that shows its effect.

use std::collections::BTreeSet;

use crate::{
    audit_records, budgets, client_certificates, governing::GOVERNING, identity, owners,
    refusal_backoff, refusals, rules, scanning, tokens,
};

/// What an agent, a profile and the default may say, each with its test at every level.
const TERMS: &[(&str, fn())] = &[
    ("args", rules::conditions_of_arguments),
    ("args.action", rules::conditions_of_arguments),
    ("args.at", rules::conditions_of_arguments),
    ("args.equals", rules::conditions_of_arguments),
    ("args.matches", rules::conditions_of_arguments),
    ("args.max", rules::conditions_of_arguments),
    ("args.min", rules::conditions_of_arguments),
    ("args.name", rules::conditions_of_arguments),
    ("args.observe", rules::tools_of_a_rule_and_its_observation),
    ("args.one_of", rules::conditions_of_arguments),
    ("args.tools", rules::tools_of_a_rule_and_its_observation),
    ("observe", rules::observe),
    ("policy.deny", rules::policies),
    ("policy.methods", rules::policies),
    ("policy.mode", rules::policies),
    ("policy.prompts", rules::policies),
    ("policy.resources", rules::policies),
    ("policy.tools", rules::policies),
    ("tool_rate", rules::tool_rate),
    ("tool_rate.burst", rules::tool_rate),
    ("tool_rate.calls", rules::tool_rate),
    ("tool_rate.per", rules::tool_rate),
];

/// What a server may say too.
const SHARED: &[(&str, fn())] = &[
    ("budget", budgets::a_budget_of_any_level_holds),
    ("budget.limit", budgets::a_budget_of_any_level_holds),
    ("budget.window", budgets::a_window_of_any_level_is_named),
    ("rate", rules::rate_burst),
    ("rate.burst", rules::rate_burst),
    ("rate.calls", rules::rate_calls),
    ("rate.per", rules::rate_per),
    ("scan.allow", scanning::allow),
    ("scan.arguments.*", scanning::arguments),
    ("scan.base64", scanning::base64),
    ("scan.countries", scanning::countries),
    ("scan.custom.*", scanning::custom),
    ("scan.detectors", scanning::detectors),
    ("scan.detectors.check", scanning::detectors),
    ("scan.detectors.class", scanning::detectors),
    ("scan.detectors.entropy", scanning::detectors),
    ("scan.detectors.id", scanning::detectors),
    ("scan.detectors.mixed", scanning::detectors),
    ("scan.detectors.near", scanning::detectors),
    ("scan.detectors.pattern", scanning::detectors),
    ("scan.dictionaries.*", scanning::dictionaries),
    ("scan.mask", scanning::mask),
    ("scan.notifications.*", scanning::notifications),
    ("scan.prompts.*", scanning::prompts),
    ("scan.resources.*", scanning::resources),
    ("scan.results.*", scanning::results),
];

/// All others.
const COMPLEX_KEYWORDS: &[(&str, fn())] = &[
    ("agents.*.admin", identity::only_admins_see_everything),
    ("agents.*.role", identity::auditors_see_everything),
    ("agents.match.role", tokens::rules_say_what_users_may_do),
    (
        "agents.*.certificates",
        client_certificates::a_certificate_is_that_of_an_agent,
    ),
    ("agents.match", tokens::rules_say_what_users_may_do),
    (
        "agents.match.agent",
        tokens::a_token_of_the_issuer_lets_its_user_in,
    ),
    ("agents.match.claims.*", tokens::rules_say_what_users_may_do),
    (
        "agents.match.policy.deny",
        tokens::rules_say_what_users_may_do,
    ),
    (
        "agents.match.policy.methods",
        tokens::rules_say_what_users_may_do,
    ),
    (
        "agents.match.policy.mode",
        tokens::rules_say_what_users_may_do,
    ),
    (
        "agents.match.policy.prompts",
        tokens::rules_say_what_users_may_do,
    ),
    (
        "agents.match.policy.resources",
        tokens::rules_say_what_users_may_do,
    ),
    (
        "agents.match.policy.tools",
        tokens::rules_say_what_users_may_do,
    ),
    ("agents.match.profiles", tokens::rules_say_what_users_may_do),
    (
        "agents.match.quota",
        tokens::users_share_the_budget_of_their_agent_or_have_it,
    ),
    ("agents.match.team", tokens::rules_say_what_users_may_do),
    (
        "jwt.*.algorithms",
        tokens::machines_have_tokens_of_their_issuer,
    ),
    (
        "jwt.*.audience",
        tokens::machines_have_tokens_of_their_issuer,
    ),
    (
        "jwt.*.clock_skew",
        tokens::machines_have_tokens_of_their_issuer,
    ),
    ("jwt.*.issuer", tokens::machines_have_tokens_of_their_issuer),
    (
        "jwt.*.jwks_url",
        tokens::machines_have_tokens_of_their_issuer,
    ),
    ("oauth.audience", tokens::tokens_of_products),
    ("oauth.issuer", tokens::wrong_tokens_are_refused_and_counted),
    ("oauth.mode", tokens::a_token_of_the_issuer_lets_its_user_in),
    ("oauth.scopes", tokens::scopes_of_the_issuer_are_asked_for),
    (
        "tls.client_ca",
        client_certificates::a_certificate_is_that_of_an_agent,
    ),
    (
        "agents.*.enabled",
        identity::a_disabled_agent_may_do_nothing,
    ),
    ("agents.*.id", identity::records_name_the_agent),
    ("agents.*.keys", identity::an_agent_may_have_several_keys),
    (
        "agents.*.profiles",
        identity::an_agent_uses_its_profiles_only,
    ),
    ("agents.*.team", identity::records_name_the_agent),
    ("audit.arguments", audit_records::arguments),
    ("audit.durability", audit_records::durability),
    ("audit.enabled", audit_records::enabled),
    ("audit.quota", audit_records::quota),
    ("audit.result_limit", audit_records::result_limit),
    ("audit.results", audit_records::results),
    ("audit.retention", audit_records::retention),
    ("audit.retention_size", audit_records::retention_size),
    (
        "governance.auth",
        identity::without_keys_everybody_is_the_anonymous_agent,
    ),
    (
        "governance.charge_errors",
        budgets::a_call_costs_once_it_may_have_reached_its_server,
    ),
    (
        "governance.error_codes",
        refusals::portable_codes_are_outside_the_reserved_block,
    ),
    (
        "governance.errors",
        refusals::refusals_can_be_results_that_a_model_reads,
    ),
    (
        "governance.key_lifetime",
        identity::keys_last_as_long_as_the_config_says,
    ),
    ("governance.price", rules::prices),
    ("governance.refusal_rate", refusal_backoff::it_recovers_soon),
    (
        "governance.refusal_rate.burst",
        refusal_backoff::who_is_refused_too_often_is_held_back,
    ),
    (
        "governance.refusal_rate.calls",
        refusal_backoff::it_recovers_soon,
    ),
    (
        "governance.refusal_rate.per",
        refusal_backoff::it_recovers_soon,
    ),
    ("governance.teams.*.budget", budgets::every_budget_holds),
    (
        "governance.teams.*.budget.limit",
        budgets::every_budget_holds,
    ),
    (
        "governance.teams.*.budget.window",
        budgets::a_window_of_any_level_is_named,
    ),
    ("profiles.*.describe.*", rules::views_of_profiles),
    ("profiles.*.prompts", rules::views_of_profiles),
    ("profiles.*.rename.*", rules::views_of_profiles),
    ("profiles.*.resources", rules::views_of_profiles),
    ("profiles.*.tags", rules::views_of_profiles),
    ("profiles.*.tools", rules::views_of_profiles),
    ("servers.*.price", rules::prices),
    ("servers.*.tools.price.*", rules::prices),
    ("workspaces.*.budget", budgets::every_budget_holds),
    ("workspaces.*.budget.limit", budgets::every_budget_holds),
    (
        "workspaces.*.budget.window",
        budgets::a_window_of_any_level_is_named,
    ),
    ("workspaces.*.description", owners::workspaces_are_shown),
    ("workspaces.*.members", budgets::every_budget_holds),
];

/// Every key that `tests/settings` leaves to these tests has one, and there is none for another.
#[test]
fn every_key_has_a_test() {
    let mut tested = BTreeSet::new();
    let mut add = |key: String| assert!(tested.insert(key.clone()), "{key} is there twice");
    for level in ["agents.*", "governance", "profiles.*"] {
        for (key, _) in TERMS.iter().chain(SHARED) {
            add(format!("{level}.{key}"));
        }
    }
    for (key, _) in SHARED {
        add(format!("servers.*.{key}"));
    }
    for (key, _) in COMPLEX_KEYWORDS {
        add((*key).to_owned());
    }
    let listed: BTreeSet<String> = GOVERNING.iter().map(|key| (*key).to_owned()).collect();
    let missing: Vec<_> = listed.difference(&tested).collect();
    let gone: Vec<_> = tested.difference(&listed).collect();
    assert!(missing.is_empty(), "keys without a test: {missing:#?}");
    assert!(gone.is_empty(), "tests of keys that are gone: {gone:#?}");
}
