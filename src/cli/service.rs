//! What the service manager hears of us: that we listen, that we live, that we stop. Without one that
//! asked, through `NOTIFY_SOCKET`, nobody is told anything.

use sd_notify::NotifyState;

use crate::task::Tasks;

/// Says that clients can connect, and from now on that the runtime still runs, as often as the service
/// manager wants to hear it.
pub(super) fn ready(tasks: &Tasks) {
    tell(NotifyState::Ready);
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
                _ = tick.tick() => tell(NotifyState::Watchdog),
                () = stop.cancelled() => return,
            }
        }
    });
}

/// Says that we are about to end.
pub(super) fn stopping() {
    tell(NotifyState::Stopping);
}

fn tell(state: NotifyState<'_>) {
    if let Err(error) = sd_notify::notify(&[state]) {
        tracing::warn!(%error, "the service manager is not told");
    }
}
