//! How the program is linked.

use std::{env, process::Command};

/// The first glibc that loads a program with packed relocations.
/// Source: the release notes of glibc 2.36, `DT_RELR`.
const PACKED_SINCE: (u32, u32) = (2, 36);

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if is_for_this_machine() && glibc().is_some_and(|version| version >= PACKED_SINCE) {
        // Addresses that depend on where the program is loaded are read once, when it starts, and
        // stay in memory: packed they are 8 KiB in place of 650.
        println!("cargo:rustc-link-arg-bins=-Wl,-z,pack-relative-relocs");
    }
}

#[allow(
    clippy::disallowed_methods,
    reason = "cargo tells a build script so what it builds for"
)]
fn is_for_this_machine() -> bool {
    let (host, target) = (env::var("HOST"), env::var("TARGET"));
    host == target && host.is_ok_and(|host| host.ends_with("-linux-gnu"))
}

/// The version of this machine's C library, if that is glibc.
fn glibc() -> Option<(u32, u32)> {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let text = String::from_utf8(output.ok()?.stdout).ok()?;
    let (major, minor) = text.trim().strip_prefix("glibc ")?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
