//! The client library beside real mounts.

mod support;

use std::path::Path;

use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use support::Place;
use tandemfs_client::{ConnectError, Mount};

fn refused(path: &Path) -> ConnectError {
    Mount::connect(path).expect_err("there is no door")
}

/// A bind mount that ends with the test.
struct Bound<'p>(&'p Path);

impl<'p> Bound<'p> {
    fn new(of: &Path, at: &'p Path) -> Self {
        std::fs::create_dir(at).expect("made");
        rustix::mount::mount_bind(of, at).expect("bound");
        rustix::mount::mount_change(at, MountPropagationFlags::PRIVATE).expect("private");
        Self(at)
    }

    fn read_only(self) -> Self {
        rustix::mount::mount_remount(self.0, MountFlags::BIND | MountFlags::RDONLY, "").expect("changed");
        self
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        let _unmounted = rustix::mount::unmount(self.0, UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_without_a_door_is_said_in_a_sentence() {
    let place = Place::formatted();
    let mount = place.mount("strict");
    let error = refused(mount.root());
    assert!(matches!(error, ConnectError::NoDoor(_)), "{error:?}");
    assert_eq!(error.to_string(), format!("{}: the mount has no direct door (it needs -o direct)", mount.root().display()));
    let below = mount.path("below");
    std::fs::create_dir(&below).expect("made");
    assert!(matches!(refused(&below), ConnectError::NotRoot(_)), "paths begin at the root");
    assert!(matches!(refused(place.path("").as_ref()), ConnectError::NotMounted(_)), "the directory around it");
    assert!(matches!(refused(&mount.path("nothing")), ConnectError::Io(_)));
    mount.unmount();
}

#[test]
fn a_way_with_rules_of_its_own_is_left_to_the_kernel() {
    if !rustix::process::geteuid().is_root() {
        return println!("not run: only root may bind");
    }
    let place = Place::formatted();
    let mount = place.mount("strict");
    std::fs::create_dir(mount.path("part")).expect("made");
    let (whole, part, read_only) = (place.path("whole"), place.path("part"), place.path("read_only"));
    let (whole, part, read_only) = (Path::new(&whole), Path::new(&part), Path::new(&read_only));
    {
        let _bound =
            (Bound::new(mount.root(), whole), Bound::new(&mount.path("part"), part), Bound::new(mount.root(), read_only).read_only());
        assert!(matches!(refused(whole), ConnectError::NoDoor(_)), "a bind mount of all of it is as good");
        for path in [part, read_only] {
            let error = refused(path);
            assert!(matches!(error, ConnectError::NotEntered { .. }) && error.to_string().ends_with("; use the mount"), "{error}");
        }
    }
    mount.unmount();
}
