//! What governs calls: prices, budgets, rates, policies, rules about arguments.

use insta::assert_snapshot;

use crate::support::{json, toml};

/// The form that everybody writes first; what is wrong with it is its brackets.
#[test]
fn argument_rules_as_one_table() {
    let report = toml(
        r#"
        [governance.args]
        name = "small"
        at = "/limit"
        max = 9
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.args` must be a list
     --> tollbridge.toml:1:1
      |
    1 | [governance.args]
      | ^^^^^^^^^^^^^^^^^ this is a table
      |
      = help: write `[[governance.args]]` with two brackets in TOML, or a list: [{ name = "...", at = "..." }]

    1 error
    "#);
}

#[test]
fn amounts_that_are_none() {
    let report = toml(
        r#"
        [governance]
        price = 0.015
        budget = { limit = 10 }
        [servers.a]
        command = "a"
        price = "$0.02"
        tools = { price = { search = "1e-3", read = "0.0000001", list = "-1" } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.price` is not a valid USD amount
     --> tollbridge.toml:6:9
      |
    6 | price = "$0.02"
      |         ^^^^^^^ an amount is a decimal number of US dollars, such as "0.015"
      |
      = help: use "0.02"

    error: `servers.a.tools.price.search` is not a valid USD amount
     --> tollbridge.toml:7:30
      |
    7 | tools = { price = { search = "1e-3", read = "0.0000001", list = "-1" } }
      |                              ^^^^^^ an amount is a decimal number of US dollars, such as "0.015"
      |
      = help: for example "0.015"

    error: `servers.a.tools.price.read` is not a valid USD amount
     --> tollbridge.toml:7:45
      |
    7 | tools = { price = { search = "1e-3", read = "0.0000001", list = "-1" } }
      |                                             ^^^^^^^^^^^ an amount has at most six decimal places
      |
      = help: the smallest amount is "0.000001", a micro-dollar

    error: `servers.a.tools.price.list` is not a valid USD amount
     --> tollbridge.toml:7:65
      |
    7 | tools = { price = { search = "1e-3", read = "0.0000001", list = "-1" } }
      |                                                                 ^^^^ an amount cannot be negative
      |
      = help: for example "0.015"

    4 errors
    "#);
}

#[test]
fn a_budget_that_is_an_amount() {
    let report = toml(
        r#"
        [governance]
        budget = "5.00"
        [servers.a]
        command = "a"
        budget = 5
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.budget` must be a string
     --> tollbridge.toml:5:10
      |
    5 | budget = 5
      |          ^ this is a whole number
      |
      = help: for example "2.50/day", or { limit = "2.50", window = "day" }

    1 error
    "#);
}

#[test]
fn budgets_with_slips() {
    let report = toml(
        r#"
        [governance]
        budget = [{ limit = "1.00", window = "week" }, { window = "day" }, { amount = "1", limit = "1" }]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `week` is not a valid value for `governance.budget[0].window`
     --> tollbridge.toml:2:38
      |
    2 | budget = [{ limit = "1.00", window = "week" }, { window = "day" }, { amount = "***", limit = "1" }]
      |                                      ^^^^^^ not allowed
      |
      = help: valid values are "day", "month" and "total"

    error: `governance.budget[1]` requires `limit`
     --> tollbridge.toml:2:48
      |
    2 | budget = [{ limit = "1.00", window = "week" }, { window = "day" }, { amount = "***", limit = "1" }]
      |                                                ^^^^^^^^^^^^^^^^^^ `limit` is missing
      |
      = help: add limit = "..."

    error: unknown key `governance.budget[2].amount`
     --> tollbridge.toml:2:70
      |
    2 | budget = [{ limit = "1.00", window = "week" }, { window = "day" }, { amount = "***", limit = "1" }]
      |                                                                      ^^^^^^ no such key
      |
      = help: use `limit`

    3 errors
    "#);
}

#[test]
fn rates_out_of_range() {
    let report = toml(
        r#"
        [governance]
        rate = { calls = 0, per = "1ms", burst = 2000000 }
        tool_rate = { per = "1m" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.rate.calls` is out of range
     --> tollbridge.toml:2:18
      |
    2 | rate = { calls = 0, per = "1ms", burst = 2000000 }
      |                  ^ must be at least 1

    error: `governance.rate.per` is out of range
     --> tollbridge.toml:2:27
      |
    2 | rate = { calls = 0, per = "1ms", burst = 2000000 }
      |                           ^^^^^ must be between 1s and 1d

    error: `governance.rate.burst` is out of range
     --> tollbridge.toml:2:42
      |
    2 | rate = { calls = 0, per = "1ms", burst = 2000000 }
      |                                          ^^^^^^^ must be at most 1000000

    error: `governance.tool_rate` requires `calls`
     --> tollbridge.toml:3:13
      |
    3 | tool_rate = { per = "1m" }
      |             ^^^^^^^^^^^^^^ `calls` is missing
      |
      = help: add calls = ...

    4 errors
    "#);
}

#[test]
fn policies_with_slips() {
    let report = toml(
        r#"
        [governance]
        policy = { mode = "allow-list", tools = ["a"] }
        [agents.a]
        policy = { tools = ["a"] }
        [agents.b]
        policy = { mode = "denylist", tools = ["[a"], resources = ["{a"], deny = ["a[]b"] }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `allow-list` is not a valid value for `governance.policy.mode`
     --> tollbridge.toml:2:19
      |
    2 | policy = { mode = "allow-list", tools = ["a"] }
      |                   ^^^^^^^^^^^^ did you mean "allowlist"?
      |
      = help: valid values are "all", "allowlist", "denylist" and "none"

    warning: agents are configured but callers cannot be identified
     --> tollbridge.toml:3:9
      |
    3 | [agents.a]
      |         ^ every caller is the anonymous agent
      |
      = help: set `auth = "keys"` in `[governance]`

    error: `agents.a.policy` requires `mode`
     --> tollbridge.toml:4:10
      |
    4 | policy = { tools = ["a"] }
      |          ^^^^^^^^^^^^^^^^^ `mode` is missing
      |
      = help: add mode = "all", "allowlist", "denylist" or "none"

    error: `[a` is not a glob
     --> tollbridge.toml:6:40
      |
    6 | policy = { mode = "denylist", tools = ["[a"], resources = ["{a"], deny = ["a[]b"] }
      |                                        ^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: `{a` is not a glob
     --> tollbridge.toml:6:60
      |
    6 | policy = { mode = "denylist", tools = ["[a"], resources = ["{a"], deny = ["a[]b"] }
      |                                                            ^^^^ unclosed alternate group; missing '}' (maybe escape '{' with '[{]'?)
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: `a[]b` is not a glob
     --> tollbridge.toml:6:75
      |
    6 | policy = { mode = "denylist", tools = ["[a"], resources = ["{a"], deny = ["a[]b"] }
      |                                                                           ^^^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    5 errors, 1 warning
    "#);
}

#[test]
fn words_that_are_none() {
    let report = toml(
        r#"
        [governance]
        auth = "kyes"
        errors = "json-rpc"
        error_codes = "portabel"
        observe = ["scan", "rates"]
        charge_errors = "yes"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `kyes` is not a valid value for `governance.auth`
     --> tollbridge.toml:2:8
      |
    2 | auth = "kyes"
      |        ^^^^^^ did you mean "keys"?
      |
      = help: valid values are "anonymous", "keys", "oauth", "jwt" and "mtls"

    error: `json-rpc` is not a valid value for `governance.errors`
     --> tollbridge.toml:3:10
      |
    3 | errors = "json-rpc"
      |          ^^^^^^^^^^ did you mean "jsonrpc"?
      |
      = help: valid values are "jsonrpc" and "tool_result"

    error: `portabel` is not a valid value for `governance.error_codes`
     --> tollbridge.toml:4:15
      |
    4 | error_codes = "portabel"
      |               ^^^^^^^^^^ did you mean "portable"?
      |
      = help: valid values are "contract" and "portable"

    error: `rates` is not a valid value for `governance.observe[1]`
     --> tollbridge.toml:5:20
      |
    5 | observe = ["scan", "rates"]
      |                    ^^^^^^^ did you mean "rate"?
      |
      = help: valid values are "args", "budget", "policy", "rate" and "scan"

    error: `governance.charge_errors` must be `true` or `false`
     --> tollbridge.toml:6:17
      |
    6 | charge_errors = "yes"
      |                 ^^^^^ this is a string
      |
      = help: use `true`

    5 errors
    "#);
}

#[test]
fn a_mistyped_authentication_makes_no_further_mistakes() {
    let report = toml(
        r#"
        listen = "0.0.0.0:8080"
        [governance]
        auth = "key"
        [agents.a]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `key` is not a valid value for `governance.auth`
     --> tollbridge.toml:3:8
      |
    3 | auth = "key"
      |        ^^^^^ did you mean "keys"?
      |
      = help: valid values are "anonymous", "keys", "oauth", "jwt" and "mtls"

    1 error
    "#);
}

#[test]
fn rules_about_arguments() {
    let report = toml(
        r#"
        [[governance.args]]
        name = "a"
        at = "$.path.to"
        matches = "("
        [[governance.args]]
        name = "a"
        at = "/a~b"
        [[governance.args]]
        at = "/a"
        max = 1
        action = "allow"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `$.path.to` is not a JSON pointer
     --> tollbridge.toml:3:6
      |
    3 | at = "$.path.to"
      |      ^^^^^^^^^^^ must start with `/`
      |
      = help: use "/path/to"

    error: `(` is not a valid regular expression
     --> tollbridge.toml:4:11
      |
    4 | matches = "("
      |           ^^^ unclosed group
      |
      = help: RE2 syntax: no look-around and no backreferences

    error: `governance.args[1]` has no condition
     --> tollbridge.toml:5:1
      |
    5 | [[governance.args]]
      | ^^^^^^^^^^^^^^^^^^^ the rule would have no condition
      |
      = help: add `equals`, `one_of`, `matches`, `min` or `max`

    error: duplicate rule name `a`
     --> tollbridge.toml:6:8
      |
    2 | name = "a"
      |        --- and this one
    ...
    6 | name = "a"
      |        ^^^ this one
      |
      = help: the audit log refers to rules by name: use unique names

    error: `/a~b` is not a JSON pointer
     --> tollbridge.toml:7:6
      |
    7 | at = "/a~b"
      |      ^^^^^^ `~` is special
      |
      = help: escape `~` as `~0` and `/` as `~1`

    error: `governance.args[2]` requires `name`
     --> tollbridge.toml:8:1
      |
    8 | [[governance.args]]
      | ^^^^^^^^^^^^^^^^^^^ `name` is missing
      |
      = help: add name = "..."

    6 errors
    "#);
}

/// A rule without a name hides neither its other mistakes, nor where those of the next are.
#[test]
fn rules_without_a_name() {
    let report = toml(
        r#"
        [[governance.args]]
        at = "a"
        tools = [1, "[a"]
        [[governance.args]]
        name = "a"
        at = "/a"
        min = 2
        max = 1
        action = "allow"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.args[0]` requires `name`
     --> tollbridge.toml:1:1
      |
    1 | [[governance.args]]
      | ^^^^^^^^^^^^^^^^^^^ `name` is missing
      |
      = help: add name = "..."

    error: `governance.args[0]` has no condition
     --> tollbridge.toml:1:1
      |
    1 | [[governance.args]]
      | ^^^^^^^^^^^^^^^^^^^ the rule would have no condition
      |
      = help: add `equals`, `one_of`, `matches`, `min` or `max`

    error: `a` is not a JSON pointer
     --> tollbridge.toml:2:6
      |
    2 | at = "a"
      |      ^^^ must start with `/`
      |
      = help: use "/a"

    error: `governance.args[0].tools[0]` must be a string
     --> tollbridge.toml:3:10
      |
    3 | tools = [1, "[a"]
      |          ^ this is a whole number
      |
      = help: add quotes

    error: `[a` is not a glob
     --> tollbridge.toml:3:13
      |
    3 | tools = [1, "[a"]
      |             ^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: `governance.args[1].min` is more than `max`
     --> tollbridge.toml:7:7
      |
    7 | min = 2
      |       ^ no number satisfies both
    8 | max = 1
      |       - `min` must not exceed `max`

    6 errors
    "#);
}

#[test]
fn rules_whose_name_is_no_text() {
    let report = toml(
        r#"
        [[governance.args]]
        name = 1
        at = 2
        tols = ["b"]
        matches = "("
        observe = "no"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.args[0].name` must be a string
     --> tollbridge.toml:2:8
      |
    2 | name = 1
      |        ^ this is a whole number
      |
      = help: add quotes

    error: `governance.args[0].at` must be a string
     --> tollbridge.toml:3:6
      |
    3 | at = 2
      |      ^ this is a whole number
      |
      = help: add quotes

    error: unknown key `governance.args[0].tols`
     --> tollbridge.toml:4:1
      |
    4 | tols = ["***"]
      | ^^^^ no such key
      |
      = help: did you mean `tools`?

    error: `(` is not a valid regular expression
     --> tollbridge.toml:5:11
      |
    5 | matches = "("
      |           ^^^ unclosed group
      |
      = help: RE2 syntax: no look-around and no backreferences

    error: `governance.args[0].observe` must be `true` or `false`
     --> tollbridge.toml:6:11
      |
    6 | observe = "no"
      |           ^^^^ this is a string
      |
      = help: use `false`

    5 errors
    "#);
}

/// An item that is left out of a list does not hide where the others are.
#[test]
fn items_behind_one_of_another_type() {
    let report = toml(
        r#"
        [governance]
        auth = "keys"
        [agents.a]
        keys = [1, "short"]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `agents.a.keys[0]` must be a string
     --> tollbridge.toml:4:9
      |
    4 | keys = [***, "***"]
      |         ^^^ this is a whole number
      |
      = help: add quotes

    error: `agents.a.keys[1]` is too short
     --> tollbridge.toml:4:12
      |
    4 | keys = [***, "***"]
      |              ^^^^^ fewer than 32 characters
      |
      = help: generate a key with `openssl rand -hex 32`

    2 errors
    "#);
}

#[test]
fn conditions_that_nothing_meets() {
    let report = toml(
        r#"
        [[governance.args]]
        name = ""
        at = "/a"
        tools = ["[a"]
        one_of = []
        min = 3
        max = 2
        action = "allow"
        [[governance.args]]
        name = "a"
        at = ""
        min = nan
        max = "1"
        action = "allow"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.args[0].name` is empty
     --> tollbridge.toml:2:8
      |
    2 | name = ""
      |        ^^ set the name used in the audit log

    error: `[a` is not a glob
     --> tollbridge.toml:4:10
      |
    4 | tools = ["[a"]
      |          ^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: `governance.args[0].one_of` is empty
     --> tollbridge.toml:5:10
      |
    5 | one_of = []
      |          ^^ an empty list matches no value

    error: `governance.args[0].min` is more than `max`
     --> tollbridge.toml:6:7
      |
    6 | min = 3
      |       ^ no number satisfies both
    7 | max = 2
      |       - `min` must not exceed `max`

    error: `governance.args[1].min` is out of range
      --> tollbridge.toml:12:7
       |
    12 | min = nan
       |       ^^^ arguments cannot be compared with it

    error: `governance.args[1].max` must be a number
      --> tollbridge.toml:13:7
       |
    13 | max = "1"
       |       ^^^ this is a string

    6 errors
    "#);
}

#[test]
fn a_null_in_a_condition() {
    let report = json(
        r#"
        { "governance": { "args": [{ "name": "a", "at": "/a", "one_of": [1, null], "equals": { "b": null } }] } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `governance.args[0].equals` contains null
     --> tollbridge.json:1:76
      |
    1 | { "governance": { "args": [{ "name": "a", "at": "/a", "one_of": [1, null], "equals": { "b": null } }] } }
      |                                                                            ^^^^^^^^ null means a missing key in a config

    1 error
    "#);
}

#[test]
fn prices_of_what_costs_nothing() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        resources = { price = { "file:///a" = "1.00" } }
        prompts = { timeout = { a = "1s" } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown key `servers.a.resources.price`
     --> tollbridge.toml:3:15
      |
    3 | resources = { price = { "file:///a" = "***" } }
      |               ^^^^^ no such key
      |
      = help: prices apply to tools only: move the key to `tools`

    error: unknown key `servers.a.prompts.timeout`
     --> tollbridge.toml:4:13
      |
    4 | prompts = { timeout = { a = "***" } }
      |             ^^^^^^^ no such key
      |
      = help: item timeouts apply to tools only: move the key to `tools`

    2 errors
    "#);
}

#[test]
fn timeouts_of_tools() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        tools = { timeout = { a = 30, b = "0s", c = "2d" } }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `servers.a.tools.timeout.a` must be a duration with a unit
     --> tollbridge.toml:3:27
      |
    3 | tools = { timeout = { a = 30, b = "0s", c = "2d" } }
      |                           ^^ missing unit
      |
      = help: use "30s" or "30ms"

    error: `servers.a.tools.timeout.b` is out of range
     --> tollbridge.toml:3:35
      |
    3 | tools = { timeout = { a = 30, b = "0s", c = "2d" } }
      |                                   ^^^^ must be between 1ms and 1d

    error: `servers.a.tools.timeout.c` is out of range
     --> tollbridge.toml:3:45
      |
    3 | tools = { timeout = { a = 30, b = "0s", c = "2d" } }
      |                                             ^^^^ must be between 1ms and 1d

    3 errors
    "#);
}

#[test]
fn an_audit_with_slips() {
    let report = toml(
        r#"
        [audit]
        durability = "disc"
        retention = "500y"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `disc` is not a valid value for `audit.durability`
     --> tollbridge.toml:2:14
      |
    2 | durability = "disc"
      |              ^^^^^^ did you mean "disk"?
      |
      = help: valid values are "disk" and "process"

    error: `audit.retention` is out of range
     --> tollbridge.toml:3:13
      |
    3 | retention = "500y"
      |             ^^^^^^ must be 0, or between 1s and 36500d

    2 errors
    "#);
}

#[test]
fn a_data_directory_for_a_shell() {
    let report = toml(
        r#"
        data_dir = "~/tollbridge"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `data_dir` begins with `~`
     --> tollbridge.toml:1:12
      |
    1 | data_dir = "~/tollbridge"
      |            ^^^^^^^^^^^^^^ not expanded: no shell is involved
      |
      = help: use "${HOME}/tollbridge"

    1 error
    "#);
}

#[test]
fn an_empty_data_directory() {
    let report = toml(
        r#"
        data_dir = ""
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `data_dir` is empty
     --> tollbridge.toml:1:12
      |
    1 | data_dir = ""
      |            ^^ set a directory, or remove the key

    1 error
    "#);
}

#[test]
fn short_forms_with_slips() {
    let report = toml(
        r#"
        [governance]
        budget = "2.50/week"
        rate = "120"
        tool_rate = "1000001/1m"
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `2.50/week` is not a budget
     --> tollbridge.toml:2:10
      |
    2 | budget = "2.50/week"
      |          ^^^^^^^^^^^ unknown window `week`: use day, month, total
      |
      = help: for example "2.50/day", or { limit = "2.50", window = "day" }

    error: `120` is not a rate
     --> tollbridge.toml:3:8
      |
    3 | rate = "120"
      |        ^^^^^ use CALLS/PERIOD or CALLS/PERIOD/BURST, such as 120/1m/20
      |
      = help: for example "120/1m", or { calls = 120, per = "1m" }

    error: `1000001/1m` is not a rate
     --> tollbridge.toml:4:13
      |
    4 | tool_rate = "1000001/1m"
      |             ^^^^^^^^^^^^ `1000001` is not a valid number of calls (1 to 1000000)
      |
      = help: for example "120/1m", or { calls = 120, per = "1m" }

    3 errors
    "#);
}
