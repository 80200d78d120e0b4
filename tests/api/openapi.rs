//! The description is the one of the handlers, and committed.

use std::fs;

use serde_json::Value;

#[test]
fn the_committed_description_is_the_one_of_the_handlers() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/schemas/openapi.json");
    let committed = fs::read_to_string(path).unwrap_or_default();
    let generated = format!("{}\n", String::from_utf8_lossy(&tollbridge::api::openapi()));
    assert!(
        committed == generated,
        "schemas/openapi.json is out of date; write it anew with\n\n    \
         tollbridge schema --openapi > schemas/openapi.json\n"
    );
}

/// Each operation has an id of its own, and says who may use it.
#[test]
fn operations_are_described() {
    let document: Value = serde_json::from_slice(&tollbridge::api::openapi()).unwrap();
    let mut ids = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let id = operation["operationId"].as_str();
            ids.push(id.unwrap_or_else(|| panic!("{verb} {path} has no id")));
            assert!(
                operation["x-roles"].is_array(),
                "{verb} {path} has no roles"
            );
        }
    }
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// What an operation may answer is listed, and nothing is left to a default.
#[test]
fn answers_are_listed() {
    let document: Value = serde_json::from_slice(&tollbridge::api::openapi()).unwrap();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (verb, operation) in item.as_object().unwrap() {
            let responses = operation["responses"].as_object().unwrap();
            assert!(!responses.contains_key("default"), "{verb} {path}");
            assert!(responses.contains_key("401"), "{verb} {path}");
            let has_body = operation.get("requestBody").is_some();
            assert_eq!(responses.contains_key("415"), has_body, "{verb} {path}");
        }
    }
    let schemes = &document["components"]["securitySchemes"];
    for scheme in document["security"][0].as_object().unwrap().keys() {
        assert_eq!(schemes[scheme]["scheme"], "bearer");
    }
}
