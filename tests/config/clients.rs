//! The formats of other programs: one document of each, with what it gives.

use std::path::Path;

use tollbridge::config::{
    Auth, Authentication, Config, ConfigErrors, ConfigFormat, ConfigText, Environment,
    LoadedConfig, Remote, Server, StdioCommand, Transport, parse,
};

/// The variables that the documents name.
const ENVIRONMENT: [(&str, &str); 5] = [
    ("AGENT_KEY", "8d1f0b6c2a7e4f3d9b5c1e0a6f7d2c4b"),
    ("HOME", "/home/me"),
    ("KEY", "k"),
    ("REGION", "eu"),
    ("EMPTY", ""),
];

fn read(path: &str, text: &str) -> Result<LoadedConfig, ConfigErrors> {
    let file = Path::new(path);
    let source = ConfigText {
        name: path.to_owned(),
        format: ConfigFormat::from_path(file).expect("the name tells the format"),
        text: text.to_owned(),
        directory: file.parent().expect("a directory").to_owned(),
    };
    let environment: Environment = ENVIRONMENT.into_iter().collect();
    parse([source], &environment)
}

/// Checks the servers that a document gives, and that its warnings, in their order, say `warned`.
#[track_caller]
fn check(path: &str, text: &str, servers: &[&str], warned: &[&str]) {
    let loaded = read(path, text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
    assert_eq!(described(&loaded.config), servers, "{path}");
    let warnings: Vec<&str> = loaded.warnings.iter().map(|it| &*it.message).collect();
    assert_eq!(warnings, warned, "{path}");
}

/// Checks that a document is refused for one reason.
#[track_caller]
fn check_refused(path: &str, text: &str, reason: &str) {
    let report = read(path, text).expect_err("refused").to_string();
    assert!(report.contains(reason), "{report}");
    assert!(report.contains("1 error"), "{report}");
}

fn described(config: &Config) -> Vec<String> {
    let servers = config.servers.iter();
    servers
        .map(|(name, server)| format!("{}: {}", name, describe(server)))
        .collect()
}

fn describe(server: &Server) -> String {
    let mut words = vec![match &server.transport {
        Transport::Stdio(program) => describe_program(program),
        Transport::Auto(remote) => describe_remote("auto", remote),
        Transport::Http(remote) => describe_remote("http", remote),
        Transport::Sse(remote) => describe_remote("sse", remote),
        Transport::WebSocket(remote) => describe_remote("ws", remote),
        Transport::Builtin => "builtin".to_owned(),
        Transport::ControlSocket(_) => "control socket".to_owned(),
    }];
    let usual = Server::default();
    for (name, time, default) in [
        ("timeout", server.timeout, usual.timeout),
        ("startup", server.startup_timeout, usual.startup_timeout),
        ("connect", server.connect_timeout, usual.connect_timeout),
    ] {
        if time != default {
            words.push(format!("{name} {}ms", time.as_millis()));
        }
    }
    let globs = |globs: &[globset::Glob]| {
        let globs: Vec<&str> = globs.iter().map(globset::Glob::glob).collect();
        globs.join(",")
    };
    if let Some(allow) = &server.tools.allow {
        words.push(format!("allow [{}]", globs(allow)));
    }
    if !server.tools.deny.is_empty() {
        words.push(format!("deny [{}]", globs(&server.tools.deny)));
    }
    if !server.enabled {
        words.push("off".to_owned());
    }
    words.join(" ")
}

fn describe_program(program: &StdioCommand) -> String {
    let cwd = program.cwd.as_ref();
    let cwd = cwd.map_or_else(String::new, |cwd| format!(" in {}", cwd.display()));
    let env = program.env.iter();
    let env = env.map(|(name, value)| format!(" {name}={}", value.expose()));
    let env: String = env.collect();
    format!("{} {:?}{cwd}{env}", program.program, program.args)
}

fn describe_remote(kind: &str, remote: &Remote) -> String {
    let headers = remote.headers.iter();
    let headers = headers.map(|(name, value)| format!(" {name}: {}", value.expose()));
    let bearer = match &remote.auth {
        Auth::Bearer { token } => format!(" bearer {}", token.expose()),
        Auth::Header { .. } | Auth::None | Auth::OAuth2(_) => String::new(),
    };
    format!(
        "{kind} {}{}{bearer}",
        remote.url,
        headers.collect::<String>()
    )
}

#[test]
fn codex() {
    check(
        "/p/.codex/config.toml",
        r#"
        model = "gpt"
        profile = "fast"
        [profiles.fast]
        model = "mini"
        [agents]
        max_threads = 6
        [mcp_servers.local]
        command = "./bin/server"
        args = ["-v"]
        env = { A = "1" }
        env_vars = ["KEY", "NOT_SET", { name = "REGION", source = "local" }]
        startup_timeout_sec = 10.5
        tool_timeout_sec = 90
        enabled_tools = ["a", "b"]
        disabled_tools = ["b"]
        [mcp_servers.local.tools.a]
        approval_mode = "approve"
        [mcp_servers.remote]
        url = "https://a.example/mcp"
        bearer_token_env_var = "KEY"
        http_headers = { X-A = "1" }
        env_http_headers = { X-B = "REGION", X-C = "NOT_SET" }
        startup_timeout_ms = 2500
        enabled = false
        required = true
        "#,
        &[
            "local: /p/bin/server [\"-v\"] in /p A=1 KEY=k REGION=eu timeout 90000ms \
             startup 10500ms allow [a,b] deny [b]",
            "remote: auto https://a.example/mcp X-A: 1 X-B: eu bearer k startup 2500ms off",
        ],
        &[
            "ignored keys: `model`, `profile`, `profiles`, `agents`, `servers.local.env_vars`, \
             `servers.remote.env_http_headers` and `servers.remote.required`",
            "protection is lost, by keys that are ignored: `servers.local.tools.a`",
        ],
    );
}

#[test]
fn zed() {
    check(
        "/home/me/.config/zed/settings.json",
        r#"{
          // comments are usual
          "theme": "One", "agent": { "profiles": {} },
          "context_servers": {
            "new": { "source": "custom", "command": "a", "args": ["~/x"], "env": {}, "timeout": 5 },
            "old": { "command": { "path": "b", "args": ["c"], "env": { "D": "1" } } },
            "far": { "url": "https://a.example/mcp", "headers": { "X": "$KEY" }, "enabled": false },
            "ext": { "settings": { "token": "${NOT_SET}" } },
          },
        }"#,
        &[
            "new: a [\"~/x\"] timeout 5000ms",
            "old: b [\"c\"] D=1",
            "far: auto https://a.example/mcp X: $KEY off",
        ],
        &[
            "ignored keys: `theme`, `agent`, `servers.new.source` and `servers.ext`",
            "`servers.new.args` has `~/`, which Zed does not expand",
        ],
    );
}

#[test]
fn continue_dev() {
    check(
        "/p/.continue/config.yaml",
        "
name: x
version: 1.0.0
agents: [a]
mcpServers:
  - name: local tool
    type: stdio
    command: a
    connectionTimeout: 1500
  - name: docs
    type: streamable-http
    url: https://a.example/mcp
    requestOptions:
      headers:
        Authorization: Bearer ${{ secrets.KEY }}
      verifySsl: false
  - uses: someone/block
",
        &[
            "local-tool: a [] in /p startup 1500ms",
            "docs: http https://a.example/mcp Authorization: Bearer k",
        ],
        &[
            "ignored keys: `name`, `version`, `agents`, `servers.docs.requestOptions.verifySsl` and \
             `mcpServers[2]`",
            "the server is renamed to `local-tool`",
        ],
    );
}

#[test]
fn opencode() {
    check(
        "/p/opencode.jsonc",
        r#"{
          "$schema": "https://opencode.ai/config.json",
          "permission": { "bash": "ask" },
          "tools": { "local_*": false },
          "provider": { "a": { "key": "{env:NOT_SET}" } },
          "mcp": {
            "local": { "type": "local", "command": ["npx", "-y", "a"], "environment": { "A": "{env:KEY}" }, "timeout": 5000 },
            "remote": { "type": "remote", "url": "https://a.example/mcp", "headers": { "X": "{env:REGION}" }, "oauth": false },
            "login": { "type": "remote", "url": "https://b.example/mcp", "oauth": { "clientSecret": "{env:NOT_SET}" } },
            "off": { "enabled": false },
          },
        }"#,
        &[
            "local: npx [\"-y\", \"a\"] in /p A=k timeout 5000ms startup 5000ms",
            "remote: auto https://a.example/mcp X: eu",
            "login: auto https://b.example/mcp",
        ],
        &[
            "protection is lost, by keys that are ignored: `permission` and `tools`",
            "ignored keys: `provider` and `servers.login.oauth`",
            "`servers.off` is skipped",
        ],
    );
}

#[test]
fn crush() {
    check(
        "/p/.crush.json",
        r#"{
          "$schema": "https://charm.land/crush.json",
          "lsp": { "go": { "command": "gopls" } },
          "mcp": {
            "a": { "type": "http", "url": "https://a.example/mcp", "timeout": 120, "disabled_tools": ["x"],
                   "headers": { "Authorization": "Bearer $KEY" } },
            "b": { "type": "stdio", "command": "~/b", "args": ["~/c"], "env": { "A": "${REGION}", "B": "$(date)" }, "disabled": false }
          }
        }"#,
        &[
            "a: http https://a.example/mcp Authorization: Bearer k timeout 120000ms deny [x]",
            "b: /home/me/b [\"~/c\"] in /p A=eu B=$(date)",
        ],
        &[
            "ignored keys: `lsp`",
            "`servers.b.args` has `~/`, which Crush does not expand",
            "`servers.b.env` has `$(...)`, which Crush does not expand",
        ],
    );
}

#[test]
fn goose() {
    check(
        "/home/me/.config/goose/config.yaml",
        "
GOOSE_MODE: approve
extensions:
  a:
    {type: stdio, name: a, cmd: npx, args: [-y, a], envs: {A: '1'}, env_keys: [KEY, SECRET], timeout: 300,
     bundled: null, description: null, available_tools: []}
  b: {type: streamable_http, uri: 'https://a.example/mcp', headers: {X: '1'}, enabled: false, available_tools: [t]}
  c: {type: builtin, name: developer, bundled: true, enabled: true, timeout: 300}
",
        &[
            "a: npx [\"-y\", \"a\"] A=1 KEY=k timeout 300000ms",
            "b: http https://a.example/mcp X: 1 allow [t] off",
        ],
        &["ignored keys: `GOOSE_MODE`, `servers.a.name`, `servers.a.env_keys` and `servers.c`"],
    );
}

#[test]
fn vs_code_settings() {
    check(
        "/home/me/.config/Code/User/settings.json",
        r#"{
          "editor.fontSize": 12,
          "mcp": {
            "inputs": [{ "id": "region", "type": "promptString" }],
            "servers": {
              "a": { "command": "~/a", "args": ["${input:region}"] },
              "b": { "type": "sse", "url": "https://a.example/sse" },
            }
          },
          "log": "debug"
        }"#,
        &["a: /home/me/a [\"eu\"]", "b: auto https://a.example/sse"],
        &["ignored keys: `editor.fontSize` and `log`"],
    );
}

#[test]
fn claude_code_with_servers_of_projects() {
    check(
        "/home/me/.claude.json",
        r#"{
          "numStartups": 3, "oauthAccount": { "token": "${NOT_SET}" },
          "projects": {
            "/home/me/a": {
              "allowedTools": [], "disabledMcpServers": ["off"],
              "mcpServers": {
                "db": { "type": "stdio", "command": "./db", "args": [], "env": {} },
                "off": { "type": "http", "url": "https://a.example/mcp" }
              }
            },
            "/home/me/b": { "mcpServers": {
              "db": { "type": "stdio", "command": "uvx", "timeout": 5000 },
              "user": { "type": "stdio", "command": "c" }
            } },
            "/home/me/c": { "mcpServers": {}, "disabledMcpjsonServers": ["x"] }
          },
          "mcpServers": { "user": { "type": "stdio", "command": "u" } }
        }"#,
        &[
            "user: u []",
            "db: /home/me/a/db [] in /home/me/a",
            "off: http https://a.example/mcp off",
            "db-b: uvx [] in /home/me/b timeout 5000ms",
            "user-b: c [] in /home/me/b",
        ],
        &[
            "ignored keys: `numStartups`, `oauthAccount` and `projects.*.allowedTools`",
            "the server is renamed to `db-b`",
            "the server is renamed to `user-b`",
            "protection is lost, by keys that are ignored: `projects.*.disabledMcpjsonServers`",
        ],
    );
}

#[test]
fn gemini() {
    check(
        "/p/.gemini/settings.json",
        r#"{
          "agents": { "overrides": {} },
          "mcp": { "allowed": ["a", "b"], "excluded": ["b"] },
          "mcpServers": {
            "a": { "command": "a", "cwd": "./sub", "env": { "A": "$KEY", "B": "${REGION}", "C": "%KEY%" },
                   "timeout": 500, "includeTools": ["t(x)"], "excludeTools": ["u(y)", "v"], "trust": false },
            "b": { "httpUrl": "https://a.example/mcp" },
            "c": { "url": "https://b.example/sse", "authProviderType": "google_credentials" }
          }
        }"#,
        &[
            "a: a [] in /p/sub A=k B=eu C=%KEY% timeout 500ms allow [t] deny [u,v]",
            "b: http https://a.example/mcp off",
            "c: auto https://b.example/sse off",
        ],
        &[
            "ignored keys: `agents` and `servers.c.authProviderType`",
            "`servers.a.env` has `%VARIABLE%`, which Gemini CLI does not expand",
            "`servers.a.includeTools` has a tool with arguments",
            "`servers.a.excludeTools` has a tool with arguments",
            "protection is lost, by keys that are ignored: `servers.a.trust`",
        ],
    );
}

#[test]
fn gemini_extension() {
    check(
        "/x/ext/gemini-extension.json",
        r#"{
          "name": "ext", "version": "1", "contextFileName": "G.md", "excludeTools": ["run(rm)"],
          "mcpServers": { "a": { "command": "node", "args": ["${extensionPath}${/}s.js"], "cwd": "${extensionPath}" } }
        }"#,
        &["a: node [\"/x/ext/s.js\"] in /x/ext"],
        &[
            "ignored keys: `name`, `version` and `contextFileName`",
            "protection is lost, by keys that are ignored: `excludeTools`",
        ],
    );
}

#[test]
fn hermes() {
    check(
        "/home/me/.hermes/config.yaml",
        "
model: {default: x, api_key: '${NOT_SET}'}
agents: {a: 1}
mcp_servers:
  a: {command: ~/bin/a, args: [], timeout: 120, connect_timeout: 30, enabled: 'false'}
  b: {url: 'https://a.example/mcp', headers: {Authorization: 'Bearer ${KEY}'}, tools: {include: [t], exclude: [u]}}
",
        &[
            "a: /home/me/bin/a [] timeout 120000ms off",
            "b: auto https://a.example/mcp Authorization: Bearer k allow [t] deny [u]",
        ],
        &[
            "ignored keys: `model` and `agents`",
            "`servers.a.enabled` is no boolean",
        ],
    );
}

#[test]
fn vibe() {
    check(
        "/home/me/.vibe/config.toml",
        r#"
        active_model = "x"
        [[mcp_servers]]
        name = "a"
        transport = "stdio"
        command = "uvx a --b 'c d'"
        args = ["e"]
        [[mcp_servers]]
        name = "b"
        transport = "streamable-http"
        url = "https://a.example/mcp"
        startup_timeout_sec = 30.0
        auth = { type = "static", api_key_env = "KEY", api_key_header = "X-Key", api_key_format = "k {token}" }
        [[mcp_servers]]
        name = "c"
        transport = "http"
        url = "https://b.example/mcp"
        auth = { type = "oauth", scopes = ["a"] }
        [tools.bash]
        permission = "ask"
        "#,
        &[
            "a: uvx [\"a\", \"--b\", \"c d\", \"e\"]",
            "b: http https://a.example/mcp X-Key: k k startup 30000ms",
            "c: http https://b.example/mcp",
        ],
        &[
            "ignored keys: `active_model` and `servers.c.auth`",
            "protection is lost, by keys that are ignored: `tools`",
        ],
    );
}

#[test]
fn mcporter() {
    check(
        "/p/config/mcporter.json",
        r#"{
          "imports": ["cursor"],
          "mcpServers": {
            "a": { "command": "npx a --browser chrome", "description": "x" },
            "b": { "baseUrl": "https://a.example/mcp", "bearerTokenEnv": "KEY", "description": "y" },
            "c": { "baseUrl": "https://b.example/mcp", "auth": "oauth", "tokenCacheDir": "~/x" },
            "e": { "command": "/My App/e", "args": ["f"] },
            "d": { "command": ["node", "s.js"], "env": { "A": "$env:KEY", "B": "${NONE:-d}" } }
          }
        }"#,
        &[
            "a: npx [\"a\", \"--browser\", \"chrome\"] in /p",
            "b: auto https://a.example/mcp bearer k",
            "c: auto https://b.example/mcp",
            "e: /My App/e [\"f\"] in /p",
            "d: node [\"s.js\"] in /p A=k B=d",
        ],
        &[
            "ignored keys: `imports`, `servers.*.description`, `servers.c.auth` and `servers.c.tokenCacheDir`",
        ],
    );
}

#[test]
fn librechat() {
    check(
        "/p/librechat.yaml",
        "
version: 1.3.1
endpoints: {custom: [{apiKey: '${NOT_SET}'}]}
mcpSettings: {allowedDomains: [a]}
mcpServers:
  a:
    type: streamable-http
    url: https://a.example/mcp
    timeout: 60000
    initTimeout: 15000
    headers: {Authorization: 'Bearer ${KEY}', X-User: '{{LIBRECHAT_USER_ID}}'}
  b: {command: b, args: [], startup: false}
",
        &[
            "a: http https://a.example/mcp Authorization: Bearer k X-User: {{LIBRECHAT_USER_ID}} \
             startup 15000ms",
            "b: b [] off",
        ],
        &[
            "ignored keys: `version` and `endpoints`",
            "protection is lost, by keys that are ignored: `mcpSettings`",
            "`servers.a.headers` has `{{...}}`, which LibreChat does not expand",
        ],
    );
}

#[test]
fn clients_that_count_in_their_own_units() {
    let text = |key: &str| {
        format!(r#"{{ "mcpServers": {{ "a": {{ "url": "https://a.example/", {key} }} }} }}"#)
    };
    for (path, key, millis) in [
        (
            "/x/cline_mcp_settings.json",
            r#""timeout": 1800"#,
            1_800_000,
        ),
        ("/p/.roo/mcp.json", r#""timeout": 3600"#, 3_600_000),
        (
            "/x/mcp.json",
            r#""timeout": 3600, "alwaysAllow": []"#,
            3_600_000,
        ),
        ("/p/.mcp.json", r#""timeout": 900"#, 900),
        ("/p/.amazonq/mcp.json", r#""timeout": 900"#, 900),
        (
            "/p/.amazonq/mcp.json",
            r#""timeout": 120000000"#,
            86_400_000,
        ),
        ("/p/.kiro/settings/mcp.json", r#""timeout": 900"#, 900),
        ("/x/.copilot/mcp-config.json", r#""timeout": 900"#, 900),
        ("/x/.lmstudio/mcp.json", r#""timeout": 900"#, 900),
        ("/x/mcp.json", r#""timeout": 900"#, 900_000),
        ("/x/mcp.json", r#""timeout": 1000"#, 1000),
    ] {
        let loaded = read(path, &text(key)).unwrap();
        let server = loaded.config.servers.values().next().unwrap();
        assert_eq!(server.timeout.as_millis(), millis, "{path} {key}");
    }
}

#[test]
fn gateways() {
    check(
        "/x/mcp_config.json",
        r#"{
          "listen": ":8081", "data_dir": "./data", "api_key": "k", "tls": { "enabled": false }, "top_k": 5,
          "mcpServers": [
            { "name": "a", "protocol": "stdio", "command": "a", "working_dir": "/w", "enabled": true, "oauth": null },
            { "name": "b", "protocol": "http", "url": "https://a.example/mcp", "quarantined": true,
              "isolation": { "enabled": true } }
          ]
        }"#,
        &["a: a [] in /w", "b: http https://a.example/mcp off"],
        &[
            "ignored keys: `listen`, `data_dir`, `tls` and `top_k`",
            "protection is lost, by keys that are ignored: `api_key`, `servers.b.quarantined` and \
             `servers.b.isolation`",
        ],
    );
    check(
        "/x/mcp.json",
        r#"{
          "serverDefaults": { "requestTimeout": 30000, "env": { "A": "1" } },
          "mcpServers": { "a": { "command": "a", "env": ["B=2", "KEY"], "tags": ["t"] }, "b": { "command": "b", "requestTimeout": 10 } },
          "mcpTemplates": { "t": { "command": "{project.path}", "env": { "X": "${NOT_SET}" } } }
        }"#,
        &[
            "a: a [] B=2 KEY=k timeout 30000ms",
            "b: b [] A=1 timeout 10ms",
        ],
        &["ignored keys: `mcpTemplates`"],
    );
    check(
        "/x/mcp_settings.json",
        r#"{
          "users": [{ "username": "admin" }], "bearerKeys": [{ "token": "t" }], "systemConfig": {},
          "mcpServers": {
            "a": { "command": "a", "tools": { "a-x": { "enabled": false }, "y": { "enabled": true } } },
            "b": { "type": "openapi", "openapi": { "url": "https://a.example" } }
          }
        }"#,
        &["a: a [] deny [x]"],
        &[
            "protection is lost, by keys that are ignored: `users` and `bearerKeys`",
            "ignored keys: `systemConfig` and `servers.b`",
        ],
    );
    check(
        "/x/config.json",
        r#"{
          "mcpProxy": { "addr": ":9090", "options": { "authTokens": ["t"] } },
          "mcpServers": {
            "a": { "command": "a", "options": { "toolFilter": { "mode": "block", "list": ["x"] }, "logEnabled": true } },
            "b": { "url": "https://a.example/mcp", "transportType": "streamable-http", "options": { "disabled": true } }
          }
        }"#,
        &["a: a [] deny [x]", "b: http https://a.example/mcp off"],
        &[
            "protection is lost, by keys that are ignored: `mcpProxy`",
            "ignored keys: `servers.a.options.logEnabled`",
        ],
    );
}

#[test]
fn transports_commands_and_tools_in_other_words() {
    check(
        "/x/mcp.json",
        r#"{ "mcpServers": {
          "fast": { "url": "https://a.example/mcp", "transport": "streamable-http", "auth": "oauth" },
          "token": { "url": "https://a.example/mcp", "transport": "sse", "auth": "t" },
          "list": { "command": ["node", "s.js"], "args": ["-v"] },
          "all": { "type": "local", "command": "a", "tools": "*" },
          "none": { "type": "local", "command": "a", "tools": [] }
        } }"#,
        &[
            "fast: http https://a.example/mcp",
            "token: sse https://a.example/mcp bearer t",
            "list: node [\"s.js\", \"-v\"]",
            "all: a []",
            "none: a [] allow []",
        ],
        &["ignored keys: `servers.fast.auth`"],
    );
}

#[test]
fn what_is_ignored_refuses_nothing() {
    check(
        "/x/mcp.json",
        r#"{
          "mcpServers": {
            "a": { "url": "https://a.example/mcp", "headers": { "X-Key": "", "Y": "${EMPTY}" }, "note": "${NOT_SET}" },
            "b": { "command": "", "disabled": true },
            "c": { "url": "nowhere", "headers": { "Accept": "x" }, "disabled": "true" },
            "d": { "command": "d", "env": { "A": null, "B": "1" }, "disabled": "false" },
            "e": { "command": "${command:pick}", "disabled": true }
          },
          "agents": { "reviewer": { "model": "${NOT_SET}" } },
          "log": true, "tls": { "enabled": true }, "store": { "path": "x" }, "theme": "dark"
        }"#,
        &[
            "a: auto https://a.example/mcp",
            "d: d [] B=1",
            "e: ${command:pick} [] off",
        ],
        &[
            "ignored keys: `servers.a.headers.X-Key`, `servers.a.headers.Y`, `servers.a.note`, \
             `servers.d.env.A`, `agents`, `log`, `tls`, `store` and `theme`",
            "`servers.b` is skipped: `servers.b.command` is empty or blank",
            "`servers.c` is skipped: `servers.c.url` is not valid",
            "`servers.c.disabled` is no boolean",
            "`servers.d.disabled` is no boolean",
        ],
    );
}

/// Rules of ours are never passed over, whatever else the document holds.
#[test]
fn our_governance_in_a_foreign_document_must_be_right() {
    let document = |rest: &str| {
        format!(r#"{{ "mcpServers": {{ "a": {{ "command": "a" }} }}, "theme": "dark", {rest} }}"#)
    };
    check_refused(
        "/x/mcp.json",
        &document(r#""governance": true"#),
        "`governance` must be a table",
    );
    let right = document(
        r#""governance": { "auth": "keys" }, "agents": { "a": { "keys": ["${AGENT_KEY}"] } }"#,
    );
    let config = read("/x/mcp.json", &right).unwrap().config;
    assert_eq!(
        (config.agents.len(), config.governance.auth),
        (1, Authentication::KEYS)
    );
}

#[test]
fn documents_that_are_no_configs_are_named() {
    for (path, text, reason) in [
        (
            "/x/catalog.yaml",
            "registry: {a: {image: a}}",
            "a catalog of Docker MCP",
        ),
        (
            "/x/server.json",
            r#"{ "name": "a", "packages": [] }"#,
            "a `server.json` of the MCP registry",
        ),
        (
            "/x/config.yaml",
            "binds: [{port: 3000}]",
            "a config of agentgateway",
        ),
        (
            "/x/gateway.yaml",
            "backends: {a: {command: a b}}",
            "a config of MCP Gateway",
        ),
        (
            "/x/manifest.json",
            r#"{ "manifest_version": "0.2", "server": {} }"#,
            "an MCP bundle",
        ),
        (
            "/x/a.json",
            r#"{ "a": { "command": "a" }, "b": { "url": "x" } }"#,
            "servers without `mcpServers`",
        ),
        (
            "/p/.codex/config.toml",
            "model = 'x'",
            "a file of Codex without `mcp_servers`",
        ),
        (
            "/x/a.yaml",
            "colour: red\nshape: round",
            "another program, with `colour` and `shape`",
        ),
    ] {
        check_refused(path, text, reason);
    }
}

/// The directory of the project is where relative paths start, and where its programs do.
#[test]
fn projects_of_clients() {
    let text = r#"{ "mcpServers": { "a": { "command": "./a", "args": ["b"] } } }"#;
    for path in [
        "/p/.mcp.json",
        "/p/.ai/mcp/mcp.json",
        "/p/.amazonq/mcp.json",
        "/p/.cursor/mcp.json",
        "/p/.gemini/settings.json",
        "/p/.junie/mcp/mcp.json",
        "/p/.kiro/settings/mcp.json",
        "/p/.roo/mcp.json",
        "/p/.warp/.mcp.json",
    ] {
        check(path, text, &["a: /p/a [\"b\"] in /p"], &[]);
    }
    check(
        "/home/me/.cursor/mcp.json",
        text,
        &["a: /home/me/a [\"b\"]"],
        &[],
    );
    check("/x/mcp.json", text, &["a: /x/a [\"b\"]"], &[]);
}

/// A name of ours in the settings of another program is its own.
#[test]
fn names_of_ours_in_settings_of_clients() {
    let codex = |rest: &str| format!("{rest}\n[mcp_servers.a]\ncommand = 'a'");
    let mixed = codex("listen = '127.0.0.1:9'\ndata_dir = 'd'\nmodel = 'm'");
    let warned = ["ignored keys: `listen`, `data_dir` and `model`"];
    check("/x/config.toml", &mixed, &["a: a []"], &warned);
    let alone = read("/x/config.toml", &codex("listen = '127.0.0.1:9'")).unwrap();
    assert_eq!(alone.config.listen.address().unwrap().port(), 9);
    let agents = codex("[agents]\nmax_threads = 6");
    check(
        "/x/a.toml",
        &agents,
        &["a: a []"],
        &["ignored keys: `agents`"],
    );
    let generic =
        r#"{ "mcpServers": { "a": { "command": "a" } }, "agents": { "max_threads": 6 } }"#;
    check(
        "/x/mcp.json",
        generic,
        &["a: a []"],
        &["ignored keys: `agents`"],
    );
}

/// No list of tools replaces another: what any of them denies is denied.
#[test]
fn filters_of_tools_add_up() {
    check(
        "/x/mcp.json",
        r#"{ "mcpServers": {
          "a": { "command": "a", "disabledTools": ["x"], "tools": { "deny": ["y"] }, "excludeTools": "z" },
          "b": { "command": "b", "enabledTools": ["x", "y"], "includeTools": ["y", "z"] }
        } }"#,
        &["a: a [] deny [x,y,z]", "b: b [] allow [y]"],
        &[],
    );
}

#[test]
fn switches_in_other_words() {
    for (key, is_on) in [
        (r#""disabled": "true""#, false),
        (r#""disabled": 1"#, false),
        (r#""disabled": "maybe""#, false),
        (r#""disabled": "no""#, true),
        (r#""enabled": "false""#, false),
        (r#""enabled": "maybe""#, false),
        (r#""enabled": "yes""#, true),
        (r#""isActive": false"#, false),
        (r#""enabled": true, "disabled": true"#, false),
    ] {
        let text = format!(r#"{{ "mcpServers": {{ "a": {{ "command": "a", {key} }} }} }}"#);
        let loaded = read("/x/mcp.json", &text).unwrap();
        assert_eq!(loaded.config.servers[0].enabled, is_on, "{key}");
        let is_word = !key.contains(": true") && !key.contains(": false");
        assert_eq!(!loaded.warnings.is_empty(), is_word, "{key}");
    }
}

#[test]
fn sections_of_extensions_of_vs_code() {
    for text in [
        r#"{ "editor.tabSize": 2, "mcp.servers": { "a": { "command": "a" } } }"#,
        r#"{ "editor.tabSize": 2, "amp.mcpServers": { "a": { "command": "a" } } }"#,
        r#"{ "editor.tabSize": 2, "augment.advanced": { "mcpServers": [{ "name": "a", "command": "a" }] } }"#,
        r#"{ "editor.tabSize": 2, "mcp": { "servers": { "a": { "command": "a" } } } }"#,
    ] {
        let warned = ["ignored keys: `editor.tabSize`"];
        check(
            "/home/me/.config/Code/User/settings.json",
            text,
            &["a: a []"],
            &warned,
        );
    }
}

/// Servers whose names become one are kept, and fail, as it is not known which of them is meant.
#[test]
fn names_that_become_equal() {
    check(
        "/x/mcp.json",
        r#"{ "mcpServers": { "a b": { "command": "1" }, "a-b": { "command": "2" }, "a/b": { "command": "3" } } }"#,
        &["a-b-2: 1 []", "a-b: 2 []", "a-b-3: 3 []"],
        &[
            "the server is renamed to `a-b-2`",
            "`a-b-2` and `a-b` have the same name prefix `a_b`; neither is started",
            "the server is renamed to `a-b-3`",
            "`a-b-2` and `a-b-3` have the same name prefix `a_b`; neither is started",
        ],
    );
    let long = "x".repeat(200);
    let text = format!(
        r#"{{ "mcpServers": {{ "{long}": {{ "command": "1" }}, "{long}y": {{ "command": "2" }} }} }}"#
    );
    assert_eq!(read("/x/mcp.json", &text).unwrap().config.servers.len(), 2);
}

/// The time of a program that two formats could be is that of the one that has more to go by.
#[test]
fn formats_that_share_keys() {
    for (text, millis) in [
        (
            r#""isActive": true, "baseUrl": "", "command": "a", "timeout": 60"#,
            60_000,
        ),
        (
            r#""options": { "timeout": 1 }, "command": "a", "timeout": 60"#,
            60_000,
        ),
    ] {
        let text = format!(r#"{{ "mcpServers": {{ "a": {{ {text} }} }} }}"#);
        let loaded = read("/x/mcp.json", &text).unwrap();
        assert_eq!(
            loaded.config.servers[0].timeout.as_millis(),
            millis,
            "{text}"
        );
    }
}

/// What protects is never among the keys that do nothing.
#[test]
fn protection_that_is_lost_is_named() {
    check(
        "/p/.vscode/mcp.json",
        r#"{ "servers": {
          "a": { "type": "stdio", "command": "a", "sandboxEnabled": true, "gallery": true },
          "b": { "type": "stdio", "command": "b", "sandboxEnabled": false }
        }, "sandbox": { "network": {} } }"#,
        &["a: a [] in /p", "b: b [] in /p"],
        &[
            "protection is lost, by keys that are ignored: `servers.a.sandboxEnabled` and `sandbox`",
            "ignored keys: `servers.a.gallery` and `servers.b.sandboxEnabled`",
        ],
    );
}

/// A default that several servers take is one mistake.
#[test]
fn a_mistake_in_a_default_is_said_once() {
    check_refused(
        "/x/mcp.json",
        r#"{
          "serverDefaults": { "env": { "A": "${NOT_SET}" } },
          "mcpServers": { "a": { "command": "a" }, "b": { "command": "b" } }
        }"#,
        "the variable NOT_SET is not set",
    );
}

/// What governs must be right in a document of another program too: a misspelt rule would allow everything.
#[test]
fn a_misspelt_rule_in_a_document_is_an_error() {
    for ours in [
        r#""governance": { "policy": { "mode": "all", "dney": ["a/*"] } }"#,
        r#""governance": { "scan": { "resuls": { "email": "block" } } }"#,
    ] {
        let text = format!(r#"{{ "mcpServers": {{ "a": {{ "command": "a" }} }}, {ours} }}"#);
        assert!(read("/x/mcp.json", &text).is_err(), "{text}");
    }
}

/// Where a gateway has put the name of a server before a tool, it is the name in its own document.
#[test]
fn denied_tools_of_a_renamed_server_stay_denied() {
    let text = r#"{ "mcpServers": { "my server": { "command": "a",
        "tools": { "my server-x": { "enabled": false } } } } }"#;
    let loaded = read("/x/mcp_settings.json", text).unwrap();
    let deny = &loaded.config.servers[0].tools.deny;
    let deny: Vec<&str> = deny.iter().map(globset::Glob::glob).collect();
    assert_eq!(deny, ["x"], "{:?}", loaded.warnings);
}

/// A token where the name of a variable belongs is not shown.
#[test]
fn a_token_in_place_of_a_variable_is_not_shown() {
    let token = "ghp_0123456789abcdefghijklmnopqrstuvwxyz";
    for text in [
        format!("[mcp_servers.a]\nurl = \"https://a/mcp\"\nbearer_token_env_var = \"{token}\"\n"),
        format!("[mcp_servers.a]\ncommand = \"a\"\nenv_vars = [\"{token}\"]\n"),
    ] {
        let told = match read("/x/config.toml", &text) {
            Ok(loaded) => format!("{:?}", loaded.warnings),
            Err(mistakes) => mistakes.to_string(),
        };
        assert!(told.len() > 2 && !told.contains(token), "{told}");
    }
}

/// Servers that stay on although their client has them off, and lists that are none, are said.
#[test]
fn switches_that_are_not_applied_are_named() {
    let told = |path: &str, text: &str| {
        let loaded = read(path, text).unwrap_or_else(|mistakes| panic!("{mistakes}"));
        let messages: Vec<_> = loaded
            .warnings
            .iter()
            .map(|it| it.message.clone())
            .collect();
        messages.join("\n")
    };
    let user = r#"{ "mcpServers": { "a": { "command": "a" } },
        "projects": { "/p": { "disabledMcpServers": ["a"] } } }"#;
    let said = told("/home/.claude.json", user);
    assert!(
        said.contains("protection is lost") && said.contains("disabledMcpServers"),
        "{said}"
    );
    let local = r#"{ "projects": { "/p": { "mcpServers": { "a": { "command": "a" } },
        "disabledMcpServers": ["a"] } } }"#;
    assert_eq!(told("/home/.claude.json", local), "");
    let excluded = r#"{ "mcpServers": { "a": { "command": "a" } }, "mcp": { "excluded": "a" } }"#;
    let said = told("/p/.gemini/settings.json", excluded);
    assert!(
        said.contains("protection is lost") && said.contains("mcp.excluded"),
        "{said}"
    );
    let nothing =
        r#"{ "mcpServers": { "a": { "command": "a", "alwaysAllow": [], "trust": true } } }"#;
    assert!(!told("/x/mcp.json", nothing).contains("protection"));
}

/// The value of a key that nobody knows may be secret, wherever it stands on the line that is shown.
#[test]
fn values_of_unknown_keys_of_the_older_bridge_are_hidden() {
    let text = r#"{ "mcpServers": { "a": { "command": "a" } }, "bridge": { "sink": { "dsn": "hunter2" }, "failover": { "x": 1 } } }"#;
    let loaded = read("/x/bridge.json", text).unwrap();
    let told: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    let told = told.join("\n");
    assert!(
        told.contains("bridge.sink") && !told.contains("hunter2"),
        "{told}"
    );
}
