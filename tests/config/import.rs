//! Configs of other programs, as those programs write them.

use std::path::PathBuf;

use tollbridge::config::{
    Charset, Config, ConfigText, Conflict, Environment, LoadedConfig, Probe, Transport, parse,
};

use crate::support::{accepted, server, source, warnings};

#[test]
fn claude_desktop() {
    let text = r#"
        {
          "mcpServers": {
            "filesystem": {
              "command": "npx",
              "args": [
                "-y",
                "@modelcontextprotocol/server-filesystem",
                "/Users/username/Desktop",
                "/Users/username/Downloads"
              ]
            },
            "Brave Search": {
              "command": "docker",
              "args": ["run", "-i", "--rm", "-e", "BRAVE_API_KEY", "mcp/brave-search"],
              "env": { "BRAVE_API_KEY": "pa$$word" }
            }
          },
          "globalShortcut": "Ctrl+Space"
        }
    "#;
    let config = accepted(&[], &[("claude_desktop_config.json", text)]).config;
    assert_eq!(command(&config, "filesystem"), ("npx".to_owned(), 4));
    let Transport::Stdio(brave) = &server(&config, "Brave-Search").transport else {
        panic!()
    };
    assert_eq!(brave.env["BRAVE_API_KEY"].expose(), "pa$$word");
    insta::assert_snapshot!(warnings(&[], &[("claude_desktop_config.json", text)]), @r#"
    warning: the server is renamed to `Brave-Search`
      --> claude_desktop_config.json:12:5
       |
    12 |     "Brave Search": {
       |     ^^^^^^^^^^^^^^ names consist of letters, digits, `_`, `-` and `.`

    warning: ignored keys: `globalShortcut`
      --> claude_desktop_config.json:18:3
       |
    18 |   "globalShortcut": "***"
       |   ^^^^^^^^^^^^^^^^ not read
    "#);
}

#[test]
fn names_without_a_letter_that_we_can_use() {
    let text =
        r#"{ "mcpServers": { "高德地图": { "command": "a" }, "百度地图": { "command": "b" } } }"#;
    let loaded = accepted(&[], &[("mcp.json", text)]);
    assert_eq!(command(&loaded.config, "server-1ecb3ba1").0, "a");
    assert_eq!(command(&loaded.config, "server-0750c665").0, "b");
    let told = loaded.warnings.iter().map(|it| it.message.as_str());
    let expect = ["1ecb3ba1", "0750c665"];
    let expect = expect.map(|hash| format!("the server is renamed to `server-{hash}`"));
    assert!(told.eq(expect), "{:?}", loaded.warnings);
}

#[test]
fn cursor() {
    let text = r#"
        {
          "mcpServers": {
            "local": {
              "command": "python",
              "args": ["${workspaceFolder}/mcp-server.py", "${userHome}/data"],
              "env": { "API_KEY": "${env:API_KEY}", "PORT": 8080 }
            },
            "remote": {
              "url": "http://localhost:3000/mcp",
              "headers": { "API_KEY": "${env:API_KEY}" }
            }
          }
        }
    "#;
    let environment = [("API_KEY", "k"), ("HOME", "/home/me")];
    let LoadedConfig {
        config, warnings, ..
    } = accepted(&environment, &[("mcp.json", text)]);
    assert!(warnings.is_empty());
    let Transport::Stdio(local) = &server(&config, "local").transport else {
        panic!()
    };
    assert_eq!(
        local.args,
        ["/etc/tollbridge/mcp-server.py", "/home/me/data"]
    );
    assert_eq!(
        (local.env["API_KEY"].expose(), local.env["PORT"].expose()),
        ("k", "8080")
    );
    let Transport::Auto(remote) = &server(&config, "remote").transport else {
        panic!()
    };
    assert_eq!(remote.headers["API_KEY"].expose(), "k");
}

#[test]
fn claude_code() {
    let text = r#"
        {
          "mcpServers": {
            "sentry": {
              "type": "http",
              "url": "${SENTRY_URL:-https://mcp.sentry.dev}/mcp",
              "headers": { "Authorization": "Bearer ${SENTRY_TOKEN}" }
            },
            "asana": { "type": "sse", "url": "https://mcp.asana.com/sse" },
            "db": { "type": "stdio", "command": "npx", "args": [], "env": {}, "timeout": 600000 }
          }
        }
    "#;
    let config = accepted(&[("SENTRY_TOKEN", "t")], &[(".mcp.json", text)]).config;
    let Transport::Http(sentry) = &server(&config, "sentry").transport else {
        panic!()
    };
    assert_eq!(sentry.url, "https://mcp.sentry.dev/mcp");
    assert_eq!(sentry.headers["Authorization"].expose(), "Bearer t");
    assert!(matches!(
        server(&config, "asana").transport,
        Transport::Sse(_)
    ));
    assert_eq!(server(&config, "db").timeout.as_secs(), 600);
    assert_eq!(
        warnings(&[("SENTRY_TOKEN", "t")], &[(".mcp.json", text)]),
        ""
    );
    insta::assert_snapshot!(warnings(&[("SENTRY_TOKEN", "t")], &[("servers.json", text)]), @r#"
    warning: the timeout is read as milliseconds
     --> servers.json:9:82
      |
    9 |     "db": { "type": "stdio", "command": "npx", "args": [], "env": {}, "timeout": 600000 }
      |                                                                                  ^^^^^^ read as "10m"
      |
      = help: use "10m" to be explicit
    "#);
}

#[test]
fn vs_code() {
    let text = r#"
        {
          // asked for once, then kept
          "inputs": [
            { "type": "promptString", "id": "perplexity-key", "description": "API key", "password": true },
            { "type": "pickString", "id": "region", "options": ["eu", "us"], "default": "eu" }
          ],
          "servers": {
            "Perplexity": {
              "type": "stdio",
              "command": "npx",
              "args": ["-y", "server-perplexity-ask"],
              "env": { "PERPLEXITY_API_KEY": "${input:perplexity-key}", "REGION": "${input:region}", "OLD": null },
              "envFile": "${workspaceFolder}/.env",
              "dev": { "watch": "src/**/*.ts" }
            },
            "github": { "type": "http", "url": "https://api.githubcopilot.com/mcp/" },
          }
        }
    "#;
    let environment = [("PERPLEXITY_KEY", "k")];
    let config = accepted(&environment, &[("mcp.json", text)]).config;
    let Transport::Stdio(perplexity) = &server(&config, "Perplexity").transport else {
        panic!()
    };
    let env: Vec<_> = perplexity
        .env
        .iter()
        .map(|(k, v)| (k.as_str(), v.expose()))
        .collect();
    assert_eq!(env, [("PERPLEXITY_API_KEY", "k"), ("REGION", "eu")]);
    assert!(
        matches!(server(&config, "github").transport, Transport::Auto(_)),
        "it falls back"
    );
    insta::assert_snapshot!(warnings(&environment, &[("mcp.json", text)]), @r#"
    warning: ignored keys: `servers.Perplexity.env.OLD` and `servers.Perplexity.dev`
      --> mcp.json:12:94
       |
    12 |       "env": { "PERPLEXITY_API_KEY": "${input:perplexity-key}", "REGION": "${input:region}", "OLD": *** },
       |                                                                                              ^^^^^ not read
       |
       = help: null sets nothing
    "#);
}

#[test]
fn vs_code_without_inputs() {
    let text = r#"{ "servers": { "a": { "type": "stdio", "command": "a" } } }"#;
    let config = accepted(&[], &[("mcp.json", text)]).config;
    assert_eq!(command(&config, "a"), ("a".to_owned(), 0));
}

/// Such a document may have nothing but where it is, or a key, to be told by.
#[test]
fn vs_code_without_types() {
    let read = |directory: &str, file: &str, text: &str| {
        let source = ConfigText {
            directory: directory.into(),
            ..source(file, text)
        };
        parse([source], &Environment::default())
    };
    let plain = r#"{ "servers": { "a": { "command": "a", "args": ["${workspaceFolder}/x"] } } }"#;
    let config = read("/project/.vscode", "mcp.json", plain).unwrap().config;
    let Transport::Stdio(a) = &server(&config, "a").transport else {
        panic!()
    };
    assert_eq!(a.args, ["/project/x"]);
    assert_eq!(a.cwd, Some("/project".into()));
    read("/project", "mcp.json", plain).expect_err("it is one of our own");
    let keyed =
        r#"{ "servers": { "a": { "command": "a", "envFile": "${workspaceFolder}/.env" } } }"#;
    let config = read("/project", "mcp.json", keyed).unwrap().config;
    assert_eq!(config.named_files, [PathBuf::from("/project/.env")]);
    let ours = "servers: { a: { command: a, args: ['${workspaceFolder}'] } }";
    for file in ["tollbridge.yaml", "tollbridge.json"] {
        let ours = if file.ends_with("json") { plain } else { ours };
        read("/project/.vscode", file, ours).expect_err("it is one of our own");
    }
}

/// A program of a project is started there, and `~` is its user's directory.
#[test]
fn vs_code_in_a_project() {
    let text = r#"{ "servers": {
        "a": { "type": "stdio", "command": "./bin/a", "args": ["~/x", "~", "~y"] },
        "b": { "type": "stdio", "command": "~/b", "cwd": "src" },
        "c": { "type": "sse", "url": "https://a.example/mcp" }
    } }"#;
    let programs = |directory: &str| {
        let source = ConfigText {
            directory: directory.into(),
            ..source("mcp.json", text)
        };
        let environment = [("HOME", "/home/me")].into_iter().collect();
        let config = parse([source], &environment).unwrap().config;
        assert!(matches!(server(&config, "c").transport, Transport::Auto(_)));
        ["a", "b"].map(|name| {
            let Transport::Stdio(program) = &server(&config, name).transport else {
                panic!()
            };
            program.clone()
        })
    };
    let [a, b] = programs("/project/.vscode");
    assert_eq!(a.program, "/project/bin/a");
    assert_eq!(a.args, ["/home/me/x", "/home/me", "~y"]);
    assert_eq!(a.cwd, Some("/project".into()));
    assert_eq!(b.program, "/home/me/b");
    assert_eq!(b.cwd, Some("/project/src".into()));
    let [a, _] = programs("/etc/tollbridge");
    assert_eq!((a.program.as_str(), a.cwd), ("/etc/tollbridge/bin/a", None));
}

#[test]
fn windsurf_cline_gemini_and_copilot() {
    let text = r#"
        {
          "mcpServers": {
            "windsurf": { "serverUrl": "https://a.example/mcp", "disabledTools": ["x"] },
            "cline": { "command": "a", "disabled": true, "alwaysAllow": ["x"], "autoApprove": [] },
            "gemini": {
              "httpUrl": "https://b.example/mcp", "timeout": 5000, "trust": false,
              "includeTools": ["get"], "excludeTools": ["drop"]
            },
            "others": { "type": "streamableHttp", "url": "https://c.example/mcp" },
            "copilot": { "type": "local", "command": "a", "tools": ["*"] },
            "narrow": { "type": "local", "command": "a", "tools": ["get", "put"] }
          }
        }
    "#;
    let config = accepted(&[], &[("mcp.json", text)]).config;
    assert!(matches!(
        server(&config, "windsurf").transport,
        Transport::Auto(_)
    ));
    assert_eq!(server(&config, "windsurf").tools.deny[0].glob(), "x");
    assert!(!server(&config, "cline").enabled);
    let gemini = server(&config, "gemini");
    assert!(matches!(gemini.transport, Transport::Http(_)));
    assert_eq!(gemini.timeout.as_secs(), 5);
    assert_eq!(
        gemini.tools.allow.as_ref().expect("written")[0].glob(),
        "get"
    );
    assert_eq!(gemini.tools.deny[0].glob(), "drop");
    assert!(matches!(
        server(&config, "others").transport,
        Transport::Http(_)
    ));
    assert_eq!(server(&config, "copilot").tools.allow, None);
    assert_eq!(
        server(&config, "narrow").tools.allow.as_ref().map(Vec::len),
        Some(2)
    );
}

const BRIDGE: &str = r#"
    {
      "mcpServers": {
        "github": {
          "enabled": true,
          "command": "npx",
          "args": ["-y", "@modelcontextprotocol/server-github"],
          "env": { "GITHUB_PERSONAL_ACCESS_TOKEN": "${GITHUB_TOKEN}", "DEBUG": "${DEBUG:true}" },
          "timeout": 45,
          "retryAttempts": 3,
          "retryDelay": 2000,
          "healthCheck": { "enabled": true, "interval": 20000, "timeout": 5000 },
          "toolNamespace": "gh",
          "resourceNamespace": "gh",
          "promptNamespace": "github",
          "priority": 100,
          "tags": ["github", "git"]
        },
        "slow": { "command": "a", "healthCheck": { "enabled": false }, "timeout": 1200, "retryDelay": 60000, "retryAttempts": 0, "priority": 1 },
        "off": { "enabled": false, "command": "a", "env": { "A": "${NOT_SET}" } }
      },
      "bridge": {
        "conflictResolution": "priority",
        "defaultNamespace": true,
        "aggregation": { "tools": true, "resources": false, "prompts": true },
        "failover": { "enabled": true, "maxFailures": 3, "recoveryInterval": 60000 }
      }
    }
"#;

/// What `aggregation` does not have is not passed over in silence.
#[test]
fn kinds_that_the_older_bridge_does_not_have() {
    let text = r#"{
      "mcpServers": { "a": { "command": "a" } },
      "bridge": { "aggregation": { "tool": false, "prompts": "no" } }
    }"#;
    insta::assert_snapshot!(warnings(&[], &[("config.json", text)]), @r#"
    warning: ignored keys: `bridge.aggregation.tool` and `bridge.aggregation.prompts`
     --> config.json:3:36
      |
    3 |       "bridge": { "aggregation": { "tool": false, "prompts": "no" } }
      |                                    ^^^^^^ not read
      |
      = help: kinds are switched by `true` and `false`
    "#);
}

#[test]
fn the_older_bridge() {
    let config = accepted(&[("GITHUB_TOKEN", "t")], &[("config.json", BRIDGE)]).config;
    assert_eq!(config.naming.conflict, Conflict::Priority);
    let github = server(&config, "github");
    assert_eq!(
        (github.timeout.as_secs(), github.retry.base.as_secs()),
        (45, 2)
    );
    assert_eq!(github.retry.failed_after, 3);
    assert_eq!(
        (
            github.health.interval.as_secs(),
            github.health.timeout.as_secs()
        ),
        (20, 5)
    );
    assert_eq!(github.health.probe, Probe::Ping);
    assert_eq!(
        (github.breaker.failures, github.breaker.open_for.as_secs()),
        (3, 60)
    );
    assert_eq!(github.namespace.as_deref(), Some("gh"));
    assert_eq!(github.tags, ["github", "git"]);
    assert!(github.expose.tools && !github.expose.resources && github.expose.prompts);
    let Transport::Stdio(command) = &github.transport else {
        panic!()
    };
    assert_eq!(command.env["DEBUG"].expose(), "true");
    let slow = server(&config, "slow");
    assert_eq!(slow.health.probe, Probe::Off);
    assert_eq!(
        (slow.timeout.as_secs(), slow.max_total_timeout.as_secs()),
        (1200, 1200)
    );
    assert_eq!(
        (slow.retry.base.as_secs(), slow.retry.max.as_secs()),
        (60, 60)
    );
    assert_eq!(slow.retry.failed_after, 1, "the first attempt is made");
    assert!(
        slow.priority > github.priority,
        "there the lowest number wins, here the highest"
    );
    assert!(!server(&config, "off").enabled);
    let warnings = warnings(&[("GITHUB_TOKEN", "t")], &[("config.json", BRIDGE)]);
    insta::assert_snapshot!(warnings, @r#"
    warning: ignored keys: `promptNamespace`
      --> config.json:14:7
       |
    14 |       "promptNamespace": "github",
       |       ^^^^^^^^^^^^^^^^^ not read
       |
       = help: a server has one namespace for all items; using the first one
    "#);
}

#[test]
fn the_older_bridge_without_namespaces() {
    let text = r#"{
        "mcpServers": { "a": { "command": "a" } },
        "bridge": { "defaultNamespace": false, "conflictResolution": "first" }
    }"#;
    let config = accepted(&[], &[("config.json", text)]).config;
    assert_eq!(
        (&*config.naming.template, config.naming.namespace_resources),
        ("{tool}", false)
    );
    assert_eq!(config.naming.conflict, Conflict::First);
}

#[test]
fn our_keys_stand_beside_theirs() {
    let text = r#"
        listen = "127.0.0.1:9"
        [naming]
        charset = "original"
        [mcpServers.theirs]
        command = "a"
        timeout = "5s"
        isolation = "session"
        tools = { deny = ["x"] }
        [servers.ours]
        transport = "builtin"
    "#;
    let LoadedConfig {
        config, warnings, ..
    } = accepted(&[], &[("a.toml", text)]);
    assert!(warnings.is_empty());
    assert_eq!(
        (
            config.listen.address().unwrap().port(),
            config.naming.charset
        ),
        (9, Charset::Original)
    );
    assert_eq!(server(&config, "theirs").timeout.as_secs(), 5);
    assert_eq!(config.servers.len(), 2);
}

#[test]
fn theirs_and_ours_merge_over_files() {
    let theirs = r#"{ "mcpServers": { "my server": { "command": "a" } } }"#;
    let ours = "servers: {my-server: {timeout: 5s}}\nlisten: 127.0.0.1:9";
    let override_ = [("TOLLBRIDGE_SERVERS__MY_SERVER__PRIORITY", "7")];
    let config = accepted(&override_, &[("mcp.json", theirs), ("b.yaml", ours)]).config;
    let merged = server(&config, "my-server");
    assert_eq!((merged.timeout.as_secs(), merged.priority), (5, 7));
}

#[test]
fn unknown_keys_are_ignored_with_a_warning() {
    let text = r#"{
        "mcpServers": { "a": { "command": "a", "colour": "red", "tiemout": 5, "retry": 3 } },
        "theme": "dark"
    }"#;
    // `retry` is ours as well, and a number is not what it takes.
    let report = crate::support::report(&[], &[("mcp.json", text)]);
    insta::assert_snapshot!(report, @r#"
    warning: ignored keys: `servers.a.colour`, `servers.a.tiemout` and `theme`
     --> mcp.json:2:48
      |
    2 |         "mcpServers": { "a": { "command": "a", "colour": "***", "tiemout": ***, "retry": 3 } },
      |                                                ^^^^^^^^ not read
      |
      = help: did you mean `timeout` for `tiemout`?

    error: `servers.a.retry` must be a table
     --> mcp.json:2:88
      |
    2 |         "mcpServers": { "a": { "command": "a", "colour": "***", "tiemout": ***, "retry": 3 } },
      |                                                                                          ^ this is a whole number
      |
      = help: its keys are `base`, `failed_after`, `jitter`, `max`, `stable_after` and `starts_per_minute`

    1 error, 1 warning
    "#);
}

fn command(config: &Config, name: &str) -> (String, usize) {
    let Transport::Stdio(command) = &server(config, name).transport else {
        panic!()
    };
    (command.program.clone(), command.args.len())
}

/// What stands in `auth` for a login that we do not make keeps nothing else from running.
#[test]
fn logins_of_other_programs_are_left_out() {
    let file = r#"{"mcpServers":{"a":{"url":"https://a.example/mcp","auth":{"CLIENT_ID":"c"}}}}"#;
    let told = warnings(&[], &[("mcp.json", file)]);
    assert!(
        told.contains("`servers.a.auth`") && told.contains("or `headers`"),
        "{told}"
    );
}
