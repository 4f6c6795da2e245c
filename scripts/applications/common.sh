# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# What all programs share: the mount, its daemon, servers, and the kill in the middle. $tandemfs, $place, $mount and $mode are the caller's.

# By mode: what programs run with, if that is not the mount alone.
declare -A way=([door]=--real [placeholders]=--placeholders)

now_ms() { echo $(($(date +%s%N) / 1000000)); }

# Mounts the image, with allow_other for servers that run as a user of their own. A case that runs by the direct door enters that of the new
# mount, which is strict.
attach() {
  local options=$mode,log=$place/log
  [ -z "${way[$mode]:-}" ] || options=strict,direct,log=$place/log
  [ "$EUID" != 0 ] || options+=,allow_other
  "$tandemfs" mount "$place/disk.image" "$mount" -o "$options" && daemon >"$place/daemon" || return
  [ -z "${in_case:-}" ] || enter
}

# What is started from here on runs as under `tandemfs run`, where the mode is of the door: its environment becomes ours. A copy of the library, which
# servers can read that run as a user of their own; by the door from the first call on.
enter() {
  local variable
  [ -n "${way[$mode]:-}" ] || return 0
  [ -e "$place/libtandemfs_preload.so" ] || install -m 755 "${tandemfs%/*}/libtandemfs_preload.so" "$place"
  while IFS= read -r -d '' variable; do
    # shellcheck disable=SC2163 # it is NAME=VALUE
    case $variable in LD_PRELOAD=* | TANDEMFS_RUN_*) export "$variable" ;; esac
  done < <(env -u LD_PRELOAD TANDEMFS_PRELOAD="$place/libtandemfs_preload.so" TANDEMFS_RUN_AFTER=0 \
    "$tandemfs" run --mount "$mount" "${way[$mode]}" -- env -0)
  [ "${LD_PRELOAD:-}" = "$place/libtandemfs_preload.so" ] || { echo "  the direct door cannot be entered" >&2; return 1; }
}

# Whether programs were at the door of the mount that there is.
entered() { [ -z "${way[$mode]:-}" ] || [ "$("$tandemfs" stats "$mount" --json | sed -n 's/.*"connections": *\([0-9]*\).*/\1/p')" -gt 0 ]; }

daemon() { "$tandemfs" info "$mount" --json | sed -n 's/.*"process_id": *\([0-9]*\).*/\1/p'; }

# Takes away what is left of a mount, whatever state it is in. The daemon is killed: nothing waits for one that hangs.
abandon() {
  if mountpoint -q "$mount" || ! stat "$mount" >/dev/null 2>&1; then
    kill -9 "$(cat "$place/daemon" 2>/dev/null)" 2>/dev/null
    leave
  fi
}

# Unmounts what a killed daemon left.
leave() { "$tandemfs" umount --lazy "$mount" >/dev/null 2>&1 || umount --lazy "$mount" 2>/dev/null || fusermount3 -uz "$mount"; }

# Kills the daemon, and mounts again what it left.
kill_daemon() { kill -9 "$(cat "$place/daemon")"; }
come_back() { leave && attach; }

# wait_for PID SECONDS: its status, or 1 when the time is over.
wait_for() {
  local until=$(($(now_ms) + $2 * 1000))
  while kill -0 "$1" 2>/dev/null; do
    [ "$(now_ms)" -lt "$until" ] || { echo "  not at its end after $2 s" >&2; return 1; }
    sleep 0.05
  done
  wait "$1"
}

# wait_until SECONDS COMMAND...: until it succeeds.
wait_until() {
  local until=$(($(now_ms) + $1 * 1000))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$(now_ms)" -lt "$until" ] || { echo "  not within the time: $*" >&2; return 1; }
    sleep 0.05
  done
}

# as USER COMMAND...: as a user of the system, where we are root; as ourselves else. become USER COMMAND... does it in place of the shell.
as() { (become "$@"); }
become() {
  local user=$1
  shift
  [ "$EUID" = 0 ] || exec "$@"
  exec env -C / setpriv --reuid="$user" --regid="$(id -g "$user")" --init-groups -- "$@"
}

# server PID [SIGNAL]: it is ended with the case, whatever becomes of that; by the signal, if that is enough.
server() { echo "$1 ${2:-KILL}" >>"$place/servers"; }
end_servers() {
  local pid signal
  [ -e "$place/servers" ] || return 0
  while read -r pid signal; do
    kill -"$signal" "$pid" 2>/dev/null || continue
    wait_until 3 gone "$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true
  done <"$place/servers"
  rm -f "$place/servers"
}
gone() { ! kill -0 "$1" 2>/dev/null; }

# killed NAME MS: app_NAME, its daemon killed when half of the time has passed that it took, at most 10 s; then the file system must be clean, mounted and
# not, and app_NAME must end right on it. One that had ended before the kill is tried again with half of that time.
killed() {
  local delay_ms=$(($2 / 2 < 10000 ? $2 / 2 : 10000)) work
  while :; do
    (app_"$1") >/dev/null 2>&1 &
    work=$!
    sleep "$((delay_ms / 1000)).$(printf '%03d' $((delay_ms % 1000)))"
    ! kill -0 "$work" 2>/dev/null || break
    [ "$delay_ms" -gt 20 ] || { echo "  $1 ends before it can be killed" >&2; return 1; }
    delay_ms=$((delay_ms / 2))
    find "$mount" -mindepth 1 -delete
  done
  kill_daemon
  # Programs end with errors; those that go on trying are ended.
  wait_for "$work" 10 2>/dev/null || end_below "$work"
  end_servers
  leave
  "$tandemfs" check "$place/disk.image" >&2
  attach
  "$tandemfs" umount "$mount" >&2
  "$tandemfs" check "$place/disk.image" >&2
  attach
  find "$mount" -mindepth 1 -delete
  [ -z "$(ls -A "$mount")" ]
  app_"$1"
}

# Ends a process and all below it.
end_below() {
  local child
  for child in $(pgrep -P "$1" || true); do end_below "$child"; done
  kill -9 "$1" 2>/dev/null || true
  wait "$1" 2>/dev/null || true
}
