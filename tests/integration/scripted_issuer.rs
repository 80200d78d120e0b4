//! The scripted issuer does what the tests of OAuth trust it to do.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, jwk::JwkSet};
use serde_json::{Map, Value, json};
use url::{Url, form_urlencoded};

use crate::support::issuer::{Behaviour, Issuer, Registration};

/// The verifier and the challenge of appendix B of RFC 7636.
const VERIFIER: &str = "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
const CHALLENGE: &str = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM";
const REDIRECT: &str = "http://127.0.0.1:1/callback";

#[tokio::test]
async fn a_code_is_redeemed_once_and_refresh_tokens_rotate() {
    let issuer = Issuer::start(Behaviour::default()).await;
    let registered = register(&issuer).await;
    let client = registered["client_id"].as_str().unwrap();
    let location = authorize(&issuer, client, &[("resource", "https://mcp.test/mcp")]).await;
    assert_eq!(param(&location, "iss"), Some(issuer.url()));
    let code = param(&location, "code").unwrap();
    let form = [
        ("grant_type", "authorization_code"),
        ("client_id", client),
        ("code", code.as_str()),
        ("redirect_uri", REDIRECT),
        ("code_verifier", VERIFIER),
        ("resource", "https://mcp.test/mcp"),
    ];
    let (status, tokens) = token(&issuer, &form).await;
    assert_eq!(status, 200, "{tokens}");
    let claims = verified(&issuer, &tokens["access_token"], "https://mcp.test/mcp").await;
    assert_eq!(
        (&claims["sub"], &claims["client_id"]),
        (&json!("ada"), &json!(client))
    );
    let first = tokens["refresh_token"].as_str().unwrap();
    let (status, next) = refresh(&issuer, client, first).await;
    assert_eq!(status, 200, "{next}");
    let (status, refused) = refresh(&issuer, client, first).await;
    assert_eq!(
        (status, &refused["error"]),
        (400, &json!("invalid_grant")),
        "it was used before"
    );
    let second = next["refresh_token"].as_str().unwrap();
    let (status, _) = refresh(&issuer, client, second).await;
    assert_eq!(status, 400, "the reuse revoked the whole grant");
    let (status, _) = token(&issuer, &form).await;
    assert_eq!(status, 400, "a code is good once");
    assert_eq!(issuer.count("/token"), 5);
}

#[tokio::test]
async fn behaviours_are_those_of_products() {
    for behaviour in [
        Behaviour::entra(),
        Behaviour::okta(),
        Behaviour::keycloak(),
        Behaviour::google(),
        Behaviour::auth0(),
    ] {
        let issuer = Issuer::start(behaviour.clone()).await;
        issuer.add_client("app", None, &[REDIRECT]);
        let found = get(&format!(
            "{}/.well-known/openid-configuration",
            issuer.url().trim_end_matches('/')
        ))
        .await;
        assert_eq!(found["issuer"], json!(issuer.url()));
        let registers = found.get("registration_endpoint").is_some();
        assert_eq!(registers, behaviour.registration != Registration::None);
        let location = authorize(&issuer, "app", &[("resource", "https://mcp.test/mcp")]).await;
        let is_entra = !behaviour.advertises_pkce;
        assert_eq!(param(&location, "code").is_none(), is_entra, "{location}");
        if is_entra {
            assert!(
                param(&location, "error_description")
                    .unwrap()
                    .starts_with("AADSTS9010010")
            );
        }
    }
}

#[tokio::test]
async fn keys_rotate() {
    let issuer = Issuer::start(Behaviour::keycloak()).await;
    let old = json!(issuer.access_token(json!({"aud": "me"})));
    issuer.rotate_keys();
    let new = json!(issuer.access_token(json!({"aud": "me"})));
    for token in [&old, &new] {
        let claims = verified(&issuer, token, "me").await;
        assert_eq!(claims["preferred_username"], "ada");
    }
    issuer.forget_old_keys();
    let keys = get(&issuer.endpoint("jwks")).await;
    assert_eq!(keys["keys"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn clients_authenticate_and_exchange() {
    let issuer = Issuer::start(Behaviour::default()).await;
    issuer.add_client("robot", Some("s3cret"), &[]);
    let form = [("grant_type", "client_credentials"), ("client_id", "robot")];
    let (status, _) = token(&issuer, &form).await;
    assert_eq!(status, 401, "its secret is missing");
    let (status, tokens) = token(
        &issuer,
        &[&form[..], &[("client_secret", "s3cret")]].concat(),
    )
    .await;
    assert_eq!(status, 200, "{tokens}");
    let subject = issuer.access_token(json!({"sub": "grace"}));
    let form = [
        (
            "grant_type",
            "urn:ietf:params:oauth:grant-type:token-exchange",
        ),
        ("client_id", "robot"),
        ("client_secret", "s3cret"),
        ("subject_token", subject.as_str()),
        ("resource", "https://mcp.test/other"),
    ];
    let (_, tokens) = token(&issuer, &form).await;
    let claims = verified(&issuer, &tokens["access_token"], "https://mcp.test/other").await;
    assert_eq!(claims["sub"], "grace");
    issuer.change(|it| it.down = true);
    assert!(
        send(Request::get(issuer.endpoint("jwks")), "")
            .await
            .is_none()
    );
}

async fn register(issuer: &Issuer) -> Value {
    let body = json!({
        "redirect_uris": [REDIRECT],
        "token_endpoint_auth_method": "none",
    });
    let request = Request::post(issuer.endpoint("register"));
    let request = request.header("content-type", "application/json");
    let response = send(request, body.to_string()).await.unwrap();
    assert_eq!(response.status(), 201);
    serde_json::from_slice(response.body()).unwrap()
}

async fn authorize(issuer: &Issuer, client: &str, more: &[(&str, &str)]) -> Url {
    let mut url = Url::parse(&issuer.endpoint("authorize")).unwrap();
    url.query_pairs_mut().extend_pairs([
        ("response_type", "code"),
        ("client_id", client),
        ("redirect_uri", REDIRECT),
        ("code_challenge", CHALLENGE),
        ("code_challenge_method", "S256"),
        ("scope", "openid"),
        ("state", "xyz"),
    ]);
    url.query_pairs_mut().extend_pairs(more);
    let response = send(Request::get(url.as_str()), "").await.unwrap();
    assert_eq!(response.status(), 302, "{:?}", response.body());
    let location = response.headers()["location"].to_str().unwrap();
    let location = Url::parse(location).unwrap();
    assert_eq!(param(&location, "state").as_deref(), Some("xyz"));
    location
}

fn param(url: &Url, name: &str) -> Option<String> {
    let found = url.query_pairs().find(|(given, _)| given == name);
    found.map(|(_, value)| value.into_owned())
}

async fn refresh(issuer: &Issuer, client: &str, refresh_token: &str) -> (u16, Value) {
    let form = [
        ("grant_type", "refresh_token"),
        ("client_id", client),
        ("refresh_token", refresh_token),
    ];
    token(issuer, &form).await
}

async fn token(issuer: &Issuer, form: &[(&str, &str)]) -> (u16, Value) {
    let body = form_urlencoded::Serializer::new(String::new())
        .extend_pairs(form)
        .finish();
    let request = Request::post(issuer.endpoint("token"));
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let response = send(request, body).await.unwrap();
    let body = serde_json::from_slice(response.body()).unwrap();
    (response.status().as_u16(), body)
}

/// The claims of a token, checked as a resource server checks it.
async fn verified(issuer: &Issuer, token: &Value, audience: &str) -> Map<String, Value> {
    let token = token.as_str().unwrap();
    let header = jsonwebtoken::decode_header(token).unwrap();
    let keys: JwkSet = serde_json::from_value(get(&issuer.endpoint("jwks")).await).unwrap();
    let key = keys.find(header.kid.as_deref().unwrap()).unwrap();
    let mut validation = Validation::new(header.alg);
    assert!(matches!(header.alg, Algorithm::ES256 | Algorithm::RS256));
    validation.set_audience(&[audience]);
    validation.set_issuer(&[issuer.url()]);
    let key = DecodingKey::from_jwk(key).unwrap();
    jsonwebtoken::decode(token, &key, &validation)
        .unwrap()
        .claims
}

async fn get(url: &str) -> Value {
    let response = send(Request::get(url), "").await.unwrap();
    assert_eq!(response.status(), 200, "{url}");
    serde_json::from_slice(response.body()).unwrap()
}

async fn send(request: http::request::Builder, body: impl Into<Bytes>) -> Option<Response<Bytes>> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let response = client
        .request(request.body(Full::new(body.into())).unwrap())
        .await
        .ok()?;
    let (parts, body) = response.into_parts();
    Some(Response::from_parts(
        parts,
        body.collect().await.unwrap().to_bytes(),
    ))
}
