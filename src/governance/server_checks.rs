//! Work on schemas that a server wrote. It may take long whatever is done against that, so it is done
//! on threads of its own, and nobody waits for it for ever.

use std::{sync::Arc, time::Duration};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// How long a check may take, and wait for its turn.
pub(super) const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Checks of one server at a time; the runtime's workers make none. Nothing ends a check, so one that
/// nobody waits for any more counts until it has ended: it keeps those of its server from being made,
/// and no others.
pub(super) const CONCURRENT_CHECKS_MAX: usize = 2;

/// The checks of one server.
#[derive(Clone, Debug)]
pub(super) struct ServerChecks(Arc<Semaphore>);

/// Why a check says nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unchecked {
    /// It did not get its turn: too many are made at once.
    Busy,
    /// It takes too long.
    TimedOut,
    /// It panicked.
    Panicked,
}

impl Default for ServerChecks {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(CONCURRENT_CHECKS_MAX)))
    }
}

impl ServerChecks {
    /// Does `work`, which is a check.
    ///
    /// # Errors
    /// When it could not be waited for.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unchecked> {
        let turn = Arc::clone(&self.0).acquire_owned();
        let turn = timeout(CHECK_TIMEOUT, turn).await;
        let turn = turn.map_err(|_| Unchecked::Busy)?;
        let work = spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        match timeout(CHECK_TIMEOUT, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                tracing::error!(%error, "a validation panicked");
                Err(Unchecked::Panicked)
            }
            Err(_) => Err(Unchecked::TimedOut),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::lock::lock;

    #[tokio::test]
    async fn what_does_not_end_keeps_its_turn_and_those_of_no_other() {
        let checks = ServerChecks::default();
        assert_eq!(checks.run(|| 5).await, Ok(5));
        assert_eq!(
            checks.run(|| panic!("odd")).await,
            Err::<(), _>(Unchecked::Panicked)
        );
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        for _ in 0..CONCURRENT_CHECKS_MAX {
            assert_eq!(checks.run(|| 5).await, Ok(5));
            let ended = Arc::clone(&ended);
            let endless = checks.run(move || lock(&ended).recv().is_ok()).await;
            assert_eq!(endless, Err(Unchecked::TimedOut));
        }
        assert_eq!(checks.run(|| 5).await, Err(Unchecked::Busy));
        assert_eq!(ServerChecks::default().run(|| 5).await, Ok(5), "of another");
        end.send(()).unwrap();
        assert_eq!(checks.run(|| 5).await, Ok(5), "one has ended");
        drop(end);
    }
}
