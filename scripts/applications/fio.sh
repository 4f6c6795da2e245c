# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# fio: what was written is read back and verified, by five engines, and past the page cache.
cases+=(fio fio_killed)
once+=(fio_killed)

app_fio() {
  local engine direct
  for engine in sync libaio io_uring mmap pvsync2; do
    for direct in 0 1; do
      [ "$engine$direct" != mmap1 ] || continue
      fio --name="$engine$direct" --directory="$mount" --ioengine="$engine" --direct="$direct" --rw=randrw --bsrange=4k-64k --size=16m \
        --verify=crc32c --aux-path="$place" --verify_fatal=1 --do_verify=1 --fsync=64 --iodepth=8 --randseed=7 \
        --output="$place/fio.out" >/dev/null 2>&1 || { tail -5 "$place/fio.out" >&2; return 1; }
    done
  done
}
