//! An ordinary user mounts through fusermount3.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use support::{Place, run};

const NOBODY: u32 = 65_534;

/// What the user does. `$1` is the program, `$2` a directory of the user's.
const SCRIPT: &str = r#"
set -eux
cd "$2"
"$1" device create disk.image --memory 64M --block 256M
test "$(stat -c %a disk.image)" = 600
"$1" mkfs disk.image
mkdir mnt
"$1" mount disk.image mnt -o log="$2/log"
trap '"$1" umount --lazy mnt 2>/dev/null || true' EXIT
grep "$2/mnt " /proc/self/mountinfo | grep nosuid | grep nodev | grep -q "fuse.tandemfs $2/disk.image"
mkdir mnt/dir
echo hello > mnt/dir/file
test "$(cat mnt/dir/file)" = hello
test "$(stat -c %u mnt/dir/file)" = "$(id -u)"
chmod 000 mnt/dir/file
! cat mnt/dir/file 2>/dev/null
"$1" stats mnt --json > /dev/null
(cd mnt; ! "$1" umount "$2/mnt" 2> ../said)
grep -q "in use" said
"$1" umount mnt
! "$1" mount disk.image mnt -o allow_other,log="$2/log" 2> said || { "$1" umount mnt; echo allowed > said; }
grep -q -e user_allow_other -e allowed said
"$1" mount disk.image mnt -o strict,log="$2/log"
chmod 600 mnt/dir/file
test "$(cat mnt/dir/file)" = hello
fusermount3 -u mnt
"$1" mount disk.image mnt -o log="$2/log" || { sleep 1; "$1" mount disk.image mnt -o log="$2/log"; }
"$1" umount mnt
"$1" check disk.image
"#;

/// Gives the ordinary user a /dev/fuse that is open to all, as udev makes it, where this machine's is not; seen by the test alone.
const OPEN_FUSE: &str = r#"
set -e
mknod "$3/fuse" c 10 229
chmod 666 "$3/fuse"
mount --bind "$3/fuse" /dev/fuse
shift 3
exec "$@"
"#;

#[test]
fn an_ordinary_user_mounts_works_and_unmounts() {
    support::require_fuse();
    let place = Place::empty();
    fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).expect("changed");
    let program = support::program_for_everybody(&place);
    let directory = place.path("user");
    fs::create_dir(&directory).expect("made");
    let is_root = rustix::process::geteuid().is_root();
    let fuse_is_open = fs::metadata("/dev/fuse").expect("there").permissions().mode() & 0o006 == 0o006;
    let node = tempfile::tempdir().expect("a directory where device files work");
    let mut command = if is_root && !fuse_is_open {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", OPEN_FUSE, "open-fuse", "-", "-"]).arg(node.path()).arg("setpriv");
        command
    } else {
        Command::new(if is_root { "setpriv" } else { "env" })
    };
    if is_root {
        chown(&directory, Some(NOBODY), Some(NOBODY)).expect("given");
        command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}")).arg("--clear-groups");
    }
    command.args(["sh", "-c", SCRIPT, "ordinary-user", &program, &directory]).env_remove("XDG_RUNTIME_DIR").env("HOME", &directory);
    let output = run(&mut command);
    assert!(
        output.status.success(),
        "{}{}log of the daemon:\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
        fs::read_to_string(format!("{directory}/log")).unwrap_or_default()
    );
}
