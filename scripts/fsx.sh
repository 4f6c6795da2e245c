#!/usr/bin/env bash
# fsx.sh [OPERATIONS]: random operations on one file, held against an array, on mounts in both modes with blocks of 4 KiB and 64 KiB, several
# seeds, twice 1,000,000 operations in all:
#   fsx, the file system exerciser, a program of the Rust registry: mapped reads and writes, punched holes, given-out space, copied ranges,
#     sendfile, invalidated mappings, closing and opening;
#   the behaviour test `exerciser`, which has what fsx 0.3 has not, beside all that: zeroed ranges, reads and writes with O_DIRECT.
# BLOCKS, MODES and SEEDS choose.
set -euo pipefail

operations=${1:-1000000}
[[ $operations =~ ^[0-9]+$ && $operations -gt 0 ]] || { echo "fsx: '$operations' is no number of operations" >&2; exit 2; }
cd "$(dirname "$(realpath -- "$0")")/.."
tandemfs=${TANDEMFS:-$PWD/target/release/tandemfs}
tools=$PWD/target/tools
seeds=${SEEDS:-1 2 3 4 5}
blocks=${BLOCKS:-4K 64K}
modes=${MODES:-relaxed strict}
# A program of its own licence (APSL 2.0) and no library: installed beside the build, part of nothing.
[ -x "$tools/bin/fsx" ] || cargo install --quiet --locked --root "$tools" fsx@0.3.2
if [ "$EUID" = 0 ]; then cargo test --quiet --locked --no-run -p tandemfs-posix; else echo "fsx: the exerciser is left out: only root may run the behaviour tests"; fi

place=$(mktemp -d /dev/shm/tandemfs-fsx-XXXXXX)
clean() {
  trap '' INT TERM # a second one must not end it halfway
  "$tandemfs" umount --lazy "$place/mnt" >/dev/null 2>&1 || true
  rm -rf "$place"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$place/mnt"
cat >"$place/fsx.toml" <<'TOML'
flen = 1048576
[opsize]
max = 131072
[weights]
close_open = 1
read = 10
write = 10
mapread = 10
mapwrite = 10
invalidate = 1
truncate = 5
fsync = 1
fdatasync = 1
posix_fallocate = 3
punch_hole = 5
sendfile = 3
posix_fadvise = 2
copy_file_range = 5
TOML

settings=$(($(wc -w <<<"$blocks") * $(wc -w <<<"$modes")))
runs=$((settings * $(wc -w <<<"$seeds")))
each=$(((operations + runs - 1) / runs))
share=$(((operations + settings - 1) / settings))
started=$SECONDS
fail() { # fail WHAT
  tail -40 "$place/out"
  echo "fsx: FAILED: $mode, blocks of $block, $1" >&2
  exit 1
}
for block in $blocks; do
  for mode in $modes; do
    rm -f "$place/disk.image"
    "$tandemfs" device create "$place/disk.image" --profile off --memory 128M --block 512M >/dev/null
    "$tandemfs" mkfs --block-size "$block" "$place/disk.image" >/dev/null
    "$tandemfs" mount "$place/disk.image" "$place/mnt" -o "$mode,log=$place/log"
    from=$SECONDS
    for seed in $seeds; do
      "$tools/bin/fsx" -q -f "$place/fsx.toml" -N "$each" -S "$seed" -P "$place" "$place/mnt/file" >"$place/out" 2>&1 || fail "seed $seed"
      rm -f "$place/mnt/file"
    done
    echo "fsx: $mode, blocks of $block: $each operations with each seed of $seeds, $((SECONDS - from)) s"
    if [ "$EUID" = 0 ]; then
      from=$SECONDS
      TANDEMFS_TEST_DIR=$place/mnt TANDEMFS_EXERCISER_OPERATIONS=$share cargo test --quiet --locked -p tandemfs-posix --test other_file_systems -- \
        exerciser >"$place/out" 2>&1 || fail "exerciser"
      grep -q '1 passed, 0 failed' "$place/out" || fail "exerciser"
      echo "exerciser: $mode, blocks of $block: $share operations, $((SECONDS - from)) s"
    fi
    "$tandemfs" umount "$place/mnt"
    "$tandemfs" check "$place/disk.image" >/dev/null
  done
done
echo "fsx: $((runs * each)) operations of fsx$([ "$EUID" != 0 ] || echo ", $((settings * share)) of the exerciser") in $((SECONDS - started)) s, nothing found"
