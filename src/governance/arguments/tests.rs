//! Rules as an operator writes them, against params as clients send them.

use proptest::prelude::*;
use serde_json::json;

use super::*;

mod coercion_model;

use crate::{config::Config, governance::policy::ItemKind, names::ServerName};

#[test]
fn conditions_decide() {
    let check = |rule: Value, arguments: &str, refused: bool| {
        let found = refuses(
            std::slice::from_ref(&rule),
            &format!(r#"{{"arguments":{arguments}}}"#),
        );
        assert_eq!(found, refused, "{rule} and {arguments}");
    };
    let allow = |condition: Value| rule("/a", "allow", condition);
    let refuse = |condition: Value| rule("/a", "refuse", condition);
    for (condition, arguments, holds) in [
        (json!({"equals": "x"}), r#"{"a":"x"}"#, true),
        (json!({"equals": "x"}), r#"{"a":"\u0078"}"#, true),
        (json!({"equals": "x"}), r#"{"\u0061":"x"}"#, true),
        (json!({"equals": "x"}), r#"{"a":"y"}"#, false),
        (json!({"equals": true}), r#"{"a":true}"#, true),
        (json!({"equals": true}), r#"{"a":false}"#, false),
        (json!({"equals": false}), r#"{"a":false}"#, true),
        (json!({"equals": 100}), r#"{"a":1e2}"#, true),
        (json!({"equals": 100}), r#"{"a":100.0}"#, true),
        (
            json!({"equals": 9_007_199_254_740_993_i64}),
            r#"{"a":9007199254740993}"#,
            true,
        ),
        (
            json!({"equals": 9_007_199_254_740_993_i64}),
            r#"{"a":9007199254740992}"#,
            false,
        ),
        (
            json!({"equals": [1, {"b": 2}]}),
            r#"{"a":[1.0,{"b":2}]}"#,
            true,
        ),
        (json!({"equals": [1]}), r#"{"a":[1,2]}"#, false),
        (json!({"one_of": ["x", "y"]}), r#"{"a":"y"}"#, true),
        (json!({"one_of": ["x", null]}), r#"{"a":null}"#, true),
        (json!({"one_of": []}), r#"{"a":"y"}"#, false),
        (json!({"matches": "^[a-z]+$"}), r#"{"a":"abc"}"#, true),
        (json!({"matches": "b"}), r#"{"a":"abc"}"#, true),
        (json!({"matches": "^[a-z]+$"}), r#"{"a":"ab1"}"#, false),
        (json!({"min": 1}), r#"{"a":1}"#, true),
        (json!({"min": 1}), r#"{"a":0.99}"#, false),
        (json!({"max": 0.1}), r#"{"a":0.1}"#, true),
        (json!({"max": 0.1}), r#"{"a":0.11}"#, false),
        (json!({"max": 5}), r#"{"a":"four"}"#, false),
        (json!({"min": 1, "max": 5}), r#"{"a":3}"#, true),
        (json!({"min": 1, "max": 5}), r#"{"a":6}"#, false),
        (json!({}), r#"{"a":null}"#, true),
    ] {
        check(allow(condition.clone()), arguments, !holds);
        check(refuse(condition), arguments, holds);
    }
}

/// A server may convert it, or may not: neither kind of rule lets it pass.
#[test]
#[expect(clippy::too_many_lines, reason = "tables")]
fn what_a_server_may_convert_counts_as_both() {
    let check = |condition: Value, value: &str, expect: [bool; 2]| {
        let params = format!(r#"{{"arguments":{{"a":{value}}}}}"#);
        let found = ["allow", "refuse"]
            .map(|action| refuses(&[rule("/a", action, condition.clone())], &params));
        assert_eq!(found, expect, "{condition} and {value}");
    };
    for spelled in [
        "4",
        " 4 ",
        "+4",
        "0_4",
        "4.0",
        "40e-1",
        "\\u0034",
        "0x4",
        "0b100",
        "\u{664}",
        ".4e1",
        "\u{1d7f0}",
        "\u{2003}4\u{a0}",
        "4d",
        "0x1p2",
        "\\\"4\\\"",
    ] {
        let spelled = format!("\"{spelled}\"");
        check(json!({"max": 5}), &spelled, [true, true]);
        check(json!({"equals": 4}), &spelled, [true, true]);
        check(json!({"max": 3}), &spelled, [true, false]);
    }
    for other in [r#""four""#, r#""4 5""#, r#""0x""#] {
        check(json!({"max": 5}), other, [true, false]);
    }
    check(json!({"min": 5}), r#""-Infinity""#, [true, false]);
    check(json!({"min": 5}), r#""Infinity""#, [true, true]);
    for nan in [r#""nan""#, r#"" NaN""#, r#""\"NaN\"""#] {
        check(json!({"min": 5}), nan, [true, true]);
        check(json!({"min": 5, "max": 6}), nan, [true, true]);
    }
    check(json!({"one_of": ["4"]}), r#""4""#, [false, true]);
    check(json!({"matches": "^[0-9]$"}), r#""4""#, [false, true]);
    check(json!({"matches": "1"}), "1", [true, true]);
    check(json!({"equals": "1"}), "1", [true, true]);
    check(json!({"equals": "admin"}), r#"" admin\n""#, [true, true]);
    check(json!({"max": 1}), "true", [true, true]);
    check(json!({"equals": 0}), "1e-400", [true, true]);
    check(
        json!({"equals": 9_007_199_254_740_992_i64}),
        "9007199254740993",
        [true, true],
    );
    for (value, truth) in [
        (r#""true""#, true),
        (r#""TRUE""#, true),
        (r#""yes""#, true),
        (r#""On""#, true),
        (r#""1""#, true),
        (r#""t""#, true),
        (r#""y""#, true),
        (r#""enabled""#, true),
        ("1", true),
        ("1.0", true),
        ("2", true),
        (r#"" true ""#, true),
        (r#""\"true\"""#, true),
        (r#""false""#, false),
        (r#""No""#, false),
        (r#""off""#, false),
        (r#""0""#, false),
        (r#""f""#, false),
        (r#""n""#, false),
        (r#""disabled""#, false),
        ("0", false),
        ("0.0", false),
        ("-0", false),
    ] {
        check(json!({"equals": truth}), value, [true, true]);
        check(json!({"equals": !truth}), value, [true, false]);
    }
    check(json!({"one_of": [null]}), r#""null""#, [true, true]);
    for spelled in [
        r#""{\"b\":2}""#,
        r#"" {\"b\":2} ""#,
        r#""\"{\\\"b\\\":2}\"""#,
        r#""{\"B\":\"2\"}""#,
        r#"{"b":2,"c":3}"#,
        r#"{"b":"0x2"}"#,
    ] {
        check(json!({"equals": {"b": 2}}), spelled, [true, true]);
        check(json!({"equals": {"b": 3}}), spelled, [true, false]);
    }
    check(
        json!({"equals": [true, {"b": 2}]}),
        r#""[\"on\", \"{\\\"b\\\":2.0}\"]""#,
        [true, true],
    );
    check(json!({"equals": ["NaN"]}), r#""[NaN]""#, [true, true]);
}

/// Text that reads as nothing or as a list is no text to a server that reads it.
#[test]
fn what_is_allowed_is_so_however_it_is_read() {
    let check = |condition: Value, value: &str, refused: bool| {
        let params = format!(r#"{{"arguments":{{"a":{value}}}}}"#);
        let found = refuses(&[rule("/a", "allow", condition.clone())], &params);
        assert_eq!(found, refused, "{condition} and {value}");
    };
    let word = || json!({"matches": "[a-z]"});
    check(word(), r#""null""#, true);
    check(word(), r#""[\"a\"]""#, true);
    check(word(), r#""{\"a\":1}""#, true);
    check(word(), r#""\"A\"""#, true);
    check(word(), r#""\"a\"""#, false);
    check(word(), r#""true""#, true);
    check(word(), r#""yes""#, false);
    check(word(), r#""{a""#, false);
    check(json!({"one_of": ["null", "x"]}), r#""null""#, false);
}

#[test]
fn what_the_schema_wants_decides() {
    let check = |at: &str, action: &str, condition: Value, schema: Value, arguments: &str| {
        let rules = rules(&[rule(at, action, condition)]);
        let params = Raw::parse(format!(r#"{{"arguments":{arguments}}}"#)).unwrap();
        let about = rules.applicable_to(&item("pay"), Some(&Raw::from_value(&schema)));
        !rules.check(&about, Some(&params)).refused.is_empty()
    };
    let of = |schema: Value| json!({"type": "object", "properties": {"a": schema}});
    let text = || of(json!({"type": ["string", "null"]}));
    let word = || json!({"matches": "[a-z]"});
    assert!(!check("/a", "allow", word(), text(), r#"{"a":"null"}"#));
    let optional = json!({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/x"}]});
    let mut other = of(optional);
    other["$defs"] = json!({"x": {"type": "object"}});
    assert!(check("/a", "allow", word(), other, r#"{"a":"null"}"#));
    let truth = || json!({"equals": true});
    let boolean = || of(json!({"type": "boolean"}));
    assert!(check("/a", "refuse", truth(), boolean(), r#"{"a":"no"}"#));
    assert!(check("/a", "refuse", truth(), boolean(), r#"{"a":[]}"#));
    assert!(!check("/a", "refuse", truth(), boolean(), r#"{"a":""}"#));
    assert!(!check("/a", "refuse", truth(), text(), r#"{"a":"no"}"#));
    let integer = || of(json!({"type": "integer"}));
    assert!(check(
        "/a",
        "refuse",
        json!({"equals": 5}),
        integer(),
        r#"{"a":5.9}"#
    ));
    assert!(check(
        "/a",
        "refuse",
        json!({"equals": 0}),
        integer(),
        r#"{"a":""}"#
    ));
    assert!(check(
        "/a",
        "refuse",
        json!({"equals": 5}),
        integer(),
        r#"{"a":["5"]}"#
    ));
    let number = || of(json!({"type": "number"}));
    assert!(!check(
        "/a",
        "refuse",
        json!({"equals": 5}),
        number(),
        r#"{"a":5.9}"#
    ));
    let path = || json!({"matches": "^/etc"});
    assert!(check(
        "/a",
        "refuse",
        path(),
        text(),
        r#"{"a":["/etc/shadow"]}"#
    ));
    let list = of(json!({"type": "array", "items": {"type": "string"}}));
    assert!(check(
        "/a/*",
        "refuse",
        path(),
        list,
        r#"{"a":["x", ["/etc/shadow"]]}"#
    ));
}

#[test]
fn what_stands_where_a_server_finds_it_is_found() {
    let check = |at: &str, arguments: &str, found: bool| {
        let condition = json!({"equals": "x"});
        let refused = refuses(
            &[rule(at, "refuse", condition)],
            &format!(r#"{{"arguments":{arguments}}}"#),
        );
        assert_eq!(refused, found, "{at} in {arguments}");
    };
    for arguments in [
        r#"{"a":{"b":"x"}}"#,
        r#"{"a":"{\"b\":\"x\"}"}"#,
        r#"{"a":" \"{\\\"b\\\":\\\"x\\\"}\" "}"#,
        r#"{"a":"{\"n\":NaN,\"b\":\"x\"}"}"#,
        r#"{"A":{"B":"x"}}"#,
        r#"{"\uff41":{"b":"x"}}"#,
        r#"{"a":{"b":"y"},"a_":{"b":"x"}}"#,
        r#"{"a":["x"]}"#,
        r#"{"a":"[\"y\",\"x\"]"}"#,
        r#"{"a":"{\"b\":\"y\",\"b\":\"y\"}"}"#,
        r#"{"a":"{\"b\":'x'}"}"#,
        r#"{"a":[{"b":"x"}]}"#,
        r#"{"a":[[{"b":["x"]}]]}"#,
        r#"{"a":{"b":["x"]}}"#,
    ] {
        check("/a/b", arguments, true);
    }
    for arguments in [
        r#"{"a":"x"}"#,
        r#"{"a":"{\"b\":\"y\"}"}"#,
        r#"{"a":{"B":"y"}}"#,
        r#"{"a":[{"b":"x"},{"b":"y"}]}"#,
        r#"{"a":{"b":["x","x"]}}"#,
    ] {
        check("/a/b", arguments, false);
    }
    check("/role_name", r#"{"roleName":"x"}"#, true);
    check("/roleName", r#"{"role_name":"x"}"#, true);
    check("/roleName", r#"{"role-name":"x"}"#, true);
    check("/roleName", r#"{"rolename2":"x"}"#, false);
    for arguments in [
        r#"{"a":["y","x"]}"#,
        r#"{"a":[["y",["x"]]]}"#,
        r#"{"a":{"k":"x"}}"#,
        r#"{"a":[{"k":{"l":["x"]}}]}"#,
        r#"{"a":"x"}"#,
        r#"{"a":"[\"x\"]"}"#,
        r#"{"a":["[\"x\"]"]}"#,
        r#"{"a":["\"x\""]}"#,
        r#"{"a":"[broken"}"#,
    ] {
        check("/a/*", arguments, true);
    }
    check("/a/*", r#"{"a":[["y"],{"x":"y"}],"b":"x"}"#, false);
    for arguments in [
        r#"{"a":[{"k":"y"},{"k":"x"}]}"#,
        r#"{"a":[[{"k":"x"}]]}"#,
        r#"{"a":{"z":{"k":"x"}}}"#,
        r#"{"a":{"k":"x"}}"#,
        r#"{"a":["{\"k\":\"x\"}"]}"#,
        r#"{"a":["[{\"k\":\"x\"}]"]}"#,
    ] {
        check("/a/*/k", arguments, true);
    }
    check("/a/*/k", r#"{"a":[{"j":"x"}]}"#, false);
    check("/a/0", r#"{"a":"x"}"#, true);
    check("/a/0", r#"{"a":"[\"x\"]"}"#, true);
    check("/a/1", r#"{"a":"x"}"#, false);
}

#[test]
fn every_element_must_be_allowed() {
    let check = |arguments: &str, refused: bool| {
        let found = refuses(
            &[rule("/a/*", "allow", json!({"matches": "^/tmp/"}))],
            &format!(r#"{{"arguments":{arguments}}}"#),
        );
        assert_eq!(found, refused, "{arguments}");
    };
    check(r#"{"a":["/tmp/x","/tmp/y"]}"#, false);
    check(r#"{"a":{"k":"/tmp/x"}}"#, false);
    check(r#"{"a":[]}"#, false);
    for other in [
        r#"{"a":["/tmp/x","/etc"]}"#,
        r#"{"a":[["/tmp/x"]]}"#,
        r#"{"a":"/tmp/x"}"#,
        r#"{"a":"[\"/tmp/x\"]"}"#,
        "{}",
    ] {
        check(other, true);
    }
}

/// Text in text, lists in lists: what leads too far is refused, and nothing takes long.
#[test]
fn what_leads_too_far_is_refused() {
    let rule = |at: &str| rules(&[rule(at, "refuse", json!({"equals": "never"}))]);
    let refuses = |at: &str, json: Value| {
        let rules = rule(at);
        let params = Raw::from_value(&json!({"arguments": json}));
        let about = rules.applicable_to(&item("pay"), None);
        !rules.check(&about, Some(&params)).refused.is_empty()
    };
    let lists = |depth| "[".repeat(depth) + &"]".repeat(depth);
    assert!(!refuses("/a/*", json!({"a": lists(100)})));
    assert!(refuses("/a/*", json!({"a": lists(1_000_000)})));
    let around = |depth: usize| {
        let numbers = "1,".repeat(50_000) + "1";
        format!("{}{numbers}{}", "[".repeat(depth), "]".repeat(depth))
    };
    assert!(refuses("/*/*/*/*/*/k", json!({"a": around(100)})));
    assert!(refuses("/a/*", json!({"a": around(100)})));
    assert!(!refuses("/a/*", json!({"a": around(10)})));
}

#[test]
fn a_missing_value_fails_what_must_hold_and_passes_what_must_not() {
    let (allow, refuse) = (
        rule("/a/b", "allow", json!({})),
        rule("/a/b", "refuse", json!({})),
    );
    for params in [
        r#"{"arguments":{}}"#,
        r#"{"arguments":{"a":1}}"#,
        r#"{"arguments":{"a":[]}}"#,
        r#"{"arguments":[{"b":1}]}"#,
        r#"{"arguments":"a"}"#,
        r#"{"arguments":null}"#,
        "{}",
    ] {
        assert!(refuses(std::slice::from_ref(&allow), params), "{params}");
        assert!(!refuses(std::slice::from_ref(&refuse), params), "{params}");
    }
    let rules = rules(&[allow]);
    let none = rules.check(&rules.applicable_to(&item("pay"), None), None);
    assert_eq!(none.refused.len(), 1);
}

#[test]
fn pointers_lead_into_objects_and_arrays() {
    let check = |at: &str, arguments: &str, found: bool| {
        let refused = refuses(
            &[rule(at, "refuse", json!({"equals": "x"}))],
            &format!(r#"{{"arguments":{arguments}}}"#),
        );
        assert_eq!(refused, found, "{at} in {arguments}");
    };
    check("/a/b", r#"{"a":{"b":"x"}}"#, true);
    check("/a/1", r#"{"a":["y","x"]}"#, true);
    check("/a/01", r#"{"a":["y","z"]}"#, false);
    check("/a/-", r#"{"a":["y"]}"#, false);
    check("/a/2", r#"{"a":["x"]}"#, false);
    check("/a/99999999999999999999999", r#"{"a":["x"]}"#, false);
    check("/1", r#"{"1":"x"}"#, true);
    check("/a~1b", r#"{"a/b":"x"}"#, true);
    check("/a~0b", r#"{"a~b":"x"}"#, true);
    check("/a~01", r#"{"a~1":"x"}"#, true);
    check("/", r#"{"":"x"}"#, true);
    check("/a", r#"{ "z" : {"a":"x"} , "a" : "y" }"#, false);
    let whole = rule("", "refuse", json!({"equals": {"a": 1}}));
    assert!(refuses(
        std::slice::from_ref(&whole),
        r#"{"arguments":{"a":1}}"#
    ));
    assert!(!refuses(&[whole], r#"{"arguments":{"a":2}}"#));
}

#[test]
fn what_two_readers_may_read_differently_is_refused() {
    for action in ["allow", "refuse"] {
        let condition = |action| match action {
            "allow" => json!({}),
            _ => json!({"equals": "never"}),
        };
        let rule = rule("/a", action, condition(action));
        for params in [
            r#"{"arguments":{"a":1,"a":2}}"#,
            r#"{"arguments":{"a":1,"\u0061":2}}"#,
            r#"{"arguments":{"a":{"b":1,"b":1}}}"#,
            r#"{"arguments":{"a":[{"b":1,"b":1}]}}"#,
            r#"{"arguments":{"a":1},"arguments":{"a":1}}"#,
            r#"{"arguments":{"a":"\ud800"}}"#,
        ] {
            assert!(
                refuses(std::slice::from_ref(&rule), params),
                "{action} {params}"
            );
        }
        let elsewhere = r#"{"arguments":{"a":"x","b":1,"b":2}}"#;
        assert!(!refuses(&[rule], elsewhere), "{action}");
    }
    // A server that keeps doubles reads 100.
    let nearly = r#"{"arguments":{"a":99.99999999999999999999}}"#;
    assert!(refuses(
        &[rule("/a", "refuse", json!({"min": 100}))],
        nearly
    ));
    assert!(refuses(
        &[rule("/a", "refuse", json!({"equals": 100}))],
        nearly
    ));
    let above = r#"{"arguments":{"a":100.00000000000000000001}}"#;
    assert!(refuses(&[rule("/a", "allow", json!({"max": 100}))], above));
}

#[test]
fn rules_are_about_their_tools_and_report_by_name() {
    let mut limit = rule("/a", "allow", json!({"max": 10}));
    limit["name"] = "limit".into();
    let mut watch = limit.clone();
    watch["name"] = "watch".into();
    watch["observe"] = true.into();
    let mut other = limit.clone();
    other["name"] = "other".into();
    other["tools"] = json!(["mcp_bank_p*", "*/refund"]);
    let rules = rules(&[limit, watch, other]);
    let check = |tool: &str, params: &str, refused: &[&str], observed: &[&str]| {
        let params = Raw::parse(params.to_owned()).unwrap();
        let found = rules.check(&rules.applicable_to(&item(tool), None), Some(&params));
        assert_eq!(found.refused, refused, "{tool}");
        assert_eq!(found.observed, observed, "{tool}");
    };
    let (high, low) = (r#"{"arguments":{"a":11}}"#, r#"{"arguments":{"a":10}}"#);
    check("pay", high, &["limit", "other"], &["watch"]);
    check("pay", low, &[], &[]);
    check("refund", high, &["other"], &[]);
    check("list", high, &[], &[]);
}

#[test]
fn a_rule_that_cannot_be_used_is_named() {
    let check = |rule: Value, expect: &str| {
        let rule: ArgumentRule = serde_json::from_value(rule).unwrap();
        let error = ArgumentRules::new([&rule], &prefixes())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("invalid argument rule `r`: ") && error.contains(expect),
            "{error}"
        );
    };
    check(rule("a", "allow", json!({})), "RFC 6901");
    check(rule("/a~2", "allow", json!({})), "RFC 6901");
    check(rule("/a~", "allow", json!({})), "RFC 6901");
    check(
        rule("/a", "allow", json!({"matches": "("})),
        "regular expression",
    );
    check(
        rule("/a", "allow", json!({"matches": "\\w{1000}{1000}"})),
        "regular expression",
    );
}

proptest! {
    /// Whatever the arguments are, a value is allowed exactly when it is the one that is meant, which is
    /// never let pass by a rule that refuses it.
    #[test]
    fn what_is_allowed_is_what_is_refused(value in value(), other in value()) {
        let params = json!({"arguments": {"a": value}}).to_string();
        let condition = json!({"one_of": [other]});
        let allowed = !refuses(&[rule("/a", "allow", condition.clone())], &params);
        let refused = refuses(&[rule("/a", "refuse", condition)], &params);
        prop_assert_eq!(allowed, value == other);
        prop_assert!(refused || !allowed);
    }
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-3i64..3).prop_map(Value::from),
        "[a-b\"\\\\é]{0,2}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::hash_map("[ab]", inner, 0..3)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

fn rule(at: &str, action: &str, condition: Value) -> Value {
    let mut rule = condition;
    rule["name"] = "r".into();
    rule["tools"] = json!(["bank/pay"]);
    rule["at"] = at.into();
    rule["action"] = action.into();
    rule
}

#[test]
fn what_is_doubled_is_found_wherever_it_is() {
    for (json, expect) in [
        (r#"{"a":1,"b":{"a":2},"c":[{"a":1},{"a":1}]}"#, false),
        (r#"{"a":1,"a":1}"#, true),
        (r#"{"a":1,"\u0061":1}"#, true),
        (r#"{"a":1,"A":1}"#, true),
        (r#"{"ſ":1,"S":1}"#, true),
        (r#"{"a":["b",{"c":{"d":1,"e":{},"d":1}}]}"#, true),
        (r#"["a","a",{}]"#, false),
        ("1", false),
    ] {
        assert_eq!(has_duplicate_keys(json.as_bytes()), expect, "{json}");
    }
    crate::mcp::json::assert_as_fast_when_deep(|json| assert!(!has_duplicate_keys(json)));
}

fn rules(rules: &[Value]) -> ArgumentRules {
    let rules: Vec<ArgumentRule> = rules
        .iter()
        .map(|rule| serde_json::from_value(rule.clone()).unwrap())
        .collect();
    ArgumentRules::new(&rules, &prefixes()).unwrap()
}

fn prefixes() -> Prefixes {
    Prefixes::of(&Config::example("[servers.bank]\ncommand = 'a'"))
}

fn refuses(given: &[Value], params: &str) -> bool {
    let params = Raw::parse(params.to_owned()).unwrap();
    let rules = rules(given);
    let found = rules.check(&rules.applicable_to(&item("pay"), None), Some(&params));
    !found.refused.is_empty()
}

fn item(tool: &str) -> PolicyItem<'_> {
    static BANK: std::sync::LazyLock<ServerName> =
        std::sync::LazyLock::new(|| ServerName::parse("bank").unwrap());
    PolicyItem {
        kind: ItemKind::Tool,
        exposed: "",
        plain: match tool {
            "pay" => "mcp_bank_pay",
            _ => "",
        },
        distinct: "",
        alias: "",
        server: &BANK,
        original: tool,
    }
}

/// A rule about an object refuses text that some read as one, though it is not quite JSON or too deep.
#[test]
fn text_that_may_be_an_object_counts_as_one() {
    let check = |condition: Value, text: &str, expect: bool| {
        let params = json!({"arguments": {"f": text}}).to_string();
        let found = refuses(&[rule("/f", "refuse", condition)], &params);
        assert_eq!(found, expect, "{text}");
    };
    let admin = || json!({"equals": {"admin": true}});
    let deep = format!(
        r#"{{"admin":true,"junk":{}{}}}"#,
        "[".repeat(140),
        "]".repeat(140)
    );
    for text in [
        r#"{"admin":true}"#,
        r#"{"admin":true,}"#,
        "{'admin': true}",
        &deep,
    ] {
        check(admin(), text, true);
    }
    check(admin(), r#"{"admin":false}"#, false);
    check(admin(), "admin", false);
    check(json!({"equals": "x"}), "{'admin': true}", false);
    check(json!({"equals": "x"}), &deep, true);
}
