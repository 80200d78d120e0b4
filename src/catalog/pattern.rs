//! Whether a URI template (RFC 6570) can expand to a URI.
//!
//! Called for reads of URIs that carry no prefix. A yes means "some values could give this URI", not
//! that the server has it; the server still answers for itself. Time is linear in the URI for
//! ordinary templates and bounded for all.

/// Longest URI that templates are tried on, bytes; longer ones are found by exact listing only. It
/// bounds what a hostile template can cost.
const URI_BYTES_MAX: usize = 8 * 1024;

/// A parsed URI template.
#[derive(Clone, Debug)]
pub(super) struct Pattern {
    steps: Vec<Step>,
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// Exactly this byte.
    Byte(u8),
    /// Either the next step or the one at the index.
    Either(usize),
    /// Any number of bytes that the class has.
    Many(Class),
}

/// What an expression may expand to.
#[derive(Clone, Copy, Debug)]
enum Class {
    /// All bytes.
    Any,
    /// All but those that begin a query or a fragment.
    Path,
    /// All but those that begin a fragment.
    Query,
    /// All within one segment. Wider than RFC 6570, whose simple expansion escapes every reserved
    /// character: servers are seldom that strict.
    Segment,
}

impl Class {
    fn has(self, byte: u8) -> bool {
        match self {
            Self::Any => true,
            Self::Path => !matches!(byte, b'?' | b'#'),
            Self::Query => byte != b'#',
            Self::Segment => !matches!(byte, b'/' | b'?' | b'#'),
        }
    }
}

impl Pattern {
    /// Reads `template`; a brace without its partner is taken literally.
    pub(super) fn parse(template: &str) -> Self {
        let (mut steps, mut rest) = (Vec::new(), template);
        while !rest.is_empty() {
            let literal = rest.find('{').unwrap_or(rest.len());
            steps.extend(rest[..literal].bytes().map(Step::Byte));
            rest = &rest[literal..];
            if rest.is_empty() {
                break;
            }
            let Some(end) = rest.find('}') else {
                steps.extend(rest.bytes().map(Step::Byte));
                break;
            };
            push_expression(rest.as_bytes()[1], &mut steps);
            rest = &rest[end + 1..];
        }
        Self { steps }
    }

    /// Whether the template can expand to `uri`.
    pub(super) fn matches(&self, uri: &str) -> bool {
        if uri.len() > URI_BYTES_MAX {
            return false;
        }
        let mut active = Active::new(self.steps.len() + 1);
        let mut next = Active::new(self.steps.len() + 1);
        active.enter(0, &self.steps);
        for byte in uri.bytes() {
            next.clear();
            for at in &active.list {
                match self.steps.get(*at) {
                    Some(Step::Byte(expected)) if *expected == byte => {
                        next.enter(at + 1, &self.steps);
                    }
                    Some(Step::Many(class)) if class.has(byte) => next.enter(*at, &self.steps),
                    Some(Step::Byte(_) | Step::Either(_) | Step::Many(_)) | None => {}
                }
            }
            if next.list.is_empty() {
                return false;
            }
            std::mem::swap(&mut active, &mut next);
        }
        active.list.contains(&self.steps.len())
    }
}

fn push_expression(operator: u8, steps: &mut Vec<Step>) {
    let (lead, class) = match operator {
        b'+' => (None, Class::Any),
        b'#' => (Some(b'#'), Class::Any),
        b'.' => (Some(b'.'), Class::Segment),
        b'/' => (Some(b'/'), Class::Path),
        b';' => (Some(b';'), Class::Segment),
        b'?' => (Some(b'?'), Class::Query),
        b'&' => (Some(b'&'), Class::Query),
        _ => (None, Class::Segment),
    };
    if let Some(lead) = lead {
        steps.push(Step::Either(steps.len() + 3));
        steps.push(Step::Byte(lead));
    }
    steps.push(Step::Many(class));
}

/// The steps that are possible at one position of the URI, each once.
#[derive(Debug)]
struct Active {
    list: Vec<usize>,
    seen: Vec<bool>,
}

impl Active {
    fn new(steps: usize) -> Self {
        Self {
            list: Vec::new(),
            seen: vec![false; steps],
        }
    }

    fn clear(&mut self) {
        for at in self.list.drain(..) {
            self.seen[at] = false;
        }
    }

    /// Adds the step at `at` and those reachable from it without a byte.
    fn enter(&mut self, at: usize, steps: &[Step]) {
        let mut from = self.list.len();
        self.add(at);
        while let Some(at) = self.list.get(from).copied() {
            match steps.get(at) {
                Some(Step::Either(other)) => {
                    self.add(at + 1);
                    self.add(*other);
                }
                Some(Step::Many(_)) => self.add(at + 1),
                Some(Step::Byte(_)) | None => {}
            }
            from += 1;
        }
    }

    fn add(&mut self, at: usize) {
        if !std::mem::replace(&mut self.seen[at], true) {
            self.list.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_match_what_they_can_expand_to() {
        let check = |template: &str, uri: &str, expect: bool| {
            let found = Pattern::parse(template).matches(uri);
            assert_eq!(found, expect, "{template} and {uri}");
        };
        check("file:///a", "file:///a", true);
        check("file:///a", "file:///ab", false);
        check("file:///{path}", "file:///a.txt", true);
        check("file:///{path}", "file:///a/b.txt", false);
        check("file:///{+path}", "file:///a/b.txt?c#d", true);
        check("file:///{path}", "http:///a", false);
        check("db://{table}/rows/{id}", "db://users/rows/7", true);
        check("db://{table}/rows/{id}", "db://users/cols/7", false);
        check("db://{table}{/id}", "db://users", true);
        check("db://{table}{/id*}", "db://users/1/2", true);
        check("db://{table}{?limit,offset}", "db://users?limit=1", true);
        check("db://{table}{?limit}", "db://users#top", false);
        check("db://{table}{#part}", "db://users#top", true);
        check("db://{table}{&more}", "db://users&a=b", true);
        check("a{.ext}", "a.txt", true);
        check("a{;x}", "a;x=1", true);
        check("{+uri}", "anything://at/all", true);
        check("{+uri}", "", true);
        check("open{brace", "open{brace", true);
        check("{}", "x", true);
        check("ü{x}", "üben", true);
    }

    #[test]
    fn hostile_templates_and_uris_end_soon() {
        let pattern = Pattern::parse(&"{+a}".repeat(1000));
        assert!(pattern.matches(&"x".repeat(URI_BYTES_MAX)));
        assert!(!pattern.matches(&"x".repeat(URI_BYTES_MAX + 1)));
    }
}
