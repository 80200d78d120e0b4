//! A whole gateway between clients and scripted servers, over every transport and in both eras.
//!
//! Each file holds the tests of one promise; `support` holds both ends.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod retries;
mod support;

mod batches;
mod broken_servers;
mod call_before_listed;
mod child_shutdown_output;
mod concurrency_limits;
mod connection_limit;
mod connection_pools;
mod cross_era;
mod dedicated_connections;
mod fidelity;
mod handshake;
mod http_servers;
mod http_surface;
mod idle_timeout;
mod input_required;
mod instances;
mod interactive_clients;
mod lenient_http;
mod list_changes;
mod loop_detection;
mod malformed_params;
mod message_attribution;
mod message_order;
mod noisy_neighbour;
mod oauth_sign_in;
mod one_bad_server;
mod overload_by_clients;
mod param_headers;
mod partial_listing;
mod profiles;
mod reachability;
mod recovery;
mod redirects;
mod reload;
mod replicas;
mod restart;
mod revisions;
mod roots;
mod runaway_servers;
mod scripted_issuer;
mod sessions;
mod shutdown;
mod sign_in;
mod status;
mod stdio_command;
mod subscription_reconnect;
mod tasks;
mod unreadable_answers;
