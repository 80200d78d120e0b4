//! When keys were last seen, gathered for the store: noting is cheap and on the way of every call,
//! writing happens in the background, at most once a minute for each key.

use dashmap::DashMap;
use jiff::{SignedDuration, Timestamp};

use crate::store::{KeyId, KeyStore, StoreError};

/// Between two writes of one key.
const WRITE_INTERVAL: SignedDuration = SignedDuration::from_mins(1);

/// When keys were last seen. It holds one entry for each key that the store knows.
#[derive(Debug, Default)]
pub struct KeyUses {
    keys: DashMap<KeyId, KeyUse>,
}

#[derive(Clone, Copy, Debug)]
struct KeyUse {
    seen: Timestamp,
    written: Option<Timestamp>,
}

impl KeyUses {
    /// Notes that a key of the store was seen.
    pub fn note_seen(&self, key: &KeyId, now: Timestamp) {
        if let Some(mut known) = self.keys.get_mut(key) {
            known.seen = now;
            return;
        }
        let first = KeyUse {
            seen: now,
            written: None,
        };
        self.keys.insert(key.clone(), first);
    }

    /// Writes what is due at `now`; to be called every few seconds.
    ///
    /// # Errors
    /// Those of the store; what was not written stays due.
    pub async fn write_due(&self, keys: &dyn KeyStore, now: Timestamp) -> Result<(), StoreError> {
        let due = self.due_writes(now);
        if due.is_empty() {
            return Ok(());
        }
        keys.touch(&due).await?;
        for (id, seen) in due {
            if let Some(mut known) = self.keys.get_mut(&id) {
                known.written = Some(seen);
            }
        }
        Ok(())
    }

    fn due_writes(&self, now: Timestamp) -> Vec<(KeyId, Timestamp)> {
        let due = |key: &KeyUse| match key.written {
            None => true,
            Some(written) => key.seen > written && now.duration_since(written) >= WRITE_INTERVAL,
        };
        let keys = self.keys.iter();
        keys.filter(|entry| due(entry.value()))
            .map(|entry| (entry.key().clone(), entry.seen))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_due_at_most_once_a_minute() {
        let uses = KeyUses::default();
        let (key, start) = (KeyId::new("key_1"), Timestamp::UNIX_EPOCH);
        let at = |second| start + SignedDuration::from_secs(second);
        let check = |seen: Option<i64>, now: i64, due: Option<i64>| {
            if let Some(seen) = seen {
                uses.note_seen(&key, at(seen));
            }
            let found = uses.due_writes(at(now));
            let expect: Vec<_> = due.map(|due| (key.clone(), at(due))).into_iter().collect();
            assert_eq!(found, expect, "at {now}");
            for (id, seen) in found {
                uses.keys.get_mut(&id).unwrap().written = Some(seen);
            }
        };
        check(None, 0, None);
        check(Some(0), 0, Some(0));
        check(Some(59), 59, None);
        check(None, 60, Some(59));
        check(None, 600, None);
        check(Some(700), 700, Some(700));
    }
}
