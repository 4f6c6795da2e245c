#!/usr/bin/env bash
# test-repeat.sh [COUNT]: runs every test program COUNT times (20), round by round, while as many loops as there are CPUs keep all of them
# busy: what holds only on a quiet machine, or only mostly, fails here. Exit status 1 where anything failed.
#   NAMES="fs posix/semantics no_space crash/lib"  chooses packages, test programs of a package, test programs by name, unit tests
#   MINUTES=60  bounds the whole, once built; LIMIT_S=900 bounds each run, which counts as hanging then
#   STOPS=1  stops the test program at random for up to three seconds, as a machine does that has no CPU for it: bounds on time are wrong there
#   LOOPS=2  how many loops; 0 where several of these scripts run at a time, each with other NAMES, and keep the CPUs busy
# What failed or hung stays in target/test-repeat, a file for each run with its output, and for a hang what its threads were waiting in.
set -uo pipefail

count=${1:-20}
minutes=${MINUTES:-0}
limit_s=${LIMIT_S:-900}
loop_count=${LOOPS:-$(nproc)}
stops=${STOPS:-0}
for number in "$count" "$minutes" "$limit_s" "$loop_count" "$stops"; do
  [[ $number =~ ^[0-9]+$ ]] || { echo "test-repeat: '$number' is no number" >&2; exit 2; }
done
cd "$(dirname "$(realpath -- "$0")")/.." || exit
repository=$PWD
kept=$repository/target/test-repeat
mkdir -p "$kept"

# ---- which programs -----------------------------------------------------------------------------------------------------------------

chosen=() # PACKAGE/PROGRAM as a pattern; a package's unit tests are the program 'lib'
for name in ${NAMES:-}; do
  crate=${name%%/*} program=${name#*/}
  crate=${crate#tandemfs-}
  if [ -d "crates/$crate" ]; then
    [ "$program" != "$name" ] || program='*'
    found=("crates/$crate")
  else
    mapfile -t found < <(compgen -G "crates/*/tests/$name.rs" | sed 's|/tests/.*||')
  fi
  [ ${#found[@]} != 0 ] || { echo "test-repeat: '$name' is no package, no PACKAGE/PROGRAM and no test program" >&2; exit 2; }
  for directory in "${found[@]}"; do
    chosen+=("${directory#crates/}/$program")
  done
done

wants() { # wants PACKAGE/PROGRAM
  local pattern
  [ ${#chosen[@]} != 0 ] || return 0
  # shellcheck disable=SC2053 # it is a pattern
  for pattern in "${chosen[@]}"; do [[ $1 != $pattern ]] || return 0; done
  return 1
}
# Lines of PACKAGE/PROGRAM, working directory, file; as cargo runs them, and from the builds of 'make test'.
listed=$(scripts/test.py --list "${chosen[@]%%/*}") || exit
names=() directories=() programs=()
while IFS=$'\t' read -r name directory program; do
  [ -n "$name" ] && wants "$name" || continue
  # A program without a test says nothing.
  [[ $(cd "$directory" && "$program" --list 2>/dev/null) = *": test"* ]] || continue
  names+=("$name") directories+=("$directory") programs+=("$program")
done <<<"$listed"
[ ${#names[@]} != 0 ] || { echo "test-repeat: there is no such test program" >&2; exit 2; }

# ---- every CPU is busy --------------------------------------------------------------------------------------------------------------

loops=()
worker='' # the run under way, a process group
timer=''
stopper=''
clean() {
  trap '' INT TERM
  [ -z "$worker" ] || kill -KILL -- "-$worker" 2>/dev/null
  for process in "${loops[@]}" $timer $stopper; do kill -KILL "$process" 2>/dev/null; done
  wait
}
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
for ((index = 0; index < loop_count; index++)); do
  # It ends by itself where this script was killed.
  (while kill -0 $$ 2>/dev/null; do for ((turn = 0; turn < 10000; turn++)); do :; done; done) &
  loops+=($!)
done
disown -a # the shell says nothing of their end

# ---- runs ---------------------------------------------------------------------------------------------------------------------------

# What a process group is doing, for a run that does not end.
describe() {
  local process thread stat group
  for process in /proc/[0-9]*; do
    stat=$(cat "$process/stat" 2>/dev/null) || continue
    read -r _ _ group _ <<<"${stat##*) }" # behind the name: state, parent, group
    [ "$group" = "$1" ] || continue
    echo "-- process ${process#/proc/}: $(tr '\0' ' ' <"$process/cmdline" 2>/dev/null)"
    for thread in "$process/task"/*; do
      echo "   ${thread##*/} $(cat "$thread/comm" "$thread/wchan" "$thread/syscall" 2>/dev/null | tr '\n' ' ')"
    done
  done
  echo "-- mounts"
  grep 'fuse.tandemfs' /proc/self/mounts
}

# Only the program itself: its children may be stopped by it, and are not to go on before it says so.
stop_now_and_then() { # stop_now_and_then PROCESS
  while sleep "$((RANDOM % 2)).$((RANDOM % 9 + 1))" && kill -STOP "$1" 2>/dev/null; do
    sleep "$((RANDOM % 3)).$((RANDOM % 10))"
    kill -CONT "$1" 2>/dev/null || return 0
  done
}

run() { # run INDEX OUTPUT: 124 where it did not end in time
  local status=0 ended=''
  set -m # a process group of its own
  (cd "${directories[$1]}" && CARGO_MANIFEST_DIR=${directories[$1]} exec "${programs[$1]}") </dev/null >"$2" 2>&1 &
  worker=$!
  set +m
  sleep "$limit_s" &
  timer=$!
  [ "$stops" = 0 ] || { stop_now_and_then "$worker" & stopper=$!; }
  wait -n -p ended "$worker" "$timer" || status=$?
  if [ "$ended" = "$timer" ]; then
    status=124
    { echo "test-repeat: it did not end in $limit_s s"; describe "$worker"; } >>"$2" 2>&1
  fi
  kill -KILL -- "-$worker" 2>/dev/null
  kill "$timer" $stopper 2>/dev/null
  wait "$worker" "$timer" $stopper 2>/dev/null
  worker='' timer='' stopper=''
  return "$status"
}

declare -A ran=() failures=() longest=()
started=$SECONDS
failed=0
done_rounds=0
for ((round = 1; round <= count; round++)); do
  for index in "${!names[@]}"; do
    [ "$minutes" = 0 ] || [ $((SECONDS - started)) -lt $((minutes * 60)) ] || break 2
    name=${names[$index]}
    output=$kept/${name//\//-}.$$.$round
    from=$SECONDS
    if run "$index" "$output"; then
      rm "$output"
    else
      status=$?
      failed=$((failed + 1))
      failures[$name]=$((${failures[$name]:-0} + 1))
      echo "FAIL round $round: $name ($([ "$status" != 124 ] && echo "status $status" || echo "no end in $limit_s s")), output in ${output#"$repository"/}"
    fi
    took=$((SECONDS - from))
    ran[$name]=$((${ran[$name]:-0} + 1))
    [ "$took" -le "${longest[$name]:--1}" ] || longest[$name]=$took
  done
  done_rounds=$round
done

for name in "${names[@]}"; do
  printf '%-40s %3d runs, %d failed, %d s at most\n' "$name" "${ran[$name]:-0}" "${failures[$name]:-0}" "${longest[$name]:-0}"
done
echo "test-repeat: $done_rounds whole rounds of ${#names[@]} programs in $(((SECONDS - started) / 60)) minutes, $failed runs failed"
[ "$failed" = 0 ]
