#!/bin/sh
# Builds a program that needs no library of the system, and the files of its image.
#   sh deploy/static.sh DIR [FEATURE…]
# It is linked with glibc: musl's allocator and resolver are slower, and malloc_trim is glibc's.
set -eu
dir=${1:?usage: sh deploy/static.sh DIR [FEATURE…]}
shift
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
cd "$(dirname "$0")/.."

DELTABUS_COMMIT=${DELTABUS_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
export DELTABUS_COMMIT
# With a target named, RUSTFLAGS are not those of build scripts and macros, which cannot be static.
target=$(rustc -vV | sed -n 's/^host: //p')
# Packed relocations save 1.6 MB. Random numbers come from the system call: a static program finds no function for it, and would
# read /dev/urandom, which an image need not have.
flags='-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs --cfg getrandom_backend="linux_getrandom"'
RUSTFLAGS=$flags cargo build --locked --profile dist --target "$target" --features "$*"

mkdir -p "$dir/etc/ssl/certs"
cp "${CARGO_TARGET_DIR:-target}/$target/dist/deltabus" "$dir/"
cp /etc/ssl/certs/ca-certificates.crt "$dir/etc/ssl/certs/"
echo "hosts: files dns" >"$dir/etc/nsswitch.conf"
echo "deltabus:x:65532:65532::/:/sbin/nologin" >"$dir/etc/passwd"
