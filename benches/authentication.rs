//! What it costs to find out who sends a request: by a key, and by a token that was verified before.
//!
//! `cargo bench --bench authentication`; it fails where a token costs more than a key by over two microseconds.
#![allow(
    clippy::print_stdout,
    clippy::expect_used,
    missing_docs,
    reason = "a benchmark prints, and fails by panicking"
)]

use std::{hint::black_box, process::ExitCode, sync::Arc};

use futures_util::{FutureExt, future::BoxFuture};
use http::{HeaderMap, HeaderValue, header::AUTHORIZATION};
use rustix::time::{ClockId, clock_gettime};
use tollbridge::{
    auth::{
        AgentDirectory, Credentials, MERGED_ROUTE, ResourceUrl, TokenValidity,
        token::{Scopes, TokenRejection, TokenSubject, TokenVerifier, VerifiedToken},
    },
    clock,
    config::{self, ConfigFormat, ConfigText, Environment},
};

/// How much more a token may cost than a key, microseconds.
const TOKEN_US_MAX: f64 = 2.0;

/// Bytes of a token, as issuers make them.
const TOKEN_BYTES: usize = 1200;

/// Requests of a round, and rounds, of which the quietest counts.
const REQUESTS: u32 = 100_000;
const ROUNDS: usize = 9;

const KEY: &str = "4f6c1d0a9b8e7f3c2d5a6b1e0f9c8d7a";

/// Finds every token good.
#[derive(Debug)]
struct Trusting;

impl TokenVerifier for Trusting {
    fn verify<'t>(
        &'t self,
        _: &'t str,
        _: &'t str,
    ) -> BoxFuture<'t, Option<Result<VerifiedToken, TokenRejection>>> {
        let claims = serde_json::json!({"iss": "https://idp.example.com", "sub": "ada"});
        let verified = VerifiedToken {
            subject: TokenSubject::Claims(claims.as_object().expect("it is one").clone()),
            scopes: Scopes::everything(),
            client: None,
            grant: None,
            expires: clock::now() + jiff::SignedDuration::from_hours(1),
            validity: TokenValidity::default(),
        };
        std::future::ready(Some(Ok(verified))).boxed()
    }
}

fn main() -> ExitCode {
    let text = format!(
        "[governance]\nauth = ['keys', 'oauth']\n[agents.ann]\nkeys = ['{KEY}']\n[[agents.match]]\nagent = 'ann'\n"
    );
    let source = ConfigText {
        name: "bench.toml".to_owned(),
        format: ConfigFormat::Toml,
        text,
        directory: "/".into(),
    };
    let loaded = config::parse([source], &Environment::default()).expect("it is a config");
    let config = loaded.config;
    let agents = config.agents.values().cloned();
    let directory = AgentDirectory::new(config.governance.auth, agents);
    directory.set_agent_matches(config.agent_matches.clone());
    directory.set_token_verifiers(vec![Arc::new(Trusting)]);
    let token = format!("e30.{}.x", "a".repeat(TOKEN_BYTES));
    let (of_key, of_token) = (headers(KEY), headers(&token));
    let (mut key, mut token) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..ROUNDS {
        key = key.min(cost(&directory, &of_key));
        token = token.min(cost(&directory, &of_token));
    }
    println!("key {key:.2} us, token {token:.2} us of CPU a request");
    if token - key <= TOKEN_US_MAX {
        ExitCode::SUCCESS
    } else {
        println!("a token costs more than a key by over {TOKEN_US_MAX} us");
        ExitCode::FAILURE
    }
}

fn headers(secret: &str) -> HeaderMap {
    let value = HeaderValue::try_from(format!("Bearer {secret}")).expect("it is plain");
    HeaderMap::from_iter([(AUTHORIZATION, value)])
}

/// What one request costs, microseconds.
fn cost(directory: &AgentDirectory, headers: &HeaderMap) -> f64 {
    let start = cpu_us();
    for _ in 0..REQUESTS {
        let shown = Credentials {
            headers,
            certificate: None,
            resource: ResourceUrl {
                scheme: "",
                base: "https://mcp.example.com",
                path: MERGED_ROUTE,
            },
        };
        let found = directory.authenticate(shown).now_or_never();
        black_box(
            found
                .expect("nothing is waited for")
                .expect("they are good"),
        );
    }
    (cpu_us() - start) / f64::from(REQUESTS)
}

/// CPU time of this process, microseconds.
fn cpu_us() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    let time = std::time::Duration::try_from(time).expect("no clock of a process is negative");
    time.as_secs_f64() * 1e6
}
