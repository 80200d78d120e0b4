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

# build FLAGS DIRECTORY: without the benchmark, with which packages would have other features, and other names.
build() {
    RUSTFLAGS="${RUSTFLAGS:-} $1" CARGO_TARGET_DIR="$2" \
        cargo build --locked --profile "$profile" --target "$target" --bin tollbridge
    program="$2/$target/$directory/tollbridge"
}

# measure ARGUMENTS: has the benchmark ask things of what was built last.
measure() {
    cargo bench --locked --quiet --profile dev --bench overhead -- --gateway "$program" "$@"
}

case $profile in
dev | test) directory=debug ;;
bench) directory=release ;;
*) directory=$profile ;;
esac
merge=$(merger)
# What was counted before, and built by that, is of another program.
rm -rf "$built"
mkdir -p "$built/counts"
built=$(cd "$built" && pwd)

echo "1 of 3: counting what the program does under load"
# Not every `llvm-profdata` can read names that are compressed.
build "-Cprofile-generate=$built/counts -Cllvm-args=-enable-name-compression=false" "$built/counting"
measure --rounds 1 --calls "${CALLS:-1500}"
"$merge" merge --sparse --output "$built/counted.profdata" "$built/counts"
rm -rf "$built/counting" "$built/counts"

echo "2 of 3: building the program by it"
build "-Cprofile-use=$built/counted.profdata" "$built"

echo "3 of 3: trying it"
measure --smoke
echo "built $program"
