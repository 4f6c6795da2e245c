//! `tandemfs quota`: limits that an ordinary user meets by a mount, in both modes, and that the next mount has.

mod support;

use std::fs::{self, File, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::process::Command;

use rustix::mm::MsyncFlags;
use support::mapped::Mapped;
use support::{Mount, Place, fails, pattern, run, succeeds};

const NOBODY: &str = "65534";

/// A mount that everybody may enter.
fn shared(place: &Place, options: &str) -> Mount {
    fs::set_permissions(place.path(""), Permissions::from_mode(0o755)).expect("changed");
    let mount = place.mount(options);
    fs::set_permissions(mount.root(), Permissions::from_mode(0o777)).expect("changed");
    mount
}

/// What a user's shell says on standard error; nothing if all went well.
fn errors_of_user(script: &str, directory: &str) -> String {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "sh", "-c", script, directory]);
    let output = run(&mut command);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), errors.is_empty(), "{errors}");
    errors
}

/// How much of each zone, and how many inodes, the user has.
fn used(mountpoint: &str) -> [u64; 3] {
    let report = succeeds(&["quota", "get", mountpoint, "--user", NOBODY, "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    ["memory", "block", "inodes"].map(|of| report["entries"][0][of]["used"].as_u64().expect("a number"))
}

fn user_meets_limits(options: &str) {
    support::require_fuse();
    if !rustix::process::getuid().is_root() {
        return println!("not root: no other user to work as");
    }
    let place = Place::formatted();
    let mount = shared(&place, options);
    let mountpoint = place.mountpoint();
    succeeds(&["quota", "set", &mountpoint, "--user", NOBODY, "--block-hard", "4M", "--memory-hard", "2M", "--inodes-hard", "20"]);
    assert!(errors_of_user("for i in $(seq 30); do : > $0/f$i || exit 1; done", &mountpoint).contains("quota exceeded"));
    assert_eq!(used(&mountpoint)[2], 20);
    assert_eq!(errors_of_user("rm $0/f*", &mountpoint), "");
    assert_eq!(used(&mountpoint), [0; 3]);
    // Long writes go to blocks, short ones to the memory zone and then to blocks; write-back, which is never refused, moves what they have there to blocks, too.
    for (size, count, moved) in [("64k", "200", 0), ("100", "100000", 2 << 20)] {
        let errors = errors_of_user(&format!("dd if=/dev/zero of=$0/long bs={size} count={count} status=none"), &mountpoint);
        assert!(errors.contains("quota exceeded"), "{size}: {errors}");
        let [memory, block, inodes] = used(&mountpoint);
        assert!(memory <= 2 << 20 && block <= (4 << 20) + moved && inodes == 1, "{size}: {memory}, {block}, {inodes}");
        assert!(memory + block > 3 << 20, "{size}: {memory}, {block}");
        assert_eq!(errors_of_user("rm $0/long", &mountpoint), "");
        assert_eq!(used(&mountpoint), [0; 3], "{size}");
    }
    // What another thread of the daemon finishes: the end of the file is in a page that the kernel has to drop first.
    for (what, script) in [
        ("fallocate", "printf abc > $0/parked; fallocate --length 8M $0/parked"),
        (
            "a write behind the end",
            "dd if=/dev/zero of=$0/most bs=512k count=7 status=none; printf abc > $0/parked; dd if=/dev/zero of=$0/parked bs=1M seek=1 count=1 conv=notrunc status=none",
        ),
    ] {
        let errors = errors_of_user(script, &mountpoint);
        let [memory, block, _] = used(&mountpoint);
        assert!(errors.contains("quota exceeded") && memory <= 2 << 20 && block <= 4 << 20, "{what}: {errors}, {memory}, {block}");
        assert_eq!(errors_of_user("rm -f $0/parked $0/most", &mountpoint), "");
    }
    assert_eq!(errors_of_user("mkdir $0/d && cp /etc/passwd $0/d", &mountpoint), "");
    let before = used(&mountpoint);
    // Root has no limits, and gives a file away only within those of who gets it.
    let large = vec![1; 5 << 20];
    fs::write(mount.path("large"), &large).expect("root is not limited");
    mount.unmount();
    place.check();
    let mount = place.mount(options);
    assert_eq!(used(&mountpoint), before, "counted anew");
    fails(1, "user", &["quota", "set", &mountpoint, "--user", "no such user", "--block-hard", "1M"]);
    fails(1, "soft limit", &["quota", "set", &mountpoint, "--user", NOBODY, "--block-soft", "3M", "--block-hard", "2M"]);
    mount.unmount();
    place.check();
}

#[test]
fn a_user_meets_limits_in_strict_mode() {
    user_meets_limits("strict,allow_other");
}

#[test]
fn a_user_meets_limits_in_relaxed_mode() {
    user_meets_limits("allow_other");
}

/// A new file of a user, which the kernel may cache.
fn file_of_user(mount: &Mount, name: &str) -> File {
    let path = mount.path(name);
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).expect("made");
    let user = NOBODY.parse().expect("a number");
    chown(&path, Some(user), Some(user)).expect("given");
    file
}

/// What was stored or cached before it came to the limit is written back all the same ([RV5] of `reserve.rs`).
fn what_was_acknowledged_stays(options: &str) {
    const BYTES: usize = 3 << 20;
    support::require_fuse();
    if !rustix::process::getuid().is_root() {
        return println!("not root: no other user to give files to");
    }
    let place = Place::formatted();
    let mount = shared(&place, options);
    let (stored, cached) = (pattern(1, BYTES), pattern(2, BYTES));
    let file = file_of_user(&mount, "cached");
    file.write_all_at(&cached, 0).expect("written");
    succeeds(&["quota", "set", &place.mountpoint(), "--user", NOBODY, "--block-hard", "64K", "--memory-hard", "64K"]);
    file.sync_all().expect("of what is acknowledged already");
    drop(file);
    let file = file_of_user(&mount, "mapped");
    file.set_len(BYTES as u64).expect("takes no space");
    let mapped = Mapped::new(&file, BYTES);
    mapped.store(0, &stored);
    mapped.sync(MsyncFlags::SYNC).expect("written back");
    drop((mapped, file));
    let [memory, block, _] = used(&place.mountpoint());
    assert!(memory + block >= 2 * BYTES as u64, "it is counted: {memory}, {block}");
    assert!(errors_of_user("dd if=/dev/zero of=$0/new bs=64k count=9 status=none", &place.mountpoint()).contains("quota exceeded"));
    mount.unmount();
    place.check();
    let mount = place.mount(options);
    assert!(fs::read(mount.path("mapped")).expect("read") == stored, "stored bytes are lost");
    assert!(fs::read(mount.path("cached")).expect("read") == cached, "cached bytes are lost");
    mount.unmount();
}

#[test]
fn regression_acknowledged_bytes_were_refused_at_a_limit_in_strict_mode() {
    what_was_acknowledged_stays("strict,allow_other");
}

#[test]
fn regression_acknowledged_bytes_were_refused_at_a_limit_in_relaxed_mode() {
    what_was_acknowledged_stays("allow_other");
}

#[test]
fn a_project_is_a_tree() {
    support::require_fuse();
    let place = Place::formatted();
    let mount = place.mount("strict");
    let mountpoint = place.mountpoint();
    for name in ["tree", "tree/below", "other"] {
        fs::create_dir(mount.path(name)).expect("made");
    }
    fs::write(mount.path("tree/below/old"), b"old").expect("written");
    let tree = mount.path("tree").to_str().expect("UTF-8").to_owned();
    succeeds(&["quota", "project", &tree, "5"]);
    fs::write(mount.path("tree/below/new"), b"new").expect("written");
    let report = succeeds(&["quota", "get", &mountpoint, "--project", "5", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&report).expect("JSON");
    assert_eq!(report["entries"][0]["inodes"]["used"], 4, "{report}");
    fs::write(mount.path("other/file"), b"file").expect("written");
    for refused in
        [fs::rename(mount.path("other/file"), mount.path("tree/file")), fs::hard_link(mount.path("other/file"), mount.path("tree/file"))]
    {
        assert_eq!(refused.expect_err("another project").raw_os_error(), Some(libc::EXDEV));
    }
    fs::rename(mount.path("tree/below/old"), mount.path("other/old")).expect("out of the tree");
    mount.unmount();
    place.check();
}

/// As with XFS: who owns a file gives it a project, a directory passes it on, and `df` shows what is left of its limits.
#[test]
fn chattr_lsattr_and_df_know_projects() {
    support::require_fuse();
    let place = Place::formatted();
    let mount = shared(&place, "strict,allow_other");
    let mountpoint = place.mountpoint();
    let shell = |script: &str| {
        let output = run(Command::new("sh").args(["-c", script, &mountpoint]));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    };
    assert_eq!(shell("mkdir $0/tree && : > $0/tree/old && chmod 777 $0/tree"), Ok(String::new()));
    let whole = shell("stat -f -c '%b %d' $0/tree").expect("told");
    if rustix::process::getuid().is_root() {
        assert!(
            errors_of_user("mkdir $0/tree/his && chattr -p 7 $0/tree/his", &mountpoint).contains("not supported"),
            "a user gave the file system the feature"
        );
    }
    assert_eq!(shell("chattr -p 42 +P $0/tree && lsattr -pd $0/tree | cut -c1-5"), Ok("42".into()));
    assert!(shell("lsattr -pd $0/tree").expect("told").contains('P'));
    assert_eq!(shell(": > $0/tree/new && lsattr -p $0/tree/new $0/tree/old | cut -c1-5"), Ok("42\n    0".into()));
    assert!(shell("chattr +i $0/tree/new").is_err_and(|error| error.contains("not supported")), "nothing would keep it");
    if rustix::process::getuid().is_root() {
        assert_eq!(errors_of_user(": > $0/tree/hers && chattr -p 7 $0/tree/hers", &mountpoint), "");
        assert!(errors_of_user("chattr -p 7 $0/tree/new", &mountpoint).contains("not permitted"), "of another owner");
    }
    succeeds(&[
        "quota",
        "set",
        &mountpoint,
        "--project",
        "42",
        "--memory-hard",
        "8M",
        "--block-soft",
        "24M",
        "--block-hard",
        "32M",
        "--inodes-hard",
        "10",
    ]);
    assert_eq!(shell("stat -f -c '%b %c' $0/tree"), Ok(format!("{} 10", (8 + 24) << 8)), "units of 4 KiB");
    assert_eq!(shell("dd if=/dev/zero of=$0/tree/new bs=1M count=20 status=none; stat -f -c %a $0/tree"), Ok((4 << 8).to_string()));
    assert_eq!(shell("stat -f -c %b $0"), Ok(whole.split(' ').next().expect("two numbers").to_owned()));
    mount.unmount();
    place.check();
}
