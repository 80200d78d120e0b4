//! What other systems than Linux cannot do.

use std::ffi::{OsStr, OsString};

use super::{Confined, Failed, Hiding, Spec};

/// Orphans go to the first process here.
pub(super) fn adopt_orphans() {}

/// The gateway's word alone ends processes here.
pub(super) fn end_with_parent() {}

/// Whether it makes sense to try this way.
pub(super) fn is_tried(hiding: Hiding) -> bool {
    hiding == Hiding::Nothing
}

/// The program runs as we do, with its group and its limits alone.
pub(super) fn confine(
    spec: &Spec,
    hiding: Hiding,
    _: Option<&OsStr>,
) -> Result<(Confined, Vec<(OsString, OsString)>), Failed> {
    if spec.user.is_some() {
        return Err(Failed::User(
            "running as another user is not supported on this system".to_owned(),
        ));
    }
    let confined = Confined {
        hiding,
        is_replaceable: false,
        is_isolated: false,
        signals_scoped: false,
        tried: Vec::new(),
    };
    Ok((confined, Vec::new()))
}
