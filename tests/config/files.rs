//! Configs in files.

use std::{
    fs,
    io::Write as _,
    os::unix::{
        fs::{PermissionsExt as _, symlink},
        net::UnixListener,
    },
    path::{Path, PathBuf},
    thread,
};

use tollbridge::config::{ConfigErrors, Environment, LoadScope, Transport, load, load_with};

use crate::support::{server, warnings};

#[test]
fn files_are_read_in_order() {
    let directory = tempfile::tempdir().expect("a directory");
    let base = write(&directory, "base.toml", "workers = 1\nport_search = 1");
    let local = write(&directory, "local.yaml", "workers: 2");
    let loaded = load(&[base, local], &Environment::default()).expect("right");
    assert_eq!((loaded.config.workers, loaded.config.port_search), (2, 1));
    assert!(loaded.warnings.is_empty());
}

/// Shells give the output of a program as a pipe; one that nobody writes to is no config.
#[test]
fn pipes_are_waited_for_but_not_for_ever() {
    let directory = tempfile::tempdir().expect("a directory");
    let pipe = directory.path().join("pipe.toml");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, mode).expect("made");
    let refused = |file: PathBuf, why: &str| {
        let mistakes = load(&[file], &Environment::default()).expect_err("no config");
        assert!(mistakes.to_string().contains(why), "{mistakes}");
    };
    refused(pipe.clone(), "not a regular file, and no data arrived");
    let mode = fs::Permissions::from_mode;
    fs::set_permissions(&pipe, mode(0o602)).expect("changed");
    refused(pipe.clone(), "the file is writable by other users");
    fs::set_permissions(&pipe, mode(0o600)).expect("changed");
    let of_writer = pipe.clone();
    let writer = thread::spawn(move || {
        let mut pipe = fs::OpenOptions::new().write(true).open(of_writer)?;
        pipe.write_all(b"workers = ")?;
        pipe.write_all(b"3")
    });
    let loaded = load(&[pipe], &Environment::default()).expect("right");
    assert_eq!(loaded.config.workers, 3);
    writer.join().expect("it ends").expect("written");

    let socket = directory.path().join("socket.toml");
    let _listener = UnixListener::bind(&socket).expect("bound");
    refused(socket, "cannot read the config");
    let endless = directory.path().join("zero.toml");
    symlink("/dev/zero", &endless).expect("linked");
    refused(endless, "bytes exceed the maximum of");
    let within = directory.path().join("directory.toml");
    fs::create_dir(&within).expect("created");
    refused(within, "Is a directory");
}

#[test]
fn paths_start_at_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&directory, "cert.pem", "-----BEGIN CERTIFICATE-----\n");
    write(&directory, "key.pem", "");
    let text =
        "tls = { cert = 'cert.pem', key = 'key.pem' }\n[servers.a]\ncommand = 'a'\ncwd = '.'";
    let file = write(&directory, "tollbridge.toml", text);
    let config = load(&[file], &Environment::default())
        .expect("right")
        .config;
    assert_eq!(
        config.tls.expect("written").key,
        directory.path().join("key.pem")
    );
}

/// The directory is that of the file a path is written in; names alone are looked for in `PATH`.
#[test]
fn commands_start_at_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    fs::create_dir(directory.path().join("more")).expect("created");
    let text = "[servers.a]\ncommand = './server'\nargs = ['./a']\ncwd = 'work'\n\
                [servers.b]\ncommand = 'npx'\n[servers.c]\ncommand = '/bin/c'";
    let base = write(&directory, "base.toml", text);
    let more = write(
        &directory,
        "more/more.yaml",
        "servers: {d: {command: bin/d}, b: {cwd: .}}",
    );
    let environment = [("TOLLBRIDGE_SERVERS__C__COMMAND", "./c")];
    let config = load(&[base, more], &environment.into_iter().collect())
        .expect("right")
        .config;
    let check = |name: &str, program: &Path, cwd: Option<&Path>| {
        let Transport::Stdio(command) = &server(&config, name).transport else {
            panic!("{name} is a program");
        };
        assert_eq!(Path::new(&command.program), program);
        assert_eq!(command.cwd.as_deref(), cwd);
    };
    let (at, here) = (directory.path(), std::env::current_dir().expect("it is"));
    check("a", &at.join("server"), Some(&at.join("work")));
    check("b", Path::new("npx"), Some(&at.join("more")));
    check("c", &here.join("c"), None);
    check("d", &at.join("more/bin/d"), None);
}

#[test]
fn what_cannot_be_read_is_reported_with_the_rest() {
    let directory = tempfile::tempdir().expect("a directory");
    let ini = write(&directory, "a.ini", "");
    let wrong = write(
        &directory,
        "b.toml",
        "tls = { cert = 'cert.pem', key = 'key.pem' }\nx = 1",
    );
    let binary = directory.path().join("d.json");
    fs::write(&binary, [0xff, 0xfe, 0x00]).expect("written");
    let latin = directory.path().join("e.toml");
    fs::write(&latin, b"# one\n# \xfcber\n").expect("written");
    let missing = directory.path().join("c.toml");
    let mistakes = load(
        &[ini, wrong, missing, binary, latin],
        &Environment::default(),
    )
    .unwrap_err();
    insta::assert_snapshot!(redacted(&mistakes, &directory), @"
    error: cannot tell the config format from the file name
    --> DIR/a.ini
     = help: use the extension `.toml`, `.yaml` or `.json`

    error: cannot read the config: No such file or directory (os error 2)
    --> DIR/c.toml

    error: cannot read the config: the file is UTF-16: save it as UTF-8
    --> DIR/d.json

    error: cannot read the config: invalid UTF-8 (byte 0xfc in line 2): save the file as UTF-8
    --> DIR/e.toml

    error: the file of `tls.cert` does not exist
     --> DIR/b.toml:1:16
      |
    1 | tls = { cert = 'cert.pem', key = 'key.pem' }
      |                ^^^^^^^^^^ no such file
      |
      = help: searched for DIR/cert.pem

    error: the file of `tls.key` does not exist
     --> DIR/b.toml:1:34
      |
    1 | tls = { cert = 'cert.pem', key = 'key.pem' }
      |                                  ^^^^^^^^^ no such file
      |
      = help: searched for DIR/key.pem

    error: unknown key `x`
     --> DIR/b.toml:2:1
      |
    2 | x = ***
      | ^ no such key
      |
      = help: valid keys are `$schema`, `admin_listen`, `agents`, `allowed_hosts`, `allowed_origins`, `audit`, `danger_listen_without_auth`, `data_dir`, `drain_timeout`, `egress`, `first_list_wait`, `governance`, `jwt`, `keep_alive`, `limits`, `list_page_size`, `listen`, `locality`, `log`, `naming`, `oauth`, `port_search`, `profiles`, `public_url`, `request_state_ttl`, `secrets`, `servers`, `session_idle_timeout`, `socket`, `tls`, `views`, `workers` and `workspaces`

    7 errors
    ");
}

#[test]
fn what_a_missing_file_may_hold_is_not_missed() {
    let directory = tempfile::tempdir().expect("a directory");
    let local = write(&directory, "local.toml", "[servers.a]\ntimeout = '5s'");
    let environment = Environment::default().with("TOLLBRIDGE_SERVERS__B__TIMEOUT", "5s");
    let base = directory.path().join("base.toml");
    let mistakes = load(&[base, local], &environment).unwrap_err();
    assert_eq!(mistakes.notices.len(), 1, "{mistakes}");
}

#[test]
fn a_huge_file_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = write(&directory, "a.toml", &"#".repeat((4 << 20) + 1));
    let mistakes = load(&[file], &Environment::default()).unwrap_err();
    insta::assert_snapshot!(redacted(&mistakes, &directory), @"
    error: cannot read the config: 4194305 bytes exceed the maximum of 4194304
    --> DIR/a.toml

    1 error
    ");
}

#[test]
fn a_report_has_parts_for_scripts() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = write(&directory, "a.toml", "\n  wrkers = 'hunter2'\nlog = 1\n");
    let mistakes = load(&[file], &Environment::default()).unwrap_err();
    let json = serde_json::to_string_pretty(&mistakes.notices).expect("serializes");
    let json = json.replace(&directory.path().display().to_string(), "DIR");
    insta::assert_snapshot!(json, @r#"
    [
      {
        "severity": "error",
        "message": "unknown key `wrkers`",
        "label": "no such key",
        "suggestion": "did you mean `workers`?",
        "file": "DIR/a.toml",
        "line": 2,
        "column": 3
      },
      {
        "severity": "error",
        "message": "`log` must be a table",
        "label": "this is a whole number",
        "suggestion": "its keys are `format` and `level`",
        "file": "DIR/a.toml",
        "line": 3,
        "column": 7
      }
    ]
    "#);
    assert!(
        mistakes.styled().contains("\u{1b}["),
        "a terminal gets colours"
    );
}

#[test]
fn a_report_counts_what_it_does_not_show() {
    let keys: Vec<String> = (0..150).map(|n| format!("nonsense_{n:03} = 1")).collect();
    let report = crate::support::toml(&keys.join("\n"));
    assert!(report.contains("nonsense_099") && !report.contains("nonsense_100"));
    assert!(
        report.ends_with("150 errors, showing the first 100"),
        "{report}"
    );
}

#[test]
fn doubtful_configs_run_with_warnings() {
    let text = r#"
        [servers.a]
        command = "a"
        headers = { X-A = "1" }

        [servers.b]
        url = "http://example.com/mcp"
        auth = { type = "bearer", token = "t" }
        args = ["x"]

        [servers.c]
        transport = "builtin"
        env = { A = "1" }

        [servers.d]
        enabled = false
    "#;
    insta::assert_snapshot!(warnings(&[], &[("tollbridge.toml", text)]), @r#"
    warning: `servers.a.headers` has no effect
     --> tollbridge.toml:3:1
      |
    3 | headers = { X-A = "***" }
      | ^^^^^^^ not used by a server with `command`

    warning: the credential of this server is sent in clear text
     --> tollbridge.toml:6:7
      |
    6 | url = "http://example.com/mcp"
      |       ^^^^^^^^^^^^^^^^^^^^^^^^ not encrypted
      |
      = help: use `https:` unless the network path is trusted

    warning: `servers.b.args` has no effect
     --> tollbridge.toml:8:1
      |
    8 | args = ["x"]
      | ^^^^ not used by a server with `url`

    warning: `servers.c.env` has no effect
      --> tollbridge.toml:12:1
       |
    12 | env = { A = "***" }
       | ^^^ not used by the toolbox

    warning: `servers.d` is skipped
      --> tollbridge.toml:14:10
       |
    14 | [servers.d]
       |          ^ disabled, without `command` or `url`
    "#);
}

fn write(directory: &tempfile::TempDir, name: &str, text: &str) -> PathBuf {
    let path = directory.path().join(name);
    fs::write(&path, text).expect("written");
    path
}

fn redacted(mistakes: &ConfigErrors, directory: &tempfile::TempDir) -> String {
    mistakes
        .to_string()
        .replace(&directory.path().display().to_string(), "DIR")
}

#[test]
fn variables_stand_in_files_of_their_own() {
    let directory = tempfile::tempdir().expect("a directory");
    write(
        &directory,
        ".env",
        "A=1\n# B=2\nexport C='x y' # z\nD=\"$A\"\nE=1\nE=2\n",
    );
    let text = "[servers.a]\ncommand = 'a'\nenv_file = '.env'\nenv = { A = '3' }";
    let file = write(&directory, "a.toml", text);
    let config = load(&[file], &Environment::default())
        .expect("right")
        .config;
    let Transport::Stdio(command) = &server(&config, "a").transport else {
        panic!("a program");
    };
    let mut variables: Vec<_> = command
        .env
        .iter()
        .map(|(name, value)| (name.as_str(), value.expose()))
        .collect();
    variables.sort_unstable();
    let expect = [("A", "3"), ("C", "x y"), ("D", "$A"), ("E", "2")];
    assert_eq!(variables, expect);
}

#[test]
fn a_file_of_variables_that_cannot_be_read_is_a_mistake() {
    let directory = tempfile::tempdir().expect("a directory");
    write(&directory, "bad.env", "A=1\nPASSWORD='hunter2\n");
    let text = "[servers.a]\ncommand = 'a'\nenv_file = 'none.env'\n\
                [servers.b]\ncommand = 'b'\nenv_file = 'bad.env'\n\
                [servers.c]\ncommand = 'c'\nenv_file = 'none.env'\nenabled = false\n\
                [servers.d]\nurl = 'http://localhost/mcp'\nenv_file = 'bad.env'\n";
    let file = write(&directory, "a.toml", text);
    let asked = load_with(
        std::slice::from_ref(&file),
        LoadScope::EnabledAnd("c"),
        &Environment::default(),
    );
    let asked = asked.expect_err("wrong").to_string();
    assert!(
        asked.contains("error: cannot read the file of `servers.c.env_file`"),
        "{asked}"
    );
    let mistakes = load(&[file], &Environment::default()).expect_err("wrong");
    insta::assert_snapshot!(redacted(&mistakes, &directory), @"
    error: cannot read the file of `servers.a.env_file`
     --> DIR/a.toml:3:12
      |
    3 | env_file = 'none.env'
      |            ^^^^^^^^^^ No such file or directory (os error 2)
      |
      = help: looked at DIR/none.env

    error: cannot read the file of `servers.b.env_file`
     --> DIR/a.toml:6:12
      |
    6 | env_file = 'bad.env'
      |            ^^^^^^^^^ line 2: unterminated quote
      |
      = help: looked at DIR/bad.env

    warning: cannot read the file of `servers.c.env_file`
     --> DIR/a.toml:9:12
      |
    9 | env_file = 'none.env'
      |            ^^^^^^^^^^ No such file or directory (os error 2)
      |
      = help: looked at DIR/none.env

    warning: `servers.d.env_file` has no effect
      --> DIR/a.toml:13:1
       |
    13 | env_file = 'bad.env'
       | ^^^^^^^^ not used by a server with `url`

    2 errors, 2 warnings
    ");
}
