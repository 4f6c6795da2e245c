#!/usr/bin/env bash
# setup.sh PURPOSE...: what a Debian (or a relative) needs beside Rust. Purposes: build, run, test, compare,
# applications, redis, gluster, nfs, replication, lint, fuzz, vm, deb.
# As root it installs what is missing with apt-get; for others it says what root should install.
set -euo pipefail

missing=() # packages
need() { # need COMMAND PACKAGE...
  PATH=$PATH:/usr/sbin:/sbin command -v "$1" >/dev/null || missing+=("${@:2}")
}

for purpose in "$@"; do
  case $purpose in
    build) ;;
    run) need fusermount3 fuse3; need sqlite3 sqlite3; need python3 python3; need git git; need diff diffutils ;;
    test) need perl perl; need fusermount3 fuse3; need sqlite3 sqlite3; need python3 python3; need git git; need setfattr attr; need setfacl acl; need setcap libcap2-bin; need setpriv util-linux; need losetup mount; need mkfs.ext4 e2fsprogs; need mkfs.xfs xfsprogs; need fio fio; need zsh zsh; need fish fish
      /usr/bin/python3 -c 'import prometheus_client' 2>/dev/null || missing+=(python3-prometheus-client) ;;
    compare)
      need fusermount3 fuse3; need losetup mount; need chrt util-linux; need mkfs.ext4 e2fsprogs; need mkfs.xfs xfsprogs; need mkfs.btrfs btrfs-progs
      need git git; need tar tar; need fio fio; need sqlite3 sqlite3; need redis-server redis-server; need db_bench rocksdb-tools
      compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
      ;;
    applications)
      need sqlite3 sqlite3; need git git; need rsync rsync; need fio fio; need tar tar; need xz xz-utils; need awk mawk; need pgrep procps
      need setfattr attr; need setfacl acl; need setpriv util-linux; need cmp diffutils
      need redis-server redis-server; need db_bench rocksdb-tools; need mdb_load lmdb-utils
      need stress-ng stress-ng; need dbench dbench; need bonnie++ bonnie++; need postmark postmark
      compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
      compgen -G '/usr/src/binutils/binutils-*.tar.xz' >/dev/null || missing+=(binutils-source)
      ;;
    redis) need redis-server redis-server ;;
    gluster | nfs | replication)
      need python3 python3; need ip iproute2; need nsenter util-linux; need losetup mount; need pgrep procps; need mkfs.ext4 e2fsprogs; need mkfs.xfs xfsprogs
      case $purpose in
        gluster) need glusterd glusterfs-server; need glusterfs glusterfs-client; need git git; need sqlite3 sqlite3; need fio fio; need diff diffutils ;;
        nfs)
          need ganesha.nfsd nfs-ganesha; need rpcbind rpcbind; need nfs-ls libnfs-utils
          [ -e /usr/include/nfsc/libnfs.h ] || missing+=(libnfs-dev)
          compgen -G '/usr/lib/*/ganesha/libfsalvfs.so' >/dev/null || missing+=(nfs-ganesha-vfs)
          ;;
        replication)
          need redis-server redis-server; need redis-cli redis-tools
          compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null || missing+=(postgresql)
          ;;
      esac
      ;;
    lint) ;;
    fuzz) need c++ g++ ;;
    deb)
      need lintian lintian; need mmdebstrap mmdebstrap; need dpkg-shlibdeps dpkg-dev; need readelf binutils; need python3 python3; need git git
      need unshare util-linux ;;
    vm) need qemu-system-x86_64 qemu-system-x86; need python3 python3; need flock util-linux ;;
    *) echo "setup: '$purpose' is no purpose: build, run, test, compare, applications, redis, gluster, nfs, replication, lint, fuzz, vm, deb" >&2; exit 2 ;;
  esac
done
# Rust links with cc.
need cc gcc libc6-dev
need make make

if [ ${#missing[@]} != 0 ]; then
  if [ "$EUID" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "setup: these packages are missing: ${missing[*]}. Install them, as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  echo "setup: installing ${missing[*]}"
  export DEBIAN_FRONTEND=noninteractive
  # Servers are for the scripts, so packages start none.
  if [ ! -e /usr/sbin/policy-rc.d ]; then
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
    printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
    chmod 755 /usr/sbin/policy-rc.d
  fi
  install=(apt-get -qq -y --no-install-recommends -o Dpkg::Use-Pty=0 install "${missing[@]}")
  # Package lists that are absent or old are the usual reason for a first failure.
  "${install[@]}" >/dev/null 2>&1 || { apt-get -qq update && "${install[@]}" >/dev/null; }
fi

case " $* " in
  *" lint "*)
    for component in fmt clippy; do
      cargo "$component" --version >/dev/null 2>&1 || rustup component add rustfmt clippy
    done
    ;;
esac
case " $* " in
  *" fuzz "*)
    if ! cargo +nightly --version >/dev/null 2>&1; then
      echo "setup: libFuzzer needs a nightly toolchain: rustup toolchain install nightly --profile minimal" >&2
      exit 1
    fi
    if ! cargo fuzz --version >/dev/null 2>&1; then
      echo "setup: cargo-fuzz is missing: cargo install cargo-fuzz --locked" >&2
      exit 1
    fi
    ;;
esac
# In target/tools, so that what the user has installed stays as it is.
CARGO_DEB=3.8.0
case " $* " in
  *" deb "*)
    tools=$(dirname "$0")/../target/tools
    if [ "$("$tools/bin/cargo-deb" --version 2>/dev/null)" != "$CARGO_DEB" ]; then
      echo "setup: installing cargo-deb $CARGO_DEB in target/tools"
      cargo install --quiet cargo-deb --locked --version "$CARGO_DEB" --root "$tools"
    fi
    ;;
esac
case " $* " in
  *" run "* | *" test "*)
    [ -e /dev/fuse ] || { echo "setup: there is no /dev/fuse: load the module (modprobe fuse), or give the container that device" >&2; exit 1; }
    [ -w /dev/fuse ] || { echo "setup: /dev/fuse is not open to this user: as root, chmod 666 /dev/fuse, or run this as root" >&2; exit 1; }
    ;;
esac
