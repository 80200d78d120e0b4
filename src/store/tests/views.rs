//! Views in a store.

use super::*;
use crate::names::ViewId;

/// An agent has no more than it may, a change is of the version that was read, and what has ended is gone.
pub(super) async fn views_are_kept_until_they_end(open: impl AsyncFn() -> (Store, TempDir)) {
    let (store, _dir) = open().await;
    let at = |second: i64| Timestamp::from_second(1_800_000_000 + second).unwrap();
    let view = |number, agent, (created, expires)| StoredView {
        id: ViewId(Uuid::from_u128(number)),
        agent: AgentId(Uuid::from_u128(agent)),
        document: format!("{{\"n\":{number}}}"),
        created: at(created),
        expires: at(expires),
        changed: at(created),
    };
    let add = async |view: &StoredView| store.views.add(view, 2).await.unwrap();
    let (first, second) = (view(1, 1, (0, 10)), view(2, 1, (0, 20)));
    assert!(add(&first).await && add(&second).await);
    assert!(!add(&view(3, 1, (9, 30))).await);
    assert!(add(&view(4, 2, (9, 30))).await, "it is of another agent");
    assert!(add(&view(5, 1, (10, 30))).await, "the first has ended");
    let mut changed = StoredView {
        document: "{}".to_owned(),
        ..second.clone()
    };
    let written = store.views.replace(&changed, at(0)).await.unwrap();
    let EntryWrite::Done(version) = written else {
        panic!("it has that version: {written:?}");
    };
    assert!(
        version > second.changed,
        "versions grow also when the clock stands"
    );
    let late = store.views.replace(&changed, at(1)).await.unwrap();
    assert_eq!(late, EntryWrite::Conflict(version));
    let late = store.views.remove(second.id, second.changed).await.unwrap();
    assert_eq!(late, EntryWrite::Conflict(version));
    changed.changed = version;
    assert!(store.views.views().await.unwrap().contains(&changed));
    let ended = store.views.remove_expired(at(20)).await.unwrap();
    let mut ended: Vec<_> = ended.into_iter().map(|view| view.id).collect();
    ended.sort();
    assert_eq!(ended, [first.id, second.id]);
    let missing = store.views.remove(first.id, at(0)).await.unwrap();
    assert_eq!(missing, EntryWrite::Missing);
    store
        .agents
        .remove(AgentId(Uuid::from_u128(1)))
        .await
        .unwrap();
    let left = store.views.views().await.unwrap();
    assert_eq!(left.len(), 1, "those of an agent go with it: {left:?}");
}
