#!/usr/bin/env bash
# applications.sh [NAME...]: programs of Debian, unchanged, on a mount in both modes, each with a check of its result. One line each:
# PASS or FAIL, mode, name, seconds. NAMES choose; without any, all. The exit status is the number of failures.
set -uo pipefail

cd "$(dirname "$(realpath -- "$0")")/.."
tandemfs=${TANDEMFS:-$PWD/target/release/tandemfs}
sources=$PWD
names=${*:-sqlite sqlite_killed git git_worktrees rsync tar fio}
place=$(mktemp -d /dev/shm/tandemfs-applications-XXXXXX)
mount=$place/mnt
clean() {
  "$tandemfs" umount --lazy "$mount" >/dev/null 2>&1
  rm -rf "$place"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$mount"

attach() { "$tandemfs" mount "$place/disk.image" "$mount" -o "$mode,log=$place/log"; }
daemon() { "$tandemfs" info "$mount" --json | sed -n 's/.*"process_id": *\([0-9]*\).*/\1/p'; }

# A database through many transactions in each journal mode, its integrity, and what SQL counts.
sqlite() {
  local journal
  for journal in DELETE WAL; do
    sqlite3 "$mount/$journal.db" >"$place/said" <<SQL
PRAGMA journal_mode=$journal; PRAGMA synchronous=FULL; PRAGMA mmap_size=67108864;
CREATE TABLE t(id INTEGER PRIMARY KEY, name TEXT, body BLOB); CREATE INDEX i ON t(name);
BEGIN; WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n WHERE x < 20000)
INSERT INTO t SELECT x, hex(x * 7919 % 20011), zeroblob(x % 400) FROM n; COMMIT;
UPDATE t SET name = name || 'x' WHERE id % 3 = 0; DELETE FROM t WHERE id % 5 = 0; VACUUM;
SQL
    for statement in {1..200}; do echo "INSERT INTO t(name) VALUES('single $statement');"; done | sqlite3 "$mount/$journal.db" || return 1
    [ "$(sqlite3 "$mount/$journal.db" 'PRAGMA integrity_check; SELECT count(*) FROM t;')" = $'ok\n16200' ] || return 1
  done
}

# The daemon is killed amid transactions: every one that was acknowledged is there, and the database is whole.
sqlite_killed() {
  sqlite3 "$mount/k.db" 'PRAGMA journal_mode=WAL; CREATE TABLE t(id INTEGER PRIMARY KEY);' >/dev/null || return 1
  (for number in {1..100000}; do
    sqlite3 "$mount/k.db" "PRAGMA synchronous=FULL; INSERT INTO t VALUES($number);" 2>/dev/null || break
    echo "$number" >"$place/acknowledged"
  done) &
  local writer=$!
  sleep 3
  kill -9 "$(daemon)"
  wait "$writer"
  "$tandemfs" umount --lazy "$mount" 2>/dev/null || umount --lazy "$mount"
  attach || return 1
  local last
  last=$(cat "$place/acknowledged")
  [ "$last" -gt 3 ] || return 1
  [ "$(sqlite3 "$mount/k.db" "PRAGMA integrity_check; SELECT count(*) >= $last FROM t;")" = $'ok\n1' ]
}

git() {
  command git clone -q --no-hardlinks "$sources" "$mount/clone" || return 1
  (
    cd "$mount/clone" || exit 1
    command git config user.email test@localhost
    command git config user.name test
    for number in {1..30}; do echo "$number" >"file-$number" && command git add . && command git commit -qm "$number" || exit 1; done
    command git gc -q --prune=now && command git fsck --full --strict >/dev/null 2>&1 && [ -z "$(command git status --porcelain)" ]
  )
}

git_worktrees() {
  command git clone -q --bare "$sources" "$mount/bare.git" || return 1
  local number
  for number in 1 2 3; do command git -C "$mount/bare.git" worktree add -q -b "tree-$number" "$mount/tree-$number" || return 1; done
  diff -r --exclude=.git "$mount/tree-1" "$mount/tree-3" && command git -C "$mount/bare.git" worktree remove "$mount/tree-2" &&
    command git -C "$mount/bare.git" fsck >/dev/null 2>&1
}

# A tree with links, holes, times and permissions, there and back, compared by checksums; then what is no longer there is deleted.
rsync() {
  mkdir "$mount/source" && cp -a "$sources/crates" "$mount/source/" || return 1
  ln "$mount/source/crates/fs/Cargo.toml" "$mount/source/hard" && ln -s crates "$mount/source/soft" && truncate -s 10M "$mount/source/hole"
  touch -d '1985-10-26 01:21:00.123456789' "$mount/source/hard" && chmod 4711 "$mount/source/hole"
  command rsync -aHS "$mount/source/" "$mount/target/" && rm -r "$mount/source/crates/fs" || return 1
  command rsync -aHS --delete "$mount/source/" "$mount/target/" || return 1
  [ -z "$(command rsync -aHSc --delete --itemize-changes --dry-run "$mount/source/" "$mount/target/")" ]
}

tar() {
  mkdir "$mount/in" "$mount/out" && cp -a "$sources/crates" "$mount/in/" && truncate -s 64M "$mount/in/hole" || return 1
  echo end >>"$mount/in/hole" && mkfifo "$mount/in/fifo" && ln "$mount/in/hole" "$mount/in/same"
  command tar -cSf "$mount/t.tar" -C "$mount/in" . && command tar -xSpf "$mount/t.tar" -C "$mount/out" || return 1
  command tar -dSf "$mount/t.tar" -C "$mount/out" && [ "$(stat -c %h "$mount/out/same")" = 2 ]
}

# What was written is read back and verified, by five engines.
fio() {
  local engine
  for engine in sync libaio io_uring mmap pvsync2; do
    command fio --name="$engine" --directory="$mount" --ioengine="$engine" --rw=randrw --bs=4k-64k --size=24m --verify=crc32c \
      --aux-path="$place" --verify_fatal=1 --do_verify=1 --fsync=64 --iodepth=8 --randseed=7 --output="$place/fio.out" >/dev/null 2>&1 ||
      { tail -5 "$place/fio.out" >&2; return 1; }
  done
}

failed=0
for mode in relaxed strict; do
  for name in $names; do
    rm -f "$place/disk.image"
    "$tandemfs" device create "$place/disk.image" --profile off --memory 128M --block 768M >/dev/null &&
      "$tandemfs" mkfs "$place/disk.image" >/dev/null && attach || exit 1
    started=$SECONDS
    result=PASS
    "$name" || result=FAIL
    "$tandemfs" umount "$mount" && "$tandemfs" check "$place/disk.image" >/dev/null || result=FAIL
    [ "$result" = PASS ] || failed=$((failed + 1))
    echo "$result $mode $name $((SECONDS - started)) s"
    mountpoint -q "$mount" && "$tandemfs" umount --lazy "$mount"
  done
done
exit "$failed"
