#!/usr/bin/env bash
# Mutation tests of one core: finds changes of its code that no test detects. See CONTRIBUTING.md.
#   bash tests/mutants.sh <core> [arguments of cargo mutants]
#   bash tests/mutants.sh indexer -F store.rs        only mutants whose name matches
#   bash tests/mutants.sh indexer --iterate          only mutants not caught the last time
# Needs cargo-mutants (cargo install cargo-mutants). The whole crate takes a minute to build for each mutant, so this
# copies the core and its parts into a separate crate in $MUTANTS_DIR/<core>, where a mutant takes seconds.
# The crate stays there, with the results in mutants.out.
set -euo pipefail
cd "$(dirname "$0")/.."

core=${1:-}
cached="mutex object backoff list_watch reflector delta_fifo"
case "$core" in
  reflector) modules="mutex object backoff list_watch reflector testing" ;;
  delta_fifo) modules=$cached ;;
  indexer) modules="$cached indexer lister" ;;
  work_queue) modules="mutex work_queue" ;;
  supervisor) modules="backoff supervisor" ;;
  *)
    echo "usage: bash tests/mutants.sh <core> [arguments of cargo mutants]" >&2
    echo "cores: reflector delta_fifo indexer work_queue supervisor" >&2
    exit 2
    ;;
esac
shift
command -v cargo-mutants >/dev/null || { echo "cargo-mutants is missing: cargo install cargo-mutants" >&2; exit 1; }

# Actors, and code that only they use.
shells="actor log child kube scoped codec"
crates="arc-swap|bytes|evmap|foldhash|futures-util|globset|hashbrown|jiff|memchr|proptest|rand|serde|serde_json|thiserror|tokio"

tree=$PWD
slim=${MUTANTS_DIR:-${TMPDIR:-/tmp}/deltabus-mutants}/$core
mkdir -p "$slim"
cd "$slim"
rm -rf src
mkdir src
cp "$tree/Cargo.lock" .

echo '#![allow(warnings)]' >src/lib.rs
for module in $modules; do
  cp "$tree/src/$module.rs" src/
  if [ -d "$tree/src/$module" ]; then cp -r "$tree/src/$module" src/; fi
  echo "pub mod $module;" >>src/lib.rs
done
for shell in $shells; do
  sed -i -E "/^(pub )?mod $shell;/d" src/*.rs
  rm -rf src/*/"$shell.rs" src/*/"$shell"
done
# Tests of other cores only take time, except for shared helpers.
find src -name '*.rs' ! -path "src/$core.rs" ! -path "src/$core/*" ! -path src/delta_fifo/tests.rs \
  ! -path src/indexer/tests.rs | while read -r file; do
  case "$file" in
    */tests.rs | */model_tests.rs) : >"$file" ;;
    *)
      awk '/^#\[cfg\(test\)\]$/ { held = $0; next }
           held != "" { if (/^mod tests \{/) skip = 1; else print held; held = "" }
           !skip
           /^}/ { skip = 0 }' "$file" >"$file.new"
      mv "$file.new" "$file"
      ;;
  esac
done

{
  sed '/^\[dependencies\]/,$d; /^name/d; /^default-run/d; /^readme/d; /^exclude/d' "$tree/Cargo.toml"
  printf 'name = "core_%s"\npublish = false\n\n[dependencies]\n' "$core"
  sed '0,/^\[dependencies\]/d; /^\[dev-dependencies\]/,$d' "$tree/Cargo.toml" | grep -E "^($crates) ="
  printf '\n[dev-dependencies]\n'
  sed '0,/^\[dev-dependencies\]/d; /^\[\[bench/,$d' "$tree/Cargo.toml" | grep -E "^($crates) ="
  printf '\n[profile.dev]\ndebug = false\n\n[profile.dev.package."*"]\nopt-level = 1\n\n[workspace]\n'
} >Cargo.toml

# The first failing case catches a mutant: do not shrink it.
export PROPTEST_MAX_SHRINK_ITERS=0 PROPTEST_CASES=${PROPTEST_CASES:-32}
# Skipped: a test that runs threads for five seconds to check the order of calls, which no mutant of the logic affects.
exec cargo mutants --in-place --minimum-test-timeout "${MUTANTS_TIMEOUT:-20}" \
  -f "src/$core.rs" -f "src/$core/*.rs" -e '**/*test*.rs' -e '**/handle.rs' "$@" \
  -- --lib "$core::" -- --skip concurrent_readers_never_see
