//! Numbers of JSON by their value, as they are written: no rounding, whatever their length.

use std::{cmp::Ordering, fmt};

use unicode_general_category::{GeneralCategory, get_general_category};

/// Significant digits that every double keeps.
const F64_DIGITS: usize = 15;

/// Powers of ten from which on doubles are infinite, or zero.
const F64_EXPONENT_MAX: i64 = 300;

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
            Some((mantissa, power)) => (mantissa, parse_exponent(power)?),
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
    pub(super) fn from_f64(value: f64) -> Option<Self> {
        Self::parse(&value.to_string())
    }

    fn to_f64(&self) -> f64 {
        self.to_string().parse().unwrap_or(f64::NAN)
    }

    fn cmp_magnitude(&self, other: &Self) -> Ordering {
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
            (false, false) => self.cmp_magnitude(other),
            (true, true) => other.cmp_magnitude(self),
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
fn parse_exponent(text: &str) -> Option<i64> {
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

/// What a value is where a number is wanted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum NumberValue {
    /// This one; an infinite one is [beyond](INFINITE) all others.
    Exact(Decimal),
    /// `NaN`, which compares with nothing.
    Nan,
}

impl NumberValue {
    /// The number that `text` spells where it is read leniently, as pydantic, Python's `int` and `float`,
    /// JavaScript's `Number`, Go's and Java's parsers do.
    pub(super) fn parse_lenient(text: &str) -> Option<Self> {
        let text: String = trim_lenient(text)
            .chars()
            .filter(|c| *c != '_')
            .map(to_ascii_digit)
            .collect();
        let text = text.to_ascii_lowercase();
        let (sign, size) = match text.strip_prefix('-') {
            Some(size) => ("-", size),
            None => ("", text.strip_prefix('+').unwrap_or(&text)),
        };
        let signed = |size: &str| Decimal::parse(&format!("{sign}{size}")).map(Self::Exact);
        match size {
            "inf" | "infinity" => return signed(INFINITE),
            "nan" => return Some(Self::Nan),
            _ => {}
        }
        let other = [("0x", 16), ("0o", 8), ("0b", 2)];
        let digits_of = |(prefix, radix)| Some((size.strip_prefix(prefix)?, radix));
        if let Some((digits, radix)) = other.into_iter().find_map(digits_of) {
            return signed(&radix_to_decimal(digits, radix)?);
        }
        // `0.1.` and `1e` are none; Java takes a letter that says how wide the number is.
        let size = size.strip_suffix(['d', 'f']).unwrap_or(size);
        let has_no_whole = size.starts_with('.') && size.len() > 1;
        let zero = if has_no_whole { "0" } else { "" };
        signed(&format!("{zero}{size}"))
    }

    /// What keeps numbers as doubles reads, where that is another number.
    pub(super) fn as_double(&self) -> Option<Self> {
        let Self::Exact(exact) = self else {
            return None;
        };
        if exact.digits.len() <= F64_DIGITS && exact.exponent.abs() < F64_EXPONENT_MAX {
            return None;
        }
        let double = Decimal::from_f64(exact.to_f64())?;
        (double != *exact).then_some(Self::Exact(double))
    }

    /// What is left of it where an integer is wanted: servers cut fractions off, or round.
    pub(super) fn integer_readings(&self) -> Vec<Self> {
        let Self::Exact(exact) = self else {
            return Vec::new();
        };
        let double = exact.to_f64();
        let whole = [double.trunc(), double.floor(), double.ceil()];
        let whole = whole.into_iter().filter_map(Decimal::from_f64);
        whole.map(Self::Exact).collect()
    }

    /// Whether it is false where a truth value is wanted.
    pub(super) fn is_zero(&self) -> bool {
        matches!(self, Self::Exact(exact) if exact.digits.is_empty())
    }

    /// The text that a server makes of it.
    pub(super) fn to_text(&self) -> String {
        match self {
            Self::Exact(exact) => exact.to_f64().to_string(),
            Self::Nan => "NaN".to_owned(),
        }
    }

    /// Whether it is at most, or not known to be more than, `limit`.
    pub(super) fn is_at_most(&self, limit: &Decimal) -> bool {
        match self {
            Self::Exact(exact) => exact <= limit,
            Self::Nan => true,
        }
    }

    /// Whether it is at least, or not known to be less than, `limit`.
    pub(super) fn is_at_least(&self, limit: &Decimal) -> bool {
        match self {
            Self::Exact(exact) => exact >= limit,
            Self::Nan => true,
        }
    }
}

/// `text` without what readers of numbers and truth values leave out around them.
pub(super) fn trim_lenient(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || c.is_control() || c == '\u{feff}')
}

/// The number of `digits` to the base `radix`, as a decimal one; of base 16 also with a fraction and a power
/// of two, as Go and Java write them.
fn radix_to_decimal(digits: &str, radix: u32) -> Option<String> {
    let (mantissa, power) = match digits.split_once('p').filter(|_| radix == 16) {
        Some((mantissa, power)) => (mantissa, power.parse::<i32>().ok()?),
        None => (digits, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let all = [whole, fraction].concat();
    if all.is_empty() || !all.chars().all(|c| c.is_digit(radix)) {
        return None;
    }
    if fraction.is_empty() && power == 0 {
        let size = u128::from_str_radix(whole, radix);
        return Some(size.map_or_else(|_| INFINITE.to_owned(), |size| size.to_string()));
    }
    let digit = |c: char| f64::from(c.to_digit(radix).unwrap_or_default());
    let size = all
        .chars()
        .fold(0.0, |size, c| size * f64::from(radix) + digit(c));
    let places = i32::try_from(fraction.len()).ok()?;
    let size = size * 2f64.powi(power.saturating_sub(places.saturating_mul(4)));
    Some(if size.is_finite() {
        size.to_string()
    } else {
        INFINITE.to_owned()
    })
}

/// More than any bound.
const INFINITE: &str = "1e9223372036854775807";

/// `digit` of any script (Unicode's `Nd`) as `0` to `9`; other characters as they are.
fn to_ascii_digit(digit: char) -> char {
    if digit.is_ascii() || !is_decimal_digit(digit) {
        return digit;
    }
    // Those of a script are in a row of ten, and rows begin where a run of them does.
    let code = u32::from(digit);
    let before = (1..DIGITS_PER_BLOCK).take_while(|before| {
        let earlier = code.checked_sub(*before).and_then(char::from_u32);
        earlier.is_some_and(is_decimal_digit)
    });
    let value = u32::try_from(before.count()).unwrap_or_default() % 10;
    char::from_digit(value, 10).unwrap_or(digit)
}

/// Digits that stand one after the other in Unicode: five styles of mathematics.
const DIGITS_PER_BLOCK: u32 = 50;

fn is_decimal_digit(c: char) -> bool {
    get_general_category(c) == GeneralCategory::DecimalNumber
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
        assert_eq!(Decimal::from_f64(f64::NAN), None);
        assert_eq!(Decimal::from_f64(f64::INFINITY), None);
    }

    #[test]
    fn texts_are_the_numbers_that_servers_take_them_for() {
        let spelled = |text: &str| match NumberValue::parse_lenient(text) {
            Some(NumberValue::Exact(decimal)) => Some(decimal),
            Some(NumberValue::Nan) | None => None,
        };
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
            "\u{1811}\u{1811}",
            "\u{1d7cf}\u{1d7f7}\u{1d7ec}e-1",
            "\u{e51}\u{e51}",
            "11d",
            "11.0F",
            "0x1.6p3",
            "0x16p-1",
            "\u{1c}11\u{a0}\u{2003}",
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
            "", "x", "0x", "0xg", "0x-1", "0b2", "1 1", "infinite", ".", "-", "1ed", "0xp1",
            "0x1p", "0x.p1",
        ] {
            assert_eq!(NumberValue::parse_lenient(other), None, "{other:?}");
        }
        for nan in ["nan", "NaN", "-NAN", " +nan "] {
            assert_eq!(
                NumberValue::parse_lenient(nan),
                Some(NumberValue::Nan),
                "{nan:?}"
            );
        }
    }

    #[test]
    fn other_numbers_of_servers() {
        let rounded = |text: &str| {
            let number = Decimal::parse(text).map(NumberValue::Exact).unwrap();
            number.as_double()
        };
        let is = |text: &str| Decimal::parse(text).map(NumberValue::Exact);
        assert_eq!(rounded("1.5"), None);
        assert_eq!(rounded("99.99999999999999999999"), is("100"));
        assert_eq!(rounded("9007199254740993"), is("9007199254740992"));
        assert_eq!(rounded("1.00000000000000000"), None);
        assert_eq!(rounded("1e-400"), is("0"));
        assert_eq!(rounded("1e400"), None);
        let integers = is("-1.5").unwrap().integer_readings();
        assert!(integers.contains(&is("-1").unwrap()) && integers.contains(&is("-2").unwrap()));
        assert_eq!(is("1e2").unwrap().to_text(), "100");
    }

    proptest! {
        #[test]
        fn doubles_keep_their_order(a in any::<f64>(), b in any::<f64>()) {
            prop_assume!(a.is_finite() && b.is_finite());
            let (x, y) = (Decimal::from_f64(a).unwrap(), Decimal::from_f64(b).unwrap());
            prop_assert_eq!(x.partial_cmp(&y), a.partial_cmp(&b));
        }

        #[test]
        fn any_text_is_read_or_refused(text in "[-+0-9.eE]{0,12}") {
            let json = serde_json::from_str::<serde_json::Value>(&text).is_ok();
            prop_assert!(!json || Decimal::parse(&text).is_some());
        }
    }
}
