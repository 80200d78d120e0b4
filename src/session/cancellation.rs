//! That a client no longer wants the answer to a call, and in which words.

use std::{
    ops::Deref,
    sync::{Arc, OnceLock},
};

use tokio_util::sync::CancellationToken;

use crate::mcp::Raw;

/// Bytes of what a client says when it cancels a call; of more, its server hears that it did, and no
/// more. Each of them may wait for a server that does not read.
pub const PARAMS_BYTES_MAX: usize = 4096;

/// Cancelled when the client no longer wants the answer to a call, and read as the token that it is.
#[derive(Clone, Debug, Default)]
pub struct Cancel {
    token: CancellationToken,
    /// Where the client can say so; few requests have such a place.
    params: Option<Arc<OnceLock<Raw>>>,
}

impl Cancel {
    /// The same, with a place for what the client says.
    #[must_use]
    pub fn with_params(&mut self) -> Self {
        self.params.get_or_insert_default();
        self.clone()
    }

    /// Cancels the call as its client wants, which said `params`.
    pub(super) fn cancel_by_client(&self, params: &Raw) {
        if let Some(said) = &self.params
            && params.as_bytes().len() <= PARAMS_BYTES_MAX
        {
            said.get_or_init(|| params.clone());
        }
        self.token.cancel();
    }

    /// The params of the client's `notifications/cancelled`, where it sent one of such a length.
    pub fn params(&self) -> Option<&Raw> {
        self.params.as_ref()?.get()
    }

    /// The token alone.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }
}

impl Deref for Cancel {
    type Target = CancellationToken;

    fn deref(&self) -> &CancellationToken {
        &self.token
    }
}

/// Cancelled with a token of others, or before.
impl From<CancellationToken> for Cancel {
    fn from(token: CancellationToken) -> Self {
        Self {
            token,
            params: None,
        }
    }
}
