//! Signing in to servers from the command line.

use rustix::process::Signal;
use serde_json::Value;

use crate::support::Place;

/// A server that people sign in to, and one that nobody does; neither is there.
const SERVERS: &str = r#"
    listen = "127.0.0.1:0"
    [agents.ann]
    [servers.hosted]
    url = "http://127.0.0.1:9/mcp"
    auth = { type = "oauth2", grant = "authorization_code" }
    [servers.plain]
    url = "http://127.0.0.1:9/mcp"
"#;

/// The running gateway gives a link to its own page, for the gateway or for an agent.
#[tokio::test]
async fn login_gets_a_link_from_the_running_gateway() {
    let place = Place::new(SERVERS);
    let serving = place.serve().await;
    let mut codes = Vec::new();
    for who in [&[][..], &["--agent", "ann"]] {
        let args = [&["login", "hosted", "--json"], who].concat();
        let printed = place.run(&args).await;
        assert_eq!(printed.code, Some(0), "{printed:?}");
        let link: Value = serde_json::from_str(&printed.stdout).expect("JSON");
        let (url, code) = (link["url"].as_str(), link["code"].as_str());
        let (url, code) = url.zip(code).unwrap_or_else(|| panic!("{link}"));
        assert!(
            url.ends_with(&format!("/connections?code={code}")),
            "{link}"
        );
        assert_eq!(link["status"], "needs_sign_in", "{link}");
        codes.push(code.to_owned());
    }
    assert_ne!(codes[0], codes[1], "they are for different people");
    let left = place.run(&["logout", "hosted"]).await;
    assert_eq!(left.code, Some(2), "{left:?}");
    assert!(
        left.stderr
            .contains("the gateway is not signed in to `hosted`"),
        "{left:?}"
    );
    serving.end(Signal::TERM).await;
}

#[tokio::test]
async fn login_says_where_nobody_can_sign_in() {
    let place = Place::new(SERVERS);
    for (args, expect) in [
        (
            &["login", "hostet"][..],
            "unknown server `hostet`; did you mean `hosted`?",
        ),
        (&["login", "plain"], "the gateway cannot sign in to `plain`"),
        (
            &["login", "hosted", "--agent", "bob"],
            "unknown agent `bob`",
        ),
        (
            &["login", "hosted", "--json"],
            "--json needs a running gateway",
        ),
        (
            &["logout", "hosted", "--agent", "ann"],
            "ann is not signed in to `hosted`",
        ),
    ] {
        let said = place.run(args).await;
        assert_eq!(said.code, Some(2), "{said:?}");
        assert!(said.stderr.contains(expect), "{said:?}");
    }
}
