use super::*;

fn tool(name: &str, schema: &str) -> Raw {
    raw(&format!(
        r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"outputSchema":{schema},"x":1}}"#
    ))
}

/// The catalog of a server `s` with tools that have `schemas`, and of a sound one.
fn catalog(schemas: &[&str]) -> Catalog {
    let tools = schemas.iter().enumerate();
    let tools = tools.map(|(at, schema)| tool(&format!("t{at}"), schema));
    let odd = Listing {
        tools: tools.collect(),
        ..Listing::default()
    };
    Catalog::build(&naming(), &[listed("s", odd), offer("z", &["fine"])])
}

fn shown(catalog: &Catalog, scope: &Scope, name: &str) -> Option<String> {
    let schema = catalog.tool(scope, name).unwrap().item.get("outputSchema");
    schema.map(|schema| schema.as_str().to_owned())
}

fn problems(catalog: &Catalog) -> Vec<String> {
    catalog.problems().iter().map(ToString::to_string).collect()
}

#[test]
fn what_clients_cannot_compile_is_left_out_on_merged_routes() {
    for odd in [
        r##"{"type":"object","properties":{"x":{"$ref":"#/$defs/ScreenInstance"}}}"##,
        r#"{"type":"object","properties":{"x":{"$ref":"https://example.com/x.json"}}}"#,
        r#"{"type":"object","properties":{"s":{"type":"string","pattern":"(?i)^a"}}}"#,
        r#"{"type":"object","properties":{"a":{"type":"string","required":true}}}"#,
        r#"{"type":"object","properties":{"n":{"minimum":0,"exclusiveMinimum":true}}}"#,
        r#"{"type":"object","properties":{"n":{"type":"float"}}}"#,
    ] {
        let catalog = catalog(&[odd, r#"{"type":"object"}"#]);
        assert_eq!(shown(&catalog, &Scope::All, "mcp_s_t0"), None, "{odd}");
        let own = shown(&catalog, &server("s"), "t0");
        assert_eq!(own.as_deref(), Some(odd));
        let other = shown(&catalog, &Scope::All, "mcp_s_t1");
        assert_eq!(other.as_deref(), Some(r#"{"type":"object"}"#));
        let merged = catalog.tool(&Scope::All, "mcp_s_t0").unwrap();
        let rest = r#"{"name":"mcp_s_t0","inputSchema":{"type":"object"},"x":1}"#;
        assert_eq!(merged.item.as_str(), rest);
        let told_of = problems(&catalog);
        let what = "s: tools: `t0`: `outputSchema` is left out on merged routes, clients could not compile it: at `/properties/";
        assert!(told_of[0].starts_with(what), "{told_of:?}");
        assert_eq!(told_of.len(), 1);
        let problem = &catalog.problems()[0];
        assert_eq!(problem.impact(), ProblemImpact::Nothing);
        assert!(!problem.affects_route(&server("s")));
        assert!(problem.affects_route(&Scope::All));
    }
}

/// Clients keep schemas by their `$id`, and refuse a second one of that name.
#[test]
fn ids_that_schemas_share_are_removed() {
    let shared = r##"{"$id":"urn:x","type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{}}}"##;
    let without = r##"{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"$defs":{"n":{}}}"##;
    let alone = r#"{"$id":"urn:y","type":"object"}"#;
    let own = r#"{"$id":"urn:x#","type":"object","properties":{"n":{"$ref":"urn:x#/properties/m"},"m":{}}}"#;
    let catalog = catalog(&[shared, shared, alone, own]);
    let of = |name: &str| shown(&catalog, &Scope::All, name);
    assert_eq!(of("mcp_s_t0").as_deref(), Some(without));
    assert_eq!(of("mcp_s_t1").as_deref(), Some(without));
    assert_eq!(of("mcp_s_t2").as_deref(), Some(alone));
    assert_eq!(of("mcp_s_t3"), None);
    assert_eq!(shown(&catalog, &server("s"), "t0").as_deref(), Some(shared));
    let told_of = problems(&catalog);
    assert_eq!(told_of.len(), 3, "{told_of:?}");
    let what = "s: tools: `t0`: the `$id` of `outputSchema` is removed on merged routes, other schemas have it too: `urn:x`";
    assert_eq!(told_of[0], what);
}

/// What is repaired is judged as it is repaired.
#[test]
fn a_schema_that_is_repaired_stays() {
    let catalog = catalog(&[r#"{"type":"object","required":null,"properties":{"a":true}}"#]);
    let repaired = r#"{"type":"object","required":[],"properties":{"a":{}}}"#;
    assert_eq!(
        shown(&catalog, &Scope::All, "mcp_s_t0").as_deref(),
        Some(repaired)
    );
}
