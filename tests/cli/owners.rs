//! Servers of workspaces and agents, as the commands show them to operators and to agents.

use rustix::process::Signal;

use crate::support::Place;

const NOTES: &str = "notes@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11";
const CONFIG: &str = r#"
[governance]
auth = "keys"
price = "0"
policy = { mode = "all" }
[agents.ann]
id = "agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"
team = "science"
[agents.bob]
team = "ops"
[servers.toolbox]
transport = "builtin"
[servers."lab@science"]
transport = "builtin"
[servers."notes@agent_5f0c3a52-9a0e-4a53-9c0e-0f6b6f3b7f11"]
transport = "builtin"
"#;

/// The first column of what a command printed.
async fn rows(place: &Place, args: &[&str]) -> Vec<String> {
    let ran = place.run(args).await;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let rows = ran.stdout.lines().skip(1);
    let first = rows.filter_map(|row| row.split('\t').next());
    first.map(str::to_owned).collect()
}

#[tokio::test]
async fn commands_show_what_the_agent_sees() {
    let place = Place::new(CONFIG);
    let all = ["toolbox", "lab@science", NOTES];
    assert_eq!(rows(&place, &["list", "servers"]).await, all);
    for (agent, servers, tools) in [("ann", &all[..], 3), ("bob", &all[..1], 1)] {
        let listed = rows(&place, &["list", "servers", "--agent", agent]).await;
        assert_eq!(listed, servers, "{agent}");
        let listed = rows(&place, &["list", "--agent", agent]).await;
        let echoes = listed.iter().filter(|name| name.ends_with("_echo"));
        assert_eq!(echoes.count(), tools, "{agent}: {listed:?}");
        for tool in ["mcp_lab_echo", "mcp_notes_echo"] {
            let called = place
                .run(&["call", tool, "--agent", agent, "--arg", "text=a"])
                .await;
            assert_eq!(called.code == Some(0), agent == "ann", "{called:?}");
        }
        for name in ["lab/echo", "mcp_lab_echo", "lab@science/echo"] {
            let explained = place.run(&["policy", "explain", agent, name]).await;
            assert_eq!(explained.code == Some(0), agent == "ann", "{explained:?}");
        }
    }
    let own = rows(&place, &["list", "--server", "lab", "--agent", "ann"]).await;
    assert!(own.contains(&"echo".to_owned()), "{own:?}");
    let checked = place.run(&["check", "--connect"]).await;
    assert_eq!(checked.code, Some(0), "{checked:?}");
    for server in all {
        assert!(
            checked.stdout.contains(&format!("{server}\tconnected")),
            "{checked:?}"
        );
    }
}

/// The same of a gateway that runs with the config.
#[tokio::test]
async fn a_running_gateway_shows_what_the_agent_sees() {
    let place = Place::new(CONFIG);
    let mut serving = place.serve().await;
    serving.says("server is connected").await;
    for (agent, servers) in [("ann", 3), ("bob", 1)] {
        let listed = rows(&place, &["list", "servers", "--agent", agent]).await;
        assert_eq!(listed.len(), servers, "{agent}: {listed:?}");
        let called = [
            "call",
            "mcp_notes_echo",
            "--agent",
            agent,
            "--arg",
            "text=a",
        ];
        let called = place.run(&called).await;
        assert_eq!(called.code == Some(0), agent == "ann", "{called:?}");
        let listed = place
            .run(&["list", "--server", "lab", "--agent", agent])
            .await;
        assert_eq!(listed.code == Some(0), agent == "ann", "{listed:?}");
        let shown = listed.stdout.contains("\necho\t");
        assert_eq!(shown, agent == "ann", "{listed:?}");
    }
    serving.end(Signal::TERM).await;
}

#[tokio::test]
async fn stdio_serves_what_the_agent_sees() {
    let list = r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{}}}}"#;
    let list = format!("{list}\n");
    let place = Place::new(CONFIG);
    for (agent, sees) in [("ann", true), ("bob", false)] {
        let own = ["stdio", "--agent", agent, "--server", "lab"];
        let ran = place.run_with(&list, &own).await;
        let shown = ran.stdout.contains(r#""name":"echo""#);
        assert_eq!(shown, sees, "{ran:?}");
        let ran = place.run_with(&list, &own[..3]).await;
        for name in ["mcp_lab_echo", "mcp_notes_echo"] {
            assert_eq!(ran.stdout.contains(name), sees, "{ran:?}");
        }
        assert!(ran.stdout.contains("mcp_toolbox_echo"), "{ran:?}");
    }
}
