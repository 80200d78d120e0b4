//! The example with everything in it starts.

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use rustix::process::Signal;
use rustls::pki_types::CertificateDer;
use serde_json::Value;

use crate::{
    binary::{Place, bounded},
    commented_example::{VARIABLES, uncommented},
    listener::{Offer, connector, write_certificate},
};

/// Servers of the example that no machine has, and what a status says of each.
const OUT_OF_REACH: [&str; 8] = [
    "github", "library", "docs", "tickets", "reports", "files", "drive", "search",
];

/// It serves what a machine without anything else can, and says of each other server why it does not.
#[tokio::test]
async fn the_example_starts_with_everything_in_it() {
    // Names that nobody has, and a path with no program in it: nothing leaves the machine.
    let config = uncommented().replace(".example.com/", ".invalid/");
    // `/status` is asked for below where the clients connect.
    let config = config.replace("\nadmin_listen =", "\nx-admin_listen =");
    let place = Place::new(&config);
    let root = write_certificate(&place.file(""), "made");
    std::fs::rename(place.file("made.pem"), place.file("cert.pem")).unwrap();
    std::fs::rename(place.file("made.key"), place.file("key.pem")).unwrap();
    std::fs::copy(place.file("cert.pem"), place.file("clients.pem")).unwrap();
    std::fs::write(place.file(".env"), "").unwrap();
    place.write_private("secret.key", &"k".repeat(32));
    let mut variables = VARIABLES.to_vec();
    variables.push(("PATH", "/no/programs"));
    variables.push(("TOLLBRIDGE_AGENTS__RESEARCHER__ROLE", "auditor"));
    let serving = place.serve_with(&variables).await;
    assert!(serving.url.starts_with("https://"), "{}", serving.url);
    let url = format!("{}/status", serving.url);
    let status = bounded(async {
        loop {
            let status = get(&url, &root).await;
            let servers = status["servers"].as_array().unwrap();
            let state = |name: &str| servers.iter().find(|it| it["name"] == name).unwrap();
            let is_known = |name: &&str| state(name)["reason"].is_string();
            if OUT_OF_REACH.iter().all(is_known) && state("toolbox")["state"] == "connected" {
                return status;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    });
    let status = status.await;
    assert_eq!(
        status["servers"].as_array().unwrap().len(),
        OUT_OF_REACH.len() + 1
    );
    let ended = serving.end(Signal::TERM).await;
    assert_eq!(ended.code, Some(0), "{ended:?}");
}

/// What a client that trusts `root` alone is told there, with the key of the example's agent.
async fn get(url: &str, root: &CertificateDer<'static>) -> Value {
    let client = Client::builder(TokioExecutor::new()).build(connector(root, Offer::Http1));
    let key = VARIABLES.iter().find(|(name, _)| *name == "RESEARCHER_KEY");
    let request = Request::get(url).header("x-api-key", key.unwrap().1);
    let request = request.body(Full::<Bytes>::default()).unwrap();
    let response = bounded(client.request(request)).await.unwrap();
    assert_eq!(response.status(), 200);
    let body = bounded(response.into_body().collect()).await.unwrap();
    serde_json::from_slice(&body.to_bytes()).unwrap()
}
