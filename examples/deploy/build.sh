#!/bin/sh
# Builds the program for speed. It is built to count what it does, does what the benchmark asks of it, and
# is built again by what it counted (profile-guided optimisation): what calls need lies together then.
#
#   examples/deploy/build.sh [PROFILE [TARGET]]
#
# PROFILE is one of Cargo.toml, `dist` if not given, TARGET a triple this machine can run, rustc's own if not
# given. Needs the `llvm-profdata` of rustc's LLVM: `rustup component add llvm-tools`, or the package `llvm-N`
# of your system, N being the number that `rustc -vV` shows. It is looked for in that order, or is what
# `LLVM_PROFDATA` says. Takes three times as long as a plain build.
set -eu
cd "$(dirname "$0")/../.."

profile=${1:-dist}
host=$(rustc -vV | sed -n 's/^host: //p')
target=${2:-$host}
llvm=$(rustc -vV | sed -n 's/^LLVM version: \([0-9]*\).*/\1/p')
built="${CARGO_TARGET_DIR:-target}/trained"

merger() {
    own="$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata"
    for tool in "${LLVM_PROFDATA:-$own}" "llvm-profdata-$llvm" llvm-profdata; do
        if command -v "$tool"; then return; fi
    done
    echo "build.sh: no llvm-profdata: rustup component add llvm-tools, or install llvm-$llvm" >&2
    exit 1
}

# cargo_with FLAGS DIRECTORY COMMAND ARGUMENTS...
cargo_with() {
    flags=$1 directory=$2 command=$3
    shift 3
    RUSTFLAGS="${RUSTFLAGS:-} $flags" CARGO_TARGET_DIR="$directory" \
        cargo "$command" --locked --profile "$profile" --target "$target" "$@"
}

merge=$(merger)
# What was counted before, and built by that, is of another program.
rm -rf "$built"
mkdir -p "$built/counts"
built=$(cd "$built" && pwd)

# Not every `llvm-profdata` can read names that are compressed.
count="-Cprofile-generate=$built/counts -Cllvm-args=-enable-name-compression=false"
echo "1 of 3: counting what the program does under load"
cargo_with "$count" "$built/counting" \
    bench --quiet --bench overhead -- --rounds 1 --calls "${CALLS:-1500}"
"$merge" merge --sparse --output "$built/counted.profdata" "$built/counts"

echo "2 of 3: building the program by it"
cargo_with "-Cprofile-use=$built/counted.profdata" "$built" build --bin tollbridge

case $profile in
dev | test) directory=debug ;;
bench) directory=release ;;
*) directory=$profile ;;
esac
program="$built/$target/$directory/tollbridge"
echo "3 of 3: trying it"
cargo_with "$count" "$built/counting" bench --quiet --bench overhead -- --smoke --gateway "$program"
rm -rf "$built/counting" "$built/counts"
echo "built $program"
