//! The only place that spawns: every task has a name, is counted, and ends on the root token.

mod blocking;
mod flush_batch;
mod in_flight;
mod self_wake;

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::runtime::Handle;
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tracing::{Instrument, Span};

pub(crate) use blocking::{LARGE_BYTES, run_blocking, run_blocking_if_large};
pub(crate) use flush_batch::FlushLater;
pub(crate) use in_flight::{InFlight, InFlightGuard};
pub(crate) use self_wake::SelfWake;

/// Spawns tasks that belong to this process and waits for them at the end.
#[derive(Clone, Debug)]
pub struct Tasks(Arc<TaskGroup>);

#[derive(Debug)]
struct TaskGroup {
    tracker: TaskTracker,
    drain: CancellationToken,
    stop: CancellationToken,
    runtime: Handle,
    /// Requests that are not answered yet.
    in_flight: InFlight,
    /// What log lines of the tasks are about.
    span: Span,
}

impl Tasks {
    /// A group of tasks on the current runtime.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new() -> Self {
        Self(Arc::new(TaskGroup {
            tracker: TaskTracker::new(),
            drain: CancellationToken::new(),
            stop: CancellationToken::new(),
            runtime: Handle::current(),
            in_flight: InFlight::default(),
            span: Span::none(),
        }))
    }

    /// The same tasks; what is spawned through these logs within `span`.
    #[must_use]
    pub fn with_span(&self, span: Span) -> Self {
        let TaskGroup {
            tracker,
            drain,
            stop,
            runtime,
            in_flight: under_way,
            span: _,
        } = &*self.0;
        Self(Arc::new(TaskGroup {
            tracker: tracker.clone(),
            drain: drain.clone(),
            stop: stop.clone(),
            runtime: runtime.clone(),
            in_flight: under_way.clone(),
            span,
        }))
    }

    /// What log lines of the tasks are about.
    pub fn span(&self) -> &Span {
        &self.0.span
    }

    /// Starts `future` under `name`. It must end soon after [`Tasks::stop_token`] is cancelled.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        // The runtime has much code for each type of future that it is given: one is enough.
        self.spawn_boxed(name, Box::pin(future));
    }

    fn spawn_boxed(&self, name: &'static str, future: Pin<Box<dyn Future<Output = ()> + Send>>) {
        let TaskGroup {
            tracker,
            runtime,
            span: around,
            ..
        } = &*self.0;
        let span = around.in_scope(|| tracing::debug_span!("task", task = name));
        // Where debugging is off there is no such span, but still the one around it.
        let span = if span.is_disabled() {
            around.clone()
        } else {
            span
        };
        tracker.spawn_on(future.instrument(span), runtime);
    }

    /// Says that a stop has begun: what runs may finish, and nothing new is taken.
    pub fn drain(&self) {
        self.0.drain.cancel();
    }

    /// Cancelled by [`Tasks::drain`], some time before [`Tasks::stop_token`].
    pub fn drain_token(&self) -> &CancellationToken {
        &self.0.drain
    }

    /// The token that ends every task.
    pub fn stop_token(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// Cancels the token and waits until every task has ended.
    pub async fn finish(&self) {
        self.0.stop.cancel();
        self.0.tracker.close();
        self.0.tracker.wait().await;
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}

/// A future that is carried to its end by a task of its own when whoever polls it gives up.
///
/// An HTTP server drops the handler when the connection breaks; a governed call must still be
/// settled then. `gone` is cancelled at that moment, for work that should stop early.
pub struct Detached<T: Send + 'static> {
    future: Option<Pin<Box<dyn Future<Output = T> + Send>>>,
    gone: Option<CancellationToken>,
    tasks: Tasks,
}

impl<T: Send + 'static> Detached<T> {
    /// Wraps `future`, whose box is made where it is: it may be large. When this is dropped
    /// unfinished, `gone` is cancelled first.
    pub fn new(
        future: Pin<Box<dyn Future<Output = T> + Send>>,
        gone: Option<CancellationToken>,
        tasks: Tasks,
    ) -> Self {
        Self {
            future: Some(future),
            gone,
            tasks,
        }
    }
}

impl<T: Send + 'static> std::fmt::Debug for Detached<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = if self.future.is_some() {
            "running"
        } else {
            "done"
        };
        write!(f, "Detached({state})")
    }
}

impl<T: Send + 'static> Future for Detached<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<T> {
        // One that panics is gone: nobody carries it to an end.
        let mut future = self.future.take().expect("polled after it was ready");
        let polled = future.as_mut().poll(cx);
        if polled.is_pending() {
            self.future = Some(future);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for Detached<T> {
    fn drop(&mut self) {
        let Some(future) = self.future.take() else {
            return;
        };
        if let Some(gone) = &self.gone {
            gone.cancel();
        }
        self.tasks.spawn("abandoned call", async move {
            drop(future.await);
        });
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn an_abandoned_future_is_carried_to_its_end() {
        let tasks = Tasks::new();
        let gone = CancellationToken::new();
        let (go, wait) = oneshot::channel::<()>();
        let (done, finished) = oneshot::channel::<bool>();
        let seen = gone.clone();
        let mut call = Detached::new(
            Box::pin(async move {
                wait.await.unwrap();
                done.send(seen.is_cancelled()).unwrap();
            }),
            Some(gone),
            tasks.clone(),
        );
        tokio::select! { biased; () = &mut call => panic!("nothing let it go"), () = async {} => {} }
        drop(call);
        go.send(()).unwrap();
        assert!(
            finished.await.unwrap(),
            "the token was cancelled before the rest ran"
        );
        tasks.finish().await;
    }

    #[tokio::test]
    async fn one_that_panics_is_carried_nowhere() {
        let tasks = Tasks::new();
        let call: Detached<()> = Detached::new(
            Box::pin(async { panic!("a mistake of ours") }),
            None,
            tasks.clone(),
        );
        let polled = std::panic::AssertUnwindSafe(call).catch_unwind().await;
        assert!(polled.is_err());
        assert!(tasks.0.tracker.is_empty(), "nothing was spawned");
        tasks.finish().await;
    }
}
