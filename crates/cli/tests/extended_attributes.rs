//! Extended attributes and access control lists through a real mount, by the usual commands: their output is the same, line by line, as on
//! ext4.

mod support;

use std::path::Path;
use std::process::Command;

use support::{MODES, Mount, Place, run, succeeds};

const SCRIPT: &str = include_str!("scripts/extended_attributes.sh");
/// What ext4 answers.
const ANSWERS: &str = include_str!("scripts/extended_attributes.expected");

/// Runs the script in a new directory.
fn answers(root: &Path) -> String {
    let directory = root.join("work");
    std::fs::create_dir(&directory).expect("made");
    let output = run(Command::new("bash").args(["-c", &format!("{{ {SCRIPT}\n}} 2>&1")]).current_dir(&directory));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn same(found: &str, what: &str) {
    for (line, (found, expected)) in found.lines().zip(ANSWERS.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of what {what} answers", line + 1);
    }
    assert_eq!(found.lines().count(), ANSWERS.lines().count(), "{what}");
}

/// A file system in an image; nothing where this user or this machine cannot mount one.
struct Ext4(String);

impl Ext4 {
    fn mount(place: &Place) -> Option<Self> {
        let (image, mountpoint) = (place.path("ext4.image"), place.path("ext4"));
        std::fs::create_dir(&mountpoint).expect("made");
        std::fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
        let is_there = std::fs::exists("/usr/sbin/mkfs.ext4").unwrap_or(false);
        let succeeds = |command: &mut Command| run(command).status.success();
        let is_made = is_there && succeeds(Command::new("/usr/sbin/mkfs.ext4").args(["-q", "-b", "4096", &image]));
        (is_made && succeeds(Command::new("mount").args(["-o", "loop", &image, &mountpoint]))).then_some(Self(mountpoint))
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        let _ = run(Command::new("umount").arg(&self.0));
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn commands_say_what_they_say_on_ext4() {
    if !is_root() {
        println!("not tried: users, capabilities and trusted attributes need root");
        return;
    }
    let place = Place::formatted();
    for mode in MODES {
        let mount = place.mount(&format!("{mode},suid,allow_other"));
        same(&answers(mount.root()), mode);
        succeeds_in_shell(&mount, "rm -r work");
        mount.unmount();
        place.check();
    }
    match Ext4::mount(&place) {
        Some(ext4) => same(&answers(Path::new(&ext4.0)), "ext4"),
        None => println!("not tried on ext4 itself: it cannot be mounted here"),
    }
}

fn succeeds_in_shell(mount: &Mount, command: &str) -> String {
    let output = run(Command::new("sh").args(["-c", command]).current_dir(mount.root()));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What ext4 refuses for want of room: 64 KiB in one value, and 64 KiB of names.
#[test]
fn values_of_64_kib_and_as_many_names_survive_a_kill() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    let script = r#"
import os
open("f", "w").close()
large = bytes(range(256)) * 256
os.setxattr("f", "user.large", large)
for index in range(250):
    os.setxattr("f", "user." + ("%04d" % index) + "n" * 246, b"%d" % index)
assert len(os.listxattr("f")) == 251, len(os.listxattr("f"))
"#;
    let check = r#"
import os
assert os.getxattr("f", "user.large") == bytes(range(256)) * 256
assert len(os.listxattr("f")) == 251
for index in range(250):
    assert os.getxattr("f", "user." + ("%04d" % index) + "n" * 246) == b"%d" % index
"#;
    let python = |mount: &Mount, script: &str| {
        let output = run(Command::new("python3").args(["-c", script]).current_dir(mount.root()));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    python(&mount, script);
    python(&mount, check);
    mount.kill();
    let mount = place.mount("strict");
    python(&mount, check);
    let blocks = succeeds_in_shell(&mount, "stat -c %b f");
    assert!(blocks.trim().parse::<u64>().expect("a number") >= 18 * 8, "the value's pages count: {blocks}");
    mount.unmount();
    place.check();
    assert!(succeeds(&["dump", &place.image(), "inode", "2"]).contains("user.large: 65536 B at line"));
    let mount = place.mount("strict");
    succeeds_in_shell(&mount, "rm f");
    mount.unmount();
    place.check();
}

#[test]
fn a_mount_without_attributes_says_so_and_keeps_those_that_are_there() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    succeeds_in_shell(&mount, "touch f && setfattr -n user.a -v 1 f && mkdir d && setfacl -d -m u:1000:rwx d");
    mount.unmount();
    let mount = place.mount("strict,noxattr");
    for command in ["setfattr -n user.b -v 2 f", "getfattr -n user.a f", "setfacl -m u:1:r f"] {
        let output = run(Command::new("sh").args(["-c", command]).current_dir(mount.root()));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success() && said.contains("not supported"), "{command}: {said}");
    }
    assert_eq!(succeeds_in_shell(&mount, "umask 027; touch g; chmod 4755 g; chown 1 g; stat -c %a g"), "755\n");
    mount.unmount();
    let mount = place.mount("relaxed");
    assert!(succeeds_in_shell(&mount, "getfattr -n user.a f").contains("user.a=\"1\""));
    assert!(succeeds_in_shell(&mount, "getfacl -n d").contains("default:user:1000:rwx"));
    mount.unmount();
    place.check();
}
