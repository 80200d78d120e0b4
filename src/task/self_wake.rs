//! A future that is polled only when something woke it, and then again at once as long as it wakes
//! itself.
//!
//! Parts of one task wake each other: reading a body wakes its sender, which the same task polls. The
//! runtime would queue the task once more and wake a second thread for it, which costs more than the
//! work that is left. And a task polls all of its parts for each one that was woken. The connections of
//! clients are wrapped in this, and so is the future that answers the request on one. What it saves:
//! `docs/src/performance.md`.
//!
//! The contract is that of [`Future`]: each wake leads to a poll, by this or by the task around it.
//! After some polls in a row the rest waits for the next turn of the task.

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU8, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

/// Polls in a row; a future that still wakes itself then waits its turn like any other.
const POLLS_MAX: usize = 8;

/// Nobody polls; a wake goes to the task.
const IDLE: u8 = 0;
/// Being polled, and not woken since that began; a wake is noted.
const POLLING: u8 = 1;
/// Woken, whoever polls next finds something to do; the task knows.
const WOKEN: u8 = 2;

/// See the module.
#[derive(Debug)]
pub(crate) struct SelfWake<F> {
    future: Pin<Box<F>>,
    local_waker: Arc<LocalWaker>,
    waker: Waker,
    /// The task that polled last, which `local_waker` knows too.
    task: Waker,
}

#[derive(Debug)]
struct LocalWaker {
    state: AtomicU8,
    task: Mutex<Waker>,
}

impl<F: Future> SelfWake<F> {
    /// Wraps `future`, whose box is made where it is: it may be large.
    pub(crate) fn new(future: Pin<Box<F>>) -> Self {
        let local_waker = Arc::new(LocalWaker {
            // The first poll needs no wake.
            state: AtomicU8::new(WOKEN),
            task: Mutex::new(Waker::noop().clone()),
        });
        Self {
            future,
            waker: Waker::from(Arc::clone(&local_waker)),
            task: Waker::noop().clone(),
            local_waker,
        }
    }
}

impl<F: Future> Future for SelfWake<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let Self {
            future,
            local_waker,
            waker,
            task,
        } = self.get_mut();
        if !task.will_wake(cx.waker()) {
            task.clone_from(cx.waker());
            local_waker.set_task(task);
        }
        for _ in 0..POLLS_MAX {
            if !local_waker.transition(WOKEN, POLLING) {
                return Poll::Pending;
            }
            let polled = future.as_mut().poll(&mut Context::from_waker(waker));
            if polled.is_ready() || local_waker.transition(POLLING, IDLE) {
                return polled;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl LocalWaker {
    /// Who is woken; noted before the state is looked at, so that no wake goes to who was before.
    fn set_task(&self, task: &Waker) {
        let mut known = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        known.clone_from(task);
    }

    fn transition(&self, from: u8, to: u8) -> bool {
        self.state
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }
}

impl Wake for LocalWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, Ordering::AcqRel) == IDLE {
            let task = self.task.lock().unwrap_or_else(PoisonError::into_inner);
            task.wake_by_ref();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Wakes itself in each of its first `wakes` polls, and is ready after `polls` of them.
    fn check(wakes: usize, polls: usize, expect: (Poll<()>, usize, usize)) {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let mut polled = 0;
        let mut steady = SelfWake::new(Box::pin(std::future::poll_fn(|cx| {
            polled += 1;
            if polled <= wakes {
                cx.waker().wake_by_ref();
            }
            if polled < polls {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })));
        let found = Pin::new(&mut steady).poll(&mut Context::from_waker(&task));
        drop(steady);
        let woken = count.0.load(Ordering::Relaxed);
        assert_eq!((found, polled, woken), expect, "{wakes} {polls}");
    }

    #[test]
    fn who_wakes_itself_is_polled_again_at_once() {
        check(0, 1, (Poll::Ready(()), 1, 0));
        check(0, 2, (Poll::Pending, 1, 0));
        check(1, 2, (Poll::Ready(()), 2, 0));
        check(2, 9, (Poll::Pending, 3, 0));
        check(99, 99, (Poll::Pending, POLLS_MAX, 1));
    }

    #[test]
    fn who_was_not_woken_is_not_polled() {
        let task = Waker::from(Arc::new(Count::default()));
        let mut polled = 0;
        let mut steady = SelfWake::new(Box::pin(std::future::poll_fn(|_| {
            polled += 1;
            Poll::<()>::Pending
        })));
        let bell = Arc::clone(&steady.local_waker);
        let mut poll = || Pin::new(&mut steady).poll(&mut Context::from_waker(&task));
        for _ in 0..3 {
            assert_eq!(poll(), Poll::Pending);
        }
        Waker::from(bell).wake();
        for _ in 0..3 {
            assert_eq!(poll(), Poll::Pending);
        }
        drop(steady);
        assert_eq!(polled, 2, "at first, and once it was woken");
    }

    #[test]
    fn others_wake_the_task() {
        let count = Arc::new(Count::default());
        let task = Waker::from(Arc::clone(&count));
        let mut inner = None;
        let mut steady = SelfWake::new(Box::pin(std::future::poll_fn(|cx| {
            inner = Some(cx.waker().clone());
            Poll::<()>::Pending
        })));
        assert!(
            Pin::new(&mut steady)
                .poll(&mut Context::from_waker(&task))
                .is_pending()
        );
        drop(steady);
        inner.expect("it was polled").wake();
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
