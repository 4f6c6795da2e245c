#!/usr/bin/env bash
# prepare.sh CACHE: what a guest is made of, gathered once from the distribution's packages.
#
#   CACHE/guest/vmlinuz   the stock kernel
#   CACHE/guest/initrd    enough to reach the host's root: busybox, five modules, guest/init
#   CACHE/guest/root      the kernel's modules, and the tools that this host lacks (ndctl, cxl, mkfs.ext4, fusermount3, dmsetup)
#   CACHE/guest/made-of   a digest of this recipe; where it differs, everything is made again
#
# Nothing is installed on the host, so no root is needed. Remove CACHE to take newer packages.
set -euo pipefail

cache=$1
here=$(dirname "$(realpath -- "$0")")
kernel=${TANDEMFS_VM_KERNEL:-linux-image-amd64}
tools=(ndctl daxctl e2fsprogs fuse3 dmsetup)
boot_modules=(virtio_pci virtio_console 9pnet_virtio 9p overlay)
# The guest has none of the hardware that these are for.
unused_drivers=(gpu media infiniband net usb staging iio hid isdn)

recipe=$(cat -- "$0" "$here/guest/init" - <<<"$kernel" | sha256sum)
[ "$(cat "$cache/guest/made-of" 2>/dev/null || true)" != "$recipe" ] || exit 0

fail() { echo "prepare: $*" >&2; exit 1; }

# apt without root: its own locks, the caller as the user that fetches.
apt() { apt-get -qq -o APT::Sandbox::User="$(id -un)" -o Debug::NoLocking=1 "$@" >&2; }

fetch() { # fetch DIRECTORY: the packages, as files
  local image
  # The meta package names the kernel that it stands for.
  image=$(apt-cache depends "$kernel" 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\)$/\1/p' | head -n 1)
  (cd "$1" && apt download "${image:-$kernel}" busybox-static) &&
    apt -y --no-install-recommends --download-only -o Dir::Cache::Archives="$1" install "${tools[@]}"
}

unpack() { # unpack PACKAGE ROOT
  local options=(--extract --keep-directory-symlink --no-same-owner --directory "$2" --exclude='./usr/share/*' --exclude='*/kernel/sound') driver
  for driver in "${unused_drivers[@]}"; do options+=(--exclude="*/kernel/drivers/$driver"); done
  dpkg-deb --fsys-tarfile "$1" | tar "${options[@]}"
}

module_files() { # module_files MODULES NAME: a module's file and those that it depends on; nothing for one that is built in
  sed -nE "s#^(([^:]*/)?${2//_/[-_]}\.ko):(.*)#\1\3#p" "$1/modules.dep" | xargs -rn 1
}

make_initrd() { # make_initrd ROOT RELEASE INITRD
  local tree module file modules=$1/lib/modules/$2 busybox=$1/bin/busybox
  tree=$(mktemp -d)
  mkdir -p "$tree"/{bin,proc,sys,dev,host,tools,writes,root} "$tree/lib/modules/$2"
  cp "$busybox" "$tree/bin/"
  install -m 755 "$here/guest/init" "$tree/init"
  printf '%s\n' "${boot_modules[@]}" >"$tree/modules"
  for module in "${boot_modules[@]}"; do module_files "$modules" "$module"; done | sort -u | while read -r file; do
    install -D -m 644 "$modules/$file" "$tree/lib/modules/$2/$file"
  done
  "$busybox" depmod -b "$tree" "$2"
  (cd "$tree" && find . | "$busybox" cpio -o -H newc 2>/dev/null) | gzip -1 >"$3"
  rm -rf "$tree"
}

new=$cache/guest.new
echo "prepare: gathering the guest's kernel and tools into $cache (once)" >&2
rm -rf "$new"
mkdir -p "$new"/packages/partial "$new"/root/usr/{bin,sbin,lib}
for directory in bin sbin lib; do ln -s "usr/$directory" "$new/root/$directory"; done
if ! fetch "$new/packages"; then
  # Old package lists name files that are gone.
  [ "$(id -u)" != 0 ] || apt-get -qq update >&2 || true
  fetch "$new/packages" || fail "the kernel and tools cannot be downloaded; is the network there, are the package lists (apt-get update)?"
fi
for package in "$new"/packages/*.deb; do unpack "$package" "$new/root"; done
mv "$new"/root/boot/vmlinuz-* "$new/vmlinuz"
rm -rf "$new/packages" "$new/root/boot"
release=$(ls "$new/root/lib/modules") && [ -n "$release" ] || fail "the kernel's package has no modules"
find "$new/root/lib/modules" -name '*.ko.xz' -exec "$new/root/bin/busybox" unxz {} +
"$new/root/bin/busybox" depmod -b "$new/root" "$release"
make_initrd "$new/root" "$release" "$new/initrd"
printf '%s\n' "$recipe" >"$new/made-of"
rm -rf "$cache/guest"
mv "$new" "$cache/guest"
