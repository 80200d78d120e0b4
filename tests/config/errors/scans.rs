//! What is looked for in data.

use insta::assert_snapshot;

use crate::support::toml;

#[test]
fn classes_that_are_none() {
    let report = toml(
        r#"
        [governance.scan]
        arguments = { emial = "block", "*" = "report", tickets = "report" }
        results = { api_key = "hide" }
        custom = { ticket = "T-[0-9]+" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: unknown class `emial`
     --> tollbridge.toml:2:15
      |
    2 | arguments = { emial = "block", "*" = "report", tickets = "report" }
      |               ^^^^^ did you mean `email`?
      |
      = help: the classes are api_key, credential, credit_card, date_of_birth, email, iban, ip_address, jwt, national_id, passport, phone, private_key and us_ssn, names under `custom` and `dictionaries`, and "*" for all others

    error: unknown class `tickets`
     --> tollbridge.toml:2:48
      |
    2 | arguments = { emial = "block", "*" = "report", tickets = "report" }
      |                                                ^^^^^^^ did you mean `ticket`?
      |
      = help: the classes are api_key, credential, credit_card, date_of_birth, email, iban, ip_address, jwt, national_id, passport, phone, private_key and us_ssn, names under `custom` and `dictionaries`, and "*" for all others

    error: `hide` is not a valid value for `governance.scan.results.api_key`
     --> tollbridge.toml:3:23
      |
    3 | results = { api_key = "hide" }
      |                       ^^^^^^ not allowed
      |
      = help: valid values are "off", "report", "redact" and "block"

    3 errors
    "#);
}

#[test]
fn classes_of_ones_own() {
    let report = toml(
        r#"
        [governance.scan.custom]
        email = "a"
        "two words" = "b"
        open = "(a"
        empty = "a*"
        [governance.scan.dictionaries]
        open = ["a"]
        none = []
        blank = [" "]
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `email` cannot be used for a custom class
     --> tollbridge.toml:2:1
      |
    2 | email = "a"
      | ^^^^^ a class of this name already exists

    error: `two words` cannot be used for a custom class
     --> tollbridge.toml:3:1
      |
    3 | "two words" = "b"
      | ^^^^^^^^^^^ names consist of 1 to 64 letters, digits, `_` and `-`

    error: `(a` is not a valid regular expression
     --> tollbridge.toml:4:8
      |
    4 | open = "(a"
      |        ^^^^ unclosed group
      |
      = help: RE2 syntax: no look-around and no backreferences

    error: `a*` matches everywhere
     --> tollbridge.toml:5:9
      |
    5 | empty = "a*"
      |         ^^^^ it matches the empty string

    error: duplicate class name `open`
     --> tollbridge.toml:7:1
      |
    4 | open = "(a"
      | ---- and this one
    ...
    7 | open = ["a"]
      | ^^^^ this one

    error: `governance.scan.dictionaries.none` is empty
     --> tollbridge.toml:8:8
      |
    8 | none = []
      |        ^^ a dictionary must have words

    error: `governance.scan.dictionaries.blank[0]` is empty
     --> tollbridge.toml:9:10
      |
    9 | blank = [" "]
      |          ^^^ use a text, or remove it

    7 errors
    "#);
}

#[test]
fn other_slips() {
    let report = toml(
        r#"
        [servers.a]
        command = "a"
        scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
    "#,
    );
    assert_snapshot!(report, @r#"
    error: `DE` is not a country code
     --> tollbridge.toml:3:23
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                       ^^^^ a lower-case ISO 3166 code of two letters
      |
      = help: use "de"

    error: `germany` is not a country code
     --> tollbridge.toml:3:29
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                             ^^^^^^^^^ a lower-case ISO 3166 code of two letters
      |
      = help: for example "us"

    error: `text` is not a MIME type
     --> tollbridge.toml:3:51
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                                                   ^^^^^^ expected a type, `/` and a subtype
      |
      = help: for example "text/*" or "application/json"

    error: `text/[a` is not a glob
     --> tollbridge.toml:3:59
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                                                           ^^^^^^^^^ unclosed character class; missing ']'
      |
      = help: `*`, `?`, `[a-z]` and `{a,b}` are special; `\` escapes them

    error: `servers.a.scan.allow[0]` is empty
     --> tollbridge.toml:3:80
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                                                                                ^^ use a text, or remove it

    error: `stars` is not a valid value for `servers.a.scan.mask`
     --> tollbridge.toml:3:92
      |
    3 | scan = { countries = ["DE", "germany"], base64 = ["text", "text/[a"], allow = [""], mask = "stars" }
      |                                                                                            ^^^^^^^ not allowed
      |
      = help: valid values are "length" and "type"

    6 errors
    "#);
}
