#!/usr/bin/env bash
# run-all.sh [CASE]...: TandemFS on the drivers of real devices, in virtual machines. One line a case; exit 1 if any failed.
# What a case printed is in target/vm-tests/CASE/log. TANDEMFS names the program to test (target/release/tandemfs); witness and
# mount-until-cut are beside it. Cases that are only run by name: power_cuts_many (CUTS=20, SEED=1), drive_cache_many (REPLAYS=10),
# compare_bytes (SCALE=0.0005), which needs tandemfs-bench beside it, too.
set -euo pipefail

here=$(dirname "$(realpath -- "$0")")
repository=$(realpath -- "$here/../..")
results=$repository/target/vm-tests
program=${TANDEMFS:-$repository/target/release/tandemfs}
for file in "$program" "${program%/*}/witness" "${program%/*}/mount-until-cut"; do
  [ -x "$file" ] || { echo "run-all: there is no $file: cargo build --release -p tandemfs -p tandemfs-witness" >&2; exit 2; }
done

# ---- a case's means ---------------------------------------------------------------------------------------------------------------
# STATE is the case's directory, where guests of one case leave things for each other; the images are there, too.

vm() { # vm OPTION... -- STEP ARGUMENT...: a step of guest/steps.sh in a machine with this case's images
  { local - options=(); set +x; } 2>/dev/null # the log shows steps, not how they are called
  while [ "$1" != -- ]; do options+=("$1"); shift; done
  shift
  "$here/run-vm.sh" --timeout 240 --share "$STATE" --console "$STATE/console" \
    --memory-image "$images/memory" --nvme-image "$images/nvme" "${options[@]}" -- \
    env TANDEMFS="$results/tandemfs" WITNESS="$results/witness" MOUNT_UNTIL_CUT="$results/mount-until-cut" BENCH="$results/tandemfs-bench" SOURCES="$results/sources.tar" STATE="$STATE" HALF="$HALF" SCALE="${SCALE:-0.0005}" bash "$here/guest/steps.sh" "$@"
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

# One cut at an exact step of a commit, one at some time, on the same images.
case_power_cuts_strict() {
  HALF=devdax
  vm -- write_until_step 1 strict record-flushed 33
  vm --kill-after 14 -- write_until_cut 2 strict
  vm -- verify_after_cuts strict
}

case_power_cuts_relaxed() {
  HALF=devdax
  vm --kill-at 'acknowledged 250' --nvme-sector 4096 -- write_until_cut 1 relaxed
  vm --nvme-sector 4096 -- write_until_step 2 relaxed blocks-written 2
  vm --nvme-sector 4096 -- verify_after_cuts relaxed
}

case_power_cut_cxl() {
  HALF=cxl
  local pair=(--memory-mode none --cxl-image "$images/cxl" --cxl-size 512M)
  vm "${pair[@]}" -- write_until_cut 1 relaxed --power-cut-after 150
  vm "${pair[@]}" -- verify_after_cuts relaxed
}

# A test of the tests: without fsync, relaxed mode loses data with the power, and the witness has to miss it.
case_canary() {
  HALF=devdax
  vm -- write_until_cut 1 relaxed --unsynced --power-cut-after 60
  local status=0
  vm -- verify_after_cuts relaxed >"$STATE/verdict" || status=$?
  cat "$STATE/verdict"
  expect "the status of verify" "$status" = 1
  grep -qE '^witness: .* (was|were) acknowledged' "$STATE/verdict"
}

# Half of the cuts come at some time, the others at an exact step: of a commit, or of the recovery from the cut before.
commit_steps=(record-torn blocks-written record-stored blocks-in-flight record-flushed data-torn record-fenced blocks-flushed)
recovery_steps=(line-stored first-superblock-torn second-superblock-torn first-superblock-stored)
modes=(relaxed strict strict,atomic)

cut_power_often() { # cut_power_often CUTS
  local cut mode exact=0
  for ((cut = 1; cut <= $1; cut++)); do
    mode=${modes[(cut / 2) % 3]}
    if ((cut % 2)); then
      vm --kill-at "acknowledged $((25 * (1 + RANDOM % 8)))" -- write_until_cut "$cut" "$mode"
      continue
    fi
    exact=$((exact + 1))
    # Every fifth exact one cuts a recovery.
    if ((exact % 5)); then
      vm -- write_until_step "$cut" "$mode" "${commit_steps[(exact - 1 - exact / 5) % 8]}" $((RANDOM % 20))
    else
      vm -- recover_until_step "${recovery_steps[(exact / 5 - 1) % 4]}" 0
    fi
  done
  vm -- verify_after_cuts relaxed
  expect "the number of exact cuts" "$(wc -l <"$STATE/notes")" = "$exact"
  cat "$STATE/notes"
}

case_power_cuts_many() { HALF=devdax; RANDOM=${SEED:-1}; cut_power_often "${CUTS:-20}"; }

# A drive with a volatile cache that the power takes: a log of writes, and drives that it allows.
log_writes() { # log_writes MODE STEP [MOUNT_UNTIL_CUT OPTION]...
  HALF=devdax written=$images
  vm --memory-size 256M --nvme-size 512M --log-image "$written/log" -- log_writes "$1" "$2" 5 "${@:3}"
  truncate -s 512M "$written/empty"
}

lose_cache() { # lose_cache SEED: another part of the cache is lost with each
  local images=$written/replay
  rm -rf "$images"
  mkdir "$images"
  cp --sparse=always "$written/memory" "$images/memory"
  "$results/witness" drive-cache --log "$written/log" --before "$written/empty" --after "$images/nvme" --seed "$1"
  vm -- verify_after_cuts relaxed
}

case_drive_cache() {
  log_writes relaxed blocks-written
  lose_cache 0
}

case_drive_cache_many() {
  local seed
  log_writes strict blocks-in-flight
  for ((seed = 0; seed < ${REPLAYS:-10}; seed++)); do lose_cache "$seed"; done
}

# A test of the test: a daemon that never flushes the drive loses data with its cache, and the witness has to miss it.
case_drive_cache_canary() {
  log_writes relaxed blocks-written --skip-flushes
  local status=0
  lose_cache 0 >"$STATE/verdict" || status=$?
  cat "$STATE/verdict"
  expect "the status of verify" "$status" = 1
  grep -qE '^witness: .*(Input/output error|acknowledged$)' "$STATE/verdict"
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

# Bytes that cross to the drive, also of file systems that the measuring machine's kernel may lack: a line a load in $STATE/bytes.jsonl.
case_compare_bytes() {
  install "${program%/*}/tandemfs-bench" "$results/"
  HALF=devdax
  vm --nvme-sector 4096 --timeout 1500 -- bytes_of_tandemfs
  vm --nvme-sector 4096 --timeout 1500 -- bytes_of_block_file_systems
  HALF=fsdax
  vm --memory-mode fsdax --memory-size 1G --timeout 1500 -- bytes_of_dax_file_systems
  cat "$STATE/bytes.jsonl"
  expect "the number of lines" "$(wc -l <"$STATE/bytes.jsonl")" = 14
  python3 - "$STATE/bytes.jsonl" <<'END'
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    crossed = line["block_written_bytes"] + line["byte_written_bytes"] + (line["user_written_bytes"] if line["dax"] else 0)
    assert line["operations"] > 0 and line["block_written_bytes"] + line["byte_written_bytes"] > 0, line
    print(f'{line["peer"]:18} {line["load"]:8} {crossed / line["operations"]:10.0f} B an operation, {crossed / max(1, line["user_written_bytes"]):6.2f} B for each that was written')
END
}

# A device that maps in steps of 2 MiB: a fragmented file is rewritten, and one fault maps each step. Both ends of the loads are pages of
# the program, so a few more faults than steps are right; base pages would take 512 times as many.
case_mapped_devdax() {
  HALF=devdax
  local bytes=$((64 << 20))
  vm -- map "$bytes"
  expect "the alignment" "$(cat "$STATE/device-align")" = $((2 << 20))
  expect "the granule of mappings" "$(json map.json mapping_unit)" = $((2 << 20))
  expect "the bytes rewritten" "$(json map.json rewritten_bytes)" -ge "$bytes"
  expect "the page faults" "$(json map.json faults)" -ge $((bytes >> 21))
  expect "the page faults" "$(json map.json faults)" -le $((2 * (bytes >> 21)))
  vm -- map_again "$bytes"
  expect "the page faults later" "$(json again.json faults)" -le $((4 * (bytes >> 21)))
}

cases=(devdax devdax_4k_sectors mapped_devdax cxl fsdax_file raw_pmem power_cuts_strict power_cuts_relaxed power_cut_cxl canary drive_cache drive_cache_canary domain_adr domain_eadr volatile_write_cache)

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
install "${program%/*}/witness" "${program%/*}/mount-until-cut" "$results/"
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
