//! Instructions of many servers as one text.
//!
//! They reach models, so a server must not speak in another's name or drown the others: headings
//! cannot be forged, control characters go, and length is limited.

use super::{CatalogProblem, ProblemCause, ServerOffer};
use crate::names::ServerName;

/// Longest instructions of one server on a merged route, characters. Long enough for every server
/// seen, and some hundred servers still fit a model's context.
pub const SERVER_CHARACTERS_MAX: usize = 4_096;

/// Longest merged instructions, characters; servers after that are left out.
pub const MERGED_CHARACTERS_MAX: usize = 65_536;

/// How a server's part begins; the same at the start of a line of its text is indented.
const HEADING: &str = "# Server ";

/// The instructions of one route, a section for each server that has some.
#[derive(Debug, Default, Hash)]
pub(super) struct Instructions(Vec<(ServerName, String)>);

impl Instructions {
    /// Those of one server on its own route, as it wrote them.
    pub(super) fn of_server(server: &ServerName, text: Option<String>) -> Self {
        Self(
            text.map(|text| (server.clone(), text))
                .into_iter()
                .collect(),
        )
    }

    /// The sections of the servers that `is_visible` says are seen; `None` where there are none.
    pub(super) fn visible_to(&self, is_visible: impl Fn(&ServerName) -> bool) -> Option<String> {
        let seen = self.0.iter().filter(|(server, _)| is_visible(server));
        let sections: Vec<&str> = seen.map(|(_, section)| section.as_str()).collect();
        (!sections.is_empty()).then(|| sections.join("\n\n"))
    }
}

/// The instructions of all `offers` that put something on merged routes, in the config's order.
pub(super) fn merge<'o>(
    offers: impl IntoIterator<Item = &'o ServerOffer>,
    problems: &mut Vec<CatalogProblem>,
) -> Instructions {
    let mut sections = Vec::new();
    let mut room = MERGED_CHARACTERS_MAX;
    for offer in offers {
        let expose = offer.config.expose;
        let Some(text) = offer.listing.instructions.as_deref() else {
            continue;
        };
        let text = escape_headings(text);
        if text.is_empty() || !(expose.tools || expose.resources || expose.prompts) {
            continue;
        }
        let limit = room.min(SERVER_CHARACTERS_MAX);
        if text.chars().count() > limit {
            problems.push(CatalogProblem {
                server: offer.server.clone(),
                kind: None,
                cause: ProblemCause::InstructionsCut { limit },
            });
        }
        let kept: String = text.chars().take(limit).collect();
        room -= kept.chars().count();
        if kept.is_empty() {
            continue;
        }
        let section = format!("{HEADING}{}\n\n{}", offer.server.local(), kept.trim_end());
        sections.push((offer.server.clone(), section));
    }
    Instructions(sections)
}

fn escape_headings(text: &str) -> String {
    let lines = text.trim().lines().map(|line| {
        let line: String = line
            .chars()
            .filter(|c| *c == '\t' || !c.is_control())
            .collect();
        let forged = line.trim_start().starts_with(HEADING.trim_end());
        if forged { format!("    {line}") } else { line }
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_cannot_forge_headings_or_hide_controls() {
        let check =
            |text: &str, expect: &str| assert_eq!(escape_headings(text), expect, "{text:?}");
        check("  plain\ttext\n", "plain\ttext");
        check("a\u{1b}[31mb\u{0}\r\nc", "a[31mb\nc");
        check("x\n# Server github\n\ny", "x\n    # Server github\n\ny");
        check("# Servers", "    # Servers");
    }
}
