//! What is kept of a stream, for whom, and for how long.

use super::*;

fn message(text: &'static str) -> StreamItem {
    StreamItem::Message(Bytes::from_static(text.as_bytes()))
}

#[tokio::test]
async fn a_reader_resumes_where_it_lost_the_stream() {
    let stream = ReplayStream::new(1);
    let mut first = stream.attach_at_end();
    stream.push_required(message("a"));
    stream.push_required(message("b"));
    assert_eq!(stream.next(&mut first).await, Some(message("a")));
    let mut second = stream.resume(1);
    stream.push_required(message("c"));
    stream.finish();
    assert_eq!(stream.next(&mut second).await, Some(message("b")));
    assert_eq!(stream.next(&mut second).await, Some(message("c")));
    assert_eq!(stream.next(&mut second).await, None);
}

#[tokio::test]
async fn what_is_kept_outlasts_any_backlog_and_is_there_once() {
    let stream = ReplayStream::new(1);
    let changed = Bytes::from_static(b"changed");
    for _ in 0..2 * RETAINED_MESSAGES_MAX {
        stream.push_droppable(Bytes::from_static(b"log"));
        stream.push_deduplicated(changed.clone());
    }
    stream.finish();
    let mut place = stream.attach_at_end();
    let mut found = Vec::new();
    while let Some(item) = stream.next(&mut place).await {
        found.push(item);
    }
    let kept = found.iter().filter(|item| **item == message("changed"));
    assert_eq!(kept.count(), 1);
    assert_eq!(found.len(), RETAINED_MESSAGES_MAX);
}

#[tokio::test]
async fn what_was_read_is_kept_anew() {
    let stream = ReplayStream::new(1);
    let mut place = stream.attach_at_end();
    for _ in 0..2 {
        stream.push_deduplicated(Bytes::from_static(b"changed"));
        assert_eq!(stream.next(&mut place).await, Some(message("changed")));
    }
}

/// A server that closes its stream again and again while nobody reads fills nothing.
#[tokio::test]
async fn pauses_that_nobody_reads_are_one() {
    let stream = ReplayStream::new(1);
    for _ in 0..=UNREAD_MESSAGES_MAX {
        stream.pause(None);
    }
    stream.push_required(message("answer"));
    let mut place = stream.attach_at_end();
    assert_eq!(stream.next(&mut place).await, Some(StreamItem::Pause(None)));
    assert_eq!(stream.next(&mut place).await, Some(message("answer")));
}

#[tokio::test]
async fn a_pause_ends_present_readers_only() {
    let stream = ReplayStream::new(1);
    let mut reader = stream.attach_at_end();
    stream.push_required(message("a"));
    stream.pause(Some(5));
    assert_eq!(stream.next(&mut reader).await, Some(message("a")));
    assert_eq!(
        stream.next(&mut reader).await,
        Some(StreamItem::Pause(Some(5)))
    );
    assert_eq!(stream.next(&mut reader).await, None);
    let mut later = stream.resume(reader.seq);
    stream.push_required(message("b"));
    assert_eq!(stream.next(&mut later).await, Some(message("b")));
}

#[tokio::test]
async fn what_may_be_lost_goes_before_what_must_not() {
    let stream = ReplayStream::new(1);
    let mut reader = stream.attach_at_end();
    for _ in 0..RETAINED_MESSAGES_MAX {
        stream.push_droppable(Bytes::from_static(b"progress"));
    }
    assert_eq!(stream.dropped(), 0, "at the limit nothing is lost");
    stream.push_droppable(Bytes::from_static(b"one too many"));
    assert_eq!(stream.dropped(), 1);
    stream.push_required(message("answer"));
    stream.finish();
    let mut read = Vec::new();
    while let Some(item) = stream.next(&mut reader).await {
        read.push(item);
    }
    assert_eq!(read.len(), RETAINED_MESSAGES_MAX);
    assert_eq!(read.last(), Some(&message("answer")));
}

#[tokio::test(start_paused = true)]
async fn what_nobody_read_is_there_for_the_next_reader() {
    let stream = ReplayStream::new(1);
    let mut first = stream.attach_at_end();
    stream.push_required(message("a"));
    stream.push_required(message("b"));
    assert_eq!(stream.next(&mut first).await, Some(message("a")));
    let mut second = stream.attach_at_end();
    assert_eq!(stream.next(&mut first).await, None, "it was replaced");
    stream.finish();
    assert!(!stream.is_expired());
    assert_eq!(stream.next(&mut second).await, Some(message("b")));
    assert_eq!(stream.next(&mut second).await, None);
    assert!(!stream.is_expired(), "its end may not have arrived");
    tokio::time::advance(FINISHED_TTL).await;
    assert!(stream.is_expired());
}

#[test]
fn a_stream_that_nobody_reads_is_given_up() {
    let overrun = CancellationToken::new();
    let stream = ReplayStream::with_overrun(1, overrun.clone());
    for _ in 0..UNREAD_MESSAGES_MAX {
        stream.push_required(message("x"));
    }
    assert!(!overrun.is_cancelled(), "at the limit it goes on");
    stream.push_required(message("one too many"));
    assert!(overrun.is_cancelled() && stream.is_finished());
}

/// Large messages are bounded by their bytes, at the limit, past it and back under it.
#[tokio::test]
async fn unread_bytes_are_bounded() {
    let part = Bytes::from(vec![b'x'; 1 << 20]);
    let parts = UNREAD_BYTES_MAX / part.len();
    let push = |stream: &ReplayStream| stream.push_required(StreamItem::Message(part.clone()));
    let overrun = CancellationToken::new();
    let stream = ReplayStream::with_overrun(1, overrun.clone());
    let mut reader = stream.attach_at_end();
    for _ in 0..parts {
        push(&stream);
    }
    assert_eq!(stream.bytes(), UNREAD_BYTES_MAX);
    assert!(!overrun.is_cancelled(), "at the limit it goes on");
    assert!(stream.next(&mut reader).await.is_some());
    push(&stream);
    assert!(!overrun.is_cancelled(), "what was read makes room");
    push(&stream);
    assert!(overrun.is_cancelled() && stream.is_finished(), "past it");
    assert_eq!(stream.bytes(), 0, "nothing is kept of it");
    assert_eq!(stream.next(&mut reader).await, None);
}

/// A message that is larger than all that may wait does so beside what is there, and beside what
/// comes; there may be one of them.
#[test]
fn one_larger_message_may_wait() {
    let larger = || StreamItem::Message(Bytes::from(vec![b'x'; UNREAD_BYTES_MAX + 1]));
    let overrun = CancellationToken::new();
    let stream = ReplayStream::with_overrun(1, overrun.clone());
    stream.push_required(message("log"));
    stream.push_required(larger());
    stream.push_required(message("changed"));
    assert!(!overrun.is_cancelled());
    assert_eq!(stream.bytes(), UNREAD_BYTES_MAX + 11);
    stream.push_required(larger());
    stream.push_required(message("one too many"));
    assert!(overrun.is_cancelled());
}

#[tokio::test]
async fn answers_wait_for_room_one_after_the_other() {
    let stream = ReplayStream::new(1);
    let mut reader = stream.attach_at_end();
    let answer = Bytes::from(vec![b'x'; UNREAD_BYTES_MAX]);
    let send = async || stream.send(answer.clone()).await;
    let read = async {
        for _ in 0..3 {
            let read = stream.next(&mut reader).await;
            assert_eq!(read, Some(StreamItem::Message(answer.clone())));
            assert!(stream.bytes() <= 2 * UNREAD_BYTES_MAX);
        }
    };
    let (one, two, three, ()) = tokio::join!(send(), send(), send(), read);
    assert_eq!([one, two, three], [Ok(()); 3]);
}

#[tokio::test(start_paused = true)]
async fn a_reader_that_stalls_loses_the_stream() {
    let stream = ReplayStream::new(1);
    let _reader = stream.attach_at_end();
    for _ in 0..RETAINED_MESSAGES_MAX {
        stream.push_required(message("x"));
    }
    assert_eq!(
        stream.send(Bytes::from_static(b"y")).await,
        Err(ReaderStalled)
    );
    assert!(stream.is_finished());
}
