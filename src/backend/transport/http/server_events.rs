//! The events of a server, as many and as large as they may be.
//!
//! What makes no message (comments, empty lines, other data) keeps a stream alive, and costs as much to
//! read as what does. A server may send so much of it and no more: it would keep a worker busy until the deadline of the call,
//! or for ever on a stream that has none.

use tokio::{task::yield_now, time::Instant};

use crate::{
    backend::{
        BackendError,
        link::pending::{LinkSettings, PendingRequests},
    },
    limiter::{ByteBudgetExceeded, Reservation},
    mcp::{
        envelope::Unreadable,
        sse::{self, EventTooLarge, NextEvent},
    },
};

/// Bytes that make no event, at once: thousands of keep-alives.
const IDLE_BYTES_MAX: usize = 256 << 10;

/// How many more there may be each second.
const IDLE_BYTES_PER_SEC: usize = 16 << 10;

/// Reads events from chunks.
#[derive(Debug)]
pub(in crate::backend) struct ServerEvents {
    reader: sse::SseReader,
    reservation: Reservation,
    /// Whether the stream is of one call, which fails alone where there is no memory for its answer.
    is_of_call: bool,
    idle: IdleBytes,
}

/// What has come without an event.
#[derive(Debug)]
struct IdleBytes {
    bytes: usize,
    since: Instant,
}

/// What a server may not send.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub(in crate::backend) enum StreamExcess {
    #[error("the stream sends only comments and blank lines")]
    Idle,
    #[error(transparent)]
    NoMemory(#[from] ByteBudgetExceeded),
    #[error("a message exceeds limits.response ({} bytes)", .0.bytes_max)]
    TooLarge(#[from] EventTooLarge),
}

impl StreamExcess {
    /// Why a call is not answered for it.
    pub(in crate::backend) fn into_error(self) -> BackendError {
        match self {
            Self::Idle => BackendError::protocol_violation(self.to_string()),
            Self::NoMemory(_) => BackendError::NoMemory,
            Self::TooLarge(EventTooLarge { bytes_max }) => {
                BackendError::ResponseTooLarge { limit: bytes_max }
            }
        }
    }
}

/// That a server sent JSON where events should be.
pub(in crate::backend) fn unframed_error() -> BackendError {
    BackendError::protocol_violation(
        "the response is `text/event-stream`, but its JSON has no `data:` before it",
    )
}

/// Fails the requests that such JSON answers on a stream of many.
pub(in crate::backend) fn fail_unframed(requests: &PendingRequests, json: &[u8]) {
    for id in Unreadable::answered_by(json) {
        requests.fail(id, unframed_error());
    }
}

impl ServerEvents {
    /// Those of a stream of one call.
    pub(in crate::backend) fn for_call(settings: &LinkSettings) -> Self {
        Self {
            is_of_call: true,
            ..Self::for_connection(settings)
        }
    }

    /// Those of a stream that belongs to no call: its end would fail all of them, so that what comes is
    /// counted as held, and not refused.
    pub(in crate::backend) fn for_connection(settings: &LinkSettings) -> Self {
        Self {
            is_of_call: false,
            reader: sse::SseReader::new(settings.response_bytes_max),
            reservation: settings.byte_budget.reserve_answer(),
            idle: IdleBytes {
                bytes: 0,
                since: Instant::now(),
            },
        }
    }

    /// Takes the next chunk.
    pub(in crate::backend) fn push(&mut self, chunk: &[u8]) -> Result<(), StreamExcess> {
        // What was read and is no longer there made no event.
        self.idle.check(self.reader.take_dropped_bytes())?;
        self.reader.push(chunk)?;
        let buffered = self.reader.buffered();
        if self.is_of_call {
            self.reservation.grow_to(buffered)?;
        } else {
            self.reservation.force_to(buffered);
        }
        Ok(())
    }

    /// Whether JSON has begun to come that is no event, see [`sse::SseReader::has_unframed_json`].
    pub(in crate::backend) fn has_unframed_json(&self) -> bool {
        self.reader.has_unframed_json()
    }

    /// The next event that is there as a whole. Many lines that make none leave turns to others.
    pub(in crate::backend) async fn next(&mut self) -> Option<sse::SseEvent> {
        loop {
            match self.reader.next_event() {
                NextEvent::Event(mut event) => {
                    // One without data only says where to resume, and other data is no message.
                    let dropped = self.reader.take_dropped_bytes();
                    self.idle.bytes = match event.data.trim_ascii() {
                        [b'{' | b'[', ..] => 0,
                        other => self.idle.bytes + dropped + other.len(),
                    };
                    event.data = self.reservation.split_off().attach(event.data);
                    return Some(event);
                }
                NextEvent::Yield => yield_now().await,
                NextEvent::Pending => return None,
            }
        }
    }
}

impl IdleBytes {
    /// Notes so many bytes more without an event.
    fn check(&mut self, bytes: usize) -> Result<(), StreamExcess> {
        if bytes == 0 && self.bytes <= IDLE_BYTES_MAX {
            return Ok(());
        }
        let now = Instant::now();
        let seconds = usize::try_from((now - self.since).as_secs()).unwrap_or(usize::MAX);
        if seconds > 0 {
            self.since = now;
            let allowed = seconds.saturating_mul(IDLE_BYTES_PER_SEC);
            self.bytes = self.bytes.saturating_sub(allowed);
        }
        self.bytes += bytes;
        if self.bytes > IDLE_BYTES_MAX {
            return Err(StreamExcess::Idle);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::sleep;

    use super::*;

    const COMMENT: &[u8] = b": x\n";

    async fn comments(events: &mut ServerEvents, bytes: usize) -> Result<(), StreamExcess> {
        for _ in 0..bytes / COMMENT.len() {
            events.push(COMMENT)?;
            assert!(events.next().await.is_none());
        }
        events.push(b"")
    }

    #[tokio::test(start_paused = true)]
    async fn comments_at_past_and_back_under_the_limit() {
        let mut events = ServerEvents::for_call(&LinkSettings::example());
        comments(&mut events, IDLE_BYTES_MAX).await.unwrap();
        events.push(b"data: {}\n\n").unwrap();
        assert_eq!(
            events.next().await.unwrap().data,
            "{}",
            "a message begins anew"
        );
        comments(&mut events, IDLE_BYTES_MAX - 16).await.unwrap();
        events.push(b"id: 1\ndata: \n\n").unwrap();
        assert_eq!(events.next().await.unwrap().data, "");
        let excess = comments(&mut events, 16).await.unwrap_err();
        assert_eq!(excess, StreamExcess::Idle, "there was no message");
        let mut events = ServerEvents::for_call(&LinkSettings::example());
        let flood = async {
            loop {
                events.push(b"data: 0\n\n")?;
                events.next().await;
            }
        };
        let excess: Result<(), StreamExcess> = flood.await;
        assert_eq!(excess, Err(StreamExcess::Idle), "nor is that one");
        let mut events = ServerEvents::for_call(&LinkSettings::example());
        comments(&mut events, IDLE_BYTES_MAX).await.unwrap();
        sleep(Duration::from_secs(1)).await;
        comments(&mut events, IDLE_BYTES_PER_SEC).await.unwrap();
        let excess = comments(&mut events, COMMENT.len()).await.unwrap_err();
        assert_eq!(excess, StreamExcess::Idle);
        assert!(excess.into_error().to_string().contains("comments"));
    }

    /// A large event is no idle talk, in however many pieces it comes.
    #[tokio::test(start_paused = true)]
    async fn the_lines_of_an_event_are_not_idle() {
        let mut settings = LinkSettings::example();
        settings.response_bytes_max = 4 * IDLE_BYTES_MAX;
        let mut events = ServerEvents::for_call(&settings);
        for _ in 0..3 * IDLE_BYTES_MAX / 1024 {
            events.push(b"data: ").unwrap();
            events.push(&[b'x'; 1024]).unwrap();
            events.push(b"\n").unwrap();
            assert!(events.next().await.is_none());
        }
        events.push(b"\n").unwrap();
        let event = events.next().await.unwrap();
        assert!(event.data.len() > 3 * IDLE_BYTES_MAX);
        assert!(settings.byte_budget.used() > 3 * IDLE_BYTES_MAX);
        drop(event);
        assert_eq!(settings.byte_budget.used(), 0);
    }

    #[tokio::test]
    async fn many_lines_that_make_no_event_leave_turns_to_others() {
        let mut settings = LinkSettings::example();
        settings.response_bytes_max = 1 << 20;
        let mut events = ServerEvents::for_call(&settings);
        events.push(": x\n".repeat(10_000).as_bytes()).unwrap();
        assert!(events.next().now_or_never().is_none());
        assert!(events.next().await.is_none());
    }

    /// Where there is no memory for what comes, a stream of one call ends, and one of many does not.
    #[tokio::test]
    async fn a_stream_of_many_calls_is_not_ended_for_memory() {
        let settings = LinkSettings {
            byte_budget: crate::limiter::ByteBudget::new(0),
            response_bytes_max: 1 << 20,
            ..LinkSettings::example()
        };
        let event = format!("data: {}\n\n", "x".repeat(100_000));
        let mut of_call = ServerEvents::for_call(&settings);
        assert!(matches!(
            of_call.push(event.as_bytes()),
            Err(StreamExcess::NoMemory(_))
        ));
        let mut of_connection = ServerEvents::for_connection(&settings);
        assert_eq!(of_connection.push(event.as_bytes()), Ok(()));
        let event = of_connection.next().await.unwrap();
        assert!(settings.byte_budget.used() >= event.data.len());
        drop(event);
        assert_eq!(settings.byte_budget.used(), 0);
    }
}
