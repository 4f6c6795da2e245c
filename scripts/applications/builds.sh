# shellcheck shell=bash disable=SC2034,SC2154,SC2164 # names are shared with applications.sh, which also ends at errors
# gcc and cargo: real programs are built on the mount and their own tests run there; a second build finds nothing to do, so times are right.
cases+=(gcc gcc_killed cargo cargo_killed)
once+=(gcc_killed cargo_killed)

# libiberty of Debian's binutils-source: configure, make, make check.
app_gcc() {
  local archive
  archive=$(printf '%s\n' /usr/src/binutils/binutils-*.tar.xz | tail -1)
  tar -C "$mount" --strip-components=1 --wildcards -xJf "$archive" '*/libiberty' '*/include' '*/config.guess' '*/config.sub' '*/install-sh' \
    '*/mkinstalldirs' '*/config-ml.in' '*/move-if-change'
  mkdir "$mount/build"
  cd "$mount/build"
  ../libiberty/configure -q >"$place/said" 2>&1
  make -j"$(nproc)" >"$place/said" 2>&1
  make check >"$place/tests" 2>&1
  [ "$(grep -c '^PASS' "$place/tests")" -gt 20 ]
  [ "$(grep -c '^FAIL' "$place/tests")" = 0 ]
  make >"$place/again" 2>&1
  ! grep -q 'gcc.*\.c' "$place/again" || { echo "make compiles again" >&2; return 1; }
  cd /
}

# A crate of ours with all that it needs, from what the build has fetched; nothing comes over the network.
app_cargo() {
  local cargo=(cargo test --offline --locked -p tandemfs-format --lib --config 'profile.dev.package."*".opt-level=0')
  git clone -q --no-hardlinks "$sources" "$mount/sources"
  cd "$mount/sources"
  export CARGO_TARGET_DIR=$mount/target CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_TEST_OPT_LEVEL=0 CARGO_TERM_COLOR=never
  "${cargo[@]}" >"$place/tests" 2>"$place/said" || { tail -5 "$place/said" >&2; return 1; }
  grep -q '^test result: ok. [1-9]' "$place/tests"
  "${cargo[@]}" >"$place/tests" 2>"$place/again"
  grep -q '^test result: ok. [1-9]' "$place/tests"
  ! grep Compiling "$place/again" >&2 || return 1
  touch crates/format/src/lib.rs
  "${cargo[@]}" --no-run 2>"$place/again"
  [ "$(grep -c Compiling "$place/again")" = 1 ]
  cd /
}
