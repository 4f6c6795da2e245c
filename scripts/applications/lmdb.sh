# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# LMDB by its own tools: 100,000 records go in and come out the same; after a kill every load that had ended is there.
cases+=(lmdb lmdb_killed)

# lmdb_records FIRST LAST: as mdb_load takes them, in the order of their keys.
lmdb_records() {
  printf 'VERSION=3\nformat=print\ntype=btree\nmapsize=268435456\nHEADER=END\n'
  seq "$1" "$2" | awk '{ printf " key%08d\n value %d %s\n", $1, $1 * 7919 % 100003, substr("abcdefghijklmnopqrstuvwxyz0123456789", 1, $1 % 36) }'
  echo DATA=END
}
lmdb_data() { sed '1,/^HEADER=END$/d'; }

app_lmdb() {
  mkdir "$mount/lmdb"
  lmdb_records 1 100000 >"$place/records"
  mdb_load -f "$place/records" "$mount/lmdb"
  mdb_dump -p "$mount/lmdb" | lmdb_data | cmp - <(lmdb_data <"$place/records")
  # Over what is there, then a compacted copy.
  mdb_load -f "$place/records" "$mount/lmdb"
  mdb_stat -e "$mount/lmdb" | grep -q 'Entries: 100000'
  mkdir "$mount/copy"
  mdb_copy -c "$mount/lmdb" "$mount/copy"
  mdb_dump -p "$mount/copy" | lmdb_data | cmp - <(lmdb_data <"$place/records")
}

# A load of 100 records is one transaction, durable when mdb_load ends.
lmdb_loads() {
  local number
  for number in {1..10000}; do
    lmdb_records $((number * 100 - 99)) $((number * 100)) | mdb_load "$mount/lmdb" 2>/dev/null || break
    echo "$number" >"$place/lmdb.acknowledged"
  done
}

app_lmdb_killed() {
  local last work
  mkdir "$mount/lmdb"
  lmdb_loads &
  work=$!
  wait_until 60 test -s "$place/lmdb.acknowledged"
  sleep 2
  kill_daemon
  wait_for "$work" 20
  leave
  "$tandemfs" check "$place/disk.image" >&2
  attach
  last=$(($(cat "$place/lmdb.acknowledged") * 100))
  mdb_dump -p "$mount/lmdb" | lmdb_data >"$place/dumped"
  # One more load may have been under way: all of it or nothing.
  cmp "$place/dumped" <(lmdb_records 1 "$last" | lmdb_data) 2>/dev/null || cmp "$place/dumped" <(lmdb_records 1 $((last + 100)) | lmdb_data)
}
