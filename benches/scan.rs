//! How fast a scan for every class is, on text, code, logs and JSON: MB/s of one core.
//!
//! `cargo bench --bench scan`. Each input is scanned until half a second is over; the best pass counts,
//! since everything else a machine does only slows a pass down.
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark measures the real time"
)]

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tollbridge::{
    config::{Scan, ScanAction},
    mcp::Raw,
    scan::{Direction, Scanner},
};

/// Size of an input, bytes.
const INPUT_BYTES: usize = 4 * 1024 * 1024;
/// How long each input is scanned again and again.
const LASTS: Duration = Duration::from_millis(500);

const PROSE: &str = "The quick brown fox jumps over the lazy dog, while those who keep the bridge discuss \
    whether the next release should wait until all of the tests have been read by somebody. ";
const CODE: &str = "fn main() -> Result<(), Fault> {\n    let config = Config::load(&args.path)?;\n    \
    for (index, item) in items.iter().enumerate() {\n        if index % 16 == 0 { report(&item.name); }\n    }\n}\n";
const LOG: &str = "2026-01-02T03:04:05.123Z INFO request=8f14e45fceea167a5a36dedd4bea2543 path=/api/v1/items/48213 \
    status=200 bytes=51234 took=12ms\n";
const HITS: &str = "Mail jane.roe@example.com or call +1 212-555-0143 from 203.0.113.7 about it. ";
const ESCAPED: &str = "2026-01-02T03:04:05.123Z INFO sent {\"note\": \"The bridge\\nis \\u201copen\\u201d\"} took=12ms\n";

fn main() {
    let scan = Scan {
        results: [("*".to_owned(), ScanAction::Redact)].into_iter().collect(),
        ..Scan::default()
    };
    let scanner = Scanner::new(&scan).expect("every class exists");
    let text = |part: &str| json!({"content": [{"type": "text", "text": part.repeat(INPUT_BYTES / part.len())}]});
    let row = json!({"id": 48213, "name": "widget", "created_at": "2026-01-02T03:04:05Z", "price": 12.5,
        "tags": ["a", "b"], "uuid": "550e8400-e29b-41d4-a716-446655440000", "active": true});
    let rows = INPUT_BYTES / row.to_string().len();
    measure(&scanner, "prose", &text(PROSE));
    measure(&scanner, "code", &text(CODE));
    measure(&scanner, "log", &text(LOG));
    measure(
        &scanner,
        "json",
        &json!({"structuredContent": vec![row; rows]}),
    );
    measure(&scanner, "digits", &text("12 34 56 "));
    measure(&scanner, "hits", &text(HITS));
    measure(&scanner, "escaped", &text(ESCAPED));
    // What would be slow if anything looked twice at the same bytes.
    for part in [
        "1.1.1.1.",
        "1-1-1 (1)",
        "+1 ",
        "1/1/19",
        "12:34:",
        "a=",
        "password=",
        "a@",
        "@a.b",
        "is ",
        "eyJ",
        "eyJhbGciOiJI.",
        "-----BEGIN PRIVATE KEY-----",
        "://a:",
        "AKIA",
        "1,",
        "1234567890 ",
        "A1",
        "AB 12 ",
        "<a>",
        "VALUES (",
        "-p'",
        "1 Jan ",
        "password is ",
        "1990-01-01 ",
        "\u{e8} ",
        "12345678-",
        "%40",
        "4111 ",
        "DE89",
        "password,",
        "x ",
        "0xx11 1",
    ] {
        measure(&scanner, part, &text(part));
    }
}

fn measure(scanner: &Scanner, name: &str, message: &Value) {
    let message = Raw::from_value(message);
    let (start, mut best) = (Instant::now(), Duration::MAX);
    while start.elapsed() < LASTS || best == Duration::MAX {
        let pass = Instant::now();
        let verdict = scanner.scan(Direction::Results, &message, || None);
        best = best.min(pass.elapsed());
        std::hint::black_box(verdict);
    }
    let bytes = u32::try_from(message.as_bytes().len()).expect("a few MiB");
    println!(
        "{name:28} {:8.1} MB/s",
        f64::from(bytes) / 1e6 / best.as_secs_f64()
    );
}
