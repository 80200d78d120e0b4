//! Numbers of JSON by their value, as they are written: no rounding, whatever their length.

use std::{cmp::Ordering, fmt};

use crate::mcp::json;

/// Significant digits that every double keeps.
const DOUBLE_DIGITS: usize = 15;

/// A decimal number: `0.DIGITS` times ten to the power of `exponent`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Decimal {
    negative: bool,
    /// Neither the first nor the last is `0`; none for zero.
    digits: Vec<u8>,
    exponent: i64,
}

impl Decimal {
    /// Reads a number of JSON; `None` for other text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let (mantissa, power) = match unsigned.split_once(['e', 'E']) {
            Some((mantissa, power)) => (mantissa, exponent(power)?),
            None => (unsigned, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let mut digits = [whole.as_bytes(), fraction.as_bytes()].concat();
        if whole.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
            return None;
        }
        let leading = digits.iter().take_while(|digit| **digit == b'0').count();
        digits.drain(..leading);
        while digits.last() == Some(&b'0') {
            digits.pop();
        }
        if digits.is_empty() {
            return Some(Self {
                negative: false,
                digits,
                exponent: 0,
            });
        }
        let point = i64::try_from(whole.len()).ok()? - i64::try_from(leading).ok()?;
        Some(Self {
            negative,
            digits,
            exponent: power.saturating_add(point),
        })
    }

    /// The number that an operator wrote, which is the shortest that reads as `value`; `None` when
    /// it is not finite.
    pub(super) fn of_f64(value: f64) -> Option<Self> {
        Self::parse(&value.to_string())
    }

    fn magnitude(&self, other: &Self) -> Ordering {
        match (self.digits.is_empty(), other.digits.is_empty()) {
            (true, true) => Ordering::Equal,
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => self
                .exponent
                .cmp(&other.exponent)
                .then_with(|| self.digits.cmp(&other.digits)),
        }
    }
}

/// Equal numbers are written alike.
impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.negative { "-" } else { "" };
        let digits = String::from_utf8_lossy(&self.digits);
        write!(f, "{sign}0.{digits}e{}", self.exponent)
    }
}

impl Ord for Decimal {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.magnitude(other),
            (true, true) => other.magnitude(self),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
        }
    }
}

impl PartialOrd for Decimal {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// An exponent; one that no number of this world has is as good as the largest.
fn exponent(text: &str) -> Option<i64> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if digits.is_empty() || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let size = digits
        .parse::<i64>()
        .unwrap_or(i64::MAX / 2)
        .min(i64::MAX / 2);
    Some(if negative { -size } else { size })
}

/// The number that `text` is where it is read leniently, as pydantic, Python's `int` and `float`,
/// JavaScript's `Number` and others do.
fn spelled(text: &str) -> Option<Decimal> {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let text: String = text.chars().filter(|c| *c != '_').map(latin).collect();
    let text = text.to_ascii_lowercase();
    let (sign, size) = match text.strip_prefix('-') {
        Some(size) => ("-", size),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    if matches!(size, "inf" | "infinity") {
        return Decimal::parse(&format!("{sign}{BEYOND}"));
    }
    let other = [("0x", 16), ("0o", 8), ("0b", 2)];
    let digits_of = |(prefix, radix)| Some((size.strip_prefix(prefix)?, radix));
    if let Some((digits, radix)) = other.into_iter().find_map(digits_of) {
        let is_number = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        let size = u128::from_str_radix(digits, radix).map(|size| size.to_string());
        let size = size.unwrap_or_else(|_| BEYOND.to_owned());
        return is_number.then(|| Decimal::parse(&format!("{sign}{size}")))?;
    }
    let has_no_whole = size.starts_with('.') && size.len() > 1;
    let zero = if has_no_whole { "0" } else { "" };
    Decimal::parse(&format!("{sign}{zero}{size}"))
}

/// More than any bound.
const BEYOND: &str = "1e9223372036854775807";

/// Zeros of decimal digits of other scripts (Unicode's `Nd`) that people write; nine follow each.
const ZEROS: [char; 5] = ['\u{660}', '\u{6f0}', '\u{966}', '\u{9e6}', '\u{ff10}'];

/// `digit` as `0` to `9`; other characters as they are.
fn latin(digit: char) -> char {
    let value = |zero: char| u32::from(digit).checked_sub(u32::from(zero));
    let value = ZEROS
        .into_iter()
        .filter_map(value)
        .find(|value| *value < 10);
    value
        .and_then(|value| char::from_digit(value, 10))
        .unwrap_or(digit)
}

/// What servers may take a value for.
#[derive(Debug)]
pub(super) struct Readings {
    exact: Option<Decimal>,
    /// What a server reads that keeps fractions as doubles, where that is another number.
    double: Option<Decimal>,
    /// What a server makes of a string that wants a number there.
    spelled: Option<Decimal>,
}

impl Readings {
    /// The readings of a JSON value.
    pub(super) fn of(value: &[u8]) -> Self {
        if value.first() == Some(&b'"') {
            return Self {
                exact: None,
                double: None,
                spelled: json::text(value).and_then(|text| spelled(&text)),
            };
        }
        let is_number = matches!(value.first(), Some(b'-' | b'0'..=b'9'));
        let text = std::str::from_utf8(value).ok().filter(|_| is_number);
        let exact = text.and_then(Decimal::parse);
        let has_fraction = || value.iter().any(|byte| matches!(byte, b'.' | b'e' | b'E'));
        let is_long = exact
            .as_ref()
            .is_some_and(|n| n.digits.len() > DOUBLE_DIGITS);
        let rounded = text
            .filter(|_| is_long && has_fraction())
            .and_then(|text| text.parse().ok())
            .and_then(Decimal::of_f64);
        Self {
            double: rounded.filter(|rounded| Some(rounded) != exact.as_ref()),
            exact,
            spelled: None,
        }
    }

    /// Each reading; the first is without a number for what is none.
    pub(super) fn iter(&self) -> impl Iterator<Item = Option<&Decimal>> {
        let others = [&self.double, &self.spelled].into_iter().flatten();
        std::iter::once(self.exact.as_ref()).chain(others.map(Some))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use Ordering::{Equal, Greater, Less};

    #[test]
    fn numbers_are_compared_by_value() {
        let check = |a: &str, b: &str, expect: Ordering| {
            let (a, b) = (Decimal::parse(a).unwrap(), Decimal::parse(b).unwrap());
            assert_eq!(a.cmp(&b), expect, "{a:?} {b:?}");
            assert_eq!(b.cmp(&a), expect.reverse(), "{b:?} {a:?}");
            assert_eq!(a == b, expect == Equal);
            assert_eq!(a.to_string() == b.to_string(), expect == Equal);
        };
        check("1", "1.0", Equal);
        check("100", "1e2", Equal);
        check("-0", "0.00e9", Equal);
        check("0.1", "1E-1", Equal);
        check("12e+1", "120", Equal);
        check("9007199254740993", "9007199254740992", Greater);
        check("0.30000000000000000001", "0.3", Greater);
        check("-2", "-1", Less);
        check("-1", "0", Less);
        check("0", "1e-400", Less);
        check("99", "100", Less);
        check("1e99999999999999999999", "1e308", Greater);
        check("1e-99999999999999999999", "0", Greater);
        check("-1e99999999999999999999", "-1e308", Less);
    }

    #[test]
    fn other_text_is_no_number() {
        for text in [
            "", "-", "a", "1a", ".5", "1e", "1e+", "NaN", "inf", "--1", "1.2.3",
        ] {
            assert_eq!(Decimal::parse(text), None, "{text}");
        }
        assert_eq!(Decimal::of_f64(f64::NAN), None);
        assert_eq!(Decimal::of_f64(f64::INFINITY), None);
    }

    #[test]
    fn texts_are_the_numbers_that_servers_take_them_for() {
        let check = |text: &str, expect: &str| {
            assert_eq!(spelled(text), Decimal::parse(expect), "{text:?}");
            assert_ne!(spelled(text), None, "{text:?}");
        };
        for eleven in [
            "11",
            " +11\n",
            "\u{feff}11",
            "1_1",
            "011",
            "11.",
            "1.1e1",
            ".11e2",
            "0xB",
            "0Xb",
            "0b1011",
            "0o13",
            "\u{661}\u{661}",
            "\u{ff11}\u{ff11}",
            "\u{967}1",
        ] {
            check(eleven, "11");
        }
        check("-0x10", "-16");
        check("-.5", "-0.5");
        check(
            "0xffffffffffffffffffffffffffffffff",
            "340282366920938463463374607431768211455",
        );
        for endless in ["inf", "+Infinity", "0x1ffffffffffffffffffffffffffffffff"] {
            assert!(spelled(endless) > Decimal::parse("1e308"), "{endless}");
        }
        assert!(spelled("-INF") < Decimal::parse("-1e308"));
        for other in [
            "", "x", "0x", "0xg", "0x-1", "0b2", "1 1", "infinite", ".", "-",
        ] {
            assert_eq!(spelled(other), None, "{other:?}");
        }
    }

    #[test]
    fn long_fractions_and_spelled_numbers_have_two_readings() {
        let check = |text: &str, expect: usize| {
            assert_eq!(
                Readings::of(text.as_bytes()).iter().count(),
                expect,
                "{text}"
            );
        };
        check("1.5", 1);
        check("99.99999999999999999999", 2);
        check("9007199254740993", 1);
        check("1.00000000000000000", 1);
        check("\"1.5\"", 2);
        check("\"x\"", 1);
        check("null", 1);
    }

    proptest! {
        #[test]
        fn doubles_keep_their_order(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            let (x, y) = (Decimal::of_f64(a).unwrap(), Decimal::of_f64(b).unwrap());
            prop_assert_eq!(x.partial_cmp(&y), a.partial_cmp(&b));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.eE]{0,12}") {
            let json = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert!(!json || Decimal::parse(&text).is_some());
        }
    }
}
