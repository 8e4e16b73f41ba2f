#!/bin/sh
# Builds a static program without system libraries, and the other files of its image.
#   sh deploy/static.sh DIR [FEATURE…]
# The program has the feature `otlp`, and those that are named.
# It is linked with glibc: musl has a slower allocator and resolver, and no malloc_trim.
set -eu
dir=${1:?usage: sh deploy/static.sh DIR [FEATURE…]}
shift
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
cd "$(dirname "$0")/.."

DELTABUS_COMMIT=${DELTABUS_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)}
export DELTABUS_COMMIT
# With --target, RUSTFLAGS do not apply to build scripts and macros, which cannot be static.
target=$(rustc -vV | sed -n 's/^host: //p')
# Packed relocations save 1.6 MB. The getrandom backend uses the system call. Otherwise a static program would read /dev/urandom,
# which may be missing in an image.
flags='-C target-feature=+crt-static -C link-arg=-Wl,-z,pack-relative-relocs --cfg getrandom_backend="linux_getrandom"'
RUSTFLAGS=$flags cargo build --locked --profile dist --target "$target" --features "otlp $*"

mkdir -p "$dir/etc/ssl/certs"
cp "${CARGO_TARGET_DIR:-target}/$target/dist/deltabus" "$dir/"
cp /etc/ssl/certs/ca-certificates.crt "$dir/etc/ssl/certs/"
echo "hosts: files dns" >"$dir/etc/nsswitch.conf"
echo "deltabus:x:65532:65532::/:/sbin/nologin" >"$dir/etc/passwd"
