#!/usr/bin/env bash
# torture.sh [MINUTES]: every kind of test that can go on for ever, in turns, until the time is over (20 minutes). Seeds are printed; what is
# next is kept in target/torture, so that another run goes on from there. The first failure ends it, and stays what is next.
set -euo pipefail

minutes=${1:-20}
[[ $minutes =~ ^[0-9]+$ && $minutes -gt 0 ]] || { echo "torture: '$minutes' is no number of minutes" >&2; exit 2; }
cd "$(dirname "$(realpath -- "$0")")/.."
state=target/torture
mkdir -p "$state"
round=$(cat "$state/round" 2>/dev/null || echo 0)

cargo build --release --locked -p tandemfs -p tandemfs-witness
cargo build --profile soak --locked -p tandemfs-crash
export RUST_BACKTRACE=${RUST_BACKTRACE:-0}
cargo test --profile soak --locked --no-run -p tandemfs-crash -p tandemfs-fuzz-targets
cargo test --profile soak --locked --no-run -p tandemfs-schedules --features explore
cargo test --profile soak --locked --no-run -p tandemfs --test aligned --test home

started=$SECONDS
until=$((started + minutes * 60))
turn() { # turn NAME COMMAND...: prints what it is and how long it took
  local from=$SECONDS
  echo "== round $round: $1"
  "${@:2}" || { echo "torture: $1 failed in round $round; 'make torture' begins with this round again" >&2; exit 1; }
  echo "== round $round: $1 took $((SECONDS - from)) s"
}

# A round takes about five minutes; the time left bounds its parts.
while [ "$SECONDS" -lt "$until" ]; do
  left=$((until - SECONDS))
  seed=$((1000 * (round + 1)))
  turn 'crash states and workloads' target/soak/torture --state "$state/crash.json" --seconds $((left < 150 ? left : 150))
  [ "$SECONDS" -lt "$until" ] || break
  turn "schedules, seed $seed" env TANDEMFS_SEED="$seed" TANDEMFS_SCHEDULES=600 \
    cargo test --profile soak --locked -q -p tandemfs-schedules --features explore --test schedules
  [ "$SECONDS" -lt "$until" ] || break
  turn "faults, seed $seed" env TANDEMFS_SEED="$seed" \
    cargo test --profile soak --locked -q -p tandemfs-crash --test faults --test places --test no_space --test wrong_data
  [ "$SECONDS" -lt "$until" ] || break
  turn "damaged structures, seed $seed" env TANDEMFS_SEED="$seed" TANDEMFS_ROUNDS=120 \
    cargo test --profile soak --locked -q -p tandemfs-crash --test every_structure
  [ "$SECONDS" -lt "$until" ] || break
  turn "bytes, seed $seed" env TANDEMFS_SEED="$seed" TANDEMFS_FUZZ_RUNS=4 \
    cargo test --profile soak --locked -q -p tandemfs-fuzz-targets --test bounded -- --test-threads=1 --nocapture
  [ "$SECONDS" -lt "$until" ] || break
  turn "kill loop, seed $seed" target/release/witness kill-loop --tandemfs target/release/tandemfs \
    --mount-until-cut target/release/mount-until-cut --rounds 20 --seed "$seed" --keep "$state/kill-loop"
  [ "$SECONDS" -lt "$until" ] || break
  turn "killed amid rewriting and moves, seed $seed" env TANDEMFS_SEED="$seed" TANDEMFS_ROUNDS=20 \
    cargo test --profile soak --locked -q -p tandemfs --test aligned --test home -- --ignored --test-threads=1 daemons_are_killed
  round=$((round + 1))
  echo "$round" >"$state/round"
done
echo "torture: nothing found in $(((SECONDS - started) / 60)) minutes; $round rounds in all; crash states and workloads so far:"
cat "$state/crash.json"
