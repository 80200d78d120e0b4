use std::convert::Infallible;

use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet};

use super::*;

/// A server whose answer depends on the path: `/to/URL` leads to URL, `/large/N` has N bytes, `/slow` never ends,
/// all else tells the header `Authorization`.
async fn server() -> (Url, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let serving =
                http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(answer));
            connections.spawn(serving);
        }
    });
    (url.parse().unwrap(), serving)
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path();
    let mut response = Response::new(Full::default());
    if let Some(target) = path.strip_prefix("/to/") {
        *response.status_mut() = StatusCode::FOUND;
        let target = HeaderValue::try_from(target).unwrap();
        response.headers_mut().insert(LOCATION, target);
    } else if let Some(size) = path.strip_prefix("/large/") {
        *response.body_mut() = Full::from(vec![b'a'; size.parse().unwrap()]);
    } else if path == "/slow" {
        std::future::pending::<()>().await;
    } else {
        let shown = request.headers().get(AUTHORIZATION).cloned();
        *response.body_mut() = Full::from(shown.map_or(Vec::new(), |it| it.as_bytes().to_vec()));
    }
    Ok(response)
}

fn client(written: &Url, change: impl FnOnce(&mut Egress)) -> EgressClient {
    let mut config = Egress::default();
    change(&mut config);
    EgressClient::new(&config, [written]).unwrap()
}

#[tokio::test]
async fn a_response_is_bounded_in_size_and_time() {
    let (url, _serving) = server().await;
    let client = client(&url, |config| {
        config.response = 100;
        config.timeout = Duration::from_millis(200);
    });
    let get = async |path: &str| client.get(&url.join(path).unwrap()).await;
    assert_eq!(get("large/100").await.unwrap().body().len(), 100);
    let failure = get("large/101").await.unwrap_err().to_string();
    assert!(
        failure.ends_with("more than 100 bytes (egress.response)"),
        "{failure}"
    );
    let failure = get("slow").await.unwrap_err().to_string();
    assert!(
        failure.ends_with("no response within 200ms (egress.timeout)"),
        "{failure}"
    );
}

#[tokio::test]
async fn redirects_are_judged_as_the_first_url_and_take_no_credentials_along() {
    let (url, _serving) = server().await;
    let (other, _other_serving) = server().await;
    let client = client(&url, |_| {});
    let get = async |path: &str| {
        let mut request = Request::new(Vec::new());
        *request.uri_mut() = to_uri(&url.join(path).unwrap()).unwrap();
        let secret = HeaderValue::from_static("Bearer s");
        request.headers_mut().insert(AUTHORIZATION, secret);
        client.fetch(request).await
    };
    assert_eq!(get("to//").await.unwrap().body(), "Bearer s");
    assert_eq!(get(&format!("to/{other}")).await.unwrap().body(), "");
    let failure = get("to/http://169.254.169.254/latest").await.unwrap_err();
    assert!(matches!(failure, EgressError::Refused { .. }), "{failure}");
    let failure = get("to/http://localhost:1/").await.unwrap_err().to_string();
    assert!(failure.contains("without TLS"), "{failure}");
    let round = format!("to/{}to/{0}to/{0}to/{0}to/", url.path());
    let failure = get(&round).await.unwrap_err();
    assert!(matches!(failure, EgressError::Redirects(_)), "{failure}");
}

#[tokio::test]
async fn a_name_that_leads_to_a_private_address_is_refused_after_it_is_resolved() {
    let (url, _serving) = server().await;
    let mut named = url.clone();
    named.set_host(Some("localhost")).unwrap();
    let mut https = named.clone();
    https.set_scheme("https").unwrap();
    let client = client(&url, |_| {});
    let failure = client.get(&https).await.unwrap_err().to_string();
    assert!(failure.contains("localhost is at "), "{failure}");
    let listed = EgressClient::new(
        &Egress {
            allow: vec!["localhost".parse().unwrap()],
            ..Egress::default()
        },
        [],
    );
    listed.unwrap().get(&named).await.unwrap();
}
