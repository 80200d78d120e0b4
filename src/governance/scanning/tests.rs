use super::*;

fn scan(class: &str) -> Scan {
    Scan {
        results: std::iter::once((class.to_owned(), ScanAction::Redact)).collect(),
        ..Scan::default()
    }
}

#[test]
fn what_scans_for_the_same_is_compiled_once() {
    let scanners = Scanners::default();
    let email = scanners.get_or_compile(&scan("email")).unwrap();
    let again = scanners.get_or_compile(&scan("email")).unwrap();
    let phone = scanners.get_or_compile(&scan("phone")).unwrap();
    assert!(Arc::ptr_eq(&email, &again));
    assert!(!Arc::ptr_eq(&email, &phone));
    assert!(scanners.get_or_compile(&scan("weather")).is_err());
}

#[test]
fn a_scanner_that_nobody_uses_is_forgotten() {
    let scanners = Scanners::default();
    for _ in 0..3 {
        drop(scanners.get_or_compile(&scan("email")).unwrap());
    }
    assert_eq!(scanners.0.lock().unwrap().len(), 1, "the last one");
}

#[test]
fn members_that_stand_twice_are_looked_at_twice() {
    check_looked_at(
        &Method::ToolsCall,
        r#"{"arguments":{"a":1},"name":"x","inputResponses":2,"Arguments":3}"#,
        &[r#"Arguments {"a":1}"#, "Arguments 2", "Arguments 3"],
    );
}

/// A server may take in what no revision knows.
#[test]
fn all_that_a_client_writes_is_looked_at() {
    let params =
        r#"{"_meta":1,"name":"n","uri":"u","ref":{},"requestState":5,"x":6,"inputResponses":7}"#;
    for (method, direction, rest) in [
        (Method::ToolsCall, "Arguments", [r#""u""#, "{}"]),
        (Method::ResourcesRead, "Arguments", [r#""n""#, "{}"]),
        (Method::PromptsGet, "Prompts", [r#""u""#, "{}"]),
        (Method::Complete, "Prompts", [r#""n""#, r#""u""#]),
    ] {
        let expect = [rest[0], rest[1], "6"].map(|it| format!("{direction} {it}"));
        let [first, second, third] = &expect;
        check_looked_at(&method, params, &[first, second, third, "Arguments 7"]);
    }
}

fn check_looked_at(method: &Method, params: &'static str, expect: &[&str]) {
    let params = Raw::from_static(params);
    let found = request_parts(method, &params).into_iter();
    let found = found.map(|(direction, span)| format!("{direction:?} {}", &params.as_str()[span]));
    assert_eq!(found.collect::<Vec<_>>(), expect, "{method}");
}

#[test]
fn both_scanners_look() {
    let scanners = Scanners::default();
    let compiled = |class| scanners.get_or_compile(&scan(class)).unwrap();
    let (email, card) = (compiled("email"), compiled("credit_card"));
    let data = Raw::from_static(r#"["ann.lee@example.org","4111 1111 1111 1111"]"#);
    let check = |terms, server, expect: &str| {
        let codes = ErrorCodes::Contract;
        let Some(screens) =
            CallScanners::new((terms, server), false, codes, ServerChecks::default())
        else {
            return assert_eq!(expect, "", "nothing looks");
        };
        let (seen, _) = screens.scan_now(Direction::Results, &data, None);
        assert_eq!(seen.redacted.unwrap().as_str(), expect);
    };
    check(None, None, "");
    check(Some(&email), None, r#"["[EMAIL]","4111 1111 1111 1111"]"#);
    check(None, Some(&email), r#"["[EMAIL]","4111 1111 1111 1111"]"#);
    check(Some(&email), Some(&card), r#"["[EMAIL]","[CREDIT_CARD]"]"#);
}

#[test]
fn what_cannot_be_masked_is_refused_or_counted_as_such() {
    let email = Scanners::default().get_or_compile(&scan("email")).unwrap();
    let data = Raw::from_static(r#"{"structuredContent":{"to":"ann.lee@example.org"}}"#);
    let schema = r#"{"properties":{"to":{"const":"ann.lee@example.org"}}}"#;
    let schema = OutputSchema::new(Raw::from_static(schema));
    for is_observed in [false, true] {
        let codes = ErrorCodes::Contract;
        let screens = CallScanners::new(
            (Some(&email), None),
            is_observed,
            codes,
            ServerChecks::default(),
        );
        let looked = screens
            .unwrap()
            .scan_now(Direction::Results, &data, Some(&schema));
        let found = (looked.0.blocked.len(), looked.0.would_block);
        assert_eq!(found, (usize::from(!is_observed), is_observed));
    }
}

#[tokio::test]
async fn what_could_not_be_looked_at_does_not_pass() {
    let found = || (ScanReport::default(), true);
    let (seen, asks) = scan_or_block(run_blocking_if_large(LARGE_BYTES + 1, found)).await;
    assert_eq!((seen.blocked.len(), asks), (0, true));
    let breaks = || -> (ScanReport, bool) { panic!("odd data") };
    let (seen, asks) = scan_or_block(run_blocking_if_large(LARGE_BYTES + 1, breaks)).await;
    assert_eq!((seen.blocked, asks), (vec!["unscanned".into()], false));
}
