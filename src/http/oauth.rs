//! What clients are told of authorization: by which URL a route is known, and how to get a token for it.

mod public_url;
mod resource_server;

pub(super) use public_url::{PublicUrl, RequestTarget};
pub(super) use resource_server::ResourceServer;
