# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# Redis with appendfsync always, on a UNIX socket: every acknowledged key is there after a restart, and after the daemon was killed.
cases+=(redis redis_killed)

redis_start() {
  redis-server --port 0 --unixsocket "$place/redis.socket" --dir "$mount/redis" --appendonly yes --appendfsync always --daemonize no \
    --save '2 1' --auto-aof-rewrite-percentage 50 --auto-aof-rewrite-min-size 64kb --logfile "$place/redis.log" >/dev/null 2>&1 &
  echo $! >"$place/redis.pid"
  server $!
  wait_until 60 redis_answers
}
redis_answers() { [ "$(redis-cli -s "$place/redis.socket" ping)" = PONG ]; }
redis() { redis-cli -s "$place/redis.socket" "$@"; }

redis_stop() {
  redis shutdown >/dev/null 2>&1 || true
  wait_for "$(cat "$place/redis.pid")" 60
}

# redis_set CLIENT COUNT: sets keys, and says OK for each that was acknowledged.
redis_set() { seq 1 "$2" | sed "s/.*/SET $1:& value-$1-&/" | redis; }

# redis_has CLIENT COUNT: each of them has its value.
redis_has() {
  seq 1 "$2" | sed "s/^/GET $1:/" | redis >"$place/redis.values"
  seq 1 "$2" | sed "s/^/value-$1-/" | cmp - "$place/redis.values"
}

app_redis() {
  mkdir "$mount/redis"
  redis_start
  redis-benchmark -s "$place/redis.socket" -q -c 8 -n 2000 -r 1000 -d 200 -t set,incr,lpush,hset,zadd >"$place/said" 2>&1
  [ "$(redis_set one 2000 | grep -cx OK)" = 2000 ]
  redis bgrewriteaof >/dev/null
  [ "$(redis_set two 2000 | grep -cx OK)" = 2000 ]
  redis config set save '' >/dev/null
  wait_until 60 redis_is_idle
  redis debug digest >"$place/digest" 2>/dev/null || redis dbsize >"$place/digest"
  redis_stop
  redis-check-aof "$mount"/redis/appendonlydir/*.manifest >"$place/said" 2>&1
  redis_start
  redis_has one 2000
  redis_has two 2000
  { redis debug digest 2>/dev/null || redis dbsize; } | cmp - "$place/digest"
  redis_stop
}
redis_is_idle() { redis info persistence | tr -d '\r' | awk -F: '/_in_progress:1/ { busy = 1 } END { exit busy }'; }

app_redis_killed() {
  local client pid work=()
  mkdir "$mount/redis"
  redis_start
  for client in a b c; do
    redis_set "$client" 1000000 >"$place/redis.$client" 2>/dev/null &
    work+=($!)
  done
  wait_until 60 test -s "$place/redis.a" -a -s "$place/redis.b" -a -s "$place/redis.c"
  sleep 2
  kill_daemon
  pid=$(cat "$place/redis.pid")
  wait_for "$pid" 5 2>/dev/null || end_servers
  for pid in "${work[@]}"; do end_below "$pid"; done
  leave
  "$tandemfs" check "$place/disk.image" >&2
  attach
  redis_start
  # Answers in order: the acknowledged keys are those before the first error.
  for client in a b c; do
    awk '$0 != "OK" { exit } { count++ } END { print count + 0 }' "$place/redis.$client" >"$place/count"
    [ "$(cat "$place/count")" -gt 0 ]
    redis_has "$client" "$(cat "$place/count")"
  done
  redis_stop
}
