//! Configs of other programs.

use insta::assert_snapshot;

use crate::support::mcp_json;

#[test]
fn an_input_without_an_answer() {
    let report = mcp_json(
        r#"
        {
          "inputs": [{ "type": "promptString", "id": "github-token", "password": true }],
          "servers": { "a": { "type": "stdio", "command": "a", "env": { "T": "${input:github-token}" } } }
        }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: the input `github-token` has no value
     --> mcp.json:3:79
      |
    3 |   "servers": { "a": { "type": "stdio", "command": "a", "env": { "T": "${input:github-token}" } } }
      |                                                                               ^^^^^^^^^^^^ needed here
      |
      = help: set the variable GITHUB_TOKEN: the gateway cannot prompt

    1 error
    "#);
}

#[test]
fn a_variable_of_an_editor() {
    let report = mcp_json(
        r#"
        { "mcpServers": { "a": { "command": "${command:pick}" } } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.command` uses a variable that only an editor can resolve
     --> mcp.json:1:38
      |
    1 | { "mcpServers": { "a": { "command": "${command:pick}" } } }
      |                                      ^^^^^^^^^^^^^^^ needed here
      |
      = help: use the value, or `${VARIABLE}`

    1 error
    "#);
}

#[test]
fn a_key_of_a_later_version_in_a_document_of_others() {
    let report = mcp_json(
        r#"
        {
          "mcpServers": { "a": { "command": "a" } },
          "store": "sqlite"
        }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `store`
     --> mcp.json:3:3
      |
    3 |   "store": "***"
      |   ^^^^^^^ not supported by this version
      |
      = help: remove it

    1 error
    "#);
}

#[test]
fn a_foreign_value_of_the_wrong_type() {
    let report = mcp_json(
        r#"
        { "mcpServers": { "a": { "command": "a", "timeout": "soon" } } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.timeout` must be a duration with a unit
     --> mcp.json:1:53
      |
    1 | { "mcpServers": { "a": { "command": "a", "timeout": "soon" } } }
      |                                                     ^^^^^^ not valid
      |
      = help: for example "500ms", "30s" or "1m30s"

    1 error
    "#);
}
