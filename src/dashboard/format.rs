//! How values look.

use jiff::Timestamp;
use maud::{Markup, html};
use serde_json::Value;

use super::api_client::{JsonFields, encoded, query};
use crate::{clock, escape};

/// Text of others: without characters that steer what is shown around it.
pub(super) fn plain(text: &str) -> String {
    escape::escape_controls(text, &['\n', '\t'])
}

/// JSON, for people.
pub(super) fn pretty(value: &Value) -> String {
    plain(&format!("{value:#}"))
}

/// A word about a state; `kind` is `ok`, `warn`, `bad` or empty.
pub(super) fn pill(kind: &str, words: &str) -> Markup {
    let class = format!("pill {kind}");
    html! { span class=(class) { (plain(words)) } }
}

/// How a call ended.
pub(super) fn decision_pill(record: &Value) -> Markup {
    match record.text("decision") {
        "allowed" => pill("ok", "Answered"),
        "refused" => pill("bad", record["code"].as_str().unwrap_or("Refused")),
        "failed" => pill("warn", record["code"].as_str().unwrap_or("Failed")),
        other => pill("", other),
    }
}

/// A time of RFC 3339, as the distance to now; the time itself is its title.
pub(super) fn ago(time: &str) -> Markup {
    let Ok(then) = time.parse::<Timestamp>() else {
        return html! { (plain(time)) };
    };
    let seconds = clock::now().duration_since(then).as_secs();
    let distance = distance(seconds.unsigned_abs());
    html! {
        time datetime=(time) title=(time) {
            @if seconds >= 0 { (distance) " ago" } @else { "in " (distance) }
        }
    }
}

fn distance(seconds: u64) -> String {
    match seconds {
        0..=119 => format!("{seconds} s"),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// A whole number with its thousands apart.
pub(super) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Millionths of a USD: in cents, and finer where that says more.
pub(super) fn usd(micros: u64) -> String {
    let (whole, fraction) = (micros / 1_000_000, format!("{:06}", micros % 1_000_000));
    let shown = if whole >= 10 {
        ""
    } else {
        fraction[2..].trim_end_matches('0')
    };
    format!("${}.{}{shown}", count(whole), &fraction[..2])
}

/// Milliseconds, as far as they are known.
pub(super) fn milliseconds(value: &Value) -> String {
    match value.as_f64() {
        None => "–".to_owned(),
        Some(ms) if ms < 10.0 => format!("{ms:.1} ms"),
        Some(ms) if ms < 10_000.0 => format!("{ms:.0} ms"),
        Some(ms) => format!("{:.1} s", ms / 1e3),
    }
}

/// A picture of how `values` go; `words` say the same. `class` is the colour.
pub(super) fn trend(values: &[u64], class: &str, words: &str) -> Markup {
    let top = values.iter().copied().max().unwrap_or_default().max(1);
    let steps = u64::try_from(values.len().saturating_sub(1).max(1)).unwrap_or(1);
    let points = values.iter().zip(0_u64..).map(|(value, at)| {
        let (x, y) = (at * 1_200 / steps, 310 - value * 280 / top);
        format!("{}.{} {}.{}", x / 10, x % 10, y / 10, y % 10)
    });
    let path = format!("M{}", points.collect::<Vec<_>>().join("L"));
    html! {
        svg viewBox="0 0 120 34" preserveAspectRatio="none" role="img" aria-label=(words) {
            @if values.len() > 1 { path class=(format!("line {class}")) d=(path); }
        }
    }
}

/// The link to the next page of a list with `fields` in its query.
pub(super) fn next_page(path: &str, fields: &[(&str, &str)], page: &Value) -> Markup {
    let cursor = page.text("next_cursor");
    let mut fields = fields.to_vec();
    fields.push(("cursor", cursor));
    html! {
        @if !cursor.is_empty() {
            p { a.button rel="next" href=(format!("{path}{}", query(&fields))) { "Next page" } }
        }
    }
}

/// A link to a server.
pub(super) fn server_link(name: &str) -> Markup {
    html! { a href=(format!("/ui/servers/{}", encoded(name))) { (plain(name)) } }
}

/// Where an entry stands.
pub(super) fn source(source: &Value) -> String {
    match source.text("type") {
        "file" => format!("{}:{}", plain(source.text("file")), source.number("line")),
        "store" => "made by the API".to_owned(),
        other => other.to_owned(),
    }
}

/// A choice of `options`.
pub(super) fn select(name: &str, label: &str, options: &[(&str, &str)], chosen: &str) -> Markup {
    html! {
        div.field {
            label for=(name) { (label) }
            select id=(name) name=(name) {
                @for (value, words) in options {
                    option value=(value) selected[*value == chosen] { (plain(words)) }
                }
            }
        }
    }
}

/// A line of text to fill in.
pub(super) fn input(name: &str, label: &str, value: &str) -> Markup {
    html! {
        div.field {
            label for=(name) { (label) }
            input id=(name) name=(name) value=(value) autocomplete="off" spellcheck="false";
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        assert_eq!(count(0), "0");
        assert_eq!(count(999), "999");
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(usd(0), "$0.00");
        assert_eq!(usd(15_000), "$0.015");
        assert_eq!(usd(187_200_000), "$187.20");
        assert_eq!(usd(250), "$0.00025");
        assert_eq!(milliseconds(&Value::from(4.26)), "4.3 ms");
        assert_eq!(milliseconds(&Value::from(12_345)), "12.3 s");
        assert_eq!(milliseconds(&Value::Null), "–");
        assert_eq!(distance(119), "119 s");
        assert_eq!(distance(7_200), "2 h");
    }

    #[test]
    fn a_trend_fills_its_picture() {
        let svg = trend(&[0, 5, 10], "", "rising").into_string();
        assert!(svg.contains("M0.0 31.0L60.0 17.0L120.0 3.0"), "{svg}");
        assert!(!trend(&[1], "", "one").into_string().contains("path"));
    }
}
