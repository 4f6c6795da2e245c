//! Who gets the zone for stores, and how much is lent.

use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tandemfs_client::Options;
use tandemfs_direct::Limits;
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_protocol::{Handle, Hello, Number, Operation, StoreLease};
use tandemfs_ring::{Client, LeaseToken};

use crate::greeting::greeted;
use crate::memory::{GROUP, alone};
use crate::processes::Told;
use crate::raw::{Raw, answered};
use crate::support::socket_to;
use crate::{opened, scene, scene_with, storing};

#[test]
fn the_zone_is_for_who_asks_where_the_mount_lends() {
    let _alone = alone();
    assert!(!scene_with(Limits { lends_to: Some(GROUP), ..Limits::default() }).connect(&storing()).stores_by_itself(), "for loads alone");
    let scene = scene();
    assert!(!scene.connect(&Options { loads: true, ..Options::default() }).stores_by_itself(), "a client that has not asked");
    assert!(scene.connect(&storing()).stores_by_itself());
    let socket = socket_to(scene.server.socket());
    let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20));
    let of_stores = [Number::LendStores, Number::ReturnStores, Number::LendTail, Number::Appended].map(Number::bit);
    assert_eq!((welcome.stores, welcome.operations & of_stores.iter().sum::<u64>()), (None, 0));
    descriptors.pop();
    let bell = if descriptors.len() > 2 { descriptors.pop() } else { None };
    let client = Client::map(descriptors[0].as_fd(), descriptors[1].as_fd(), bell, Some(socket)).expect("mapped");
    let mut slot = client.slot().expect("a slot");
    let (handle, into) = (Handle::of(1 << 32).expect("a number"), client.buffer(64).expect("room").range());
    let lease = StoreLease(LeaseToken { index: 0, epoch: 1 }).number().expect("a number");
    let denied = [
        Operation::LendStores { handle, offset: 0, into },
        Operation::ReturnStores { lease },
        Operation::LendTail { handle, into },
        Operation::Appended { lease },
    ];
    for operation in denied {
        assert_eq!(answered(&mut slot, &operation), Err(libc::ENOSYS));
    }
}

/// A client gives back what it has, and what it has not.
#[test]
fn leases_are_given_back() {
    let _alone = alone();
    let scene = scene();
    let _made = scene.made("f", 100_000);
    let mut raw = Raw::connect(scene.server.socket());
    let (token, _) = raw.lease().expect("a lease");
    let back = |token| Operation::ReturnStores { lease: StoreLease(token).number().expect("a number") };
    assert_eq!(answered(&mut raw.slot, &back(LeaseToken { epoch: 7, ..token })).map(|_| scene.lent()), Ok((1, 0)), "not its");
    for _ in 0..2 {
        assert_eq!(answered(&mut raw.slot, &back(token)).map(|_| scene.lent()), Ok((0, 0)));
    }
    let none = Operation::ReturnStores { lease: std::num::NonZeroU64::new(5).expect("a number") };
    assert_eq!(answered(&mut raw.slot, &none), Err(libc::EINVAL));
    let wrong = Operation::LendStores { handle: raw.handle, offset: -1, into: raw.client.buffer(64).expect("room").range() };
    assert_eq!(answered(&mut raw.slot, &wrong), Err(libc::EINVAL));
    let beyond = Operation::LendStores { handle: raw.handle, offset: 1 << 40, into: raw.client.buffer(64).expect("room").range() };
    assert_eq!(answered(&mut raw.slot, &beyond).map(|answer| answer.value), Ok(0));
    assert!(raw.leases.enter(token).is_none());
}

/// [LNS6]
#[test]
fn nothing_is_lent_beside_much_that_is_kept_back() {
    let _alone = alone();
    let scene = scene_with(Limits { stores_by: Some(GROUP), kept_back_bytes: 90_000, ..Limits::default() });
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("enter"), "inside");
    assert_eq!(scene.read(&other, 0, 1), [1]);
    let _more = scene.made("g", 100_000);
    let mount = scene.connect(&storing());
    let file = opened(&mount, "g");
    (0..20).for_each(|_| file.write_all_at(&[1; 8], 0).expect("written"));
    assert_eq!((scene.lent().0, scene.counts().lent), (0, 0));
    told.kill();
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        file.write_all_at(&[1; 8], 0).expect("written");
        scene.lent() == (1, 0)
    }));
}

/// Another user's process: prints whether it got the zone.
#[test]
#[ignore = "started by a test"]
fn stranger() {
    let socket = socket_to(std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where").as_ref());
    let (welcome, descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_stores(true));
    println!("stores: {}, descriptors: {}", welcome.stores.is_some(), descriptors.len());
}

/// [LNS1], by processes of other users, which root alone can start.
#[test]
fn the_zone_is_for_the_trusted_alone() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        println!("not root: no processes of other users");
        return;
    }
    fn gets(user: u32, group: u32) -> bool {
        let scene = scene();
        // Where others may run it.
        let program = std::env::temp_dir().join(format!("tandemfs-door-stores-child-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copied");
        let said = Command::new(&program)
            .args(["--ignored", "--exact", "bounds::stranger", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .current_dir("/")
            .uid(user)
            .gid(group)
            .output();
        std::fs::remove_file(&program).expect("removed");
        let said = String::from_utf8(said.expect("ran").stdout).expect("text");
        let line = said.lines().find(|line| line.contains("stores: ")).unwrap_or_else(|| panic!("{said}"));
        line.contains("stores: true")
    }
    assert!(gets(0, 0) && gets(65_534, GROUP), "root, and a member of the group");
    assert!(!gets(65_534, 65_534), "a stranger");
    mutant::select(Mutant::StoresForEverybody);
    let found = gets(65_534, 65_534);
    mutant::select(Mutant::None);
    assert!(found, "StoresForEverybody escaped");
}
