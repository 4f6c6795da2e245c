//! mount(8) and umount(8) themselves: mounts by type, remounts without a line in fstab, unmounts that wait for the daemon. Alone in its file,
//! since its mount namespace keeps every mount that there is when it is made.

mod support;

use std::process::Command;

use support::{Place, program_named, run};

/// The helpers are links in a layer over /usr/sbin that only this namespace sees. First without `mount.fuse.tandemfs`: then mount(8) calls
/// mount.fuse(8), and that the program, which it finds only in the usual directories.
const SCRIPT: &str = r#"
set -eu
export LIBMOUNT_FSTAB=/dev/null PATH="$PLACE:$PATH"
mount -t overlay overlay -o "lowerdir=/usr/sbin,upperdir=$PLACE/upper,workdir=$PLACE/work" /usr/sbin
trap 'tandemfs umount --force "$DIR" 2>/dev/null || true' EXIT
for name in tandemfs mount.tandemfs; do ln -s "$PLACE/tandemfs" "/usr/sbin/$name"; done
mount -t tandemfs "$IMAGE" "$DIR" -o "strict,nosuid,threads=2,log=$PLACE/log"
try() {
  mount -o remount,ro "$DIR"
  if touch "$DIR/x" 2>/dev/null; then echo "written although read-only"; exit 1; fi
  tandemfs info "$DIR" | grep -q 'read_only  *true'
  mount -o remount,rw "$DIR"
  touch "$DIR/x"
  mount -o remount,nodev,threads=2 "$DIR"
  tandemfs info "$DIR" | grep -q 'flags .*nosuid'
  tandemfs info "$DIR" | grep -q 'flags .*nodev'
  if mount -o remount,threads=3 "$DIR" 2>"$PLACE/said"; then echo "threads=3 was accepted"; exit 1; fi
  grep -q 'threads=2 to threads=3' "$PLACE/said"
  mount -o remount,dev,memory=32M,promote=on "$DIR"
  tandemfs info "$DIR" | grep -q 'options.memory  *32M'
  tandemfs info "$DIR" | grep -q 'options.promote  *on'
  if mount -o remount,memory=1K "$DIR" 2>"$PLACE/said"; then echo "memory=1K was accepted"; exit 1; fi
  grep -q 'at least 8 MiB' "$PLACE/said"
  mount -o remount,memory=64M,promote=off "$DIR"
}
try
ln -s "$PLACE/tandemfs" /usr/sbin/mount.fuse.tandemfs
try
# Without its helper umount(8) returns although something else uses the file system.
mount --bind "$DIR" "$PLACE/other"
umount -c "$DIR"
umount "$PLACE/other"
ln -s "$PLACE/tandemfs" /usr/sbin/umount.fuse.tandemfs
ln -s "$PLACE/tandemfs" /usr/sbin/umount.tandemfs
mount -t tandemfs "$IMAGE" "$DIR" -o "relaxed,log=$PLACE/log"
exec 9<"$DIR/x"
if umount -c "$DIR" 2>"$PLACE/said"; then echo "unmounted in use"; exit 1; else [ $? = 32 ]; fi
grep -q "in use by" "$PLACE/said"
umount -c -r "$DIR" 2>"$PLACE/said"
grep -q "read-only now" "$PLACE/said"
if touch "$DIR/x" 2>/dev/null; then echo "written although read-only"; exit 1; fi
umount -l "$DIR"
exec 9<&-
# As systemd calls it, and by the path of a mount that names the helper.
for try in "-c ro,relaxed" "-v rw,uhelper=tandemfs"; do
  mount -t tandemfs "$IMAGE" "$DIR" -o "${try#* },log=$PLACE/log"
  mount --bind "$DIR" "$PLACE/other"
  if umount ${try% *} "$DIR" 2>"$PLACE/said"; then echo "not by the helper: $try"; exit 1; else [ $? = 32 ]; fi
  grep -q "still used by" "$PLACE/said"
  umount -c "$PLACE/other"
done
mount -t tandemfs "$IMAGE" "$DIR" -o "relaxed,log=$PLACE/log"
head -c 50000000 /dev/zero >"$DIR/large"
id=$(tandemfs info "$DIR" --json | sed -n 's/.*"process_id": *\([0-9]*\).*/\1/p')
readlink "/proc/$id/exe" >/dev/null
umount -c "$DIR"
if readlink "/proc/$id/exe" >/dev/null; then echo "umount has not waited for the daemon"; exit 1; fi
"#;

#[test]
fn mount_and_umount_call_their_helpers() {
    if !rustix::process::geteuid().is_root() {
        return println!("not tried: only root mounts by mount(8) without a line in fstab");
    }
    support::require_fuse();
    let place = Place::formatted();
    program_named(&place, "tandemfs");
    for name in ["upper", "work", "other"] {
        std::fs::create_dir(place.path(name)).expect("made");
    }
    let output = run(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT])
        .env("PLACE", place.path(""))
        .env("IMAGE", place.image())
        .env("DIR", place.mountpoint()));
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let log = std::fs::read_to_string(place.path("log")).unwrap_or_default();
    assert!(output.status.success(), "{said}\n{}\n{log}", std::fs::read_to_string(place.path("said")).unwrap_or_default());
    place.check();
}

/// mount(8) passes over file systems that are not there if their line says so; the mounts of such lines were errors.
#[test]
fn regression_nofail_of_a_device_that_is_not_there_was_an_error() {
    let place = Place::empty();
    let pair = format!("memory={},block={}", place.path("no-memory"), place.path("no-block"));
    for device in [place.path("no-image"), pair] {
        support::succeeds(&["mount", &device, &place.mountpoint(), "-o", "strict,nofail"]);
        support::fails(1, "no", &["mount", &device, &place.mountpoint(), "-o", "strict"]);
    }
    std::fs::write(place.path("other"), "no image").expect("written");
    support::fails(1, "other", &["mount", &place.path("other"), &place.mountpoint(), "-o", "strict,nofail"]);
}
