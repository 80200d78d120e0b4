//! Values beside signs, names and accents: which are found, and that the rest stays as it was.

use super::*;

const CARD: &str = "4111111111111111";

/// Asks that of `text` with `{}` in place of `value` nothing but the value is found, or nothing at all.
fn check(class: Option<&str>, value: &str, text: &str) {
    let scanner = Scanner::new(&all()).unwrap();
    let start = text.find("{}").expect("a place for the value");
    let text = text.replace("{}", value);
    let found = scanner.locate_in_text(Direction::Results, "", &text);
    let expect = class.map(|class| (Arc::from(class), start..start + value.len()));
    assert_eq!(found, Vec::from_iter(expect), "{text:?}");
}

#[test]
fn cards_are_found_beside_signs_and_their_names() {
    for text in [
        "No.{}",
        "Nr.{}",
        "Card no.{}",
        "Kartennr.{}",
        "paid.{}",
        "Card number.....{}",
        "_{}_",
        "__{}__",
        "_{}_, thanks",
        "~~{}~~",
        "${}",
        "\u{20ac}{}",
        "-{}",
        "- a\n-{}",
        "PAN_{}",
        "pan-{}",
        "card_number_{}",
        "Visa{}",
        "MasterCard{}",
        "{}/123",
        "{}/12/2027/123.",
    ] {
        check(Some("credit_card"), CARD, text);
    }
    check(Some("credit_card"), "4111 1111 1111 1111", "Visa{}");
    check(Some("credit_card"), "4111-1111-1111-1111", "{}/12/27");
    check(Some("credit_card"), "378282246310005", "Amex{}");
}

#[test]
fn numbers_within_something_longer_are_no_cards() {
    for text in [
        "order_{}",
        "order_id_{}",
        "card_id_{}",
        "order-{}",
        "user.7_{}",
        "0.{}",
        ".{}",
        "12.{}",
        "US${}",
        "abc{}",
        "deadbeef{}",
        "visa{}x",
        "q5yV{}Zz+/=",
        "{}_thumb.jpg",
        "a_{}_b",
        "{}.pdf",
        "{}/comments",
        "{}/123/comments",
        "{}/12345",
        "https://x.example/items/{}",
        "https://x.example/items/{}/123",
        "550e8400-e29b-41d4-a716-{}",
        "[EMAIL]_{}",
        "%{}",
    ] {
        check(None, CARD, text);
    }
}

#[test]
fn other_numbers_are_found_beside_signs_and_their_names() {
    for (class, value, texts) in [
        (
            "us_ssn",
            "123-45-6789",
            &["No.{}", "_{}_", "SSN-{}", "SSN{}", "ssn_{}"][..],
        ),
        ("ip_address", "10.1.2.3", &["No.{}", "_{}_", "IP.{}"]),
        (
            "phone",
            "+14155552671",
            &["tel{}", "tel_{}", "Tel.{}", "_{}_", " -{}"],
        ),
        ("phone", "030 1234567", &["Tel.{}", "Tel.Nr.{}"]),
        (
            "passport",
            "C01X00T47",
            &["Passport No.{}", "passport _{}_"],
        ),
        ("national_id", "X1234567L", &["_{}_", "NIE-{}", "Nr.{}"]),
        (
            "iban",
            "DE89370400440532013000",
            &["_{}_", "iban_{}", "IBAN-{}"],
        ),
        ("date_of_birth", "1990-02-28", &["born _{}_", "dob_{}"]),
    ] {
        for text in texts {
            check(Some(class), value, text);
        }
    }
}

#[test]
fn other_numbers_within_something_longer_are_none() {
    for (value, texts) in [
        (
            "123-45-6789",
            &["order_{}", "AB-{}", "7.{}", "_{}_b", "x{}"][..],
        ),
        (
            "10.1.2.3",
            &[
                "1.{}",
                "v.{}",
                "libssl.so.{}",
                "x_{}",
                "server-{}",
                "_{}_b",
                "iso.{}",
            ],
        ),
        ("2011.04.009", &["10.1016/j.cell.{}"]),
        ("14155552671", &["https://x.example/?q=invoice+{}"]),
        ("+14155552671", &["n{}", "1{}", "x_{}"]),
        ("2125550143", &["contact_{}", "call-{}"]),
        ("81234567", &["Contact support, see trace.{}"]),
    ] {
        for text in texts {
            check(None, value, text);
        }
    }
}

/// Decomposed text (NFD) has accents as characters of their own.
#[test]
fn accents_that_stand_alone_are_letters() {
    for (address, text) in [
        ("rene\u{301}@example.com", "{}"),
        ("jose\u{301}.garcia@example.com", "an {}, bitte"),
        ("nguye\u{302}\u{303}n@example.com", "{}"),
        ("nguy\u{1ec5}n.v\u{103}n@example.com", "<{}>"),
        ("a@mu\u{308}nchen.example", "{}"),
        // Letters of other scripts are none of an address of Latin ones, and their accents neither.
        ("jane@example.com", "\u{90ae}\u{7bb1}{}"),
        ("jane@example.com", "\u{438}\u{306}{}"),
    ] {
        check(Some("email"), address, text);
    }
    check(Some("email"), "\u{438}\u{306}@example.com", "{}");
    check(Some("credential"), "Xyz123!abc", "la password e\u{300} {}");
    check(Some("credential"), "Tr0ub4dor3", "contrasen\u{303}a {}");
    check(Some("phone"), "5552368143", "tele\u{301}fono: {}");
}

#[test]
fn secrets_have_letters_of_any_script_with_cases() {
    check(Some("credential"), "ключ12345", "api_key = '{}'");
    check(Some("credential"), "Größe12345", "token = {}");
    check(None, "пароль", "api_key = '{}'");
    check(None, "请输入8位以上的密码", "token: {}");
    let message = r#"{"api_key":"ключ12345"}"#;
    assert_eq!(redacted(&all(), message), r#"{"api_key":"[CREDENTIAL]"}"#);
}

#[test]
fn what_stands_around_is_kept_as_it_is_written() {
    for (message, expect) in [
        (
            r#"["\u20acx jose\u0301.g@b.de\n_4111111111111111_"]"#,
            r#"["\u20acx [EMAIL]\n_[CREDIT_CARD]_"]"#,
        ),
        (
            r#"{"t":"{\"n\":\"No.123-45-6789\"}"}"#,
            r#"{"t":"{\"n\":\"No.[US_SSN]\"}"}"#,
        ),
        (
            r#"{"_4111111111111111_":"Visa4111111111111111/123"}"#,
            r#"{"_[CREDIT_CARD]_":"Visa[CREDIT_CARD]/123"}"#,
        ),
    ] {
        assert_eq!(redacted(&all(), message), expect);
    }
}
