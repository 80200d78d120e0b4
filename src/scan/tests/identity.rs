//! Documents, numbers of nations and cards in the forms of machines, and the signs between their parts.

use super::*;

/// Asks that of `text` with `{}` in place of `value` nothing but the value is found.
fn check(class: &str, value: &str, text: &str) {
    let scanner = Scanner::new(&all()).unwrap();
    let start = text.find("{}").expect("a place for the value");
    let text = text.replace("{}", value);
    let found = scanner.locate_in_text(Direction::Results, "", &text);
    let expect = vec![(Arc::from(class), start..start + value.len())];
    assert_eq!(found, expect, "{text:?}");
}

fn check_none(text: &str) {
    let scanner = Scanner::new(&all()).unwrap();
    let found = scanner.locate_in_text(Direction::Results, "", text);
    assert_eq!(found, vec![], "{text:?}");
}

#[test]
fn numbers_of_nations_without_other_packs() {
    for (value, text) in [
        ("811228-9874", "see {} there"),
        ("8112289874", "personnummer {}"),
        ("198112289874", "personnummer: {}"),
        ("15076500565", "f\u{f8}dselsnummer {}"),
        ("150765 00565", "it is {} now"),
        ("211062-5629", "it is {} now"),
        ("010107-1234", "CPR: {}"),
        ("131052-308T", "it is {} now"),
        ("131052A308T", "it is {} now"),
        ("120174-3399", "it is {} now"),
        ("1201743399", "kennitala {}"),
        ("710319/2745", "it is {} now"),
        ("7103192745", "rodn\u{e9} \u{10d}\u{ed}slo: {}"),
        ("11010519491231002X", "it is {} now"),
        ("440524188001010014", "it is {} now"),
        ("850101-1234566", "it is {} now"),
        ("850101-1234567", "RRN {}"),
        ("1234 5678 9018", "My Number: {}"),
        ("123456789018", "My Number: {}"),
        ("BOXW310820HNERXN09", "it is {} now"),
        ("GODE561231GR8", "it is {} now"),
        ("30.686.957-4", "it is {} now"),
        ("20.347.878-K", "it is {} now"),
        ("30686957-4", "RUT: {}"),
        ("12-3456789", "EIN: {}"),
        ("12-3456789", "employer identification number {}"),
    ] {
        check("national_id", value, text);
    }
    for text in [
        "811228-9875",
        "150765 00566",
        "211062-5620",
        "131052-308U",
        "710319/2746",
        "110105194912310021",
        "order 1234 5678 9018",
        "12-3456789",
        "30.686.957-5",
        "2026-01-02/12-3456789",
    ] {
        check_none(text);
    }
}

#[test]
fn tracks_of_cards() {
    for track in [
        "%B4111111111111111^DOE/JANE^27121010000012345678?",
        ";4111111111111111=27121010000012345678?",
        "4111111111111111=27121010000012345678",
        "4111111111111111D27121010000012345678",
        "B4111111111111111^DOE/JANE^2712101",
    ] {
        check("credit_card", track, "swiped {} today");
    }
    for text in [
        "4111111111111111=2",
        "4111111111111111D27",
        "B4111111111111112^DOE/JANE^2712101",
    ] {
        check_none(text);
    }
    for card in ["4111+1111+1111+1111", "3782+822463+10005"] {
        check("credit_card", card, "q={}&x");
    }
    check_none("1111+2222+3333+4444");
}

#[test]
fn dashes_are_dashes_in_every_script() {
    for dash in [
        "-", "\u{2010}", "\u{2011}", "\u{2012}", "\u{2013}", "\u{2014}", "\u{2015}", "\u{2212}",
        "\u{58a}", "\u{5be}", "\u{fe63}", "\u{ff0d}", "\u{ad}", "\u{1806}", "\u{30fc}",
    ] {
        check("us_ssn", &["536", "22", "8145"].join(dash), "it is {} now");
        check(
            "credit_card",
            &["4111"; 1]
                .iter()
                .copied()
                .chain(["1111"; 3])
                .collect::<Vec<_>>()
                .join(dash),
            "it is {} now",
        );
        check(
            "iban",
            &["GB82", "WEST", "1234", "5698", "7654", "32"].join(dash),
            "it is {} now",
        );
        check(
            "national_id",
            &["811228", "9874"].join(dash),
            "it is {} now",
        );
    }
    for space in ["\u{a0}", "\u{2009}", "\u{202f}", "\u{2003}", "\u{3000}"] {
        check(
            "credit_card",
            &["4111", "1111", "1111", "1111"].join(space),
            "it is {} now",
        );
    }
    for text in ["SS# {}", "SS#: {}", "ss#{}", "her SS# is {}"] {
        check("us_ssn", "536228145", text);
    }
}

#[test]
fn mail_of_every_script() {
    for mail in [
        "\u{7528}\u{6237}@\u{4f8b}\u{5b50}.\u{516c}\u{53f8}",
        "\u{43f}\u{43e}\u{447}\u{442}\u{430}@\u{43f}\u{440}\u{438}\u{43c}\u{435}\u{440}.\u{440}\u{444}",
        "j\u{f6}rg@m\u{fc}ller.example",
        "\u{3b4}\u{3bf}\u{3ba}\u{3b9}\u{3bc}\u{3ae}@\u{3c0}\u{3b1}\u{3c1}\u{3ac}\u{3b4}\u{3b5}\u{3b9}\u{3b3}\u{3bc}\u{3b1}.\u{3b4}\u{3bf}\u{3ba}\u{3b9}\u{3bc}\u{3ae}",
        "\u{438}\u{432}\u{430}\u{43d}.\u{43f}\u{435}\u{442}\u{440}\u{43e}\u{432}@example.com",
        "anna@xn--mller-kva.example",
        "info@xn--e1afmkfd.xn--p1ai",
        "\u{909}\u{92a}\u{92f}\u{94b}\u{917}@\u{909}\u{926}\u{93e}\u{939}\u{930}\u{923}.\u{92d}\u{93e}\u{930}\u{924}",
    ] {
        check("email", mail, "{}");
        check("email", mail, "write to {} today");
        check("email", mail, "write to {}.");
    }
    check(
        "email",
        "zhang@example.com",
        "\u{8bf7}\u{53d1}\u{90ae}\u{4ef6}\u{5230}{}",
    );
}
