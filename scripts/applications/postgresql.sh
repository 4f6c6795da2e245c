# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# PostgreSQL: a cluster of its own, reached by a UNIX socket alone; pgbench, whose sums must agree, and amcheck of every table and index.
cases+=(postgresql postgresql_killed)

postgresql_bin() { printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1; }

postgresql_start() {
  local bin
  bin=$(postgresql_bin)
  become postgres "$bin/postgres" -D "$mount/postgresql" >>"$place/postgresql/log" 2>&1 &
  echo $! >"$place/postgresql.pid"
  server $! QUIT # which lets it take its shared memory away
  wait_until 120 as postgres "$bin/psql" -h "$place/postgresql" -d postgres -c ''
}

postgresql_stop() {
  local pid
  pid=$(cat "$place/postgresql.pid")
  kill -INT "$pid"
  wait_for "$pid" 60
}

postgresql_create() {
  local bin
  bin=$(postgresql_bin)
  mkdir -p "$place/postgresql" "$mount/postgresql"
  chmod 700 "$mount/postgresql"
  [ "$EUID" != 0 ] || chown postgres "$place/postgresql" "$mount/postgresql"
  as postgres "$bin/initdb" -D "$mount/postgresql" -U postgres -A trust --no-locale -E UTF8 >"$place/said" 2>&1
  # Small buffers and little log, so that checkpoints and reads come to the file system.
  cat >>"$mount/postgresql/postgresql.conf" <<CONF
listen_addresses = ''
unix_socket_directories = '$place/postgresql'
shared_buffers = 8MB
dynamic_shared_memory_type = mmap
max_wal_size = 64MB
checkpoint_timeout = 30s
wal_level = minimal
max_wal_senders = 0
autovacuum_naptime = 2s
CONF
}

sql() { as postgres "$(postgresql_bin)/psql" -h "$place/postgresql" -U postgres -d postgres -qAtX -v ON_ERROR_STOP=1 "$@"; }
pgbench() { as postgres "$(postgresql_bin)/pgbench" -h "$place/postgresql" -U postgres "$@" postgres; }

# Every table and index, heap against index; and what pgbench adds to an account it adds to a teller, a branch and the history.
postgresql_check() {
  as postgres "$(postgresql_bin)/pg_amcheck" -h "$place/postgresql" -U postgres -d postgres --install-missing --heapallindexed \
    --rootdescend >"$place/amcheck"
  [ ! -s "$place/amcheck" ]
  [ "$(sql -c 'SELECT count(DISTINCT s) FROM (SELECT sum(abalance) s FROM pgbench_accounts UNION ALL SELECT sum(tbalance) FROM pgbench_tellers
    UNION ALL SELECT sum(bbalance) FROM pgbench_branches UNION ALL SELECT coalesce(sum(delta), 0) FROM pgbench_history) t')" = 1 ]
}

app_postgresql() {
  local done_by_pgbench
  postgresql_create
  postgresql_start
  pgbench -i -q -s 2 >"$place/said" 2>&1
  pgbench -c 4 -j 2 -T 4 >"$place/pgbench" 2>&1
  done_by_pgbench=$(sed -n 's/^number of transactions actually processed: \([0-9]*\).*/\1/p' "$place/pgbench")
  [ "$done_by_pgbench" -gt 0 ]
  [ "$(sql -c 'SELECT count(*) FROM pgbench_history')" = "$done_by_pgbench" ]
  postgresql_check
  postgresql_stop
  as postgres "$(postgresql_bin)/pg_checksums" --enable --no-sync -D "$mount/postgresql" >"$place/said"
  as postgres "$(postgresql_bin)/pg_checksums" --check -D "$mount/postgresql" >"$place/said"
  postgresql_start
  [ "$(sql -c 'SELECT count(*) FROM pgbench_history')" = "$done_by_pgbench" ]
  postgresql_stop
}

app_postgresql_killed() {
  local client pid work=()
  postgresql_create
  postgresql_start
  pgbench -i -q -s 1 >"$place/said" 2>&1
  sql -c 'CREATE TABLE promised(client int, number int, PRIMARY KEY (client, number))'
  pgbench -c 2 -T 600 >/dev/null 2>&1 &
  work+=($!)
  # psql prints a number when its transaction has been acknowledged.
  for client in 1 2 3; do
    seq 1 1000000 | sed "s/.*/INSERT INTO promised VALUES ($client, &) RETURNING number;/" | sql >"$place/promised.$client" 2>/dev/null &
    work+=($!)
  done
  wait_until 60 test -s "$place/promised.1" -a -s "$place/promised.2" -a -s "$place/promised.3"
  sleep 2
  kill_daemon
  # The server cannot go on: it ends by itself, or is ended.
  pid=$(cat "$place/postgresql.pid")
  wait_for "$pid" 5 2>/dev/null || end_servers
  for pid in "${work[@]}"; do wait_for "$pid" 20 2>/dev/null || end_below "$pid"; done
  leave
  "$tandemfs" check "$place/disk.image" >&2
  attach
  postgresql_start
  postgresql_check
  for client in 1 2 3; do
    # A line may have been cut when its client ended.
    grep -c . "$place/promised.$client" >"$place/count"
    [ "$(sql -c "SELECT count(*) FROM promised WHERE client = $client AND number <= $(cat "$place/count")")" = "$(cat "$place/count")" ]
  done
  postgresql_stop
}
