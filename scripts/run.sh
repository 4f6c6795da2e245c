#!/usr/bin/env bash
# run.sh: work that people do, on an emulated hybrid SSD, each step timed and verified. `make run` calls it after the build.
# Exit 0 only if everything held. Its mount, its daemon and its files go with it on every way out.
# TANDEMFS names the program (target/release/tandemfs; witness is beside it), TMPDIR a directory with 6 GB of room for the image.
set -euo pipefail

repository=$(realpath -- "$(dirname "$0")/..")
tandemfs=$(realpath -- "${TANDEMFS:-$repository/target/release/tandemfs}")
witness=${tandemfs%/*}/witness
for program in "$tandemfs" "$witness"; do
  [ -x "$program" ] || { echo "run: there is no $program: cargo build --release -p tandemfs -p tandemfs-witness" >&2; exit 2; }
done
work=$(mktemp -d "${TMPDIR:-/tmp}/tandemfs-run.XXXXXX")
image=$work/drive.image
mountpoint=$work/mount
source=$work/source # what the steps compare with, on the host's own file system
mkdir "$mountpoint" "$source" "$work/stats"
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_AUTHOR_NAME=run GIT_AUTHOR_EMAIL=run@example.org
export GIT_COMMITTER_NAME=run GIT_COMMITTER_EMAIL=run@example.org
exec 3>&1 # the terminal, whatever a step's output goes to

# ---- steps ------------------------------------------------------------------------------------------------------------------------

children=() # processes of this script that may still run
current=''  # the step under way
detail=''   # what it wants to say about itself

fail() { echo "$*"; exit 1; }
seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

step() { # step TITLE FUNCTION [ARGUMENT]...
  local started=$EPOCHREALTIME
  current=$1 detail=''
  printf '  %-46s' "$current" >&3
  "${@:2}" >"$work/output" 2>&1
  printf '%6s s   %s\n' "$(seconds_since "$started")" "$detail" >&3
  current=''
}

is_mounted() { grep -qF " $mountpoint " /proc/self/mounts; }

clean_up() {
  local status=$? process
  for process in "${children[@]}"; do kill -KILL "$process" 2>/dev/null || true; done
  if [ -n "$current" ]; then
    printf 'FAILED\n' >&3
    tail -n 15 "$work/output" >&3
    [ ! -s "$work/daemon.log" ] || { echo "The daemon's log ends:" && tail -n 15 "$work/daemon.log"; } >&3
  fi
  if is_mounted; then
    "$tandemfs" umount "$mountpoint" 2>/dev/null || "$tandemfs" umount --lazy "$mountpoint" || fusermount3 -u -z "$mountpoint" || true
  fi
  rm -rf --one-file-system "$work"
  exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# ---- the mount --------------------------------------------------------------------------------------------------------------------

make_drive() {
  "$tandemfs" device create "$image" --profile romefs-a --memory 512M --block 4G
  "$tandemfs" mkfs "$image" --label run
}

attach() { "$tandemfs" mount "$image" "$mountpoint" -o "$1,log=$work/daemon.log"; }

detach() {
  "$tandemfs" stats "$mountpoint" --json >"$work/stats/$(date +%s%N).json"
  "$tandemfs" umount "$mountpoint"
}

remount() { detach; attach "$1"; }

info() { # info NAME...: a value of `tandemfs info`
  "$tandemfs" info "$mountpoint" --json |
    python3 -c 'import functools, json, sys; print(functools.reduce(lambda value, name: value[name], sys.argv[1:], json.load(sys.stdin)))' "$@"
}

# ---- git --------------------------------------------------------------------------------------------------------------------------

make_repository() { # a history of 20 commits, without a network
  local commit part
  git init -q "$source/repository"
  cd "$source/repository"
  for commit in $(seq 20); do
    mkdir -p "part$commit"
    for part in $(seq 25); do
      { echo "part $part of commit $commit"; seq "$((commit * part * 7))"; } >"part$commit/file$part"
      echo "$commit" >>"changed$((part % 5))"
    done
    git add -A
    git commit -q -m "commit $commit"
  done
}

use_git() {
  local change
  make_repository
  git clone -q --no-hardlinks "$source/repository" "$mountpoint/clone"
  cd "$mountpoint/clone"
  git config core.fsync all
  for change in $(seq 10); do
    seq "$change" "$((change * 500))" >"new$change"
    git mv "part$change/file1" "part$change/moved"
    git add -A
    git commit -q -m "change $change"
  done
  git repack -q -a -d
  git fsck --full --strict --no-progress
  [ -z "$(git status --porcelain)" ] || fail "the working tree differs from its commit"
  [ "$(git rev-parse HEAD~10)" = "$(git -C "$source/repository" rev-parse HEAD)" ] || fail "the history is not that of the source"
  git clone -q "$mountpoint/clone" "$source/returned"
  diff -r --exclude .git "$source/returned" .
  cd /
  detail="$(git -C "$mountpoint/clone" rev-list --count HEAD) commits, fsck clean"
}

# ---- SQLite -----------------------------------------------------------------------------------------------------------------------

sqlite_until_killed() { # sqlite_until_killed JOURNAL_MODE: single inserts, each acknowledged once committed; then SIGKILL
  local database=$mountpoint/$1.db log=$work/sqlite.log process acknowledged
  {
    echo "PRAGMA journal_mode=$1; PRAGMA synchronous=FULL; CREATE TABLE entries (number INTEGER PRIMARY KEY, text TEXT);"
    seq 200000 | sed "s/.*/INSERT INTO entries VALUES (&, printf('%0400d', &)); SELECT 'acknowledged &';/"
  } >"$work/statements.sql"
  stdbuf -oL sqlite3 "$database" <"$work/statements.sql" >"$log" &
  process=$!
  children+=("$process")
  wait_for_lines "$log" 500 "$process"
  kill -KILL "$process"
  wait "$process" || true
  children=()
  acknowledged=$(sed -n 's/^acknowledged \([0-9]*\)$/\1/p' "$log" | tail -n 1)
  [ "$(sqlite3 "$database" 'PRAGMA integrity_check')" = ok ] || fail "$1: integrity_check is not ok"
  [ "$(sqlite3 "$database" "SELECT count(*) FROM entries WHERE number <= $acknowledged AND text = printf('%0400d', number)")" = "$acknowledged" ] ||
    fail "$1: not all of the $acknowledged acknowledged rows are there"
  detail+="${detail:+, }$acknowledged rows by $1"
}

use_sqlite() {
  sqlite_until_killed delete
  sqlite_until_killed wal
}

wait_for_lines() { # wait_for_lines FILE LINES PROCESS: at most 60 s, while the process runs
  local tenths=0
  until [ -e "$1" ] && [ "$(wc -l <"$1")" -ge "$2" ]; do
    kill -0 "$3" 2>/dev/null || fail "process $3 ended before it had written $2 lines to $1"
    tenths=$((tenths + 1))
    [ "$tenths" -lt 600 ] || fail "$1 has not got $2 lines in a minute"
    sleep 0.1
  done
}

# ---- a C program of many files ----------------------------------------------------------------------------------------------------

build_program() {
  local part parts=150
  mkdir "$mountpoint/program"
  cd "$mountpoint/program"
  for part in $(seq "$parts"); do
    printf '#include "parts.h"\nlong part%d(long x) { return x * %d + 1; }\n' "$part" "$part" >"part$part.c"
    echo "long part$part(long);" >>parts.h
  done
  {
    printf '#include <stdio.h>\n#include "parts.h"\nint main(void) {\n  long sum = 0;\n'
    for part in $(seq "$parts"); do echo "  sum += part$part(2);"; done
    printf '  printf("%%ld\\n", sum);\n  return 0;\n}\n'
  } >main.c
  printf 'program: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\tcc -o $@ $^\n%%.o: %%.c parts.h\n\tcc -c -o $@ $<\n' >Makefile
  make -s -j2 MAKEFLAGS= MFLAGS=
  [ "$(./program)" = "$((parts * (parts + 1) + parts))" ] || fail "the program computes $(./program)"
  cd /
  detail="$((parts + 1)) files compiled, linked and run"
}

# ---- a tree -----------------------------------------------------------------------------------------------------------------------

make_tree() { # 4000 files of 1 byte to 40 KB in 100 directories, some links
  local directory file bytes
  printf -v bytes '%040000d' 0
  for directory in $(seq 100); do
    mkdir -p "$source/tree/$((directory % 10))/$directory"
    cd "$source/tree/$((directory % 10))/$directory"
    for file in $(seq 40); do printf '%d %d %s' "$directory" "$file" "${bytes:0:directory * file * 10}" >"$file"; done
    ln -s 1 link
  done
  cd /
}

copy_tree() {
  make_tree
  cp -a "$source/tree" "$mountpoint/tree"
  diff -r "$source/tree" "$mountpoint/tree"
  mv "$mountpoint/tree" "$mountpoint/moved"
  cp -a "$mountpoint/moved" "$mountpoint/again"
  diff -r "$source/tree" "$mountpoint/again"
  detail="$(find "$mountpoint/moved" -type f | wc -l) files, twice"
  rm -r "$mountpoint/moved" "$mountpoint/again"
  [ ! -e "$mountpoint/moved" ] || fail "the tree is still there"
}

# ---- large files, fsync -----------------------------------------------------------------------------------------------------------

large_bytes=$((1 << 30))
rate() { awk -v bytes="$large_bytes" -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.0f MB/s", bytes / 1e6 / (to - from) }'; }

write_large() {
  local started=$EPOCHREALTIME
  "$witness" fill "$mountpoint/large" "$large_bytes"
  detail=$(rate "$started")
}

read_large() { # after a remount, so nothing of it is in the kernel's cache
  local started=$EPOCHREALTIME
  "$witness" compare "$mountpoint/large" "$large_bytes"
  detail=$(rate "$started")
  rm "$mountpoint/large"
}

time_fsync() { # time_fsync MODE
  local cost
  cost=$("$witness" fsync "$mountpoint/fsync-$1" 2000)
  echo "$1 $cost" >>"$work/fsync"
  detail="medians: write ${cost%% *} us, $(cut -d' ' -f2 <<<"$cost") us for fsync"
}

# ---- the daemon's death -----------------------------------------------------------------------------------------------------------

ended() { [ ! -d "/proc/$1" ] || grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null; }

kill_while_writing() { # kill_while_writing MODE: two writers, whose acknowledgements are logged; SIGKILL for the daemon
  local daemon writer writers=()
  for writer in 1 2; do
    mkdir "$mountpoint/$1-$writer"
    "$witness" write "$mountpoint/$1-$writer" "$work/$1-$writer.log" --mode "$1" --seed "$writer" &
    writers+=($!)
  done
  children+=("${writers[@]}")
  for writer in 1 2; do wait_for_lines "$work/$1-$writer.log" 500 "${writers[writer - 1]}"; done
  "$tandemfs" stats "$mountpoint" --json >"$work/stats/$(date +%s%N).json"
  daemon=$(info process_id)
  kill -KILL "$daemon"
  for writer in "${writers[@]}"; do wait "$writer" || true; done # they were refused: their file system is gone
  children=()
  until ended "$daemon"; do sleep 0.01; done
  "$tandemfs" umount "$mountpoint"
  detail="$(cat "$work/$1-"?.log | grep -c '^[0-9]') operations acknowledged"
}

recover() { # recover KILLED_MODE NEXT_MODE
  local started=$EPOCHREALTIME milliseconds mounted
  attach "$2"
  mounted=$(seconds_since "$started")
  milliseconds=$(info recovery milliseconds)
  [ "$(info recovery clean)" = False ] || fail "the mount took the drive for cleanly unmounted"
  printf '%s %s %s\n' "$1" "$milliseconds" "$(info recovery records_replayed)" >>"$work/recovery"
  detail="recovery $(printf '%.1f' "$milliseconds") ms, mounted after $mounted s"
}

verify_promises() { # verify_promises MODE
  local writer
  for writer in 1 2; do "$witness" verify "$mountpoint/$1-$writer" "$work/$1-$writer.log"; done
  detail="every acknowledged operation is there"
}

check_drive() {
  detach
  "$tandemfs" check "$image"
  detail=clean
}

# ---- all of it --------------------------------------------------------------------------------------------------------------------

started=$EPOCHREALTIME
echo "TandemFS on an emulated hybrid SSD, profile romefs-a: 512 MiB of memory, 4 GiB of blocks"
step 'create the drive, format it' make_drive
step 'mount, relaxed' attach relaxed
step 'git: clone, commit, repack, fsck' use_git
step 'SQLite, synchronous=FULL, killed twice' use_sqlite
step 'C: make -j2' build_program
step 'a tree: copy, compare, rename, remove' copy_tree
step '1 GiB by blocks: write, fsync' write_large
step 'fsync, relaxed' time_fsync relaxed
step 'unmount, mount, strict' remount strict
step '1 GiB: read back, compare' read_large
step 'fsync, strict' time_fsync strict
step 'strict: kill -9 of the daemon amid writes' kill_while_writing strict
step 'mount, relaxed' recover strict relaxed
step 'what was acknowledged' verify_promises strict
step 'relaxed: kill -9 of the daemon amid writes' kill_while_writing relaxed
step 'mount, relaxed' recover relaxed relaxed
step 'what was acknowledged' verify_promises relaxed
step 'what was acknowledged before the first kill' verify_promises strict
step 'the repository once more' git -C "$mountpoint/clone" fsck --full --strict --no-progress
step 'unmount, check' check_drive
echo
python3 "$repository/scripts/run-report.py" "$work/stats" "$work/fsync" "$work/recovery"
echo
echo "Everything held. $(seconds_since "$started") s in all."
