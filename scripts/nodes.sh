# shellcheck shell=bash disable=SC2034,SC2154 # names are shared with the scripts of contrib that source this file
# What contrib/gluster, contrib/nfs and contrib/replication share: nodes, drives, and figures. A node is a process with namespaces of its own (network,
# mounts, processes), so that killing that process takes away all that ran there, mounts too, as the loss of a machine does. Nodes have no names in
# the host and end with the script. Node N is 10.77.0.N. What nodes have on their drives is in files of $place, which is in memory. KEEP=1: after a failure everything
# stays until Enter.

tandemfs=${TANDEMFS:-$sources/target/release/tandemfs}
# Of rates: rounds, seconds of a run, and what is measured by turns.
rounds=${ROUNDS:-5} run_s=${RUN_S:-5}
kinds=${KINDS:-strict relaxed ext4 xfs tmpfs}
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C.UTF-8
[ "$EUID" = 0 ] || { echo "$name: nodes need root (namespaces, mounts, loop devices)" >&2; exit 1; }

place=$(mktemp -d "${PLACE:-/dev/shm}/tandemfs-$name-XXXXXX")
chmod 755 "$place" # servers run as users of their own
nodes=$place/nodes
mkdir "$nodes"
{ echo '127.0.0.1 localhost'; for number in {1..9}; do echo "10.77.0.$number node$number"; done; } >"$nodes/hosts"
declare -A shell_of=() # of a node: the process that started it
jobs_of_script=() # processes that may outlive their part of the script
clean() {
  local status=$? process
  trap '' EXIT INT TERM
  if [ "$status" != 0 ] && [ -n "${KEEP:-}" ]; then echo "$name: failed; kept as it is: $place; Enter ends it"; read -r; fi
  for process in "${jobs_of_script[@]}" "${shell_of[@]}"; do kill -9 "$process" 2>/dev/null; done
  # A loop device goes with its last mount, which the kernel takes away a moment after the node.
  for _ in {1..100}; do losetup -l -n -O BACK-FILE | grep -q "^$place/" || break; sleep 0.1; done
  zram_end
  rm -rf "$place"
  exit "$status"
}
trap clean EXIT
trap 'exit 130' INT TERM

# A server that was just started in the background: it ends with the script, which says nothing of that.
server() { jobs_of_script+=($!); disown $!; }

say() { printf '%s: %5d s  %s\n' "$name" "$SECONDS" "$*"; }
die() { say "FAILED: $*" >&2; exit 1; }
now_ms() { echo $(($(date +%s%N) / 1000000)); }

# wait_until SECONDS COMMAND...: until it succeeds.
wait_until() {
  local until=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$until" ] || { say "not within the time: $*" >&2; return 1; }
    sleep 0.1
  done
}

# A process whose death is the node's. Its shell collects the ended processes of the node.
node_process() { # node_process N
  setpriv --pdeathsig KILL unshare --net --mount --pid --uts --ipc --fork --kill-child --mount-proc \
    bash -c 'while :; do sleep 600 & wait; done' </dev/null >/dev/null 2>&1 &
  shell_of[$1]=$!
  disown $! # the shell says nothing of its death
  wait_until 10 pgrep -P "${shell_of[$1]}" || return
  pgrep -P "${shell_of[$1]}" >"$nodes/$1"
  wait_until 10 on "$1" test -e /proc/self # its namespaces are complete
}

# on N COMMAND...: in node N.
on() { nsenter -t "$(cat "$nodes/$1")" --net --mount --pid --uts --ipc -- "${@:2}"; }

# The switch is a node too; each other one has a wire to it. A node that comes back has the same address of hardware, or others would look for the old one
# for a minute.
node_start() { # node_start N
  [ -n "${shell_of[0]:-}" ] || { node_process 0 && at_switch link add switch type bridge && at_switch link set switch up; } || return
  node_process "$1" || return
  at_switch link delete "port$1" 2>/dev/null # of a node that was killed
  at_switch link add "port$1" type veth peer name eth0 address "02:00:00:00:00:0$1" netns "$(cat "$nodes/$1")" && at_switch link set "port$1" master switch up &&
    on "$1" ip link set lo up && on "$1" ip addr add "10.77.0.$1/24" dev eth0 && on "$1" ip link set eth0 up &&
    on "$1" hostname "node$1" && on "$1" mount -t tmpfs none /run &&
    on "$1" mount --bind "$nodes/hosts" /etc/hosts && on "$1" mount --bind /dev/null /etc/resolv.conf # no server of names can be reached
}

at_switch() { nsenter -t "$(cat "$nodes/0")" --net -- ip "$@"; } # it has the host's numbers of processes

# All of the node at once, without a warning to anybody.
node_kill() {
  kill -9 "${shell_of[$1]}"
  while kill -0 "${shell_of[$1]}" 2>/dev/null; do sleep 0.01; done
  unset "shell_of[$1]"
}

# drive_make FILE KIND BYTES and drive_mount N FILE KIND DIRECTORY: a file system of this kind on a drive in a file. strict and relaxed are TandemFS
# on a drive with the times of $profile; ext4 and xfs have a loop device, whose memory takes no time at all, or with PEERS=zram a drive of compressed memory:
# that one needs no thread of the kernel, which on a busy machine waits long for a CPU. tmpfs has no drive.
profile=${PROFILE:-romefs-a}
drive_make() {
  case $2 in
    strict | relaxed) "$tandemfs" device create "$1" --profile "$profile" --memory 256M --block "$3" >/dev/null && "$tandemfs" mkfs "$1" >/dev/null ;;
    ext4 | xfs) if [ "${PEERS:-loop}" = zram ]; then zram_make "$1" "$3"; else truncate -s "$3" "$1"; fi ;;&
    ext4) mkfs.ext4 -q -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 "$1" ;;
    xfs) mkfs.xfs -q -K "$1" ;;
    tmpfs) : ;;
  esac
}
zram_make() { # zram_make LINK BYTES
  local number
  number=$(cat /sys/class/zram-control/hot_add) && echo "$number" >>"$nodes/zram" && numfmt --from=iec "$2" >"/sys/block/zram$number/disksize" || return
  # Where nobody makes names of new devices.
  [ -e "/dev/zram$number" ] || mknod "/dev/zram$number" b "$(cut -d: -f1 "/sys/block/zram$number/dev")" "$number"
  ln -s "/dev/zram$number" "$1"
}
zram_end() {
  local number
  for number in $(cat "$nodes/zram" 2>/dev/null); do
    wait_until 60 eval "echo $number >/sys/class/zram-control/hot_remove" && rm -f "/dev/zram$number"
  done
}
drive_mount() {
  on "$1" mkdir -p "$4"
  case $3 in
    strict | relaxed) on "$1" "$tandemfs" mount "$2" "$4" -o "$3,allow_other,timing=on,log=$2.log" ;;
    ext4 | xfs) if [ -L "$2" ]; then on "$1" mount "$(readlink "$2")" "$4"; else on "$1" mount -o loop "$2" "$4"; fi ;;
    tmpfs) on "$1" mount -t tmpfs none "$4" ;;
  esac
}
# The process that serves a mount of TandemFS, by the numbers of its node.
drive_daemon() { on "$1" "$tandemfs" info "$2" --json | sed -n 's/.*"process_id": *\([0-9]*\).*/\1/p'; }

# figure WHAT KIND RATE: notes one round. figures: a line for each WHAT, with the median, the least and the largest of each KIND, and its median
# beside that of the best of ext4 and xfs.
figure() { echo "$1 $2 $3" >>"$place/figures"; }
figures() { say "load of the machine: $(cut -d' ' -f1-3 /proc/loadavg)"; "$sources/scripts/figures.py" "$place/figures"; }
