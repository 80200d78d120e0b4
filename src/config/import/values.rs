//! Values as other programs write them: times, switches, command lines, lists of names.

use std::time::Duration;

use super::formats::TimeUnit;
use crate::config::{
    node::{ConfigValue, Node},
    units::Time,
};

/// From here on a number without a unit is taken for milliseconds: no call takes that many seconds,
/// and several clients write milliseconds.
const MILLIS_MIN: f64 = 1000.0;

/// The longest time that we take, milliseconds.
const TIME_MAX_MILLIS: f64 = 24.0 * 60.0 * 60.0 * 1000.0;

/// A time of another program, in our notation.
#[derive(Debug, Eq, PartialEq)]
pub(super) enum ForeignTime {
    /// Longer than we take: the longest that we do.
    Capped(String),
    /// Its unit was guessed.
    Guessed(String),
    /// What has a unit itself.
    Known(String),
    /// Nothing that limits.
    Unlimited,
}

/// The time that `node` says, a bare number in `unit`; `None` when it is no number.
pub(super) fn read_time(node: &Node, unit: Option<TimeUnit>) -> Option<ForeignTime> {
    let value = number(node).or_else(|| node.as_text()?.trim().parse().ok())?;
    let is_guess = unit.is_none() && value >= MILLIS_MIN;
    let millis = match unit {
        Some(TimeUnit::Millis) => value,
        None if is_guess => value,
        Some(TimeUnit::Seconds) | None => value * 1000.0,
    };
    Some(if millis.is_nan() || millis < 1.0 {
        ForeignTime::Unlimited
    } else if millis > TIME_MAX_MILLIS {
        ForeignTime::Capped(millis_text(TIME_MAX_MILLIS))
    } else if is_guess {
        ForeignTime::Guessed(millis_text(millis))
    } else {
        ForeignTime::Known(millis_text(millis))
    })
}

pub(super) fn number(node: &Node) -> Option<f64> {
    match node.value {
        #[expect(clippy::cast_precision_loss, reason = "times are far below 2^52")]
        ConfigValue::Integer(number) => Some(number as f64),
        ConfigValue::Float(number) => Some(number),
        ConfigValue::Bool(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Table(_)
        | ConfigValue::Text(_) => None,
    }
}

/// A time in our notation; what is none is left for the later checks to report.
pub(super) fn millis_text(millis: f64) -> String {
    match Duration::try_from_secs_f64(millis.round() / 1000.0) {
        Ok(time) => Time(time).to_string(),
        Err(_) => format!("{millis}ms"),
    }
}

/// What a switch says, also as a word; `None` when that is nobody's guess.
pub(super) fn read_switch(node: &Node) -> Option<bool> {
    match &node.value {
        ConfigValue::Bool(on) => Some(*on),
        ConfigValue::Integer(number) => Some(*number != 0),
        ConfigValue::Text(text) => match text.trim().to_lowercase().as_str() {
            "1" | "on" | "true" | "yes" => Some(true),
            "" | "0" | "false" | "no" | "off" => Some(false),
            _ => None,
        },
        ConfigValue::Float(_)
        | ConfigValue::List(_)
        | ConfigValue::Null
        | ConfigValue::Table(_) => None,
    }
}

/// The words of a command line; `None` when a quote has no end.
pub(super) fn split_words(node: &Node) -> Option<Vec<Node>> {
    let words = shlex::split(node.as_text()?)?;
    Some(
        words
            .into_iter()
            .map(|word| text_node(node, word))
            .collect(),
    )
}

/// `text` at the place of `node`.
pub(super) fn text_node(node: &Node, text: impl Into<String>) -> Node {
    Node::new(node.span, ConfigValue::Text(text.into()))
}

/// The reference to the variable that `node` names.
pub(super) fn variable_node(node: &Node) -> Option<Node> {
    let name = node.as_text()?.trim();
    Some(text_node(node, format!("${{{name}}}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::node::Span;

    #[test]
    fn times_follow_the_unit_of_the_program() {
        use ForeignTime::{Capped, Guessed, Known, Unlimited};
        let check = |millis: f64, unit, expect: ForeignTime| {
            let node = Node::new(Span::new(0, 0..0), ConfigValue::Float(millis));
            assert_eq!(read_time(&node, unit), Some(expect), "{millis} {unit:?}");
        };
        let (seconds, millis) = (Some(TimeUnit::Seconds), Some(TimeUnit::Millis));
        check(3600.0, seconds, Known("1h".to_owned()));
        check(3600.0, millis, Known("3s600ms".to_owned()));
        check(500.0, millis, Known("500ms".to_owned()));
        check(999.0, None, Known("16m39s".to_owned()));
        check(1000.0, None, Guessed("1s".to_owned()));
        check(86_400.0, seconds, Known("1d".to_owned()));
        check(86_401.0, seconds, Capped("1d".to_owned()));
        check(0.0, seconds, Unlimited);
        check(-1.0, millis, Unlimited);
    }

    #[test]
    fn switches_as_words() {
        let check = |value: ConfigValue, expect| {
            let node = Node::new(Span::new(0, 0..0), value);
            assert_eq!(read_switch(&node), expect);
        };
        check(ConfigValue::Text("True".to_owned()), Some(true));
        check(ConfigValue::Text("no".to_owned()), Some(false));
        check(ConfigValue::Text("maybe".to_owned()), None);
        check(ConfigValue::Integer(1), Some(true));
        check(ConfigValue::Null, None);
    }
}
