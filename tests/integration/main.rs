//! A whole gateway between clients and scripted servers, over every transport and in both eras.
//!
//! Each file holds the tests of one promise; `support` holds both ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod again;
mod support;

mod able;
mod apart;
mod batches;
mod broken;
mod changes;
mod command;
mod crowd;
mod endless;
mod ends;
mod eras;
mod farewell;
mod fidelity;
mod flood;
mod gaps;
mod greetings;
mod idle;
mod instances;
mod listeners;
mod malformed;
mod neighbours;
mod oneself;
mod order;
mod overload;
mod params;
mod parties;
mod pools;
mod profiles;
mod reach;
mod recovery;
mod reload;
mod replicas;
mod restart;
mod revisions;
mod roots;
mod rounds;
mod sessions;
mod shown;
mod surface;
mod tasks;
mod together;
mod unlisted;
mod upstream;
