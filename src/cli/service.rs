//! What the service manager hears of us: that we listen, that we live, that we read the config again,
//! that we stop. Without one that asked, through `NOTIFY_SOCKET`, nobody is told anything.

use sd_notify::NotifyState;

use crate::{app::ReloadPhase, task::Tasks};

/// Says that clients can connect, and from now on that the runtime still runs, as often as the service
/// manager wants to hear it.
pub(super) fn notify_ready(tasks: &Tasks) {
    notify(&[NotifyState::Ready]);
    let Some(patience) = sd_notify::watchdog_enabled() else {
        return;
    };
    let stop = tasks.stop_token().clone();
    // It ends with the tasks and not with the drain, which may take longer than the patience.
    tasks.spawn("watchdog", async move {
        let mut tick = tokio::time::interval(patience / 2);
        loop {
            tokio::select! {
                // Only a runtime whose timers fire and whose tasks are polled comes to this.
                _ = tick.tick() => notify(&[NotifyState::Watchdog]),
                () = stop.cancelled() => return,
            }
        }
    });
}

/// Says that we are about to end.
pub(super) fn notify_stopping() {
    notify(&[NotifyState::Stopping]);
}

/// Says that the config is read again, and that we serve as before once that is over.
pub(super) fn notify_reloading(moment: ReloadPhase) {
    match moment {
        // The time tells which of several reloads that were asked for this is.
        ReloadPhase::Started => match NotifyState::monotonic_usec_now() {
            Ok(now) => notify(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "cannot notify the service manager of a reload"),
        },
        ReloadPhase::Finished => notify(&[NotifyState::Ready]),
    }
}

fn notify(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}
