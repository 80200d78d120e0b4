//! Work on schemas that a server wrote. It may take long whatever is done against that, so it is done
//! on threads of its own, and nobody waits for it for ever.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Semaphore, task::spawn_blocking, time::timeout};

/// How long a check may take, and wait for its turn. A schema that takes longer is one that cannot be
/// used.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Checks of one server that took longer and go on in threads of their own, since nothing ends them:
/// where so many do, none of its schemas that are new are used.
pub(super) const ENDLESS_MAX: usize = 2;

/// Checks at a time; the runtime's workers make none.
static TURNS: Semaphore = Semaphore::const_new(4);

/// The checks of one server: those that nobody waits for any more and that still run.
#[derive(Clone, Debug, Default)]
pub(super) struct Checks(Arc<AtomicUsize>);

/// Why a check says nothing.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Unchecked {
    /// It did not get its turn: too many are made at once.
    Busy,
    /// It takes too long; it is not to be tried again.
    Late,
    /// It panicked.
    Broken,
}

impl Checks {
    /// Whether so many do not end that no further schema is to be tried.
    pub(super) fn are_stuck(&self) -> bool {
        self.0.load(Ordering::SeqCst) >= ENDLESS_MAX
    }

    /// Does `work`, which is a check.
    ///
    /// # Errors
    /// When it could not be waited for.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Unchecked> {
        let turn = timeout(PATIENCE, TURNS.acquire()).await;
        let turn = turn.map_err(|_| Unchecked::Busy)?;
        let check = Check::of(&self.0);
        let ended = Ended(check.clone());
        let work = spawn_blocking(move || {
            let _ended = ended;
            work()
        });
        let done = timeout(PATIENCE, work).await;
        drop(turn);
        match done {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => {
                tracing::error!(%error, "a check broke off");
                Err(Unchecked::Broken)
            }
            Err(_) => {
                check.give_up();
                Err(Unchecked::Late)
            }
        }
    }
}

/// One check, as who waits for it knows it.
#[derive(Clone, Debug)]
struct Check {
    /// Whether it has ended, or nobody waits for it.
    is_left: Arc<AtomicBool>,
    endless: Arc<AtomicUsize>,
}

impl Check {
    fn of(endless: &Arc<AtomicUsize>) -> Self {
        Self {
            is_left: Arc::default(),
            endless: Arc::clone(endless),
        }
    }

    /// Nobody waits for it any more.
    fn give_up(&self) {
        if !self.is_left.swap(true, Ordering::SeqCst) {
            self.endless.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// Dropped when a check has ended, which may be after it was given up.
#[derive(Debug)]
struct Ended(Check);

impl Drop for Ended {
    fn drop(&mut self) {
        let Check { is_left, endless } = &self.0;
        if is_left.swap(true, Ordering::SeqCst) {
            endless.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::lock::lock;

    #[tokio::test]
    async fn so_many_may_not_end_and_no_more() {
        let checks = Checks::default();
        assert_eq!(checks.run(|| 5).await, Ok(5));
        assert_eq!(
            checks.run(|| panic!("odd")).await,
            Err::<(), _>(Unchecked::Broken)
        );
        let (end, ended) = mpsc::channel::<()>();
        let ended = Arc::new(Mutex::new(ended));
        let endless = || {
            let ended = Arc::clone(&ended);
            checks.run(move || lock(&ended).recv().is_ok())
        };
        assert_eq!(endless().await, Err(Unchecked::Late));
        assert!(!checks.are_stuck());
        assert_eq!(endless().await, Err(Unchecked::Late));
        assert!(checks.are_stuck());
        end.send(()).unwrap();
        while checks.are_stuck() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(end);
    }

    #[test]
    fn a_check_counts_from_when_it_is_given_up_until_it_ends() {
        let endless = Arc::new(AtomicUsize::new(0));
        let count = || endless.load(Ordering::SeqCst);
        let begin = || {
            let check = Check::of(&endless);
            (check.clone(), Ended(check))
        };
        let (long, ended) = begin();
        long.give_up();
        assert_eq!(count(), 1);
        drop(ended);
        assert_eq!(count(), 0);
        let (late, ended) = begin();
        drop(ended);
        late.give_up();
        assert_eq!(count(), 0, "it ended in the very moment");
    }
}
