#!/usr/bin/env bash
# gluster.sh [verify|rates]...: GlusterFS, a volume of three replicas in three nodes of this machine (scripts/nodes.sh), on bricks of TandemFS.
# verify: real work; the daemon of a brick killed amid acknowledged writes, then a whole node; after the heal every brick has every acknowledged
# record, and the bricks are the same byte by byte. rates: durable small writes, by turns on bricks of TandemFS, ext4, XFS and tmpfs, which keeps
# nothing and so is the limit. Without an argument both. ROUNDS=5, RUN_S=5 a run, WORK_S=10 of writes beside each kill. Status 0 only if nothing was lost.
set -uo pipefail

name=gluster
sources=$(cd "$(dirname "$(realpath -- "$0")")/../.." && pwd)
# shellcheck source=scripts/nodes.sh
source "$sources/scripts/nodes.sh"
work_s=${WORK_S:-10}
parts=${*:-verify rates}
client=4
mount=$place/mnt # in the client's node

# A node of Gluster: what it must keep over a restart is in a directory of the host, what it must not is in /run.
gluster_start() { # gluster_start N
  local own
  node_start "$1" || return
  for own in /var/lib/glusterd /var/log/glusterfs; do
    mkdir -p "$place/node$1$own" && on "$1" mount --bind "$place/node$1$own" "$own" || return
  done
  on "$1" mkdir -p /run/gluster
}
glusterd_start() { on "$1" glusterd --log-level WARNING; }
gluster() { on 1 gluster --mode=script "$@"; }
brick_mount() { drive_mount "$2" "$place/$1.$2" "$1" "$place/brick/$1"; } # brick_mount KIND N: the same path in each node
brick() { echo "$place/brick/$1/data"; }

volume_make() { # volume_make KIND
  local kind=$1 node bricks=()
  for node in 1 2 3; do
    drive_make "$place/$kind.$node" "$kind" 2G && brick_mount "$kind" "$node" || return
    bricks+=("10.77.0.$node:$(brick "$kind")")
  done
  # A lost node is noticed after 5 s instead of 42, a brick whose file system fails after 2 instead of 30.
  gluster volume create "$kind" replica 3 "${bricks[@]}" force >/dev/null &&
    gluster volume set "$kind" network.ping-timeout 5 >/dev/null && gluster volume set "$kind" storage.health-check-interval 2 >/dev/null &&
    gluster volume set "$kind" cluster.heal-timeout 5 >/dev/null && gluster volume start "$kind" >/dev/null && wait_until 60 bricks_online "$kind" 3 &&
    # Gluster 10.3 forgets which names to heal when it tries that on a brick whose process lives and whose file system does not: a name that was
    # removed meanwhile stays on that brick alone. Without the index of names it compares directories.
    gluster volume heal "$kind" granular-entry-heal disable >/dev/null && wait_until 60 bricks_online "$kind" 3
}
# Long names of bricks take several lines, the last one says whether the brick runs.
bricks_online() { [ "$(gluster volume status "$1" | awk '/^Brick/ { is_brick = 1 } / [YN] / { n += is_brick && / Y /; is_brick = 0 } END { print n + 0 }')" = "$2" ]; }
volume_mount() { on "$client" mkdir -p "$mount/$1" && on "$client" mount -t glusterfs "10.77.0.1:/$1" "$mount/$1"; }
# Nothing is left to heal, twice, since a heal finds new entries as it goes.
healed() { is_healed "$1" && sleep 2 && is_healed "$1"; }
is_healed() {
  bricks_online "$1" 3 && gluster volume heal "$1" info >"$place/heal" &&
    [ "$(grep -c '^Number of entries: 0$' "$place/heal")" = 3 ]
}

# The bricks have the same names, identities, permissions, owners and bytes.
bricks_are_same() { # bricks_are_same KIND
  local node
  for node in 1 2 3; do
    on "$node" "$sources/contrib/gluster/brick.py" "$(brick "$1")" >"$place/list.$node" 2>"$place/unfinished.$node" || { tail -3 "$place/unfinished.$node" >&2; die "brick $node cannot be read"; }
    [ ! -s "$place/unfinished.$node" ] || say "brick $node: $(wc -l <"$place/unfinished.$node") files without a gfid, which its death in the middle of a creation left: $(head -3 "$place/unfinished.$node" | tr '\n' ' ')"
  done
  [ "$(wc -l <"$place/list.1")" -gt 10 ] || die "the bricks are empty"
  for node in 2 3; do
    cmp -s "$place/list.1" "$place/list.$node" || { diff "$place/list.1" "$place/list.$node" | tee "$place/differs" | head -20 >&2; said_of_differing "$node"; die "brick $node differs from brick 1"; }
  done
}

# What Gluster's processes said of names that differ: a call that a brick refused is not one that its file system forgot.
said_of_differing() {
  local path
  sed -n 's/^[<>] \([^ ]*\) .*/\1/p' "$place/differs" | sort -u | head -5 | while read -r path; do
    grep -ah "$path[^0-9]" "$place/node$1/var/log/glusterfs/bricks/"*.log "$place/node$client/var/log/glusterfs/"*.log "$place"/node*/var/log/glusterfs/glustershd.log | cut -c1-300 | tail -4 >&2
  done
}

# Work on the volume, each with a check of its result.
work() { # work DIRECTORY
  on "$client" bash -euc '
    cd "$1"; sources=$2; seed=$3
    export HOME=$1 GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
    tar -C "$sources" -cf "$seed.tar" scripts crates/fs docs
    mkdir tree; tar -xf "$seed.tar" -C tree
    for part in scripts crates/fs docs; do diff -r "$sources/$part" "tree/$part"; done
    cd tree; git init -q; git add -A; git -c core.fsync=all commit -qm one; git mv docs documents; git commit -qm two; git gc -q; git fsck --strict >/dev/null 2>&1
    git clone -q . ../clone; diff -r --exclude=.git . ../clone
    cd ..; for i in $(seq 100); do echo "INSERT INTO t VALUES ($i, hex(randomblob(500)));"; done >"$seed.sql"
    sqlite3 data.db "PRAGMA synchronous=FULL; CREATE TABLE t(a INTEGER PRIMARY KEY, b)" ".read $seed.sql"
    [ "$(sqlite3 data.db "PRAGMA integrity_check; SELECT count(*) FROM t" | tr "\n" " ")" = "ok 100 " ]
    fio --name=verify --directory=. --size=16M --bs=4k --rw=randwrite --verify=crc32c --do_verify=1 --fsync=32 --minimal >/dev/null
    rm -rf clone' - "$1" "$sources" "$place/seed" >"$place/work" 2>&1 || { tail -5 "$place/work" >&2; return 1; }
}

verify_part() {
  local kind=strict writer records node daemon
  volume_make $kind && volume_mount $kind || die "no volume"
  say "a volume of three replicas on TandemFS ($kind, $profile) is mounted"
  mkdir -p "$place/log"
  on "$client" mkdir "$mount/$kind/work" && work "$mount/$kind/work" || die "work on the volume"
  say 'untar, git, SQLite and fio gave what they should'
  node=2
  for what in 'the daemon of a brick' 'a whole node'; do
    on "$client" "$sources/scripts/acknowledged.py" write "$mount/$kind/writes.$node" "$place/log/$node" "$work_s" 4 &
    writer=$!
    jobs_of_script+=($writer)
    wait_until 20 test -s "$place/log/$node" || die 'nothing is acknowledged'
    sleep $((work_s / 4))
    if [ $node = 2 ]; then
      daemon=$(drive_daemon 2 "$place/brick/$kind")
      on 2 kill -9 "$daemon"
      before=$(wc -l <"$place/log/$node")
      sleep $((work_s / 4))
      [ "$(wc -l <"$place/log/$node")" -gt "$before" ] || die 'no writes without the brick'
      # Gluster's health check says "going down", but the brick's process stays (10.3), so it is ended. Then as after a crash: the mount recovers
      # what it had acknowledged.
      # shellcheck disable=SC2016 # of the node's shell
      on 2 bash -c 'kill -9 $(cat /run/gluster/vols/'$kind'/10.77.0.2-*.pid)'
      wait_until 30 bricks_online $kind 2 || die 'the brick does not end'
      on 2 umount --lazy "$place/brick/$kind" && brick_mount $kind 2 && gluster volume start $kind force >/dev/null || die 'the brick does not come back'
    else
      before=$(wc -l <"$place/log/$node")
      node_kill 3
      wait_until 30 bricks_online $kind 2 || die 'Gluster does not notice the loss of a node'
      sleep $((work_s / 4))
      [ "$(wc -l <"$place/log/$node")" -gt "$before" ] || die 'no writes without the node'
      gluster_start 3 && brick_mount $kind 3 && glusterd_start 3 || die 'the node does not come back'
    fi
    say "$what was killed at record $before and is back at record $(wc -l <"$place/log/$node")"
    wait $writer || die 'a writer gave up'
    wait_until 600 healed $kind || { cat "$place/heal" >&2; die 'not healed'; }
    say "healed; calls that failed at the client: $(awk '{ n += $1 } END { print n + 0 }' "$place/log/$node.failed")"
    node=3
  done
  bricks_are_same $kind
  say "the three bricks are the same: $(wc -l <"$place/list.1") files and directories, $(on 1 du -sm --exclude=.glusterfs "$(brick $kind)" | cut -f1) MiB; names, gfid, permissions, owners, bytes"
  for node in 1 2 3; do
    for log in 2 3; do
      records=$(on "$node" "$sources/scripts/acknowledged.py" verify "$(brick $kind)/writes.$log" "$place/log/$log") || die "brick $node lost acknowledged records: $records"
      say "brick $node, log $log: $records"
    done
  done
  on $client umount "$mount/$kind"
  gluster volume stop $kind >/dev/null && gluster volume delete $kind >/dev/null || die 'the volume does not stop'
  for node in 1 2 3; do
    on "$node" "$tandemfs" umount "$place/brick/$kind" && "$tandemfs" check "$place/$kind.$node" >"$place/check" || { cat "$place/check" >&2; die "check of brick $node"; }
    rm "$place/$kind.$node"
  done
  say 'check: no errors on any brick'
}

# measured KIND WHAT FIO-OPTIONS...: operations a second of fio in the client.
measured() {
  local kind=$1 what=$2
  shift 2
  on "$client" bash -c 'rm -rf "$1"/run; mkdir "$1"/run' - "$mount/$kind"
  on "$client" fio --name=run --directory="$mount/$kind/run" --ioengine=psync --bs=4k --group_reporting --output-format=json --fallocate=none "$@" >"$place/fio" 2>/dev/null || die "fio on $kind"
  figure "$what" "$kind" "$(python3 -c 'import json, sys; job = json.load(open(sys.argv[1]))["jobs"][0]["write"]; print(job["total_ios"] * 1000 / job["runtime"])' "$place/fio")"
}

rates_part() {
  local kind round jobs order
  for kind in $kinds; do volume_make "$kind" && volume_mount "$kind" || die "no volume on $kind"; done
  say "$rounds rounds, each of $run_s s a run, on: $kinds"
  for round in $(seq 0 "$rounds"); do # the first one warms up
    order=$kinds
    [ $((round % 2)) = 0 ] || order=$(printf '%s\n' $kinds | tac)
    for jobs in 1 4; do
      for kind in $order; do
        measured "$kind" "overwrite-fsync-4k-c$jobs" --rw=randwrite --size=16M --fdatasync=1 --numjobs=$jobs --runtime="$run_s" --time_based
        measured "$kind" "append-fsync-4k-c$jobs" --rw=write --size=1G --file_append=1 --fsync=1 --numjobs=$jobs --runtime="$run_s"
        measured "$kind" "create-fsync-4k-c$jobs" --rw=write --filesize=4k --nrfiles=$((run_s * 100)) --openfiles=1 --file_service_type=sequential --create_on_open=1 --fsync=1 --numjobs=$jobs
      done
    done
    [ "$round" != 0 ] || rm -f "$place/figures"
  done
  figures
}

for node in 1 2 3 $client; do gluster_start $node || die "no node $node"; done
starting=()
for node in 1 2 3; do glusterd_start $node & starting+=($!); done
wait "${starting[@]}"
for node in 1 2 3; do wait_until 60 on $node gluster --mode=script peer status || die "no glusterd in node $node"; done
for node in 2 3; do gluster peer probe 10.77.0.$node >/dev/null || die "node $node cannot be reached"; done
connected() { [ "$(gluster peer status | grep -c 'Peer in Cluster (Connected)')" = 2 ]; }
wait_until 30 connected || die 'the nodes do not find each other'
say "$(gluster --version | head -1), three nodes and a client"
for part in $parts; do "${part}_part"; done
