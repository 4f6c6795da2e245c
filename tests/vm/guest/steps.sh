#!/usr/bin/env bash
# steps.sh STEP [ARGUMENT]...: what run-all.sh has done inside the guest. Any command that fails ends the step with its status.
# From the environment: TANDEMFS, WITNESS, MOUNT_UNTIL_CUT and BENCH (programs), SOURCES (a tar of a tree to copy), STATE (a directory that outlives the guest),
# HALF (what serves as the memory half: devdax, cxl, fsdax, raw), SCALE (share of the published loads, for bytes).
set -euo pipefail

mountpoint=/run/tandem
sources=/run/sources # in the guest's memory: the host's own tree is far away
memory_half=''
device=''

fail() { echo "failed: $*"; exit 1; }
show() { # with the guest's uptime
  local uptime rest
  read -r uptime rest </proc/uptime
  echo "+ $uptime $*"
  "$@"
}

# Puts the pair's name into $device. For fsdax the memory half is a file on ext4 with DAX: made by `new`, there again after a reboot.
find_pair() { # find_pair [new]
  case $HALF in
    devdax | raw) memory_half=$TANDEMFS_MEMORY_DEVICE ;;
    cxl) memory_half=$TANDEMFS_CXL_DEVICE ;;
    fsdax)
      memory_half=/run/dax/memory
      mkdir -p /run/dax
      [ $# = 0 ] || show mkfs.ext4 -q -F -b 4096 "$TANDEMFS_MEMORY_DEVICE"
      show mount -t ext4 -o dax=always "$TANDEMFS_MEMORY_DEVICE" /run/dax
      [ $# = 0 ] || show fallocate -l 384M "$memory_half"
      ;;
  esac
  device=memory=$memory_half,block=$TANDEMFS_BLOCK_DEVICE
}

format() { find_pair new; show "$TANDEMFS" mkfs "$device"; }
attach() { # attach [OPTIONS]
  mkdir -p "$mountpoint"
  show "$TANDEMFS" mount "$device" "$mountpoint" -o "log=$STATE/daemon.log${1:+,$1}"
}
detach() { show "$TANDEMFS" umount "$mountpoint"; }
check() { show "$TANDEMFS" check "$device"; }

# ---- work on one pair, through an unmount and a reboot ---------------------------------------------------------------------------
# It is compared after a mount, when nothing of it is in the kernel's cache.

unpack_sources() { mkdir -p "$sources" && tar -x -C "$sources" -f "$SOURCES"; }

do_work() {
  cd "$mountpoint"
  show "$WITNESS" fill large $((24 << 20))
  mkdir witnessed
  show "$WITNESS" write witnessed "$STATE/work.log" --operations 400
  show cp -a "$sources" copied
  show mv copied moved
  show cp -a moved again
  show diff -r "$sources" moved
  show rm -r again
  for number in $(seq 20); do echo "entry $number" | dd of=journal oflag=append conv=notrunc,fsync status=none; done
  ln journal hard
  ln -s moved soft
  printf old >replaced
  printf new >replacement
  mv replacement replaced
  : >empty
  truncate -s 5000000 holes
  printf end | dd of=holes bs=1 seek=3333333 conv=notrunc,fsync status=none
  find . -type f -print0 | sort -z | xargs -0 sha256sum >"$STATE/manifest"
  echo "$(wc -l <"$STATE/manifest") files in the manifest"
  cd /
}

compare_work() {
  cd "$mountpoint"
  sha256sum --quiet -c "$STATE/manifest" || fail "files differ from the manifest"
  [ "$(find . -type f | wc -l)" = "$(wc -l <"$STATE/manifest")" ] || fail "there are more or fewer files than in the manifest"
  show "$WITNESS" compare large $((24 << 20))
  show "$WITNESS" verify witnessed "$STATE/work.log"
  show diff -r "$sources" moved
  [ "$(wc -l <journal)" = 20 ] || fail "the journal has $(wc -l <journal) lines"
  [ "$(cat replaced)" = new ] && [ ! -e replacement ] || fail "the rename over a file did not happen"
  [ hard -ef journal ] && [ "$(readlink soft)" = moved ] || fail "a link is wrong"
  cd /
}

step_work() {
  unpack_sources
  format
  attach
  "$TANDEMFS" info "$mountpoint" --json >"$STATE/info.json"
  do_work
  detach
  check
  attach ro
  compare_work
  detach
}

step_work_after_reboot() {
  unpack_sources
  find_pair
  check
  attach
  compare_work
  detach
  check
}

# ---- power cuts: two writers each round, each in its own directory with its own log -----------------------------------------------

profiles=(large small log mixed)

start_writers() { # start_writers ROUND MODE [WITNESS OPTION]...: the last one's output is this step's, and its options are given
  local round=$1 mode=$2
  mkdir "$mountpoint/$round-1" "$mountpoint/$round-2"
  "$WITNESS" write "$mountpoint/$round-2" "$STATE/$round-2.log" --mode "$mode" --seed "${round}2" --profile "${profiles[round % 4]}" &
  "$WITNESS" write "$mountpoint/$round-1" "$STATE/$round-1.log" --mode "$mode" --seed "${round}1" --announce 25 "${@:3}" &
}

step_write_until_cut() { # step_write_until_cut ROUND MODE [WITNESS OPTION]...
  local round=$1 mode=$2
  if [ "$round" = 1 ]; then format; else find_pair; fi
  attach "$mode"
  verify_rounds
  start_writers "$round" "$mode" "${@:3}"
  wait
  fail "the power was not cut"
}

# Mounts on a device that ends everything at one exact step of a commit; see mount-until-cut --help.
attach_until() { # attach_until MODE OPTION...
  mkdir -p "$mountpoint"
  "$MOUNT_UNTIL_CUT" "$device" "$mountpoint" --mode "$1" --note "$STATE/notes" "${@:2}" >>"$STATE/daemon.log" 2>&1 &
  daemon=$!
  until grep -q " $mountpoint " /proc/mounts && [ -d "$mountpoint" ]; do
    kill -0 "$daemon" 2>/dev/null || fail "the mount ended: $(tail -n 3 "$STATE/daemon.log")"
    sleep 0.1
  done
}

step_write_until_step() { # step_write_until_step ROUND MODE STEP AFTER
  if [ "$1" = 1 ]; then format; else find_pair; fi
  attach_until "$2" --at "$3" --after "$4" --arm-when /run/armed
  verify_rounds
  start_writers "$1" "$2"
  sleep 3
  : >/run/armed
  sleep 120
  fail "the step did not come"
}

step_recover_until_step() { # step_recover_until_step STEP AFTER: the cut comes while the mount recovers
  find_pair
  attach_until relaxed --at "$1" --after "$2"
  fail "the step did not come"
}

verify_rounds() { # what all rounds so far were promised
  local log name
  for log in "$STATE"/*-[12].log; do
    [ -e "$log" ] || continue # the first round
    name=${log##*/}
    "$WITNESS" verify "$mountpoint/${name%.log}" "$log"
  done
}

step_verify_after_cuts() { # step_verify_after_cuts MODE
  find_pair
  attach "$1"
  "$TANDEMFS" info "$mountpoint" --json | grep -q '"clean": false' || fail "the drive was cleanly unmounted: was the power cut?"
  verify_rounds
  detach
  check
}

# ---- lost drive-cache writes: the block half is a dm-log-writes target over the drive ---------------------------------------------
# The log begins with the empty drive. A dead daemon's memory half stays as it was at that instant, as if the power had gone; the drive's
# cache is lost afterwards, by `witness drive-cache`. Removing the target completes the log.

step_log_writes() { # step_log_writes MODE STEP AFTER [MOUNT_UNTIL_CUT OPTION]...
  local sectors tries=0
  modprobe dm-log-writes
  sectors=$(blockdev --getsz "$TANDEMFS_BLOCK_DEVICE")
  show dmsetup create logged --table "0 $sectors log-writes $TANDEMFS_BLOCK_DEVICE $TANDEMFS_LOG_DEVICE"
  TANDEMFS_BLOCK_DEVICE=/dev/dm-0
  [ "$(cat /sys/block/dm-0/queue/write_cache)" = 'write back' ] || fail "the target has no volatile write cache"
  format
  attach_until "$1" --at "$2" --after "$3" --end kill --arm-when /run/armed "${@:4}"
  start_writers 4 "$1" # the fourth round's second writer writes large files, which go by blocks
  sleep 5
  : >/run/armed
  wait || true # for the daemon, and for the writers, which it leaves without their file system
  grep -q . "$STATE/notes" || fail "the step did not come"
  umount -l "$mountpoint"
  # The kernel ends a dead process's requests a little later.
  until dmsetup remove logged; do
    tries=$((tries + 1))
    [ "$tries" -lt 50 ] || fail "the target is in use"
    sleep 0.2
  done
}

# ---- what the device promises -----------------------------------------------------------------------------------------------------

step_domain() { # the answers of info, and of a mount that asks for more, go to STATE
  format
  cat /sys/bus/dax/devices/"${memory_half##*/}"/size >"$STATE/device-bytes"
  cat /sys/bus/dax/devices/"${memory_half##*/}"/align >"$STATE/device-align"
  cat /sys/bus/nd/devices/region0/persistence_domain
  "$TANDEMFS" info "$device" --json >"$STATE/info.json"
  attach
  "$TANDEMFS" info "$mountpoint" --json >"$STATE/info-mounted.json"
  detach
  mkdir -p "$mountpoint"
  local status=0
  "$TANDEMFS" mount "$device" "$mountpoint" -o domain=gpf >"$STATE/raise.out" 2>&1 || status=$?
  echo "$status" >"$STATE/raise.status"
  if [ "$status" = 0 ]; then detach; fi
  attach domain=adr
  "$TANDEMFS" info "$mountpoint" --json >"$STATE/info-lowered.json"
  detach
  check
}

step_flushes() {
  format
  [ "$(cat /sys/block/"${TANDEMFS_BLOCK_DEVICE##*/}"/queue/write_cache)" = 'write back' ] || fail "the drive has no volatile write cache"
  attach
  "$TANDEMFS" stats "$mountpoint" --json >"$STATE/before.json"
  show "$WITNESS" fill "$mountpoint/blocks" $((16 << 20))
  "$TANDEMFS" stats "$mountpoint" --json >"$STATE/after.json"
  detach
  check
}

# ---- files mapped by the library ---------------------------------------------------------------------------------------------------

step_map() { # step_map BYTES
  find_pair
  device=memory=$memory_half
  show "$TANDEMFS" mkfs "$device"
  cat /sys/bus/dax/devices/"${memory_half##*/}"/align >"$STATE/device-align"
  show "$WITNESS" map "$device" "$1" >"$STATE/map.out"
  grep '^{' "$STATE/map.out" >"$STATE/map.json" || fail "$(cat "$STATE/map.out")"
  check
}

step_map_again() { # step_map_again BYTES
  find_pair
  device=memory=$memory_half
  show "$WITNESS" map "$device" "$1" --again >"$STATE/again.out"
  grep '^{' "$STATE/again.out" >"$STATE/again.json" || fail "$(cat "$STATE/again.out")"
  check
}

# ---- bytes of file systems that the measuring machine's kernel may lack ------------------------------------------------------------
# Emulation spoils times, not bytes. What crossed is what the kernel counts of the device; through DAX a program stores file data past the
# block layer, so there what it wrote (`user_written_bytes`) comes on top. A line of JSON a load in $STATE/bytes.jsonl.

loads=(create varmail)

counted() { # counted FIELD DEVICE: bytes read (3) or written (7) by blocks
  awk -v field="$1" '{ printf "%d", $field * 512 }' "/sys/block/${2##*/}/stat"
}

run_load() { # run_load LOAD: its figures in $STATE/load.json
  show "$BENCH" bytefs loads --on "$mountpoint" --load "$1" --scale "$SCALE" --json >"$STATE/load.out"
  grep '"experiment"' "$STATE/load.out" >"$STATE/load.json" || fail "the load $1 says nothing: $(cat "$STATE/load.out")"
  sync -f "$mountpoint"
}

say_bytes() { # say_bytes PEER BLOCK_READ BLOCK_WRITTEN BYTE_READ BYTE_WRITTEN DAX
  local load
  load=$(cat "$STATE/load.json")
  echo "{\"peer\":\"$1\",\"block_read_bytes\":$2,\"block_written_bytes\":$3,\"byte_read_bytes\":$4,\"byte_written_bytes\":$5,\"dax\":$6,${load#\{}" \
    >>"$STATE/bytes.jsonl"
}

bytes_of_kernel() { # bytes_of_kernel PEER DEVICE DAX MAKE MOUNT-OPTIONS
  local load read written
  echo 1 >"/sys/block/${2##*/}/queue/iostats" # off for pmem
  for load in "${loads[@]}"; do
    show $4 "$2"
    mkdir -p "$mountpoint"
    show mount -o "noatime${5:+,$5}" "$2" "$mountpoint"
    sync -f "$mountpoint"
    read=$(counted 3 "$2") written=$(counted 7 "$2")
    run_load "$load"
    say_bytes "$1" $(($(counted 3 "$2") - read)) $(($(counted 7 "$2") - written)) 0 0 "$3"
    show umount "$mountpoint"
  done
}

step_bytes_of_tandemfs() {
  local load numbers mode
  for mode in relaxed strict; do
    for load in "${loads[@]}"; do
      find_pair new
      show "$TANDEMFS" mkfs --force "$device"
      attach "$mode"
      "$TANDEMFS" stats "$mountpoint" --json --reset >/dev/null
      run_load "$load"
      "$TANDEMFS" stats "$mountpoint" --json >"$STATE/stats.json"
      numbers=$(python3 -c 'import json, sys; stats = json.load(open(sys.argv[1])); print(*(stats[path][way] for path in ("block_path", "byte_path") for way in ("read_bytes", "written_bytes")))' "$STATE/stats.json")
      say_bytes "tandemfs-$mode" $numbers false
      detach
    done
  done
}

step_bytes_of_block_file_systems() {
  modprobe f2fs
  modprobe xfs
  bytes_of_kernel f2fs "$TANDEMFS_BLOCK_DEVICE" false 'mkfs.f2fs -q -f' ''
  bytes_of_kernel ext4 "$TANDEMFS_BLOCK_DEVICE" false 'mkfs.ext4 -q -F -E lazy_itable_init=0,lazy_journal_init=0' ''
  bytes_of_kernel xfs "$TANDEMFS_BLOCK_DEVICE" false 'mkfs.xfs -q -f' ''
}

step_bytes_of_dax_file_systems() {
  modprobe xfs
  bytes_of_kernel ext4-dax "$TANDEMFS_MEMORY_DEVICE" true 'mkfs.ext4 -q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0' dax=always
  bytes_of_kernel xfs-dax "$TANDEMFS_MEMORY_DEVICE" true 'mkfs.xfs -q -f -m reflink=0' dax=always
}

"step_$1" "${@:2}"
