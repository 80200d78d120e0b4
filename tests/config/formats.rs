//! Right configs: the defaults, every key, every format, several files.

use std::{path::Path, time::Duration};

use tollbridge::config::{
    Auth, Charset, Config, Conflict, EraPin, Isolation, LogFormat, Root, Transport,
};
use tollbridge::names::ServerName;

use crate::support::{accepted, config, report, server};

#[test]
fn nothing_written_gives_the_defaults() {
    for empty in [
        ("a.toml", "# later"),
        ("a.yaml", "# later"),
        ("a.yaml", "~"),
        ("a.json", "{}"),
    ] {
        let config = accepted(&[], &[empty]).config;
        assert_eq!(config, accepted(&[], &[]).config, "{empty:?}");
        assert_eq!(config.listen.to_string(), "127.0.0.1:8080");
        let cores = std::thread::available_parallelism().unwrap().get();
        assert_eq!(config.workers, cores.div_ceil(2));
        assert_eq!(config.keep_alive, Duration::from_secs(15));
        assert_eq!(config.first_list_wait, Duration::from_secs(2));
        assert_eq!(config.drain_timeout, Duration::from_secs(10));
        assert_eq!(config.list_page_size, None);
        assert_eq!(
            (config.limits.body, config.limits.headers),
            (4 << 20, 64 << 10)
        );
        assert_eq!(
            (config.limits.depth, config.limits.sessions_per_agent),
            (128, 10_000)
        );
        assert_eq!(
            (config.naming.charset, config.naming.conflict),
            (Charset::Strict, Conflict::Namespace)
        );
        assert_eq!(
            (&*config.naming.template, config.naming.max_length),
            ("mcp_{server}_{tool}", 46)
        );
    }
}

#[test]
fn a_server_has_defaults() {
    let config = config("[servers.a]\ncommand = 'a'");
    let server = server(&config, "a");
    let timeouts = [
        (server.idle_timeout, 600),
        (server.startup_timeout, 120),
        (server.connect_timeout, 30),
        (server.timeout, 60),
        (server.max_total_timeout, 600),
        (server.retry.max, 30),
    ];
    for (timeout, secs) in timeouts {
        assert_eq!(timeout, Duration::from_secs(secs));
    }
    assert_eq!(server.retry.base, Duration::from_millis(500));
    assert!((server.retry.jitter - 0.2).abs() < 1e-9);
    assert_eq!(
        (server.limits.request, server.limits.response),
        (4 << 20, 16 << 20)
    );
    assert_eq!(
        (server.max_instances, server.priority, server.enabled),
        (32, 0, true)
    );
    assert_eq!(
        (server.era, server.isolation),
        (EraPin::Auto, Isolation::Auto)
    );
    assert!(server.expose.tools && server.expose.resources && server.expose.prompts);
}

/// Every key, and whether it arrives.
#[test]
fn every_key_at_the_top_arrives() {
    check("listen = '[::1]:1'", |c| c.listen.to_string() == "[::1]:1");
    check(
        "listen = '0.0.0.0:1'\ndanger_listen_without_auth = true",
        |c| c.listen.to_string() == "0.0.0.0:1" && c.danger_listen_without_auth,
    );
    check("port_search = 9", |c| c.port_search == 9);
    check("allowed_hosts = ['a.example:8080']", |c| {
        c.allowed_hosts == ["a.example:8080"]
    });
    check("allowed_origins = ['https://a.example', '*']", |c| {
        c.allowed_origins == ["https://a.example", "*"]
    });
    check("workers = 3", |c| c.workers == 3);
    check(
        "log = { level = 'tollbridge=debug,warn', format = 'json' }",
        |c| c.log.level == "tollbridge=debug,warn" && c.log.format == LogFormat::Json,
    );
    check("tls = { cert = 'c.pem', key = '/k.pem' }", |c| {
        let tls = c.tls.as_ref().expect("written");
        tls.cert == Path::new("/etc/tollbridge/c.pem") && tls.key == Path::new("/k.pem")
    });
    check("limits = { body = '1MiB', headers = '8KiB' }", |c| {
        (c.limits.body, c.limits.headers) == (1 << 20, 8 << 10)
    });
    check("limits = { depth = 64, sessions_per_agent = 7 }", |c| {
        (c.limits.depth, c.limits.sessions_per_agent) == (64, 7)
    });
    check("keep_alive = '1m30s'", |c| {
        c.keep_alive == Duration::from_secs(90)
    });
    check("first_list_wait = 0", |c| c.first_list_wait.is_zero());
    check("first_list_wait = '0s'", |c| c.first_list_wait.is_zero());
    check("drain_timeout = '250ms'", |c| {
        c.drain_timeout == Duration::from_millis(250)
    });
    check("list_page_size = 50", |c| c.list_page_size == Some(50));
}

#[test]
fn every_key_of_naming_arrives() {
    check("naming = { template = '{server}.{tool}' }", |c| {
        c.naming.template == "{server}.{tool}"
    });
    check("naming = { charset = 'original' }", |c| {
        c.naming.charset == Charset::Original
    });
    check("naming = { max_length = 128 }", |c| {
        c.naming.max_length == 128
    });
    check("naming = { conflict = 'priority' }", |c| {
        c.naming.conflict == Conflict::Priority
    });
    check("naming = { conflict = 'first' }", |c| {
        c.naming.conflict == Conflict::First
    });
    check("naming = { conflict = 'error' }", |c| {
        c.naming.conflict == Conflict::Error
    });
    check("naming = { namespace_resources = false }", |c| {
        !c.naming.namespace_resources
    });
}

#[test]
fn every_way_to_a_server_arrives() {
    let text = r#"
        [servers.program]
        command = "npx"
        args = ["-y", "server"]
        env = { A = "1" }
        cwd = "work"

        [servers.probed]
        url = "https://example.com/mcp"
        headers = { X-Team = "a" }

        [servers.socket]
        url = "wss://example.com/mcp"

        [servers.http]
        url = "http://127.0.0.1:1/mcp"
        transport = "http"
        auth = { type = "bearer", token = "t" }

        [servers.sse]
        url = "https://example.com/sse"
        transport = "sse"
        auth = { type = "header", name = "X-API-Key", value = "v" }

        [servers.toolbox]
        transport = "builtin"
    "#;
    let config = config(text);
    let Transport::Stdio(command) = &server(&config, "program").transport else {
        panic!()
    };
    assert_eq!((&*command.program, command.args.len()), ("npx", 2));
    assert_eq!(command.env["A"].expose(), "1");
    assert_eq!(command.cwd, Some("/etc/tollbridge/work".into()));
    let Transport::Auto(remote) = &server(&config, "probed").transport else {
        panic!()
    };
    assert_eq!(remote.headers["X-Team"].expose(), "a");
    assert!(matches!(
        server(&config, "socket").transport,
        Transport::WebSocket(_)
    ));
    let Transport::Http(remote) = &server(&config, "http").transport else {
        panic!()
    };
    assert!(matches!(&remote.auth, Auth::Bearer { token } if token.expose() == "t"));
    let Transport::Sse(remote) = &server(&config, "sse").transport else {
        panic!()
    };
    assert!(matches!(&remote.auth, Auth::Header { name, .. } if name == "X-API-Key"));
    assert!(matches!(
        server(&config, "toolbox").transport,
        Transport::Builtin
    ));
    let names: Vec<&str> = config.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(
        names,
        ["program", "probed", "socket", "http", "sse", "toolbox"],
        "as written"
    );
}

#[test]
fn every_other_key_of_a_server_arrives() {
    let text = r#"
        [servers.a]
        command = "a"
        era = "legacy"
        enabled = false
        namespace = "b"
        expose = ["prompts"]
        priority = -5
        tags = ["x"]
        roots = ["file:///a", { uri = "file:///b", name = "B" }]
        isolation = "session"
        max_instances = 2
        idle_timeout = "1s"
        startup_timeout = "2s"
        connect_timeout = "3s"
        timeout = "4s"
        max_total_timeout = "5s"
        retry = { base = "1s", max = "2s", jitter = 0 }
        limits = { request = "1KiB", response = "2KiB" }
        tools = { allow = ["get_*"], deny = ["*_x"], rename = { a = "b" }, describe = { a = "A." } }
        resources = { rename = { "file:///a" = "file:///b" } }
        prompts = { allow = [] }
    "#;
    let config = config(text);
    let a = server(&config, "a");
    assert_eq!(
        (a.era, a.enabled, a.namespace.as_deref()),
        (EraPin::Legacy, false, Some("b"))
    );
    assert!(a.expose.prompts && !a.expose.tools && !a.expose.resources);
    assert_eq!((a.priority, &a.tags[..]), (-5, &["x".to_owned()][..]));
    let root = |uri: &str, name: Option<&str>| Root {
        uri: uri.into(),
        name: name.map(Into::into),
    };
    assert_eq!(
        a.roots,
        Some(vec![root("file:///a", None), root("file:///b", Some("B"))])
    );
    assert_eq!((a.isolation, a.max_instances), (Isolation::Session, 2));
    let timeouts = [
        a.idle_timeout,
        a.startup_timeout,
        a.connect_timeout,
        a.timeout,
        a.max_total_timeout,
    ];
    assert_eq!(timeouts.map(|timeout| timeout.as_secs()), [1, 2, 3, 4, 5]);
    assert_eq!((a.retry.base.as_secs(), a.retry.max.as_secs()), (1, 2));
    assert!(a.retry.jitter.abs() < f64::EPSILON);
    assert_eq!((a.limits.request, a.limits.response), (1 << 10, 2 << 10));
    assert_eq!(a.tools.allow.as_ref().expect("written")[0].glob(), "get_*");
    assert_eq!(
        (a.tools.deny[0].glob(), &*a.tools.rename["a"]),
        ("*_x", "b")
    );
    assert_eq!(
        (&*a.tools.describe["a"], &*a.resources.rename["file:///a"]),
        ("A.", "file:///b")
    );
    assert_eq!(a.prompts.allow, Some(Vec::new()));
}

#[test]
fn globs_do_not_match_slashes() {
    let config = config("[servers.a]\ncommand = 'a'\ntools = { deny = ['a*'] }");
    let matcher = server(&config, "a").tools.deny[0].compile_matcher();
    assert!(matcher.is_match("ab") && !matcher.is_match("a/b"));
}

#[test]
fn a_long_timeout_lengthens_the_total() {
    let config = config("[servers.a]\ncommand = 'a'\ntimeout = '1h'");
    assert_eq!(
        server(&config, "a").max_total_timeout,
        Duration::from_secs(3600)
    );
}

#[test]
fn the_formats_agree() {
    let toml = r#"
        listen = "127.0.0.1:9"
        keep_alive = "20s"
        [naming]
        max_length = 60
        [servers.b]
        command = "b"
        args = ["é\t", "2"]
        retry = { jitter = 0.5 }
        [servers.a]
        url = "https://example.com"
    "#;
    let yaml = r#"
        listen: 127.0.0.1:9   # quotes are not needed
        keep_alive: 20s
        naming: {max_length: 60}
        servers:
          b:
            command: b
            args: ["é\t", '2']
            retry:
              jitter: .5
          a:
            url: https://example.com
    "#;
    let json = r#"
        // as editors write it
        {
            "$schema": "config.schema.json",
            "listen": "127.0.0.1:9", /* here */
            "keep_alive": "20s",
            "naming": { "max_length": 60 },
            "servers": {
                "b": { "command": "b", "args": ["\u00e9\t", "2"], "retry": { "jitter": 5e-1 } },
                "a": { "url": "https://example.com" },
            },
        }
    "#;
    let expected = config(toml);
    assert_eq!(accepted(&[], &[("a.yaml", yaml)]).config, expected);
    assert_eq!(accepted(&[], &[("a.yml", yaml)]).config, expected);
    assert_eq!(accepted(&[], &[("a.json", json)]).config, expected);
    assert_eq!(
        accepted(&[], &[("a.jsonc", &format!("\u{feff}{json}"))]).config,
        expected
    );
}

#[test]
fn yaml_reads_numbers_as_its_core_schema_does() {
    let max_length = |text: &str| {
        let yaml = format!("naming: {{max_length: {text}}}");
        accepted(&[], &[("a.yaml", &yaml)]).config.naming.max_length
    };
    assert_eq!(max_length("0x3c"), 60);
    assert_eq!(max_length("0o74"), 60);
    for text in ["0x+3c", "0o+74", "0x-3c", "0x"] {
        let yaml = format!("naming: {{max_length: {text}}}");
        let mistakes = report(&[], &[("a.yaml", &yaml)]);
        assert!(mistakes.contains("number"), "{text}: {mistakes}");
    }
}

#[test]
fn yaml_shares_through_anchors() {
    let yaml = r"
        x-base: &base
          timeout: 5s
          enabled: false
        servers:
          a: {<<: *base, command: a, enabled: true}
          b:
            command: &b b
            <<: [*base, {timeout: 9s}]
          c: {command: *b}
    ";
    let config = accepted(&[], &[("a.yaml", yaml)]).config;
    let of = |name| {
        (
            server(&config, name).timeout.as_secs(),
            server(&config, name).enabled,
        )
    };
    assert_eq!(
        (of("a"), of("b"), of("c")),
        ((5, true), (5, false), (60, true))
    );
}

#[test]
fn later_files_win_key_by_key() {
    let base = r#"
        workers = 1
        allowed_hosts = ["a"]
        [naming]
        max_length = 60
        charset = "original"
        [servers.a]
        command = "a"
        env = { A = "1", B = "1" }
        timeout = "5s"
        auth = { type = "bearer", token = "t" }
        [servers.b]
        command = "b"
    "#;
    let local = r#"{
        "workers": 2,
        "allowed_hosts": ["b", "c"],
        "naming": { "charset": null },
        "servers": { "c": { "command": "c" }, "a": { "env": { "B": "2" }, "timeout": null } }
    }"#;
    let config = accepted(&[], &[("base.toml", base), ("local.json", local)]).config;
    assert_eq!((config.workers, config.naming.max_length), (2, 60));
    assert_eq!(config.allowed_hosts, ["b", "c"], "lists are replaced");
    assert_eq!(config.naming.charset, Charset::Strict, "null removes");
    let names: Vec<&str> = config.servers.keys().map(ServerName::as_str).collect();
    assert_eq!(names, ["a", "b", "c"]);
    let Transport::Stdio(command) = &server(&config, "a").transport else {
        panic!()
    };
    assert_eq!(
        (command.env["A"].expose(), command.env["B"].expose()),
        ("1", "2")
    );
    assert_eq!(server(&config, "a").timeout.as_secs(), 60);
}

#[test]
fn another_kind_of_credential_replaces_the_first() {
    let base = r#"
        [servers.a]
        url = "https://example.com"
        auth = { type = "bearer", token = "t" }
    "#;
    let local = "servers: {a: {auth: {type: header, name: X-Key, value: v}}}";
    let config = accepted(&[], &[("base.toml", base), ("local.yaml", local)]).config;
    let Transport::Auto(remote) = &server(&config, "a").transport else {
        panic!()
    };
    assert!(matches!(remote.auth, Auth::Header { .. }));
}

#[test]
fn equal_prefixes_matter_only_where_they_are_used() {
    let accepted = [
        "naming = { template = '{tool}', namespace_resources = false }
         servers = { a-b = { command = 'x' }, a_b = { command = 'x' } }",
        "servers = { a-b = { command = 'x' }, a_b = { command = 'x', enabled = false } }",
        "servers = { a-b = { command = 'x' }, a_b = { command = 'x', namespace = 'c' } }",
    ];
    for text in accepted {
        config(text);
    }
}

fn check(text: &str, arrives: impl FnOnce(&Config) -> bool) {
    let config = config(text);
    assert!(arrives(&config), "{text} gives {config:#?}");
}
