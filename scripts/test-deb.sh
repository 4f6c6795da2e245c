#!/usr/bin/env bash
# test-deb.sh: the packages that `make deb` has made, in a new root of this machine's distribution: installed by apt, used, upgraded while a
# mount is in use, removed and purged. Needs root, /dev/fuse, and a mirror of the distribution (MIRROR=URL names one).
#
# Everything happens in namespaces of mounts and processes that end with this script, on every way out: so do its mounts and its daemons.
# LIMIT_S bounds its time (1200 s).
set -euo pipefail

cd "$(dirname "$0")/.."
fail() { echo "test-deb: $*" >&2; exit 1; }

if [ "${1:-}" != --inside ]; then
  [ "$EUID" = 0 ] || fail 'it makes a root directory with its own users and mounts: run it as root'
  [ -c /dev/fuse ] || fail 'there is no /dev/fuse: load the module (modprobe fuse), or give the container that device'
  compgen -G 'target/deb/tandemfs_*.deb' >/dev/null || fail 'there are no packages in target/deb: make deb makes them'
  work=$(mktemp -d "${TMPDIR:-/tmp}/tandemfs-test-deb.XXXXXX")
  trap 'rm -rf --one-file-system "$work"' EXIT
  status=0
  timeout --kill-after=10 "${LIMIT_S:-1200}" \
    unshare --mount --propagation private --pid --fork --kill-child=KILL --mount-proc "$0" --inside "$work" || status=$?
  case $status in
    0) echo 'test-deb: all of it holds' ;;
    124 | 137) fail "not done after ${LIMIT_S:-1200} s" ;;
    *) fail 'failed, as the lines above say' ;;
  esac
  exit 0
fi

# ---- the first process of the namespace -------------------------------------------------------------------------------------------

work=$2
root=$work/root
current=''
trap '[ -z "$current" ] || { echo "FAILED: $current"; tail -n 60 "$work/output"; } >&2' EXIT
step() { # step TITLE COMMAND...
  local started=$SECONDS
  current=$1
  "${@:2}" >"$work/output" 2>&1 </dev/null
  printf '  %-72s %4s s\n' "$current" "$((SECONDS - started))"
  current=''
}

version=$(dpkg-deb -f target/deb/tandemfs_*.deb Version)
upstream=${version%-*}
newer=$upstream-${version##*-}+newer
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")

make_root() {
  mmdebstrap --variant=apt --mode=root "$codename" "$root" ${MIRROR:+"$MIRROR"}
  mkdir "$root/packages" "$root/newer"
  cp target/deb/*.deb "$root/packages/"
  cp "$work/newer"/*.deb "$root/newer/"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount -t tmpfs tmpfs "$root/run"
  [ -e "$root/dev/null" ] || fail 'mmdebstrap has made no /dev/null'
  touch "$root/dev/fuse"
  mount --bind /dev/fuse "$root/dev/fuse"
}

in_root() { # in_root COMMANDS: by bash, in the root directory
  chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 HOME=/root DEBIAN_FRONTEND=noninteractive \
    VERSION="$version" UPSTREAM="$upstream" NEWER="$newer" bash -euo pipefail -c "$functions$1"
}

# For all of the commands below.
functions='
image=/srv/drive.image mnt=/srv/mnt
fail() { echo "$*" >&2; exit 1; }
apt() { apt-get -q -y --no-install-recommends -o Dpkg::Use-Pty=0 "$@"; }
daemon() { tandemfs info "$mnt" --json | sed -n "s/.*\"process_id\": *\([0-9]*\).*/\1/p"; }
# All names, but for what apt, dpkg and mount(8) keep and what the test has put there.
names() {
  find / \( -path /proc -o -path /sys -o -path /dev -o -path /run/mount -o -path /packages -o -path /newer -o -path /srv -o -path /tmp -o -path /root \
    -o -path /var/cache -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/log/apt -o -path /var/log/dpkg.log \) -prune -o -print | sort
}
'

# ---- what is tried ----------------------------------------------------------------------------------------------------------------

prepare='
apt update
# mount is of a priority that autoremove keeps.
apt install man-db gcc libc6-dev pkg-config mount
mkdir -p "$mnt"
names >/root/before
if command -v fusermount3; then fail "fuse3 is there before it is asked for"; fi
'

install='
apt install /packages/*.deb
command -v fusermount3
for package in tandemfs tandemfs-bench libtandemfs0 libtandemfs-dev; do
  [ "$(dpkg-query -W -f "\${db:Status-Abbrev}\${Version}" "$package")" = "ii $VERSION" ]
done
# The benchmark needs the C library and nothing else.
dpkg-query -W -f "\${Depends}" tandemfs-bench | grep -Eqx "libc6 \([^,]*\)"
dpkg --verify tandemfs tandemfs-bench libtandemfs0 libtandemfs-dev | tee /root/changed
[ ! -s /root/changed ]
'

look='
tandemfs --version | grep -Fx "tandemfs $UPSTREAM"
tandemfs-bench --version | grep -Fx "tandemfs-bench $UPSTREAM"
tandemfs-bench --help >/dev/null
for page in tandemfs tandemfs-mount tandemfs-check tandemfs-run tandemfs-bench tandemfs-bench-compare \
    mount.tandemfs mount.fuse.tandemfs umount.tandemfs umount.fuse.tandemfs mkfs.tandemfs fsck.tandemfs; do
  LC_ALL=C.UTF-8 man --warnings "$page" >/root/page 2>/root/warnings
  grep -q "^SYNOPSIS" /root/page && [ ! -s /root/warnings ] || { cat /root/warnings; fail "the manual page $page"; }
done
# Each file of these is what its reader understands, as far as that is here, and names programs that are here.
bash -n /usr/share/bash-completion/completions/tandemfs
for file in /usr/lib/systemd/system/tandemfs* /usr/lib/udev/rules.d/61-tandemfs.rules /usr/share/doc/tandemfs/examples/srv-mail.mount; do
  for program in $(grep -v "^#" "$file" | grep -o "/usr/[a-z/]*bin/[a-z.]*" | sort -u); do [ -x "$program" ] || fail "$file: no $program"; done
done
grep -q "^ExecStart=/usr/bin/tandemfs mount" /usr/lib/systemd/system/tandemfs@.service
grep -q "^IMPORT{program}=\"/usr/bin/tandemfs probe" /usr/lib/udev/rules.d/61-tandemfs.rules
dpkg-query -W -f "\${Conffiles}" tandemfs | grep -q "/etc/logrotate.d/tandemfs"
[ -s /usr/share/tandemfs/prometheus/tandemfs.rules.yml ] && [ -s /usr/share/tandemfs/grafana/tandemfs.json ]
[ -s /usr/share/zsh/vendor-completions/_tandemfs ] && [ -s /usr/share/fish/vendor_completions.d/tandemfs.fish ]
'

use='
tandemfs device create "$image" --profile off --memory 128M --block 512M
mkfs -t tandemfs "$image"
mount -t tandemfs "$image" "$mnt"
cp -r /usr/include "$mnt/"
tandemfs info "$mnt" >/dev/null
mount -o remount,ro "$mnt"
if touch "$mnt/x" 2>/dev/null; then fail "written although read-only"; fi
id=$(daemon)
readlink "/proc/$id/exe"
umount -c "$mnt"
# umount(8) has called its helper, as it does for systemd, and that waits.
if readlink "/proc/$id/exe"; then fail "umount returned before the daemon had ended"; fi
tandemfs check "$image"
fsck -t tandemfs "$image" -f -y
mount -t tandemfs "$image" "$mnt"
diff -r /usr/include "$mnt/include"
umount -c "$mnt"
mkdir /srv/other
for try in "-c rw" "-v uhelper=tandemfs"; do
  mount -t tandemfs "$image" "$mnt" -o "${try#* }"
  mount --bind "$mnt" /srv/other
  status=0; umount ${try% *} "$mnt" 2>/root/said || status=$?
  grep -q "still used by" /root/said && [ "$status" = 32 ] || fail "umount $try has not called its helper: status $status, $(cat /root/said)"
  umount -c /srv/other
done
tandemfs check "$image"
'

direct='
mount -t tandemfs "$image" "$mnt" -o direct
# The library of `tandemfs run` is where the program looks for it: otherwise it says so.
(cd "$mnt" && tandemfs run --report -- cp -r include again) >/root/said 2>&1
cat /root/said
grep -q "door" /root/said
if grep -q "runs by the mount" /root/said; then fail "the library was not found"; fi
diff -r "$mnt/include" "$mnt/again"
cc -Wall -Werror $(pkg-config --cflags tandemfs) -o /root/notes /usr/share/doc/libtandemfs-dev/examples/notes.c $(pkg-config --libs tandemfs)
ldd /root/notes | grep -F "libtandemfs.so.0 =>"
/root/notes "$mnt"
[ -n "$(ls -A "$mnt/notes")" ]
[ "$(pkg-config --modversion tandemfs)" = "$UPSTREAM" ]
umount -c "$mnt"
tandemfs check "$image"
'

upgrade='
mount -t tandemfs "$image" "$mnt" -o direct
id=$(daemon)
# Appends lines during the upgrade, each synced, and says how many there are.
( trap "exit 0" USR1
  exec 8>>"$mnt/lines"
  count=0
  while :; do count=$((count + 1)); echo "line $count" >&8; sync "$mnt/lines"; echo "$count" >/root/count; done ) &
writer=$!
exec 7<"$mnt/include/stdio.h"
until [ -s /root/count ]; do sleep 0.1; done
before=$(wc -l <"$mnt/lines")
apt install /newer/*.deb
[ "$(dpkg-query -W -f "\${Version}" tandemfs)" = "$NEWER" ]
kill -0 "$writer" || fail "the writer has ended"
sleep 1
after=$(wc -l <"$mnt/lines")
echo "lines: $before before the upgrade, $after after it"
[ "$after" -gt "$((before + 10))" ]
# The same daemon, of the program that is no longer there; the new one talks to it.
[ "$(daemon)" = "$id" ]
readlink "/proc/$id/exe" | grep -F "/usr/bin/tandemfs (deleted)"
cmp /usr/include/stdio.h /proc/self/fd/7
cmp /usr/include/stdio.h <(cat <&7)
tandemfs stats "$mnt" >/dev/null
/root/notes "$mnt"
(cd "$mnt" && tandemfs run -- cp include/stdio.h after)
kill -USR1 "$writer"
wait "$writer"
exec 7<&-
umount -c "$mnt"
if readlink "/proc/$id/exe"; then fail "the old daemon goes on after umount"; fi
tandemfs check "$image"
mount -t tandemfs "$image" "$mnt"
[ "$(readlink "/proc/$(daemon)/exe")" = /usr/bin/tandemfs ]
count=$(wc -l <"$mnt/lines")
[ "$count" -ge "$(cat /root/count)" ]
cmp "$mnt/lines" <(for number in $(seq "$count"); do echo "line $number"; done)
diff -r /usr/include "$mnt/include"
cmp /usr/include/stdio.h "$mnt/after"
'

remove='
id=$(daemon)
exec 7<"$mnt/include/stdio.h"
apt remove tandemfs tandemfs-bench libtandemfs0 libtandemfs-dev
# A removal does not touch what is mounted either.
kill -0 "$id"
cmp /usr/include/stdio.h /proc/self/fd/7
exec 7<&-
umount "$mnt"
for try in $(seq 100); do readlink "/proc/$id/exe" || break; sleep 0.1; done
if readlink "/proc/$id/exe"; then fail "the daemon goes on after umount"; fi
if command -v tandemfs; then fail "the program is still there"; fi
[ -e /etc/logrotate.d/tandemfs ] && [ -e /var/log/tandemfs.log ]
# The others have nothing to purge: apt no longer knows them.
apt purge --auto-remove tandemfs
if dpkg-query -W "*tandemfs*"; then fail "dpkg still knows these"; fi
names >/root/after
diff /root/before /root/after
if find / -path /proc -prune -o -iname "*tandemfs*" -print | grep -v -e "^/packages/" -e "^/newer/" -e "^/var/cache/" -e "^/tmp/"; then fail "these are left"; fi
'

echo "packages $version on $codename"
step "packages of a higher version, $newer" scripts/deb.sh "$newer" "$work/newer"
step 'a new root directory' make_root
step 'a compiler, pkg-config and man' in_root "$prepare"
step 'installed from the files, with what they depend on' in_root "$install"
step 'programs, manual pages, units, conffiles' in_root "$look"
step 'device, mkfs, mount, files, umount that waits, check' in_root "$use"
step 'tandemfs run; a C program by pkg-config' in_root "$direct"
step 'upgraded while a mount is in use; right after it' in_root "$upgrade"
step 'removed under a mount, then purged: nothing is left' in_root "$remove"
