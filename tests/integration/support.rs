//! What the tests drive a whole gateway with: clients in front of it, scripted servers behind it.

pub(crate) mod backend;
#[path = "../support/browser.rs"]
pub(crate) mod browser;
pub(crate) mod client;
pub(crate) mod gateway;
pub(crate) mod http;
#[path = "../support/issuer.rs"]
pub(crate) mod issuer;
pub(crate) mod scripted;
pub(crate) mod way;
pub(crate) mod wire;

pub(crate) use backend::{ALL, Auto, Backend, Era, Transport};
pub(crate) use client::{Client, Front};
pub(crate) use gateway::{Gateway, TestGateway, initialize, with_one_server};
pub(crate) use wire::{soon, value};
