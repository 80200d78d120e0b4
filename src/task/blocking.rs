//! Work that would hold up a worker, and with it all whom that serves, done on threads of its own.
//!
//! What such work costs grows with what servers list, and with what they and their clients say, so that
//! one of them could slow down all others. Whoever asks for it waits, and whoever has large data, too;
//! nobody else does.

use std::panic::resume_unwind;

use tokio::{
    sync::Semaphore,
    task::{JoinError, spawn_blocking},
};
use tracing::Span;

/// More bytes than this take longer to go through than the way to another thread and back.
pub(crate) const LARGE_BYTES: usize = 256 << 10;

/// How many threads go through large data at once; the rest wait for their turn, so that the workers
/// find a processor.
static LARGE_WORK_PERMITS: Semaphore = Semaphore::const_new(4);

/// Does `work` on a thread of its own. It is done also when nobody waits for it any more; its panic is
/// that of the caller.
pub(crate) async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    let span = Span::current();
    match spawn_blocking(move || span.in_scope(work)).await {
        Ok(done) => done,
        Err(error) => resume_panic(error).await,
    }
}

/// Does `work`, which goes through so many `bytes`; aside where they are many.
pub(crate) async fn run_blocking_if_large<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> T {
    if bytes <= LARGE_BYTES {
        return work();
    }
    // It is never closed.
    let turn = LARGE_WORK_PERMITS.acquire().await;
    run_blocking(move || {
        let _turn = turn;
        work()
    })
    .await
}

async fn resume_panic<T>(error: JoinError) -> T {
    match error.try_into_panic() {
        Ok(panic) => resume_unwind(panic),
        // The runtime ends, and with it whoever waits here.
        Err(_) => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::task::Tasks;

    #[tokio::test]
    async fn others_go_on_meanwhile() {
        let (go, wait) = mpsc::channel::<()>();
        let (other, ran) = oneshot::channel();
        // Only the other task, on the same and only worker, lets the work end.
        Tasks::new().spawn("other", async move {
            go.send(()).unwrap();
            other.send(()).unwrap();
        });
        let work = run_blocking_if_large(LARGE_BYTES + 1, move || wait.recv().is_ok());
        assert!(work.await);
        ran.await.unwrap();
    }

    #[tokio::test]
    async fn what_is_small_is_done_at_once() {
        let caller = std::thread::current().id();
        let at_once = run_blocking_if_large(LARGE_BYTES, || std::thread::current().id());
        assert_eq!(at_once.now_or_never(), Some(caller));
        let elsewhere = run_blocking_if_large(LARGE_BYTES + 1, || std::thread::current().id());
        assert_ne!(elsewhere.await, caller);
    }

    #[tokio::test]
    async fn a_panic_is_that_of_the_caller() {
        let work = run_blocking(|| panic!("odd"));
        let broken = std::panic::AssertUnwindSafe(work).catch_unwind().await;
        let broken: Result<(), _> = broken;
        assert_eq!(broken.unwrap_err().downcast_ref(), Some(&"odd"));
        assert_eq!(run_blocking(|| 5).await, 5);
    }
}
