//! What governs calls, as it is accepted: defaults, forms and warnings.

use std::{num::NonZeroU32, time::Duration};

use insta::assert_snapshot;
use tollbridge::{
    config::{
        Audit, Authentication, Budget, Config, Durability, GovernanceConfig, Listen, Policy,
        PolicyMode, Rate, Role, Terms, Window,
    },
    money::Micros,
    names::{AgentId, ProfileName},
};

use crate::support::{accepted, config, config_in, load, server, toml_in, warnings};

const KEY: &str = "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a";

#[test]
fn without_the_section_nothing_is_governed() {
    let config = config("");
    assert_eq!(config.governance, GovernanceConfig::default());
    assert_eq!(config.governance.price, Micros::ZERO);
    assert_eq!(mode(&config), PolicyMode::All);
    assert_eq!(config.governance.terms.budget, None);
    assert_eq!(config.governance.terms.scan, None);
    assert_eq!(config.audit, Audit::default());
    assert!(config.agents.is_empty() && config.profiles.is_empty());
}

#[test]
fn with_the_section_its_defaults_hold() {
    let config = config("[governance]");
    let governance = &config.governance;
    assert_eq!(governance.auth, Authentication::ANONYMOUS);
    assert_eq!(governance.price, Micros::new(15_000));
    assert_eq!(mode(&config), PolicyMode::All);
    assert_eq!(
        governance.terms.budget,
        Some(vec![budget(10, Window::Total)])
    );
    assert_eq!(governance.terms.rate, None);
    assert_eq!(governance.terms.tool_rate, None);
    assert_eq!(governance.terms.scan, None);
}

#[test]
fn with_keys_nothing_is_allowed_unless_it_is_written() {
    let keys = "[governance]\nauth = 'keys'";
    assert_eq!(mode(&config(keys)), PolicyMode::None);
    let written = format!("{keys}\npolicy = {{ mode = 'all' }}");
    assert_eq!(mode(&config(&written)), PolicyMode::All);
}

/// As the command line takes them, and as programs write numbers.
#[test]
fn amounts_and_rates_have_short_forms() {
    let config = config("[governance]\nprice = 0.02\nrate = '120/1m'\ntool_rate = '10/1s/20'");
    assert_eq!(config.governance.price, Micros::new(20_000));
    let rate = |calls, seconds, burst| {
        Some(Rate {
            calls: NonZeroU32::new(calls).expect("it is not zero"),
            per: Duration::from_secs(seconds),
            burst: NonZeroU32::new(burst).expect("it is not zero"),
        })
    };
    assert_eq!(config.governance.terms.rate, rate(120, 60, 120));
    assert_eq!(config.governance.terms.tool_rate, rate(10, 1, 20));
}

#[test]
fn a_budget_is_one_or_many_or_none() {
    let rows = [
        ("{ limit = '5' }", vec![budget(5, Window::Total)]),
        (
            "{ limit = '5.00', window = 'day' }",
            vec![budget(5, Window::Day)],
        ),
        (
            "[{ limit = '5', window = 'month' }, { limit = ' 1.0 ' }]",
            vec![budget(5, Window::Month), budget(1, Window::Total)],
        ),
        ("{ limit = 5 }", vec![budget(5, Window::Total)]),
        ("'5.00/day'", vec![budget(5, Window::Day)]),
        (
            "['5/month', '1', { limit = 2.0 }]",
            vec![
                budget(5, Window::Month),
                budget(1, Window::Total),
                budget(2, Window::Total),
            ],
        ),
        ("[]", Vec::new()),
        ("'off'", Vec::new()),
    ];
    for (written, expect) in rows {
        let text = format!(
            "
            [governance]
            budget = {written}
            [governance.teams.t]
            budget = {written}
            [servers.a]
            command = 'a'
            budget = {written}
            [profiles.p]
            budget = {written}
            "
        );
        let config = config(&text);
        assert_eq!(
            config.governance.terms.budget.as_ref(),
            Some(&expect),
            "{written}"
        );
        assert_eq!(config.governance.teams["t"], expect, "{written}");
        assert_eq!(server(&config, "a").budget, expect, "{written}");
        let profile = ProfileName::parse("p").expect("a name");
        assert_eq!(
            config.profiles[&profile].terms.budget,
            Some(expect),
            "{written}"
        );
    }
}

#[test]
fn a_rate_bursts_as_much_as_it_has_calls() {
    let rate = |text: &str| {
        config(&format!("[governance]\nrate = {text}"))
            .governance
            .terms
            .rate
    };
    let expect = |calls, per, burst| {
        let count = |count| NonZeroU32::new(count).expect("positive");
        Some(Rate {
            calls: count(calls),
            per: Duration::from_secs(per),
            burst: count(burst),
        })
    };
    assert_eq!(rate("{ calls = 120 }"), expect(120, 60, 120));
    assert_eq!(
        rate("{ calls = 5, per = '1s', burst = 9 }"),
        expect(5, 1, 9)
    );
}

#[test]
fn a_server_has_prices_and_its_tools_have_their_own() {
    let config = config(
        "
        [servers.a]
        command = 'a'
        price = '0.02'
        tools = { price = { search = '0' }, timeout = { search = '3m' }, deny = ['x'] }
        [servers.b]
        command = 'b'
        ",
    );
    let priced = server(&config, "a");
    assert_eq!(priced.price, Some(Micros::new(20_000)));
    assert_eq!(priced.tools.price["search"], Micros::ZERO);
    assert_eq!(priced.tools.timeout["search"], Duration::from_secs(180));
    assert_eq!(priced.tools.deny.len(), 1);
    assert_eq!(server(&config, "b").price, None);
}

#[test]
fn an_agent_is_what_is_written_of_it() {
    let text = format!(
        "
        [governance]
        auth = 'keys'
        [agents.named]
        keys = ['${{KEY}}']
        profiles = ['reading']
        [agents.plain]
        id = 'agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11'
        team = 'science'
        enabled = false
        admin = true
        keys = ['{}']
        [profiles.reading]
        tools = ['docs/*']
        ",
        KEY.to_uppercase()
    );
    let config = config_in(&[("KEY", KEY)], &text);
    let named = &config.agents["named"];
    assert_eq!(named.id, AgentId::from_name("named"));
    assert_eq!(named.keys[0].expose(), KEY);
    assert_eq!(named.profiles.as_ref().map(Vec::len), Some(1));
    assert!(named.enabled && named.role == Role::Agent && named.team.is_none());
    let plain = &config.agents["plain"];
    assert_eq!(
        plain.id.to_string(),
        "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
    );
    assert!(!plain.enabled && plain.role == Role::Admin && plain.profiles.is_none());
    assert_eq!(plain.terms, Terms::default());
}

#[test]
fn records_are_kept_for_ever_when_asked_to() {
    let audit = config("[audit]\nretention = 0\ndurability = 'disk'\narguments = true").audit;
    assert_eq!(audit.retention, None);
    assert_eq!(audit.durability, Durability::Disk);
    assert!(audit.arguments && audit.enabled);
    let year = config("[audit]\nretention = '365d'").audit.retention;
    assert_eq!(year, Some(Duration::from_secs(365 * 86_400)));
}

#[test]
fn state_is_kept_where_the_config_says() {
    let directory = |environment: &[_], text| config_in(environment, text).data_dir;
    let default = directory(&[], "");
    assert!(
        default.ends_with("tollbridge") && default.is_absolute(),
        "{default:?}"
    );
    assert_eq!(
        directory(&[], "data_dir = 'd'").as_os_str(),
        "/etc/tollbridge/d"
    );
    assert_eq!(directory(&[], "data_dir = '/d'").as_os_str(), "/d");
    let variable = [("TOLLBRIDGE_DATA_DIR", "/e")];
    assert_eq!(directory(&variable, "data_dir = '/d'").as_os_str(), "/e");
}

#[test]
fn with_keys_other_machines_may_connect() {
    let text = "listen = '0.0.0.0:8080'\n[governance]\nauth = 'keys'";
    assert_eq!(config(text).listen.to_string(), "0.0.0.0:8080");
    let anonymous = text.replace("keys", "anonymous");
    assert!(load(&[], &[("a.toml", &anonymous)]).is_err());
    let mut known = config(text);
    assert!(!known.is_open_without_auth());
    known.governance.auth = Authentication::ANONYMOUS;
    assert!(known.is_open_without_auth());
    for local in [
        Listen::Address(([127, 0, 0, 2], 8080).into()),
        Listen::Unix("/run/a.sock".into()),
    ] {
        known.listen = local;
        assert!(!known.is_open_without_auth());
    }
    let dangerous = format!("danger_listen_without_auth = true\n{anonymous}");
    assert!(config(&dangerous).danger_listen_without_auth);
}

#[test]
fn variables_override_what_governs() {
    let file = "
        [governance]
        auth = 'keys'
        [governance.teams.R-D]
        budget = { limit = '1' }
        [agents.My-Agent]
        team = 'R-D'
        [profiles.only]
    ";
    let overrides = [
        ("TOLLBRIDGE_GOVERNANCE__PRICE", "0.5"),
        ("TOLLBRIDGE_GOVERNANCE__BUDGET__LIMIT", "3"),
        (
            "TOLLBRIDGE_GOVERNANCE__TEAMS__R_D__BUDGET",
            "{limit = \"7\"}",
        ),
        ("TOLLBRIDGE_GOVERNANCE__OBSERVE", "[\"rate\"]"),
        ("TOLLBRIDGE_AGENTS__MY_AGENT__BUDGET", "off"),
        ("TOLLBRIDGE_AGENTS__MY_AGENT__ADMIN", "true"),
        ("TOLLBRIDGE_PROFILES__ONLY__RATE__CALLS", "2"),
    ];
    let config = config_in(&overrides, file);
    assert_eq!(config.governance.price, Micros::new(500_000));
    let limit = |budgets: &[Budget]| budgets[0].limit.get() / 1_000_000;
    assert_eq!(
        config.governance.terms.budget.as_deref().map(limit),
        Some(3)
    );
    assert_eq!(limit(&config.governance.teams["R-D"]), 7);
    assert_eq!(config.governance.terms.observe.len(), 1);
    let agent = &config.agents["My-Agent"];
    assert!(agent.role == Role::Admin && agent.terms.budget == Some(Vec::new()));
    assert!(config.profiles[0].terms.rate.is_some());
    assert_snapshot!(toml_in(
        &[("TOLLBRIDGE_AGENTS__OTHER__ADMIN", "true")],
        file
    ), @"
    error: the variable TOLLBRIDGE_AGENTS__OTHER__ADMIN does not match any config key
     --> environment:1:1
      |
    1 | TOLLBRIDGE_AGENTS__OTHER__ADMIN=***
      | ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^ the config has no agent of this name
      |
      = help: the agents are `My-Agent`

    1 error
    ");
}

/// Whose team has no budget although teams have escapes what was meant for it.
#[test]
fn a_team_without_a_budget_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        [governance]
        auth = "keys"
        [governance.teams.science]
        budget = { limit = "1.00" }
        [agents.one]
        team = "science"
        [agents.two]
        team = "scince"
        [agents.three]
        team = "sales"
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: team `scince` has no budget
      --> a.toml:10:8
       |
    10 | team = "scince"
       |        ^^^^^^^^ not defined in `[governance.teams]`
       |
       = help: did you mean `science`?

    warning: team `sales` has no budget
      --> a.toml:12:8
       |
    12 | team = "sales"
       |        ^^^^^^^ not defined in `[governance.teams]`
    "#);
}

/// Each slip is told of, also where several stand for one team.
#[test]
fn every_slip_in_the_name_of_a_team_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        [governance]
        auth = "keys"
        [governance.teams.science]
        budget = { limit = "1.00" }
        [agents.one]
        team = "scince"
        [agents.two]
        team = "sience"
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: team `scince` has no budget
     --> a.toml:8:8
      |
    8 | team = "scince"
      |        ^^^^^^^^ not defined in `[governance.teams]`
      |
      = help: did you mean `science`?

    warning: team `sience` has no budget
      --> a.toml:10:8
       |
    10 | team = "sience"
       |        ^^^^^^^^ not defined in `[governance.teams]`
       |
       = help: did you mean `science`?
    "#);
}

/// A slip is told of once: where one agent has it there, whichever of the names is longer; where
/// several agents agree, at the budget. So is a team that nobody means.
#[test]
fn a_team_that_nobody_is_in_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        [governance]
        auth = "keys"
        [governance.teams.science]
        budget = { limit = "1.00" }
        [governance.teams.support]
        budget = { limit = "1.00" }
        [governance.teams.slaes]
        budget = { limit = "1.00" }
        [governance.teams.travel]
        budget = { limit = "1.00" }
        [agents.bob]
        team = "scienc"
        [agents.eve]
        team = "suppo"
        [agents.one]
        team = "sales"
        [agents.two]
        team = "sales"
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: team `slaes` has no members
     --> a.toml:9:19
      |
    9 | [governance.teams.slaes]
      |                   ^^^^^ no configured agent has this `team`
      |
      = help: did you mean `sales`?

    warning: team `travel` has no members
      --> a.toml:11:19
       |
    11 | [governance.teams.travel]
       |                   ^^^^^^ no configured agent has this `team`

    warning: team `scienc` has no budget
      --> a.toml:14:8
       |
    14 | team = "scienc"
       |        ^^^^^^^^ not defined in `[governance.teams]`
       |
       = help: did you mean `science`?

    warning: team `suppo` has no budget
      --> a.toml:16:8
       |
    16 | team = "suppo"
       |        ^^^^^^^ not defined in `[governance.teams]`
       |
       = help: did you mean `support`?
    "#);
}

/// Without budgets a team is a name in the audit, where a slip makes another one.
#[test]
fn a_team_of_one_that_is_near_another_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        [governance]
        auth = "keys"
        [agents.one]
        team = "science"
        [agents.two]
        team = "science"
        [agents.three]
        team = "scince"
        [agents.four]
        team = "sciences"
        [agents.five]
        team = "shift-1"
        [agents.six]
        team = "shift-2"
        [agents.seven]
        team = "shift-2"
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: team `scince` has only one member
      --> a.toml:10:8
       |
    10 | team = "scince"
       |        ^^^^^^^^ the only member
       |
       = help: did you mean `science`?

    warning: team `sciences` has only one member
      --> a.toml:12:8
       |
    12 | team = "sciences"
       |        ^^^^^^^^^^ the only member
       |
       = help: did you mean `science`?
    "#);
}

/// An empty list that is written is meant.
#[test]
fn an_allowlist_without_a_list_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        [governance]
        auth = "keys"
        policy = { mode = "allowlist" }
        [agents.one.policy]
        mode = "allowlist"
        deny = ["a/*"]
        [agents.two]
        policy = { mode = "allowlist", tools = [] }
        [agents.three]
        policy = { mode = "allowlist", methods = ["a/*"] }
        [agents.four]
        policy = { mode = "denylist" }
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: `governance.policy` allows nothing
     --> a.toml:5:10
      |
    5 | policy = { mode = "allowlist" }
      |          ^^^^^^^^^^^^^^^^^^^^^^ no list given
      |
      = help: add `tools = ["SERVER/*"]`, or use `mode = "none"` to allow nothing

    warning: `agents.one.policy` allows nothing
     --> a.toml:6:1
      |
    6 | [agents.one.policy]
      | ^^^^^^^^^^^^^^^^^^^ no list given
      |
      = help: add `tools = ["SERVER/*"]`, or use `mode = "none"` to allow nothing
    "#);
}

#[test]
fn what_has_no_effect_is_a_warning() {
    let text = r#"
        [servers.a]
        command = "a"
        tags = ["local"]
        [governance.teams.scince]
        budget = "off"
        [agents.one]
        team = "science"
        policy = { mode = "all", tools = ["a"] }
        [profiles.p]
        tags = ["locale", "beta"]
    "#;
    assert_snapshot!(warnings(&[], &[("a.toml", text)]), @r#"
    warning: agents are configured but callers cannot be identified
     --> a.toml:6:9
      |
    6 | [agents.one]
      |         ^^^ every caller is the anonymous agent
      |
      = help: set `auth = "keys"` in `[governance]`

    warning: team `science` has no budget
     --> a.toml:7:8
      |
    7 | team = "science"
      |        ^^^^^^^^^ not defined in `[governance.teams]`
      |
      = help: did you mean `scince`?

    warning: `agents.one.policy.tools` has no effect
     --> a.toml:8:26
      |
    8 | policy = { mode = "all", tools = ["a"] }
      |                          ^^^^^ everything is allowed with this `mode`
      |
      = help: use `mode = "allowlist"` or `mode = "denylist"`

    warning: no server has the tag `locale`
      --> a.toml:10:9
       |
    10 | tags = ["locale", "beta"]
       |         ^^^^^^^^ selects nothing
       |
       = help: did you mean "local"?

    warning: no server has the tag `beta`
      --> a.toml:10:19
       |
    10 | tags = ["locale", "beta"]
       |                   ^^^^^^ selects nothing
    "#);
    let right = "
        [governance]
        auth = 'keys'
        [governance.teams.t]
        budget = 'off'
        [agents.one]
        team = 't'
    ";
    assert_eq!(warnings(&[], &[("a.toml", right)]), "");
    assert_eq!(
        warnings(&[], &[("a.toml", "[governance]\nauth = 'keys'")]),
        ""
    );
}

#[test]
fn a_document_of_another_program_may_be_governed() {
    let text = r#"{
        "mcpServers": { "a": { "command": "a", "price": "0.02" } },
        "governance": { "auth": "keys", "policy": { "mode": "allowlist", "tools": ["a/*"] } }
    }"#;
    let config = accepted(&[], &[("mcp.json", text)]).config;
    assert_eq!(server(&config, "a").price, Some(Micros::new(20_000)));
    assert_eq!(mode(&config), PolicyMode::Allowlist);
}

/// Agents of the store are JSON of the same types: their globs must mean what those of a config do.
#[test]
fn terms_are_the_same_after_json() {
    let config = config(GOVERNED);
    let terms = &config.governance.terms;
    let json = serde_json::to_string(terms).expect("serializes");
    let read: Terms = serde_json::from_str(&json).expect(&json);
    assert_eq!(read, *terms);
    let policy: Policy =
        serde_json::from_str(r#"{"mode":"allowlist","tools":["a*"]}"#).expect("it is");
    let matcher = policy.tools[0].compile_matcher();
    assert!(matcher.is_match("ab") && !matcher.is_match("a/b"));
    let unknown = r#"{"args":[{"name":"a","tools":[],"at":"","action":"refuse","mimn":1}]}"#;
    assert!(serde_json::from_str::<Terms>(unknown).is_err());
}

#[test]
#[expect(clippy::too_many_lines, reason = "most of it is the snapshot")]
fn what_governs_is_shown_and_loads_again() {
    let config = config(GOVERNED);
    let shown = config.to_display();
    assert_snapshot!(shown, @r#"
    listen = "127.0.0.1:8080"
    danger_listen_without_auth = false
    port_search = 0
    data_dir = "/etc/tollbridge/data"
    allowed_hosts = []
    allowed_origins = []
    workers = 1
    keep_alive = "15s"
    first_list_wait = "2s"
    drain_timeout = "10s"
    request_state_ttl = "1d"
    session_idle_timeout = "1d"
    list_page_size = 0

    [socket]
    mode = "0600"
    uids = []

    [log]
    level = "info"
    format = "human"

    [limits]
    headers_timeout = "15s"
    body_rate_min = "1KiB"
    body_grace = "5s"
    unauthenticated_body = "64KiB"
    body = "4MiB"
    headers = "64KiB"
    depth = 128
    sessions_per_agent = 10000

    [egress]
    allow = []
    response = "1MiB"
    timeout = "10s"

    [views]
    per_agent_max = 100
    ttl = "1h"
    ttl_max = "1d"
    size_max = "16KiB"

    [naming]
    template = "mcp_{server}_{tool}"
    charset = "strict"
    max_length = 46
    conflict = "namespace"
    namespace_resources = true

    [governance]
    auth = "keys"
    errors = "jsonrpc"
    error_codes = "contract"
    price = "0.015"
    charge_errors = true
    key_lifetime = "365d"
    observe = [
        "rate",
        "args",
    ]

    [governance.refusal_rate]
    calls = 600
    per = "1m"
    burst = 3000

    [governance.teams.science.budget]
    limit = "500.00"
    window = "month"

    [governance.teams.unlimited]

    [governance.policy]
    mode = "allowlist"
    tools = ["github/*"]
    deny = ["*/delete_*"]

    [[governance.budget]]
    limit = "10.00"
    window = "day"

    [[governance.budget]]
    limit = "0.000001"
    window = "total"

    [governance.rate]
    calls = 120
    per = "1m30s"
    burst = 20

    [governance.tool_rate]
    calls = 1
    per = "1m"
    burst = 1

    [governance.scan]
    mask = "length"
    countries = ["de"]
    allow = ["a"]
    base64 = ["text/*"]

    [governance.scan.arguments]
    credit_card = "block"
    t = "redact"
    "*" = "report"

    [governance.scan.custom]
    t = 'T-\d+'

    [governance.scan.dictionaries]
    d = ["x y"]

    [[governance.args]]
    name = "owner"
    tools = ["*"]
    at = "/owner"
    one_of = [
        "acme",
        1,
        { a = [true] },
    ]
    action = "allow"
    observe = false

    [[governance.args]]
    name = "size"
    tools = ["github/get_*"]
    at = "/size"
    min = -1.5
    max = 10.0
    action = "refuse"
    observe = true

    [audit]
    enabled = true
    durability = "process"
    arguments = false
    results = false
    result_limit = "64KiB"
    retention = "400d"

    [agents.researcher]
    id = "agent_0bd26145-7bcf-5557-ab99-56ddc0088c00"
    team = "science"
    enabled = true
    role = "agent"
    profiles = ["reading"]
    budget = "off"

    [agents.other]
    id = "agent_3ffa3ad3-369c-52e0-ac06-8ca10a7cd909"
    team = "unlimited"
    enabled = true
    role = "agent"

    [profiles.reading]
    tools = ["docs/*"]
    prompts = []

    [profiles.reading.rename]
    mcp_docs_search = "search"

    [profiles.reading.scan]
    mask = "type"

    [profiles.reading.scan.results]
    "*" = "redact"

    [secrets]
    exec = false

    [servers.toolbox]
    transport = "builtin"
    era = "auto"
    enabled = true
    expose = [
        "tools",
        "resources",
        "prompts",
    ]
    priority = 0
    isolation = "auto"
    max_instances = 32
    pool_size = 4
    startup_timeout = "2m"
    connect_timeout = "30s"
    timeout = "1m"
    max_total_timeout = "10m"
    grace = "30s"
    validate = "auto"
    price = "0.02"

    [servers.toolbox.tools.price]
    uuid = "0.05"

    [servers.toolbox.tools.timeout]
    uuid = "3m"

    [servers.toolbox.retry]
    base = "500ms"
    max = "30s"
    jitter = 0.2
    stable_after = "30s"
    starts_per_minute = 30
    failed_after = 1

    [servers.toolbox.breaker]
    failures = 5
    open_for = "10s"

    [servers.toolbox.health]
    interval = "30s"
    timeout = "10s"
    failures = 3
    probe = "ping"

    [servers.toolbox.limits]
    request = "4MiB"
    response = "16MiB"
    queue = 128
    item = "1MiB"
    item_depth = 32

    [servers.toolbox.budget]
    limit = "1.00"
    window = "total"

    [servers.toolbox.rate]
    calls = 600
    per = "1m"
    burst = 600

    [servers.toolbox.scan]
    mask = "type"

    [servers.toolbox.scan.results]
    api_key = "off"
    "#);
    for (name, text) in [
        ("a.toml", shown.to_string()),
        ("a.json", shown.to_json().to_string()),
    ] {
        assert_eq!(accepted(&[], &[(name, &text)]).config, config, "{text}");
    }
}

/// Everything but keys of agents, which are not shown.
const GOVERNED: &str = r#"
    workers = 1
    data_dir = "data"
    [governance]
    auth = "keys"
    policy = { mode = "allowlist", tools = ["github/*"], deny = ["*/delete_*"] }
    budget = [{ limit = "10.00", window = "day" }, { limit = "0.000001" }]
    rate = { calls = 120, per = "1m30s", burst = 20 }
    tool_rate = { calls = 1 }
    observe = ["rate", "args"]
    scan = { arguments = { credit_card = "block", t = "redact", "*" = "report" }, custom = { t = 'T-\d+' }, dictionaries = { d = ["x y"] }, mask = "length", countries = ["de"], allow = ["a"], base64 = ["text/*"] }
    [[governance.args]]
    name = "owner"
    at = "/owner"
    one_of = ["acme", 1, { a = [true] }]
    action = "allow"
    [[governance.args]]
    name = "size"
    tools = ["github/get_*"]
    at = "/size"
    min = -1.5
    max = 10
    observe = true
    [governance.teams.science]
    budget = { limit = "500", window = "month" }
    [governance.teams.unlimited]
    [audit]
    retention = "400d"
    [agents.researcher]
    team = "science"
    budget = "off"
    profiles = ["reading"]
    [agents.other]
    team = "unlimited"
    [profiles.reading]
    tools = ["docs/*"]
    prompts = []
    rename = { mcp_docs_search = "search" }
    scan = { results = { "*" = "redact" } }
    [servers.toolbox]
    transport = "builtin"
    price = "0.02"
    budget = { limit = "1" }
    rate = { calls = 600 }
    scan = { results = { api_key = "off" } }
    tools = { price = { uuid = "0.05" }, timeout = { uuid = "3m" } }
"#;

fn mode(config: &Config) -> PolicyMode {
    let policy = config.governance.terms.policy.as_ref();
    policy.expect("there is always one").mode
}

fn budget(dollars: u64, window: Window) -> Budget {
    Budget {
        limit: Micros::new(dollars * 1_000_000),
        window,
    }
}

/// A bound without an action reads like a limit, and is the opposite of one.
#[test]
fn bounds_that_are_no_limits_are_warned_of() {
    let rule = |keys: &str| {
        let file = format!(
            "[[governance.args]]\nname = \"small\"\nat = \"/s\"\n{keys}\n[servers.docs]\ncommand = \"sh\"\n"
        );
        warnings(&[], &[("config.toml", &file)])
    };
    assert_snapshot!(rule("max = 2"), @r#"
    warning: `governance.args[0]` refuses values within its bounds
     --> config.toml:4:7
      |
    4 | max = 2
      |       ^ not a limit: values beyond it are accepted
      |
      = help: use `action = "allow"` to accept only these values, or set "refuse" explicitly if intended
    "#);
    for silent in [
        "max = 2\naction = \"allow\"",
        "min = 2\naction = \"refuse\"",
        "equals = 2",
    ] {
        assert_eq!(rule(silent), "", "{silent}");
    }
}

/// Rules about arguments hold better where these are of the type that the tool wants.
#[test]
fn argument_rules_without_validation_are_warned_of() {
    let of = |validate: &str, rule: &str| {
        let text = format!(
            "[[governance.args]]\nname = \"r\"\n{rule}at = \"/a\"\nequals = 1\n\n[servers.x]\nurl = \"http://127.0.0.1:1/\"\n{validate}"
        );
        warnings(&[], &[("a.toml", &text)])
    };
    assert_snapshot!(of("validate = \"off\"", "tools = [\"x/*\"]\n"), @r#"
    warning: the argument rule `r` can be bypassed with values of the wrong type
     --> a.toml:9:12
      |
    9 | validate = "off"
      |            ^^^^^ "off" accepts them
      |
      = help: remove the key, or use "refuse"
    "#);
    for (validate, rule) in [
        ("", ""),
        ("validate = \"auto\"", ""),
        ("validate = \"refuse\"", ""),
        ("validate = \"report\"", "tools = [\"y/*\"]\n"),
        ("validate = \"off\"", "observe = true\n"),
    ] {
        assert_eq!(of(validate, rule), "", "{validate} {rule}");
    }
    assert!(
        of("validate = \"report\"", "tools = [\"mcp_*\"]\n").contains("\"report\" accepts them")
    );
}
