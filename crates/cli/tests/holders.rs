//! `umount` names the processes that hold a mount, or what holds the file system after its mount is gone.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use support::{Mount, Place, fails, run, start, umount};

/// A program that runs until its standard input ends.
struct Waiting(Child);

impl Waiting {
    /// Starts it and waits until it has said that it is there.
    fn start(command: &mut Command) -> Self {
        let started = start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let mut child = started.unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut said = [0; 1];
        std::io::Read::read_exact(child.stdout.as_mut().expect("piped"), &mut said).expect("it is there");
        Self(child)
    }

    fn id(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        let _ended = self.0.wait();
    }
}

/// Something mounted, or attached, that is taken down again, also when a test fails.
struct Undo(Vec<String>);

impl Undo {
    /// Does it; `undo` takes it down.
    fn after(words: &[&str], undo: &[&str]) -> Self {
        let output = run(Command::new(words[0]).args(&words[1..]));
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        Self(undo.iter().map(|word| (*word).to_owned()).collect())
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let output = run(Command::new(&self.0[0]).args(&self.0[1..]));
        assert!(output.status.success() || std::thread::panicking(), "{:?}: {}", self.0, String::from_utf8_lossy(&output.stderr));
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

#[test]
fn processes_that_hold_a_mount_are_named() {
    let place = Place::formatted();
    let mount = place.mount("relaxed");
    fs::write(mount.path("file"), "held").expect("written");
    let stands = Waiting::start(shell("echo x; read end").current_dir(mount.root()));
    let reads = Waiting::start(&mut shell(&format!("exec 3<{}; echo x; read end", mount.path("file").display())));
    let said = fails(1, "in use by ", &["umount", &place.mountpoint()]);
    assert!(said.contains(&format!("sh (process {}: current directory)", stands.id())), "{said}");
    assert!(said.contains(&format!("sh (process {}: open files)", reads.id())), "{said}");
    assert!(said.contains("--lazy"), "{said}");
    drop((stands, reads));
    mount.unmount();
    place.check();
}

/// The mount goes, the file system stays until its last user goes.
fn is_still_used(mount: Mount, place: &Place, by: &str, user: impl Sized) {
    let said = fails(1, "unmounted, but the file system is still used by ", &["umount", &place.mountpoint()]);
    assert!(said.contains(by) && said.contains(&format!("(process {})", mount.process_id().as_raw_nonzero())), "{by}: {said}");
    assert!(fs::read_dir(place.mountpoint()).expect("listed").next().is_none(), "out of the tree");
    fails(8, "in use", &["check", &place.image()]);
    drop(user);
    assert!(mount.daemon_ends_within(support::WITHIN), "{by}");
    place.check();
}

/// Set for the test that runs in a mount namespace of its own.
const INSIDE: &str = "TANDEMFS_TEST_NAMESPACE";

/// One after the other: a namespace holds every mount that there is when it is made. That also holds for namespaces of other programs, which
/// failed this test now and then: so it mounts in a private namespace, which nobody else can copy.
#[test]
fn what_holds_a_file_system_whose_mount_is_gone_is_named() {
    if !rustix::process::geteuid().is_root() {
        println!("not tried: only root mounts over directories and makes loop devices");
        return;
    }
    if std::env::var_os(INSIDE).is_none() {
        let own = std::env::current_exe().expect("a program");
        let name = "what_holds_a_file_system_whose_mount_is_gone_is_named";
        let mut inside = Command::new("unshare");
        inside.args(["--mount", "--propagation", "private"]).arg(own).args(["--exact", name, "--nocapture"]).env(INSIDE, "1");
        let output = run(&mut inside);
        let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
        assert!(output.status.success() && said[0].contains("1 passed"), "{}{}", said[0], said[1]);
        return;
    }
    let place = Place::formatted();
    let (at, merged) = (place.mountpoint(), place.path("merged"));
    fs::create_dir(&merged).expect("made");
    let mounted = || {
        let mount = place.mount("relaxed");
        for name in ["lower", "upper", "work"] {
            fs::create_dir_all(mount.path(name)).expect("made");
        }
        mount
    };

    let mount = mounted();
    let user = Undo::after(&["mount", "--bind", &format!("{at}/lower"), &merged], &["umount", &merged]);
    is_still_used(mount, &place, &format!("the mount at {merged}"), user);

    let mount = mounted();
    let layers = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work");
    let user = Undo::after(&["mount", "-t", "overlay", "overlay", "-o", &layers, &merged], &["umount", &merged]);
    fs::write(Path::new(&merged).join("file"), "through the overlay").expect("written");
    is_still_used(mount, &place, &format!("the overlay at {merged}"), user);

    let mount = mounted();
    assert_eq!(fs::read_to_string(mount.path("upper/file")).expect("read"), "through the overlay");
    let user = Waiting::start(Command::new("unshare").args(["--mount", "--propagation", "private", "sh", "-c", "echo x; read end"]));
    let by = format!("the mount namespace of sh (process {})", user.id());
    is_still_used(mount, &place, &by, user);

    // These keep the mount itself.
    let mount = mounted();
    let file = format!("{at}/disk");
    fs::File::create(&file).and_then(|file| file.set_len(1 << 20)).expect("made");
    let device = String::from_utf8(run(Command::new("losetup").args(["--find", "--show", &file])).stdout).expect("text").trim().to_owned();
    let user = Undo(["losetup", "--detach", &device].map(str::to_owned).to_vec());
    let said = fails(1, "in use by ", &["umount", &at]);
    assert!(said.contains(&format!("{device} ({file})")), "{said}");
    drop(user);
    let below = format!("{at}/lower");
    let user = Undo::after(&["mount", "-t", "tmpfs", "tmpfs", &below], &["umount", &below]);
    let said = fails(1, "in use by ", &["umount", &at]);
    assert!(said.contains(&format!("the mount at {below}")), "{said}");
    drop(user);
    umount(&at);
    assert!(mount.daemon_ends_within(support::WITHIN));
    place.check();
}
