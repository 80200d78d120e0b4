//! The contract of every store. An implementation is held to it by one line of `contract!`.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use futures_util::FutureExt as _;
use jiff::{SignedDuration, Timestamp};
use tempfile::TempDir;
use uuid::Uuid;

use super::*;
use crate::{
    config::{ConfigEntry, EntryKey, EntrySection, Role, Secret, Terms, Window},
    money::Micros,
    names::{AgentId, ProfileName, SecretName, ServerName, TaskHash},
};

mod audit_size;
mod views;

macro_rules! contract {
    ($module:ident, $open:path) => {
        mod $module {
            #[tokio::test]
            async fn agents_are_kept() {
                super::agents_are_kept($open).await;
            }
            #[tokio::test]
            async fn keys_are_revoked_once() {
                super::keys_are_revoked_once($open).await;
            }
            #[tokio::test]
            async fn leases_of_all_chains_stay_below_the_limit() {
                super::leases_of_all_chains_stay_below_the_limit($open).await;
            }
            #[tokio::test]
            async fn a_reset_begins_a_fresh_account() {
                super::a_reset_begins_a_fresh_account($open).await;
            }
            #[tokio::test]
            async fn a_dead_chain_is_reconciled_any_number_of_times() {
                super::a_dead_chain_is_reconciled_any_number_of_times($open).await;
            }
            #[tokio::test]
            async fn compaction_changes_no_sum() {
                super::compaction_changes_no_sum($open).await;
            }
            #[tokio::test]
            async fn the_index_finds_what_matches() {
                super::the_index_finds_what_matches($open).await;
            }
            #[tokio::test]
            async fn the_index_forgets_what_somebody_has_seen_go() {
                super::the_index_forgets_what_somebody_has_seen_go($open).await;
            }
            #[tokio::test]
            async fn views_are_kept_until_they_end() {
                super::views::views_are_kept_until_they_end($open).await;
            }
            #[tokio::test]
            async fn keys_are_derived_for_each_purpose() {
                super::keys_are_derived_for_each_purpose($open).await;
            }
            #[tokio::test]
            async fn entries_have_versions() {
                super::entries_have_versions($open).await;
            }
            #[tokio::test]
            async fn secrets_are_kept_sealed() {
                super::secrets_are_kept_sealed($open).await;
            }
            #[tokio::test]
            async fn another_key_seals_and_opens_nothing() {
                super::another_key_seals_and_opens_nothing($open).await;
            }
            #[tokio::test]
            async fn the_last_listing_of_a_connection_is_kept() {
                super::the_last_listing_of_a_connection_is_kept($open).await;
            }
            #[tokio::test]
            async fn sessions_are_kept_until_they_end() {
                super::sessions_are_kept_until_they_end($open).await;
            }
            #[tokio::test]
            async fn sessions_end_with_their_agent_and_with_its_keys() {
                super::sessions_end_with_their_agent_and_with_its_keys($open).await;
            }
            #[tokio::test]
            async fn a_task_is_of_whom_it_was_given_to() {
                super::a_task_is_of_whom_it_was_given_to($open).await;
            }
            #[tokio::test]
            async fn own_tasks_are_found_among_many() {
                super::own_tasks_are_found_among_many($open).await;
            }
            #[tokio::test]
            async fn of_the_tasks_of_an_agent_the_last_are_kept() {
                super::of_the_tasks_of_an_agent_the_last_are_kept($open).await;
            }
            #[tokio::test]
            async fn grants_are_kept_by_owner() {
                super::grants_are_kept_by_owner($open).await;
            }
            #[tokio::test]
            async fn the_first_owner_of_a_grant_is_found() {
                super::the_first_owner_of_a_grant_is_found($open).await;
            }
            #[tokio::test]
            async fn notes_about_issuers_are_taken_once() {
                super::notes_about_issuers_are_taken_once($open).await;
            }
        }
    };
}

contract!(sqlite_keeps_the_contract, super::sqlite);

async fn sqlite() -> (Store, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(directory.path()).await.unwrap();
    (store, directory)
}

/// A grant towards `https://a/mcp`, refreshed at that second.
fn grant(owner: GrantOwner, issuer: &str, second: i64) -> StoredGrant {
    StoredGrant {
        key: GrantKey {
            resource: "https://a/mcp".to_owned(),
            issuer: issuer.to_owned(),
            owner,
        },
        state: GrantState::Active,
        scopes: "a b".to_owned(),
        granted: at(1),
        refreshed: at(second),
        expires: Some(at(second + 60)),
        sealed: vec![1, 2, 3],
    }
}

async fn grants_are_kept_by_owner(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let grants = &store.grants;
    let ada = GrantOwner::Agent(AgentId(Uuid::from_u128(1)));
    let of = |owner| grants.grants("https://a/mcp", owner);
    assert_eq!(of(ada).await.unwrap(), []);
    let (older, newer) = (grant(ada, "https://as", 2), grant(ada, "https://other", 3));
    let shared = grant(GrantOwner::Gateway, "https://as", 2);
    for grant in [&older, &newer, &shared] {
        grants.put_grant(grant).await.unwrap();
    }
    assert_eq!(of(ada).await.unwrap(), [newer.clone(), older.clone()]);
    assert_eq!(
        of(GrantOwner::Gateway).await.unwrap(),
        std::slice::from_ref(&shared)
    );
    assert_eq!(grants.grants("https://b", ada).await.unwrap(), []);
    let rejected = StoredGrant {
        state: GrantState::Rejected,
        expires: None,
        refreshed: at(9),
        ..older
    };
    grants.put_grant(&rejected).await.unwrap();
    assert_eq!(of(ada).await.unwrap(), [rejected.clone(), newer.clone()]);
    assert_eq!(grants.all_grants(Some(ada)).await.unwrap().len(), 2);
    assert_eq!(grants.all_grants(None).await.unwrap().len(), 3);
    assert!(grants.remove_grant(&rejected.key).await.unwrap());
    assert!(!grants.remove_grant(&rejected.key).await.unwrap());
    assert_eq!(of(ada).await.unwrap(), [newer]);
    let note = (GrantNote::Quirks, "a");
    grants.put_note(note, &[1], None, at(1)).await.unwrap();
    grants.remove_all_grants().await.unwrap();
    assert_eq!(grants.all_grants(None).await.unwrap(), []);
    assert_eq!(grants.note(note).await.unwrap(), None);
}

async fn the_first_owner_of_a_grant_is_found(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let grants = &store.grants;
    let agent = |number| GrantOwner::Agent(AgentId(Uuid::from_u128(number)));
    let check = async |issuer, expect: Option<GrantOwner>| {
        let first = grants.first_owner("https://a/mcp", issuer).await;
        assert_eq!(first.unwrap(), expect, "{issuer:?}");
    };
    check(None, None).await;
    let late = grant(agent(1), "https://other", 3);
    let early = StoredGrant {
        granted: at(0),
        ..grant(agent(2), "https://other", 2)
    };
    let rejected = StoredGrant {
        state: GrantState::Rejected,
        granted: at(0),
        ..grant(agent(3), "https://third", 2)
    };
    for grant in [&late, &early, &rejected] {
        grants.put_grant(grant).await.unwrap();
    }
    check(None, Some(agent(2))).await;
    check(Some("https://other/"), Some(agent(2))).await;
    check(Some("https://third"), None).await;
    let of_gateway = grant(GrantOwner::Gateway, "https://as/", 9);
    grants.put_grant(&of_gateway).await.unwrap();
    check(None, Some(GrantOwner::Gateway)).await;
    check(Some("https://as"), Some(GrantOwner::Gateway)).await;
    check(Some("https://other"), Some(agent(2))).await;
    let elsewhere = grants.first_owner("https://b/mcp", None).await;
    assert_eq!(elsewhere.unwrap(), None);
}

async fn notes_about_issuers_are_taken_once(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let grants = &store.grants;
    let sign_in = |key| (GrantNote::SignIn, key);
    grants
        .put_note(sign_in("a"), &[1], Some(at(9)), at(1))
        .await
        .unwrap();
    grants
        .put_note((GrantNote::Quirks, "a"), &[2], None, at(1))
        .await
        .unwrap();
    assert_eq!(grants.note(sign_in("a")).await.unwrap(), Some(vec![1]));
    assert_eq!(
        grants.take_note(sign_in("a"), at(8)).await.unwrap(),
        Some(vec![1])
    );
    assert_eq!(grants.take_note(sign_in("a"), at(8)).await.unwrap(), None);
    grants
        .put_note(sign_in("b"), &[3], Some(at(9)), at(1))
        .await
        .unwrap();
    assert_eq!(grants.take_note(sign_in("b"), at(9)).await.unwrap(), None);
    grants
        .put_note(sign_in("c"), &[4], Some(at(9)), at(1))
        .await
        .unwrap();
    grants
        .put_note(sign_in("d"), &[5], Some(at(99)), at(10))
        .await
        .unwrap();
    assert_eq!(
        grants.note(sign_in("c")).await.unwrap(),
        None,
        "its time has passed"
    );
    assert_eq!(
        grants.note((GrantNote::Quirks, "a")).await.unwrap(),
        Some(vec![2])
    );
}

async fn agents_are_kept(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let agents = &store.agents;
    let terms: Terms = serde_json::from_str(
        r#"{"budget": [{"limit": "2.50", "window": "day"}], "policy": {"mode": "all"}}"#,
    )
    .unwrap();
    let mut agent = StoredAgent {
        id: AgentId(Uuid::from_u128(1)),
        name: "zoe".to_owned(),
        team: Some("science".to_owned()),
        enabled: true,
        role: Role::Agent,
        profiles: Some(vec![ProfileName::parse("reading").unwrap()]),
        terms,
        created: at(1),
        changed: at(1),
    };
    agents.add(&agent).await.unwrap();
    let other = StoredAgent {
        id: AgentId(Uuid::from_u128(2)),
        name: "abe".to_owned(),
        team: None,
        profiles: None,
        terms: Terms::default(),
        ..agent.clone()
    };
    agents.add(&other).await.unwrap();
    assert_eq!(
        agents.agents().await.unwrap().rows,
        [other.clone(), agent.clone()]
    );

    let taken = StoredAgent {
        id: AgentId(Uuid::from_u128(3)),
        ..agent.clone()
    };
    let error = agents.add(&taken).await.unwrap_err();
    assert_eq!(error.to_string(), "an agent named `zoe` already exists");
    let stolen = StoredAgent {
        name: "abe".to_owned(),
        ..agent.clone()
    };
    let error = agents.update(&stolen, None).await.unwrap_err();
    assert_eq!(error.to_string(), "an agent named `abe` already exists");

    (agent.name, agent.enabled, agent.role) = ("zed".to_owned(), false, Role::Auditor);
    let known = agent.changed;
    let EntryWrite::Done(changed) = agents.update(&agent, Some(known)).await.unwrap() else {
        panic!("it was as expected");
    };
    assert!(changed > known);
    agent.changed = changed;
    let late = agents.update(&agent, Some(known)).await.unwrap();
    assert_eq!(late, EntryWrite::Conflict(changed));
    let read = agents.agent(agent.id).await.unwrap();
    assert_eq!(read, Some(agent.clone()));
    assert_eq!(agents.agent(AgentId::ANONYMOUS).await.unwrap(), None);
    let listed = agents.agents().await.unwrap();
    assert_eq!(listed.rows, [other, agent.clone()]);
    assert_eq!(listed.refused, []);

    store.keys.add(&key("k", 1)).await.unwrap();
    assert!(agents.remove(agent.id).await.unwrap());
    assert!(!agents.remove(agent.id).await.unwrap());
    assert!(!agents.update(&agent, None).await.unwrap().is_done());
    let left = store.keys.keys().await.unwrap();
    assert_eq!(left.rows, [], "its keys go with it");
}

async fn keys_are_revoked_once(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let keys = &store.keys;
    let mut one = key("one", 1);
    let two = StoredKey {
        expires: Some(at(100)),
        ..key("two", 2)
    };
    keys.add(&two).await.unwrap();
    keys.add(&one).await.unwrap();
    let listed = keys.keys().await.unwrap();
    assert_eq!(listed.rows, [one.clone(), two.clone()]);
    assert!(two.is_live(at(99)) && !two.is_live(at(100)));

    assert!(keys.revoke(&one.id, at(50)).await.unwrap());
    assert!(!keys.revoke(&one.id, at(60)).await.unwrap(), "only once");
    assert!(!keys.revoke(&KeyId::new("none"), at(60)).await.unwrap());
    keys.touch(&[(one.id.clone(), at(70)), (KeyId::new("none"), at(1))])
        .await
        .unwrap();
    keys.touch(&[(one.id.clone(), at(65))]).await.unwrap();
    (one.revoked, one.last_used) = (Some(at(50)), Some(at(70)));
    assert!(!one.is_live(at(0)));
    let listed = keys.keys().await.unwrap();
    assert_eq!(listed.rows, [one.clone(), two]);
    assert_eq!(listed.refused, []);
    let twice = keys.add(&one).await;
    assert!(twice.is_err(), "an id stands for one key");
}

async fn keys_are_derived_for_each_purpose(open: impl AsyncFn() -> (Store, TempDir)) {
    let ((store, directory), (other, _directory)) = (open().await, open().await);
    let again = Store::open(directory.path()).await.unwrap();
    assert_eq!(store.derive_key("a"), again.derive_key("a"));
    assert_ne!(store.derive_key("a"), store.derive_key("b"));
    assert_ne!(store.derive_key("a"), other.derive_key("a"));
}

/// Of writers that know one version, one succeeds.
async fn entries_have_versions(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _dir) = open().await;
    let entry = |document: &str| ConfigEntry {
        key: EntryKey::new(EntrySection::Servers, "docs"),
        document: document.to_owned(),
    };
    let at = Timestamp::from_second(1_800_000_000).unwrap();
    let first = store.entries.add(&entry("{}"), at).await.unwrap();
    let again = store.entries.add(&entry("{}"), at).await;
    assert!(
        matches!(again, Err(StoreError::EntryExists { .. })),
        "{again:?}"
    );
    let replace = async |document: &str, expected| {
        let entry = entry(document);
        store.entries.replace(&entry, expected, at).await.unwrap()
    };
    let EntryWrite::Done(second) = replace("{\"a\":1}", Some(first)).await else {
        panic!("it has that version");
    };
    assert!(second > first, "versions grow also when the clock stands");
    assert_eq!(
        replace("{\"a\":2}", Some(first)).await,
        EntryWrite::Conflict(second)
    );
    let listed = store.entries.entries().await.unwrap();
    assert_eq!(listed.rows.len(), 1);
    assert_eq!(listed.rows[0].entry, entry("{\"a\":1}"));
    assert_eq!(
        (listed.rows[0].created, listed.rows[0].changed),
        (first, second)
    );
    let key = entry("").key;
    let conflict = store.entries.remove(&key, Some(first)).await.unwrap();
    assert_eq!(conflict, EntryWrite::Conflict(second));
    let removed = store.entries.remove(&key, Some(second)).await.unwrap();
    assert_eq!(removed, EntryWrite::Done(second));
    assert_eq!(replace("{}", None).await, EntryWrite::Missing);
    assert_eq!(
        store.entries.remove(&key, None).await.unwrap(),
        EntryWrite::Missing
    );
}

async fn secrets_are_kept_sealed(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    assert!(store.opening_key("secrets").await.unwrap().is_none());
    let key = store.sealing_key("secrets").await.unwrap();
    let (a, b) = (secret_name("team/a.b-c_1"), secret_name("b"));
    let place = secret_place(&a);
    let sealed = key.seal(&place, b"hunter2").unwrap();
    let secrets = &store.secrets;
    secrets.set(&a, &sealed, at(3)).await.unwrap();
    secrets.set(&b, b"1", at(4)).await.unwrap();
    secrets.set(&b, b"2", at(5)).await.unwrap();
    let [first, second] = secrets.secrets().await.unwrap().try_into().unwrap();
    assert_eq!(
        (first.name, first.created, first.changed),
        (b.clone(), at(4), at(5))
    );
    assert_eq!((second.name, second.created), (a.clone(), at(3)));
    let kept = secrets.sealed(&a).await.unwrap().unwrap();
    let opening = store.opening_key("secrets").await.unwrap().unwrap();
    assert_eq!(opening.open(&place, &kept).unwrap(), b"hunter2");
    let other = store.sealing_key("grants").await.unwrap();
    assert!(other.open(&place, &kept).is_err());
    assert_eq!(secrets.sealed(&b).await.unwrap().unwrap(), b"2");
    assert!(secrets.remove(&b).await.unwrap());
    assert!(!secrets.remove(&b).await.unwrap());
    assert_eq!(secrets.sealed(&b).await.unwrap(), None);
}

async fn another_key_seals_and_opens_nothing(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let name = secret_name("a");
    let variable = |byte: &str| SecretKeyPlace::Variable(Secret::new(byte.repeat(32)));
    let with = |byte| store.clone().with_secret_key(&variable(byte)).unwrap();
    let (right, wrong) = (with("r"), with("w"));
    right.sealing_key("secrets").await.unwrap();
    store.secrets.set(&name, b"1", at(1)).await.unwrap();
    for store in [&wrong, &store] {
        let error = store.sealing_key("secrets").await.unwrap_err().to_string();
        assert!(
            error.contains("stood in the variable TOLLBRIDGE_SECRET_KEY"),
            "{error}"
        );
        assert!(error.contains("secret remove"), "{error}");
        assert!(store.opening_key("secrets").await.is_err());
        // Each purpose has a mark of its own.
        assert!(store.opening_key("grants").await.unwrap().is_none());
    }
    assert_ne!(right.derive_secret_key("a"), wrong.derive_secret_key("a"));
    assert_eq!(store.derive_secret_key("a"), store.derive_key("a"));
    // Once nothing is sealed with the key that was lost, another one will do.
    store.secrets.remove(&name).await.unwrap();
    wrong.sealing_key("secrets").await.unwrap();
    right.sealing_key("grants").await.unwrap();
    let grant = StoredGrant {
        key: GrantKey {
            resource: "https://a/mcp".to_owned(),
            issuer: "https://as".to_owned(),
            owner: GrantOwner::Gateway,
        },
        state: GrantState::Active,
        scopes: String::new(),
        granted: at(1),
        refreshed: at(1),
        expires: None,
        sealed: vec![1],
    };
    let note = (GrantNote::Registration, "a");
    store.grants.put_grant(&grant).await.unwrap();
    let put = store.grants.put_note(note, &[1], None, at(1));
    put.await.unwrap();
    let error = wrong.sealing_key("grants").await.unwrap_err().to_string();
    assert!(error.contains("`tollbridge logout --all`"), "{error}");
    assert!(store.grants.note(note).await.unwrap().is_some());
    store.grants.remove_grant(&grant.key).await.unwrap();
    right.sealing_key("grants").await.unwrap();
    assert!(store.grants.note(note).await.unwrap().is_some());
    wrong.sealing_key("grants").await.unwrap();
    assert_eq!(store.grants.note(note).await.unwrap(), None);
    let short = SecretKeyPlace::Variable(Secret::new("k".repeat(31)));
    let error = store
        .clone()
        .with_secret_key(&short)
        .unwrap_err()
        .to_string();
    assert!(error.contains("31 bytes"), "{error}");
}

#[test]
fn the_key_of_secrets_is_read_from_files_of_the_owner_alone() {
    use std::{fs, os::unix::fs::PermissionsExt as _};
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("key");
    let read = |content: &[u8], mode: u32| {
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        SecretKey::read(&SecretKeyPlace::File(path.clone()))
            .map(|key| key.unwrap().derive("a"))
            .map_err(|error| error.to_string())
    };
    let raw = [b'\n'; 32];
    assert_eq!(read(&raw, 0o600).unwrap(), key_file::derive_key(&raw, "a"));
    let text = "k".repeat(43);
    let derived = key_file::derive_key(text.as_bytes(), "a");
    assert_eq!(
        read(format!("{text}\n").as_bytes(), 0o440).unwrap(),
        derived
    );
    assert!(read(b"short\n", 0o600).unwrap_err().contains("5 bytes"));
    assert!(read(&raw, 0o604).unwrap_err().contains("mode 0604"));
    assert!(read(&[7; 4097], 0o600).unwrap_err().contains("4096"));
    fs::remove_file(&path).unwrap();
    let error = SecretKey::read(&SecretKeyPlace::Credential(path)).unwrap_err();
    assert!(
        error.to_string().contains("the systemd credential"),
        "{error}"
    );
}

fn secret_name(name: &str) -> SecretName {
    SecretName::parse(name).unwrap()
}

async fn the_last_listing_of_a_connection_is_kept(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let listings = &store.listings;
    let server = ServerName::parse("gh").unwrap();
    let listing = |connection: u8, second, body: &str| StoredListing {
        server: server.clone(),
        connection: [connection; 32],
        listed: at(second),
        body: body.to_owned(),
    };
    assert_eq!(listings.listing(&server, [1; 32]).await.unwrap(), None);
    listings.put(&listing(1, 5, "{}")).await.unwrap();
    listings.put(&listing(2, 8, "{}")).await.unwrap();
    let confirm = |connection: u8| listings.confirm(&server, [connection; 32], at(9));
    assert!(confirm(1).await.unwrap());
    assert!(!confirm(3).await.unwrap(), "of another nothing is kept");
    let found = listings.listing(&server, [1; 32]).await.unwrap();
    assert_eq!(found, Some(listing(1, 9, "{}")));
    let last = listing(1, 9, r#"{"tools":[]}"#);
    listings.put(&last).await.unwrap();
    let found = listings.listing(&server, [1; 32]).await.unwrap();
    assert_eq!(found, Some(last), "the later one of the two");
    listings.remove_before(at(9)).await.unwrap();
    assert_eq!(listings.listing(&server, [2; 32]).await.unwrap(), None);
    assert!(listings.listing(&server, [1; 32]).await.unwrap().is_some());
}

async fn sessions_are_kept_until_they_end(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let sessions = &store.sessions;
    let mut all: Vec<_> = (0..4).map(|n| session(n, 1)).collect();
    all.push(session(4, 2));
    sessions.put(&all).await.unwrap();
    let kept = async || {
        let mut kept = Vec::new();
        for (session, n) in all.iter().zip(0..) {
            if sessions.session(session.id).await.unwrap().is_some() {
                kept.push(n);
            }
        }
        kept
    };
    assert_eq!(kept().await, [0, 1, 2, 3, 4]);
    let changed = StoredSession {
        body: "[]".to_owned(),
        used: at(0),
        ..all[3].clone()
    };
    sessions.put(std::slice::from_ref(&changed)).await.unwrap();
    let found = sessions.session(changed.id).await.unwrap().unwrap();
    let expect = ("[]", all[3].used, all[3].agent);
    assert_eq!((&*found.body, found.used, found.agent), expect);

    let unknown = SessionHash::of("unknown");
    sessions
        .touch(&[(all[0].id, at(50)), (unknown, at(50))])
        .await
        .unwrap();
    assert_eq!(sessions.session(unknown).await.unwrap(), None);
    sessions.trim(at(2), 2).await.unwrap();
    assert_eq!(kept().await, [0, 3, 4], "1 is too old, 2 one too many");
    sessions.remove(&[all[0].id, unknown]).await.unwrap();
    assert_eq!(kept().await, [3, 4]);
}

async fn sessions_end_with_their_agent_and_with_its_keys(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let sessions = &store.sessions;
    let (one, two) = (session(1, 1), session(2, 2));
    sessions.put(&[one.clone(), two.clone()]).await.unwrap();
    let mut of_one = key("one", 1);
    of_one.agent = one.agent;
    store.keys.add(&of_one).await.unwrap();
    store.keys.revoke(&of_one.id, at(9)).await.unwrap();
    assert_eq!(sessions.session(one.id).await.unwrap(), None);
    assert!(sessions.session(two.id).await.unwrap().is_some());
    store.agents.remove(two.agent).await.unwrap();
    assert_eq!(sessions.session(two.id).await.unwrap(), None);
}

async fn a_task_is_of_whom_it_was_given_to(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let give =
        async |task: &StoredTask, same_id| store.tasks.claim(task, same_id, 9).await.unwrap();
    let owners = async |server: &str, id: &str| {
        let (server, id) = (ServerName::parse(server).unwrap(), [TaskHash::of(id)]);
        let mut owners = Vec::new();
        for agent in 1..4 {
            let whose = AgentId(Uuid::from_u128(agent));
            let own = store.tasks.owned_by(whose, &server, &id).await.unwrap();
            if own.contains(&id[0]) {
                owners.push(agent);
            }
        }
        owners
    };
    for (task, same_id) in [
        (task("gh", "t", 1, 1), TaskIdScope::Shared),
        (task("gh", "t", 2, 2), TaskIdScope::PerAgent),
        (task("db", "t", 3, 3), TaskIdScope::Shared),
        (task("gh", "u", 3, 4), TaskIdScope::Shared),
    ] {
        assert_eq!(give(&task, same_id).await, TaskClaim::Claimed(0));
    }
    assert_eq!(owners("gh", "t").await, [1, 2]);
    assert_eq!(owners("db", "t").await, [3]);
    assert_eq!(owners("gh", "v").await, [0; 0]);

    // Who is given what is another's takes it from nobody, and has not got it either.
    for agent in [3, 1, 3] {
        let given = give(&task("gh", "t", agent, 5), TaskIdScope::Shared).await;
        assert_eq!(given, TaskClaim::Contested);
        assert_eq!(owners("gh", "t").await, [0; 0]);
    }
    let gone = AgentId(Uuid::from_u128(3));
    store.agents.remove(gone).await.unwrap();
    assert_eq!(owners("gh", "u").await, [0; 0]);
}

async fn of_the_tasks_of_an_agent_the_last_are_kept(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let give = async |id: &str, agent, second| {
        let task = task("gh", id, agent, second);
        match store
            .tasks
            .claim(&task, TaskIdScope::Shared, 2)
            .await
            .unwrap()
        {
            TaskClaim::Claimed(forgotten) => forgotten,
            TaskClaim::Contested => panic!("nobody else has it"),
        }
    };
    assert_eq!(give("other", 2, 0).await, 0);
    assert_eq!(give("a", 1, 1).await, 0);
    assert_eq!(give("b", 1, 2).await, 0);
    assert_eq!(give("a", 1, 3).await, 0, "the same again is no other");
    assert_eq!(give("c", 1, 4).await, 1);
    for (id, agent, is_kept) in [
        ("a", 1, true),
        ("b", 1, false),
        ("c", 1, true),
        ("other", 2, true),
    ] {
        let known = task("gh", id, agent, 0);
        let found = store
            .tasks
            .owned_by(known.agent, &known.server, &[known.id])
            .await;
        assert_eq!(found.unwrap().contains(&known.id), is_kept, "{id}");
    }
}

/// However many are asked for at once: more than one query can take.
async fn own_tasks_are_found_among_many(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    for (id, agent) in [("0", 1), ("1500", 1), ("39999", 1), ("7", 2)] {
        let task = task("gh", id, agent, 1);
        store
            .tasks
            .claim(&task, TaskIdScope::Shared, 9)
            .await
            .unwrap();
    }
    let ids: Vec<_> = (0..40_000)
        .map(|id| TaskHash::of(&id.to_string()))
        .collect();
    let (agent, server) = (
        AgentId(Uuid::from_u128(1)),
        ServerName::parse("gh").unwrap(),
    );
    let own = store.tasks.owned_by(agent, &server, &ids).await.unwrap();
    assert_eq!(own, HashSet::from([ids[0], ids[1500], ids[39_999]]));
    let none = store.tasks.owned_by(agent, &server, &[]).await.unwrap();
    assert!(none.is_empty());
}

/// A task of the agent `agent` that was given at `second`.
fn task(server: &str, id: &str, agent: u128, second: i64) -> StoredTask {
    StoredTask {
        server: ServerName::parse(server).unwrap(),
        id: TaskHash::of(id),
        agent: AgentId(Uuid::from_u128(agent)),
        claimed: at(second),
    }
}

/// A session of the agent `agent` that was last used at second `n`.
fn session(n: u8, agent: u128) -> StoredSession {
    StoredSession {
        id: SessionHash([n; 32]),
        agent: AgentId(Uuid::from_u128(agent)),
        used: at(n.into()),
        body: "{}".to_owned(),
    }
}

async fn leases_of_all_chains_stay_below_the_limit(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let leases = &store.leases;
    let a = leases.acquire(&ask("a", 100, 60, None)).await.unwrap();
    assert_eq!(a, granted(60, 0));
    let b = leases.acquire(&ask("b", 100, 41, None)).await.unwrap();
    assert_eq!(b, refused(0, (0, 60)));
    let b = leases.acquire(&ask("b", 100, 40, None)).await.unwrap();
    assert_eq!(b, granted(40, 0));

    write(&store, "a", (10, 10), true).await;
    let b = leases.acquire(&ask("b", 100, 50, Some(own(40, 40)))).await;
    assert_eq!(b.unwrap(), granted(90, 40));
    let lower = leases.acquire(&ask("b", 99, 1, Some(own(90, 40)))).await;
    assert_eq!(lower.unwrap(), refused(40, (10, 0)));
    let usage = leases.usage(&fund(), "a").await.unwrap();
    let elsewhere = elsewhere((40, 50));
    let (epoch, spent) = (0, Micros::new(10));
    let expect = AccountUsage {
        epoch,
        spent,
        elsewhere,
    };
    assert_eq!(usage, expect);

    write(&store, "b", (70, 70), false).await;
    let again = leases.acquire(&ask("b", 100, 20, None)).await.unwrap();
    assert_eq!(again, granted(90, 70), "a closed lease is taken up again");
    assert_eq!(leases.chains_with_open_leases().await.unwrap(), ["a", "b"]);
    leases.close_chain("b", &[]).await.unwrap();
    assert_eq!(leases.chains_with_open_leases().await.unwrap(), ["a"]);
    let c = leases.acquire(&ask("c", 100, 21, None)).await.unwrap();
    assert_eq!(c, refused(0, (80, 0)));
}

async fn a_reset_begins_a_fresh_account(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let leases = &store.leases;
    let first = leases.acquire(&ask("a", 10, 10, None)).await.unwrap();
    assert_eq!(first, granted(10, 0));
    assert_eq!(leases.resets_after(0).await.unwrap(), []);
    assert_eq!(leases.reset(&fund(), "paid", at(1)).await.unwrap(), 1);
    assert_eq!(leases.reset(&fund(), "paid", at(2)).await.unwrap(), 2);
    let resets = leases.resets_after(0).await.unwrap();
    let found: Vec<_> = resets.iter().map(|r| (&*r.fund, r.epoch)).collect();
    assert_eq!(found, [("team:t/total", 1), ("team:t/total", 2)]);
    assert_eq!(
        leases.resets_after(resets[0].seq).await.unwrap(),
        resets[1..]
    );

    let stale = leases
        .acquire(&ask("a", 10, 4, Some(own(10, 10))))
        .await
        .unwrap();
    let fresh = LeaseReply::Granted {
        epoch: 2,
        granted: Micros::new(4),
        spent: Micros::ZERO,
    };
    assert_eq!(stale, fresh, "what was known of the old account is void");
}

async fn a_dead_chain_is_reconciled_any_number_of_times(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let leases = &store.leases;
    let other = Fund::for_window(at(0), &BudgetSubject::team("other"), Window::Day);
    leases.acquire(&ask("dead", 100, 50, None)).await.unwrap();
    let of_other = LeaseRequest {
        fund: other.clone(),
        ..ask("dead", 100, 7, None)
    };
    leases.acquire(&of_other).await.unwrap();
    leases.acquire(&ask("alive", 100, 20, None)).await.unwrap();
    let sums = BTreeMap::from([
        ("team:t/total#0".to_owned(), Micros::new(30)),
        ("team:never/total#0".to_owned(), Micros::new(9)),
    ]);
    for _ in 0..3 {
        assert_eq!(leases.reconcile("dead", &sums).await.unwrap(), 2);
        assert_eq!(leases.chains_with_open_leases().await.unwrap(), ["alive"]);
        let usage = leases.usage(&fund(), "me").await.unwrap();
        assert_eq!(usage.elsewhere, elsewhere((30, 20)));
        let usage = leases.usage(&other, "me").await.unwrap();
        assert_eq!(usage.elsewhere, elsewhere((0, 0)), "nothing in the audit");
    }
    assert_eq!(leases.reconcile("unknown", &sums).await.unwrap(), 0);
}

async fn compaction_changes_no_sum(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let leases = &store.leases;
    let day = Fund::for_window(at(0), &BudgetSubject::team("t"), Window::Day);
    for chain in 0..40 {
        let chain = format!("chain {chain}");
        leases.acquire(&ask(&chain, 1_000, 10, None)).await.unwrap();
        write(&store, &chain, (5, 5), false).await;
        let of_day = LeaseRequest {
            fund: day.clone(),
            ..ask(&chain, 1_000, 10, None)
        };
        leases.acquire(&of_day).await.unwrap();
        leases.close_chain(&chain, &[]).await.unwrap();
    }
    leases
        .acquire(&ask("alive", 1_000, 10, None))
        .await
        .unwrap();
    let much_later = at(0) + SignedDuration::from_hours(24 * 365);
    for now in [at(0), much_later, much_later] {
        leases.compact(now).await.unwrap();
        let usage = leases.usage(&fund(), "me").await.unwrap();
        assert_eq!(usage.elsewhere.spent, Micros::new(200));
        assert_eq!(leases.chains_with_open_leases().await.unwrap(), ["alive"]);
    }
    let sums = BTreeMap::from([("team:t/total#0".to_owned(), Micros::new(5))]);
    let again = leases.reconcile("chain 0", &sums).await.unwrap();
    assert_eq!(again, 0, "what was added up is not added again");
    assert_eq!(leases.reconcile("", &sums).await.unwrap(), 0);
    let usage = leases.usage(&fund(), "me").await.unwrap();
    assert_eq!(usage.elsewhere.spent, Micros::new(200));
}

async fn the_index_finds_what_matches(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let index = &store.audit;
    index
        .put(&[segment(0, 0..3), segment(1, 0..2)])
        .await
        .unwrap();
    // What is known already does no harm.
    index
        .put(&[segment(1, 1..3), segment(0, 0..1)])
        .await
        .unwrap();
    let elsewhere = IndexedSegment {
        chain: "d".to_owned(),
        end: 40,
        ..IndexedSegment::default()
    };
    index.put(&[elsewhere]).await.unwrap();
    let mark = |chain: &str, segment, end| SegmentMark {
        chain: chain.to_owned(),
        segment,
        end,
        hash: None,
    };
    let marks = index.marks().await.unwrap();
    assert_eq!(
        marks,
        [mark("c", 0, 300), mark("c", 1, 300), mark("d", 0, 40)]
    );

    // The hash goes with the end that it is of.
    for (end, hash, known) in [(40, "a", None), (50, "b", Some("b")), (45, "c", Some("b"))] {
        let put = IndexedSegment {
            chain: "d".to_owned(),
            end,
            hash: Some(hash.to_owned()),
            ..IndexedSegment::default()
        };
        index.put(&[put]).await.unwrap();
        let mark = index.marks().await.unwrap().pop().unwrap();
        assert_eq!(mark.hash.as_deref(), known, "{end}");
    }

    check_find(&store, &IndexFilter::default(), &[5, 4, 3, 2, 1, 0]).await;
    let check = |change: fn(&mut IndexFilter), expect: &'static [u64]| {
        let mut filter = IndexFilter::default();
        change(&mut filter);
        let store = &store;
        async move { check_find(store, &filter, expect).await }
    };
    check(|f| f.agent = Some("a1".to_owned()), &[5, 3, 1]).await;
    check(|f| f.agent = Some("id of a1".to_owned()), &[5, 3, 1]).await;
    check(|f| f.server = Some("s0".to_owned()), &[3, 0]).await;
    check(|f| f.tool = Some("t \"q\"".to_owned()), &[5, 4, 3, 2, 1, 0]).await;
    check(|f| f.tool = Some("mcp_s2_t".to_owned()), &[5, 2]).await;
    check(|f| f.tool = Some("mcp_s2".to_owned()), &[]).await;
    check(|f| f.decision = Some("refused".to_owned()), &[]).await;
    check(|f| (f.since, f.until) = (Some(at(2)), Some(at(4))), &[3, 2]).await;
    check(|f| f.since = Some(at(7)), &[]).await;
    check(|f| f.until = Some(at(0)), &[]).await;
    check(|f| f.invocation = Some(Uuid::from_u128(4)), &[4]).await;
    check(|f| f.invocation = Some(Uuid::from_u128(9)), &[]).await;
    let both = |f: &mut IndexFilter| {
        f.agent = Some("a0".to_owned());
        f.server = Some("s1".to_owned());
    };
    check(both, &[4]).await;

    index.remove_segment("c", 1).await.unwrap();
    check_find(&store, &IndexFilter::default(), &[2, 1, 0]).await;
    let marks = index.marks().await.unwrap();
    assert_eq!(marks[0], mark("c", 0, 300));
    assert_eq!((marks.len(), marks[1].end), (2, 50));
}

async fn the_index_forgets_what_somebody_has_seen_go(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _directory) = open().await;
    let index = &store.audit;
    index
        .put(&[segment(0, 0..3), segment(1, 0..3)])
        .await
        .unwrap();
    let mark = |segment, end| SegmentMark {
        chain: "c".to_owned(),
        segment,
        end,
        hash: None,
    };
    let check = async |expect: [u64; 2]| {
        let marks = index.marks().await.unwrap();
        assert_eq!(marks, [mark(0, expect[0]), mark(1, expect[1])]);
    };
    check([300, 300]).await;
    let cut = async |end, length, agrees| {
        let mut is_asked = false;
        let confirm_truncated = async {
            is_asked = true;
            agrees
        };
        let mark = mark(0, end);
        let cut = index
            .truncate_segment(&mark, length, confirm_truncated.boxed())
            .await;
        (is_asked, cut.unwrap())
    };
    assert_eq!(cut(299, 0, true).await, (false, false), "it knows more");
    assert_eq!(cut(300, 0, false).await, (true, false));
    check([300, 300]).await;
    assert_eq!(cut(300, 150, true).await, (true, true));
    check([150, 300]).await;
    assert_eq!(cut(300, 150, true).await, (false, false), "it was others");
    check_find(&store, &IndexFilter::default(), &[5, 4, 3, 1, 0]).await;
    index.put(&[segment(0, 2..3)]).await.unwrap();
    check([300, 300]).await;
    assert_eq!(cut(300, 0, true).await, (true, true));
    let marks = index.marks().await.unwrap();
    assert_eq!(marks, [mark(1, 300)]);
}

/// Looks for all, and for the latest two.
async fn check_find(store: &Store, filter: &IndexFilter, expect: &[u64]) {
    let expect: Vec<_> = expect.iter().map(|number| place(*number)).collect();
    for count in [9, 2, 0] {
        let found = store.audit.find(filter, count).await.unwrap();
        let expect = &expect[..count.min(expect.len())];
        assert_eq!(found, expect, "{filter:?}");
    }
}

/// Some of the three records of a segment.
fn segment(number: u64, records: std::ops::Range<u64>) -> IndexedSegment {
    IndexedSegment {
        chain: "c".to_owned(),
        segment: number,
        end: records.end * 100,
        hash: None,
        records: records.map(|at| indexed(3 * number + at)).collect(),
    }
}

fn place(number: u64) -> IndexedPlace {
    IndexedPlace {
        chain: "c".to_owned(),
        segment: number / 3,
        offset: number % 3 * 100,
    }
}

fn indexed(number: u64) -> IndexedRecord {
    let server = format!("s{}", number % 3);
    IndexedRecord {
        offset: number % 3 * 100,
        ts: at(number.try_into().unwrap()),
        invocation: Uuid::from_u128(number.into()),
        agent_id: format!("id of a{}", number % 2),
        agent_name: format!("a{}", number % 2),
        exposed: Some(format!("mcp_{server}_t")),
        server: Some(server),
        tool: Some("t \"q\"".to_owned()),
        decision: "allowed".to_owned(),
        team: None,
        workspace: None,
        price: Micros::new(5),
        took: Duration::from_millis(3),
    }
}

fn key(id: &str, created: i64) -> StoredKey {
    StoredKey {
        id: KeyId::new(id),
        agent: AgentId(Uuid::from_u128(1)),
        hash: KeyHash::of(id),
        prefix: "tbk_abcd".to_owned(),
        created: at(created),
        expires: None,
        revoked: None,
        last_used: None,
    }
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn fund() -> Fund {
    Fund::for_window(at(0), &BudgetSubject::team("t"), Window::Total)
}

fn ask(chain: &str, limit: u64, price: u64, own: Option<CallerBreakerState>) -> LeaseRequest {
    LeaseRequest {
        fund: fund(),
        chain: chain.into(),
        limit: Micros::new(limit),
        own,
        price: Micros::new(price),
        slice: LeaseRequest::SLICE_MIN,
    }
}

fn own(granted: u64, spent: u64) -> CallerBreakerState {
    CallerBreakerState {
        epoch: 0,
        granted: Micros::new(granted),
        spent: Micros::new(spent),
        held: Micros::ZERO,
    }
}

fn granted(granted: u64, spent: u64) -> LeaseReply {
    LeaseReply::Granted {
        epoch: 0,
        granted: Micros::new(granted),
        spent: Micros::new(spent),
    }
}

fn refused(spent: u64, others: (u64, u64)) -> LeaseReply {
    LeaseReply::Refused {
        epoch: 0,
        spent: Micros::new(spent),
        elsewhere: elsewhere(others),
    }
}

fn elsewhere((spent, unspent): (u64, u64)) -> OtherUsage {
    OtherUsage {
        spent: Micros::new(spent),
        unspent: Micros::new(unspent),
    }
}

async fn write(store: &Store, chain: &str, (granted, spent): (u64, u64), open: bool) {
    let write = LeaseUpdate {
        account: Account::of(fund().as_str(), 0),
        granted: Micros::new(granted),
        spent: Micros::new(spent),
        open,
    };
    store.leases.write(chain, &[write]).await.unwrap();
}
