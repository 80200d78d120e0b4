//! What clients are told of authorization: by which URL a route is known, and how to get a token for it.

mod public_url;

pub(super) use public_url::PublicUrl;
