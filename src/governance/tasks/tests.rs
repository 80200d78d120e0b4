//! How often the store is asked whose tasks are.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use futures_util::future::BoxFuture;
use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::{
    config::Durability,
    governance::settle::tests::governance,
    store::{Store, TaskOwners},
};

/// Every task is everybody's, but for the one that is called `other`.
#[derive(Debug, Default)]
struct Asked(AtomicUsize);

impl TaskOwners for Asked {
    fn claim<'a>(
        &'a self,
        _: &'a StoredTask,
        _: TaskIdScope,
        _: usize,
    ) -> BoxFuture<'a, Result<TaskClaim, StoreError>> {
        Box::pin(async { Ok(TaskClaim::Claimed(0)) })
    }

    fn owned_by<'a>(
        &'a self,
        _: AgentId,
        _: &'a ServerName,
        ids: &'a [TaskHash],
    ) -> BoxFuture<'a, Result<HashSet<TaskHash>, StoreError>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        let own = ids.iter().filter(|id| **id != TaskHash::of("other"));
        let own = own.copied().collect();
        Box::pin(async { Ok(own) })
    }
}

/// However many tasks there are: who asks holds its seat meanwhile.
#[tokio::test]
async fn the_store_is_asked_once_for_a_list() {
    let place = TempDir::new().unwrap();
    let store = Store::open(place.path()).await.unwrap();
    let directory = place.path().join("audit");
    let mut governance = governance(&store, &directory, Durability::Process);
    let asked = Arc::new(Asked::default());
    governance.storage.tasks = Some(Arc::<Asked>::clone(&asked));
    let server = ServerName::parse("x").unwrap();
    let agent = AgentId::from_name("ann");

    let ids: Vec<_> = (0..2000).map(|id| id.to_string()).collect();
    let tasks = |ids: &[String]| {
        let tasks: Vec<_> = ids.iter().map(|id| json!({ "taskId": id })).collect();
        Raw::from_value(&json!({ "tasks": tasks }))
    };
    let with_other = [&ids[..], &["other".to_owned()]].concat();
    let own = governance
        .filter_task_list(&tasks(&with_other), agent, &server)
        .await;
    assert_eq!(own.as_str(), tasks(&ids).as_str());
    assert_eq!(asked.0.load(Ordering::Relaxed), 1);
}
