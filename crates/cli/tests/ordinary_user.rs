//! An ordinary user mounts through fusermount3.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::process::Command;

use support::{MODES, Place, run};

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

/// What a user of a mount with `allow_root` that is not hers says, and whether it worked.
fn stranger(script: &str, directory: &str) -> (bool, String) {
    let mut command = Command::new("setpriv");
    command.arg(format!("--reuid={NOBODY}")).arg(format!("--regid={NOBODY}"));
    let output = run(command.args(["--clear-groups", "sh", "-c", script, directory]));
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// What root has listed and read is in the kernel's caches, and still nobody else's ([PRI1] to [PRI3] of `private.rs`).
#[test]
fn regression_with_allow_root_others_listed_and_read_what_was_cached() {
    support::require_fuse();
    if !rustix::process::geteuid().is_root() {
        return println!("not root: no other user to work as");
    }
    for mode in MODES {
        let place = Place::formatted();
        fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).expect("changed");
        let mount = place.mount(&format!("{mode},allow_root"));
        for directory in ["", "dir"] {
            fs::create_dir_all(mount.path(directory)).expect("made");
            fs::set_permissions(mount.path(directory), Permissions::from_mode(0o777)).expect("changed");
        }
        fs::write(mount.path("dir/file"), "secret\n").expect("written");
        fs::set_permissions(mount.path("dir/file"), Permissions::from_mode(0o666)).expect("changed");
        symlink("secret", mount.path("dir/link")).expect("made");
        let look = || {
            assert_eq!(fs::read(mount.path("dir/file")).expect("root's"), b"secret\n");
            assert_eq!(fs::read_link(mount.path("dir/link")).expect("root's").as_os_str(), "secret");
            assert_eq!(fs::read_dir(mount.path("dir")).expect("listed").count(), 2);
            assert_eq!(fs::read_dir(mount.root()).expect("listed").count(), 1);
            fs::metadata(mount.root()).expect("root's");
        };
        look();
        for script in [
            "cat $0/dir/file",
            "ls $0",
            "ls $0/dir",
            "stat $0",
            "stat $0/dir/file",
            "readlink $0/dir/link",
            "cd $0/dir",
            "test -e $0/dir/file",
            "echo x > $0/dir/file",
            "mkdir $0/dir/new",
        ] {
            look();
            let (worked, said) = stranger(script, &place.mountpoint());
            assert!(!worked && !said.contains("secret"), "{mode}: {script}: {said}");
        }
        // What root hands over works, as with mounts that let nobody else in.
        let mut command = Command::new("sh");
        let script = format!(
            "setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -c 'read line && echo $line' < $0/dir/file >> $0/dir/copy"
        );
        let output = run(command.args(["-c", &script, &place.mountpoint()]));
        assert!(output.status.success(), "{mode}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(mount.path("dir/copy")).expect("read"), b"secret\n", "{mode}");
        look_again(&mount);
        mount.unmount();
        place.check();
    }
}

/// Root still finds its way by a working directory, which a refused look-up must not have taken away.
fn look_again(mount: &support::Mount) {
    let output = run(Command::new("sh").args(["-c", "pwd -P && cat file"]).current_dir(mount.path("dir")));
    assert!(String::from_utf8_lossy(&output.stdout).ends_with("dir\nsecret\n"), "{output:?}");
}
