# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# dbench, bonnie++ and postmark: they end right, what they say adds up, and nothing of theirs is left.
cases+=(dbench dbench_killed bonnie bonnie_killed postmark postmark_killed)
once+=(dbench_killed bonnie_killed postmark_killed)

# Each line of its load is a call with the status that it must have.
app_dbench() {
  local options
  # It takes the number 0, which the first semaphore of a machine has, for an error.
  ipcrm -s "$(ipcmk -S 1 | tr -dc 0-9)"
  for options in '' '-x' '-s -S -F'; do
    # shellcheck disable=SC2086 # words
    dbench $options --no-resolve -c /usr/share/dbench/client.txt -D "$mount" -t 3 4 >"$place/dbench" 2>&1 || { tail -5 "$place/dbench" >&2; return 1; }
    grep -q '^Throughput [1-9]' "$place/dbench"
    ! grep -iE 'fail|error|expected' "$place/dbench" >&2 || return 1
    [ -z "$(find "$mount" -type f)" ]
  done
}

app_bonnie() {
  local user=()
  [ "$EUID" != 0 ] || user=(-u root)
  mkdir "$mount/bonnie"
  bonnie++ -q -d "$mount/bonnie" "${user[@]}" -r 32 -s 64 -n 1:8192:0:4 -m tandemfs -b >"$place/bonnie" 2>"$place/said" || { tail -5 "$place/said" >&2; return 1; }
  [ "$(tail -1 "$place/bonnie" | tr ',' '\n' | wc -l)" -ge 40 ]
  [ -z "$(ls -A "$mount/bonnie")" ]
}

app_postmark() {
  mkdir "$mount/postmark"
  postmark >"$place/postmark" <<CONF
set location $mount/postmark
set number 1000
set subdirectories 10
set size 100 20000
set transactions 2000
set seed 7
run
quit
CONF
  # As many files deleted as created; almost every transaction reads or appends, as its biases have it.
  awk '$2 == "created" { created = $1 } $2 == "deleted" { deleted = $1 } $2 == "read" { read = $1 } $2 == "appended" { appended = $1 }
    END { exit !(created > 1000 && created == deleted && read + appended > 1900) }' "$place/postmark" || { cat "$place/postmark" >&2; return 1; }
  [ -z "$(ls -A "$mount/postmark")" ]
}
