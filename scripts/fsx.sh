#!/usr/bin/env bash
# fsx.sh [OPERATIONS]: fsx (the file system exerciser, a program of the Rust registry) on mounts in both modes with blocks of 4 KiB and
# 64 KiB, several seeds, 1,000,000 operations in all. Mapped reads and writes, punched holes, given-out space, copied ranges, sendfile,
# invalidated mappings, closing and opening. What fsx 0.3 has not (zeroed ranges, O_DIRECT) is in the behaviour test `exerciser`.
set -euo pipefail

operations=${1:-1000000}
[[ $operations =~ ^[0-9]+$ && $operations -gt 0 ]] || { echo "fsx: '$operations' is no number of operations" >&2; exit 2; }
cd "$(dirname "$(realpath -- "$0")")/.."
tandemfs=${TANDEMFS:-$PWD/target/release/tandemfs}
tools=$PWD/target/tools
seeds=${SEEDS:-"1 2 3 4 5"}
# A program of its own licence (APSL 2.0) and no library: installed beside the build, part of nothing.
[ -x "$tools/bin/fsx" ] || cargo install --quiet --locked --root "$tools" fsx@0.3.2

place=$(mktemp -d /dev/shm/tandemfs-fsx-XXXXXX)
clean() {
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

runs=$((4 * $(wc -w <<<"$seeds")))
each=$(((operations + runs - 1) / runs))
started=$SECONDS
for block in 4K 64K; do
  for mode in relaxed strict; do
    rm -f "$place/disk.image"
    "$tandemfs" device create "$place/disk.image" --profile off --memory 128M --block 512M >/dev/null
    "$tandemfs" mkfs --block-size "$block" "$place/disk.image" >/dev/null
    "$tandemfs" mount "$place/disk.image" "$place/mnt" -o "$mode,log=$place/log"
    for seed in $seeds; do
      if ! "$tools/bin/fsx" -q -f "$place/fsx.toml" -N "$each" -S "$seed" -P "$place" "$place/mnt/file" >"$place/out" 2>&1; then
        tail -40 "$place/out"
        echo "fsx: FAILED: $mode, blocks of $block, seed $seed" >&2
        exit 1
      fi
      rm -f "$place/mnt/file"
    done
    "$tandemfs" umount "$place/mnt"
    "$tandemfs" check "$place/disk.image" >/dev/null
    echo "fsx: $mode, blocks of $block: $each operations with each seed of $seeds"
  done
done
echo "fsx: $((runs * each)) operations in $((SECONDS - started)) s, nothing found"
