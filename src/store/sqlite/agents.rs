//! Agents in SQLite.

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use sqlx::{FromRow, SqliteConnection};

use super::{
    Sqlite, begin, from_time,
    mac::{ColumnValue, MacRow, Signer},
    oauth, to_time, to_uuid,
};
use crate::{
    clock,
    config::Role,
    names::{AgentId, ProfileName},
    store::{
        AgentStore, EntryWrite, RefusedRow, RowFault, RowKind, StoreError, StoredAgent, StoredRows,
    },
};

/// A row. Texts are bytes, since whoever forges one need not write UTF-8.
#[derive(Debug, FromRow)]
struct AgentRow {
    id: Vec<u8>,
    name: Vec<u8>,
    team: Option<Vec<u8>>,
    enabled: i64,
    /// The number of its role; it was once only whether it is an admin.
    admin: i64,
    profiles: Option<Vec<u8>>,
    terms: Vec<u8>,
    created_ms: i64,
    changed_ms: i64,
    mac: Option<Vec<u8>>,
}

impl MacRow for AgentRow {
    const TABLE: &'static str = "agents";

    fn id(&self) -> &[u8] {
        &self.id
    }

    fn changed_ms(&self) -> i64 {
        self.changed_ms
    }

    fn mac(&self) -> Option<&[u8]> {
        self.mac.as_deref()
    }

    fn values(&self) -> Vec<ColumnValue<'_>> {
        vec![
            self.name.as_slice().into(),
            self.team.as_deref().into(),
            self.enabled.into(),
            self.admin.into(),
            self.profiles.as_deref().into(),
            self.terms.as_slice().into(),
            self.created_ms.into(),
        ]
    }

    fn to_refused(&self, why: RowFault) -> RefusedRow {
        let id = AgentId(to_uuid(&self.id)).to_string();
        RefusedRow::new(RowKind::Agent, id.as_bytes(), &self.name, why)
    }
}

impl AgentStore for Sqlite {
    fn add<'a>(&'a self, agent: &'a StoredAgent) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let row = self.row_of(agent, from_time(agent.changed))?;
            let done = sqlx::query(
                "INSERT INTO agents (id, name, team, enabled, admin, profiles, terms, created_ms, \
                 changed_ms, mac) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(&row.id)
            .bind(&agent.name)
            .bind(&agent.team)
            .bind(row.enabled)
            .bind(row.admin)
            .bind(profiles_json(agent))
            .bind(self.terms_json(agent)?)
            .bind(row.created_ms)
            .bind(row.changed_ms)
            .bind(self.signer.sign(&row).as_slice())
            .execute(&self.durable)
            .await;
            done.map_err(|error| self.name_taken("adding an agent", agent, error))?;
            Ok(())
        })
    }

    fn update<'a>(
        &'a self,
        agent: &'a StoredAgent,
        expected: Option<Timestamp>,
    ) -> BoxFuture<'a, Result<EntryWrite, StoreError>> {
        Box::pin(async move {
            let doing = "changing an agent";
            let failed = |error| self.map_error(doing, error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            let before: Option<(i64, i64)> =
                sqlx::query_as("SELECT created_ms, changed_ms FROM agents WHERE id = ?")
                    .bind(agent.id.0.as_bytes().as_slice())
                    .fetch_optional(&mut *tx)
                    .await
                    .map_err(failed)?;
            let Some((created_ms, changed_ms)) = before else {
                return Ok(EntryWrite::Missing);
            };
            if expected.is_some_and(|expected| from_time(expected) != changed_ms) {
                return Ok(EntryWrite::Conflict(to_time(changed_ms)));
            }
            let now = from_time(clock::now()).max(changed_ms.saturating_add(1));
            let row = AgentRow {
                created_ms,
                ..self.row_of(agent, now)?
            };
            let done = sqlx::query(
                "UPDATE agents SET name = ?, team = ?, enabled = ?, admin = ?, profiles = ?, \
                 terms = ?, changed_ms = ?, mac = ? WHERE id = ?",
            )
            .bind(&agent.name)
            .bind(&agent.team)
            .bind(row.enabled)
            .bind(row.admin)
            .bind(profiles_json(agent))
            .bind(self.terms_json(agent)?)
            .bind(row.changed_ms)
            .bind(self.signer.sign(&row).as_slice())
            .bind(&row.id)
            .execute(&mut *tx)
            .await;
            done.map_err(|error| self.name_taken(doing, agent, error))?;
            tx.commit().await.map_err(failed)?;
            Ok(EntryWrite::Done(to_time(now)))
        })
    }

    fn agent(&self, id: AgentId) -> BoxFuture<'_, Result<Option<StoredAgent>, StoreError>> {
        Box::pin(async move {
            let read = async {
                let rows = sqlx::query_as::<_, AgentRow>("SELECT * FROM agents WHERE id = ?")
                    .bind(id.0.as_bytes().as_slice())
                    .fetch_all(&self.reader);
                rows.await
                    .map_err(|error| self.map_error("reading an agent", error))
            };
            let found = self.signer.verified_part(read, |row| self.agent_of(row));
            Ok(found.await?.rows.pop())
        })
    }

    fn agents(&self) -> BoxFuture<'_, Result<StoredRows<StoredAgent>, StoreError>> {
        Box::pin(async move {
            let read = async {
                let rows = sqlx::query_as::<_, AgentRow>("SELECT * FROM agents ORDER BY name");
                let rows = rows.fetch_all(&self.reader).await;
                rows.map_err(|error| self.map_error("reading agents", error))
            };
            self.signer
                .verified_rows(read, |row| self.agent_of(row))
                .await
        })
    }

    fn remove(&self, id: AgentId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.map_error("removing an agent", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            for of_agent in [
                "DELETE FROM keys WHERE agent = ?",
                "DELETE FROM sessions WHERE agent = ?",
                "DELETE FROM tasks WHERE agent = ?",
                "DELETE FROM views WHERE agent = ?",
            ] {
                sqlx::query(of_agent)
                    .bind(id.0.as_bytes().as_slice())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
            oauth::remove_of_agent(id, &mut tx).await.map_err(failed)?;
            let done = sqlx::query("DELETE FROM agents WHERE id = ?")
                .bind(id.0.as_bytes().as_slice())
                .execute(&mut *tx)
                .await
                .map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(done.rows_affected() > 0)
        })
    }
}

impl Sqlite {
    fn row_of(&self, agent: &StoredAgent, changed_ms: i64) -> Result<AgentRow, StoreError> {
        Ok(AgentRow {
            id: agent.id.0.as_bytes().to_vec(),
            name: agent.name.clone().into_bytes(),
            team: agent.team.clone().map(String::into_bytes),
            enabled: agent.enabled.into(),
            admin: to_number(agent.role),
            profiles: profiles_json(agent).map(String::into_bytes),
            terms: self.terms_json(agent)?.into_bytes(),
            created_ms: from_time(agent.created),
            changed_ms,
            mac: None,
        })
    }

    fn agent_of(&self, row: AgentRow) -> Result<StoredAgent, StoreError> {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let name = text(row.name);
        let what = |part: &str| format!("{part} of the agent `{name}`");
        let role = to_role(row.admin)
            .ok_or_else(|| self.undecodable(what("the role"), row.admin.to_string()))?;
        let profiles = row.profiles.as_deref().map(parse_profiles).transpose();
        Ok(StoredAgent {
            id: AgentId(to_uuid(&row.id)),
            team: row.team.map(text),
            enabled: row.enabled != 0,
            role,
            profiles: profiles.map_err(|detail| self.undecodable(what("the profiles"), detail))?,
            terms: serde_json::from_slice(&row.terms)
                .map_err(|detail| self.undecodable(what("the terms"), detail))?,
            created: to_time(row.created_ms),
            changed: to_time(row.changed_ms),
            name,
        })
    }

    fn terms_json(&self, agent: &StoredAgent) -> Result<String, StoreError> {
        serde_json::to_string(&agent.terms).map_err(|detail| {
            let what = format!("the terms of the agent `{}`", agent.name);
            self.undecodable(what, detail)
        })
    }

    /// The id of an agent is random or comes from its name, so what is taken is the name.
    fn name_taken(
        &self,
        doing: &'static str,
        agent: &StoredAgent,
        error: sqlx::Error,
    ) -> StoreError {
        let taken = error
            .as_database_error()
            .is_some_and(sqlx::error::DatabaseError::is_unique_violation);
        if taken {
            StoreError::NameTaken {
                name: agent.name.clone(),
            }
        } else {
            self.map_error(doing, error)
        }
    }
}

/// Gives every row that is there its MAC.
pub(super) async fn sign_all(
    signer: &Signer,
    db: &mut SqliteConnection,
) -> Result<(), sqlx::Error> {
    let read = sqlx::query_as::<_, AgentRow>("SELECT * FROM agents");
    for row in read.fetch_all(&mut *db).await? {
        sqlx::query("UPDATE agents SET mac = ? WHERE id = ?")
            .bind(signer.sign(&row).as_slice())
            .bind(&row.id)
            .execute(&mut *db)
            .await?;
    }
    Ok(())
}

/// How the column `admin` has a role.
const ROLES: [(i64, Role); 4] = [
    (0, Role::Agent),
    (1, Role::Admin),
    (2, Role::Auditor),
    (3, Role::WorkspaceAdmin),
];

fn to_number(role: Role) -> i64 {
    let found = ROLES.iter().find(|(_, known)| *known == role);
    found.map_or(0, |(number, _)| *number)
}

fn to_role(number: i64) -> Option<Role> {
    let found = ROLES.iter().find(|(known, _)| *known == number);
    found.map(|(_, role)| *role)
}

fn profiles_json(agent: &StoredAgent) -> Option<String> {
    let profiles = agent.profiles.as_ref()?;
    let names = profiles.iter().map(ProfileName::as_str);
    Some(names.collect::<serde_json::Value>().to_string())
}

fn parse_profiles(json: &[u8]) -> Result<Vec<ProfileName>, String> {
    let names: Vec<String> = serde_json::from_slice(json).map_err(|error| error.to_string())?;
    let parsed = names.iter().map(|name| ProfileName::parse(name));
    parsed
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}
