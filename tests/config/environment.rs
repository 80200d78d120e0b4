//! Variables of the environment that override keys.

use tollbridge::config::{Auth, Authentication, Charset, Config, Environment, Transport};

use crate::support::{config_in, report, server};

const FILE: &str = r#"
    port_search = 1
    [servers.aws-s3]
    command = "a"
    env = { Token = "t" }
    [servers.docs]
    url = "https://example.com"
    headers = { X-Team = "a" }
    auth = { type = "bearer", token = "t" }
"#;

#[test]
fn every_kind_of_value_is_understood() {
    for listen in ["127.0.0.1:1", "unix:/run/a.sock"] {
        check("TOLLBRIDGE_LISTEN", listen, |c| {
            c.listen.to_string() == listen
        });
    }
    check("TOLLBRIDGE_PORT_SEARCH", "7", |c| c.port_search == 7);
    check("TOLLBRIDGE_NAMING__CHARSET", "original", |c| {
        c.naming.charset == Charset::Original
    });
    check("TOLLBRIDGE_NAMING__MAX_LENGTH", " 60 ", |c| {
        c.naming.max_length == 60
    });
    check("TOLLBRIDGE_NAMING__NAMESPACE_RESOURCES", "false", |c| {
        !c.naming.namespace_resources
    });
    check("TOLLBRIDGE_LIMITS__BODY", "1MiB", |c| {
        c.limits.body == 1 << 20
    });
    check("TOLLBRIDGE_KEEP_ALIVE", "3s", |c| {
        c.keep_alive.as_secs() == 3
    });
    check("TOLLBRIDGE_ALLOWED_HOSTS", r#"["a", "b"]"#, |c| {
        c.allowed_hosts == ["a", "b"]
    });
    check("TOLLBRIDGE_NAMING", "{max_length = 60}", |c| {
        c.naming.max_length == 60
    });
    check("TOLLBRIDGE_SERVERS__DOCS__RETRY__JITTER", "0.5", |c| {
        (server(c, "docs").retry.jitter - 0.5).abs() < 1e-9
    });
}

#[test]
fn names_of_servers_are_found_in_any_case() {
    check("TOLLBRIDGE_SERVERS__AWS_S3__TIMEOUT", "3s", |c| {
        server(c, "aws-s3").timeout.as_secs() == 3
    });
    check("TOLLBRIDGE_SERVERS__aws_s3__ENABLED", "false", |c| {
        !server(c, "aws-s3").enabled
    });
}

#[test]
fn keys_that_operators_chose_keep_their_case() {
    let env = |c: &Config, name: &str| {
        let Transport::Stdio(command) = &server(c, "aws-s3").transport else {
            panic!()
        };
        command.env.get(name).map(|value| value.expose().to_owned())
    };
    check("TOLLBRIDGE_SERVERS__AWS_S3__ENV__TOKEN", "new", |c| {
        env(c, "Token").as_deref() == Some("new")
    });
    check("TOLLBRIDGE_SERVERS__AWS_S3__ENV__Other", "1", |c| {
        env(c, "Other").as_deref() == Some("1")
    });
    check("TOLLBRIDGE_SERVERS__DOCS__HEADERS__X_TEAM", "b", |c| {
        let Transport::Auto(remote) = &server(c, "docs").transport else {
            panic!()
        };
        remote.headers["X-Team"].expose() == "b"
    });
}

#[test]
fn a_list_without_quotes_may_have_escapes_in_ascii() {
    check("TOLLBRIDGE_SERVERS__DOCS__TAGS", r#"[x, "a\tb"]"#, |c| {
        server(c, "docs").tags == ["x", "a\tb"]
    });
    let environment = [("TOLLBRIDGE_SERVERS__DOCS__TAGS", r#"[x, "é\t"]"#)];
    let report = crate::support::toml_in(&environment, FILE);
    assert!(
        report.contains("`servers.docs.tags` must be a list"),
        "{report}"
    );
}

#[test]
fn json_is_understood() {
    let tags = |written: &str, expect: &[&str]| {
        check("TOLLBRIDGE_SERVERS__DOCS__TAGS", written, |c| {
            server(c, "docs").tags == expect
        });
    };
    tags(r#"["é\t", "\u0061"]"#, &["é\t", "a"]);
    tags("[\"a\",\n \"b\",\n]", &["a", "b"]);
    let many = vec!["[x]"; 20];
    let written = serde_json::to_string(&many).expect("strings");
    tags(&written, &many);
    check(
        "TOLLBRIDGE_SERVERS__DOCS__TOOLS",
        r#"{"deny":["b*"],"rename":{"a":"c"}}"#,
        |c| {
            let tools = &server(c, "docs").tools;
            tools.deny[0].glob() == "b*" && tools.rename["a"] == "c"
        },
    );
    let price = [(
        "TOLLBRIDGE_GOVERNANCE",
        r#"{"price": 0.02, "erors": "hunter2"}"#,
    )];
    insta::assert_snapshot!(crate::support::toml_in(&price, FILE), @r#"
    error: unknown key `governance.erors`
     --> environment:1:39
      |
    1 | TOLLBRIDGE_GOVERNANCE={"price": 0.02, "erors": "***"}
      |                                       ^^^^^^^ no such key
      |
      = help: did you mean `errors`?

    1 error
    "#);
}

#[test]
fn a_number_that_is_none() {
    let environment = [("PRIORITY", "high")];
    let text = "[servers.a]\ncommand = 'a'\npriority = '${PRIORITY:1}'";
    let report = crate::support::toml_in(&environment, text);
    assert!(
        report.contains("the variable must contain only digits"),
        "{report}"
    );
}

#[test]
fn a_credential_can_come_from_outside() {
    check("TOLLBRIDGE_SERVERS__DOCS__AUTH__TOKEN", "12345", |c| {
        let Transport::Auto(remote) = &server(c, "docs").transport else {
            panic!()
        };
        matches!(&remote.auth, Auth::Bearer { token } if token.expose() == "12345")
    });
}

/// What is wrong with a section is said where it was begun, whatever else adds to it.
#[test]
fn a_section_stays_where_it_was_begun() {
    let variables = [("TOLLBRIDGE_SERVERS__X__ERA", "legacy")];
    let told = report(
        &variables,
        &[("tollbridge.toml", "[servers.x]\npriority = 1\n")],
    );
    assert!(told.contains("--> tollbridge.toml:1:10"), "{told}");
}

/// A table in a variable is laid over that of the file, as one of another file is.
#[test]
fn tables_are_laid_over_tables() {
    let docs = r#"{timeout = "3s", tags = ["a"]}"#;
    check("TOLLBRIDGE_SERVERS__DOCS", docs, |c| {
        let docs = server(c, "docs");
        let Transport::Auto(remote) = &docs.transport else {
            panic!()
        };
        docs.timeout.as_secs() == 3 && matches!(remote.auth, Auth::Bearer { .. })
    });
    let replicas = r#"[{url = "https://a.example/mcp"}, {url = "https://b.example/mcp"}]"#;
    let variables = [("TOLLBRIDGE_SERVERS__TWO__REPLICAS", replicas)];
    let file = "[servers.two]\ntags = [\"a\"]\n";
    let config = config_in(&variables, file);
    assert_eq!(server(&config, "two").replicas.len(), 2);
    let guarded = "[governance]\nauth = \"keys\"\n[agents.a]\nkeys = [\"tbk_0123456789abcdef0123456789abcdef\"]\n";
    let price = [("TOLLBRIDGE_GOVERNANCE", "{price = \"0.02\"}")];
    let config = config_in(&price, guarded);
    assert_eq!(config.governance.auth, Authentication::KEYS);
    let rules = r#"[{name = "x", tools = ["*"], at = "/a", equals = 5}]"#;
    check("TOLLBRIDGE_GOVERNANCE__ARGS", rules, |_| true);
}

/// Classes of a scan are an operator's own, as files write them, or else in lower case.
#[test]
fn classes_of_scans_are_found() {
    let file =
        "[governance.scan]\ncustom = { Badge-No = \"B[0-9]{6}\" }\n[servers.a]\ncommand = \"a\"\n";
    let variables = [
        ("TOLLBRIDGE_GOVERNANCE__SCAN__ARGUMENTS__BADGE_NO", "block"),
        ("TOLLBRIDGE_GOVERNANCE__SCAN__RESULTS__CREDIT_CARD", "block"),
    ];
    let config = config_in(&variables, file);
    let scan = config.governance.terms.scan.expect("it is written");
    assert!(scan.arguments.contains_key("Badge-No"), "{scan:?}");
    assert!(scan.results.contains_key("credit_card"), "{scan:?}");
    let variables = [
        ("TOLLBRIDGE_GOVERNANCE__SCAN__CUSTOM__DESK", "D[0-9]{4}"),
        ("TOLLBRIDGE_GOVERNANCE__SCAN__PROMPTS__DESK", "block"),
    ];
    let scan = config_in(&variables, file).governance.terms.scan;
    let scan = scan.expect("it is written");
    assert!(scan.prompts.contains_key("desk"), "{scan:?}");
}

#[test]
fn a_credential_of_another_type_can_come_from_outside() {
    let whole = r#"{type = "header", name = "X-Key", value = "v"}"#;
    let is_header = |config: &Config| {
        let Transport::Auto(remote) = &server(config, "docs").transport else {
            panic!()
        };
        matches!(&remote.auth, Auth::Header { value, .. } if value.expose() == "v")
    };
    check("TOLLBRIDGE_SERVERS__DOCS__AUTH", whole, is_header);
    let bare = FILE.replace("auth = { type = \"bearer\", token = \"t\" }", "");
    let key = |name: &str| format!("TOLLBRIDGE_SERVERS__DOCS__AUTH__{name}");
    let variables = [("NAME", "X-Key"), ("TYPE", "header"), ("VALUE", "v")];
    let variables = variables.map(|(name, value)| (key(name), value));
    let variables = variables.each_ref().map(|(name, value)| (&**name, *value));
    assert!(is_header(&config_in(&variables, &bare)));
}

#[test]
fn values_are_not_expanded() {
    check("TOLLBRIDGE_SERVERS__DOCS__NAMESPACE", "a", |c| {
        server(c, "docs").namespace.as_deref() == Some("a")
    });
    check("TOLLBRIDGE_SERVERS__AWS_S3__COMMAND", "/bin/$$a${b}", |c| {
        let Transport::Stdio(command) = &server(c, "aws-s3").transport else {
            panic!()
        };
        command.program == "/bin/$$a${b}"
    });
}

#[test]
fn a_variable_that_the_file_uses_is_no_override() {
    let text = "[servers.a]\ncommand = '${TOLLBRIDGE_COMMAND}'";
    let environment = [
        ("TOLLBRIDGE_COMMAND", "npx"),
        ("TOLLBRIDGE_CONFIG", "a.toml"),
    ];
    let config = config_in(&environment, text);
    let Transport::Stdio(command) = &server(&config, "a").transport else {
        panic!()
    };
    assert_eq!(command.program, "npx");
}

#[test]
fn an_environment_shows_no_values() {
    let environment: Environment = [("TOKEN", "hunter2")].into_iter().collect();
    assert_eq!(format!("{environment:?}"), r#"{"TOKEN"}"#);
    assert_eq!(environment.get("TOKEN"), Some("hunter2"));
    assert!(Environment::from_process().get("PATH").is_some());
}

fn check(name: &str, value: &str, arrives: impl FnOnce(&Config) -> bool) {
    let config = config_in(&[(name, value)], FILE);
    assert!(arrives(&config), "{name}={value} gives {config:#?}");
}
