//! What is particular to the file: who may read it, what is in its way, who else opens it.

use super::*;
use crate::{
    names::AgentId,
    store::{
        AgentStore, AuditIndex, IndexedRecord, IndexedSegment, KeyHash, KeyId, KeyStore, RowFault,
        Store, StoredAgent, StoredKey, UsageDimension, UsageQuery,
    },
};

#[tokio::test]
async fn the_file_is_ours_alone() {
    let parent = tempfile::tempdir().unwrap();
    let data_dir = parent.path().join("a/b");
    let store = Store::open(&data_dir).await.unwrap();
    store
        .agents
        .remove(crate::names::AgentId::ANONYMOUS)
        .await
        .unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&data_dir), 0o700);
    for entry in fs::read_dir(&data_dir).unwrap() {
        let path = entry.unwrap().path();
        assert_eq!(mode(&path), 0o600, "{}", path.display());
    }
    store.close().await;
    let file = data_dir.join(FILE_NAME);
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    Store::open(&data_dir).await.unwrap();
    assert_eq!(mode(&file), 0o600, "and stays so");
}

#[tokio::test]
async fn leases_are_synced_and_the_rest_need_not_be() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let check = async |pool: &SqlitePool, synchronous: i64| {
        let ask = |pragma: &'static str| sqlx::query_scalar(pragma).fetch_one(pool);
        let found: i64 = ask("PRAGMA synchronous").await.unwrap();
        assert_eq!(found, synchronous);
        let mode = sqlx::query_scalar::<_, String>("PRAGMA journal_mode");
        assert_eq!(mode.fetch_one(pool).await.unwrap(), "wal");
    };
    let (normal, full) = (1, 2);
    check(&store.durable, full).await;
    check(&store.relaxed, normal).await;
}

#[tokio::test]
async fn many_may_open_an_empty_directory_at_once() {
    let parent = tempfile::tempdir().unwrap();
    let data_dir = parent.path().join("data");
    let opening = (0..8).map(|_| Store::open(&data_dir));
    for opened in futures_util::future::join_all(opening).await {
        opened.unwrap();
    }
}

#[tokio::test]
async fn what_is_in_the_way_is_said() {
    check(
        "a file",
        |dir| fs::write(dir, "x").unwrap(),
        "is a file; move it, or",
    )
    .await;
    let deep = |dir: &Path| {
        fs::write(dir.with_file_name("file"), "x").unwrap();
        std::os::unix::fs::symlink(dir.with_file_name("file").join("below"), dir).unwrap();
    };
    check("a path through a file", deep, "cannot be used: ").await;
    let directory = |dir: &Path| fs::create_dir_all(dir.join(FILE_NAME)).unwrap();
    check(
        "a directory in place of the file",
        directory,
        "cannot be used: ",
    )
    .await;
    let garbage = |dir: &Path| {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join(FILE_NAME), "no database at all, ".repeat(100)).unwrap();
    };
    check("garbage", garbage, "is corrupt or not a database").await;
}

#[tokio::test]
async fn databases_of_others_and_of_the_future_are_left_alone() {
    let check = async |sql: &'static str, words: &str| {
        let parent = tempfile::tempdir().unwrap();
        let options = SqliteConnectOptions::new()
            .filename(parent.path().join(FILE_NAME))
            .create_if_missing(true);
        let other = pool_options().connect_with(options).await.unwrap();
        sqlx::raw_sql(sql).execute(&other).await.unwrap();
        other.close().await;
        let error = Store::open(parent.path()).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    check("CREATE TABLE t (a)", "belongs to another program").await;
    check("PRAGMA application_id = 7", "belongs to another program").await;
    let newer = "PRAGMA application_id = 0x546F6C6C; PRAGMA user_version = 99";
    check(
        newer,
        "by a newer version of Tollbridge (schema 99, this version supports",
    )
    .await;
}

#[tokio::test]
async fn a_file_that_cannot_be_written_says_so() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let write = sqlx::raw_sql("DELETE FROM keys").execute(&store.reader);
    let error = store.map_error("removing keys", write.await.unwrap_err());
    let words = error.to_string();
    assert!(matches!(error, StoreError::ReadOnly { .. }), "{words}");
    assert!(
        words.contains("cannot be written (removing keys); make"),
        "{words}"
    );
}

async fn check(row: &str, prepare: impl Fn(&Path), words: &str) {
    let parent = tempfile::tempdir().unwrap();
    let data_dir = parent.path().join("data");
    prepare(&data_dir);
    let error = Store::open(&data_dir).await.unwrap_err().to_string();
    assert!(error.contains(words), "{row}: {error}");
}

/// An agent and a key of it, as the command line makes them.
async fn written(store: &Sqlite) -> (StoredAgent, StoredKey) {
    let created = Timestamp::from_millisecond(7).unwrap();
    let agent = StoredAgent {
        id: AgentId::from_name("zoe"),
        name: "zoe".to_owned(),
        team: None,
        enabled: true,
        role: crate::config::Role::WorkspaceAdmin,
        profiles: None,
        terms: crate::config::Terms::default(),
        created,
        changed: created,
    };
    let key = StoredKey {
        id: KeyId::new("key_1"),
        agent: agent.id,
        hash: KeyHash::of("tbk_1"),
        prefix: "tbk_1".to_owned(),
        created,
        expires: Some(created),
        revoked: None,
        last_used: None,
    };
    AgentStore::add(store, &agent).await.unwrap();
    KeyStore::add(store, &key).await.unwrap();
    (agent, key)
}

/// Whatever is changed in a row without the key of the store makes it count for nothing, and no other.
#[tokio::test]
async fn a_row_that_somebody_else_wrote_is_refused() {
    let check = async |sql: &'static str, expect: &[RowFault], left: (usize, usize)| {
        let parent = tempfile::tempdir().unwrap();
        let store = Sqlite::open(parent.path()).await.unwrap();
        written(&store).await;
        sqlx::raw_sql(sql).execute(&store.durable).await.unwrap();
        let agents = store.agents().await.unwrap();
        let keys = store.keys().await.unwrap();
        let refused = agents.refused.iter().chain(&keys.refused);
        let refused: Vec<RowFault> = refused.map(|row| row.why).collect();
        assert_eq!(refused, expect, "{sql}");
        assert_eq!((agents.rows.len(), keys.rows.len()), left, "{sql}");
    };
    let altered = [RowFault::MacMismatch].as_slice();
    for sql in [
        "UPDATE agents SET id = x'00112233445566778899aabbccddeeff'",
        "UPDATE agents SET name = 'root'",
        "UPDATE agents SET name = CAST(x'ff00' AS TEXT)",
        "UPDATE agents SET team = ''",
        "UPDATE agents SET enabled = 0",
        "UPDATE agents SET admin = 1",
        "UPDATE agents SET profiles = '[]'",
        "UPDATE agents SET terms = '{\"policy\": {\"mode\": \"all\"}}'",
        "UPDATE agents SET terms = 'no JSON'",
        "UPDATE agents SET created_ms = 8",
        "UPDATE agents SET changed_ms = changed_ms + 1",
        "UPDATE agents SET mac = (SELECT mac FROM keys)",
        "UPDATE agents SET mac = x''",
    ] {
        check(sql, altered, (0, 1)).await;
    }
    for sql in [
        "UPDATE keys SET id = 'key_2'",
        "UPDATE keys SET agent = x'00112233445566778899aabbccddeeff'",
        "UPDATE keys SET hash = x'00'",
        "UPDATE keys SET prefix = 'tbk_2'",
        "UPDATE keys SET created_ms = 8",
        "UPDATE keys SET expires_ms = NULL",
        "UPDATE keys SET expires_ms = 4102444800000",
        "UPDATE keys SET revoked_ms = 0",
    ] {
        check(sql, altered, (1, 0)).await;
    }
    let unsigned = [RowFault::Unsigned].as_slice();
    check("UPDATE keys SET mac = NULL", unsigned, (1, 0)).await;
    let made = "INSERT INTO agents (id, name, enabled, admin, terms, created_ms) \
                VALUES (x'00', 'evil', 1, 1, '{}', 0)";
    check(made, unsigned, (1, 1)).await;
    let copied = "INSERT INTO keys SELECT 'key_2', agent, x'01', prefix, created_ms, expires_ms, \
                  revoked_ms, last_used_ms, changed_ms, mac FROM keys";
    check(copied, altered, (1, 1)).await;
    check("UPDATE keys SET last_used_ms = 9", &[], (1, 1)).await;
}

/// Whoever keeps a row and puts it back later undoes nothing.
#[tokio::test]
async fn an_earlier_state_of_a_row_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let (mut agent, key) = written(&store).await;
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(&store.durable).await.unwrap();
    };
    run("CREATE TABLE a AS SELECT * FROM agents; CREATE TABLE k AS SELECT * FROM keys").await;
    (agent.enabled, agent.role) = (false, crate::config::Role::Agent);
    assert!(store.update(&agent, None).await.unwrap().is_done());
    assert!(store.revoke(&key.id, key.created).await.unwrap());
    let (agents, keys) = (store.agents().await.unwrap(), store.keys().await.unwrap());
    assert_eq!((agents.rows.len(), keys.rows.len()), (1, 1));
    assert!(!agents.rows[0].enabled && keys.rows[0].revoked.is_some());
    run(
        "DELETE FROM agents; DELETE FROM keys; INSERT INTO agents SELECT * FROM a; \
         INSERT INTO keys SELECT * FROM k",
    )
    .await;
    let (agents, keys) = (store.agents().await.unwrap(), store.keys().await.unwrap());
    assert_eq!((agents.rows.len(), keys.rows.len()), (0, 0));
    assert_eq!(agents.refused[0].why, RowFault::RolledBack);
    assert_eq!(keys.refused[0].why, RowFault::RolledBack);
    // Nor is it in the way of the next change.
    assert!(store.revoke(&key.id, key.created).await.unwrap());
    assert_eq!(store.keys().await.unwrap().rows.len(), 1);
}

/// The same where the row was removed; one that is made anew counts.
#[tokio::test]
async fn a_removed_row_that_was_restored_is_refused() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let (agent, _) = written(&store).await;
    let run = async |sql: &'static str| {
        sqlx::raw_sql(sql).execute(&store.durable).await.unwrap();
    };
    let counts = async || {
        let (agents, keys) = (store.agents().await.unwrap(), store.keys().await.unwrap());
        (agents.rows.len(), keys.rows.len())
    };
    assert_eq!(counts().await, (1, 1));
    run("CREATE TABLE a AS SELECT * FROM agents; CREATE TABLE k AS SELECT * FROM keys").await;
    assert!(store.remove(agent.id).await.unwrap());
    assert_eq!(counts().await, (0, 0));
    run("INSERT INTO agents SELECT * FROM a; INSERT INTO keys SELECT * FROM k").await;
    for _ in 0..2 {
        assert_eq!(counts().await, (0, 0));
        let agents = store.agents().await.unwrap();
        assert_eq!(agents.refused[0].why, RowFault::RolledBack);
    }
    assert!(store.remove(agent.id).await.unwrap());
    let anew = StoredAgent {
        changed: crate::clock::now(),
        ..agent
    };
    AgentStore::add(&store, &anew).await.unwrap();
    assert_eq!(counts().await, (1, 0));
}

/// Takes the database back to the schema that had no MACs.
async fn age(store: &Sqlite) {
    let sql = "ALTER TABLE agents DROP COLUMN mac; ALTER TABLE agents DROP COLUMN changed_ms; \
               ALTER TABLE keys DROP COLUMN mac; ALTER TABLE keys DROP COLUMN changed_ms; \
               DROP TABLE sealing_keys; DROP TABLE secrets; DROP TABLE grants; DROP TABLE grant_notes; \
               DROP TABLE oauth_clients; DROP TABLE oauth_grants; DROP TABLE oauth_tokens; \
               DROP TABLE oauth_login_codes; DROP TABLE config_entries; DROP TABLE views; \
               CREATE TABLE secrets (name TEXT PRIMARY KEY, value BLOB NOT NULL); \
               DROP TABLE audit_records; DROP TABLE audit_segments; DROP TABLE audit_usage; CREATE TABLE audit_blocks (it); \
               PRAGMA user_version = 5";
    sqlx::raw_sql(sql).execute(&store.durable).await.unwrap();
}

/// What an earlier version wrote is taken over once: not when there was a key of the store before.
#[tokio::test]
async fn rows_of_before_are_signed_once() {
    let parent = tempfile::tempdir().unwrap();
    let counts = async || {
        let store = Sqlite::open(parent.path()).await.unwrap();
        let (agents, keys) = (store.agents().await.unwrap(), store.keys().await.unwrap());
        store.close().await;
        let refused = agents.refused.len() + keys.refused.len();
        (agents.rows.len() + keys.rows.len(), refused)
    };
    let store = Sqlite::open(parent.path()).await.unwrap();
    written(&store).await;
    age(&store).await;
    store.close().await;
    let key = parent.path().join(KEY_FILE);
    assert!(key.exists() && !parent.path().join(NEW_KEY_FILE).exists());
    fs::remove_file(&key).unwrap();
    assert_eq!(counts().await, (2, 0));
    assert!(key.exists());
    // A start that was broken off before the key had its name.
    fs::rename(&key, parent.path().join(NEW_KEY_FILE)).unwrap();
    assert_eq!(counts().await, (2, 0));
    assert!(key.exists());
    let store = Sqlite::open(parent.path()).await.unwrap();
    age(&store).await;
    store.close().await;
    assert_eq!(counts().await, (0, 2), "somebody took the schema back");
    fs::remove_file(&key).unwrap();
    assert_eq!(counts().await, (0, 2), "the key was lost");
}

/// Where rows need the key that is gone no other is made, whoever opens the store.
#[tokio::test]
async fn a_key_that_rows_need_is_not_made_anew() {
    for row in [
        "INSERT INTO agents (id, name, enabled, admin, terms, created_ms, mac) \
         VALUES (x'01', 'a', 1, 0, '{}', 0, x'02')",
        "INSERT INTO keys (id, agent, hash, prefix, created_ms, mac) \
         VALUES ('k', x'01', x'03', 'p', 0, x'02')",
        "INSERT INTO sealing_keys \
         VALUES ('secrets', x'01', 'the file secret.key of the data directory', 0)",
        "INSERT INTO config_entries VALUES ('servers', 'a', '{}', 0, 0, x'01')",
    ] {
        let parent = tempfile::tempdir().unwrap();
        let store = Sqlite::open(parent.path()).await.unwrap();
        let written = sqlx::raw_sql(row).execute(&store.durable).await;
        written.unwrap_or_else(|error| panic!("{row}: {error}"));
        store.close().await;
        let key = parent.path().join(KEY_FILE);
        let kept = fs::read(&key).unwrap();
        fs::remove_file(&key).unwrap();
        for opened in [
            Sqlite::open(parent.path()).await,
            Sqlite::open_unchanged(parent.path(), SECRETS_SINCE).await,
        ] {
            assert!(
                matches!(opened, Err(StoreError::KeyMissing { .. })),
                "{row}: {opened:?}"
            );
        }
        assert!(!key.exists() && !parent.path().join(NEW_KEY_FILE).exists());
        fs::write(&key, kept).unwrap();
        fs::set_permissions(&key, Permissions::from_mode(0o600)).unwrap();
        Sqlite::open(parent.path()).await.unwrap();
    }
    // Secrets that another key seals, and rows without a MAC, need none.
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let rows = "INSERT INTO sealing_keys VALUES ('secrets', x'01', 'the file /etc/key', 0); \
                INSERT INTO agents (id, name, enabled, admin, terms, created_ms) \
                VALUES (x'01', 'a', 1, 0, '{}', 0)";
    sqlx::raw_sql(rows).execute(&store.durable).await.unwrap();
    store.close().await;
    let key = parent.path().join(KEY_FILE);
    fs::remove_file(&key).unwrap();
    Sqlite::open_unchanged(parent.path(), SECRETS_SINCE)
        .await
        .unwrap();
    assert!(!key.exists());
    Sqlite::open(parent.path()).await.unwrap();
    assert!(key.exists());
}

/// SQLite ends a transaction that meets a full disk by itself, which sqlx does not notice.
#[tokio::test]
async fn a_full_disk_is_over_once_there_is_room() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let run = async |pool: &SqlitePool, statement: &'static str| {
        sqlx::query(statement).execute(pool).await.unwrap();
    };
    run(&store.durable, "CREATE TABLE filler (bytes BLOB)").await;
    for pool in [&store.durable, &store.relaxed] {
        // As large as it is already.
        run(pool, "PRAGMA max_page_count = 1").await;
        let mut tx = begin(pool).await.unwrap();
        let fill = sqlx::query("INSERT INTO filler VALUES (zeroblob(1000000))");
        let error = fill.execute(&mut *tx).await.unwrap_err();
        assert!(error.to_string().contains("full"), "{error}");
        drop(tx);
        let mut tx = begin(pool).await.unwrap();
        let fill = sqlx::query("INSERT INTO filler VALUES (zeroblob(1000000))");
        fill.execute(&mut *tx).await.unwrap();
        tx.commit().await.unwrap();
    }
}

/// An error as the library has it.
#[derive(Debug)]
struct Reported(&'static str);

impl std::fmt::Display for Reported {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("disk I/O error")
    }
}

impl std::error::Error for Reported {}

impl sqlx::error::DatabaseError for Reported {
    fn message(&self) -> &'static str {
        "disk I/O error"
    }

    fn code(&self) -> Option<std::borrow::Cow<'_, str>> {
        Some(self.0.into())
    }

    fn as_error(&self) -> &(dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn as_error_mut(&mut self) -> &mut (dyn std::error::Error + Send + Sync + 'static) {
        self
    }

    fn into_error(self: Box<Self>) -> Box<dyn std::error::Error + Send + Sync + 'static> {
        self
    }

    fn kind(&self) -> sqlx::error::ErrorKind {
        sqlx::error::ErrorKind::Other
    }
}

/// A full disk is told by the room that is left where the code does not say so; another fault of the disk
/// stays one.
#[test]
fn a_disk_without_room_is_told_from_a_broken_one() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(FILE_NAME);
    fs::write(&path, "").unwrap();
    let classify = |code, blocks: u64, available: u64| {
        let disk = |path: &Path| {
            let mut disk = statvfs(path).ok()?;
            (disk.f_frsize, disk.f_blocks, disk.f_bavail) = (4096, blocks, available);
            Some(disk)
        };
        let error = sqlx::Error::Database(Box::new(Reported(code)));
        classify_error_on(&path, "opening it", error, disk).to_string()
    };
    let no_room = format!("no space left on the disk of {}", path.display());
    let shm_size = "4874";
    for (code, blocks, available, is_full) in [
        (shm_size, 1000, 7, true),
        ("13", 1000, 7, true),
        (shm_size, 1000, 8, false),
        (shm_size, 0, 0, false),
    ] {
        let error = classify(code, blocks, available);
        assert_eq!(error.starts_with(&no_room), is_full, "{error}");
        assert_eq!(error.contains("disk I/O error"), !is_full, "{error}");
    }
}

/// What was indexed before there were sums of it is counted.
#[tokio::test]
async fn records_of_before_count_as_usage() {
    let parent = tempfile::tempdir().unwrap();
    let store = Sqlite::open(parent.path()).await.unwrap();
    let record = |number: u64, decision: &str| IndexedRecord {
        offset: number,
        ts: Timestamp::from_second(7200 + i64::try_from(number).unwrap()).unwrap(),
        invocation: uuid::Uuid::from_u128(number.into()),
        agent_id: "agent_1".to_owned(),
        agent_name: "a".to_owned(),
        server: Some("s".to_owned()),
        tool: Some("t".to_owned()),
        exposed: None,
        decision: decision.to_owned(),
        team: None,
        workspace: None,
        price: Micros::new(7),
        took: Duration::from_millis(3),
    };
    let decisions = ["allowed", "failed", "refused"];
    let records = (0..).zip(decisions);
    let segment = IndexedSegment {
        chain: "c".to_owned(),
        segment: 1,
        end: 9,
        hash: None,
        records: records.map(|(number, it)| record(number, it)).collect(),
    };
    let usage = async |dimension| {
        let query = UsageQuery {
            dimension,
            first_hour: 2,
            end_hour: 3,
            step_hours: 1,
            after: None,
            count: 9,
        };
        let sums = store.usage(&query).await.unwrap().sums;
        let [sum] = &sums[..] else { panic!("{sums:?}") };
        let totals = &sum.totals;
        assert_eq!(
            (sum.hour, totals.calls, totals.errors, totals.refused),
            (2, 3, 1, 1)
        );
        (sum.name.clone(), totals.spent.get(), totals.mean_ms())
    };
    for _ in 0..2 {
        // What is known already is counted once.
        store.put(std::slice::from_ref(&segment)).await.unwrap();
        let counted = usage(UsageDimension::Tool).await;
        assert_eq!(counted, ("s/t".to_owned(), 21, Some(3.0)));
    }
    let migration = include_str!("../../../migrations/sqlite/0014.sql");
    let again = format!("DROP TABLE audit_usage; {migration}");
    sqlx::raw_sql(AssertSqlSafe(again))
        .execute(&store.durable)
        .await
        .unwrap();
    for (dimension, name) in [
        (UsageDimension::Agent, "agent_1"),
        (UsageDimension::Server, "s"),
        (UsageDimension::Tool, "s/t"),
    ] {
        assert_eq!(usage(dimension).await, (name.to_owned(), 0, None));
    }
}
