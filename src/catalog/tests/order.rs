//! Whatever servers offer, in whatever order they come: the same names.

use super::*;

/// Servers whose tools are few and alike, so that names collide in every way.
fn alike() -> impl Strategy<Value = Vec<(String, Vec<String>)>> {
    let tool = prop::sample::select(vec![
        "a",
        "a.b",
        "a-b",
        "a_b",
        "b_a",
        "x",
        "twelve_chars",
        "twelve.chars",
        "longer_than_twelve",
        "a_b_8c9f1e2d",
        "größe",
        "gr__e",
    ]);
    let server = prop::sample::select(vec!["a", "a_b", "b", "A", "c.d", "c_d", "long-server-name"]);
    let tools = prop::collection::hash_set(tool.prop_map(str::to_owned), 0..8);
    let tools = tools.prop_map(|tools| tools.into_iter().collect());
    prop::collection::hash_map(server.prop_map(str::to_owned), tools, 0..6)
        .prop_map(|servers| servers.into_iter().collect())
}

fn conflict() -> impl Strategy<Value = Conflict> {
    prop::sample::select(vec![
        Conflict::Error,
        Conflict::First,
        Conflict::Namespace,
        Conflict::Priority,
    ])
}

type Route = (String, String, String);

fn routes(naming: &Naming, servers: &[(String, Vec<String>)]) -> Vec<Route> {
    let offers: Vec<ServerOffer> = servers
        .iter()
        .map(|(server, tools)| {
            let mut offer = offer(
                server,
                &tools.iter().map(String::as_str).collect::<Vec<_>>(),
            );
            config(&mut offer).priority = i32::try_from(server.len()).unwrap() % 3;
            offer
        })
        .collect();
    let catalog = Catalog::build(naming, &offers);
    let view = catalog.list(&Scope::All, Kind::Tools);
    let routes = view.entries().iter().map(|entry| {
        let tool = catalog.tool(&Scope::All, &entry.exposed).unwrap();
        (
            entry.exposed.to_string(),
            tool.server.to_string(),
            tool.original.to_string(),
        )
    });
    routes.collect()
}

proptest! {
    #[test]
    fn names_do_not_depend_on_order(
        servers in alike(),
        conflict in conflict(),
        template in prop::sample::select(vec!["{tool}", "mcp_{server}_{tool}", "{server}{tool}"]),
        max_length in prop::sample::select(vec![12usize, 20, 48]),
        seed in any::<u64>(),
    ) {
        let naming = Naming {
            template: template.to_owned(),
            conflict,
            max_length,
            ..naming()
        };
        let expected = routes(&naming, &servers);
        for (name, _, _) in &expected {
            prop_assert!(name.chars().count() <= max_length);
            prop_assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'));
        }
        for pair in expected.windows(2) {
            prop_assert!(pair[0].0 < pair[1].0, "{} and {}", pair[0].0, pair[1].0);
        }
        if conflict == Conflict::Namespace {
            let items: usize = servers.iter().map(|(_, tools)| tools.len()).sum();
            prop_assert_eq!(expected.len(), items);
        }
        let mut shuffled = servers.clone();
        let turn = |length: usize| if length == 0 { 0 } else { usize::try_from(seed % 97).unwrap() % length };
        for (_, tools) in &mut shuffled {
            let by = turn(tools.len());
            tools.rotate_left(by);
            tools.reverse();
        }
        // The order of servers is the config's, and matters where the rule says so.
        if matches!(conflict, Conflict::Error | Conflict::Namespace) {
            let by = turn(shuffled.len());
            shuffled.rotate_left(by);
            shuffled.reverse();
        }
        prop_assert_eq!(routes(&naming, &shuffled), expected);
    }

    #[test]
    fn digests_change_with_the_bytes(one in alike(), other in alike()) {
        let build = |servers: &[(String, Vec<String>)]| {
            let offers: Vec<ServerOffer> = servers
                .iter()
                .map(|(server, tools)| offer(server, &tools.iter().map(String::as_str).collect::<Vec<_>>()))
                .collect();
            Catalog::build(&naming(), &offers)
        };
        let (one, other) = (build(&one), build(&other));
        let (one, other) = (one.list(&Scope::All, Kind::Tools), other.list(&Scope::All, Kind::Tools));
        prop_assert_eq!(one.digest() == other.digest(), one.array() == other.array());
        for (a, b) in one.entries().iter().zip(other.entries()) {
            prop_assert_eq!(a.digest == b.digest, a.item == b.item);
        }
    }
}
