//! Where each value of the config is written, found once for each config: large ones take a while.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use super::ApiState;
use crate::{
    config::{Config, ValuePlace},
    lock::lock,
    task::run_blocking,
};

/// Where each value is written, by its key.
pub(super) type ValuePlaces = BTreeMap<String, ValuePlace>;

/// What was found last, and for which config.
#[derive(Debug, Default)]
pub(crate) struct FoundPlaces(Mutex<Option<(Arc<Config>, Arc<ValuePlaces>)>>);

/// Where each value of the config that runs is written.
pub(super) async fn value_places(state: &Arc<ApiState>) -> Arc<ValuePlaces> {
    let running = state.writer.running();
    let known = lock(&state.found_places.0).clone();
    if let Some((config, places)) = known
        && Arc::ptr_eq(&config, &running)
    {
        return places;
    }
    let config = Arc::clone(&running);
    let places = Arc::new(run_blocking(move || config.value_places()).await);
    *lock(&state.found_places.0) = Some((running, Arc::clone(&places)));
    places
}
