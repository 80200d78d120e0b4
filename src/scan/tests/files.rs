//! What agents read and write comes through: numbers and words of programs are no personal data.

use super::*;

/// What is found in `text`, where it is the text of a result.
fn found_in(text: &str) -> Vec<(String, String)> {
    let message = json!({"content": [{"type": "text", "text": text}]});
    let raw = Raw::parse(message.to_string()).unwrap();
    let found = Scanner::new(&all())
        .unwrap()
        .locate(Direction::Results, &raw);
    let of = |(class, at): &(Arc<str>, std::ops::Range<usize>)| {
        (class.to_string(), raw.as_str()[at.clone()].to_owned())
    };
    found.iter().map(of).collect()
}

fn check(text: &str, expect: &[(&str, &str)]) {
    let found = found_in(text);
    let found: Vec<_> = found
        .iter()
        .map(|(class, value)| (class.as_str(), value.as_str()))
        .collect();
    assert_eq!(found, expect, "{text}");
}

#[test]
fn json_in_a_text_is_looked_at_as_structured_content_is() {
    let data = json!({
        "population": 1_428_627_663, "revenue": 3_912_345_678_u64, "t": 1_755_302_400,
        "offset": 2_125_550_143, "views": 1_234_567_890, "number": 5_035_551_234_u64,
        "line": 2_125_550_143, "sql": "SELECT 3074185296", "isbn": "0306406152",
    });
    let pretty = serde_json::to_string_pretty(&json!([data])).unwrap();
    for text in [
        data.to_string(),
        json!({"result": data}).to_string(),
        json!({"contact": data}).to_string(),
        format!("Here it is:\n```json\n{pretty}\n```"),
        format!("{data}\n{data}"),
        format!("call answered {data}"),
        pretty,
    ] {
        check(&text, &[]);
        let message = json!({"content": [{"type": "text", "text": text}]}).to_string();
        assert_eq!(redacted(&all(), &message), message);
        let message = json!({"content": [], "structuredContent": {"text": text}}).to_string();
        assert_eq!(redacted(&all(), &message), message);
    }
    let phone = json!({"phone": 5_035_551_234_u64}).to_string();
    check(&phone, &[("phone", "5035551234")]);
    let nested = json!({"phones": [5_035_551_234_u64]}).to_string();
    check(&nested, &[("phone", "5035551234")]);
    check(&format!("Here: {nested}"), &[("phone", "5035551234")]);
}

#[test]
fn ten_bare_digits_are_a_telephone_only_where_something_says_so() {
    for text in [
        "aecbfe1 1795749247 reload: let lines gather while calls are open",
        "let number = 5551234567;",
        "callNumber(npm, 3074185296)",
        "line = [2125550143, 2125550144]",
        "line: 2125550143\nnumber: 2125550143",
        "text = \"0123456789\"",
        "The call took long.\n2125550143 bytes",
        "20220623.1-1+deb12u2 calls",
        "+4612-05957\tAmerica/Glace_Bay",
        "call\n   5176:\t48 89 44 24 18       \tcall",
        "42 (call) S 2 0 0 0 -1 2129984 0 0 0 0 0 0 0 0 20",
    ] {
        check(text, &[]);
    }
    for (text, value) in [
        ("Call me at 2125550143", "2125550143"),
        ("My number is 2125550143.", "2125550143"),
        ("2125550143 is her number", "2125550143"),
        ("sendSms(to, 2125550143)", "2125550143"),
        ("phones = [2125550143]", "2125550143"),
        ("212-555-0143", "212-555-0143"),
        ("x +12125550143 y", "+12125550143"),
    ] {
        check(text, &[("phone", value)]);
    }
}

#[test]
fn networks_are_nobodys_addresses() {
    for text in [
        "172.17.0.0      0.0.0.0         255.255.0.0     U     0      0        0 docker0",
        "10.0.0.0/8 dev eth0 scope link",
        "fe80::/64 dev eth0 proto kernel metric 256 pref medium",
        "multicast ff00::/8 and 224.0.0.251",
    ] {
        check(text, &[]);
    }
    check("via 10.0.0.7 dev eth0", &[("ip_address", "10.0.0.7")]);
}

#[test]
fn rows_of_dumps_hold_no_cards() {
    check("000019e0: 5833 0200 0000 0000 0800 0000  X3......", &[]);
    check("50c8: e0ae 4034 0200 0000 0000 ff", &[]);
    let (card, iban) = ("4111 1111 1111 1111", "DE89370400440532013000");
    check(
        &format!("{card} {iban}"),
        &[("credit_card", card), ("iban", iban)],
    );
    let iban = "DE89 3704 0044 0532 0130 00";
    check(
        &format!("{card} {iban}"),
        &[("credit_card", card), ("iban", iban)],
    );
}

#[test]
fn chinese_mobile_numbers_are_found() {
    for (text, value) in [
        ("138-1234-5678", "138-1234-5678"),
        ("138 1234 5678", "138 1234 5678"),
        ("+86 138 1234 5678", "+86 138 1234 5678"),
        ("mobile: 13912345678", "13912345678"),
        ("Call me on 13912345678", "13912345678"),
        ("\u{624b}\u{673a}\u{53f7}\u{ff1a}13912345678", "13912345678"),
        (
            "\u{8054}\u{7cfb}\u{7535}\u{8bdd}13912345678\u{3002}",
            "13912345678",
        ),
        ("\u{8bf7}\u{62e8}\u{6253}13912345678", "13912345678"),
        ("\u{96fb}\u{8a71}: 090-1234-5678", "090-1234-5678"),
    ] {
        check(text, &[("phone", value)]);
    }
    check("12345678901 rows, id 13912345678", &[]);
    check(
        "{\"\u{624b}\u{673a}\": 13912345678}",
        &[("phone", "13912345678")],
    );
}

#[test]
fn driving_licences_are_found_where_something_names_them() {
    for (text, value) in [
        ("Driver's license: D1234567", "D1234567"),
        ("driver license number 123456789", "123456789"),
        ("driving licence MORGA657054SM9IJ", "MORGA657054SM9IJ"),
        ("{\"driver_license\": \"F123456789012\"}", "F123456789012"),
        ("DL No. MH1420110062821", "MH1420110062821"),
        ("F\u{fc}hrerscheinnummer: B072RRE2I55", "B072RRE2I55"),
        ("Permis de conduire n\u{b0} 123456789012", "123456789012"),
        ("patente di guida U1A2B3C4DE", "U1A2B3C4DE"),
        ("rijbewijsnummer 1234567890", "1234567890"),
        ("CNH: 12345678901", "12345678901"),
    ] {
        check(text, &[("national_id", value)]);
    }
    check("driver version D1234567", &[]);
    check("license of part D1234567", &[]);
}

#[test]
fn bank_accounts_are_found_where_something_names_them() {
    for (text, value) in [
        ("bank account number 1234567890", "1234567890"),
        ("Checking account: 000123456789", "000123456789"),
        ("Sort code 12-34-56, account number 12345678", "12345678"),
        ("routing number 021000021, acct no 9876543210", "9876543210"),
        ("Kontonummer: 1234567890", "1234567890"),
        (
            "numero de cuenta 2100 0418 45 0200051332",
            "2100 0418 45 0200051332",
        ),
        ("numero de compte 12345678901", "12345678901"),
        (
            "{\"bank_account\": {\"account_number\": \"12345678\"}}",
            "12345678",
        ),
        ("name,bank_account\nBob,12345678", "12345678"),
    ] {
        check(text, &[("iban", value)]);
    }
    check("AWS account number 123456789012", &[]);
    check("savings account balance 1200000", &[]);
}

#[test]
fn names_of_programs_are_no_secrets() {
    for text in [
        "password = auth[2]",
        "secret = keypair[:32]",
        "2 GiB, pass force_zip64 to use the format",
        "pass bmi2=1 where it is",
        "pass -march=x86-64 to the compiler",
        "pass these samples to train2Buffer and go",
        "api_key: super::core::Key2Type,",
        "pub const STORAGE_KEY: X509KeyUsageFlags2 = 4i32;",
        "pub const BUFLEN_PASSWD: usize = 1024;",
        "pub log_passwd: __u32,",
        "pub password: [u16; 256],",
        "dot2_token: node.dot2_token,",
        "ii  passwd   1:4.13+dfsg1-1+deb12u1  amd64",
        "// pass in a tree, a list of calls\nprintReport2(npm, Level2)",
        " Birth: 2023-07-01 10:20:30.123456789 +0000",
        " Birth: 1970-01-01 00:00:00.000000000 +0000",
    ] {
        check(text, &[]);
    }
    check("my pass is Hunter22x!", &[("credential", "Hunter22x!")]);
    check("password = Tr0ub4dor3", &[("credential", "Tr0ub4dor3")]);
    check(
        "born: 1990-01-31 00:00:00",
        &[("date_of_birth", "1990-01-31")],
    );
}
