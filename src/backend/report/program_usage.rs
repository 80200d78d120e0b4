//! What the programs of servers take of the machine: looked at when somebody asks.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::spawn_blocking, time::Instant};

use crate::backend::{
    Backend, Backends,
    dispatch::connection_pool::ConnectionPool,
    transport::stdio::{
        child_output::ChildOutput,
        process_group::{self, ProgramUsage},
        to_pid,
    },
};

/// How old figures may be that are shown.
pub(crate) const MEASURE_INTERVAL: Duration = Duration::from_secs(2);

/// When it was last looked what programs take. Whoever asks meanwhile waits for that.
#[derive(Debug, Default)]
pub(in crate::backend) struct LastMeasured(Mutex<Option<Instant>>);

impl Backends {
    /// Looks what the programs of all servers take, if the last look is older than [`MEASURE_INTERVAL`].
    pub async fn measure_programs(&self) {
        let mut last = self.measured.0.lock().await;
        if last.is_some_and(|at| at.elapsed() < MEASURE_INTERVAL) {
            return;
        }
        let outputs: Vec<_> = self.all().flat_map(|backend| backend.outputs()).collect();
        let running = outputs.iter().flat_map(|output| output.running());
        let groups: Vec<_> = running.filter_map(to_pid).collect();
        if !groups.is_empty() {
            let look = spawn_blocking(move || process_group::usage_of_all(&groups));
            // Where the system does not say, there is nothing to show.
            let found = look.await.ok().flatten();
            let found: HashMap<_, _> = found.unwrap_or_default();
            for output in outputs {
                output.note_usage(|pid| found.get(&to_pid(pid)?).copied());
            }
        }
        *last = Some(Instant::now());
    }
}

impl Backend {
    /// What its programs took when it was last looked at, all instances and replicas together; `None` where none
    /// runs.
    pub(crate) fn program_usage(&self) -> Option<ProgramUsage> {
        let usages = self.outputs().into_iter();
        usages
            .filter_map(|output| output.usage())
            .reduce(ProgramUsage::sum)
    }

    /// What knows the programs of all instances and replicas.
    fn outputs(&self) -> Vec<Arc<ChildOutput>> {
        if let Some(replicas) = &self.replicas {
            return replicas.backends().flat_map(|it| it.outputs()).collect();
        }
        let mut instances: Vec<_> = self.lock().values().cloned().collect();
        instances.extend(self.pool.iter().flat_map(ConnectionPool::all));
        let own = Arc::clone(&self.connector.shared.identity.output);
        let others = instances.iter();
        let others = others.map(|instance| Arc::clone(&instance.identity.output));
        let mut outputs: Vec<_> = std::iter::once(own).chain(others).collect();
        outputs.sort_by_key(Arc::as_ptr);
        outputs.dedup_by(|a, b| Arc::ptr_eq(a, b));
        outputs
    }
}
