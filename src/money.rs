//! Money: integer micro-dollars, never a float.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An amount in millionths of a US dollar.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Micros(u64);

impl Micros {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// The largest amount, about 9.2 trillion dollars: what a signed 64-bit column holds.
    pub const MAX: Self = Self(i64::MAX as u64);

    /// `micros` millionths of a dollar, at most [`Micros::MAX`].
    pub const fn new(micros: u64) -> Self {
        if micros > Self::MAX.0 {
            Self::MAX
        } else {
            Self(micros)
        }
    }

    /// The amount in millionths of a dollar.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The sum, unless it is beyond [`Micros::MAX`].
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0
            .checked_add(other.0)
            .filter(|sum| *sum <= Self::MAX.0)
            .map(Self)
    }

    /// The difference, or nothing when `other` is more.
    #[must_use]
    pub fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The sum, at most [`Micros::MAX`].
    #[must_use]
    pub fn saturating_add(self, other: Self) -> Self {
        self.checked_add(other).unwrap_or(Self::MAX)
    }

    /// The exact decimal with as many digits as it needs, at least two: `0.015`, `10.00`.
    pub fn to_decimal(self) -> String {
        let text = format!("{}.{:06}", self.0 / UNIT, self.0 % UNIT);
        let short = text.trim_end_matches('0').len();
        let two_digits = text.len() - 4;
        text[..short.max(two_digits)].to_owned()
    }
}

/// Two decimals, half up: what people are shown.
impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cents = (u128::from(self.0) + 5_000) / 10_000;
        write!(f, "{}.{:02}", cents / 100, cents % 100)
    }
}

/// Reads a decimal of dollars with up to six digits after the point.
impl FromStr for Micros {
    type Err = InvalidAmount;

    fn from_str(text: &str) -> Result<Self, InvalidAmount> {
        let size = text.strip_prefix('-');
        if size.is_some_and(|size| size.starts_with(|c: char| c.is_ascii_digit())) {
            return Err(InvalidAmount::Negative);
        }
        let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !is_digits(whole) || !is_digits(fraction) {
            return Err(InvalidAmount::Malformed);
        }
        if fraction.len() > DIGITS {
            return Err(InvalidAmount::TooPrecise);
        }
        let whole = whole.parse::<u64>().map_err(|_| InvalidAmount::TooLarge)?;
        let fraction: u64 = format!("{fraction:0<DIGITS$}")
            .parse()
            .map_err(|_| InvalidAmount::Malformed)?;
        whole
            .checked_mul(UNIT)
            .and_then(|micros| micros.checked_add(fraction))
            .filter(|micros| *micros <= Self::MAX.0)
            .map(Self)
            .ok_or(InvalidAmount::TooLarge)
    }
}

impl Serialize for Micros {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_decimal())
    }
}

impl<'de> Deserialize<'de> for Micros {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.trim().parse().map_err(de::Error::custom)
    }
}

/// Why a text is not an amount; its writer mends it.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidAmount {
    /// More digits after the point than a micro-dollar has.
    #[error("an amount has at most six decimal places")]
    TooPrecise,
    /// Not a plain decimal.
    #[error("an amount is a decimal number of US dollars, such as \"0.015\"")]
    Malformed,
    /// Less than nothing.
    #[error("an amount cannot be negative")]
    Negative,
    /// Beyond [`Micros::MAX`].
    #[error("the amount is too large")]
    TooLarge,
}

/// Micro-dollars in a dollar.
const UNIT: u64 = 1_000_000;

/// Digits after the point.
const DIGITS: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact_and_shown_half_up() {
        check("0.015", Ok(15_000), "0.015", "0.02");
        check("10.00", Ok(10_000_000), "10.00", "10.00");
        check("0.004999", Ok(4_999), "0.004999", "0.00");
        check("0.005", Ok(5_000), "0.005", "0.01");
        check("3", Ok(3_000_000), "3.00", "3.00");
        check(
            "9223372036854.775807",
            Ok(i64::MAX.cast_unsigned()),
            "9223372036854.775807",
            "9223372036854.78",
        );
    }

    #[test]
    fn what_is_no_amount_says_why() {
        for (text, why) in [
            ("", InvalidAmount::Malformed),
            (".5", InvalidAmount::Malformed),
            ("-", InvalidAmount::Malformed),
            ("--1", InvalidAmount::Malformed),
            ("-0.01", InvalidAmount::Negative),
            ("-0.0000001", InvalidAmount::Negative),
            ("-1", InvalidAmount::Negative),
            ("1e3", InvalidAmount::Malformed),
            ("1.", InvalidAmount::Malformed),
            ("0.0000001", InvalidAmount::TooPrecise),
            ("9223372036854.775808", InvalidAmount::TooLarge),
            ("99999999999999999999", InvalidAmount::TooLarge),
        ] {
            assert_eq!(text.parse::<Micros>(), Err(why), "{text}");
        }
    }

    fn check(text: &str, micros: Result<u64, InvalidAmount>, exact: &str, shown: &str) {
        let amount = text.parse::<Micros>();
        assert_eq!(amount.map(Micros::get), micros, "{text}");
        let amount = amount.unwrap();
        assert_eq!(
            (amount.to_decimal().as_str(), amount.to_string().as_str()),
            (exact, shown)
        );
    }
}
