//! Whether a URI template (RFC 6570) can expand to a URI.
//!
//! Called for reads of URIs that carry no prefix. A yes means "some values could give this URI", not
//! that the server has it; the server still answers for itself.
//!
//! It is asked on the way of a call, of templates that a server wrote and a URI that a client wrote.
//! So all positions of the URI that a template can have come to are kept as a set of bits, in which a
//! step of the template takes as long for one position as for 64; and URIs, single templates and
//! those of a server together are bounded, past which a template is known by its beginning alone.

/// Longest URI that templates are tried on, bytes; longer ones are found by exact listing only.
const URI_BYTES_MAX: usize = 8 * 1024;
/// Most steps of one template: bytes after its first expression, and expressions. A longer one has
/// no pattern.
const TEMPLATE_STEPS_MAX: usize = 256;
/// Bytes that are kept of the beginning of a template without a pattern.
const LITERAL_BYTES_MAX: usize = 256;
/// Most that the templates of a server may cost together.
const COST_MAX: usize = 4096;
/// Most that one URI may cost: its words times what the templates cost, which are a thousand for the
/// longest URI. That is less than half a millisecond, and ten times that without optimisation.
const WORK_MAX: usize = 1024 * bitmap_words(URI_BYTES_MAX);

/// The templates of one server.
#[derive(Debug, Default)]
pub(super) struct ServerTemplates {
    list: Vec<UriTemplate>,
    cost: usize,
    /// How those begin that have no pattern.
    unmatchable: Vec<String>,
}

impl ServerTemplates {
    /// Reads `templates`, earlier ones first. One that is too long, or one too many, has no pattern, and
    /// claims whatever begins like it.
    pub(super) fn new<'t>(templates: impl IntoIterator<Item = &'t str>) -> Self {
        let mut patterns = Self::default();
        for template in templates {
            let pattern = UriTemplate::parse(template);
            match pattern.filter(|pattern| patterns.cost + pattern.cost() <= COST_MAX) {
                Some(pattern) => {
                    patterns.cost += pattern.cost();
                    patterns.list.push(pattern);
                }
                None => patterns.unmatchable.push(literal_prefix_of(template)),
            }
        }
        patterns
    }

    /// Whether there are no templates, with or without patterns.
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty() && self.unmatchable.is_empty()
    }

    /// How many templates have no pattern.
    pub(super) fn unmatchable_count(&self) -> usize {
        self.unmatchable.len()
    }

    /// Whether any of them can expand to `uri`. Where finding out would take too long, any may that begins
    /// like it: the URI is not to go to another server for that.
    pub(super) fn matches(&self, uri: &str) -> bool {
        if uri.len() > URI_BYTES_MAX {
            return false;
        }
        if self.unmatchable.iter().any(|head| uri.starts_with(head)) {
            return true;
        }
        let mut likely = self
            .list
            .iter()
            .filter(|it| uri.starts_with(&it.literal_prefix));
        if bitmap_words(uri.len()) * self.cost > WORK_MAX {
            return likely.next().is_some();
        }
        let Some(first) = likely.next() else {
            return false;
        };
        let mut walk = TemplateMatch::new(uri);
        walk.matches(first) || likely.any(|pattern| walk.matches(pattern))
    }
}

/// A parsed URI template.
#[derive(Debug)]
struct UriTemplate {
    /// What precedes the first expression.
    literal_prefix: String,
    steps: Vec<TemplateStep>,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum TemplateStep {
    /// Exactly this byte.
    Byte(u8),
    /// Any number of bytes that the class has.
    Many(CharClass),
    /// Nothing, or this byte and then any number of those that the class has.
    Optional(u8, CharClass),
}

/// What an expression may expand to; each has all that those before it have.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum CharClass {
    /// All within one segment. Wider than RFC 6570, whose simple expansion escapes every reserved
    /// character: servers are seldom that strict.
    Segment,
    /// All but those that begin a query or a fragment.
    Path,
    /// All but those that begin a fragment.
    Query,
    /// All bytes.
    Any,
}

impl CharClass {
    const ALL: [Self; 4] = [Self::Segment, Self::Path, Self::Query, Self::Any];

    fn contains(self, byte: u8) -> bool {
        match self {
            Self::Segment => !matches!(byte, b'/' | b'?' | b'#'),
            Self::Path => !matches!(byte, b'?' | b'#'),
            Self::Query => byte != b'#',
            Self::Any => true,
        }
    }
}

impl UriTemplate {
    /// Reads `template`; a brace without its partner is taken literally. `None` where it is too long.
    fn parse(template: &str) -> Option<Self> {
        let first = find_expression(template).map_or(template.len(), |(start, _)| start);
        let (head, mut rest) = template.split_at(first);
        let mut steps = Vec::new();
        while let Some((start, end)) = find_expression(rest) {
            steps.extend(rest[..start].bytes().map(TemplateStep::Byte));
            push_expression(rest.as_bytes()[start + 1], &mut steps);
            if steps.len() > TEMPLATE_STEPS_MAX {
                return None;
            }
            rest = &rest[end..];
        }
        steps.extend(rest.bytes().map(TemplateStep::Byte));
        let is_usable = head.len() <= URI_BYTES_MAX && steps.len() <= TEMPLATE_STEPS_MAX;
        is_usable.then(|| Self {
            literal_prefix: head.to_owned(),
            steps,
        })
    }

    /// How often all positions are gone through, about; one more stands for the beginning.
    fn cost(&self) -> usize {
        let steps = self.steps.iter().map(|step| match step {
            TemplateStep::Byte(_) | TemplateStep::Many(_) => 1,
            TemplateStep::Optional(..) => 4,
        });
        steps.sum::<usize>() + 1
    }
}

/// What precedes the first expression of `template`, or so much of it as is kept.
fn literal_prefix_of(template: &str) -> String {
    let end = find_expression(template).map_or(template.len(), |(start, _)| start);
    template[..template.floor_char_boundary(end.min(LITERAL_BYTES_MAX))].to_owned()
}

/// Where the first expression of `template` starts and ends.
fn find_expression(template: &str) -> Option<(usize, usize)> {
    let start = template.find('{')?;
    let length = template[start..].find('}')?;
    Some((start, start + length + 1))
}

fn push_expression(operator: u8, steps: &mut Vec<TemplateStep>) {
    let step = match operator {
        b'+' => TemplateStep::Many(CharClass::Any),
        b'#' => TemplateStep::Optional(b'#', CharClass::Any),
        b'.' => TemplateStep::Optional(b'.', CharClass::Segment),
        b'/' => TemplateStep::Optional(b'/', CharClass::Path),
        b';' => TemplateStep::Optional(b';', CharClass::Segment),
        b'?' => TemplateStep::Optional(b'?', CharClass::Query),
        b'&' => TemplateStep::Optional(b'&', CharClass::Query),
        _ => TemplateStep::Many(CharClass::Segment),
    };
    match (steps.last_mut(), step) {
        // Neighbours match what the wider of them does, since it has all that the other has.
        (Some(TemplateStep::Many(before)), TemplateStep::Many(class)) => {
            *before = class.max(*before);
        }
        // Each class has the byte that it begins with.
        (Some(before @ TemplateStep::Optional(..)), _) if *before == step => {}
        (
            Some(TemplateStep::Byte(_) | TemplateStep::Many(_) | TemplateStep::Optional(..)) | None,
            _,
        ) => steps.push(step),
    }
}

/// Words that hold the positions in a URI of so many bytes.
const fn bitmap_words(uri_bytes: usize) -> usize {
    uri_bytes / 64 + 1
}

/// Positions in a URI, its end included, a bit for each.
#[derive(Clone, Debug)]
struct PositionSet(Vec<u64>);

impl PositionSet {
    fn none(uri_bytes: usize) -> Self {
        Self(vec![0; bitmap_words(uri_bytes)])
    }

    fn insert(&mut self, at: usize) {
        self.0[at / 64] |= 1 << (at % 64);
    }

    fn contains(&self, at: usize) -> bool {
        self.0[at / 64] & (1 << (at % 64)) != 0
    }

    /// Goes on by one byte where `bytes` has it, and drops the rest; whether any is left.
    fn advance(&mut self, bytes: &Self) -> bool {
        let (mut carry, mut any) = (0, 0);
        for (word, bytes) in self.0.iter_mut().zip(&bytes.0) {
            let passed = *word & bytes;
            *word = (passed << 1) | carry;
            carry = passed >> 63;
            any |= *word;
        }
        any != 0
    }

    /// Adds whatever can be reached from here through `bytes`. A position within a run of them is
    /// added to the run like a number to one of ones: the carry goes to the end of the run.
    fn expand_runs(&mut self, bytes: &Self) {
        let mut carry = false;
        for (word, bytes) in self.0.iter_mut().zip(&bytes.0) {
            let (sum, over) = (*word & bytes).overflowing_add(*bytes);
            let (sum, over_by_carry) = sum.overflowing_add(carry.into());
            carry = over || over_by_carry;
            *word |= sum ^ bytes;
        }
    }

    fn union(&mut self, others: &Self) {
        for (word, other) in self.0.iter_mut().zip(&others.0) {
            *word |= other;
        }
    }
}

/// One URI, and how far a template has come in it.
#[derive(Debug)]
struct TemplateMatch {
    uri_bytes: usize,
    /// Where each byte stands, for those that the URI has.
    bytes: Vec<Option<PositionSet>>,
    /// Where bytes of each class stand.
    classes: [PositionSet; 4],
    reached: PositionSet,
    /// What is reached by way of what may be left out.
    optional_reached: PositionSet,
}

impl TemplateMatch {
    fn new(uri: &str) -> Self {
        let none = PositionSet::none(uri.len());
        let mut bytes = vec![None; 256];
        let mut classes = CharClass::ALL.map(|_| none.clone());
        for (at, byte) in uri.bytes().enumerate() {
            let found = bytes[usize::from(byte)].get_or_insert_with(|| none.clone());
            found.insert(at);
            for class in CharClass::ALL
                .into_iter()
                .filter(|class| class.contains(byte))
            {
                classes[class as usize].insert(at);
            }
        }
        Self {
            uri_bytes: uri.len(),
            bytes,
            classes,
            reached: none.clone(),
            optional_reached: none,
        }
    }

    /// Whether `pattern`, whose head the URI begins with, can expand to all of it.
    fn matches(&mut self, pattern: &UriTemplate) -> bool {
        self.reached.0.fill(0);
        self.reached.insert(pattern.literal_prefix.len());
        pattern.steps.iter().all(|step| self.apply_step(*step))
            && self.reached.contains(self.uri_bytes)
    }

    /// Goes on by `step`; whether it leads anywhere.
    fn apply_step(&mut self, step: TemplateStep) -> bool {
        let of = |byte: u8| self.bytes[usize::from(byte)].as_ref();
        match step {
            TemplateStep::Byte(byte) => of(byte).is_some_and(|bytes| self.reached.advance(bytes)),
            TemplateStep::Many(class) => {
                self.reached.expand_runs(&self.classes[class as usize]);
                true
            }
            TemplateStep::Optional(lead, class) => {
                if let Some(leads) = of(lead) {
                    self.optional_reached.clone_from(&self.reached);
                    if self.optional_reached.advance(leads) {
                        self.optional_reached
                            .expand_runs(&self.classes[class as usize]);
                        self.reached.union(&self.optional_reached);
                    }
                }
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn templates_match_what_they_can_expand_to() {
        let check = |template: &str, uri: &str, expect: bool| {
            let found = ServerTemplates::new([template]).matches(uri);
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
    fn neighbours_that_match_the_same_are_one() {
        let check = |template: &str, expect: &[TemplateStep]| {
            assert_eq!(
                UriTemplate::parse(template).unwrap().steps,
                expect,
                "{template}"
            );
        };
        check(
            &"{+a}".repeat(300_000),
            &[TemplateStep::Many(CharClass::Any)],
        );
        check("{a}{b}{+c}{d}", &[TemplateStep::Many(CharClass::Any)]);
        check(
            &"{/a}".repeat(300_000),
            &[TemplateStep::Optional(b'/', CharClass::Path)],
        );
        let apart = [
            TemplateStep::Many(CharClass::Segment),
            TemplateStep::Byte(b'-'),
            TemplateStep::Many(CharClass::Segment),
        ];
        check("{a}-{b}", &apart);
    }

    #[test]
    fn a_template_beyond_the_limit_has_no_pattern() {
        let check = |template: &str, expect: Option<usize>| {
            let steps = UriTemplate::parse(template).map(|pattern| pattern.steps.len());
            assert_eq!(steps, expect, "{} bytes", template.len());
        };
        let half = TEMPLATE_STEPS_MAX / 2;
        check(&"{a}-".repeat(half), Some(TEMPLATE_STEPS_MAX));
        check(&("{a}-".repeat(half) + "-"), None);
        check(&("{a}-".repeat(half) + "{b}"), None);
        check(&("{a}".to_owned() + &"-".repeat(1 << 20)), None);
        check(&("x".repeat(URI_BYTES_MAX) + "{a}"), Some(1));
        check(&("x".repeat(URI_BYTES_MAX + 1) + "{a}"), None);
    }

    #[test]
    fn templates_of_a_server_are_bounded_together() {
        let each = "{a}-".repeat((COST_MAX / 64 - 1) / 2) + "-";
        assert_eq!(UriTemplate::parse(&each).unwrap().cost(), COST_MAX / 64);
        let mut all = vec![each.as_str(); 64];
        let patterns = ServerTemplates::new(all.iter().copied());
        assert_eq!((patterns.list.len(), patterns.unmatchable_count()), (64, 0));
        // What comes first has room, and what is too long takes none from the rest.
        let long = "{a}-".repeat(TEMPLATE_STEPS_MAX);
        all.splice(..1, [long.as_str(), "y://{a}"]);
        all.extend(["z://{a}", "a"]);
        let patterns = ServerTemplates::new(all.iter().copied());
        assert_eq!((patterns.list.len(), patterns.unmatchable_count()), (66, 1));
        all.extend([each.as_str(), "b://{a}"]);
        let patterns = ServerTemplates::new(all.iter().copied());
        assert_eq!(patterns.unmatchable_count(), 2);
        assert!(patterns.matches("y://1") && patterns.matches("b://1"));
        assert!(patterns.matches("anything"), "one is left that may");
        let patterns = ServerTemplates::new([&*("long://".to_owned() + &long), "y://{a}"]);
        assert_eq!(patterns.unmatchable_count(), 1);
        for (uri, expect) in [("long://", true), ("long://1", true), ("long:/", false)] {
            assert_eq!(patterns.matches(uri), expect, "{uri}");
        }
        let cost: usize = patterns.list.iter().map(UriTemplate::cost).sum();
        assert_eq!(patterns.cost, cost);
        assert!(cost <= COST_MAX, "{cost}");
    }

    #[test]
    fn longer_uris_are_not_tried() {
        let patterns = ServerTemplates::new(["{+a}"]);
        assert!(patterns.matches(&"x".repeat(URI_BYTES_MAX)));
        assert!(!patterns.matches(&"x".repeat(URI_BYTES_MAX + 1)));
    }

    #[test]
    fn long_uris_are_tried_where_templates_cost_little() {
        let each = "{a}-".repeat(127) + "{a}";
        let mut templates = vec![each.as_str(); 4];
        let check = |templates: &[&str], uri_bytes: usize, expect: bool| {
            let uri = "-".repeat(uri_bytes);
            let patterns = ServerTemplates::new(templates.iter().copied());
            assert_eq!(
                patterns.matches(&uri),
                expect,
                "{} of {uri_bytes}",
                patterns.cost
            );
        };
        check(&templates, URI_BYTES_MAX, true);
        templates = vec![each.as_str(); 8];
        let (cost, half) = (
            8 * UriTemplate::parse(&each).unwrap().cost(),
            URI_BYTES_MAX / 2,
        );
        assert_eq!(cost, 2048);
        check(&templates, half - 1, true);
        // Of those that take too long it is enough that one begins like the URI.
        let beyond = half + 64;
        assert!(
            WORK_MAX >= cost * bitmap_words(half - 1) && WORK_MAX < cost * bitmap_words(beyond)
        );
        let (odd, apart) = ("/{a}".repeat(128), format!("x{each}"));
        for (template, bytes, expect) in [
            (&odd, half - 1, false),
            (&odd, beyond, false),
            (&apart, half - 1, false),
            (&apart, beyond, false),
            (&each, beyond, true),
        ] {
            check(&[template.as_str(); 8], bytes, expect);
        }
    }

    /// What `pattern` matches, by other means.
    fn regex_of(pattern: &UriTemplate) -> regex::bytes::Regex {
        let class = |class: CharClass| match class {
            CharClass::Segment => "[^/?#]*",
            CharClass::Path => "[^?#]*",
            CharClass::Query => "[^#]*",
            CharClass::Any => ".*",
        };
        let steps = pattern.steps.iter().map(|step| match step {
            TemplateStep::Byte(byte) => format!(r"\x{byte:02x}"),
            TemplateStep::Many(many) => class(*many).to_owned(),
            TemplateStep::Optional(lead, many) => format!(r"(\x{lead:02x}{})?", class(*many)),
        });
        let steps: String = steps.collect();
        let whole = format!("(?s-u)^{}{steps}$", regex::escape(&pattern.literal_prefix));
        regex::bytes::Regex::new(&whole).unwrap()
    }

    /// The bytes are a template, a zero, and a URI.
    #[test]
    fn fuzz_uri_template() {
        bolero::check!().for_each(|bytes: &[u8]| {
            let text = String::from_utf8_lossy(bytes);
            let (template, uri) = text.split_once('\0').unwrap_or((&text, ""));
            if let Some(pattern) = UriTemplate::parse(template) {
                let list = vec![pattern];
                let templates = ServerTemplates {
                    list,
                    ..ServerTemplates::default()
                };
                templates.matches(uri);
            }
            ServerTemplates::new([template]).matches(uri);
        });
    }

    proptest! {
        #[test]
        fn sets_of_positions_find_what_a_search_finds(
            parts in prop::collection::vec(r"a|b|/|\?|#|\.|\{[+#./;?&]?x\}", 0..12),
            uri in prop_oneof!["[ab/?#.;&]{0,12}", "[ab/.]{60,140}", "a{100,140}b?"],
        ) {
            let pattern = UriTemplate::parse(&parts.concat()).unwrap();
            let expect = regex_of(&pattern).is_match(uri.as_bytes());
            let patterns = ServerTemplates { list: vec![pattern], ..ServerTemplates::default() };
            prop_assert_eq!(patterns.matches(&uri), expect);
        }
    }
}
