#!/usr/bin/env bash
# replication.sh [postgresql|redis|rates]...: databases that replicate by themselves, each server in a node of its own on a mount of TandemFS of its
# own (scripts/nodes.sh). postgresql: synchronous streaming replication; the primary's node killed amid acknowledged inserts; the standby
# promoted; the old primary follows by pg_rewind, and is failed back to. redis: appendfsync always and WAIT; the primary's node killed, the replica
# promoted, then restarted on its log. rates: transactions and SETs on TandemFS, ext4, XFS and tmpfs, which keeps nothing, by turns. Without
# an argument all. ROUNDS=5, RUN_S=5 a run, WORK_S=10 of writes. Status 0 only if nothing acknowledged was lost.
set -uo pipefail

name=replication
sources=$(cd "$(dirname "$(realpath -- "$0")")/../.." && pwd)
# shellcheck source=scripts/nodes.sh
source "$sources/scripts/nodes.sh"
work_s=${WORK_S:-10}
parts=${*:-postgresql redis rates}
client=3
bin=$(printf '%s\n' /usr/lib/postgresql/*/bin | sort -V | tail -1)

# as_postgres N COMMAND...
as_postgres() { on "$1" env -C / setpriv --reuid=postgres --regid="$(id -g postgres)" --init-groups -- "${@:2}"; }
data() { echo "$place/mnt/$1/postgresql"; } # data KIND: the same path in each node
port() { echo $((5432 + $(printf '%s\n' $kinds | grep -nx "$1" | cut -d: -f1))); }
sql() { on "$client" "$bin/psql" -h "10.77.0.$1" -p "$(port "$2")" -U postgres -d postgres -qAtX -v ON_ERROR_STOP=1 "${@:3}"; } # sql N KIND ...

pg_settings() { # pg_settings KIND: for both, since each may be primary
  cat <<CONF
listen_addresses = '*'
port = $(port "$1")
unix_socket_directories = ''
shared_buffers = 16MB
dynamic_shared_memory_type = mmap
max_wal_size = 256MB
synchronous_commit = on
hot_standby = on
wal_log_hints = on
wal_keep_size = 512MB
CONF
}
pg_start() { # pg_start N KIND
  as_postgres "$1" "$bin/postgres" -D "$(data "$2")" >>"$place/pg.$1.$2.log" 2>&1 </dev/null &
  server
  wait_until 120 sql "$1" "$2" -c ''
}
# The primary waits for the standby's fsync before it acknowledges.
pg_needs_standby() { sql "$1" "$2" -c "ALTER SYSTEM SET synchronous_standby_names = '*'" -c 'SELECT pg_reload_conf()' >/dev/null; }
pg_alone() { sql "$1" "$2" -c 'ALTER SYSTEM RESET synchronous_standby_names' -c 'SELECT pg_reload_conf()' >/dev/null; }
pg_streams() { [ "$(sql "$1" "$2" -c "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'sync'")" = 1 ]; }
pg_make() { # pg_make KIND: a primary in node 1, a standby in node 2
  local own
  own=$(data "$1")
  for node in 1 2; do on $node mkdir -p "$own" && on $node chown postgres "$own" && on $node chmod 700 "$own" || return; done
  as_postgres 1 "$bin/initdb" -D "$own" -U postgres -A trust --no-locale -E UTF8 -k >"$place/initdb" 2>&1 || return
  on 1 bash -c 'echo "$1" >>"$2/postgresql.conf"; printf "host all all 10.77.0.0/24 trust\nhost replication all 10.77.0.0/24 trust\n" >>"$2/pg_hba.conf"' - "$(pg_settings "$1")" "$own"
  pg_start 1 "$1" || return
  as_postgres 2 "$bin/pg_basebackup" -h 10.77.0.1 -p "$(port "$1")" -U postgres -D "$own" -R -c fast >"$place/basebackup" 2>&1 || return
  pg_start 2 "$1" && pg_needs_standby 1 "$1" && wait_until 30 pg_streams 1 "$1"
}
# psql prints a number when its transaction has been acknowledged.
pg_write() { # pg_write N KIND LOG
  local writer
  for writer in 1 2 3; do
    seq 1 10000000 | sed "s/.*/INSERT INTO promised VALUES ('$3', $writer, &, repeat('$writer &', 20)) RETURNING number;/" | sql "$1" "$2" >"$place/$3.$writer" 2>/dev/null &
    server
  done
  wait_until 30 test -s "$place/$3.1" -a -s "$place/$3.2" -a -s "$place/$3.3"
}
pg_verify() { # pg_verify N KIND LOG
  local writer count sum=0
  for writer in 1 2 3; do
    count=$(grep -c . "$place/$3.$writer") # a line that was cut is of a number that was acknowledged
    [ "$(sql "$1" "$2" -c "SELECT count(*) FROM promised WHERE log = '$3' AND writer = $writer AND number <= $count AND content = repeat(writer || ' ' || number, 20)")" = "$count" ] ||
      die "acknowledged transactions of writer $writer ($3) are lost in node $1"
    sum=$((sum + count))
  done
  say "node $1 has all $sum acknowledged transactions of $3"
}
pg_amcheck() { # pg_amcheck N KIND
  on "$client" "$bin/pg_amcheck" -h "10.77.0.$1" -p "$(port "$2")" -U postgres -d postgres --install-missing --heapallindexed >"$place/amcheck" 2>&1 && [ ! -s "$place/amcheck" ]
}

machine() { # machine N KIND...: a node with its mounts
  local kind
  node_start "$1" && on "$1" mkdir -p /run/postgresql || return
  for kind in "${@:2}"; do
    [ -e "$place/$kind.$1" ] || drive_make "$place/$kind.$1" "$kind" 2G || return
    drive_mount "$1" "$place/$kind.$1" "$kind" "$place/mnt/$kind" || return
  done
}
checked() { # checked N KIND: taken away in order, and looked at
  on "$1" "$tandemfs" umount "$place/mnt/$2" && "$tandemfs" check "$place/$2.$1" >"$place/check" || { cat "$place/check" >&2; die "check of node $1"; }
}

postgresql_part() {
  local kind=strict primary standby
  machine 1 $kind && machine 2 $kind && node_start $client || die 'no nodes'
  pg_make $kind || { tail -5 "$place"/pg.*.log >&2; die 'no cluster'; }
  sql 1 $kind -c 'CREATE TABLE promised(log text, writer int, number int, content text, PRIMARY KEY (log, writer, number))'
  say "$("$bin/postgres" --version): a primary and a synchronous standby on TandemFS ($kind, $profile)"
  for turn in 'first 1 2' 'second 2 1'; do
    read -r turn primary standby <<<"$turn"
    pg_write "$primary" $kind "$turn" || die 'nothing is acknowledged'
    sleep "$work_s"
    node_kill "$primary"
    sql "$standby" $kind -c 'SELECT pg_promote()' >/dev/null && pg_alone "$standby" $kind || die 'the standby is not promoted'
    sql "$standby" $kind -c CHECKPOINT # pg_rewind sees a new timeline only after one
    say "node $primary was killed, node $standby promoted"
    pg_verify "$standby" $kind "$turn"
    # The old primary's mount recovers, its server replays its log once and is stopped, and pg_rewind takes back what the standby never had.
    machine "$primary" $kind || die 'the node does not come back'
    as_postgres "$primary" "$bin/pg_rewind" -D "$(data $kind)" -R --source-server="host=10.77.0.$standby port=$(port $kind) user=postgres dbname=postgres" >"$place/rewind" 2>&1 || { cat "$place/rewind" >&2; die pg_rewind; }
    pg_start "$primary" $kind && pg_needs_standby "$standby" $kind && wait_until 60 pg_streams "$standby" $kind || die 'the old primary does not follow'
    sql "$standby" $kind -c "INSERT INTO promised VALUES ('$turn', 0, 0, '')" # waits for the other
    pg_verify "$primary" $kind "$turn"
  done
  for node in 1 2; do pg_verify $node $kind first; done
  pg_amcheck 1 $kind || { cat "$place/amcheck" >&2; die 'amcheck'; }
  for node in 1 2; do
    # shellcheck disable=SC2016 # of the node's shell
    on $node bash -c 'kill -INT $(head -1 "$1/postmaster.pid")' - "$(data $kind)"
    wait_until 30 on $node test ! -e "$(data $kind)/postmaster.pid" || die 'a server does not end'
    as_postgres $node "$bin/pg_checksums" --check -D "$(data $kind)" >"$place/checksums" 2>&1 || { cat "$place/checksums" >&2; die 'pg_checksums'; }
    checked $node $kind
    node_kill $node
    rm "$place/$kind.$node"
  done
  node_kill $client
  say 'amcheck, pg_checksums and check: no errors on either node'
}

redis_dir() { echo "$place/mnt/$1/redis"; }
redis_port() { echo $(($(port "$1") + 1000)); }
redis_start() { # redis_start N KIND [OPTION...]
  on "$1" mkdir -p "$(redis_dir "$2")"
  on "$1" redis-server --port "$(redis_port "$2")" --bind "10.77.0.$1" --protected-mode no --dir "$(redis_dir "$2")" --appendonly yes --appendfsync always --save '' \
    --repl-diskless-sync-delay 0 --daemonize no "${@:3}" >>"$place/redis.$1.$2.log" 2>&1 </dev/null &
  server
  wait_until 30 redis_answers "$1" "$2"
}
redis() { on "$client" redis-cli -h "10.77.0.$1" -p "$(redis_port "$2")" "${@:3}"; }
redis_answers() { [ "$(redis "$1" "$2" ping)" = PONG ]; }
redis_follows() { redis "$1" "$2" info replication | grep -q 'master_link_status:up'; }
redis_make() { redis_start 1 "$1" && redis_start 2 "$1" --replicaof 10.77.0.1 "$(redis_port "$1")" && wait_until 30 redis_follows 2 "$1"; }
redis_verify() { # redis_verify N KIND
  local writer count sum=0
  for writer in 1 2 3; do
    # A record counts when the primary had it in its log (OK) and a replica said that it has it (1).
    count=$(awk 'NR % 2 ? $0 != "OK" : $0 != 1 { exit } NR % 2 == 0 { n++ } END { print n + 0 }' "$place/redis.said.$writer")
    [ "$count" -gt 0 ] || die 'nothing is acknowledged'
    seq 1 "$count" | sed "s/^/GET $writer:/" | redis "$1" "$2" | cmp - <(seq 1 "$count" | sed "s/^/value-$writer-/") || die "acknowledged keys of writer $writer are lost in node $1"
    sum=$((sum + count))
  done
  say "node $1 has all $sum acknowledged keys"
}

redis_part() {
  local kind=strict writer
  machine 1 $kind && machine 2 $kind && node_start $client || die 'no nodes'
  redis_make $kind || { tail -5 "$place"/redis.*.log >&2; die 'no Redis'; }
  say "$(redis-server --version | cut -d' ' -f1-3): a primary and a replica on TandemFS ($kind, $profile)"
  for writer in 1 2 3; do
    seq 1 10000000 | sed "s/.*/SET $writer:& value-$writer-&\nWAIT 1 0/" | redis 1 $kind >"$place/redis.said.$writer" 2>/dev/null &
    server
  done
  sleep "$work_s"
  node_kill 1
  redis 2 $kind replicaof no one >/dev/null || die 'the replica is not promoted'
  say 'the node of the primary was killed, the replica promoted'
  redis_verify 2 $kind
  # The same from its file alone, over a recovery.
  node_kill 2
  machine 2 $kind && redis_start 2 $kind || die 'the replica does not come back'
  redis_verify 2 $kind
  machine 1 $kind && redis_start 1 $kind --replicaof 10.77.0.2 "$(redis_port $kind)" && wait_until 60 redis_follows 1 $kind || die 'the old primary does not follow'
  redis_verify 1 $kind
  for node in 1 2; do
    redis $node $kind shutdown >/dev/null 2>&1
    wait_until 10 bash -c "! nsenter -t $(cat "$nodes/$node") --net --mount --pid --uts --ipc -- pgrep -x redis-server"
    checked $node $kind
    node_kill $node
    rm "$place/$kind.$node"
  done
  node_kill $client
  say 'check: no errors on either node'
}

rates_part() {
  local kind round clients order
  # shellcheck disable=SC2086 # they are words
  machine 1 $kinds && machine 2 $kinds && node_start $client || die 'no nodes'
  for kind in $kinds; do
    pg_make "$kind" && redis_make "$kind" || die "no servers on $kind"
    on $client "$bin/pgbench" -h 10.77.0.1 -p "$(port "$kind")" -U postgres -i -q -s 5 postgres >"$place/pgbench" 2>&1 || die "pgbench on $kind"
  done
  say "$rounds rounds, each of $run_s s a run, on: $kinds"
  for round in $(seq 0 "$rounds"); do # the first one warms up
    order=$kinds
    # shellcheck disable=SC2086
    [ $((round % 2)) = 0 ] || order=$(printf '%s\n' $kinds | tac)
    for clients in 1 4; do
      for kind in $order; do
        on $client "$bin/pgbench" -h 10.77.0.1 -p "$(port "$kind")" -U postgres -n -N -c $clients -T "$run_s" postgres >"$place/pgbench" 2>&1 || die "pgbench on $kind"
        figure "pgbench-N-c$clients" "$kind" "$(sed -n 's/^tps = \([0-9.]*\).*/\1/p' "$place/pgbench")"
      done
      for kind in $order; do
        redis 1 "$kind" flushall >/dev/null
        figure "redis-set-c$clients" "$kind" "$(on $client redis-benchmark -h 10.77.0.1 -p "$(redis_port "$kind")" -c $clients -n $((run_s * clients * 1000)) -r 100000 -d 100 -t set --csv | tail -1 | cut -d'"' -f4)"
      done
    done
    [ "$round" != 0 ] || rm -f "$place/figures"
  done
  figures
}

for part in $parts; do "${part}_part"; done
