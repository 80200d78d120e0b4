//! What is found and what is not; what redaction keeps.

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use indexmap::IndexMap;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::config::Mask;

mod boundaries;
mod embedded;
mod files;
mod identity;
mod tokens;

fn scan(results: &[(&str, ScanAction)]) -> Scan {
    let results = results
        .iter()
        .map(|(class, action)| ((*class).to_owned(), *action));
    Scan {
        results: results.collect(),
        ..Scan::default()
    }
}

fn all() -> Scan {
    scan(&[("*", ScanAction::Redact)])
}

fn redacted(scan: &Scan, message: &str) -> String {
    let message = Raw::parse(message.to_owned()).unwrap();
    let verdict = Scanner::new(scan)
        .unwrap()
        .scan(Direction::Results, &message, || None);
    assert_eq!(verdict.blocked, None);
    verdict.redacted.unwrap_or(message).as_str().to_owned()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one row a form")]
fn values_of_every_class_are_found() {
    let scanner = Scanner::new(&all()).unwrap();
    let check = |class: &str, key: &str, text: &str, value: &str| {
        let found = scanner.locate_in_text(Direction::Results, key, text);
        let start = text.find(value).unwrap();
        let expect = vec![(Arc::from(class), start..start + value.len())];
        assert_eq!(found, expect, "{class} {key} {text}");
    };
    let alone = |class: &str, text: &str| check(class, "", text, text);
    alone("email", "jane.o'neil+x@mail.example.co.uk");
    check(
        "email",
        "",
        "see user=a%40example.com&x=1",
        "a%40example.com",
    );
    alone("phone", "+49 30 1234567");
    alone("phone", "(212) 555-0143");
    check("phone", "phone", "030 1234567", "030 1234567");
    check("phone", "", "name,phone\nBob,5552368143", "5552368143");
    check("phone", "", "Appelez le 06 12 34 56 78", "06 12 34 56 78");
    check("phone", "", "zadzwoń pod 601 234 567", "601 234 567");
    alone("credit_card", "4111 1111 1111 1111");
    alone("credit_card", "378282246310005");
    check(
        "credit_card",
        "order_id",
        "Order 4111 1111 1111 1111",
        "4111 1111 1111 1111",
    );
    check(
        "credit_card",
        "ref",
        "id=4111111111111111",
        "4111111111111111",
    );
    alone("iban", "DE89 3704 0044 0532 0130 00");
    alone("iban", "GB82WEST12345698765432");
    alone("us_ssn", "536-22-8145");
    check("us_ssn", "ssn", "536228145", "536228145");
    alone("ip_address", "203.0.113.7");
    check("ip_address", "", "http://203.0.113.7:8080/x", "203.0.113.7");
    check(
        "ip_address",
        "",
        "inet6 2001:db8::8a2e:370:7334/64",
        "2001:db8::8a2e:370:7334",
    );
    check(
        "date_of_birth",
        "dateOfBirth",
        "1990-02-28T00:00:00Z",
        "1990-02-28",
    );
    check(
        "date_of_birth",
        "",
        "born on March 5th, 1985 in Ohio",
        "March 5th, 1985",
    );
    check(
        "date_of_birth",
        "",
        "geboren am 5. März 1985",
        "5. März 1985",
    );
    check(
        "date_of_birth",
        "",
        "nacido el 5 de marzo de 1985",
        "5 de marzo de 1985",
    );
    check("passport", "", "Reisepass: C01X00T47", "C01X00T47");
    check("passport", "passport_number", "533380006", "533380006");
    alone(
        "jwt",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
    );
    alone("api_key", "AKIAIOSFODNN7EXAMPLE");
    check("credential", "", "DB_PASSWORD=hunter2!x", "hunter2!x");
    check("credential", "password", "correct!horse7", "correct!horse7");
    check(
        "credential",
        "",
        "postgres://app:s3cr%24t@db.internal/x",
        "s3cr%24t",
    );
    check("credential", "", "mot de passe : Tr0ub4dor&3", "Tr0ub4dor");
    let key = format!(
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "MIIEpAIBAAKCAQEA".repeat(8)
    );
    alone("private_key", &key);
}

#[test]
fn national_numbers_are_found_by_country() {
    let scanner = Scanner::new(&all()).unwrap();
    let check = |text: &str, value: &str| {
        let found = scanner.locate_in_text(Direction::Results, "", text);
        let start = text.find(value).unwrap();
        assert_eq!(
            found,
            vec![(Arc::from("national_id"), start..start + value.len())],
            "{text}"
        );
    };
    check("TFN: 123 456 782", "123 456 782");
    check("529.982.247-25", "529.982.247-25");
    check("SIN 046 454 286", "046 454 286");
    check("756.9217.0769.85", "756.9217.0769.85");
    check("Steuer-ID: 86095742719", "86095742719");
    check("DNI 12345678-Z", "12345678-Z");
    check("X1234567L", "X1234567L");
    check("2 55 08 14 168 025 38", "2 55 08 14 168 025 38");
    check("AB 12 34 56 C", "AB 12 34 56 C");
    check("NHS number 943 476 5919", "943 476 5919");
    check("PAN ABCPE1234F", "ABCPE1234F");
    check("RSSMRA85T10A562S", "RSSMRA85T10A562S");
    check("BSN 111222333", "111222333");
    check("PESEL 44051401359", "44051401359");
    check("ITIN 912-70-1234", "912-70-1234");
    let only = Scan {
        countries: vec!["us".into()],
        ..all()
    };
    let found =
        Scanner::new(&only)
            .unwrap()
            .locate_in_text(Direction::Results, "", "PESEL 44051401359");
    assert_eq!(found, vec![]);
}

#[test]
fn what_only_looks_like_it_is_left_alone() {
    let scanner = Scanner::new(&all()).unwrap();
    let check = |key: &str, text: &str| {
        assert_eq!(
            scanner.locate_in_text(Direction::Results, key, text),
            vec![],
            "{key} {text}"
        );
    };
    for text in [
        "Order number 2125550143 shipped",
        "version 1.2.3.4",
        "Chrome/120.0.6099.129 Safari",
        "550e8400-e29b-41d4-a716-446655440000",
        "12345678-1234-1234-1234-123456789012",
        "da39a3ee5e6b4b0d3255bfef95601890afd80709",
        "ts=1767322445 level=info",
        "2026-01-02T03:04:05.123456Z",
        "git@github.com:org/repo.git",
        "user@1000.service",
        "icon@2x.png",
        "MAC 00:1b:44:11:3a:b7",
        "std::vec::Vec a::b dead::beef",
        "password = getpass()",
        "password: str",
        "\"password\": {\"type\": \"string\"}",
        "api_key = YOUR_API_KEY_0123456789",
        "token = request.headers['Authorization']",
        "page_token=abc123456789",
        "ghp_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx",
        "-----BEGIN PRIVATE KEY-----",
        "127.0.0.1 and 255.255.255.0",
        "IMEI 490154203237518",
        "Meeting on 2026-03-12 at 14:30",
        "ISBN 978-3-16-148410-0",
        "4111 1111 1111 1112",
        "lat 52.5200066, lon 13.4049540",
    ] {
        check("", text);
    }
    check("order_id", "2125550143");
    check("version", "10.0.190.4");
    check("phone_number_id", "2125550143");
}

#[test]
fn redaction_reaches_what_is_written_in_other_ways() {
    let check = |message: &str, expect: &str| assert_eq!(redacted(&all(), message), expect);
    check(r#"["a\u0040b.de"]"#, r#"["[EMAIL]"]"#);
    check(
        r#"["\ud83d\ude00 \u0061@b.de\ud83d"]"#,
        r#"["\ud83d\ude00 [EMAIL]\ud83d"]"#,
    );
    check(r#"["x\n\"a@b.de\" \/"]"#, r#"["x\n\"[EMAIL]\" \/"]"#);
    check(
        r#"{"text":"{\"mail\":\"a\\u0040b.de\"}"}"#,
        r#"{"text":"{\"mail\":\"[EMAIL]\"}"}"#,
    );
    check(
        r#"{"text":"log: a\\u0040b.de"}"#,
        r#"{"text":"log: [EMAIL]"}"#,
    );
    check(
        r#"{"a@b.de":1,"c@d.de":2,"[EMAIL]":3}"#,
        r#"{"[EMAIL]_2":1,"[EMAIL]_3":2,"[EMAIL]":3}"#,
    );
    check(
        r#"{"card":4111111111111111,"n":12}"#,
        r#"{"card":0,"n":12}"#,
    );
    check(r#"{"phones":["030 1234567"]}"#, r#"{"phones":["[PHONE]"]}"#);
    check(
        r#"{"type":"phone","value":"030 1234567"}"#,
        r#"{"type":"phone","value":"[PHONE]"}"#,
    );
    check(
        r#"{"password":["swordfish"]}"#,
        r#"{"password":["[CREDENTIAL]"]}"#,
    );
    check(
        r#"{"password":"[\"swordfish\"]"}"#,
        r#"{"password":"[\"[CREDENTIAL]\"]"}"#,
    );
    let twin = r#"{"content":[{"type":"text","text":"It is 5552368143 !"}],"structuredContent":{"phone":"5552368143"}}"#;
    check(
        twin,
        r#"{"content":[{"type":"text","text":"It is [PHONE] !"}],"structuredContent":{"phone":"[PHONE]"}}"#,
    );
    let length = Scan {
        mask: Mask::Length,
        ..all()
    };
    assert_eq!(
        redacted(&length, r#"["é a@b.de",4111111111111111]"#),
        r#"["é ******",1000000000000000]"#
    );
}

/// JSON has many spellings of an integer.
#[test]
fn integers_are_found_in_every_spelling() {
    for card in [
        "4111111111111111",
        "-4111111111111111",
        "4111111111111111.0",
        "4111111111111111.00",
        "4.111111111111111e15",
        "4.111111111111111E+15",
        "4.1111111111111110e15",
        "0.4111111111111111e16",
        "4111111111111111e0",
        "41111111111111110e-1",
        "411111111111111.1e1",
    ] {
        let message = format!(r#"{{"a":[{card}],"n":1}}"#);
        assert_eq!(redacted(&all(), &message), r#"{"a":[0],"n":1}"#, "{card}");
    }
    for other in [
        "4111111111111111.5",
        "4111111111111111e1",
        "4111111111111111e-1",
        "4111111111111111e99999999",
        "4111111111111111e-99999999",
        "4111111111111111e99999999999999999999",
        "0.0000000",
        "-0.000e15",
    ] {
        let message = format!(r#"{{"a":[{other}],"n":1}}"#);
        assert_eq!(redacted(&all(), &message), message);
    }
}

#[test]
fn blobs_are_decoded_when_their_type_is_listed() {
    let blob = |mime: &str, data: &str| {
        json!({"content": [{"type": "resource", "resource": {"uri": "x:y", "blob": data, "mimeType": mime}}]}).to_string()
    };
    let listed = Scan {
        base64: vec!["text/*".into()],
        ..all()
    };
    // "to a@b.de" and "to [EMAIL]"
    let (open, masked) = ("dG8gYUBiLmRl", "dG8gW0VNQUlMXQ==");
    assert_eq!(
        redacted(&listed, &blob("text/plain", open)),
        blob("text/plain", masked)
    );
    assert_eq!(
        redacted(&listed, &blob("image/png", open)),
        blob("image/png", open)
    );
    assert_eq!(
        redacted(&all(), &blob("text/plain", open)),
        blob("text/plain", open)
    );
}

#[test]
fn actions_are_by_class_and_direction() {
    let mut scan = scan(&[
        ("email", ScanAction::Report),
        ("*", ScanAction::Redact),
        ("iban", ScanAction::Block),
    ]);
    scan.arguments.insert("us_ssn".into(), ScanAction::Off);
    let scanner = Scanner::new(&scan).unwrap();
    assert!(scanner.is_idle(Direction::Arguments) && !scanner.is_idle(Direction::Results));
    let run = |text: &str| scanner.scan(Direction::Results, &Raw::string(text), || None);
    let verdict = run("a@b.de and 536-22-8145 and c@d.de");
    assert_eq!(
        verdict.redacted.unwrap().as_str(),
        r#""a@b.de and [US_SSN] and c@d.de""#
    );
    let hits: Vec<_> = verdict
        .hits
        .iter()
        .map(|hit| (&*hit.class, hit.action, hit.count))
        .collect();
    assert_eq!(
        hits,
        [
            ("email", ScanAction::Report, 2),
            ("us_ssn", ScanAction::Redact, 1)
        ]
    );
    let verdict = run("536-22-8145 GB82WEST12345698765432");
    assert_eq!(verdict.blocked.as_deref(), Some("iban"));
    assert!(verdict.redacted.is_none());
}

#[test]
fn classes_of_the_config_and_values_to_allow() {
    let mut scan = all();
    scan.custom.insert("badge".into(), r"\bB-\d{4}\b".into());
    scan.dictionaries
        .insert("project".into(), vec!["Blue Moon".into()]);
    scan.allow = vec!["help@example.com".into(), "+1 212 555 0143".into()];
    let text = r#"["B-1234 in blue  moon, bluemoon","Help@Example.com","+1 (212) 555-0143","x@example.com"]"#;
    let expect =
        r#"["[BADGE] in [PROJECT], bluemoon","Help@Example.com","+1 (212) 555-0143","[EMAIL]"]"#;
    assert_eq!(redacted(&scan, text), expect);
}

/// Patterns of one's own see numbers however short they are.
#[test]
fn classes_of_the_config_see_short_numbers() {
    let mut scan = all();
    scan.custom.insert("badge".into(), r"\b\d{4}\b".into());
    assert_eq!(
        redacted(&scan, r#"{"a":1234,"b":12345}"#),
        r#"{"a":0,"b":12345}"#
    );
}

/// What stands where data is expected is no data for that, in arguments or results.
#[test]
fn words_in_the_place_of_data_are_looked_at() {
    let text = r#"{"data":"4111111111111111","mimeType":"text/plain"}"#;
    let masked = r#"{"data":"[CREDIT_CARD]","mimeType":"text/plain"}"#;
    assert_eq!(redacted(&all(), text), masked);
    let image = "Bwc7".repeat(80) + "4111111111111111";
    let image = json!({"data": image, "mimeType": "image/png"}).to_string();
    assert_eq!(redacted(&all(), &image), image);
}

#[test]
fn mistakes_are_named() {
    let check = |change: &dyn Fn(&mut Scan), expect: &str| {
        let mut scan = all();
        change(&mut scan);
        let error = Scanner::new(&scan).unwrap_err().to_string();
        assert!(error.contains(expect), "{error}");
    };
    check(
        &|scan| scan.results.extend([("emial".into(), ScanAction::Block)]),
        "`emial` under `results`",
    );
    check(
        &|scan| drop(scan.custom.insert("email".into(), "x".into())),
        "`email` already exists",
    );
    check(
        &|scan| drop(scan.custom.insert("x".into(), "(".into())),
        "class `x`",
    );
    check(
        &|scan| drop(scan.dictionaries.insert("d".into(), vec![])),
        "`d`",
    );
    check(&|scan| scan.countries.push("zz".into()), "`zz`");
    let detector = json!({"id": "acme", "pattern": "acme_[^ ]{8,20}"});
    let detector: crate::config::Detector = serde_json::from_value(detector).unwrap();
    check(
        &|scan| scan.detectors.push(detector.clone()),
        "non-ASCII characters",
    );
}

/// Asks that a result whose `v` is `value` becomes one whose `v` is `expect`, under a schema that says
/// `property` of it; `None` when it is refused.
fn check_redacted(property: &Value, value: &Value, expect: Option<&Value>) {
    let schema = json!({"type": "object", "properties": {"v": property}, "required": ["v"]});
    let schema = OutputSchema::new(Raw::from_value(&schema));
    let structured = json!({"v": value});
    let message = json!({"content": [{"type": "text", "text": structured.to_string()}], "structuredContent": structured});
    let scanner = Scanner::new(&all()).unwrap();
    let verdict = scanner.scan(Direction::Results, &Raw::from_value(&message), || {
        Some(&schema)
    });
    let redacted = verdict.redacted.map(|raw| raw.read::<Value>().unwrap());
    let found = redacted.as_ref().map(|r| &r["structuredContent"]["v"]);
    assert_eq!(found, expect, "{property}");
    assert_eq!(verdict.blocked.is_some(), expect.is_none());
    if let Some(redacted) = redacted {
        let twin: Value =
            serde_json::from_str(redacted["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(twin, redacted["structuredContent"], "{property}");
    }
}

/// Of what is to be masked, that is blamed for which nothing fits.
#[test]
fn what_cannot_be_masked_is_named() {
    let scanner = Scanner::new(&all()).unwrap();
    let check = |properties: Value, structured: Value, expect: Option<&str>| {
        let schema = json!({"type": "object", "properties": properties});
        let schema = OutputSchema::new(Raw::from_value(&schema));
        let content = json!([{"type": "text", "text": "AKIAQ3EGRZ7XHWLDT5NB"}]);
        let message = json!({"content": content, "structuredContent": structured});
        let message = Raw::from_value(&message);
        let verdict = scanner.scan(Direction::Results, &message, || Some(&schema));
        assert_eq!(verdict.blocked.as_deref(), expect, "{structured}");
        let found: Vec<_> = verdict.hits.iter().map(|hit| &*hit.class).collect();
        assert!(found.contains(&"api_key") && found.len() > 1, "{found:?}");
    };
    let (mail, iban) = (json!("a@b.example"), json!("GB82WEST12345698765432"));
    let (only_mail, only_iban) = (json!({"const": mail}), json!({"const": iban}));
    check(json!({}), json!({"a": mail, "b": iban}), None);
    check(
        json!({"a": only_mail}),
        json!({"a": mail, "b": iban}),
        Some("email"),
    );
    check(
        json!({"b": only_iban}),
        json!({"a": mail, "b": iban}),
        Some("iban"),
    );
    let card = 4_111_111_111_111_111_i64;
    check(
        json!({"c": {"const": card}}),
        json!({"a": mail, "c": card}),
        Some("credit_card"),
    );
    let key = json!({"536-22-8145": 1, "a": mail});
    let only_key = json!({"536-22-8145": {}, "a": {}});
    let schema = json!({"type": "object", "properties": only_key, "additionalProperties": false});
    let schema = OutputSchema::new(Raw::from_value(&schema));
    let message = Raw::from_value(&json!({"content": [], "structuredContent": key}));
    let verdict = scanner.scan(Direction::Results, &message, || Some(&schema));
    assert_eq!(verdict.blocked.as_deref(), Some("us_ssn"));
}

#[test]
fn redacted_results_satisfy_their_schema() {
    let check = |property: Value, value: Value, expect: Option<Value>| {
        check_redacted(&property, &value, expect.as_ref());
    };
    let mail = || json!("a@b.example");
    check(json!({"type": "string"}), mail(), Some(json!("[EMAIL]")));
    check(
        json!({"type": "string", "minLength": 9}),
        mail(),
        Some(json!("***********")),
    );
    check(
        json!({"format": "email"}),
        mail(),
        Some(json!("redacted@redacted.invalid")),
    );
    check(
        json!({"pattern": r"^\d{3}-\d{2}-\d{4}$"}),
        json!("536-22-8145"),
        Some(json!("000-00-0000")),
    );
    check(
        json!({"enum": ["a@b.example", "none"]}),
        mail(),
        Some(json!("none")),
    );
    check(json!({"const": "a@b.example"}), mail(), None);
    check(
        json!({"anyOf": [{"format": "email"}, {"type": "null"}]}),
        mail(),
        Some(json!("redacted@redacted.invalid")),
    );
    let card = || json!(4_111_111_111_111_111_i64);
    check(json!({"type": "integer"}), card(), Some(json!(0)));
    check(
        json!({"type": "integer", "minimum": 1000}),
        card(),
        Some(json!(1_000_000_000_000_000_i64)),
    );
    // What was not valid before need not be so after.
    check(json!({"type": "integer"}), mail(), Some(json!("[EMAIL]")));
}

#[test]
fn so_many_values_of_an_enum_are_tried() {
    let mail = json!("a@b.example");
    let check = |property: Value, expect: Option<Value>| {
        check_redacted(&property, &mail, expect.as_ref());
    };
    let last_of = |count: usize| {
        let other = |n| {
            if n + 1 == count {
                json!("none")
            } else {
                json!(format!("a{n}@b.example"))
            }
        };
        let options: Vec<Value> = (0..count).map(other).chain([mail.clone()]).collect();
        json!({ "enum": options })
    };
    check(last_of(256), Some(json!("none")));
    check(last_of(257), None);
    // Things that are no texts stand for none, and take no place.
    check(
        json!({"enum": [["none"], {}, "none", "a@b.example"]}),
        Some(json!("none")),
    );
}

/// Pieces of text, some of which are found.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("a@b.de".to_owned()),
        Just("+49 30 1234567".to_owned()),
        Just("4111-1111-1111-1111".to_owned()),
        Just("password=hunter2!x".to_owned()),
        Just("DE89370400440532013000".to_owned()),
        Just("phone 030 1234567".to_owned()),
        Just("203.0.113.7".to_owned()),
        Just("No.10.1.2.3".to_owned()),
        Just("_4111111111111111_".to_owned()),
        Just("Visa4111111111111111/123".to_owned()),
        Just("4111\t1111\t1111\t1111".to_owned()),
        Just("tel+14155552671".to_owned()),
        Just("rene\u{301}@b.de".to_owned()),
        "[ -~]{0,12}",
        any::<String>().prop_map(|text| text.chars().take(6).collect()),
    ]
}

fn document() -> impl Strategy<Value = Value> {
    let text = prop::collection::vec(piece(), 0..4).prop_map(|pieces| pieces.join(" "));
    let leaf = prop_oneof![
        text.prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        Just(Value::from(4_111_111_111_111_111_u64)),
        Just(Value::Null),
    ];
    leaf.prop_recursive(3, 24, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((piece(), inner.clone()), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            inner.prop_map(|value| Value::from(value.to_string())),
        ]
    })
}

/// Whether `after` is `before` with other texts and numbers at the same places.
fn same_shape(before: &Value, after: &Value) -> bool {
    match (before, after) {
        (Value::Object(a), Value::Object(b)) => a.len() == b.len(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_shape(a, b))
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) => true,
        (a, b) => a == b,
    }
}

proptest! {
    #[test]
    fn redaction_keeps_the_document_and_is_complete(document in document()) {
        let scanner = Scanner::new(&all()).unwrap();
        let message = Raw::from_value(&document);
        let verdict = scanner.scan(Direction::Results, &message, || None);
        prop_assert_eq!(verdict.redacted.is_some(), !verdict.hits.is_empty());
        let Some(redacted) = verdict.redacted else { return Ok(()) };
        let after: Value = serde_json::from_str(redacted.as_str()).unwrap();
        prop_assert!(same_shape(&document, &after), "{message:?} {redacted:?}");
        let again = scanner.scan(Direction::Results, &redacted, || None);
        prop_assert!(again.hits.is_empty(), "{message:?} -> {redacted:?}: {:?}", again.hits);
    }

    #[test]
    fn nothing_but_the_found_spans_changes(pieces in prop::collection::vec(piece(), 0..8)) {
        let text = pieces.join(" ");
        let scanner = Scanner::new(&all()).unwrap();
        let mut expect = text.clone();
        for (class, span) in scanner.locate_in_text(Direction::Results, "", &text).into_iter().rev() {
            expect.replace_range(span, &format!("[{}]", class.to_uppercase()));
        }
        prop_assume!(!text.trim_start().starts_with(['{', '[']) && !text.contains("\\u"));
        let verdict = scanner.scan(Direction::Results, &Raw::string(&text), || None);
        let after = verdict.redacted.map_or(text, |raw| raw.as_text().unwrap().into_owned());
        prop_assert_eq!(after, expect);
    }
}

#[test]
fn the_cost_is_linear() {
    /// What this thread has computed: others may have the processor meanwhile.
    fn computed() -> std::time::Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        std::time::Duration::try_from(now).unwrap()
    }
    fn cost(part: &str, bytes: usize) -> std::time::Duration {
        let scanner = Scanner::new(&all()).unwrap();
        let message = Raw::string(&part.repeat(bytes / part.len()));
        let fastest = (0..3).map(|_| {
            let start = computed();
            let verdict = scanner.scan(Direction::Results, &message, || None);
            assert!(verdict.blocked.is_none());
            computed().saturating_sub(start)
        });
        fastest.min().unwrap_or_default()
    }
    const SMALL: usize = 8 * 1024;
    for part in [
        "a@",
        "://a:",
        "eyJ.",
        "-----BEGIN PRIVATE KEY-----",
        "12 34 ",
        "1",
        "abc:def::1:",
        "password=",
        "(",
        "1.2.3.4.",
        "A1 ",
        "a@b.de ",
        "[",
        "_",
        "_1234567",
        "a.1234567",
        "1234\t",
        "e\u{301}@",
        "\\u0040",
    ] {
        let (small, large) = (cost(part, SMALL), cost(part, 16 * SMALL));
        // Quadratic cost would be a factor of 256; the machine may be busy.
        assert!(
            large < small * 100 + std::time::Duration::from_millis(50),
            "{part}: {small:?} {large:?}"
        );
    }
}

/// What its name gives away in structured content is found as a word of the text beside it.
#[test]
fn named_secrets_are_found_in_the_text_beside_them() {
    let check = |message: &str, expect: &str| assert_eq!(redacted(&all(), message), expect);
    let twins = |password: &str, texts: &[(&str, &str)]| {
        for (text, expect) in texts {
            let twin = |text: &str, password: &str| json!({"content": [{"type": "text", "text": text}], "structuredContent": {"user": "postgres", "password": password}});
            check(
                &twin(text, password).to_string(),
                &twin(expect, "[CREDENTIAL]").to_string(),
            );
        }
    };
    twins(
        "sw0rdfish",
        &[
            ("bob / sw0rdfish", "bob / [CREDENTIAL]"),
            ("sw0rdfish", "[CREDENTIAL]"),
            ("«sw0rdfish»,sw0rdfishes", "«[CREDENTIAL]»,sw0rdfishes"),
            ("ésw0rdfish", "ésw0rdfish"),
        ],
    );
    twins(
        "!fish-12-fish",
        &[
            ("xfish-12-fish-12-fish", "xfish-12-[CREDENTIAL]"),
            ("fish-12-fishes fish-12-fish", "fish-12-fishes [CREDENTIAL]"),
        ],
    );
    // A word alone may be anything.
    twins("postgres", &[("postgres runs", "postgres runs")]);
    let both = r#"{"content":[{"type":"text","text":"hunter2-development"}],"structuredContent":{"password":"hunter2","token":"hunter2-dev"}}"#;
    check(
        both,
        &both
            .replace("\"hunter2-dev\"", "\"[CREDENTIAL]\"")
            .replace("hunter2\"", "[CREDENTIAL]\"")
            .replace("hunter2-dev", "[CREDENTIAL]-dev"),
    );
}

/// So many that looking for them would cost too much: the text beside them cannot pass unsearched.
#[test]
fn so_many_secrets_are_looked_for() {
    let scanner = Scanner::new(&all()).unwrap();
    let length = 500;
    let verdict = |count: usize| {
        let secret = |number: usize| format!("{number:06}{}", "sw0rdfish".repeat(60));
        let secrets: Vec<_> = (0..count)
            .map(|number| json!({"password": &secret(number)[..length]}))
            .collect();
        let text = "AKIAQ3EGRZ7XHWLDT5NB";
        let message = json!({"content": [{"type": "text", "text": text}], "structuredContent": {"all": secrets}});
        let message = Raw::parse(message.to_string()).unwrap();
        scanner.scan(Direction::Results, &message, || None)
    };
    // One mark before and one after each.
    let most = context::seen_values::SECRETS_BYTES_MAX / (length + 2);
    let at_most = verdict(most);
    assert!(at_most.blocked.is_none() && at_most.redacted.is_some());
    let past = verdict(most + 1);
    assert_eq!(past.blocked.as_deref(), Some("credential"));
    assert!(past.redacted.is_none());
}

/// Neither signs around the words of vendors nor long names above a text break the scan off or hold it up.
#[test]
fn no_text_breaks_off_the_scan() {
    let scanner = Scanner::new(&all()).unwrap();
    for text in [
        "pod production-environment-cluster-eu-west-datadog-agent-7f9c4d8b6 Running",
        "this_is_a_long_environment_variable_name_okta_a1b2c3d4",
        "a1b2c3d4e5f6g7_okta_abcdefghijklmnopqrstuvwxyzabcdefghijABCDEFGHIJ123456",
    ] {
        scanner.locate_in_text(Direction::Results, "", text);
        scanner.locate_in_text(Direction::Results, text, "a1b2c3");
    }
    let key = "okta-".repeat(4000);
    let values = |key: &str| Raw::from_value(&json!({ key: vec!["a1b2c3"; 4000] }));
    let mut times = ["okta", &key].map(|key| {
        let began = tokio::time::Instant::now();
        scanner.scan(Direction::Results, &values(key), || None);
        began.elapsed()
    });
    times[0] *= 20;
    assert!(times[1] < times[0], "{times:?}");
}

/// What a caller says of a value binds no tool: it is looked at as it stands, too.
#[test]
fn a_caller_calls_nothing_data() {
    let all: IndexMap<_, _> = [("*".to_owned(), ScanAction::Block)].into();
    let scan = Scan {
        arguments: all,
        base64: vec!["text/*".to_owned()],
        ..Scan::default()
    };
    let scanner = Scanner::new(&scan).unwrap();
    let token = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
    let image = "Bwc7".repeat(80) + "/" + token;
    let check = |mime: &str, data: &str| {
        let message = Raw::from_value(&json!({"mimeType": mime, "data": data}));
        let verdict = scanner.scan(Direction::Arguments, &message, || None);
        assert!(verdict.blocked.is_some(), "{mime} {data}");
    };
    check("image/png", &image);
    let text = "\u{ff}\u{fe}>>??  ".repeat(10) + token + " ";
    for padding in ["", " ", "  "] {
        let text = format!("{text}{padding}");
        check("text/plain", &URL_SAFE_NO_PAD.encode(&text));
        check("text/plain", &STANDARD_NO_PAD.encode(&text));
        check("text/plain", &STANDARD.encode(&text));
    }
}
