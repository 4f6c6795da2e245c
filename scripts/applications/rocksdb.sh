# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# RocksDB by its own tools: synchronous writes, compaction, every checksum, the consistency of its tables; also past the page cache.
cases+=(rocksdb rocksdb_killed)

# rocksdb_bench BENCHMARKS OPTION...
rocksdb_bench() {
  db_bench --db="$mount/rocksdb" --benchmarks="$1" --value_size=400 --write_buffer_size=1048576 --target_file_size_base=1048576 \
    --max_bytes_for_level_base=4194304 --compression_type=none --verify_checksum=1 "${@:2}" >"$place/said" 2>"$place/rocksdb.progress"
}

rocksdb_whole() {
  ldb --db="$mount/rocksdb" checkconsistency >"$place/said" 2>&1
  grep -qx OK "$place/said"
  rocksdb_bench verifychecksum,readseq --use_existing_db=1
}

app_rocksdb() {
  local direct
  for direct in false true; do
    rm -rf "$mount/rocksdb"
    rocksdb_bench fillrandom,compact --num=20000 --threads=2 --use_direct_io_for_flush_and_compaction=$direct --use_direct_reads=$direct
    rocksdb_bench overwrite --use_existing_db=1 --num=1000 --sync=1 --threads=2 --use_direct_io_for_flush_and_compaction=$direct
    rocksdb_bench readrandom,deleterandom --use_existing_db=1 --num=5000 --use_direct_reads=$direct
    rocksdb_whole
  done
  # In order and synchronous: all of them, one by one, are there.
  rm -rf "$mount/rocksdb"
  rocksdb_bench fillseq --num=2000 --sync=1
  rocksdb_has 2000
  rocksdb_whole
}

# rocksdb_has COUNT: the keys 0, 1, 2 … are there without a gap, at least so many.
rocksdb_has() {
  ldb --db="$mount/rocksdb" --hex scan --no_value 2>/dev/null >"$place/keys" || ldb --db="$mount/rocksdb" --hex scan >"$place/keys"
  awk -v count="$1" 'match($0, /^0x[0-9A-F]+/) {
      if (substr($0, 3, 16) != sprintf("%016X", found)) { print "key " found " is not there: " substr($0, 1, 40) >"/dev/stderr"; exit bad = 1 }
      found++
    }
    END { if (!bad && found < count) print found " of " count " keys" >"/dev/stderr"; exit bad || found < count }' "$place/keys"
}

app_rocksdb_killed() {
  local work
  rocksdb_bench fillseq --num=1000000 --sync=1 --stats_interval=10 &
  work=$!
  wait_until 60 grep -q ' ops and ' "$place/rocksdb.progress"
  sleep 2
  kill_daemon
  wait_for "$work" 5 2>/dev/null || end_below "$work"
  sed -n 's/.*: ([0-9]*,\([0-9]*\)) ops and .*/\1/p' "$place/rocksdb.progress" | tail -1 >"$place/count"
  leave
  "$tandemfs" check "$place/disk.image" >&2
  attach
  [ "$(cat "$place/count")" -gt 0 ]
  rocksdb_has "$(cat "$place/count")"
  rocksdb_whole
}
