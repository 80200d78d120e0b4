//! The machine-readable zones of travel documents, ICAO 9303: two lines of 44 (passports) or 36 characters,
//! or three of 30 (cards), with check digits.

use crate::scan::{class::Class, context::Text, finding::FoundValue};

/// Lengths of a line.
const LINE_LENGTHS: [usize; 3] = [30, 36, 44];

/// The zone whose first line, or a line of which, begins at `start`.
pub(in crate::scan) fn find_mrz(text: &Text<'_>, start: usize) -> Option<FoundValue> {
    let len = line_len(text, start)?;
    let first = &text.bytes()[start..start + len];
    let lines_max = if len == LINE_LENGTHS[0] { 3 } else { 2 };
    let (mut end, mut lines, mut proven) = (start + len, 1, are_check_digits_valid(first));
    while lines < lines_max {
        let next = end + line_break_len(text, end);
        if next == end || line_len(text, next) != Some(len) {
            break;
        }
        proven |= are_check_digits_valid(&text.bytes()[next..next + len]);
        (end, lines) = (next + len, lines + 1);
    }
    // The first line of a passport has no check digit, but nothing else looks like it.
    let named = len > LINE_LENGTHS[0]
        && matches!(first[0], b'P' | b'V')
        && first[2..5]
            .iter()
            .all(|b| b.is_ascii_uppercase() || *b == b'<')
        && memchr::memmem::find(&first[5..], b"<<").is_some();
    (proven || named).then_some(FoundValue {
        class: Class::Passport,
        span: start..end,
        by_context: false,
    })
}

/// How long the line at `start` is, where it is as long as one may be.
fn line_len(text: &Text<'_>, start: usize) -> Option<usize> {
    let inside = |b: &&u8| b.is_ascii_uppercase() || b.is_ascii_digit() || **b == b'<';
    let rest = text.bytes().get(start..)?.iter().take(LINE_LENGTHS[2] + 1);
    let len = rest.take_while(inside).count();
    let before = text.byte_before(start);
    let whole = !text.byte(start + len).is_ascii_alphanumeric()
        && !before.is_ascii_alphanumeric()
        && before != b'<';
    (whole && LINE_LENGTHS.contains(&len)).then_some(len)
}

/// How long the end of a line at `at` is, also where it is escaped or has become a space.
fn line_break_len(text: &Text<'_>, at: usize) -> usize {
    const ENDS: [&[u8]; 7] = [b"\r\n", b"\n", b"\\r\\n", b"\\n", b" ", b"<br>", b"\t"];
    let rest = &text.bytes()[at..];
    let found = ENDS.iter().find(|end| rest.starts_with(end));
    found.map_or(0, |end| end.len())
}

/// Whether the check digits of a line hold: of the number, and of the dates of birth and expiry.
fn are_check_digits_valid(line: &[u8]) -> bool {
    let check = |from: usize, to: usize| is_check_digit_valid(&line[from..to], line[to]);
    let date =
        |from: usize| line[from..from + 6].iter().all(u8::is_ascii_digit) && check(from, from + 6);
    match line.len() {
        30 => {
            let number = matches!(line[0], b'A' | b'C' | b'I' | b'P')
                && line[2..5]
                    .iter()
                    .all(|b| b.is_ascii_uppercase() || *b == b'<')
                && line[5..14].iter().any(u8::is_ascii_digit)
                && check(5, 14);
            number || date(0) && date(8) && matches!(line[7], b'F' | b'M' | b'X' | b'<')
        }
        _ => check(0, 9) && date(13) && date(21) && matches!(line[20], b'F' | b'M' | b'X' | b'<'),
    }
}

/// Whether `digit` is the check digit of `field`: weights of 7, 3, 1, letters from ten on.
fn is_check_digit_valid(field: &[u8], digit: u8) -> bool {
    let value = |byte: u8| match byte {
        b'0'..=b'9' => u32::from(byte - b'0'),
        b'A'..=b'Z' => u32::from(byte - b'A') + 10,
        _ => 0,
    };
    let weights = [7, 3, 1].into_iter().cycle();
    let sum: u32 = field
        .iter()
        .zip(weights)
        .map(|(b, weight)| value(*b) * weight)
        .sum();
    sum % 10 == value(digit) && (digit.is_ascii_digit() || digit == b'<')
}
