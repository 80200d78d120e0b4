//! The list of the keys of the built-in authorization server, each with the test that shows its effect.

use crate::{governing::SIGNING_IN, login, sign_in};

const TESTS: &[(&str, fn())] = &[
    (
        "oauth.access_token_lifetime",
        sign_in::tokens_last_as_long_as_the_config_says,
    ),
    (
        "oauth.client_id_metadata_documents",
        sign_in::documents_of_clients_can_be_turned_off,
    ),
    (
        "oauth.login.client_id",
        login::somebody_logs_in_at_the_issuer,
    ),
    (
        "oauth.login.client_secret",
        login::somebody_logs_in_at_the_issuer,
    ),
    ("oauth.login.issuer", login::somebody_logs_in_at_the_issuer),
    ("oauth.login.scopes", login::somebody_logs_in_at_the_issuer),
    (
        "oauth.refresh_grace",
        sign_in::a_refresh_token_may_be_used_again_for_a_while,
    ),
    (
        "oauth.refresh_token_lifetime",
        sign_in::tokens_last_as_long_as_the_config_says,
    ),
    (
        "oauth.registration",
        sign_in::clients_register_where_the_config_lets_them,
    ),
    (
        "oauth.registration_lifetime",
        sign_in::so_many_clients_register,
    ),
    ("oauth.registrations_max", sign_in::so_many_clients_register),
];

#[test]
fn every_key_has_a_test() {
    let tested: Vec<&str> = TESTS.iter().map(|(key, _)| *key).collect();
    assert_eq!(tested, SIGNING_IN);
}
