//! A config shown to people and scripts.

use insta::assert_snapshot;

use crate::support::{accepted, config};

const FULL: &str = r#"
    workers = 2
    data_dir = "data"
    tls = { cert = "c.pem", key = "k.pem" }
    list_page_size = 5
    [naming]
    conflict = "priority"
    [servers.github]
    command = "npx"
    args = ["-y", "--token", "hunter2", "server"]
    env = { TOKEN = "hunter2" }
    roots = ["file:///a", { uri = "file:///b", name = "B" }]
    tools = { deny = ["x_*"], rename = { a = "b" } }
    [servers.docs]
    url = "https://example.com/mcp?key=hunter2"
    auth = { type = "bearer", token = "hunter2" }
    enabled = false
    [servers.toolbox]
    transport = "builtin"
"#;

#[test]
#[expect(clippy::too_many_lines, reason = "what is shown is the test")]
fn for_people() {
    assert_snapshot!(config(FULL).to_display(), @r#"
    listen = "127.0.0.1:8080"
    danger_listen_without_auth = false
    port_search = 0
    data_dir = "/etc/tollbridge/data"
    allowed_hosts = []
    allowed_origins = []
    workers = 2
    keep_alive = "15s"
    first_list_wait = "2s"
    drain_timeout = "10s"
    request_state_ttl = "1d"
    session_idle_timeout = "1d"
    list_page_size = 5

    [socket]
    mode = "0600"
    uids = []

    [log]
    level = "info"
    format = "human"

    [tls]
    cert = "/etc/tollbridge/c.pem"
    key = "/etc/tollbridge/k.pem"

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
    conflict = "priority"
    namespace_resources = true

    [audit]
    enabled = true
    durability = "process"
    arguments = false
    results = false
    result_limit = "64KiB"
    retention = "90d"

    [secrets]
    exec = false

    [servers.github]
    command = "npx"
    args = [
        "-y",
        "--token",
        "***",
        "server",
    ]
    transport = "stdio"
    era = "auto"
    enabled = true
    expose = [
        "tools",
        "resources",
        "prompts",
    ]
    priority = 0
    roots = [
        "file:///a",
        { uri = "file:///b", name = "B" },
    ]
    isolation = "auto"
    max_instances = 32
    pool_size = 4
    startup_timeout = "2m"
    connect_timeout = "30s"
    timeout = "1m"
    max_total_timeout = "10m"
    grace = "30s"
    validate = "auto"

    [servers.github.env]
    TOKEN = "***"

    [servers.github.tools]
    deny = ["x_*"]

    [servers.github.tools.rename]
    a = "b"

    [servers.github.retry]
    base = "500ms"
    max = "30s"
    jitter = 0.2
    stable_after = "30s"
    starts_per_minute = 30
    failed_after = 1

    [servers.github.breaker]
    failures = 5
    open_for = "10s"

    [servers.github.health]
    interval = "30s"
    timeout = "10s"
    failures = 3
    probe = "ping"

    [servers.github.limits]
    request = "4MiB"
    response = "16MiB"
    queue = 128
    item = "1MiB"
    item_depth = 32

    [servers.docs]
    url = "https://example.com/mcp?***"
    transport = "auto"
    era = "auto"
    enabled = false
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

    [servers.docs.auth]
    type = "bearer"
    token = "***"

    [servers.docs.retry]
    base = "500ms"
    max = "30s"
    jitter = 0.2
    stable_after = "30s"
    starts_per_minute = 30
    failed_after = 1

    [servers.docs.breaker]
    failures = 5
    open_for = "10s"

    [servers.docs.health]
    interval = "30s"
    timeout = "10s"
    failures = 3
    probe = "ping"

    [servers.docs.limits]
    request = "4MiB"
    response = "16MiB"
    queue = 128
    item = "1MiB"
    item_depth = 32

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
    "#);
}

#[test]
fn for_scripts() {
    let shown = config(FULL).to_display().to_json();
    assert_eq!(shown["servers"]["github"]["env"]["TOKEN"], "***");
    assert_eq!(shown["servers"]["docs"]["auth"]["token"], "***");
    assert_eq!(
        shown["servers"]["docs"]["url"],
        "https://example.com/mcp?***"
    );
    assert_eq!(shown["keep_alive"], "15s");
}

#[test]
fn what_is_shown_loads_again() {
    let without_secrets = FULL
        .replace(r#"env = { TOKEN = "hunter2" }"#, "")
        .replace(r#"auth = { type = "bearer", token = "hunter2" }"#, "")
        .replace(r#""--token", "hunter2", "#, "")
        .replace("?key=hunter2", "");
    for text in ["workers = 2", &without_secrets] {
        let config = config(text);
        let shown = config.to_display();
        assert_eq!(
            accepted(&[], &[("a.toml", &shown.to_string())]).config,
            config
        );
        assert_eq!(
            accepted(&[], &[("a.json", &shown.to_json().to_string())])
                .config
                .servers
                .len(),
            config.servers.len()
        );
    }
}

/// A program may be given a secret in any argument: variables are shown by their names.
#[test]
fn arguments_of_variables_are_shown_by_name() {
    let environment = [("KEY", "hunter2"), ("HOME", "/home/ann")];
    let shown = |name: &str, file: &str, environment: &[(&str, &str)]| {
        let config = accepted(environment, &[(name, file)]).config;
        let shown = config.to_display().to_json();
        assert!(!shown.to_string().contains("hunter2"), "{shown}");
        shown["servers"]["x"]["args"].to_string()
    };
    let args = r#"["${KEY}","-p","a${KEY}b","--token=${KEY}","${HOME}/notes","plain"]"#;
    let expect = args;
    let toml = format!("[servers.x]\ncommand = \"cat\"\nargs = {args}\n");
    let json = format!(r#"{{"mcpServers":{{"x":{{"command":"cat","args":{args}}}}}}}"#);
    let yaml = "servers:\n  x:\n    command: cat\n    args:\n    - ${KEY}\n    - -p\n    - 'a${KEY}b'\n    \
                - \"--token=${KEY}\"\n    - ${HOME}/notes\n    - plain\n";
    for (name, file) in [
        ("a.toml", toml.as_str()),
        ("a.json", &json),
        ("a.yaml", yaml),
    ] {
        assert_eq!(shown(name, file, &environment), expect, "{name}");
    }
    let toml = |args: &str| format!("[servers.x]\ncommand = \"cat\"\nargs = {args}\n");
    for (args, expect) in [
        (
            r#"["a\t${KEY}", '"${KEY}"']"#,
            r#"["a\t${KEY}","\"${KEY}\""]"#,
        ),
        // Of what has a default, the default is what runs.
        (
            r#"["${OTHER:/x}/${KEY}", "${A_TOKEN:hunter2}"]"#,
            r#"["/x/${KEY}","***"]"#,
        ),
        (r#"["--token", "a${KEY}"]"#, r#"["--token","***"]"#),
        (r#"["$${KEY} $KEY $$"]"#, r#"["$${KEY} $KEY $$"]"#),
    ] {
        assert_eq!(shown("a.toml", &toml(args), &environment), expect, "{args}");
    }
    let yaml = "servers:\n  x:\n    command: cat\n    args:\n    - &a \"${KEY}x\"\n    - *a\n    \
                - !!str ${KEY}\n    - 'it''s ${KEY}'\n";
    let expect = r#"["${KEY}x","${KEY}x","${KEY}","it's ${KEY}"]"#;
    assert_eq!(shown("a.yaml", yaml, &environment), expect);
    let of_vs_code = r#"{"inputs":[{"id":"key","type":"promptString"}],"servers":{"x":{"command":"cat","args":
        ["${env:KEY}","${env:HOME}/.npm","${userHome}/b","${workspaceFolder}/a","${input:key}","$$$"]}}}"#;
    let expect = r#"["${KEY}","${HOME}/.npm","${HOME}/b","/etc/tollbridge/a","${KEY}","$$$$$$"]"#;
    assert_eq!(shown("a.json", of_vs_code, &environment), expect);
    let numbers = r#"{"mcpServers":{"x":{"command":"cat","args":["-p",8080,true]}}}"#;
    let expect = r#"["-p","8080","true"]"#;
    assert_eq!(shown("a.json", numbers, &environment), expect);
    for (args, expect) in [
        (r#"["hunter2"]"#, r#"["***"]"#),
        (r#"["hunter2", "${Y}pw"]"#, r#"["***","***"]"#),
        (
            r#"[sh, -c, "echo ${HOME} hunter2"]"#,
            r#"["***","***","***"]"#,
        ),
    ] {
        let overridden = [("TOLLBRIDGE_SERVERS__X__ARGS", args)];
        let file = "[servers.x]\ncommand = \"cat\"\n";
        assert_eq!(shown("a.toml", file, &overridden), expect, "{args}");
    }
}

/// Some services have their key in the path: what a variable gave is not shown, what is written is.
#[test]
fn paths_of_variables_are_hidden() {
    let shown = |url: &str| {
        let file = format!("[servers.docs]\nurl = \"{url}\"\n");
        let environment = [("KEY", "hunter2"), ("HOST", "a.example.com")];
        let config = accepted(&environment, &[("a.toml", &file)]).config;
        let shown = config.to_display().to_string();
        let mut lines = shown.lines().filter_map(|line| line.strip_prefix("url = "));
        lines.next().expect("a URL").to_owned()
    };
    for (written, expect) in [
        (
            "https://a.example.com/${KEY}/mcp",
            "https://a.example.com/***",
        ),
        (
            "https://a.example.com/v1/${KEY}?a=b",
            "https://a.example.com/***?***",
        ),
        ("https://${HOST}/mcp", "https://a.example.com/***"),
        ("https://${HOST}", "https://a.example.com/"),
        (
            "https://a.example.com/v1/mcp",
            "https://a.example.com/v1/mcp",
        ),
    ] {
        assert_eq!(shown(written), format!("\"{expect}\""), "{written}");
    }
    let overridden = [(
        "TOLLBRIDGE_SERVERS__DOCS__URL",
        "https://a.example.com/hunter2",
    )];
    let file = "[servers.docs]\nurl = \"https://b.example.com\"\n";
    let config = accepted(&overridden, &[("a.toml", file)]).config;
    let shown = config.to_display().to_string();
    assert!(
        shown.contains("url = \"https://a.example.com/***\""),
        "{shown}"
    );
}
