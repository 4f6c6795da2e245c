#!/usr/bin/env bash
# run-vm.sh: one command in a small virtual machine that has what a TandemFS pair is made of, behind the kernel's own drivers.
# `run-vm.sh --help` prints the options, README.md beside this file says what the command finds and what a power cut here can show.
set -euo pipefail

usage() {
  cat <<'END'
usage: run-vm.sh [OPTION]... -- COMMAND [ARGUMENT]...
       runs COMMAND as root in the guest, in the current directory; its output, both streams, comes on stdout

the pair
  --memory-image FILE    what is in the NVDIMM; made if missing, kept (default: new, forgotten)
  --memory-size SIZE     of a new one (512M; a multiple of 128M)
  --memory-mode MODE     devdax: /dev/dax0.0 (default); fsdax: /dev/pmem0; raw: /dev/pmem0 without DAX; none
  --persistence DOMAIN   what the platform promises of stores: adr (default) or eadr
  --nvme-image FILE      what is on the NVMe drive; made if missing, kept (default: new, forgotten)
  --nvme-size SIZE       of a new one (1G)
  --nvme-sector BYTES    its logical blocks: 512 (default) or 4096
  --cxl-image FILE       adds a CXL memory device with this in it; its labels are in FILE.labels
  --cxl-size SIZE        of a new one (256M; a multiple of 256M)
  --cxl-mode MODE        devdax (default) or fsdax
  --log-image FILE       adds a disk for a log of writes with this in it; made if missing, kept
  --log-size SIZE        of a new one (4G)

the power
  --kill-after SECONDS   cut it that long after the command's start
  --kill-at TEXT         cut it when the command has printed TEXT
                         (the command can cut it itself, at an exact instruction: the byte 0x10 to I/O port 0xf4)

the machine
  --share DIRECTORY      the guest can write to this directory of the host, under the same path; may be repeated
  --ram SIZE (2G)        --cpus N (2)        --timeout SECONDS (600)
  --console FILE         keep the kernel's messages there

exit status: the command's; 0 after a power cut that was asked for, 123 if the command ended before it, 124 timeout,
             125 the machine could not be made or died, 2 usage
environment: TANDEMFS_VM_CACHE (~/.cache/tandemfs-vm), TANDEMFS_VM_KERNEL (linux-image-amd64), TANDEMFS_VM_ACCEL (kvm where it works, or tcg)
END
}

say() { printf 'run-vm: %s\n' "$*" >&2; }
fail() { say "$*"; exit 125; }
misuse() { say "$* (--help lists the options)"; exit 2; }
microseconds() { if [ $# = 0 ]; then echo "${EPOCHREALTIME/[.,]/}"; else awk -v seconds="$1" 'BEGIN { printf "%d", seconds * 1e6 }'; fi; }

here=$(dirname "$(realpath -- "$0")")
cache=${TANDEMFS_VM_CACHE:-${HOME:-/root}/.cache/tandemfs-vm}

# ---- the options ------------------------------------------------------------------------------------------------------------------

declare -A option=(
  [memory-image]='' [memory-size]=512M [memory-mode]=devdax [persistence]=adr
  [nvme-image]='' [nvme-size]=1G [nvme-sector]=512
  [cxl-image]='' [cxl-size]=256M [cxl-mode]=devdax
  [log-image]='' [log-size]=4G
  [kill-after]='' [kill-at]='' [ram]=2G [cpus]=2 [timeout]=600 [console]=''
)
shares=()
while [ $# -gt 0 ]; do
  case $1 in
    --) shift; break ;;
    -h | --help) usage; exit 0 ;;
    --*) [ $# -ge 2 ] || misuse "$1 needs a value" ;;
    *) misuse "'$1' is not understood: the command comes after --" ;;
  esac
  name=${1#--}
  if [ "$name" = share ]; then
    shares+=("$(realpath -e -- "$2" 2>/dev/null)") || misuse "there is no directory '$2'"
  elif [ -n "${option[$name]+known}" ]; then
    option[$name]=$2
  else
    misuse "'$1' is no option"
  fi
  shift 2
done
[ $# -gt 0 ] || misuse "there is no command"
one_of() { # one_of OPTION VALUE...
  local value
  for value in "${@:2}"; do [ "${option[$1]}" != "$value" ] || return 0; done
  misuse "--$1 is one of: ${*:2}"
}
one_of memory-mode devdax fsdax raw none
one_of cxl-mode devdax fsdax
one_of persistence adr eadr
one_of nvme-sector 512 4096
case ${option[kill-after]}${option[timeout]} in *[!0-9.]*) misuse "seconds are a number" ;; esac
[ -n "${option[cxl-image]}" ] || option[cxl-mode]=none

# ---- what it needs ----------------------------------------------------------------------------------------------------------------

machine_works() { # machine_works ACCELERATOR: whether a guest comes up with it; a /dev/kvm alone does not say so
  local console works=1
  console=$(mktemp)
  timeout 10 "$qemu" -nodefaults -no-user-config -display none -no-reboot -accel "$1" -cpu max -m 512 -M q35 -serial "file:$console" \
    -kernel "$cache/guest/vmlinuz" -initrd "$cache/guest/initrd" -append 'console=ttyS0 panic=-1 quiet tandemfs.probe' >/dev/null 2>&1 </dev/null || true
  grep -q tandemfs.works "$console" && works=0
  rm -f "$console"
  return $works
}

accelerator() { # the environment's, or kvm where a trial shows that it works (asked once a boot of the host)
  local verdict
  verdict=$cache/accelerator.$(cat /proc/sys/kernel/random/boot_id)
  if [ -n "${TANDEMFS_VM_ACCEL:-}" ]; then
    echo "$TANDEMFS_VM_ACCEL"
  else
    if [ ! -e "$verdict" ]; then
      rm -f "$cache"/accelerator.*
      if [ -w /dev/kvm ] && machine_works kvm; then echo kvm; else echo tcg,thread=multi; fi >"$verdict"
    fi
    cat "$verdict"
  fi
}

trap '[ $? = 0 ] || exit 125' EXIT # what goes wrong up to the machine's start is none of the command's doing
mkdir -p "$cache"
exec 9>"$cache/lock"
flock 9
"$here/prepare.sh" "$cache"
qemu=$(command -v qemu-system-x86_64) || {
  [ "$(id -u)" = 0 ] || fail "qemu-system-x86_64 is missing: install the package qemu-system-x86"
  say "installing qemu-system-x86"
  export DEBIAN_FRONTEND=noninteractive
  install_qemu=(apt-get -qq -y --no-install-recommends install qemu-system-x86)
  "${install_qemu[@]}" >/dev/null || { apt-get -qq update >&2 && "${install_qemu[@]}" >/dev/null; } || fail "qemu-system-x86 cannot be installed"
  qemu=$(command -v qemu-system-x86_64)
}
accelerator=$(accelerator)
flock -u 9
exec 9>&-

# ---- the machine ------------------------------------------------------------------------------------------------------------------

run=$(mktemp -d "${TMPDIR:-/tmp}/tandemfs-vm.XXXXXX")
mkdir "$run/orders"
: >"$run/output"
machine_pid='' output_pid='' machine_status=0

end_machine() { # waits for QEMU, then for the last of its output
  wait "$machine_pid" 2>/dev/null && machine_status=0 || machine_status=$?
  machine_pid=''
  wait "$output_pid" 2>/dev/null || true
}
cut_power() {
  kill -KILL "$machine_pid" 2>/dev/null || true
  end_machine
}
clean_up() {
  [ -z "$machine_pid" ] || cut_power
  [ -z "${option[console]}" ] || cp "$run/console" "${option[console]}" || true
  rm -rf "$run"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

escaped() { printf '%s' "${1//,/,,}"; } # a path inside a QEMU option
backing() { # backing FILE SIZE NAME: "FILE,size=BYTES", the file made where it is missing
  local file=${1:-$run/$3}
  [ -e "$file" ] || truncate -s "$2" -- "$file" || fail "$file cannot be made"
  printf '%s,size=%s' "$(escaped "$(realpath -- "$file")")" "$(stat -Lc %s -- "$file")"
}

machine=q35,nvdimm=on,nvdimm-persistence=mem-ctrl
[ "${option[persistence]}" = adr ] || machine=${machine/mem-ctrl/cpu}
devices=(
  -device virtio-rng-pci,bus=pcie.0
  -device isa-debug-exit,iobase=0xf4,iosize=4
  -device virtio-serial-pci,bus=pcie.0 -chardev "file,id=output,path=$(escaped "$run/output")" -device virtserialport,chardev=output
)

add_nvdimm() {
  local file
  file=$(backing "${option[memory-image]}" "${option[memory-size]}" memory)
  devices+=(-object "memory-backend-file,id=nvdimm-memory,share=on,align=2M,mem-path=$file" -device nvdimm,memdev=nvdimm-memory)
}

add_nvme() {
  local file
  file=$(backing "${option[nvme-image]}" "${option[nvme-size]}" nvme)
  devices+=(-drive "if=none,id=nvme,format=raw,discard=unmap,file=${file%,size=*}"
    -device "nvme,bus=pcie.0,serial=tandemfs,drive=nvme,logical_block_size=${option[nvme-sector]},physical_block_size=4096")
}

add_cxl() { # one memory device behind a host bridge
  local memory labels key=persistent-memdev
  memory=$(backing "${option[cxl-image]}" "${option[cxl-size]}" cxl)
  labels=$(backing "${option[cxl-image]}.labels" 256K labels)
  [[ $("$qemu" -device cxl-type3,help) == *$key* ]] || key=memdev # QEMU before 8.1
  machine+=,cxl=on,cxl-fmw.0.targets.0=bridge,cxl-fmw.0.size=4G
  # The bridge has a second, empty port: below a bridge with one port Linux programs no decoder, and QEMU 7.2 then drops every store.
  devices+=(
    -object "memory-backend-file,id=cxl-memory,share=on,mem-path=$memory" -object "memory-backend-file,id=cxl-labels,share=on,mem-path=$labels"
    -device pxb-cxl,bus_nr=12,bus=pcie.0,id=bridge
    -device cxl-rp,port=0,bus=bridge,id=cxl-port,chassis=0,slot=2 -device cxl-rp,port=1,bus=bridge,id=cxl-empty,chassis=0,slot=3
    -device "cxl-type3,bus=cxl-port,$key=cxl-memory,lsa=cxl-labels,sn=1,id=cxl-device"
  )
}

add_log() { # virtio, so that the NVMe drive's name stays its own
  local file
  file=$(backing "${option[log-image]}" "${option[log-size]}" log)
  devices+=(-drive "if=none,id=log,format=raw,file=${file%,size=*}" -device virtio-blk-pci,bus=pcie.0,drive=log)
}

add_share() { # add_share TAG DIRECTORY [OPTIONS]
  devices+=(-fsdev "local,id=$1,path=$(escaped "$2"),security_model=none,multidevs=remap${3:-}" -device "virtio-9p-pci,bus=pcie.0,fsdev=$1,mount_tag=$1")
}

[ "${option[memory-mode]}" = none ] || add_nvdimm
add_nvme
[ "${option[cxl-mode]}" = none ] || add_cxl
[ -z "${option[log-image]}" ] || add_log
add_share host / ,readonly=on
add_share tools "$cache/guest/root" ,readonly=on
add_share orders "$run/orders"
for i in "${!shares[@]}"; do
  add_share "share$i" "${shares[i]}"
  printf 'share share%s %q\n' "$i" "${shares[i]}"
done >"$run/orders/shares"
{
  printf 'memory_mode=%s cxl_mode=%s log=%s\n' "${option[memory-mode]}" "${option[cxl-mode]}" "${option[log-image]:+yes}"
  printf 'export HOME=%q PATH=%q\n' "${HOME:-/root}" "$PATH:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
} >"$run/orders/orders"
{
  printf 'cd %q || exit 125\nexec' "$PWD"
  printf ' %q' "$@"
  echo
} >"$run/orders/command"
cp "$here/guest/first-process" "$run/orders/"

start_machine() {
  "$qemu" -name tandemfs-vm -nodefaults -no-user-config -display none -monitor none -no-reboot \
    -accel "$accelerator" -cpu max -smp "${option[cpus]}" -m "${option[ram]},slots=4,maxmem=32G" -M "$machine" "${devices[@]}" \
    -kernel "$cache/guest/vmlinuz" -initrd "$cache/guest/initrd" -serial "file:$run/console" \
    -append 'console=ttyS0 panic=-1 mitigations=off random.trust_cpu=on no_timer_check' </dev/null 2>"$run/complaints" &
  machine_pid=$!
  tail -s 0.1 -c +1 -f --pid="$machine_pid" "$run/output" &
  output_pid=$!
  started=$(microseconds)
}
start_machine

# ---- its life ---------------------------------------------------------------------------------------------------------------------

power_cut_is_due() {
  [ ! -e "$run/orders/status" ] || return 1
  [ -z "${option[kill-at]}" ] || ! grep -qsaF -- "${option[kill-at]}" "$run/output" || return 0
  [ -n "${option[kill-after]}" ] && [ -e "$run/orders/started" ] || return 1
  [ -n "${cut_time:-}" ] || cut_time=$(($(microseconds) + $(microseconds "${option[kill-after]}")))
  [ "$(microseconds)" -ge "$cut_time" ]
}

# An emulated machine sometimes stands still in the first second of its kernel. Before the first process nothing was done with the devices, so
# such a machine is started again, twice at most.
boot_s=${TANDEMFS_VM_BOOT_S:-120} boots=1
limit=$(microseconds "${option[timeout]}")
stands_still() {
  [ ! -e "$run/orders/started" ] && [ ! -e "$run/orders/failure" ] && [ "$boots" -lt 3 ] && [ $(($(microseconds) - started)) -gt $((boot_s * 1000000)) ]
}

while kill -0 "$machine_pid" 2>/dev/null; do
  if stands_still; then
    cut_power
    say "the kernel did not boot in $boot_s s; once more"
    boots=$((boots + 1))
    : >"$run/output"
    start_machine
  fi
  if [ $(($(microseconds) - started)) -gt "$limit" ]; then
    cut_power
    tail -n 20 "$run/console" >&2
    say "timeout after ${option[timeout]} s"
    exit 124
  fi
  if power_cut_is_due; then
    cut_power
    say "power cut"
    exit 0
  fi
  sleep 0.05
done
end_machine
if [ "$machine_status" = 33 ]; then # isa-debug-exit: 2 * 0x10 + 1
  say "power cut by the guest"
  exit 0
fi
if [ ! -e "$run/orders/status" ]; then
  tail -n 40 "$run/console" >&2 || true
  cat "$run/orders/failure" "$run/complaints" >&2 2>/dev/null || true
  fail "the machine ended without the command's exit status"
fi
if [ -n "${option[kill-after]}${option[kill-at]}" ]; then
  say "the command ended before the power cut"
  exit 123
fi
exit "$(cat "$run/orders/status")"
