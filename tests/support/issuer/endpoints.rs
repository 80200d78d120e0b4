//! What a scripted issuer answers.

use std::{io, time::Duration};

use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD, Engine};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use jsonwebtoken::{Algorithm, Validation};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    Behaviour, Client, Code, Document, Grant, Issuer, Received, RefreshToken, Registration,
    ResourceParameter, ScopeClaim, merge, object, params, random,
};

/// What is wrong with a request: a status, an error of OAuth, and a description.
type Refusal = (u16, &'static str, String);

const EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
const ACCESS_TOKEN: &str = "urn:ietf:params:oauth:token-type:access_token";

pub(super) async fn handle(
    issuer: Issuer,
    request: Request<Incoming>,
) -> io::Result<Response<Full<Bytes>>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
    let body = String::from_utf8_lossy(&body).into_owned();
    let mut given = params(parts.uri.query().unwrap_or_default());
    let is = |kind: &str| {
        let found = parts.headers.get(header::CONTENT_TYPE);
        found.is_some_and(|found| found.to_str().unwrap().starts_with(kind))
    };
    if is("application/x-www-form-urlencoded") {
        given.extend(params(&body));
    }
    let authorization = parts.headers.get(header::AUTHORIZATION);
    let mut received = Received {
        method: parts.method.to_string(),
        path: parts.uri.path().to_owned(),
        params: given,
        authorization: authorization.map(|it| it.to_str().unwrap().to_owned()),
        body,
        status: 0,
    };
    let response = answer(&issuer, &parts.method, &received).await;
    received.status = response.status().as_u16();
    let is_token = received.path == path_of(&issuer, "token");
    issuer.state().requests.push(received);
    let behaviour = issuer.behaviour();
    if behaviour.down || (is_token && behaviour.loses_token_answers) {
        return Err(io::Error::other("the connection breaks"));
    }
    Ok(response)
}

async fn answer(issuer: &Issuer, method: &Method, received: &Received) -> Response<Full<Bytes>> {
    let behaviour = issuer.behaviour();
    if is_metadata(&behaviour, &received.path) {
        return reply(behaviour.metadata_status, &issuer.metadata());
    }
    let base = path_of(issuer, "");
    let endpoint = received.path.strip_prefix(base.as_str());
    let outcome = match (method, endpoint) {
        (&Method::GET, Some("jwks")) => {
            tokio::time::sleep(Duration::from_millis(behaviour.jwks_delay_ms)).await;
            return reply(behaviour.jwks_status, &jwks(issuer));
        }
        (&Method::GET | &Method::POST, Some("authorize")) => return authorize(issuer, received),
        (&Method::POST, Some("token")) => {
            tokio::time::sleep(Duration::from_millis(behaviour.token_delay_ms)).await;
            token(issuer, received)
        }
        (&Method::POST, Some("register")) => register(issuer, received),
        (&Method::POST, Some("revoke")) => Ok(revoke(issuer, received)),
        (&Method::POST, Some("introspect")) => Ok(introspect(issuer, received)),
        (&Method::GET, Some("userinfo")) => userinfo(issuer, received),
        _ => Err((404, "not_found", received.path.clone())),
    };
    match outcome {
        Ok(body) if endpoint == Some("register") => reply(behaviour.registration_status, &body),
        Ok(body) => reply(200, &body),
        Err((status, error, description)) => reply(
            status,
            &json!({"error": error, "error_description": description}),
        ),
    }
}

fn path_of(issuer: &Issuer, endpoint: &str) -> String {
    format!(
        "{}/{endpoint}",
        issuer.behaviour().path.trim_end_matches('/')
    )
}

fn is_metadata(behaviour: &Behaviour, path: &str) -> bool {
    let issuer = behaviour.path.trim_end_matches('/');
    behaviour.documents.iter().any(|document| {
        path == match document {
            Document::OauthAppended => format!("{issuer}/.well-known/oauth-authorization-server"),
            Document::OauthInserted => format!("/.well-known/oauth-authorization-server{issuer}"),
            Document::OidcAppended => format!("{issuer}/.well-known/openid-configuration"),
            Document::OidcInserted => format!("/.well-known/openid-configuration{issuer}"),
        }
    })
}

fn jwks(issuer: &Issuer) -> Value {
    let state = issuer.state();
    let keys: Vec<Value> = state.keys.iter().map(super::TestKey::public).collect();
    json!({"keys": keys})
}

fn reply(status: u16, body: &Value) -> Response<Full<Bytes>> {
    Response::builder()
        .status(status)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::CACHE_CONTROL, "no-store")
        .body(Full::from(body.to_string()))
        .unwrap()
}

/// Whoever comes is logged in and consents. What cannot be told to the client is a page.
fn authorize(issuer: &Issuer, received: &Received) -> Response<Full<Bytes>> {
    let behaviour = issuer.behaviour();
    let client = received.param("client_id").unwrap_or_default();
    let Some(client) = find_client(issuer, &behaviour, client) else {
        return reply(400, &json!({"error": "invalid_client"}));
    };
    let given = received.param("redirect_uri");
    let Some(redirect) = redirect_of(&client, given) else {
        return reply(400, &json!({"error": "invalid_redirect_uri"}));
    };
    let mut target = Url::parse(&redirect).unwrap();
    {
        let mut query = target.query_pairs_mut();
        match code(issuer, &behaviour, &client, received) {
            Ok(code) => query.append_pair("code", &code),
            Err((_, error, description)) => query
                .append_pair("error", error)
                .append_pair("error_description", &description),
        };
        if let Some(state) = received.param("state") {
            query.append_pair("state", state);
        }
        let iss = behaviour.false_iss.clone();
        if let Some(iss) = iss.or(behaviour.iss_parameter.then(|| issuer.url())) {
            query.append_pair("iss", &iss);
        }
    }
    Response::builder()
        .status(StatusCode::FOUND)
        .header(header::LOCATION, target.as_str())
        .body(Full::default())
        .unwrap()
}

/// A client by its id, which may be the URL of its metadata.
fn find_client(issuer: &Issuer, behaviour: &Behaviour, id: &str) -> Option<Client> {
    let known = issuer.state().clients.get(id).cloned();
    let by_document = behaviour.client_id_documents && Url::parse(id).is_ok();
    known.or(by_document.then(|| Client {
        id: id.to_owned(),
        secret: None,
        key: None,
        redirect_uris: Vec::new(),
    }))
}

/// Where to go back to: a registered URI, or any of a client whose metadata is not fetched here. The port of a
/// loopback URI does not matter (RFC 8252, section 7.3).
fn redirect_of(client: &Client, given: Option<&str>) -> Option<String> {
    let without_port = |uri: &str| {
        let mut url = Url::parse(uri).ok()?;
        if matches!(url.host_str(), Some("127.0.0.1" | "localhost" | "[::1]")) {
            url.set_port(None).ok()?;
        }
        Some(url)
    };
    match (given, client.redirect_uris.as_slice()) {
        (Some(given), []) => Some(given.to_owned()),
        (None, [only]) => Some(only.clone()),
        (Some(given), known) => {
            let wanted = without_port(given)?;
            let found = known
                .iter()
                .any(|uri| without_port(uri).as_ref() == Some(&wanted));
            found.then(|| given.to_owned())
        }
        (None, _) => None,
    }
}

/// A code for what is asked for.
fn code(
    issuer: &Issuer,
    behaviour: &Behaviour,
    client: &Client,
    received: &Received,
) -> Result<String, Refusal> {
    if let Some(error) = behaviour.authorize_error {
        return Err((400, error, "as the test wants".to_owned()));
    }
    if received.param("response_type") != Some("code") {
        return Err((400, "unsupported_response_type", String::new()));
    }
    let challenge = received.param("code_challenge").map(str::to_owned);
    if challenge.is_some() && received.param("code_challenge_method") != Some("S256") {
        return Err((400, "invalid_request", "only S256".to_owned()));
    }
    if behaviour.requires_pkce && challenge.is_none() {
        return Err((400, "invalid_request", "PKCE is required".to_owned()));
    }
    let grant = Grant {
        id: random(),
        client: client.id.clone(),
        resources: resources(behaviour, received)?,
        scopes: scopes(behaviour, received)?,
        subject: behaviour.user.clone(),
    };
    let code = random();
    let entry = Code {
        client: client.id.clone(),
        redirect_uri: received.param("redirect_uri").map(str::to_owned),
        challenge,
        grant,
        nonce: received.param("nonce").map(str::to_owned),
        used: false,
    };
    issuer.state().codes.insert(code.clone(), entry);
    Ok(code)
}

fn resources(behaviour: &Behaviour, received: &Received) -> Result<Vec<String>, Refusal> {
    let given = received.all("resource");
    match behaviour.resource {
        ResourceParameter::Audience => Ok(given),
        ResourceParameter::Ignored => Ok(Vec::new()),
        ResourceParameter::Refused if given.is_empty() => Ok(Vec::new()),
        ResourceParameter::Refused => Err((
            400,
            "invalid_target",
            "AADSTS9010010: The resource parameter provided in the request doesn't match with the \
             requested scopes."
                .to_owned(),
        )),
    }
}

fn scopes(behaviour: &Behaviour, received: &Received) -> Result<Vec<String>, Refusal> {
    let given = received.param("scope").unwrap_or_default();
    let given: Vec<String> = given.split_whitespace().map(str::to_owned).collect();
    let unknown = given.iter().find(|scope| !behaviour.scopes.contains(scope));
    match unknown {
        Some(unknown) if behaviour.refuses_unknown_scopes => {
            Err((400, "invalid_scope", unknown.clone()))
        }
        _ => Ok(given),
    }
}

fn token(issuer: &Issuer, received: &Received) -> Result<Value, Refusal> {
    let behaviour = issuer.behaviour();
    if let Some((status, error)) = behaviour.token_error {
        return Err((status, error, "as the test wants".to_owned()));
    }
    let client = authenticate(issuer, &behaviour, received)?;
    match received.param("grant_type") {
        Some("authorization_code") => redeem(issuer, &behaviour, &client, received),
        Some("refresh_token") => refresh(issuer, &behaviour, &client, received),
        Some("client_credentials") => {
            let is_confidential = client.secret.is_some() || client.key.is_some();
            if !is_confidential {
                return Err((400, "unauthorized_client", client.id));
            }
            let subject = object(json!({"sub": client.id}));
            let grant = grant_for(&behaviour, &client, received, subject)?;
            Ok(tokens(issuer, &behaviour, &grant))
        }
        Some(EXCHANGE) => exchange(issuer, &behaviour, &client, received),
        Some(JWT_BEARER) => {
            let assertion = received.param("assertion").unwrap_or_default();
            let claims = unverified(assertion)?;
            let subject = object(json!({"sub": claims.get("sub")}));
            let grant = grant_for(&behaviour, &client, received, subject)?;
            Ok(tokens(issuer, &behaviour, &grant))
        }
        other => Err((400, "unsupported_grant_type", format!("{other:?}"))),
    }
}

fn grant_for(
    behaviour: &Behaviour,
    client: &Client,
    received: &Received,
    subject: Map<String, Value>,
) -> Result<Grant, Refusal> {
    Ok(Grant {
        id: random(),
        client: client.id.clone(),
        resources: resources(behaviour, received)?,
        scopes: scopes(behaviour, received)?,
        subject,
    })
}

/// The client, by a secret in the header or the body, by an assertion, or by its id alone.
fn authenticate(
    issuer: &Issuer,
    behaviour: &Behaviour,
    received: &Received,
) -> Result<Client, Refusal> {
    let wrong = |why: &str| (401, "invalid_client", why.to_owned());
    if let Some(assertion) = received.param("client_assertion") {
        return by_assertion(issuer, assertion);
    }
    let mut id = received.param("client_id").unwrap_or_default().to_owned();
    let mut secret = received.param("client_secret").map(str::to_owned);
    let header = received.authorization.as_deref();
    if let Some(basic) = header.and_then(|it| it.strip_prefix("Basic ")) {
        if secret.is_some() {
            return Err(wrong("two ways at once"));
        }
        let basic = BASE64_STANDARD.decode(basic);
        let basic = String::from_utf8(basic.map_err(|_| wrong("no base64"))?).unwrap();
        let (user, password) = basic.split_once(':').ok_or_else(|| wrong("no colon"))?;
        // Both are encoded as in a form (RFC 6749, section 2.3.1).
        let decoded = |text: &str| params(&format!("x={text}"))[0].1.clone();
        id = decoded(user);
        secret = Some(decoded(password));
    }
    let client =
        find_client(issuer, behaviour, &id).ok_or_else(|| wrong(&format!("unknown: {id}")))?;
    if client.key.is_some() || client.secret != secret {
        return Err(wrong("not authenticated"));
    }
    Ok(client)
}

fn by_assertion(issuer: &Issuer, assertion: &str) -> Result<Client, Refusal> {
    let wrong = |why: String| (401, "invalid_client", why);
    let claims = unverified(assertion)?;
    let id = claims
        .get("sub")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let client = issuer.state().clients.get(id).cloned();
    let client = client.ok_or_else(|| wrong(format!("unknown: {id}")))?;
    let key = client.key.clone();
    let key = key.ok_or_else(|| wrong("it has no key".to_owned()))?;
    let header = jsonwebtoken::decode_header(assertion);
    let header = header.map_err(|error| wrong(error.to_string()))?;
    let mut validation = Validation::new(header.alg);
    if !matches!(header.alg, Algorithm::ES256 | Algorithm::RS256) {
        return Err(wrong(format!("{:?}", header.alg)));
    }
    validation.set_audience(&[issuer.url(), issuer.endpoint("token")]);
    validation.set_issuer(&[id]);
    validation.set_required_spec_claims(&["exp", "aud", "iss", "sub"]);
    let decoded = jsonwebtoken::decode::<Map<String, Value>>(assertion, &key, &validation);
    decoded.map_err(|error| wrong(error.to_string()))?;
    let jti = claims.get("jti").and_then(Value::as_str);
    let jti = jti.ok_or_else(|| wrong("it has no jti".to_owned()))?;
    let mut state = issuer.state();
    if state.assertions.iter().any(|used| used == jti) {
        return Err(wrong("it was used before".to_owned()));
    }
    state.assertions.push(jti.to_owned());
    drop(state);
    Ok(client)
}

fn redeem(
    issuer: &Issuer,
    behaviour: &Behaviour,
    client: &Client,
    received: &Received,
) -> Result<Value, Refusal> {
    let wrong = |why: &str| (400, "invalid_grant", why.to_owned());
    let (grant, nonce) = {
        let mut state = issuer.state();
        let code = received.param("code").unwrap_or_default();
        let code = state.codes.get_mut(code);
        let code = code.ok_or_else(|| wrong("unknown code"))?;
        if code.used {
            let id = code.grant.id.clone();
            state.refresh_tokens.retain(|_, it| it.grant.id != id);
            return Err(wrong("the code was used before"));
        }
        code.used = true;
        if code.client != client.id {
            return Err(wrong("the code of another client"));
        }
        if code.redirect_uri.as_deref() != received.param("redirect_uri") {
            return Err(wrong("another redirect_uri"));
        }
        let verifier = received.param("code_verifier");
        if code.challenge != verifier.map(challenge_of) {
            return Err(wrong("the code verifier does not match"));
        }
        (code.grant.clone(), code.nonce.clone())
    };
    // It may be narrowed, and Entra wants it in neither request.
    let asked = resources(behaviour, received)?;
    if asked.iter().any(|it| !grant.resources.contains(it)) {
        return Err((400, "invalid_target", "not authorized for it".to_owned()));
    }
    let mut answer = tokens(issuer, behaviour, &grant);
    let wants_refresh = behaviour
        .refresh_scope
        .is_none_or(|needed| grant.scopes.iter().any(|scope| scope == needed));
    if wants_refresh {
        answer["refresh_token"] = refresh_token(issuer, &grant).into();
    }
    if grant.scopes.iter().any(|scope| scope == "openid") {
        answer["id_token"] = id_token(issuer, behaviour, &grant, nonce.as_deref()).into();
    }
    Ok(answer)
}

fn challenge_of(verifier: &str) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(Sha256::digest(verifier.as_bytes()))
}

fn refresh(
    issuer: &Issuer,
    behaviour: &Behaviour,
    client: &Client,
    received: &Received,
) -> Result<Value, Refusal> {
    let wrong = |why: &str| (400, "invalid_grant", why.to_owned());
    let grant = {
        let mut state = issuer.state();
        let token = received.param("refresh_token").unwrap_or_default();
        let entry = state.refresh_tokens.get_mut(token);
        let entry = entry.ok_or_else(|| wrong("unknown refresh token"))?;
        let grant = entry.grant.clone();
        if grant.client != client.id {
            return Err(wrong("the refresh token of another client"));
        }
        if entry.used && !behaviour.rotates_with_grace {
            if behaviour.reuse_revokes {
                state.refresh_tokens.retain(|_, it| it.grant.id != grant.id);
            }
            return Err(wrong("the refresh token was used before"));
        }
        entry.used = behaviour.rotates;
        grant
    };
    resources(behaviour, received)?;
    let mut answer = tokens(issuer, behaviour, &grant);
    if behaviour.rotates {
        answer["refresh_token"] = refresh_token(issuer, &grant).into();
    }
    Ok(answer)
}

/// RFC 8693, and what asks for an ID-JAG.
fn exchange(
    issuer: &Issuer,
    behaviour: &Behaviour,
    client: &Client,
    received: &Received,
) -> Result<Value, Refusal> {
    let claims = unverified(received.param("subject_token").unwrap_or_default())?;
    let mut subject = object(json!({"sub": claims.get("sub")}));
    if received.param("actor_token").is_some() {
        subject.insert("act".to_owned(), json!({"sub": client.id}));
    }
    if received.param("requested_token_type") == Some(ID_JAG) {
        let mut all = issuer.times(300);
        all.extend(subject);
        let more = json!({
            "aud": received.param("audience"),
            "resource": received.param("resource"),
            "scope": received.param("scope"),
            "client_id": client.id,
            "jti": random(),
        });
        merge(&mut all, object(more));
        return Ok(json!({
            "issued_token_type": ID_JAG,
            "access_token": issuer.sign("oauth-id-jag+jwt", &all),
            "token_type": "N_A",
            "expires_in": 300,
        }));
    }
    let mut grant = grant_for(behaviour, client, received, subject)?;
    grant.resources.extend(received.all("audience"));
    let mut answer = tokens(issuer, behaviour, &grant);
    answer["issued_token_type"] = ACCESS_TOKEN.into();
    Ok(answer)
}

/// The claims of a JWT of whoever signed it.
fn unverified(token: &str) -> Result<Map<String, Value>, Refusal> {
    let claims = token.split('.').nth(1).unwrap_or_default();
    let claims = BASE64_URL_SAFE_NO_PAD.decode(claims).ok();
    let claims = claims.and_then(|claims| serde_json::from_slice(&claims).ok());
    claims.ok_or_else(|| (400, "invalid_grant", "no JWT".to_owned()))
}

/// An access token for `grant`, as the token endpoint answers it.
fn tokens(issuer: &Issuer, behaviour: &Behaviour, grant: &Grant) -> Value {
    let mut claims = issuer.times(behaviour.lifetime);
    claims.extend(grant.subject.clone());
    let audience = match grant.resources.as_slice() {
        [] => json!(behaviour.audience.as_ref().unwrap_or(&grant.client)),
        [one] => json!(one),
        several => json!(several),
    };
    claims.insert("aud".to_owned(), audience);
    claims.insert(behaviour.client_claim.to_owned(), json!(grant.client));
    claims.insert("jti".to_owned(), random().into());
    let scope = grant.scopes.join(" ");
    let scopes: Vec<&str> = if behaviour.short_scopes {
        let of_apis = grant.scopes.iter().filter_map(|it| it.rsplit_once('/'));
        of_apis.map(|(_, name)| name).collect()
    } else {
        grant.scopes.iter().map(String::as_str).collect()
    };
    match behaviour.scope_claim {
        ScopeClaim::Scope => claims.insert("scope".to_owned(), json!(scopes.join(" "))),
        ScopeClaim::Scp => claims.insert("scp".to_owned(), json!(scopes.join(" "))),
        ScopeClaim::ScpList => claims.insert("scp".to_owned(), json!(scopes)),
    };
    let token = if behaviour.opaque {
        random()
    } else {
        issuer.sign(behaviour.token_type, &claims)
    };
    let mut state = issuer.state();
    state.access_tokens.insert(token.clone(), claims);
    json!({
        "access_token": token,
        "token_type": "Bearer",
        "expires_in": behaviour.lifetime,
        "scope": scope,
    })
}

fn refresh_token(issuer: &Issuer, grant: &Grant) -> String {
    let token = random();
    let entry = RefreshToken {
        grant: grant.clone(),
        used: false,
    };
    issuer.state().refresh_tokens.insert(token.clone(), entry);
    token
}

fn id_token(issuer: &Issuer, behaviour: &Behaviour, grant: &Grant, nonce: Option<&str>) -> String {
    let mut claims = issuer.times(behaviour.lifetime);
    claims.extend(grant.subject.clone());
    let more = json!({"aud": grant.client, "nonce": nonce});
    merge(&mut claims, object(more));
    issuer.sign("JWT", &claims)
}

/// RFC 7591.
fn register(issuer: &Issuer, received: &Received) -> Result<Value, Refusal> {
    let behaviour = issuer.behaviour();
    match behaviour.registration {
        Registration::None => return Err((404, "not_found", String::new())),
        Registration::NeedsToken if received.authorization.is_none() => {
            return Err((401, "invalid_token", "a token is needed".to_owned()));
        }
        Registration::NeedsToken | Registration::Open => {}
    }
    if behaviour.registration_status >= 400 {
        return Err((
            behaviour.registration_status,
            "invalid_client_metadata",
            "as the test wants".to_owned(),
        ));
    }
    let body = serde_json::from_str(&received.body);
    let mut metadata: Map<String, Value> =
        body.map_err(|error| (400, "invalid_client_metadata", error.to_string()))?;
    let uris = metadata.get("redirect_uris").and_then(Value::as_array);
    let uris = uris.ok_or_else(|| (400, "invalid_redirect_uri", String::new()))?;
    let uris: Vec<&str> = uris.iter().filter_map(Value::as_str).collect();
    let method = metadata.get("token_endpoint_auth_method");
    let is_public = method.and_then(Value::as_str) == Some("none");
    let id = format!("client-{}", random());
    let secret = (!is_public).then(random);
    issuer.add_client(&id, secret.as_deref(), &uris);
    metadata.insert("client_id".to_owned(), id.into());
    if let Some(secret) = secret {
        metadata.insert("client_secret".to_owned(), secret.into());
        let lifetime = behaviour.secret_lifetime;
        let now = jiff::Timestamp::now().as_second();
        let expires = if lifetime == 0 { 0 } else { now + lifetime };
        metadata.insert("client_secret_expires_at".to_owned(), expires.into());
    }
    Ok(Value::Object(metadata))
}

fn revoke(issuer: &Issuer, received: &Received) -> Value {
    let token = received.param("token").unwrap_or_default();
    let mut state = issuer.state();
    state.access_tokens.remove(token);
    if let Some(revoked) = state.refresh_tokens.remove(token) {
        let id = revoked.grant.id;
        state.refresh_tokens.retain(|_, it| it.grant.id != id);
    }
    json!({})
}

fn introspect(issuer: &Issuer, received: &Received) -> Value {
    let token = received.param("token").unwrap_or_default();
    let Some(mut claims) = issuer.issued(token) else {
        return json!({"active": false});
    };
    claims.insert("active".to_owned(), true.into());
    Value::Object(claims)
}

fn userinfo(issuer: &Issuer, received: &Received) -> Result<Value, Refusal> {
    let token = received.authorization.as_deref();
    let token = token.and_then(|it| it.strip_prefix("Bearer "));
    let claims = token.and_then(|token| issuer.issued(token));
    match claims {
        Some(_) => Ok(Value::Object(issuer.behaviour().user)),
        None => Err((401, "invalid_token", String::new())),
    }
}
