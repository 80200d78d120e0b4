//! The list of all keys, each with the test that shows its effect.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use tollbridge::{
    config::{restart_keys, schema, server_keys},
    names::ServerName,
};

use crate::{
    connections, egress, forward_headers,
    governance::{GOVERNING, SIGNING_IN, VIEWS},
    harness::parse,
    item_rules, limits, list_timing, listener, naming, oauth_grants, process_limits,
    process_settings, recovery, replicas, secrets, timeouts, transports, unix_socket, way_out,
};

/// A key, with `*` for the name of a server, and its test.
const TESTS: &[(&str, fn())] = &[
    ("$schema", schema_key),
    ("admin_listen", listener::admin_listen),
    ("allowed_hosts", listener::allowed_hosts),
    ("allowed_origins", listener::allowed_origins),
    (
        "danger_listen_without_auth",
        process_settings::danger_listen_without_auth,
    ),
    ("data_dir", process_settings::data_dir),
    ("drain_timeout", timeouts::drain_timeout),
    ("egress.allow", egress::allow),
    ("egress.response", egress::response),
    ("egress.timeout", egress::timeout),
    ("first_list_wait", list_timing::first_list_wait),
    ("keep_alive", timeouts::keep_alive),
    ("limits.body", limits::body),
    ("limits.body_grace", process_limits::body_rate),
    ("limits.body_rate_min", process_limits::body_rate),
    ("limits.bytes_in_flight", process_limits::bytes_in_flight),
    (
        "limits.connections_per_address",
        process_limits::connections_per_address,
    ),
    ("limits.headers_timeout", process_limits::headers_timeout),
    (
        "limits.unauthenticated_body",
        process_limits::unauthenticated_body,
    ),
    ("limits.depth", limits::depth),
    ("limits.headers", limits::headers),
    ("limits.connections", limits::connections),
    ("limits.in_flight_per_agent", limits::in_flight_per_agent),
    ("limits.sessions_per_agent", limits::sessions_per_agent),
    ("list_page_size", list_timing::list_page_size),
    ("listen", listener::listen),
    ("locality", replicas::locality),
    ("log.format", process_settings::log_format),
    ("log.level", process_settings::log_level),
    ("naming.charset", naming::charset),
    ("naming.conflict", naming::conflict),
    ("naming.max_length", naming::max_length),
    ("naming.namespace_resources", naming::namespace_resources),
    ("naming.template", naming::template),
    ("port_search", listener::port_search),
    ("public_url", listener::public_url),
    ("secrets.exec", secrets::exec),
    ("secrets.key_file", secrets::key_file),
    ("servers.*.args", transports::args),
    ("servers.*.auth.actor_token", oauth_grants::exchange),
    ("servers.*.auth.audience", oauth_grants::own_credentials),
    ("servers.*.auth.client_id", oauth_grants::own_credentials),
    (
        "servers.*.auth.client_secret",
        oauth_grants::own_credentials,
    ),
    ("servers.*.auth.grant", oauth_grants::own_credentials),
    ("servers.*.auth.idp.client_id", oauth_grants::assertion),
    ("servers.*.auth.idp.client_secret", oauth_grants::assertion),
    ("servers.*.auth.idp.issuer", oauth_grants::assertion),
    ("servers.*.auth.issuer", oauth_grants::own_credentials),
    ("servers.*.auth.per_user", oauth_grants::per_user),
    ("servers.*.auth.private_key", oauth_grants::private_key),
    ("servers.*.auth.scopes", oauth_grants::own_credentials),
    ("servers.*.auth.subject_token", oauth_grants::exchange),
    ("servers.*.auth.name", transports::auth_header),
    ("servers.*.auth.token", transports::auth_bearer),
    ("servers.*.auth.type", transports::auth_header),
    ("servers.*.auth.value", transports::auth_header),
    ("servers.*.balance", replicas::balance),
    ("servers.*.breaker.failures", recovery::breaker_failures),
    ("servers.*.breaker.open_for", recovery::breaker_open_for),
    ("servers.*.command", transports::command),
    ("servers.*.connect_timeout", timeouts::connect_timeout),
    ("servers.*.cwd", transports::cwd),
    ("servers.*.env_file", transports::env_file),
    ("servers.*.ejection.base", replicas::ejection),
    ("servers.*.ejection.max", replicas::ejection),
    ("servers.*.enabled", transports::enabled),
    ("servers.*.env.*", transports::env),
    ("servers.*.era", transports::era),
    ("servers.*.expose", item_rules::expose),
    (
        "servers.*.forward_headers",
        forward_headers::forward_headers,
    ),
    ("servers.*.grace", recovery::grace),
    ("servers.*.headers.*", transports::headers),
    ("servers.*.health.failures", recovery::health_failures),
    ("servers.*.health.interval", recovery::health_interval),
    ("servers.*.health.probe", recovery::health_probe),
    ("servers.*.health.timeout", recovery::health_timeout),
    ("servers.*.idle_timeout", connections::idle_timeout),
    ("servers.*.isolation", connections::isolation),
    ("servers.*.limits.in_flight", limits::server_in_flight),
    ("servers.*.limits.item", limits::server_item),
    ("servers.*.limits.item_depth", limits::server_item_depth),
    ("servers.*.limits.memory", limits::server_memory),
    ("servers.*.limits.queue", limits::server_queue),
    ("servers.*.limits.request", limits::server_request),
    ("servers.*.limits.response", limits::server_response),
    ("servers.*.max_instances", connections::max_instances),
    ("servers.*.max_total_timeout", timeouts::max_total_timeout),
    ("servers.*.namespace", naming::namespace),
    ("servers.*.pool_size", connections::pool_size),
    ("servers.*.priority", naming::priority),
    ("servers.*.prompts.allow", item_rules::allow),
    ("servers.*.prompts.deny", item_rules::deny),
    ("servers.*.prompts.describe.*", item_rules::describe),
    ("servers.*.prompts.rename.*", item_rules::rename),
    ("servers.*.replicas", replicas::remote),
    ("servers.*.replicas.args", replicas::program),
    (
        "servers.*.replicas.auth.actor_token",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.audience",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.client_id",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.client_secret",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.grant",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.idp.client_id",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.idp.client_secret",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.idp.issuer",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.issuer",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.per_user",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.private_key",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.scopes",
        oauth_grants::replicas_have_none,
    ),
    (
        "servers.*.replicas.auth.subject_token",
        oauth_grants::replicas_have_none,
    ),
    ("servers.*.replicas.auth.name", replicas::remote),
    ("servers.*.replicas.auth.token", replicas::remote),
    ("servers.*.replicas.auth.type", replicas::remote),
    ("servers.*.replicas.auth.value", replicas::remote),
    ("servers.*.replicas.command", replicas::program),
    ("servers.*.replicas.cwd", replicas::program),
    ("servers.*.replicas.env_file", replicas::env_file),
    ("servers.*.replicas.env.*", replicas::program),
    ("servers.*.replicas.headers.*", replicas::remote),
    ("servers.*.replicas.locality", replicas::locality),
    ("servers.*.replicas.name", replicas::route),
    ("servers.*.replicas.transport", replicas::remote),
    ("servers.*.replicas.url", replicas::remote),
    ("servers.*.replicas.user", transports::user),
    ("servers.*.resources.allow", item_rules::allow),
    ("servers.*.resources.deny", item_rules::deny),
    ("servers.*.resources.describe.*", item_rules::describe),
    ("servers.*.resources.rename.*", item_rules::rename),
    ("servers.*.retry.base", timeouts::retry_base),
    ("servers.*.retry.failed_after", recovery::retry_failed_after),
    ("servers.*.retry.jitter", timeouts::retry_jitter),
    ("servers.*.retry.max", timeouts::retry_max),
    ("servers.*.retry.stable_after", recovery::retry_stable_after),
    (
        "servers.*.retry.starts_per_minute",
        recovery::retry_starts_per_minute,
    ),
    ("servers.*.roots", connections::roots),
    ("servers.*.roots.name", connections::roots),
    ("servers.*.roots.uri", connections::roots),
    ("servers.*.route", replicas::route),
    ("servers.*.route.at", replicas::route),
    ("servers.*.route.equals", replicas::route),
    ("servers.*.route.matches", replicas::route),
    ("servers.*.route.max", replicas::route),
    ("servers.*.route.min", replicas::route),
    ("servers.*.route.one_of", replicas::route),
    ("servers.*.route.to", replicas::route),
    ("servers.*.route.tools", replicas::route),
    ("servers.*.egress", egress::server),
    ("servers.*.inherit_env", way_out::inherit_env),
    ("servers.*.proxy", way_out::proxy),
    ("servers.*.tls.ca", way_out::tls_ca),
    ("servers.*.tls.client_cert", way_out::tls_client_cert),
    ("servers.*.tls.client_key", way_out::tls_client_cert),
    (
        "servers.*.tls.danger_accept_invalid",
        way_out::tls_danger_accept_invalid,
    ),
    ("servers.*.tls.fingerprint", way_out::tls_fingerprint),
    ("servers.*.replicas.egress", egress::server),
    ("servers.*.replicas.inherit_env", way_out::inherit_env),
    ("servers.*.replicas.proxy", way_out::proxy),
    ("servers.*.replicas.tls.ca", way_out::tls_ca),
    (
        "servers.*.replicas.tls.client_cert",
        way_out::tls_client_cert,
    ),
    (
        "servers.*.replicas.tls.client_key",
        way_out::tls_client_cert,
    ),
    (
        "servers.*.replicas.tls.danger_accept_invalid",
        way_out::tls_danger_accept_invalid,
    ),
    (
        "servers.*.replicas.tls.fingerprint",
        way_out::tls_fingerprint,
    ),
    ("servers.*.startup_timeout", timeouts::startup_timeout),
    ("servers.*.tags", item_rules::tags),
    ("servers.*.timeout", timeouts::timeout),
    ("servers.*.tools.allow", item_rules::allow),
    ("servers.*.tools.deny", item_rules::deny),
    ("servers.*.tools.describe.*", item_rules::describe),
    ("servers.*.tools.rename.*", item_rules::rename),
    ("servers.*.tools.timeout.*", timeouts::tool_timeout),
    ("servers.*.transport", transports::transport),
    ("servers.*.url", transports::url),
    ("servers.*.user", transports::user),
    ("servers.*.validate", item_rules::validate),
    ("request_state_ttl", timeouts::request_state_ttl),
    ("socket.mode", unix_socket::mode),
    ("socket.uids", unix_socket::uids),
    ("session_idle_timeout", timeouts::session_idle_timeout),
    ("tls.cert", listener::tls_cert),
    ("tls.key", listener::tls_key),
    ("workers", process_settings::workers),
];

/// Every key of the schema has a test, and every test a key.
#[test]
fn every_key_has_a_test() {
    let schema = schema();
    let mut keys = BTreeSet::new();
    collect(&schema, &schema, "", &mut keys);
    let here = TESTS.iter().map(|(key, _)| (*key).to_owned());
    let there = GOVERNING
        .iter()
        .chain(SIGNING_IN)
        .chain(VIEWS)
        .map(|key| (*key).to_owned());
    let tested: BTreeSet<String> = here.chain(there).collect();
    let missing: Vec<_> = keys.difference(&tested).collect();
    let gone: Vec<_> = tested.difference(&keys).collect();
    assert!(missing.is_empty(), "keys without a test: {missing:#?}");
    assert!(gone.is_empty(), "tests of keys that are gone: {gone:#?}");
    let listed = TESTS.len() + GOVERNING.len() + SIGNING_IN.len() + VIEWS.len();
    assert_eq!(tested.len(), listed, "a key is there twice");
}

/// What of the config counts as soon as it is loaded; a section stands for all of its keys.
const AT_ONCE: &[&str] = &[
    "$schema",
    "agents",
    "allowed_hosts",
    "allowed_origins",
    "egress",
    "audit.arguments",
    "audit.quota",
    "audit.result_limit",
    "audit.results",
    "audit.retention",
    "audit.retention_size",
    "danger_listen_without_auth",
    "drain_timeout",
    "first_list_wait",
    "governance",
    "jwt",
    "keep_alive",
    "limits",
    "list_page_size",
    "locality",
    "naming",
    "oauth",
    "profiles",
    "public_url",
    "secrets.exec",
    "servers",
    "request_state_ttl",
    "session_idle_timeout",
    "views",
    "workspaces",
];

/// What counts after a restart only, each with two configs that differ in it.
const AFTER_A_RESTART: &[(&str, &str, &str)] = &[
    (
        "admin_listen",
        "admin_listen = '127.0.0.1:1'",
        "admin_listen = '127.0.0.1:2'",
    ),
    (
        "audit.durability",
        "audit.durability = 'disk'",
        "audit.durability = 'process'",
    ),
    (
        "audit.enabled",
        "audit.enabled = true",
        "audit.enabled = false",
    ),
    ("data_dir", "data_dir = '/a'", "data_dir = '/b'"),
    ("listen", "listen = '127.0.0.1:1'", "listen = '127.0.0.1:2'"),
    ("log.format", "log.format = 'human'", "log.format = 'json'"),
    ("log.level", "log.level = 'info'", "log.level = 'debug'"),
    ("port_search", "port_search = 0", "port_search = 1"),
    (
        "secrets.key_file",
        "secrets.key_file = '/a'",
        "secrets.key_file = '/b'",
    ),
    (
        "socket.mode",
        "socket.mode = '0600'",
        "socket.mode = '0660'",
    ),
    ("socket.uids", "socket.uids = []", "socket.uids = [1]"),
    (
        "tls.cert",
        "tls = { cert = '/a', key = '/k' }",
        "tls = { cert = '/b', key = '/k' }",
    ),
    (
        "tls.client_ca",
        "tls = { cert = '/a', key = '/k', client_ca = '/c' }",
        "tls = { cert = '/a', key = '/k', client_ca = '/d' }",
    ),
    (
        "tls.key",
        "tls = { cert = '/a', key = '/k' }",
        "tls = { cert = '/a', key = '/l' }",
    ),
    ("workers", "workers = 1", "workers = 2"),
];

/// Every key counts either at once or after a restart.
#[test]
fn every_key_counts_at_once_or_after_a_restart() {
    let schema = schema();
    let mut keys = BTreeSet::new();
    collect(&schema, &schema, "", &mut keys);
    let is_in = |key: &str, section: &str| {
        let rest = key.strip_prefix(section);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    for key in &keys {
        let at_once = AT_ONCE.iter().filter(|section| is_in(key, section)).count();
        let later = AFTER_A_RESTART.iter().filter(|row| row.0 == key).count();
        assert_eq!(
            at_once + later,
            1,
            "{key}: {at_once} at once, {later} later"
        );
    }
    for section in AT_ONCE {
        assert!(keys.iter().any(|key| is_in(key, section)), "{section}");
    }
    let fixed: Vec<&str> = restart_keys().collect();
    let table: Vec<&str> = AFTER_A_RESTART.iter().map(|row| row.0).collect();
    assert_eq!(fixed, table);
}

/// A running gateway keeps what counts after a restart, says so, and takes the rest.
#[test]
fn what_counts_after_a_restart_is_kept() {
    for (key, running, changed) in AFTER_A_RESTART {
        let running = parse(running).unwrap();
        let mut config = parse(&format!("keep_alive = '99s'\n{changed}")).unwrap();
        assert_eq!(config.keep_restart_settings(&running), [*key]);
        assert_eq!(config.keep_alive.as_secs(), 99, "{key}");
        config.keep_alive = running.keep_alive;
        // They are those of what was read.
        config.named_files.clone_from(&running.named_files);
        assert_eq!(config, running, "{key}");
        assert!(config.keep_restart_settings(&running).is_empty(), "{key}");
    }
}

/// What a running server goes on with, each with two values; a section stands for all of its keys.
const WHILE_IT_RUNS: &[(&str, &str, &str)] = &[
    ("breaker", "{ failures = 1 }", "{ failures = 2 }"),
    ("budget", "{ limit = '1' }", "{ limit = '2' }"),
    ("ejection", "{ base = '2s' }", "{ base = '3s' }"),
    ("expose", "['tools']", "['prompts']"),
    ("grace", "'1s'", "'2s'"),
    ("health", "{ interval = '1s' }", "{ interval = '2s' }"),
    ("idle_timeout", "'1s'", "'2s'"),
    ("limits.in_flight", "1", "2"),
    ("limits.item", "'1 MiB'", "'2 MiB'"),
    ("limits.item_depth", "8", "9"),
    ("limits.queue", "1", "2"),
    ("namespace", "'a'", "'b'"),
    ("price", "'1'", "'2'"),
    ("priority", "1", "2"),
    ("prompts", "{ deny = ['a'] }", "{ deny = ['b'] }"),
    (
        "rate",
        "{ calls = 1, per = '1s' }",
        "{ calls = 2, per = '1s' }",
    ),
    ("resources", "{ deny = ['a'] }", "{ deny = ['b'] }"),
    ("retry", "{ base = '1s' }", "{ base = '2s' }"),
    (
        "scan",
        "{ results = { email = 'block' } }",
        "{ results = { email = 'redact' } }",
    ),
    ("startup_timeout", "'1s'", "'2s'"),
    ("tags", "['a']", "['b']"),
    ("timeout", "'1s'", "'2s'"),
    ("tools.allow", "['a']", "['b']"),
    ("tools.deny", "['a']", "['b']"),
    ("tools.describe", "{ a = 'b' }", "{ a = 'c' }"),
    ("tools.price", "{ a = '1' }", "{ a = '2' }"),
    ("tools.rename", "{ a = 'b' }", "{ a = 'c' }"),
    ("tools.timeout", "{ a = '1s' }", "{ a = '2s' }"),
    ("validate", "'off'", "'report'"),
];

/// What starts a server anew.
const ANEW: &[(&str, &str, &str)] = &[
    ("args", "['a']", "['b']"),
    ("auth", "{ type = 'none' }", ""),
    ("balance", "'failover'", "'least_loaded'"),
    ("command", "'a'", "'b'"),
    ("connect_timeout", "'1s'", "'2s'"),
    ("cwd", "'/a'", "'/b'"),
    ("egress", "", ""),
    ("enabled", "true", "false"),
    ("env", "{ A = '1' }", "{ A = '2' }"),
    ("env_file", "", ""),
    ("era", "'legacy'", "'modern'"),
    ("forward_headers", "['a']", "['b']"),
    ("headers", "", ""),
    ("inherit_env", "['A']", "['B']"),
    ("isolation", "'shared'", "'session'"),
    ("limits.memory", "'1 GiB'", "'2 GiB'"),
    ("limits.request", "'1 MiB'", "'2 MiB'"),
    ("limits.response", "'1 MiB'", "'2 MiB'"),
    ("max_instances", "1", "2"),
    ("max_total_timeout", "'5m'", "'6m'"),
    ("pool_size", "1", "2"),
    ("proxy", "", ""),
    ("replicas", "", ""),
    (
        "roots",
        "[{ uri = 'file:///a' }]",
        "[{ uri = 'file:///b' }]",
    ),
    ("route", "", ""),
    ("tls", "", ""),
    ("transport", "", ""),
    ("url", "", ""),
    ("user", "'a'", "'b'"),
];

/// Every key of a server either starts it anew or does not.
#[test]
fn every_key_of_a_server_starts_it_anew_or_not() {
    let schema = schema();
    let mut keys = BTreeSet::new();
    collect(&schema, &schema, "", &mut keys);
    for key in keys.iter().filter_map(|key| key.strip_prefix("servers.*.")) {
        let stands_for = |section: &str| {
            let rest = key.strip_prefix(section);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let found: Vec<_> = server_keys().filter(|known| stands_for(known.0)).collect();
        assert_eq!(found.len(), 1, "{key}: {found:?}");
    }
    let of = |takes: bool| {
        let known = server_keys().filter(move |known| known.1 == takes);
        known.map(|known| known.0).collect::<BTreeSet<_>>()
    };
    assert_eq!(of(true), WHILE_IT_RUNS.iter().map(|row| row.0).collect());
    assert_eq!(of(false), ANEW.iter().map(|row| row.0).collect());
}

/// A change of one key is seen, and does what the list says.
#[test]
fn a_changed_key_starts_its_server_anew_or_not() {
    let rows = WHILE_IT_RUNS.iter().map(|row| (row, true));
    let rows = rows.chain(ANEW.iter().map(|row| (row, false)));
    for ((key, old, new), goes_on) in rows.filter(|((_, _, new), _)| !new.is_empty()) {
        let command = if *key == "command" {
            ""
        } else {
            "command = 'a'\n"
        };
        let server = |value: &str| {
            let config = format!("[servers.x]\n{command}{key} = {value}\n");
            let mut config = parse(&config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
            config
                .servers
                .swap_remove(&ServerName::parse("x").unwrap())
                .unwrap()
        };
        let (old, new) = (server(old), server(new));
        assert_eq!(old.is_compatible_with(&new), goes_on, "{key}");
        assert!(old.is_compatible_with(&old) && old.changed_settings(&old).is_empty());
        let told = old.changed_settings(&new);
        assert_eq!(told.len(), 1, "{key}: {told:?}");
        assert!(key.starts_with(told[0]), "{key}: {told:?}");
    }
}

/// A server that is reached in another way is told by the keys that are written otherwise.
#[test]
fn how_a_server_is_reached_is_told_by_its_keys() {
    let server = |keys: &str| {
        let config = format!("[servers.x]\n{keys}\n");
        let mut config = parse(&config).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let x = ServerName::parse("x").unwrap();
        config.servers.swap_remove(&x).unwrap()
    };
    let check = |old: &str, new: &str, expect: &[&str]| {
        let (old, new) = (server(old), server(new));
        assert_eq!(old.changed_settings(&new), expect, "{old:?} {new:?}");
        assert_eq!(new.changed_settings(&old), expect, "{new:?} {old:?}");
        assert_eq!(
            old.is_compatible_with(&new),
            expect.is_empty(),
            "{old:?} {new:?}"
        );
    };
    let program = "command = 'a'\nargs = ['b']\nenv = { A = '1' }\ncwd = '/a'";
    let url = "url = 'http://localhost/a'\n";
    let with = |keys: &str| format!("{url}{keys}");
    check("command = 'a'", program, &["args", "cwd", "env"]);
    // A variable stands for the same argument, but hides the path of a URL.
    let variable = program.replace("'b'", "'${NONE:b}'");
    check(program, &variable, &[]);
    check(url, "url = '${NONE:http://localhost/a}'", &["url"]);
    check("command = 'a'", url, &["command", "url"]);
    check(program, url, &["args", "command", "cwd", "env", "url"]);
    check(
        "transport = 'builtin'",
        "command = 'a'",
        &["command", "transport"],
    );
    check(url, &with("transport = 'auto'"), &[]);
    check(url, &with("transport = 'http'"), &["transport"]);
    check(
        &with("transport = 'http'"),
        &with("transport = 'sse'"),
        &["transport"],
    );
    check(url, "url = 'ws://localhost/a'", &["url"]);
    check(url, &with("headers = { A = '1' }"), &["headers"]);
    let auth = "auth = { type = 'bearer', token = 't' }";
    check(url, &with(auth), &["auth"]);
    check(url, &with("proxy = 'http://a'"), &["proxy"]);
    check(url, &with("proxy = 'off'"), &[]);
    check(url, &with("tls = { ca = '/a' }"), &["tls"]);
}

/// `$schema` is for editors alone: other names like it, and other keys than `x-`, are mistakes.
#[test]
fn schema_key() {
    let parses = |text: &str| parse(text).is_ok();
    assert!(parses("\"$schema\" = \"schemas/config.schema.json\""));
    assert!(!parses("\"$other\" = \"schemas/config.schema.json\""));
    assert!(parses("x-shared = 1"));
    assert!(!parses("y-shared = 1"));
}

/// Collects the paths of what `node` says may be written.
fn collect(node: &Value, root: &Value, path: &str, keys: &mut BTreeSet<String>) {
    let node = resolved(node, root);
    let join = |key: &str| match path {
        "" => key.to_owned(),
        path => format!("{path}.{key}"),
    };
    let mut has_keys = false;
    if let Some(Value::Object(properties)) = node.get("properties") {
        has_keys = true;
        for (key, value) in properties {
            collect(value, root, &join(key), keys);
        }
    }
    if let Some(values @ Value::Object(_)) = node.get("additionalProperties") {
        has_keys = true;
        collect(values, root, &join("*"), keys);
    }
    for one in ["oneOf", "anyOf"] {
        for choice in node
            .get(one)
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
        {
            let is_object = resolved(choice, root).get("properties").is_some();
            has_keys |= is_object && one == "oneOf";
            collect(choice, root, path, keys);
        }
    }
    if let Some(items @ Value::Object(_)) = node.get("items") {
        collect(items, root, path, keys);
    }
    if has_keys {
        keys.remove(path);
    } else {
        keys.insert(path.to_owned());
    }
}

fn resolved<'a>(node: &'a Value, root: &'a Value) -> &'a Map<String, Value> {
    let object = node.as_object().unwrap();
    match object.get("$ref") {
        Some(target) => {
            let pointer = target.as_str().unwrap().trim_start_matches('#');
            root.pointer(pointer).unwrap().as_object().unwrap()
        }
        None => object,
    }
}
