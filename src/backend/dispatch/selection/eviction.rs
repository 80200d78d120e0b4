//! Which connection is closed to make room for another.

use std::{collections::HashMap, sync::Arc};

use crate::{
    backend::{
        BackendError,
        instance::{Instance, InstancePhase},
        sharing::SharingKey,
    },
    names::AgentId,
};

/// Makes room for one more, which `agent` starts: those that are down go first, then, of the agent that
/// started most, the one that was unused for longest. None goes for an agent that started more: sessions and
/// headers are as many as a caller likes.
pub(super) fn evict_instances(
    instances: &mut HashMap<SharingKey, Arc<Instance>>,
    instances_max: usize,
    agent: AgentId,
) -> Result<(), BackendError> {
    instances.retain(|_, instance| !instance.is_abandoned() || instance.is_backing_off());
    if instances.len() < instances_max {
        return Ok(());
    }
    // Whoever had one started waits for it.
    let is_unused =
        |it: &Instance| !it.is_busy() && !matches!(it.phase(), InstancePhase::Connecting);
    let started_by = |agent| {
        let own = instances.values().filter(|it| it.started_by == agent);
        own.count()
    };
    let own = started_by(Some(agent));
    let unused = instances.iter().filter(|(_, instance)| is_unused(instance));
    let oldest = unused
        .map(|(key, instance)| (started_by(instance.started_by), instance.idle_for(), key))
        .filter(|(started, ..)| *started >= own)
        .max_by_key(|(started, idle, _)| (*started, *idle))
        .map(|(.., key)| key.clone());
    let oldest = oldest.ok_or(BackendError::InstancesBusy {
        limit: instances_max,
        key: "max_instances",
    })?;
    if let Some(instance) = instances.remove(&oldest) {
        instance.stop.cancel();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backend::{
            instance::{
                identity::{InstanceIdentity, SharedBy},
                reconnect::ReconnectPolicy,
            },
            sharing::Sharing,
        },
        config::Transport,
        mcp::Era,
        names::ServerName,
        task::Tasks,
    };

    /// Which of the instances, each with its agent and whether it is unused, is closed for `agent`.
    fn evicted(started: &[(u128, bool)], agent: u128) -> Result<Vec<usize>, BackendError> {
        let (tasks, server) = (Tasks::new(), ServerName::parse("x").unwrap());
        let reach = ReconnectPolicy::new(&Transport::Builtin, 30);
        let id = |agent| AgentId(uuid::Uuid::from_u128(agent));
        let key = |at: usize| {
            SharingKey::new(
                Sharing::Session(at.to_string()),
                Era::Legacy,
                Arc::default(),
            )
        };
        let mut instances = HashMap::new();
        for (at, (agent, is_unused)) in started.iter().enumerate() {
            let callers = SharedBy::for_anyone(Era::Legacy);
            let identity = InstanceIdentity::for_callers(&server, callers, &reach, &tasks);
            let instance = Instance::new(identity, Some(id(*agent)));
            if *is_unused {
                let failure = BackendError::Disabled;
                instance.set_phase(InstancePhase::Down { failure });
            }
            instances.insert(key(at), instance);
        }
        evict_instances(&mut instances, started.len(), id(agent))?;
        let gone = |at: &usize| !instances.contains_key(&key(*at));
        Ok((0..started.len()).filter(gone).collect())
    }

    /// Who starts many gives up its own, and nobody else's once it has more than they.
    #[tokio::test]
    async fn an_agent_with_many_makes_room_for_others() {
        let (idle, used) = (true, false);
        let check = |started: &[(u128, bool)], agent, expect: &[usize]| {
            assert_eq!(
                evicted(started, agent).unwrap(),
                expect,
                "{started:?} {agent}"
            );
        };
        let many = [(1, idle), (2, idle), (2, used)];
        for agent in 1..=3 {
            check(&many, agent, &[1]);
        }
        let in_use = [(1, idle), (2, used), (2, used)];
        check(&in_use, 3, &[0]);
        check(&in_use[..2], 2, &[0]);
        let refused = evicted(&in_use, 2).unwrap_err();
        assert!(
            matches!(refused, BackendError::InstancesBusy { .. }),
            "{refused}"
        );
    }
}
