//! No report shows a secret, however wrong the file is that holds it.

use tollbridge::config::Severity;

use crate::support::{accepted, load, report};

const SECRET: &str = "hunter2";

/// Files that are wrong and hold the secret.
const WRONG: [(&str, &str); 59] = [
    (
        "a.toml",
        "[servers.a]\ncommand = 1\nenv = { T = 'hunter2', U = ['hunter2'] }",
    ),
    ("a.toml", "[servers.a]\nenv = 'T=hunter2'"),
    ("a.toml", "[servers.a]\nenvs = { T = 'hunter2' }"),
    (
        "a.toml",
        "[servers.a]\nurl = 1\nheaders = { A = 'Bearer hunter2', B = { c = 'hunter2' } }",
    ),
    ("a.toml", "[servers.a]\nurl = 'ftp://me:hunter2@x/'"),
    ("a.toml", "[servers.a]\nurl = 'ftp://x/?key=hunter2'"),
    (
        "a.toml",
        "[servers.a]\ncommand = 'a b'\nargs = ['--token', 'hunter2', '--key=x', 1]",
    ),
    ("a.toml", "[servers.a]\nargs = ['--api-key=hunter2', 1]"),
    (
        "a.toml",
        "[servers.a]\nargs = ['-H', 'Authorization: Bearer hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['-e', 'API_KEY=hunter2', '--header', 'X-Api-Key: hunter2', '-e', 'A=hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['--header=X-Api-Key: hunter2', '--set=apiKey=hunter2', '--env=A=hunter2', 1]",
    ),
    ("a.toml", "[servers.a]\nargs = '[\"--token\", \"hunter2\"]'"),
    (
        "a.yaml",
        "servers: { a: { args: '[\"--token\",\"hunter2\"' } }",
    ),
    (
        "a.toml",
        "[servers.a]\ncommand = 'docker run -e A=hunter2 --token hunter2 --password=hunter2 x'",
    ),
    (
        "a.toml",
        "[servers.a]\ncommand = 'a'\nargs = '--token hunter2 -e A=hunter2'",
    ),
    (
        "a.json",
        r#"{"servers": {"a": {"command": "a --header \"X-Api-Key:hunter2\" --token \"hunter2\""}}}"#,
    ),
    (
        "a.toml",
        "[servers.a]\nauth = { type = 'x', token = 'hunter2' }",
    ),
    (
        "a.toml",
        "[servers.a]\nauth = { type = 'bearer', token = \"\"\"\nhunter2\n\"\"\", x = 1 }",
    ),
    ("a.toml", "[servers.a]\nauth = 'hunter2'"),
    ("a.toml", "token = 'hunter2' x"),
    (
        "a.toml",
        "[agents.a]\nkeys = ['hunter2', 'hunter2 hunter2']",
    ),
    ("a.toml", "[agents.a]\nkeys = 'hunter2'"),
    ("a.toml", "[agents.a]\nkey = 'hunter2'\nid = 1"),
    (
        "a.toml",
        "[governance]\nauth = 'x'\nkeys = ['hunter2']\nteams = { a = { token = 'hunter2' } }",
    ),
    ("a.toml", "[servers.a]\nenv = { T = 'hunter2"),
    (
        "a.toml",
        "[servers.a]\nenv = { T = 'hunter2', T = 'hunter2' }",
    ),
    (
        "a.toml",
        "[servers.a]\nheaders = { A = '${NONE:hunter2}', a = '${NONE}' }",
    ),
    ("a.yaml", "servers: {a: {env: {T: hunter2}, x: 1}}"),
    (
        "a.yaml",
        "servers:\n  a:\n    env:\n      T: |\n        hunter2\n        hunter2\n    x: 1",
    ),
    ("a.yaml", "servers:\n  a:\n    env:\n      T: \"hunter2"),
    (
        "a.yaml",
        "servers:\n  a:\n    env:\n      - T=hunter2\n     x: [",
    ),
    (
        "a.yaml",
        "x-s: &s {T: hunter2}\nservers: {a: {env: *s, x: 1}}",
    ),
    (
        "a.yaml",
        "servers: {a: {env: {T: hunter2}}, a: {env: {T: hunter2}}}",
    ),
    ("a.yaml", "servers: {a: {env: {T: !secret hunter2}}}"),
    (
        "a.json",
        r#"{"servers": {"a": {"env": {"T": "hunter2"}, "x": 1}}}"#,
    ),
    (
        "a.json",
        r#"{"servers": {"a": {"env": {"T" "hunter2:hunter2"}}}}"#,
    ),
    ("a.json", r#"{"servers": {"a": {"env": {"T": "hunter2}}}}"#),
    (
        "mcp.json",
        r#"{"mcpServers": {"a": {"env": {"T": "hunter2"}, "command": "a", "args": 1}}, "bridge": 1}"#,
    ),
    (
        "mcp.json",
        r#"{"mcpServers": {"a": {"oauth": {"clientSecret": "hunter2"}, "url": 1}}}"#,
    ),
    ("a.toml", "[servers.a]\nargs = ['--tokn', 'hunter2', 1]"),
    (
        "a.toml",
        "[servers.a]\nargs = ['--api-kye=hunter2', '--pasword', 'hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['--db-pass', 'hunter2', 'OPENAI_KEY=hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['-u', 'me:hunter2', '--user', 'me:hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['-c', 'TOKN=hunter2 npx x --secert hunter2', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['{\"url\": \"https://x/\", \"token\": \"hunter2\"}', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = ['--x', 'https://h/?a=hunter2', 'https://me:hunter2@h', 1]",
    ),
    (
        "a.toml",
        "[servers.a]\nargs = { '--token' = 'hunter2', x = '--token hunter2' }",
    ),
    (
        "a.toml",
        "[servers.a]\ncommand = { x = 'a --tokn hunter2' }",
    ),
    (
        "a.toml",
        "[servers.a]\ncommand = 'npx x postgres://me:hun/hunter2@db'",
    ),
    ("a.toml", "[servers.a]\nauth = { type = 'hunter2' }"),
    (
        "a.toml",
        "[servers.a]\nauth = { type = { token = 'hunter2' } }",
    ),
    ("a.toml", "[servers.a]\nauth = ['bearer', 'hunter2']"),
    ("a.toml", "[servers.a.auth.bearer]\ntoken = ['hunter2']"),
    (
        "a.toml",
        "[servers.a]\nbearer = 'hunter2'\n[auth]\nx = 'hunter2'",
    ),
    (
        "a.toml",
        "[servers]\na = 'https://me:hunter2@x/?y=hunter2#hunter2'",
    ),
    ("a.toml", "[servers.a]\nurl = 'me:hunter2@x/mcp'"),
    ("a.toml", "[servers.a]\nurl = 'x.example/mcp?key=hunter2'"),
    (
        "a.toml",
        "[servers.a]\nurl = 'ftp://x/#access_token=hunter2'",
    ),
    (
        "a.toml",
        "[servers.a]\nurl = ['ftp://x/', 'ftp://me:hunter2@x/']",
    ),
];

#[test]
fn no_excerpt_shows_a_secret() {
    for row in WRONG {
        check(&[], &[row]);
    }
}

/// The padding of a token makes no key of it.
#[test]
fn no_token_is_taken_for_a_key() {
    for token in [
        "c2VjcmV0LXRva2VuLXZhbHVlMTIzNDU2Nzg5MA==",
        "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    ] {
        for (name, text) in [
            ("a.toml", "[servers.a]\nenv = { T = \"\"\"\nTOKEN\n"),
            ("a.toml", "[servers.a]\nenv = { T = [\n TOKEN = 1 }\n"),
            (
                "a.yaml",
                "servers:\n  a:\n    env:\n      T: |\nTOKEN\n   x: [\n",
            ),
            ("a.json", "{\"servers\": {\"a\": {\nTOKEN: 1"),
        ] {
            let text = text.replace("TOKEN", token);
            let told = report(&[], &[(name, &text)]);
            assert!(!told.contains(&token[..20]), "{text}\n{told}");
        }
    }
}

#[test]
fn no_message_quotes_a_value_from_a_variable() {
    let keys = [
        "listen = '${S}'",
        "workers = '${S}'",
        "keep_alive = '${S}'",
        "limits = { body = '${S}' }",
        "naming = { charset = '${S}' }",
        "naming = { template = '${S}' }",
        "log = { level = '${S}' }",
        "servers = { a = { command = 'x ${S}' } }",
        "servers = { a = { command = 'x', roots = ['${S}'] } }",
        "servers = { a = { command = 'x', tools = { deny = ['[${S}'] } } }",
        "servers = { a = { command = 'x', tools = { rename = { a = 'x ${S}' } } } }",
        "servers = { a = { command = 'x', namespace = '${S} ' } }",
        "servers = { a = { url = '${S}' } }",
        "servers = { a = { url = 'https://x', headers = { A = '${S}\n' } } }",
        "allowed_hosts = ['${S}/']",
        "governance = { auth = '${S}' }",
        "governance = { price = '${S}' }",
        "governance = { budget = '${S}' }",
        "governance = { rate = { calls = '${S}' } }",
        "governance = { policy = { mode = 'allowlist', tools = ['[${S}'] } }",
        "governance = { args = [{ name = 'a', at = '${S}', matches = '(${S}' }] }",
        "governance = { scan = { custom = { a = '(${S}' }, countries = ['${S}'] } }",
        "governance = { scan = { base64 = ['${S}'], arguments = { email = '${S}' } } }",
        "agents = { a = { id = '${S}', profiles = ['${S}'], keys = ['${S}'] } }",
        "audit = { retention = '${S}' }",
        "tls = { cert = '~${S}', key = '${S}' }\nx = 1",
    ];
    for key in keys {
        let key = key
            .replace('\n', "\\n")
            .replace('\'', "\"")
            .replace("\\nx = 1", "\nx = 1");
        check(&[("S", SECRET)], &[("a.toml", &key)]);
    }
}

#[test]
fn no_override_shows_a_secret() {
    let file = (
        "a.toml",
        "[servers.a]\nurl = 'https://x'\n[servers.b]\ncommand = 'b'\n[agents.c]",
    );
    let names = [
        "TOLLBRIDGE_SERVERS__A__AUTH__TOKN",
        "TOLLBRIDGE_SERVERS__A__AUTH",
        "TOLLBRIDGE_SERVERS__A__HEADERS__A_B__C",
        "TOLLBRIDGE_SERVERS__NONE__ENV__A",
        "TOLLBRIDGE_SERVERS__B__ENV",
        "TOLLBRIDGE_TOKEN",
        "TOLLBRIDGE_AGENTS__C__KEYS",
        "TOLLBRIDGE_AGENTS__C__KEYS__0",
    ];
    for name in names {
        check(&[(name, SECRET)], &[file]);
    }
}

#[test]
fn nothing_that_is_loaded_shows_a_secret() {
    let text = "
        [governance]
        auth = 'keys'
        [agents.a]
        keys = ['hunter2-1c3d5e7f8a9b0c2d4f6c1d0a9b8']
        [servers.a]
        command = 'a'
        args = ['--token', 'hunter2', '--secret=hunter2', 'postgres://me:hunter2@db/x',
            '-e', 'API_KEY=hunter2', '-e', 'MODE=hunter2', '--header', 'X-A: hunter2', 'x-api-key:hunter2',
            '{\"token\": \"hunter2\"}', '-v', '/etc/tokens:/etc/tokens', '-e', 'TOKEN',
            '--api-kye', 'hunter2', '--tls-key', '/etc/key.pem', 'ghp_aB3dE6gH9jK2mN5pQ8sT1vW4xY7zA0cD3eF6',
            '@scope/server-everything@2025.12.18', 'https://h/k/aB3dE6gH9jK2mN5pQ8sT/mcp']
        env = { T = 'hunter2' }
        [servers.b]
        url = 'https://x/mcp?key=hunter2'
        headers = { A = 'hunter2' }
        auth = { type = 'bearer', token = 'hunter2' }
    ";
    let config = accepted(&[], &[("a.toml", text)]).config;
    let shown = config.to_display();
    for text in [
        shown.to_string(),
        shown.to_json().to_string(),
        format!("{shown:?}"),
    ] {
        assert!(!text.contains(SECRET), "{text}");
    }
    let args = &shown.to_json()["servers"]["a"]["args"];
    let expect = [
        "--token",
        "***",
        "--secret=***",
        "postgres://***@db/x",
        "-e",
        "API_KEY=***",
        "-e",
        "MODE=***",
        "--header",
        "X-A:***",
        "x-api-key:***",
        "{\"token\":***",
        "-v",
        "/etc/tokens:/etc/tokens",
        "-e",
        "TOKEN",
        "--api-kye",
        "***",
        "--tls-key",
        "/etc/key.pem",
        "***",
        "@scope/server-everything@2025.12.18",
        "https://h/k/***/mcp",
    ];
    assert_eq!(*args, serde_json::json!(expect));
}

/// The key is what the reader has to mend; the text need not be parsed for that.
#[test]
fn keys_beside_secrets_are_shown() {
    let check = |name: &str, line: &str, expect: &str| {
        let report = report(&[], &[(name, line)]);
        assert!(report.contains(expect), "{report}");
        assert!(!report.contains(SECRET), "{report}");
    };
    check(
        "a.toml",
        "env = { TOKEN = 'hunter2' }, comand = 'hunter2'",
        "env = { TOKEN = '***' }, comand = '***'",
    );
    check(
        "a.json",
        r#"{"env":{"A":"hunter2, hunter2: \"x"} "agrs":["hunter2", "hunter2"], "agrs" : "hunter2"}"#,
        r#"{"env":{"A":"***, ***: \"***"} "agrs":["***", "***"], "agrs" : "***"}"#,
    );
    check(
        "a.yaml",
        "{env: {A: hunter2, agrs: [b, hunter2:hunter2], comand: hunter2:1}",
        "{env: {A: ***, agrs: [***, ***:***], comand: ***:***}",
    );
    check(
        "a.toml",
        "env = { A = 'hunter2, hunter2 = 1, hunter2 = 2",
        "env = { *** = '***, *** = ***, *** = ***",
    );
    check(
        "a.toml",
        "headrs = { A = 'hunter2', tokn = 'hunter2' } x",
        "headrs = { A = '***', tokn = '***' } ***",
    );
}

fn check(environment: &[(&str, &str)], files: &[(&str, &str)]) {
    let mistakes = load(environment, files).expect_err("the config is wrong");
    assert!(
        mistakes
            .notices
            .iter()
            .any(|notice| notice.severity == Severity::Mistake)
    );
    let json = serde_json::to_string(&mistakes.notices).expect("serializes");
    for text in [mistakes.to_string(), mistakes.styled(), json] {
        assert!(!text.contains(SECRET), "{files:?} gives\n{text}");
    }
}

/// What hides secrets, such as the output of `check`, is no config: a mask is not what it hides.
#[test]
fn a_mask_is_no_secret() {
    let config = |token: &str| {
        format!(
            "[servers.a]\nurl = 'https://x/mcp?key={token}'\nauth = {{ type = 'bearer', token = '{token}' }}\n\
             [servers.b]\ncommand = 'b'\nargs = ['--token={token}']\nenv = {{ T = '{token}' }}\n\
             [servers.off]\nenabled = false\nurl = 'https://x/'\nheaders = {{ A = '{token}' }}\n\
             [governance]\nauth = 'keys'\n[agents.c]\nkeys = ['{token}']\n"
        )
    };
    let key = "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a";
    let shown = accepted(&[], &[("a.toml", &config(key))]).config;
    let shown = shown.to_display().to_string();
    for text in [&shown, &config("***")] {
        let said = report(&[], &[("a.toml", text)]);
        for place in [
            "servers.a.url",
            "servers.a.auth.token",
            "servers.b.args",
            "servers.b.env.T",
            "agents.c.keys",
        ] {
            let what = format!("`{place}` has `***` in place of a secret");
            assert!(said.contains(&what), "{place}: {said}");
        }
        assert!(!said.contains("servers.off"), "{said}");
    }
    let by_variable = [("TOKEN", "***")];
    let said = report(&by_variable, &[("a.toml", &config("${TOKEN}"))]);
    assert!(said.contains("`servers.b.env.T` has `***`"), "{said}");
    let overridden = [("TOLLBRIDGE_AGENTS__C__KEYS", r#"["***"]"#)];
    assert!(load(&overridden, &[("a.toml", &config(key))]).is_err());
    let stars =
        "[servers.a]\ncommand = 'a'\nenv = { T = '*** note ***.' }\ntools = { deny = ['**'] }\n";
    accepted(&[], &[("a.toml", stars)]);
}
