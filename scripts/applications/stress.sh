# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# stress-ng: every stressor of its class `filesystem` that a directory can be given to, eight at a time, with --verify. Not asked for, because
# ext4 on a loop device fails or skips it as well, or because a file system in user space has no say in it:
#   bind-mount  stress-ng itself refuses it without --pathological     binderfs  mounts that file system, not in the directory
#   verity      neither has fs-verity                                 fiemap    the kernel asks no FUSE daemon for extents
#   eventfd procfs   no files of the directory                        io        sync and syncfs of every mount of the machine
cases+=(stress stress_killed)
once+=(stress_killed)

app_stress() {
  local stressor number=0 words=()
  mkdir "$mount/stress"
  for stressor in $(stress-ng --class 'filesystem?' 2>&1 | sed -n "s/^class 'filesystem' stressors: //p"); do
    case $stressor in bind-mount | binderfs | verity | fiemap | eventfd | procfs | io) continue ;; esac
    words+=(--"$stressor" 1)
    number=$((number + 1))
    [ $((number % 8)) != 0 ] || { stress_group "${words[@]}"; words=(); }
  done
  [ ${#words[@]} = 0 ] || stress_group "${words[@]}"
  [ "$number" -gt 40 ]
  [ -z "$(ls -A "$mount/stress")" ]
}

stress_group() {
  stress-ng "$@" --verify --timeout 3 --temp-path "$mount/stress" --iomix-bytes 32m --hdd-bytes 32m --copy-file-bytes 128m --fallocate-bytes 64m \
    --sync-file-bytes 32m >"$place/stress" 2>&1 || { cat "$place/stress" >&2; return 1; }
  ! grep -E 'fail:|skipp|aborted' "$place/stress" >&2
}
