//! Durations, sizes and amounts of money as they are written: with a unit, or as a decimal string.

use std::{fmt, time::Duration};

use bytesize::ByteSize;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::money::Micros;

/// The keyword of the schema that names the unit of a string: `"time"`, `"size"` or `"money"`.
pub(super) const UNIT_KEYWORD: &str = "x-unit";

/// A length of time such as `"30s"`, `"1m30s"` or `"250ms"`; zero may be written `0`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Time(pub(super) Duration);

impl Time {
    pub(super) const KEYWORD: &str = "time";

    pub(super) fn millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    pub(super) fn secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    pub(super) fn days(days: u64) -> Self {
        Self::secs(days * SECS_A_DAY)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        humantime::parse_duration(text.trim()).ok().map(Self)
    }
}

const SECS_A_DAY: u64 = 24 * 60 * 60;

/// Days are the largest unit: months and years are not of one length.
impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let days = seconds / SECS_A_DAY;
        let rest = Duration::new(seconds % SECS_A_DAY, self.0.subsec_nanos());
        if days > 0 {
            write!(f, "{days}d")?;
        }
        if days > 0 && rest.is_zero() {
            return Ok(());
        }
        let text = humantime::format_duration(rest).to_string();
        f.write_str(&text.replace(' ', ""))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a duration"))
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number with a unit: ms, s, m, h, d; parts add up, as in \"1m30s\".",
            "type": ["string", "integer"],
            "pattern": r"^\s*([0-9]+\s*[a-zµ]+\s*)+$|\$\{",
            "minimum": 0,
            "maximum": 0,
            UNIT_KEYWORD: Self::KEYWORD,
        })
    }
}

/// A number of bytes such as `"512KiB"` or `"4MiB"`.
#[derive(Clone, Copy, Debug, Eq, PartialEq, PartialOrd)]
pub(super) struct Size(pub(super) u64);

impl Size {
    pub(super) const KEYWORD: &str = "size";
    pub(super) const KIB: u64 = 1 << 10;
    pub(super) const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// A bare number is refused: whether it means bytes is anybody's guess.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let has_unit = text.ends_with(|c: char| c.is_ascii_alphabetic());
        let size = has_unit.then(|| text.parse::<ByteSize>().ok()).flatten()?;
        Some(Self(size.as_u64()))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes > 0 && bytes % Self::GIB == 0 => write!(f, "{}GiB", bytes / Self::GIB),
            bytes if bytes > 0 && bytes % Self::MIB == 0 => write!(f, "{}MiB", bytes / Self::MIB),
            bytes if bytes > 0 && bytes % Self::KIB == 0 => write!(f, "{}KiB", bytes / Self::KIB),
            bytes => write!(f, "{bytes}B"),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| de::Error::custom("not a size"))
    }
}

impl JsonSchema for Size {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Size".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "A number of bytes with a unit: B, KiB, MiB, GiB (or kB, MB, GB).",
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*([kKmMgG][iI]?[bB]?|[bB])\s*$|\$\{",
            UNIT_KEYWORD: Self::KEYWORD,
        })
    }
}

/// An amount of US dollars such as `"0.015"`; a number is refused, since a float is not exact.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Amount(pub(super) Micros);

impl Amount {
    pub(super) const KEYWORD: &str = "money";

    pub(super) fn micros(micros: u64) -> Self {
        Self(Micros::new(micros))
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.trim().parse().map(Self).map_err(de::Error::custom)
    }
}

impl JsonSchema for Amount {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Amount".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "description": "US dollars, a decimal string with up to six digits after the point.",
            "type": "string",
            "pattern": r"^\s*[0-9]+(\.[0-9]{1,6})?\s*$|\$\{",
            UNIT_KEYWORD: Self::KEYWORD,
        })
    }
}
