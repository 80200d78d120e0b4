//! Agents in SQLite.

use futures_util::future::BoxFuture;
use sqlx::{Row, sqlite::SqliteRow};

use super::{Sqlite, begin, from_time, to_time, to_uuid};
use crate::{
    names::{AgentId, ProfileName},
    store::{Agents, StoreError, StoredAgent},
};

const COLUMNS: &str = "id, name, team, enabled, admin, profiles, terms, created_ms";

impl Agents for Sqlite {
    fn add<'a>(&'a self, agent: &'a StoredAgent) -> BoxFuture<'a, Result<(), StoreError>> {
        Box::pin(async move {
            let done = sqlx::query(
                "INSERT INTO agents (id, name, team, enabled, admin, profiles, terms, created_ms) \
                 VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            )
            .bind(agent.id.0.as_bytes().as_slice())
            .bind(&agent.name)
            .bind(&agent.team)
            .bind(agent.enabled)
            .bind(agent.admin)
            .bind(profiles_json(agent))
            .bind(self.terms_json(agent)?)
            .bind(from_time(agent.created))
            .execute(&self.durable)
            .await;
            done.map_err(|error| self.name_taken("adding an agent", agent, error))?;
            Ok(())
        })
    }

    fn update<'a>(&'a self, agent: &'a StoredAgent) -> BoxFuture<'a, Result<bool, StoreError>> {
        Box::pin(async move {
            let done = sqlx::query(
                "UPDATE agents SET name = ?, team = ?, enabled = ?, admin = ?, profiles = ?, \
                 terms = ? WHERE id = ?",
            )
            .bind(&agent.name)
            .bind(&agent.team)
            .bind(agent.enabled)
            .bind(agent.admin)
            .bind(profiles_json(agent))
            .bind(self.terms_json(agent)?)
            .bind(agent.id.0.as_bytes().as_slice())
            .execute(&self.durable)
            .await;
            let done = done.map_err(|error| self.name_taken("changing an agent", agent, error))?;
            Ok(done.rows_affected() > 0)
        })
    }

    fn agent(&self, id: AgentId) -> BoxFuture<'_, Result<Option<StoredAgent>, StoreError>> {
        Box::pin(async move {
            let row = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {COLUMNS} FROM agents WHERE id = ?"
            )))
            .bind(id.0.as_bytes().as_slice())
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| self.failed("reading an agent", error))?;
            row.map(|row| self.agent_of(&row)).transpose()
        })
    }

    fn agent_named<'a>(
        &'a self,
        name: &'a str,
    ) -> BoxFuture<'a, Result<Option<StoredAgent>, StoreError>> {
        Box::pin(async move {
            let row = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {COLUMNS} FROM agents WHERE name = ?"
            )))
            .bind(name)
            .fetch_optional(&self.reader)
            .await
            .map_err(|error| self.failed("reading an agent", error))?;
            row.map(|row| self.agent_of(&row)).transpose()
        })
    }

    fn agents(&self) -> BoxFuture<'_, Result<Vec<StoredAgent>, StoreError>> {
        Box::pin(async move {
            let rows = sqlx::query(sqlx::AssertSqlSafe(format!(
                "SELECT {COLUMNS} FROM agents ORDER BY name"
            )))
            .fetch_all(&self.reader)
            .await
            .map_err(|error| self.failed("reading agents", error))?;
            rows.iter().map(|row| self.agent_of(row)).collect()
        })
    }

    fn remove(&self, id: AgentId) -> BoxFuture<'_, Result<bool, StoreError>> {
        Box::pin(async move {
            let failed = |error| self.failed("removing an agent", error);
            let mut tx = begin(&self.durable).await.map_err(failed)?;
            for of_agent in [
                "DELETE FROM keys WHERE agent = ?",
                "DELETE FROM sessions WHERE agent = ?",
                "DELETE FROM tasks WHERE agent = ?",
            ] {
                sqlx::query(of_agent)
                    .bind(id.0.as_bytes().as_slice())
                    .execute(&mut *tx)
                    .await
                    .map_err(failed)?;
            }
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
    fn agent_of(&self, row: &SqliteRow) -> Result<StoredAgent, StoreError> {
        let failed = |error| self.failed("reading an agent", error);
        let name: String = row.try_get("name").map_err(failed)?;
        let profiles: Option<String> = row.try_get("profiles").map_err(failed)?;
        let terms: String = row.try_get("terms").map_err(failed)?;
        let what = |part: &str| format!("{part} of the agent `{name}`");
        Ok(StoredAgent {
            id: AgentId(to_uuid(row.try_get("id").map_err(failed)?)),
            team: row.try_get("team").map_err(failed)?,
            enabled: row.try_get("enabled").map_err(failed)?,
            admin: row.try_get("admin").map_err(failed)?,
            profiles: profiles
                .map(|json| parse_profiles(&json))
                .transpose()
                .map_err(|detail| self.undecodable(what("the profiles"), detail))?,
            terms: serde_json::from_str(&terms)
                .map_err(|detail| self.undecodable(what("the terms"), detail))?,
            created: to_time(row.try_get("created_ms").map_err(failed)?),
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
            self.failed(doing, error)
        }
    }
}

fn profiles_json(agent: &StoredAgent) -> Option<String> {
    let profiles = agent.profiles.as_ref()?;
    let names = profiles.iter().map(ProfileName::as_str);
    Some(names.collect::<serde_json::Value>().to_string())
}

fn parse_profiles(json: &str) -> Result<Vec<ProfileName>, String> {
    let names: Vec<String> = serde_json::from_str(json).map_err(|error| error.to_string())?;
    let parsed = names.iter().map(|name| ProfileName::parse(name));
    parsed
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}
