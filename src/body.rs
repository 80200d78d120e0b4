//! Reading the body of a message to its end, as both sides of the gateway do.

use bytes::{Bytes, BytesMut};
use http_body::Body;
use http_body_util::BodyExt;
use tokio::task::consume_budget;

use crate::limiter::{ByteBudgetExceeded, Reservation};

/// Why a body was not read to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum BodyError<E: std::error::Error + 'static> {
    /// The connection failed before.
    #[error("the connection failed while reading the body: {0}")]
    Connection(#[source] E),
    /// The gateway holds as much as it may.
    #[error(transparent)]
    OutOfMemory(#[from] ByteBudgetExceeded),
    /// There is more of it than may be.
    #[error("the body exceeds {limit} bytes")]
    TooLarge {
        /// How much may be.
        limit: usize,
    },
}

/// The bytes of `body`, at most `limit`, which `reservation` holds until nobody needs them any more. Most
/// bodies come in one piece, which is kept as it is.
pub(crate) async fn read_to_end<B>(
    body: &mut B,
    limit: usize,
    mut reservation: Reservation,
) -> Result<Bytes, BodyError<B::Error>>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: std::error::Error + 'static,
{
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    // One whose length is known ends with its last byte; nothing more is asked of it.
    while !body.is_end_stream()
        && let Some(frame) = body.frame().await
    {
        // Whoever sends a byte at a time, and always has one, leaves something to others.
        consume_budget().await;
        let Ok(data) = frame.map_err(BodyError::Connection)?.into_data() else {
            // Trailers.
            continue;
        };
        if data.len() > limit - first.len().max(all.len()) {
            return Err(BodyError::TooLarge { limit });
        }
        if first.is_empty() && all.is_empty() {
            reservation.grow_to(data.len())?;
            first = data;
            continue;
        }
        // It grows to twice its size.
        all.extend_from_slice(&std::mem::take(&mut first));
        all.extend_from_slice(&data);
        reservation.grow_to(all.capacity())?;
    }
    let whole = if all.is_empty() { first } else { all.freeze() };
    Ok(reservation.attach(whole))
}

#[cfg(test)]
mod tests {
    use std::io;

    use http_body::Frame;
    use http_body_util::StreamBody;

    use super::*;
    use crate::limiter::ByteBudget;

    async fn check(pieces: &[&'static str], limit: usize, expect: Result<&str, &str>) {
        let pieces = pieces.iter().map(|piece| match *piece {
            "!" => Err(io::Error::other("cut")),
            piece => Ok(Frame::data(Bytes::from_static(piece.as_bytes()))),
        });
        let mut body = StreamBody::new(futures_util::stream::iter(pieces));
        let reservation = ByteBudget::new(usize::MAX).reserve_answer();
        let found = read_to_end(&mut body, limit, reservation)
            .await
            .map_err(|unread| unread.to_string());
        let found = found.as_deref().map_err(String::as_str);
        assert_eq!(found, expect.map(str::as_bytes));
    }

    #[tokio::test]
    async fn bodies_at_past_and_back_under_the_limit() {
        check(&[], 4, Ok("")).await;
        check(&["abcd"], 4, Ok("abcd")).await;
        check(&["abcde"], 4, Err("the body exceeds 4 bytes")).await;
        check(&["ab", "", "c", "d"], 4, Ok("abcd")).await;
        check(&["", "ab", "cd", "e"], 4, Err("the body exceeds 4 bytes")).await;
        check(&["a", "bc"], 4, Ok("abc")).await;
        check(
            &["ab", "!"],
            4,
            Err("the connection failed while reading the body: cut"),
        )
        .await;
    }

    #[tokio::test]
    async fn one_piece_is_not_copied() {
        let piece = Bytes::from(vec![b'a'; 64]);
        let mut body = http_body_util::Full::new(piece.clone());
        let reservation = ByteBudget::new(0).reserve_answer();
        let read = read_to_end(&mut body, 64, reservation).await.unwrap();
        assert_eq!(read.as_ptr(), piece.as_ptr());
    }

    #[tokio::test]
    async fn large_bodies_are_counted_while_they_come_and_until_they_are_dropped() {
        const PIECE: usize = 64 << 10;
        let budget = ByteBudget::new(4 * PIECE);
        let read = async |pieces: usize| {
            let pieces =
                (0..pieces).map(|_| Ok::<_, io::Error>(Frame::data(vec![0; PIECE].into())));
            let mut body = StreamBody::new(futures_util::stream::iter(pieces));
            read_to_end(&mut body, usize::MAX, budget.reserve_answer()).await
        };
        let first = read(1).await.unwrap();
        assert_eq!(budget.used(), PIECE);
        let too_many = read(8).await.unwrap_err().to_string();
        assert!(too_many.contains("limits.bytes_in_flight"), "{too_many}");
        assert_eq!(budget.used(), PIECE);
        let second = read(2).await.unwrap();
        assert!(budget.used() >= 3 * PIECE);
        drop((first, second));
        assert_eq!(budget.used(), 0);
    }
}
