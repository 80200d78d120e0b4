//! Budgets and rates, as tables or as short texts.

use std::{num::NonZeroU32, str::FromStr, time::Duration};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    config::units::Time,
    money::{InvalidAmount, Micros},
};

/// The formats of the schema for the texts.
pub(in crate::config) const BUDGET_FORMAT: &str = "budget";
pub(in crate::config) const RATE_FORMAT: &str = "rate";

/// An amount that may be spent per period.
#[derive(Clone, Copy, Debug, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(try_from = "WrittenBudget")]
#[schemars(description = "An amount that may be spent per period.")]
pub struct Budget {
    /// Amount in USD.
    pub limit: Micros,
    /// Period.
    pub window: Window,
}

/// A budget as a config writes it.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum WrittenBudget {
    /// With a key for each part.
    Section(BudgetTable),
    /// `AMOUNT/WINDOW`, such as `2.50/day`, or `AMOUNT` alone for one that is never reset.
    Text(#[schemars(extend("format" = BUDGET_FORMAT))] String),
}

/// A budget with a key for each part.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct BudgetTable {
    /// Amount in USD.
    limit: Micros,
    /// Period.
    #[serde(default)]
    window: Window,
}

impl TryFrom<WrittenBudget> for Budget {
    type Error = InvalidBudget;

    fn try_from(written: WrittenBudget) -> Result<Self, InvalidBudget> {
        match written {
            WrittenBudget::Section(BudgetTable { limit, window }) => Ok(Self { limit, window }),
            WrittenBudget::Text(text) => text.parse(),
        }
    }
}

/// Reads `2.50/day`, or `10` for a budget that is never reset.
impl FromStr for Budget {
    type Err = InvalidBudget;

    fn from_str(text: &str) -> Result<Self, InvalidBudget> {
        let (amount, window) = match text.trim().split_once('/') {
            Some((amount, name)) => {
                let mut all = Window::ALL.into_iter();
                let window = all.find(|window| window.as_str() == name);
                let unknown = || InvalidBudget::Window(name.to_owned());
                (amount, window.ok_or_else(unknown)?)
            }
            None => (text.trim(), Window::Total),
        };
        let limit = amount.parse()?;
        Ok(Self { limit, window })
    }
}

/// Why a text is no budget; its writer mends it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidBudget {
    /// Its amount.
    #[error(transparent)]
    Amount(#[from] InvalidAmount),
    /// Its period.
    #[error("unknown window `{0}`: use {names}", names = Window::ALL.map(Window::as_str).join(", "))]
    Window(String),
}

// For `serde(with)`.
/// One budget, several budgets that all apply, or none.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
#[schemars(rename = "Budgets")]
pub(in crate::config) enum BudgetList {
    /// One budget.
    One(Budget),
    /// Several budgets; an empty list is unlimited.
    Many(Vec<Budget>),
    /// Unlimited.
    Off(Off),
}

/// The word `off`.
#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub(in crate::config) enum Off {
    /// Unlimited.
    Off,
}

impl BudgetList {
    /// Always a list, which programs that read it need not tell apart from the other forms.
    pub(in crate::config) fn serialize<T: Serialize, S: Serializer>(
        budgets: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        budgets.serialize(to)
    }

    pub(super) fn deserialize<'de, T: From<Vec<Budget>>, D: Deserializer<'de>>(
        from: D,
    ) -> Result<T, D::Error> {
        let budgets = match <Self as Deserialize>::deserialize(from)? {
            Self::One(budget) => vec![budget],
            Self::Many(budgets) => budgets,
            Self::Off(Off::Off) => Vec::new(),
        };
        Ok(budgets.into())
    }
}

/// Period of a budget. Days and months begin at midnight UTC.
#[derive(Clone, Copy, Debug, Default, Deserialize, Eq, Hash, JsonSchema, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Window {
    /// A calendar day.
    Day,
    /// A calendar month.
    Month,
    /// No reset.
    #[default]
    Total,
}

impl Window {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Day, Self::Month, Self::Total];

    /// What a config calls it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Month => "month",
            Self::Total => "total",
        }
    }
}

/// How often something may be done (GCRA): on average `calls` each `per`, `burst` of them at once.
/// One call is worth at least a microsecond.
#[derive(Clone, Copy, Debug, Deserialize, Eq, JsonSchema, PartialEq, Serialize)]
#[serde(try_from = "WrittenRate")]
#[schemars(description = "A rate limit: on average `calls` per `per`.")]
pub struct Rate {
    /// Calls each `per`.
    pub calls: NonZeroU32,
    /// The period.
    #[serde(with = "Time")]
    pub per: Duration,
    /// How many at once.
    pub burst: NonZeroU32,
}

/// A rate as a config writes it.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged)]
enum WrittenRate {
    /// With a key for each part.
    Section(RateTable),
    /// `CALLS/PERIOD` or `CALLS/PERIOD/BURST`, such as `120/1m/20`.
    Text(#[schemars(extend("format" = RATE_FORMAT))] String),
}

/// A rate with a key for each part.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RateTable {
    /// Calls per period.
    #[schemars(range(max = Rate::CALLS_MAX))]
    calls: NonZeroU32,
    /// Period.
    #[serde(default = "RateTable::per", with = "Time")]
    #[schemars(extend("x-min" = "1s"))]
    per: Duration,
    /// Calls that may come at once. Default: `calls`.
    #[schemars(range(max = Rate::CALLS_MAX))]
    burst: Option<NonZeroU32>,
}

impl RateTable {
    fn per() -> Duration {
        Duration::from_secs(60)
    }
}

impl TryFrom<WrittenRate> for Rate {
    type Error = InvalidRate;

    fn try_from(written: WrittenRate) -> Result<Self, InvalidRate> {
        match written {
            WrittenRate::Section(RateTable { calls, per, burst }) => Ok(Self {
                calls,
                per,
                burst: burst.unwrap_or(calls),
            }),
            WrittenRate::Text(text) => text.parse(),
        }
    }
}

/// Reads `120/1m`, or `120/1m/20` with a burst.
impl FromStr for Rate {
    type Err = InvalidRate;

    fn from_str(text: &str) -> Result<Self, InvalidRate> {
        let mut parts = text.trim().split('/');
        let (Some(calls), Some(per), burst, None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(InvalidRate::Form);
        };
        let calls = parse_calls(calls)?;
        let per = match humantime::parse_duration(per) {
            Ok(per) => per,
            Err(error) => return Err(InvalidRate::Period(per.to_owned(), error)),
        };
        if !(Self::PER_MIN..=Self::PER_MAX).contains(&per) {
            return Err(InvalidRate::PeriodBounds);
        }
        Ok(Self {
            calls,
            per,
            burst: burst.map_or(Ok(calls), parse_calls)?,
        })
    }
}

fn parse_calls(text: &str) -> Result<NonZeroU32, InvalidRate> {
    let count = text.parse().ok().and_then(NonZeroU32::new);
    let count = count.filter(|count| count.get() <= Rate::CALLS_MAX);
    count.ok_or_else(|| InvalidRate::Calls(text.to_owned()))
}

/// Why a text is no rate; its writer mends it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum InvalidRate {
    /// A number of calls.
    #[error("`{0}` is not a valid number of calls (1 to {max})", max = Rate::CALLS_MAX)]
    Calls(String),
    /// It has other parts.
    #[error("use CALLS/PERIOD or CALLS/PERIOD/BURST, such as 120/1m/20")]
    Form,
    /// The period is no duration.
    #[error("`{0}`: {1}")]
    Period(String, humantime::DurationError),
    /// The period is too short or too long.
    #[error("the period must be between 1s and 24h")]
    PeriodBounds,
}

impl Rate {
    /// How often an agent may be refused where a config does not say.
    pub const REFUSALS: Self = Self {
        calls: NonZeroU32::new(600).expect("it is not zero"),
        per: Duration::from_secs(60),
        burst: NonZeroU32::new(3000).expect("it is not zero"),
    };

    /// The most calls that a rate may have, each period and at once: more is no limit.
    pub const CALLS_MAX: u32 = 1_000_000;

    /// The shortest period; together with [`Rate::CALLS_MAX`] it leaves a microsecond for a call.
    pub const PER_MIN: Duration = Duration::from_secs(1);

    /// The longest period.
    pub const PER_MAX: Duration = Duration::from_secs(24 * 60 * 60);
}
