//! Snapshots: what is merged of all parts, pages, versions and size.

use super::*;
use crate::mcp::Era;

#[test]
fn freshness_is_the_least_of_all_parts() {
    let part = |server: &str, page: Option<(Option<u64>, bool)>| {
        let mut offer = offer(server, &["t"]);
        Arc::make_mut(&mut offer.listing).pages.tools = page.map(|(ttl_ms, public)| FirstPage {
            ttl_ms,
            public,
            rest: Some(raw(r#"{"x":1}"#)),
        });
        offer
    };
    let check = |offers: &[ServerOffer], ttl_ms: u64, public: bool| {
        let catalog = Catalog::build(&naming(), offers);
        let freshness = catalog.list(&Scope::All, Kind::Tools).freshness();
        assert_eq!(freshness, Freshness { ttl_ms, public });
    };
    let (long, short) = (
        part("a", Some((Some(900), true))),
        part("b", Some((Some(300), true))),
    );
    check(&[long.clone(), short.clone()], 300, true);
    check(&[long.clone(), part("b", Some((None, true)))], 0, true);
    check(
        &[long.clone(), part("b", Some((Some(900), false)))],
        900,
        false,
    );
    check(&[long.clone(), part("b", None)], 0, false);
    check(&[long.clone(), offer("b", &[])], 900, true);
    let mut hidden = part("b", None);
    config(&mut hidden).expose.tools = false;
    check(&[long.clone(), hidden], 900, true);
    check(&[], 0, false);
    let catalog = Catalog::build(&naming(), &[long, short]);
    let own = catalog.list(&server("b"), Kind::Tools);
    assert_eq!(own.freshness().ttl_ms, 300);
    assert_eq!(own.other_members().map(Raw::as_str), Some(r#"{"x":1}"#));
    assert_eq!(catalog.list(&Scope::All, Kind::Tools).other_members(), None);
}

#[test]
fn instructions_are_merged_by_server() {
    let says = |server: &str, text: &str| {
        listed(
            server,
            Listing {
                instructions: Some(text.to_owned()),
                ..Listing::default()
            },
        )
    };
    let own = "Use me.\n# Server b\u{7}";
    let catalog = Catalog::build(
        &naming(),
        &[says("a", own), offer("x", &["t"]), says("b", " B ")],
    );
    let merged = "# Server a\n\nUse me.\n    # Server b\n\n# Server b\n\nB";
    assert_eq!(
        catalog.instructions(&Scope::All, |_| true).as_deref(),
        Some(merged)
    );
    assert_eq!(
        catalog.instructions(&server("a"), |_| true).as_deref(),
        Some(own)
    );
    assert_eq!(
        catalog.instructions(&server("x"), |_| true).as_deref(),
        None
    );
    let length = |count: usize| {
        let catalog = Catalog::build(&naming(), &[says("a", &"ü".repeat(count))]);
        let merged = catalog.instructions(&Scope::All, |_| true).unwrap();
        let problems = catalog.problems().len();
        (merged.chars().filter(|c| *c == 'ü').count(), problems)
    };
    let limit = SERVER_CHARACTERS_MAX;
    assert_eq!(length(limit), (limit, 0));
    assert_eq!(length(limit + 1), (limit, 1));
    let many = 1 + MERGED_CHARACTERS_MAX / limit;
    let offers: Vec<ServerOffer> = (0..many)
        .map(|at| says(&format!("s{at}"), &"ü".repeat(limit)))
        .collect();
    let catalog = Catalog::build(&naming(), &offers);
    let merged = catalog.instructions(&Scope::All, |_| true).unwrap();
    assert_eq!(
        merged.chars().filter(|c| *c == 'ü').count(),
        MERGED_CHARACTERS_MAX
    );
    assert_eq!(catalog.problems().len(), 1);
}

/// All but the text of the pages is the same for clients of both eras.
#[test]
fn pages_are_those_of_an_era() {
    let tool = r#"{"name":"a","inputSchema":{"type":"object"}}"#;
    let modern = tool.replace("}}", r#"},"outputSchema":{"type":"string"}}"#);
    let offers = [
        listed("s", tools([modern.as_str()])),
        offer("t", &["b", "c"]),
    ];
    let catalog = profiles::with_profile(&naming(), &profiles::profile(), &offers);
    for scope in [server("s"), Scope::All, profiles::reading()] {
        let view = catalog.list(&scope, Kind::Tools);
        for (era, expect) in [(Era::Modern, true), (Era::Legacy, false)] {
            let view = view.for_era(era);
            let page = view.page(0, Some(1)).unwrap();
            assert_eq!(page.items.contains("outputSchema"), expect, "{scope:?}");
            assert_eq!(page.next.is_some(), scope != server("s"));
        }
    }
    let view = catalog.list(&server("t"), Kind::Tools);
    let pages = [Era::Legacy, Era::Modern].map(|era| view.for_era(era).page(0, None));
    assert_eq!(pages[0], pages[1]);
}

#[test]
fn pages_cover_the_list_once() {
    let catalog = Catalog::build(&naming(), &[offer("s", &["a", "b", "c", "d", "e"])]);
    let view = catalog.list(&server("s"), Kind::Tools);
    for size in [0, 1, 2, 4, 5, 6, usize::MAX] {
        let (mut offset, mut items) = (Some(0), Vec::new());
        while let Some(at) = offset {
            let page = view.page(at, Some(size)).unwrap();
            items.push(page.items);
            offset = page.next;
        }
        assert_eq!(
            format!("[{}]", items.join(",")),
            view.array().as_str(),
            "{size}"
        );
    }
    let whole = view.page(0, None).unwrap();
    assert_eq!(
        (whole.items.len() + 2, whole.next),
        (view.array().as_str().len(), None)
    );
    assert_eq!(view.page(4, None).unwrap().next, None);
    assert_eq!(view.page(5, None), None);
    assert_eq!(view.page(usize::MAX, Some(1)), None);
    let none = catalog.list(&server("gone"), Kind::Tools);
    assert_eq!(
        none.page(0, Some(3)),
        Some(PageRange {
            items: "".into(),
            next: None
        })
    );
    assert_eq!(none.page(1, Some(3)), None);
}

#[test]
fn the_version_tells_snapshots_apart() {
    let build = |offers: &[ServerOffer]| Catalog::build(&naming(), offers).version();
    let base = build(&[offer("a", &["x"]), offer("b", &["y"])]);
    assert_eq!(build(&[offer("a", &["x"]), offer("b", &["y"])]), base);
    assert_ne!(build(&[offer("a", &["x"]), offer("b", &["z"])]), base);
    assert_ne!(build(&[offer("a", &["x"])]), base);
    let mut changed_b = offer("b", &["y"]);
    Arc::make_mut(&mut changed_b.listing).instructions = Some("i".to_owned());
    assert_ne!(build(&[offer("a", &["x"]), changed_b]), base);
    let mut described = offer("b", &["y"]);
    let text = [("y".to_owned(), "d".to_owned())];
    config(&mut described).tools.describe = text.into_iter().collect();
    assert_ne!(build(&[offer("a", &["x"]), described]), base);
}

#[test]
fn snapshots_are_shared_between_threads() {
    fn check<T: Send + Sync + 'static>() {}
    check::<Catalog>();
    check::<ServerOffer>();
}

#[test]
fn large_catalogs_are_built() {
    let description = "d".repeat(400);
    let offers: Vec<ServerOffer> = (0..20)
        .map(|at| {
            let tools = (0..500).map(|n| {
                let name = format!("tool_number_{n}_with_a_rather_long_name_{}", n * at);
                raw(&format!(
                    r#"{{"name":"{name}","description":"{description}","inputSchema":{{"type":"object","properties":{{"a":{{"type":"string"}}}}}}}}"#
                ))
            });
            let tools = tools.collect();
            listed(&format!("server-{at}"), Listing { tools, ..Listing::default() })
        })
        .collect();
    let catalog = Catalog::build(&naming(), &offers);
    let view = catalog.list(&Scope::All, Kind::Tools);
    assert_eq!(view.len(), 10_000);
    for entry in view.entries() {
        let tool = catalog.tool(&Scope::All, &entry.exposed).unwrap();
        assert_eq!(
            (&tool.server, &tool.original),
            (&entry.server, &entry.original)
        );
        assert!(entry.exposed.len() <= 48);
    }
}
