//! The table of detectors: whether tokens of each kind are found wherever they stand, and lines without
//! any are left alone.
//!
//! Tokens are made from the patterns of the table, seeded, so that none stands in the tree; what has a
//! word of its vendor nearby has it here too.
#![allow(clippy::print_stdout, reason = "the rates are what the test is for")]

use std::collections::BTreeMap;

use regex_syntax::hir::{Class, Hir, HirKind};

use super::*;
use crate::scan::detect::detectors::Detectors;

const KINDS_MIN: usize = 200;
const SAMPLES: usize = 4;
const RECALL_MIN: f64 = 0.99;
const HARMLESS_LINES: usize = 5_000;
/// Harmless lines in which something is found at most.
const WRONG_MAX: usize = 5;

/// A seeded source of numbers.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        let limit = u64::try_from(limit).unwrap();
        usize::try_from((self.0 >> 11) % limit).unwrap()
    }

    pub(super) fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    pub(super) fn text(&mut self, alphabet: &str, len: usize) -> String {
        let alphabet: Vec<char> = alphabet.chars().collect();
        (0..len).map(|_| self.of(&alphabet)).collect()
    }
}

const HEX: &str = "0123456789abcdef";
const DIGITS: &str = "0123456789";
const LOWER: &str = "abcdefghijklmnopqrstuvwxyz";
const ALNUM: &str = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";

/// A text that `pattern` matches.
fn sample(pattern: &str, dice: &mut Dice) -> String {
    fn write(hir: &Hir, dice: &mut Dice, out: &mut Vec<u8>) {
        match hir.kind() {
            HirKind::Literal(literal) => out.extend_from_slice(&literal.0),
            HirKind::Class(Class::Bytes(class)) => {
                let bytes: Vec<u8> = class.iter().flat_map(|r| r.start()..=r.end()).collect();
                out.push(dice.of(&bytes));
            }
            HirKind::Repetition(repetition) => {
                let least = repetition.min;
                // Some of what may be long is.
                let most = repetition.max.unwrap().min(least + 20);
                let span = usize::try_from(most - least).unwrap() + 1;
                let count = usize::try_from(least).unwrap() + dice.below(span);
                (0..count).for_each(|_| write(&repetition.sub, dice, out));
            }
            HirKind::Capture(capture) => write(&capture.sub, dice, out),
            HirKind::Concat(parts) => parts.iter().for_each(|part| write(part, dice, out)),
            HirKind::Alternation(parts) => {
                let part = &parts[dice.below(parts.len())];
                write(part, dice, out);
            }
            HirKind::Class(Class::Unicode(_)) | HirKind::Empty | HirKind::Look(_) => {}
        }
    }
    let mut parser = regex_syntax::ParserBuilder::new();
    let hir = parser.unicode(false).utf8(false).build().parse(pattern);
    let mut out = Vec::new();
    write(&hir.unwrap(), dice, &mut out);
    String::from_utf8(out).unwrap()
}

/// The places where a token stands: its name, the key above the text, and the text around it.
fn contexts(vendor: &str, token: &str) -> [(&'static str, String, String); 5] {
    let upper = vendor.to_uppercase();
    let line = "2026-01-02T03:04:05Z WARN worker-7";
    [
        (
            "prose",
            String::new(),
            format!("Please use the {vendor} key {token} for the deployment, and tell nobody."),
        ),
        ("json", format!("{vendor}_value"), token.to_owned()),
        (
            "shell",
            String::new(),
            format!("export {upper}_KEY={token}\n./deploy --fast"),
        ),
        (
            "header",
            String::new(),
            format!(
                "curl -H 'X-{vendor}-Api-Key: {token}' https://api.example.com/v1/items?page=2"
            ),
        ),
        (
            "log",
            String::new(),
            format!("{line} {vendor} client: request failed token=\"{token}\" retries=3"),
        ),
    ]
}

/// Whether a scan for secrets finds `token` in `text` below the key `key`.
fn is_found(scanner: &Scanner, key: &str, text: &str, token: &str) -> bool {
    let start = text.find(token).unwrap();
    let spans = scanner.locate_in_text(Direction::Results, key, text);
    spans.iter().any(|(_, span)| {
        let common = span
            .end
            .min(start + token.len())
            .saturating_sub(span.start.max(start));
        common * 5 >= token.len() * 4
    })
}

fn of_secrets() -> Scanner {
    let classes = ["api_key", "private_key", "jwt", "credential"];
    Scanner::new(&scan(&classes.map(|class| (class, ScanAction::Report)))).unwrap()
}

#[test]
fn tokens_of_every_kind_are_found_wherever_they_stand() {
    let only_tokens = scan(&[
        ("api_key", ScanAction::Report),
        ("private_key", ScanAction::Report),
    ]);
    let mut scanners = BTreeMap::new();
    scanners.insert("tokens alone", Scanner::new(&only_tokens).unwrap());
    scanners.insert("all secrets", of_secrets());
    let table = Detectors::built_in();
    let kinds = table.all().count();
    let mut missed = Vec::new();
    for (what, scanner) in &scanners {
        let mut rates: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        for (seed, row) in table.all().enumerate() {
            let detector = row.detector();
            let vendor = detector.near.first();
            let vendor = vendor.map_or("other", String::as_str);
            let mut dice = Dice::new(u64::try_from(seed).unwrap() + 1);
            for _ in 0..SAMPLES {
                let token = sample(&detector.pattern, &mut dice);
                for (context, key, text) in contexts(vendor, &token) {
                    let found = is_found(scanner, &key, &text, secret_of(&token));
                    let rate = rates.entry(context).or_default();
                    rate.1 += 1;
                    rate.0 += usize::from(found);
                    if !found {
                        missed.push(format!("{what}, {context}: {}", detector.id));
                    }
                }
            }
        }
        println!("recall of {kinds} kinds of tokens, {what}");
        for (context, (found, all)) in rates {
            let rate = share(found, all);
            println!("  {context:8} {found:5} of {all:5}  {rate:.4}");
            assert!(rate >= RECALL_MIN, "{context}: {missed:#?}");
        }
    }
    println!("missed: {missed:#?}");
    assert!(kinds >= KINDS_MIN, "{kinds}");
}

/// What of a sample is the secret: after the name of a parameter that is part of the pattern.
fn secret_of(token: &str) -> &str {
    let names = ["Signature=", "Token=", "sig=", "Key=", "session=", "://"];
    let named = names.iter().find_map(|name| token.split_once(name));
    named.map_or(token, |(_, secret)| secret.trim_end_matches('@'))
}

fn share(part: usize, all: usize) -> f64 {
    f64::from(u32::try_from(part).unwrap()) / f64::from(u32::try_from(all).unwrap())
}

#[test]
fn harmless_lines_have_no_tokens() {
    let scanner = of_secrets();
    let mut dice = Dice::new(7);
    let mut wrong = Vec::new();
    for at in 0..HARMLESS_LINES {
        let line = harmless(at, &mut dice);
        let found = scanner.locate_in_text(Direction::Results, "", &line);
        if !found.is_empty() {
            wrong.push(format!("{found:?} {line}"));
        }
    }
    println!(
        "{} of {HARMLESS_LINES} harmless lines have findings: {wrong:#?}",
        wrong.len()
    );
    assert!(wrong.len() <= WRONG_MAX);
}

fn uuid(dice: &mut Dice) -> String {
    [8, 4, 4, 4, 12].map(|len| dice.text(HEX, len)).join("-")
}

/// A line such as documents, logs and code have, with much that is random and nothing that is secret.
#[expect(clippy::too_many_lines, reason = "one arm a kind of line")]
fn harmless(at: usize, dice: &mut Dice) -> String {
    const VENDORS: [&str; 16] = [
        "github",
        "datadog",
        "heroku",
        "stripe",
        "azure",
        "google",
        "aws",
        "okta",
        "slack",
        "npm",
        "cloudflare",
        "sentry",
        "docker",
        "vercel",
        "twilio",
        "mongodb",
    ];
    const WORDS: [&str; 14] = [
        "deploy", "service", "key", "cache", "line", "front", "meta", "together", "monday", "box",
        "segment", "queue", "render", "linear",
    ];
    const BASE64: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let vendor = dice.of(&VENDORS);
    let word = dice.of(&WORDS);
    let hex = |dice: &mut Dice, len| dice.text(HEX, len);
    match at % 25 {
        0 => format!("commit {}", hex(dice, 40)),
        1 => format!("{} {word}: mend the {vendor} integration", hex(dice, 12)),
        2 => format!("request_id={} path=/api/v1/{word} status=200", uuid(dice)),
        3 => format!("data:image/png;base64,{}==", dice.text(BASE64, 170)),
        4 => format!("\"integrity\": \"sha512-{}==\",", dice.text(BASE64, 86)),
        5 => format!("checksum = \"{}\"", hex(dice, 64)),
        6 => format!(
            "image: registry.example.com/{word}@sha256:{}",
            hex(dice, 64)
        ),
        7 => format!(
            "pod/{word}-{}-{}",
            dice.text("bcdfghjklmnpqrstvwxz2456789", 9),
            dice.text("bcdfghjklmnpqrstvwxz2456789", 5)
        ),
        8 => format!(
            "{},{},{word},{}.{},true",
            at,
            dice.text(DIGITS, 6),
            dice.text(DIGITS, 3),
            dice.text(DIGITS, 2)
        ),
        9 => format!(
            "2026-01-02T03:04:05.{}Z INFO {vendor} trace={} span={} took={}ms",
            dice.text(DIGITS, 3),
            hex(dice, 32),
            hex(dice, 16),
            at
        ),
        10 => format!(
            "!function(e,t){{\"object\"==typeof exports?{}(t):e.{}={}}}(this);",
            dice.text(LOWER, 1),
            dice.text(LOWER, 8),
            dice.text(ALNUM, 6)
        ),
        11 => format!("The {vendor} team moved the {word} {word} to the next release."),
        12 => format!(
            "https://{vendor}.com/{word}/{}/tree/{}/src?tab={word}#L{at}",
            dice.text(LOWER, 9),
            hex(dice, 40)
        ),
        13 => format!(
            "See docs/{vendor}/{word}.md for how a token is made and where the key is kept."
        ),
        14 => format!(
            "resolved \"https://registry.yarnpkg.com/{word}/-/{word}-{}.tgz#{}\"",
            at % 9,
            hex(dice, 40)
        ),
        15 => format!("etag: W/\"{}\"", dice.text(ALNUM, 27)),
        16 => format!(
            "class=\"sk-{word}-{word}-container css-{} MuiBox-root\"",
            dice.text(ALNUM, 7)
        ),
        17 => format!(
            "arn:aws:iam::{}:role/{word}-{vendor}-role",
            dice.text(DIGITS, 12)
        ),
        18 => format!(
            "{vendor} build {} of {word} finished, sha {}",
            uuid(dice),
            hex(dice, 40)
        ),
        19 => format!(
            "{{\"id\":\"{}\",\"{word}\":{at},\"hash\":\"{}\"}}",
            uuid(dice),
            hex(dice, 32)
        ),
        20 => format!(
            "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI{} {word}@{vendor}",
            dice.text(BASE64, 43)
        ),
        21 => format!(
            "h1:{}= {vendor}.com/{word}/v2 v2.{}.0",
            dice.text(BASE64, 43),
            at % 90
        ),
        22 => format!(
            "drwxr-xr-x 2 root root {at} Jan  2 03:04 {word}-{}-{}.tar.gz",
            hex(dice, 16),
            at % 7
        ),
        23 => format!(
            "GET /static/js/main.{}.chunk.js HTTP/1.1 304 {vendor}bot/2.1",
            hex(dice, 8)
        ),
        _ => format!(
            "const {word}_{} = require('./{vendor}/{word}'); // {}",
            dice.text(LOWER, 4),
            dice.text(LOWER, 20)
        ),
    }
}
