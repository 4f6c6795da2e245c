#!/usr/bin/env bash
# run-all.sh [CASE]...: TandemFS on the drivers of real devices, in virtual machines. One line a case; exit 1 if any failed.
# What a case printed is in target/vm-tests/CASE/log. TANDEMFS names the program to test (target/release/tandemfs).
set -euo pipefail

here=$(dirname "$(realpath -- "$0")")
repository=$(realpath -- "$here/../..")
results=$repository/target/vm-tests
program=${TANDEMFS:-$repository/target/release/tandemfs}
[ -x "$program" ] || { echo "run-all: there is no $program: cargo build --release" >&2; exit 2; }

# ---- a case's means ---------------------------------------------------------------------------------------------------------------
# STATE is the case's directory, where guests of one case leave things for each other; the images are there, too.

vm() { # vm OPTION... -- STEP ARGUMENT...: a step of guest/steps.sh in a machine with this case's images
  { local - options=(); set +x; } 2>/dev/null # the log shows steps, not how they are called
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  "$here/run-vm.sh" --timeout 240 --share "$STATE" --console "$STATE/console" \
    --memory-image "$images/memory" --nvme-image "$images/nvme" "${options[@]}" -- \
    env TANDEMFS="$results/tandemfs" WITNESS="$results/witness" SOURCES="$results/sources.tar" STATE="$STATE" HALF="$HALF" bash "$here/guest/steps.sh" "$@"
}

json() { # json FILE NAME...: a value inside
  python3 -c 'import functools, json, sys; print(functools.reduce(lambda value, name: value[name], sys.argv[2:], json.load(open(sys.argv[1]))))' "$STATE/$1" "${@:2}"
}

expect() { # expect WHAT FOUND OPERATOR WANTED
  test "$2" "$3" "$4" || { echo "failed: $1 is '$2', expected $3 '$4'"; return 1; }
}

domain_is() { # domain_is FILE DOMAIN: what `tandemfs info` said
  expect "the domain in $1" "$(json "$1" persistence_domain)" = "$2"
}

works() { # works DOMAIN VM-OPTION...: work, unmount, check; and the same things there after a reboot
  vm "${@:2}" -- work
  domain_is info.json "$1"
  vm "${@:2}" -- work_after_reboot
}

# ---- the cases --------------------------------------------------------------------------------------------------------------------

case_devdax() { HALF=devdax; works adr; }
case_devdax_4k_sectors() { HALF=devdax; works adr --nvme-sector 4096; }
case_cxl() { HALF=cxl; works adr --memory-mode none --cxl-image "$images/cxl" --cxl-size 512M; }
case_fsdax_file() { HALF=fsdax; works adr --memory-mode fsdax; }
# Without DAX a mapping is the kernel's page cache: it survives the process and, once unmounted, a reboot; not the power.
case_raw_pmem() { HALF=raw; works process --memory-mode raw; }

# The first cut at an exact instruction, the second some time later on the same images.
case_power_cuts_strict() {
  HALF=devdax
  vm -- write_until_cut 1 strict --power-cut-after 333
  vm --kill-after 14 -- write_until_cut 2 strict
  vm -- verify_after_cuts 2 strict
}

case_power_cuts_relaxed() {
  HALF=devdax
  vm --kill-at 'acknowledged 250' --nvme-sector 4096 -- write_until_cut 1 relaxed
  vm --nvme-sector 4096 -- write_until_cut 2 relaxed --power-cut-after 222
  vm --nvme-sector 4096 -- verify_after_cuts 2 relaxed
}

case_power_cut_cxl() {
  HALF=cxl
  local pair=(--memory-mode none --cxl-image "$images/cxl" --cxl-size 512M)
  vm "${pair[@]}" -- write_until_cut 1 relaxed --power-cut-after 150
  vm "${pair[@]}" -- verify_after_cuts 1 relaxed
}

# A test of the tests: without fsync, relaxed mode loses data with the power, and the witness has to miss it.
case_canary() {
  HALF=devdax
  vm -- write_until_cut 1 relaxed --fsync never --power-cut-after 60
  local status=0
  vm -- verify_after_cuts 1 relaxed >"$STATE/verdict" || status=$?
  cat "$STATE/verdict"
  expect "the status of verify" "$status" = 1
  grep -qE '^witness: .* (was|were) acknowledged' "$STATE/verdict"
}

# ADR: the kernel says memory_controller. Promising more is refused, and says what there is.
case_domain_adr() {
  HALF=devdax
  vm --persistence adr -- domain
  domain_is info.json adr
  domain_is info-mounted.json adr
  expect "the status of a mount with domain=gpf" "$(cat "$STATE/raise.status")" = 1
  cat "$STATE/raise.out"
  expect "the lines that say why" "$(wc -l <"$STATE/raise.out")" = 1
  grep -q adr "$STATE/raise.out"
  # A mapping of devdax has multiples of its alignment, so the memory half has too.
  expect "the alignment" "$(cat "$STATE/device-align")" = $((2 << 20))
  expect "the rest of the memory half" "$(($(json info.json memory_zone total_bytes) % (2 << 20)))" = 0
  expect "the memory half" "$(json info.json memory_zone total_bytes)" -le "$(cat "$STATE/device-bytes")"
}

# eADR: the kernel says cpu_cache. A mount may take it for less.
case_domain_eadr() {
  HALF=devdax
  vm --persistence eadr -- domain
  domain_is info.json gpf
  domain_is info-mounted.json gpf
  expect "the status of a mount with domain=gpf" "$(cat "$STATE/raise.status")" = 0
  domain_is info-lowered.json adr
}

# Requests of the write-back cache need not begin where a block does, so a few of the 16 MiB go by bytes.
case_volatile_write_cache() {
  HALF=devdax
  vm -- flushes
  expect "the number of flushes by writing whole blocks" "$(($(json after.json block_path flushes) - $(json before.json block_path flushes)))" -gt 0
  expect "the bytes written by blocks" "$(($(json after.json block_path written_bytes) - $(json before.json block_path written_bytes)))" -ge $((12 << 20))
}

cases=(devdax devdax_4k_sectors cxl fsdax_file raw_pmem power_cuts_strict power_cuts_relaxed power_cut_cxl canary domain_adr domain_eadr volatile_write_cache)

# ---- running them -----------------------------------------------------------------------------------------------------------------

run_case() (
  # In a subshell that is no condition of anything, so that `set -e` holds inside; its images go with it.
  images=$(mktemp -d "${TMPDIR:-/tmp}/tandemfs-vm-images.XXXXXX")
  trap '{ set +x; } 2>/dev/null; rm -rf "$images"' EXIT
  set -x
  "case_$1"
)

[ $# = 0 ] || cases=("$@")
for name in "${cases[@]}"; do
  declare -F "case_$name" >/dev/null || { echo "run-all: there is no case '$name'" >&2; exit 2; }
done
mkdir -p "$results"
# Copies, so that work on the project meanwhile does not change what is tested.
install "$program" "$results/tandemfs"
tar -c -C "$repository" -f "$results/sources.tar" crates docs
cc -O2 -o "$results/witness" "$repository/scripts/witness.c"
"$here/run-vm.sh" -- true # packages, kernel, accelerator: none of the first case's time

passed=0 failed=0
for name in "${cases[@]}"; do
  STATE=$results/$name
  rm -rf "$STATE"
  mkdir -p "$STATE"
  started=$EPOCHREALTIME
  set +e
  (set -e; run_case "$name") >"$STATE/log" 2>&1
  status=$?
  set -e
  seconds=$(awk -v from="$started" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }')
  if [ "$status" = 0 ]; then
    passed=$((passed + 1))
    printf 'PASS  %-22s %6s s\n' "$name" "$seconds"
  else
    failed=$((failed + 1))
    printf 'FAIL  %-22s %6s s  %s\n' "$name" "$seconds" "${STATE#"$repository/"}/log ends:"
    tail -n 12 "$STATE/log" | sed 's/^/      | /'
  fi
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
