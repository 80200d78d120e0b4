//! Profiles: views of their own, with names of their own.

use super::*;

#[test]
fn profiles_show_what_their_globs_and_tags_say() {
    let mut tagged = offer("docs", &["search", "read"]);
    config(&mut tagged).tags = vec!["safe".to_owned()];
    let offers = [tagged, offer("gh", &["get_me", "delete_repo"]), files()];
    let check = |profile: Profile, tools: &[&str], resources: usize| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            shown(&catalog, &reading(), Kind::Tools),
            tools,
            "{profile:?}"
        );
        assert_eq!(
            catalog.list(&reading(), Kind::Resources).len(),
            resources,
            "{profile:?}"
        );
    };
    let tools = |globs: &[&str]| Profile {
        tools: Some(globs.iter().map(|text| glob(text)).collect()),
        ..profile()
    };
    let all = [
        "mcp_docs_read",
        "mcp_docs_search",
        "mcp_gh_delete_repo",
        "mcp_gh_get_me",
    ];
    check(profile(), &all, 2);
    check(tools(&[]), &[], 2);
    check(
        tools(&["docs/*", "gh/get_*"]),
        &["mcp_docs_read", "mcp_docs_search", "mcp_gh_get_me"],
        2,
    );
    check(tools(&["mcp_gh_*"]), &all[2..], 2);
    check(tools(&["get_me", "gh/*/x"]), &[], 2);
    check(tools(&["**"]), &all, 2);
    check(tools(&["d*"]), &[], 2);
    let tags = |tags: &[&str]| Profile {
        tags: Some(tags.iter().map(|tag| (*tag).to_owned()).collect()),
        ..profile()
    };
    check(tags(&["safe", "other"]), &all[..2], 0);
    check(tags(&["other"]), &[], 0);
    let both = Profile {
        tools: tools(&["**/read", "gh/*"]).tools,
        ..tags(&["safe"])
    };
    check(both, &all[..1], 0);
}

/// What a profile says of a name is of the server with the longest prefix, whatever others list.
#[test]
fn a_profile_means_the_same_whatever_others_list() {
    let profile = Profile {
        tools: Some(vec![glob("mcp_git_hub_*")]),
        rename: map([("mcp_git_hub_search", "find")]),
        describe: map([("mcp_git_hub_search", "said")]),
        ..profile()
    };
    for intruders in [&[][..], &["hub_search", "hub_delete"], &["search"]] {
        let offers = [
            offer("git", intruders),
            offer("git_hub", &["search", "delete"]),
        ];
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            shown(&catalog, &reading(), Kind::Tools),
            ["find", "mcp_git_hub_delete"]
        );
        let found = catalog.tool(&reading(), "find").unwrap();
        assert_eq!(found.server.as_str(), "git_hub");
        assert!(
            found.item.as_str().contains("said"),
            "{}",
            found.item.as_str()
        );
    }
    // Where names have no server in them, both are meant, however they are exposed.
    let mut short = naming();
    short.template = "{tool}".to_owned();
    let profile = Profile {
        tools: Some(vec![glob("search")]),
        ..self::profile()
    };
    let offers = [offer("a", &["search", "other"]), offer("b", &["search"])];
    let catalog = with_profile(&short, &profile, &offers);
    assert_eq!(
        shown(&catalog, &reading(), Kind::Tools),
        ["search_549d551a", "search_5ba67924"]
    );
}

#[test]
fn profiles_rename_and_describe() {
    let text = r#"{"name":"search","description":"old","name":"search","inputSchema":{"type":"object"},"x":1.50}"#;
    let offers = [
        listed(
            "docs",
            tools([text, r#"{"name":"plain","inputSchema":{"type":"object"}}"#]),
        ),
        offer("gh", &["get"]),
    ];
    let profile = Profile {
        rename: map([("mcp_docs_search", "find"), ("mcp_gh_get", "a")]),
        describe: map([("mcp_docs_search", "new"), ("mcp_docs_plain", "said")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let list = catalog.list(&reading(), Kind::Tools).array().as_str();
    let plain = r#"{"description":"said","name":"mcp_docs_plain","inputSchema":{"type":"object"}}"#;
    let found = r#"{"name":"find","description":"new","name":"find","inputSchema":{"type":"object"},"x":1.50}"#;
    let got = r#"{ "name": "a", "inputSchema": {"type":"object"} }"#;
    assert_eq!(list, format!("[{got},{found},{plain}]"));
    let tool = catalog.tool(&reading(), "find").unwrap();
    assert_eq!(
        (
            &*tool.original,
            &*tool.merged,
            &*tool.alias,
            tool.server.as_str()
        ),
        ("search", "mcp_docs_search", "find", "docs")
    );
    assert!(catalog.tool(&reading(), "mcp_docs_search").is_none());
    assert!(catalog.tool(&Scope::All, "find").is_none());
    assert_eq!(
        &*catalog.tool(&Scope::All, "mcp_docs_search").unwrap().alias,
        ""
    );
    assert_eq!(catalog.problems(), []);
}

#[test]
fn a_name_that_a_profile_gives_twice_is_a_problem() {
    let mut short = naming();
    short.template = "{tool}".to_owned();
    let offers = [
        offer("docs", &["search", "look", "read"]),
        offer("gh", &["find"]),
    ];
    let check = |renames: &[(&str, &str)], names: &[&str], problems: &[&str]| {
        let profile = Profile {
            rename: renames
                .iter()
                .map(|(from, to)| ((*from).to_owned(), (*to).to_owned()))
                .collect(),
            ..profile()
        };
        let catalog = with_profile(&short, &profile, &offers);
        assert_eq!(
            shown(&catalog, &reading(), Kind::Tools),
            names,
            "{renames:?}"
        );
        let found: Vec<String> = catalog.problems().iter().map(ToString::to_string).collect();
        assert_eq!(found, problems, "{renames:?}");
    };
    check(
        &[("gone", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    check(
        &[("find", "look"), ("look", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    check(
        &[("search", "find")],
        &["find", "look", "read"],
        &["gh: tools: `find` is not served in profile `reading`, which renames `search` to `find`"],
    );
    check(
        &[("search", "x"), ("look", "x")],
        &["find", "read", "x"],
        &["docs: tools: `search` is not served in profile `reading`, which renames `look` to `x`"],
    );
    check(
        &[("find", "find")],
        &["find", "look", "read", "search"],
        &[],
    );
    // What the profile does not show is not in the way.
    let hides = Profile {
        tools: Some(vec![glob("docs/*")]),
        rename: map([("search", "find")]),
        ..profile()
    };
    let catalog = with_profile(&short, &hides, &offers);
    assert_eq!(
        shown(&catalog, &reading(), Kind::Tools),
        ["find", "look", "read"]
    );
    assert_eq!(catalog.problems(), []);
}

#[test]
fn resources_of_a_profile_are_those_it_shows() {
    let mut fs = files();
    config(&mut fs).tags = vec!["safe".to_owned()];
    let offers = [fs, database()];
    let only = |globs: &[&str]| Profile {
        resources: Some(globs.iter().map(|text| glob(text)).collect()),
        ..profile()
    };
    let check = |profile: Profile, uri: &str, expect: Lookup| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            catalog.resource(&reading(), uri),
            expect,
            "{profile:?} {uri}"
        );
        if let Lookup::Found { server, original } = expect {
            assert!(catalog.shows_resource(&reading(), &server, &original));
        }
    };
    let pg = "postgres+postgres://db/users";
    check(profile(), "fs+file:///a", found("fs", "file:///a"));
    check(profile(), pg, found("postgres", "postgres://db/users"));
    let one = || only(&["fs/file:///{a,b}", "fs+file:///c"]);
    check(one(), "fs+file:///a", found("fs", "file:///a"));
    check(one(), "file:///a", found("fs", "file:///a"));
    check(one(), "fs+file:///b", found("fs", "file:///b"));
    check(one(), "fs+file:///c", found("fs", "file:///c"));
    check(one(), "fs+file:///d", Lookup::NotFound);
    let all = || only(&["fs/file:///**"]);
    check(all(), "fs+file:///x/d", found("fs", "file:///x/d"));
    check(all(), "fs+file:///x/../d", Lookup::NotFound);
    let notes = || only(&["fs/file:///*.md"]);
    let note = "file:///x.md#y.md";
    check(notes(), &format!("fs+{note}"), found("fs", note));
    check(notes(), "fs+file:///x.env#.md", Lookup::NotFound);
    check(notes(), "fs+file:///x.env?.md", Lookup::NotFound);
    check(one(), "fs://file.txt", Lookup::NotFound);
    check(one(), pg, Lookup::NotFound);
    check(
        only(&["fs/file:///{name}"]),
        "fs+file:///{name}",
        Lookup::NotFound,
    );
    check(
        only(&["fs/file:///?name?"]),
        "fs+file:///{name}",
        found("fs", "file:///{name}"),
    );
    let safe = Profile {
        tags: Some(vec!["safe".to_owned()]),
        ..profile()
    };
    check(safe.clone(), "fs+file:///a", found("fs", "file:///a"));
    check(safe, pg, Lookup::NotFound);
    let catalog = with_profile(&naming(), &one(), &offers);
    let listed = |kind| shown(&catalog, &reading(), kind).join(" ");
    assert_eq!(listed(Kind::Resources), "fs+file:///a");
    assert_eq!(listed(Kind::Templates), "");
    assert!(!catalog.shows_resource(&reading(), &name("fs"), "file:///d"));
    assert!(!catalog.shows_resource(&reading(), &name("gone"), "file:///a"));
    let other = Scope::Profile(ProfileName::parse("other").unwrap());
    assert_eq!(catalog.resource(&other, "fs+file:///a"), Lookup::NotFound);
    assert!(!catalog.shows_resource(&other, &name("fs"), "file:///a"));
}

/// An unprefixed URI that two servers claim is clear where the profile shows one of them.
#[test]
fn a_profile_settles_what_is_ambiguous() {
    let offers = [files(), listed("other", resources(["file:///a"]))];
    let profile = Profile {
        resources: Some(vec![glob("other/**")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let ambiguous = Lookup::Ambiguous {
        servers: vec![name("fs"), name("other")],
    };
    assert_eq!(catalog.resource(&Scope::All, "file:///a"), ambiguous);
    assert_eq!(
        catalog.resource(&reading(), "file:///a"),
        found("other", "file:///a")
    );
    assert_eq!(
        catalog.resource(&reading(), "fs+file:///a"),
        Lookup::NotFound
    );
}

#[test]
fn instructions_of_a_profile_are_those_of_its_servers() {
    let says = |server: &str, tools: &[&str]| {
        let mut offer = offer(server, tools);
        Arc::make_mut(&mut offer.listing).instructions = Some(format!("use {server}"));
        offer
    };
    let offers = [says("a", &["x"]), says("b", &["y"]), says("c", &[])];
    let check = |profile: Profile, expect: Option<&str>| {
        let catalog = with_profile(&naming(), &profile, &offers);
        assert_eq!(
            catalog.instructions(&reading(), |_| true).as_deref(),
            expect,
            "{profile:?}"
        );
    };
    let merged = "# Server a\n\nuse a\n\n# Server b\n\nuse b\n\n# Server c\n\nuse c";
    check(profile(), Some(merged));
    let tools = |text: &str| Profile {
        tools: Some(vec![glob(text)]),
        ..profile()
    };
    check(tools("b/*"), Some("# Server b\n\nuse b"));
    check(tools("none"), None);
}

#[test]
fn a_profile_changes_only_with_its_own_view() {
    let profile = Profile {
        tools: Some(vec![glob("docs/*")]),
        ..profile()
    };
    let digest = |offers: &[ServerOffer]| {
        let catalog = with_profile(&naming(), &profile, offers);
        let digest = catalog.list(&reading(), Kind::Tools).digest();
        (digest, catalog.version())
    };
    let before = digest(&[offer("docs", &["a"]), offer("gh", &["b"])]);
    let beside = digest(&[offer("docs", &["a"]), offer("gh", &["b", "c"])]);
    let within = digest(&[offer("docs", &["a", "c"]), offer("gh", &["b"])]);
    assert_eq!(before.0, beside.0);
    assert_ne!(before.0, within.0);
    assert_ne!(before.1, beside.1);
    let plain = Catalog::build(&naming(), &[offer("docs", &["a"])]).version();
    let viewed = with_profile(&naming(), &profile, &[offer("docs", &["a"])]).version();
    assert_ne!(plain, viewed, "cursors know of the profiles");
}

/// What policies know an item by is the same on every route.
#[test]
fn items_have_one_merged_name_on_every_route() {
    let mut hidden = offer("hidden", &["t"]);
    config(&mut hidden).expose.tools = false;
    let offers = [files(), offer("gh", &["get.me"]), hidden];
    let profile = Profile {
        rename: map([("mcp_gh_get_me", "me")]),
        ..profile()
    };
    let catalog = with_profile(&naming(), &profile, &offers);
    let check = |scope: &Scope, kind: Kind, expect: &[[&str; 3]]| {
        let entries = catalog.list(scope, kind).entries().iter();
        let found: Vec<_> = entries
            .map(|entry| [&*entry.exposed, &*entry.merged, &*entry.alias])
            .collect();
        assert_eq!(found, expect, "{scope:?} {kind:?}");
    };
    let merged = "mcp_gh_get_me";
    check(&Scope::All, Kind::Tools, &[[merged, merged, ""]]);
    check(&reading(), Kind::Tools, &[["me", merged, "me"]]);
    check(&server("gh"), Kind::Tools, &[["get.me", merged, ""]]);
    check(&server("hidden"), Kind::Tools, &[["t", "", ""]]);
    check(
        &server("fs"),
        Kind::Resources,
        &[
            ["file:///a", "fs+file:///a", ""],
            ["file.txt", "fs://file.txt", ""],
        ],
    );
    let template = ["file:///{name}", "fs+file:///{name}", ""];
    check(&server("fs"), Kind::Templates, &[template]);
}

#[test]
fn filtered_pages_hold_what_is_visible() {
    let catalog = Catalog::build(&naming(), &[offer("s", &["a", "b", "c", "d", "e"])]);
    let view = catalog.list(&server("s"), Kind::Tools);
    let check = |visible: &str| {
        let sees = |entry: &ListEntry| visible.contains(&*entry.original);
        let expect: Vec<&str> = view
            .entries()
            .iter()
            .filter(|entry| sees(entry))
            .map(|entry| entry.item.as_str())
            .collect();
        for size in [0, 1, 2, 4, 5, usize::MAX] {
            let (mut offset, mut items, mut pages) = (Some(0), Vec::new(), 0);
            while let Some(at) = offset {
                let page = view.page_where(at, Some(size), sees).unwrap();
                items.extend((!page.items.is_empty()).then_some(page.items));
                offset = page.next;
                pages += 1;
            }
            assert_eq!(items.join(","), expect.join(","), "{visible} {size}");
            let full = expect.len().div_ceil(size.max(1)).max(1);
            assert_eq!(pages, full, "no page is empty: {visible} {size}");
        }
        let whole = view.page_where(0, None, sees).unwrap();
        assert_eq!(
            (whole.items.into_owned(), whole.next),
            (expect.join(","), None)
        );
        assert_eq!(view.page_where(5, None, sees), None);
        assert_eq!(view.digest_where(sees) == view.digest(), visible == "abcde");
    };
    for visible in ["", "a", "e", "c", "ab", "de", "ace", "bd", "abde", "abcde"] {
        check(visible);
    }
    assert_eq!(view.page_where(1, Some(2), |_| true), view.page(1, Some(2)));
    let one_run = view.page_where(0, None, |_| true).unwrap();
    assert!(matches!(one_run.items, std::borrow::Cow::Borrowed(_)));
}

pub(super) fn profile() -> Profile {
    Profile {
        tools: None,
        prompts: None,
        resources: None,
        tags: None,
        rename: IndexMap::new(),
        describe: IndexMap::new(),
        terms: Terms::default(),
    }
}

pub(super) fn with_profile(naming: &Naming, profile: &Profile, offers: &[ServerOffer]) -> Catalog {
    let name = ProfileName::parse("reading").unwrap();
    let servers = offers.iter().map(|offer| (&offer.server, &*offer.config));
    let prefixes = Arc::new(Prefixes::new(naming, servers));
    let profiles = Profiles::new(&IndexMap::from([(name, profile.clone())]), prefixes);
    Catalog::build_with(naming, &profiles, offers)
}

pub(super) fn reading() -> Scope {
    Scope::Profile(ProfileName::parse("reading").unwrap())
}

fn shown<'c>(catalog: &'c Catalog, scope: &Scope, kind: Kind) -> Vec<&'c str> {
    let entries = catalog.list(scope, kind).entries();
    entries.iter().map(|entry| &*entry.exposed).collect()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> IndexMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}
