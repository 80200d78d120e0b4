//! What precedes the answer of one call, from whoever reads of the server to the edge that writes it.
//!
//! A bounded queue. Most calls are answered without anything before: until the first event it is a
//! flag and a place for the reader's waker, where a channel would bring room for many.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll, Waker},
};

use tokio::task::coop::cooperative;

use super::Event;
use crate::lock::lock;

/// Notifications and server requests of one call that wait for the edge to write them.
pub const EVENTS_MAX: usize = 256;

/// Takes what precedes the answer.
#[derive(Clone, Debug)]
pub struct EventSender(Arc<EventQueue>);

/// Reads what precedes the answer; when it is dropped, nothing more is taken.
#[derive(Debug)]
pub struct EventReader(Arc<EventQueue>);

#[derive(Debug, Default)]
struct EventQueue(Mutex<QueueState>);

#[derive(Debug, Default)]
struct QueueState {
    waiting: VecDeque<Event>,
    reader: Option<Waker>,
    closed: bool,
}

/// A queue with nothing in it.
pub fn event_queue() -> (EventSender, EventReader) {
    let queue = Arc::new(EventQueue::default());
    (EventSender(Arc::clone(&queue)), EventReader(queue))
}

impl EventSender {
    /// Puts `event` after those that wait; whether it did, which it does not when nobody reads any
    /// more or too much waits to be read.
    pub fn send(&self, event: Event) -> bool {
        let mut state = self.0.lock();
        if state.closed || state.waiting.len() >= EVENTS_MAX {
            return false;
        }
        state.waiting.push_back(event);
        let reader = state.reader.take();
        drop(state);
        if let Some(reader) = reader {
            reader.wake();
        }
        true
    }
}

impl EventReader {
    /// The next event, as soon as there is one.
    pub async fn next(&mut self) -> Event {
        // Who is told without end lets others of its thread go on between.
        cooperative(poll_fn(|cx| self.poll(cx))).await
    }

    /// The next event, when it is there.
    pub fn try_next(&mut self) -> Option<Event> {
        self.0.lock().waiting.pop_front()
    }

    /// Hands every event to `put` until there is an answer, and those that came before it even then:
    /// nothing of a call follows its answer.
    pub async fn drain_until<T>(
        &mut self,
        answer: impl Future<Output = T>,
        mut put: impl FnMut(Event),
    ) -> T {
        let mut answer = pin!(answer);
        let answered = loop {
            tokio::select! {
                biased;
                event = self.next() => put(event),
                answered = &mut answer => break answered,
            }
        };
        while let Some(event) = self.try_next() {
            put(event);
        }
        answered
    }

    /// Takes nothing more; what is there can still be read.
    pub fn close(&mut self) {
        self.0.lock().closed = true;
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Event> {
        let mut state = self.0.lock();
        if let Some(event) = state.waiting.pop_front() {
            state.reader = None;
            return Poll::Ready(event);
        }
        match &mut state.reader {
            Some(reader) => reader.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Drop for EventReader {
    fn drop(&mut self) {
        // What is dropped with the events may look at this queue.
        let unread = {
            let mut state = self.0.lock();
            state.closed = true;
            (std::mem::take(&mut state.waiting), state.reader.take())
        };
        drop(unread);
    }
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn event(name: &'static str) -> Event {
        Event::Notification {
            method: Cow::Borrowed(name),
            params: None,
        }
    }

    fn name(event: Event) -> Cow<'static, str> {
        match event {
            Event::Notification { method, .. } => method,
            other @ (Event::Pause { .. } | Event::Request(_)) => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn events_come_in_order_and_wake_who_waits() {
        let (send, mut read) = event_queue();
        assert!(read.try_next().is_none());
        let sender = send.clone();
        let (first, ()) = tokio::join!(read.next(), async move {
            assert!(sender.send(event("a")));
            assert!(sender.send(event("b")));
        });
        assert_eq!(name(first), "a");
        assert_eq!(name(read.next().await), "b");
        assert!(read.try_next().is_none());
    }

    #[tokio::test]
    async fn an_answer_is_the_last_of_its_call() {
        let (send, mut read) = event_queue();
        let mut heard = Vec::new();
        let answer = async {
            assert!(send.send(event("a")));
            tokio::task::yield_now().await;
            // These two are there only together with the answer.
            assert!(send.send(event("b")));
            assert!(send.send(event("c")));
            "answer"
        };
        let answer = read
            .drain_until(answer, |event| heard.push(name(event)))
            .await;
        heard.push(answer.into());
        assert_eq!(heard, ["a", "b", "c", "answer"]);
    }

    #[test]
    fn as_many_wait_as_there_is_room_for() {
        let (send, mut read) = event_queue();
        for _ in 0..EVENTS_MAX {
            assert!(send.send(event("a")));
        }
        assert!(!send.send(event("b")));
        read.try_next().expect("it was taken");
        assert!(send.send(event("b")));
    }

    #[test]
    fn nothing_is_taken_that_nobody_reads() {
        let (send, mut read) = event_queue();
        assert!(send.send(event("a")));
        read.close();
        assert!(!send.send(event("b")));
        assert_eq!(read.try_next().map(name).as_deref(), Some("a"));
        drop(read);
        assert!(!send.send(event("b")));
    }
}
