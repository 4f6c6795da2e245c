#!/usr/bin/env bash
# applications.sh [NAME...]: programs of Debian, unchanged, on a mount in both modes and by the direct door of a third (door: as under
# `tandemfs run --real`, placeholders: under `tandemfs run --placeholders`, for root), each with a check of its result, and once more with the
# daemon killed in the middle. One line each: PASS or FAIL, mode, name, seconds. NAMES choose; without any, all; --list names them. The exit
# status is the number of failures. MODES="relaxed strict door placeholders" chooses modes, LIMIT_S=600 bounds each line.
#
# scripts/applications/NAME.sh has a program each: it adds its names to `cases` and defines app_NAME, which works below $mount, writes what
# it says to files of $place, and ends with the first command that fails. A name that ends in _killed has a function of its own where the
# program says what it holds for done: none of that may be lost. The others go through `killed`: after a kill the file system must be clean,
# and the program, run again, must end right.
set -uEo pipefail

cd "$(dirname "$(realpath -- "$0")")/.." || exit
tandemfs=${TANDEMFS:-$PWD/target/release/tandemfs}
# shellcheck disable=SC2034 # for the programs
sources=$PWD
limit_s=${LIMIT_S:-600}
PATH=$PATH:/usr/sbin:/sbin
export LC_ALL=C.UTF-8

cases=()
once=() # of them, those that run in relaxed mode alone, where a kill finds more undone
# shellcheck source=scripts/applications/common.sh
source scripts/applications/common.sh
for file in scripts/applications/*.sh; do
  # shellcheck source=/dev/null
  [ "$file" = scripts/applications/common.sh ] || source "$file"
done
[ "${1:-}" != --list ] || { printf '%s\n' "${cases[@]}"; exit 0; }
for name in "$@"; do
  [[ " ${cases[*]} " == *" $name "* ]] || { echo "applications: '$name' is none of: ${cases[*]}" >&2; exit 2; }
done
[ $# = 0 ] || cases=("$@")

place=$(mktemp -d /dev/shm/tandemfs-applications-XXXXXX)
mount=$place/mnt
worker=
# shellcheck disable=SC2317 # a trap calls it
clean() {
  trap '' INT TERM # a second one must not end it halfway
  [ -z "$worker" ] || kill -9 -- "-$worker" 2>/dev/null
  end_servers
  abandon
  rm -rf "$place"
}
trap clean EXIT
trap 'exit 130' INT TERM
mkdir "$mount"
chmod 711 "$place" # servers run as users of their own

failed=0
declare -A took_ms=()
modes='relaxed strict door'
[ "$EUID" != 0 ] || modes+=' placeholders' # which a daemon serves that is root's
for mode in ${MODES:-$modes}; do
  for name in "${cases[@]}"; do
    [[ $mode = relaxed || " ${once[*]} " != *" $name "* ]] || continue
    find "$place" -mindepth 1 -maxdepth 1 ! -name mnt -exec rm -rf {} +
    "$tandemfs" device create "$place/disk.image" --profile off --memory 192M --block 1G >/dev/null &&
      "$tandemfs" mkfs "$place/disk.image" >/dev/null && attach || exit 1
    began_ms=$(now_ms)
    # A process group of its own, so that nothing of it is left when its time is over.
    set -m
    (
      set -e
      trap 'echo "  ${BASH_SOURCE[0]}:$LINENO: $BASH_COMMAND" >&2' ERR
      in_case=1
      enter
      if declare -F "app_$name" >/dev/null; then "app_$name"; else killed "${name%_killed}" "${took_ms[$mode ${name%_killed}]:-4000}"; fi
    ) </dev/null 2>"$place/why" &
    worker=$!
    set +m
    result=PASS
    wait_for "$worker" "$limit_s" || result=FAIL
    kill -9 -- "-$worker" 2>/dev/null && wait "$worker" 2>/dev/null
    worker=
    end_servers
    took=$(($(now_ms) - began_ms))
    took_ms[$mode $name]=$took
    entered || { result=FAIL; echo "  nothing went by the direct door" >>"$place/why"; }
    { "$tandemfs" umount "$mount" && "$tandemfs" check "$place/disk.image"; } >"$place/end" 2>&1 || { result=FAIL; tail -5 "$place/end" >>"$place/why"; }
    printf '%s %s %s %d.%d s\n' "$result" "$mode" "$name" $((took / 1000)) $((took / 100 % 10))
    if [ "$result" != PASS ]; then
      failed=$((failed + 1))
      tail -20 "$place/why" >&2
      abandon
    fi
  done
done
exit "$failed"
