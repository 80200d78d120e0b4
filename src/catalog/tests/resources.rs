//! Resources: which server a URI belongs to, however it is written.

use super::*;

#[test]
fn resources_are_found_by_their_exposed_uri() {
    let catalog = Catalog::build(&naming(), &[files(), database()]);
    let uris = [
        "fs+file:///a",
        "fs://file.txt",
        "postgres+postgres://db/users",
    ];
    assert_eq!(exposed(&catalog, Kind::Resources), uris);
    let templates = ["fs+file:///{name}", "postgres+postgres://db/{table}"];
    assert_eq!(exposed(&catalog, Kind::Templates), templates);
    let check = |uri: &str, expect: Lookup| {
        assert_eq!(catalog.resource(&Scope::All, uri), expect, "{uri}");
    };
    check("fs+file:///a", found("fs", "file:///a"));
    check("fs://file.txt", found("fs", "file.txt"));
    check("fs+file:///{name}", found("fs", "file:///{name}"));
    // Neither listed nor matched: the server may have it all the same.
    check("fs+ftp://x", found("fs", "ftp://x"));
    check("fs://other.txt", found("fs", "other.txt"));
    // Without a prefix, by listing and by template.
    check("file:///a", found("fs", "file:///a"));
    check("file.txt", found("fs", "file.txt"));
    check("file:///b", found("fs", "file:///b"));
    check("ftp://x", Lookup::NotFound);
    check("other.txt", Lookup::NotFound);
    check("", Lookup::NotFound);
    // The server's name is its own scheme.
    check(
        "postgres+postgres://db/users",
        found("postgres", "postgres://db/users"),
    );
    check(
        "postgres://db/users",
        found("postgres", "postgres://db/users"),
    );
    check(
        "postgres://db/orders",
        found("postgres", "postgres://db/orders"),
    );
    check("postgres://bare", found("postgres", "bare"));
    // Somebody else's prefix.
    check("gh+file:///a", Lookup::NotFound);
}

#[test]
fn a_template_that_is_too_long_claims_what_begins_like_it() {
    let template = format!("x://{}", "{a}-".repeat(300));
    let item = format!(r#"{{"uriTemplate":"{template}","name":"n"}}"#);
    let mut offer = files();
    Arc::make_mut(&mut offer.listing).templates.push(raw(&item));
    let catalog = Catalog::build(&naming(), std::slice::from_ref(&offer));
    let check = |uri: &str, expect: Lookup| {
        assert_eq!(catalog.resource(&Scope::All, uri), expect, "{uri}");
    };
    let expanded = "x://".to_owned() + &"a-".repeat(300);
    check(&format!("fs+{template}"), found("fs", &template));
    check(&format!("fs+{expanded}"), found("fs", &expanded));
    check(&expanded, found("fs", &expanded));
    check("x://b", found("fs", "x://b"));
    check("x:/b", Lookup::NotFound);
    check("file:///b", found("fs", "file:///b"));
    let problems: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
    let told_of = "fs: resourceTemplates: too many or too long templates to match URIs exactly: 1; URIs are matched by their literal prefix";
    assert_eq!(problems, [told_of]);
    assert!(catalog.problems()[0].affects_route(&Scope::All));
    assert!(!catalog.problems()[0].affects_route(&server("fs")));
    config(&mut offer).expose.resources = false;
    assert_eq!(Catalog::build(&naming(), &[offer]).problems(), []);
}

#[test]
fn a_uri_that_two_servers_claim_is_ambiguous() {
    let mut other = files();
    other.server = name("other");
    let catalog = Catalog::build(&naming(), &[files(), other]);
    let both = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    assert_eq!(
        catalog.resource(&Scope::All, "file:///a"),
        both,
        "listed twice"
    );
    assert_eq!(
        catalog.resource(&Scope::All, "file:///b"),
        both,
        "matched twice"
    );
    assert_eq!(
        catalog.resource(&Scope::All, "other+file:///a"),
        found("other", "file:///a")
    );
    assert_eq!(
        catalog.resource(&server("other"), "file:///a"),
        found("other", "file:///a")
    );
}

#[test]
fn denied_uris_are_not_found_however_they_are_written() {
    let mut offer = files();
    config(&mut offer).resources.deny = vec![glob("file:///secret*"), glob("file:///a")];
    let catalog = Catalog::build(&naming(), &[offer]);
    assert_eq!(exposed(&catalog, Kind::Resources), ["fs://file.txt"]);
    for uri in [
        "fs+file:///a",
        "file:///a",
        "fs+file:///secret",
        "file:///secret",
        "fs+file:///b/../secret",
        "fs+file:///b/%2e%2e/a",
        "fs+file:///%61",
        "fs+file://localhost/a",
    ] {
        assert_eq!(
            catalog.resource(&Scope::All, uri),
            Lookup::NotFound,
            "{uri}"
        );
    }
    let unruled = Catalog::build(&naming(), &[files()]);
    let upwards = "file:///b/../secret";
    assert_eq!(
        unruled.resource(&server("fs"), upwards),
        found("fs", upwards)
    );
    assert_eq!(
        catalog.resource(&server("fs"), "file:///secret"),
        Lookup::NotFound
    );
    assert_eq!(
        catalog.resource(&server("fs"), "file:///b"),
        found("fs", "file:///b")
    );
    assert_eq!(
        catalog.resource(&server("gone"), "file:///b"),
        Lookup::NotFound
    );
}

#[test]
fn what_allows_a_resource_allows_it_without_its_fragment() {
    let mut offer = files();
    config(&mut offer).resources.allow = Some(vec![glob("file:///*.md")]);
    let catalog = Catalog::build(&naming(), &[offer]);
    for (uri, is_found) in [
        ("file:///b.md", true),
        ("file:///b.md#c.md", true),
        ("file:///b.env#.md", false),
        ("file:///b.env?.md", false),
    ] {
        let expect = if is_found {
            found("fs", uri)
        } else {
            Lookup::NotFound
        };
        assert_eq!(catalog.resource(&server("fs"), uri), expect, "{uri}");
    }
}

#[test]
fn originals_stay_without_namespaces() {
    let check = |conflict: Conflict, expect: &[&str], shared: Lookup| {
        let naming = Naming {
            conflict,
            namespace_resources: false,
            ..naming()
        };
        let mut other = listed("other", resources(["file:///a", "x:y"]));
        config(&mut other).priority = 1;
        let catalog = Catalog::build(&naming, &[files(), other]);
        assert_eq!(exposed(&catalog, Kind::Resources), expect, "{conflict:?}");
        assert_eq!(exposed(&catalog, Kind::Templates), ["file:///{name}"]);
        let look = |uri| catalog.resource(&Scope::All, uri);
        assert_eq!(look("file:///a"), shared, "{conflict:?}");
        assert_eq!(look("x:y"), found("other", "x:y"));
        assert_eq!(look("file:///b"), found("fs", "file:///b"));
        assert_eq!(look("fs+file:///a"), found("fs", "file:///a"));
        assert_eq!(look("fs+file:///b"), found("fs", "file:///b"));
        assert_eq!(look("z:unclaimed"), Lookup::NotFound);
    };
    let ambiguous = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    let all = ["file.txt", "fs+file:///a", "other+file:///a", "x:y"];
    check(Conflict::Namespace, &all, ambiguous.clone());
    check(Conflict::Error, &["file.txt", "x:y"], ambiguous);
    let one = ["file.txt", "file:///a", "x:y"];
    check(Conflict::First, &one, found("fs", "file:///a"));
    check(Conflict::Priority, &one, found("other", "file:///a"));
}

#[test]
fn without_namespaces_the_only_server_gets_every_uri() {
    let naming = Naming {
        namespace_resources: false,
        ..naming()
    };
    let catalog = Catalog::build(&naming, &[files(), offer("tools_only", &["t"])]);
    assert_eq!(
        catalog.resource(&Scope::All, "z:unlisted"),
        found("fs", "z:unlisted")
    );
}

#[test]
fn the_map_of_a_server_agrees_with_its_list() {
    let catalog = Catalog::build(&naming(), &[files()]);
    let map = catalog.uris(&Scope::All, &name("fs"));
    assert_eq!(map.expose("file:///a"), "fs+file:///a");
    assert!(catalog.uris(&server("fs"), &name("fs")).is_identity());
    assert!(catalog.uris(&Scope::All, &name("gone")).is_identity());
}

#[test]
fn servers_with_one_prefix_are_told_apart() {
    let listing = resources(["file:///a"]);
    let catalog = Catalog::build(
        &naming(),
        &[listed("a.b", listing.clone()), listed("A.b", listing)],
    );
    let uris = exposed(&catalog, Kind::Resources);
    assert_eq!(uris.len(), 2);
    let servers: Vec<_> = uris
        .iter()
        .map(|uri| catalog.resource(&Scope::All, uri))
        .collect();
    assert!(servers.contains(&found("a.b", "file:///a")), "{uris:?}");
    assert!(servers.contains(&found("A.b", "file:///a")), "{uris:?}");
    assert_eq!(catalog.problems().len(), 2);
}

#[test]
fn listings_are_told_apart_and_joined_by_name() {
    let listing = |names: &[&str]| Listing {
        tools: names
            .iter()
            .map(|name| Raw::from_value(&serde_json::json!({ "title": names, "name": name })))
            .collect(),
        ..Listing::default()
    };
    let names = |listing: &Listing| -> Vec<String> {
        let names = listing.tools.iter().map(|tool| tool.get("name"));
        names
            .map(|name| name.unwrap().as_str().to_owned())
            .collect()
    };
    let (base, mut more) = (listing(&["a", "b"]), listing(&["b", "c", "d"]));
    more.pages.tools = Some(FirstPage::default());
    let beyond = more.difference(&base);
    assert_eq!(names(&beyond), ["\"c\"", "\"d\""]);
    assert!(base.difference(&base).is_empty() && !beyond.is_empty());

    // The server may list one of them for everyone by now: then it is there once, as it is there.
    let mut now = listing(&["a", "c"]);
    let c = now.tools[1].clone();
    now.extend(&beyond);
    assert_eq!(names(&now), ["\"a\"", "\"c\"", "\"d\""]);
    assert_eq!((&now.tools[1], &now.pages.tools), (&c, &more.pages.tools));
}

#[test]
fn resources_are_renamed_for_people_only() {
    let text = r#"{"uri":"a:b","name":"old","icons":[{"src":"c:d"}]}"#;
    let mut offer = listed(
        "s",
        Listing {
            resources: vec![raw(text), raw(r#"{"uri":"c:d"}"#)],
            ..Listing::default()
        },
    );
    let renames = ["a:b", "c:d"].map(|uri| (uri.to_owned(), "New".to_owned()));
    config(&mut offer).resources.rename = renames.into_iter().collect();
    let catalog = Catalog::build(&naming(), &[offer]);
    let merged = catalog.list(&Scope::All, Kind::Resources);
    let expect =
        r#"[{"uri":"s+a:b","name":"New","icons":[{"src":"c:d"}]},{"name":"New","uri":"s+c:d"}]"#;
    assert_eq!(merged.array().as_str(), expect);
}
