//! One detector for each class of data.

mod bank_account;
mod boundary;
pub(super) mod card;
pub(super) mod checksum;
pub(super) mod credential;
pub(super) mod date;
pub(super) mod detectors;
pub(super) mod digits;
pub(super) mod iban;
pub(super) mod national;
pub(super) mod network_addresses;
pub(super) mod number;
mod passport;
mod phone;
pub(super) mod secret_formats;
pub(super) mod tokens;
