//! Responses that are compressed although `identity` is asked for: some servers, or what stands before them,
//! compress all that they send.
//!
//! Called by `transport` and `sse`. What is decoded comes in small pieces, so that the limits on responses
//! hold for what it unpacks to.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use async_compression::{
    tokio::bufread::{BrotliDecoder, DeflateDecoder, GzipDecoder, ZlibDecoder, ZstdDecoder},
    zstd::DParameter,
};
use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use http::{HeaderMap, Response, header::CONTENT_ENCODING};
use http_body::{Body, Frame};
use http_body_util::BodyExt;
use tokio::io::{AsyncBufRead, AsyncRead, BufReader, ReadBuf};
use tokio_util::io::{ReaderStream, StreamReader};

use super::transport::ResponseBody;

/// Codings that may be applied one after the other.
const CODINGS_MAX: usize = 2;
/// Bytes that are decoded at a time.
const DECODED_BYTES: usize = 16 * 1024;
/// Largest window of zstd, as a power of two: RFC 9659, section 3.
const ZSTD_WINDOW_LOG_MAX: u32 = 23;
/// How much of an unknown coding is named.
const NAME_BYTES_MAX: usize = 32;

/// Why a body cannot be read.
#[derive(Debug, thiserror::Error)]
pub(in crate::backend) enum ResponseBodyError {
    /// The connection failed.
    #[error(transparent)]
    Connection(#[from] hyper::Error),
    /// It is encoded in a way that cannot be undone.
    #[error(
        "the response has the content encoding `{coding}` although `identity` was asked for: {reason}"
    )]
    Encoding {
        /// What it says it is.
        coding: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// The response without its content encodings. One that is not known fails whoever reads the body.
pub(super) fn decode(response: Response<ResponseBody>) -> Response<ResponseBody> {
    if !response.headers().contains_key(CONTENT_ENCODING) {
        return response;
    }
    let name = encoding_name(response.headers());
    let named = name.split(',').map(str::trim);
    let named = named.filter(|name| !matches!(*name, "" | "identity"));
    let codings: Option<Vec<Coding>> = named.map(Coding::parse).collect();
    response.map(|body| match codings {
        Some(codings) if codings.is_empty() => body,
        Some(codings) if codings.len() <= CODINGS_MAX => {
            ResponseBody::Decoded(Box::new(DecodedBody::new(name, codings, body)))
        }
        Some(_) | None => ResponseBody::Unknown(name),
    })
}

/// What the headers say of encodings, as far as it may be shown.
fn encoding_name(headers: &HeaderMap) -> String {
    let values = headers.get_all(CONTENT_ENCODING).iter();
    let values: Vec<_> = values.filter_map(|value| value.to_str().ok()).collect();
    let mut name = values.join(",").to_ascii_lowercase();
    name.truncate(NAME_BYTES_MAX);
    name
}

/// That nobody can read what is encoded as `coding`.
pub(super) fn unknown_encoding(coding: &str) -> ResponseBodyError {
    ResponseBodyError::Encoding {
        coding: coding.to_owned(),
        reason: "it is not known".to_owned(),
    }
}

#[derive(Clone, Copy, Debug)]
enum Coding {
    Brotli,
    Deflate,
    Gzip,
    Zstd,
}

impl Coding {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "br" => Some(Self::Brotli),
            "deflate" => Some(Self::Deflate),
            "gzip" | "x-gzip" => Some(Self::Gzip),
            "zstd" => Some(Self::Zstd),
            _ => None,
        }
    }

    fn decoder(self, encoded: EncodedReader) -> DecodedReader {
        match self {
            Self::Brotli => Box::new(BrotliDecoder::new(encoded)),
            Self::Deflate => Box::new(AnyDeflate::Undecided(Some(encoded))),
            Self::Gzip => {
                let mut decoder = GzipDecoder::new(encoded);
                decoder.multiple_members(true);
                Box::new(decoder)
            }
            Self::Zstd => {
                let window = DParameter::window_log_max(ZSTD_WINDOW_LOG_MAX);
                Box::new(ZstdDecoder::with_params(encoded, &[window]))
            }
        }
    }
}

type EncodedReader = Box<dyn AsyncBufRead + Send + Unpin>;
type DecodedReader = Box<dyn AsyncRead + Send + Unpin>;

/// `deflate` is the zlib format, and from some servers the data alone.
enum AnyDeflate {
    Undecided(Option<EncodedReader>),
    Raw(DeflateDecoder<EncodedReader>),
    Zlib(ZlibDecoder<EncodedReader>),
}

impl AsyncRead for AnyDeflate {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Self::Undecided(encoded) = &mut *self
            && let Some(mut input) = encoded.take()
        {
            let first = match Pin::new(&mut input).poll_fill_buf(cx) {
                Poll::Ready(start) => start.map(|start| start.first().copied()),
                Poll::Pending => {
                    *encoded = Some(input);
                    return Poll::Pending;
                }
            };
            // Its method is 8: RFC 1950, section 2.2. A block of data begins with other bits.
            *self = match first? {
                Some(first) if first & 0x0f == 8 => Self::Zlib(ZlibDecoder::new(input)),
                Some(_) | None => Self::Raw(DeflateDecoder::new(input)),
            };
        }
        match &mut *self {
            Self::Raw(decoder) => Pin::new(decoder).poll_read(cx, buf),
            Self::Zlib(decoder) => Pin::new(decoder).poll_read(cx, buf),
            // After an error.
            Self::Undecided(_) => Poll::Ready(Ok(())),
        }
    }
}

/// A body that is decoded while it is read.
pub(in crate::backend) struct DecodedBody {
    coding: String,
    decoded: ReaderStream<DecodedReader>,
}

impl DecodedBody {
    fn new(coding: String, codings: Vec<Coding>, body: ResponseBody) -> Self {
        let encoded = body.into_data_stream().map_err(io::Error::other);
        let mut encoded: EncodedReader = Box::new(StreamReader::new(encoded));
        // The last one was applied last.
        for coding in codings.into_iter().rev() {
            encoded = Box::new(BufReader::new(coding.decoder(encoded)));
        }
        let decoded: DecodedReader = encoded;
        Self {
            coding,
            decoded: ReaderStream::with_capacity(decoded, DECODED_BYTES),
        }
    }

    fn error(&self, error: io::Error) -> ResponseBodyError {
        let within = error.downcast::<ResponseBodyError>();
        within.unwrap_or_else(|error| ResponseBodyError::Encoding {
            coding: self.coding.clone(),
            reason: format!("it cannot be decoded: {error}"),
        })
    }
}

impl std::fmt::Debug for DecodedBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("DecodedBody").field(&self.coding).finish()
    }
}

impl Body for DecodedBody {
    type Data = Bytes;
    type Error = ResponseBodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, ResponseBodyError>>> {
        let piece = ready!(Pin::new(&mut self.decoded).poll_next(cx));
        let piece = piece.map(|piece| piece.map(Frame::data).map_err(|it| self.error(it)));
        Poll::Ready(piece)
    }
}
