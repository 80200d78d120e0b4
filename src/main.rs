//! argv -> subcommand -> exit code; nothing else.

use std::process::ExitCode;

use tollbridge::cli;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    cli::run()
}
