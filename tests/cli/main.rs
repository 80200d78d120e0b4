//! The command line as its users meet it: the binary, run on configs of its own.

mod call;
mod check;
mod child_processes;
mod client_certificates;
mod config_errors;
mod config_export;
mod confinement;
mod doctor;
mod entries;
mod file_permissions;
mod governance;
#[path = "../support/issuer.rs"]
mod issuer;
mod list;
mod login;
mod logs;
mod owners;
mod reload;
mod running_gateway;
mod secrets;
mod server_grants;
mod service_manager;
mod support;
mod terminal;
mod usage;
