# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# SQLite: the kinds of statements of its own speed test, in each journal mode and through a mapping; every answer must be that of the same
# statements on a file system in memory.
cases+=(sqlite sqlite_killed)

sqlite_settings() {
  case $1 in
    delete) echo "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; PRAGMA mmap_size=0;" ;;
    wal) echo "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA mmap_size=0;" ;;
    mmap) echo "PRAGMA journal_mode=DELETE; PRAGMA synchronous=FULL; PRAGMA mmap_size=268435456;" ;;
  esac
}

sqlite_statements() {
  awk 'function draw(bound) { seed = (seed * 1103515245 + 12345) % 2147483648; return int(seed / 65536) % bound }
    function text(n) { return "'\''text " n " " draw(30000) " of a row that is as long as such rows are'\''" }
    BEGIN {
      seed = 7; rows = 20000
      print "CREATE TABLE a(x INTEGER, y INTEGER, z TEXT); BEGIN;"
      for (n = 1; n <= rows; n++) print "INSERT INTO a VALUES(" n "," draw(30000) "," text(n) ");"
      print "COMMIT; CREATE TABLE b(x INTEGER UNIQUE, y INTEGER, z TEXT); BEGIN;"
      for (n = 1; n <= rows; n++) print "INSERT INTO b VALUES(" n "," draw(30000) "," text(n) ");"
      print "COMMIT; CREATE TABLE c(x INTEGER PRIMARY KEY, y INTEGER, z TEXT) WITHOUT ROWID; BEGIN;"
      for (n = 1; n <= rows; n++) print "INSERT INTO c VALUES(" (n * 7919) % 20011 "," draw(30000) "," text(n) ");"
      print "COMMIT;"
      for (n = 1; n <= 5; n++) print "SELECT count(*), avg(y), sum(length(z)) FROM a WHERE y BETWEEN " n * 1000 " AND " n * 1000 + 9000 ";"
      print "BEGIN; CREATE UNIQUE INDEX b1 ON b(x, y); CREATE INDEX b2 ON b(y, z); CREATE INDEX c1 ON c(y); COMMIT;"
      for (n = 1; n <= 2000; n++) print "SELECT count(*), sum(x) FROM b WHERE y BETWEEN " n * 10 " AND " n * 10 + 20 ";"
      print "DELETE FROM b; INSERT INTO b SELECT * FROM a; VACUUM; ALTER TABLE a ADD COLUMN w DEFAULT 123; BEGIN;"
      for (n = 1; n <= 3000; n++) { x = draw(rows); print "UPDATE b SET y = y + 7 WHERE x BETWEEN " x " AND " x + 3 ";" }
      for (n = 1; n <= 3000; n++) print "UPDATE c SET z = " text(n) " WHERE x = " draw(rows) ";"
      print "COMMIT; BEGIN; DELETE FROM c WHERE x % 3 = 0; ROLLBACK; DELETE FROM c WHERE x % 5 = 0;"
      print "REPLACE INTO b(x, y, z) SELECT x, y, z FROM c; SELECT count(*), sum(x), sum(y) FROM b WHERE x IN (SELECT x FROM a);"
      for (n = 1; n <= 100; n++) print "INSERT INTO a(x, y, z) VALUES(" (-n) "," n "," text(n) ");"
      print "ANALYZE; PRAGMA integrity_check; PRAGMA foreign_key_check;"
    }'
}

app_sqlite() {
  local kind
  sqlite_statements >"$place/statements"
  for kind in delete wal mmap; do
    { sqlite_settings "$kind"; cat "$place/statements"; } | sqlite3 -bail "$mount/$kind.db" >"$place/$kind.said"
    [ -e "$place/$kind.expected" ] || { sqlite_settings "$kind"; cat "$place/statements"; } | sqlite3 -bail "$place/$kind.db" >"$place/$kind.expected"
    cmp "$place/$kind.said" "$place/$kind.expected"
    grep -qx ok "$place/$kind.said"
    cmp <(sqlite3 "$mount/$kind.db" .dump) <(sqlite3 "$place/$kind.db" .dump)
  done
}

# One connection, never closed (closing writes the kernel's cache back); after each row, which is a transaction, it says the row's number.
sqlite_writer() {
  { sqlite_settings "$1"; seq 1 1000000 | sed 's/.*/INSERT INTO t VALUES(&, hex(randomblob(300))); SELECT &;/'; } |
    stdbuf -oL sqlite3 -bail "$mount/$1.db" >"$place/$1.acknowledged" 2>/dev/null || true
}

app_sqlite_killed() {
  local kind last writers=()
  for kind in delete wal mmap; do
    sqlite3 "$mount/$kind.db" "$(sqlite_settings "$kind") CREATE TABLE t(id INTEGER PRIMARY KEY, body TEXT);" >/dev/null
    sqlite_writer "$kind" &
    writers+=($!)
  done
  wait_until 60 grep -qs '^9$' "$place/delete.acknowledged"
  wait_until 60 grep -qs '^9$' "$place/wal.acknowledged"
  wait_until 60 grep -qs '^9$' "$place/mmap.acknowledged"
  sleep 2
  kill_daemon
  wait "${writers[@]}"
  come_back
  for kind in delete wal mmap; do
    last=$(tail -1 "$place/$kind.acknowledged")
    [ "$(sqlite3 "$mount/$kind.db" "PRAGMA integrity_check; SELECT count(*) = $last FROM t WHERE id <= $last;")" = $'ok\n1' ]
  done
}
