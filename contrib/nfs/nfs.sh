#!/usr/bin/env bash
# nfs.sh [verify|rates]...: NFS by Ganesha (its VFS back end, which finds files by handle) over a mount of TandemFS; server and client in nodes
# of this machine (scripts/nodes.sh). The client is a program in user space (client.c, libnfs), since not every kernel has one.
# verify: acknowledged records while the server is killed and started again, then while the daemon of the mount is killed with it; all of
# them are in the file system; handles of before both lead to the same file. rates: durable small writes by NFS version 3 on TandemFS, ext4,
# XFS and tmpfs, which keeps nothing, by turns. Without an argument both. ROUNDS=5, RUN_S=5 a run, WORK_S=20 of writes. Status 0 only if nothing was lost.
set -uo pipefail

name=nfs
sources=$(cd "$(dirname "$(realpath -- "$0")")/../.." && pwd)
# shellcheck source=scripts/nodes.sh
source "$sources/scripts/nodes.sh"
work_s=${WORK_S:-20}
parts=${*:-verify rates}
server=1 client=2
cc -O2 -o "$place/client" "$sources/contrib/nfs/client.c" -lnfs || die 'client.c needs libnfs-dev'
url() { echo "nfs://10.77.0.$server$place/export/$1?version=3&nfsport=2049&mountport=20048"; }
by_nfs() { on "$client" "$place/client" "$@"; }

# ganesha_start KIND...: exports them. What a server must keep for its clients is in /var/lib/nfs; /run is the node's own.
ganesha_start() {
  local kind number=1
  cat >"$place/ganesha.conf" <<CONF
NFS_CORE_PARAM { Protocols = 3, 4; NFS_Port = 2049; MNT_Port = 20048; Enable_NLM = false; Enable_RQUOTA = false; }
NFSv4 { Graceless = true; RecoveryBackend = fs; }
CONF
  for kind in "$@"; do
    cat >>"$place/ganesha.conf" <<CONF
EXPORT { Export_Id = $number; Path = $place/export/$kind; Pseudo = /$kind; Access_Type = RW; Squash = No_Root_Squash; SecType = sys; Filesystem_Id = $number.1; FSAL { Name = VFS; } }
CONF
    number=$((number + 1))
  done
  on "$server" mkdir -p /run/ganesha
  on "$server" ganesha.nfsd -F -f "$place/ganesha.conf" -L "$place/ganesha.log" -p /run/ganesha.pid -N NIV_EVENT </dev/null >/dev/null 2>&1 &
  server
  wait_until 60 on "$client" nfs-ls "$(url "$1")"
}
# shellcheck disable=SC2016 # of the node's shell
ganesha_kill() { on "$server" bash -c 'kill -9 $(cat /run/ganesha.pid)'; }

verify_part() {
  local kind=strict writer holder before what
  node_start $server && node_start $client || die 'no nodes'
  on $server mkdir -p /run/rpcbind "$place/lib" && on $server mount --bind "$place/lib" /var/lib/nfs && on $server rpcbind || die 'no rpcbind'
  drive_make "$place/disk" $kind 2G && drive_mount $server "$place/disk" $kind "$place/export/$kind" || die 'no mount'
  ganesha_start $kind || { tail -5 "$place/ganesha.log" >&2; die 'the server does not answer'; }
  say "$(ganesha.nfsd -v | head -1) exports a mount of TandemFS ($kind, $profile) by handle"
  # Reads by version 4 too. (nfs-cp of libnfs 4.0 writes nothing by it, on no file system.)
  head -c 1000000 /dev/urandom >"$place/random"
  on $server cp "$place/random" "$place/export/$kind/random"
  on $client nfs-cat "nfs://10.77.0.$server/$kind/random?version=4" 2>"$place/said" | cmp - "$place/random" || { cat "$place/said" >&2; die 'a read by version 4'; }
  mkfifo "$place/go"
  by_nfs hold "$(url $kind)" "$place/go" >"$place/held" &
  holder=$!
  mkdir "$place/log"
  on $server mkdir "$place/export/$kind/writes"
  by_nfs write "$(url $kind/writes)" "$place/log/1" $((2 * work_s)) 4 2>"$place/said" &
  writer=$!
  jobs_of_script+=($writer $holder)
  for what in 'the server' 'the server and the daemon of the mount'; do
    sleep $((work_s / 2))
    before=$(wc -l <"$place/log/1")
    [ "$before" -gt 0 ] || die 'nothing is acknowledged'
    if [ "$what" != 'the server' ]; then
      daemon=$(drive_daemon $server "$place/export/$kind")
      on $server kill -9 "$daemon"
    fi
    ganesha_kill
    [ "$what" = 'the server' ] || { on $server umount --lazy "$place/export/$kind" && drive_mount $server "$place/disk" $kind "$place/export/$kind"; } || die 'the mount does not come back'
    sleep 1
    ganesha_start $kind || die 'the server does not answer again'
    say "$what was killed at record $before and is back at record $(wc -l <"$place/log/1")"
  done
  wait $writer || { cat "$place/said" >&2; die 'a writer gave up'; }
  echo go >"$place/go"
  wait $holder || die 'handles do not survive'
  say "$(cat "$place/held")"
  say "$(tr '\n' ';' <"$place/said")"
  [ "$(on $server cat "$place/export/$kind/held/two")" = 'before after' ] || die 'the held file has other bytes'
  records=$(on $server "$sources/scripts/acknowledged.py" verify "$place/export/$kind/writes" "$place/log/1") || die "lost: $records"
  say "acknowledged: $records"
  ganesha_kill
  on $server "$tandemfs" umount "$place/export/$kind" && "$tandemfs" check "$place/disk" >"$place/check" || { cat "$place/check" >&2; die check; }
  records=$(wc -l <"$place/log/1")
  drive_mount $server "$place/disk" $kind "$place/export/$kind" &&
    on $server "$sources/scripts/acknowledged.py" verify "$place/export/$kind/writes" "$place/log/1" >/dev/null || die "lost over a clean mount"
  node_kill $server
  node_kill $client
  say 'check: no errors; the same records after a clean mount'
}

rates_part() {
  local kind round clients what order
  node_start $server && node_start $client || die 'no nodes'
  on $server mkdir -p /run/rpcbind "$place/lib" && on $server mount --bind "$place/lib" /var/lib/nfs && on $server rpcbind || die 'no rpcbind'
  for kind in $kinds; do
    drive_make "$place/$kind" "$kind" 2G && drive_mount $server "$place/$kind" "$kind" "$place/export/$kind" || die "no mount of $kind"
  done
  # shellcheck disable=SC2086 # they are words
  ganesha_start $kinds || { tail -5 "$place/ganesha.log" >&2; die 'the server does not answer'; }
  say "$rounds rounds, each of $run_s s a run, on: $kinds"
  for round in $(seq 0 "$rounds"); do # the first one warms up
    order=$kinds
    # shellcheck disable=SC2086
    [ $((round % 2)) = 0 ] || order=$(printf '%s\n' $kinds | tac)
    for clients in 1 4; do
      for what in overwrite append create; do
        for kind in $order; do
          figure "$what-commit-4k-c$clients" "$kind" "$(by_nfs rate "$(url "$kind")" $what "$run_s" $clients)" || die "$what on $kind"
        done
      done
    done
    [ "$round" != 0 ] || rm -f "$place/figures"
  done
  figures
}

for part in $parts; do "${part}_part"; done
