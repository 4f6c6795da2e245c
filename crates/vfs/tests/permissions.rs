//! Who may do what: modes, lists, sticky directories, set-id bits, capabilities, attributes.

mod support;

use rustix::io::Errno;
use support::{ROOT, directory, empty, file, mode, refused, root, user};
use tandemfs_vfs::{Capabilities, Capability, Credentials, Process, Protected, SetTimes, Settings, Subject, TimeToSet, Vfs};

const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NOBODY: u32 = u32::MAX;

fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

fn at(path: &[u8]) -> Subject<'_> {
    Subject::followed(ROOT, path)
}

fn may(vfs: &Vfs, process: &Process, path: &[u8], want: u32) -> bool {
    vfs.access(process, at(path), want, true).is_ok()
}

fn with_capability(id: u32, capability: Capability) -> Process {
    Process::of(Credentials::new(id, id, &[], Capabilities(1 << capability as u8)))
}

#[test]
fn one_class_of_the_mode_counts() {
    let vfs = empty();
    let (owner, member, other) = (user(1001, &[]), user(1002, &[1001]), user(1003, &[]));
    drop(file(&vfs, &owner, b"f", 0o047));
    let rights = |process: &Process| [4, 2, 1].map(|want| may(&vfs, process, b"f", want));
    assert_eq!(rights(&owner), [false; 3], "the owner is not one of the others");
    assert_eq!(rights(&member), [true, false, false]);
    assert_eq!(rights(&other), [true; 3]);
    assert_eq!(rights(&root()), [true; 3]);
    vfs.change_mode(&owner, at(b"f"), 0o644).expect("changed");
    assert_eq!(rights(&root()), [true, true, false], "nobody executes it, so neither does root");
    assert_eq!(rights(&with_capability(7, Capability::DacReadSearch)), [true, false, false]);
}

#[test]
fn a_list_names_users_and_groups_within_its_mask() {
    let vfs = empty();
    let (owner, named, member, other) = (user(1001, &[]), user(1002, &[]), user(1003, &[50]), user(1004, &[]));
    drop(file(&vfs, &owner, b"f", 0o600));
    let value = list(&[(1, 6, NOBODY), (2, 7, 1002), (4, 0, NOBODY), (8, 6, 50), (16, 6, NOBODY), (32, 1, NOBODY)]);
    refused(vfs.set_extended_attribute(&named, at(b"f"), ACCESS, &value, 0), Errno::PERM);
    vfs.set_extended_attribute(&owner, at(b"f"), ACCESS, &value, 0).expect("set");
    assert_eq!(mode(&vfs, b"f"), 0o661);
    let rights = |process: &Process| [4, 2, 1].map(|want| may(&vfs, process, b"f", want));
    assert_eq!(rights(&named), [true, true, false], "execute is not in the mask");
    assert_eq!(rights(&member), [true, true, false]);
    assert_eq!(rights(&other), [false, false, true]);
    vfs.change_mode(&owner, at(b"f"), 0o640).expect("changed");
    assert_eq!(rights(&named), [true, false, false], "chmod sets the mask");
    assert_eq!(vfs.extended_attribute(&other, at(b"f"), ACCESS).expect("everybody reads it").len(), value.len());
    vfs.change_mode(&owner, at(b"f"), 0o607).expect("changed");
    assert_eq!(rights(&named), [true; 3], "Linux, unlike POSIX, does not look at the list if the mask is empty");
}

#[test]
fn a_default_list_takes_the_place_of_the_umask() {
    let vfs = empty();
    let owner = user(1001, &[]);
    directory(&vfs, &owner, b"d", 0o755);
    let strict = Process { umask: 0o077, ..owner.clone() };
    let create = |path: &[u8]| drop(vfs.open(&strict, ROOT, path, libc::O_CREAT | libc::O_WRONLY, 0o666).expect("made"));
    create(b"d/before");
    assert_eq!(mode(&vfs, b"d/before"), 0o600);
    let value = list(&[(1, 7, NOBODY), (2, 7, 1002), (4, 5, NOBODY), (16, 7, NOBODY), (32, 0, NOBODY)]);
    vfs.set_extended_attribute(&owner, at(b"d"), DEFAULT, &value, 0).expect("set");
    create(b"d/after");
    assert_eq!(mode(&vfs, b"d/after"), 0o660);
    assert!(may(&vfs, &user(1002, &[]), b"d/after", 6) && !may(&vfs, &user(1003, &[]), b"d/after", 4));
    refused(vfs.set_extended_attribute(&owner, at(b"d/after"), DEFAULT, &value, 0), Errno::ACCESS);
    let without = support::with(Settings { extended_attributes: false, ..Settings::default() });
    drop(without.open(&strict, ROOT, b"f", libc::O_CREAT | libc::O_WRONLY, 0o666).expect("made"));
    assert_eq!(mode(&without, b"f"), 0o600, "the umask also where the mount has no attributes");
    refused(without.extended_attribute(&owner, at(b"f"), ACCESS), Errno::OPNOTSUPP);
}

#[test]
fn names_in_a_sticky_directory_are_removed_by_their_owners() {
    let vfs = empty();
    let (alice, bob, carol) = (user(1001, &[]), user(1002, &[]), user(1003, &[]));
    directory(&vfs, &carol, b"tmp", 0o1777);
    let make = || drop(file(&vfs, &alice, b"tmp/f", 0o666));
    make();
    refused(vfs.unlink(&bob, ROOT, b"tmp/f"), Errno::PERM);
    refused(vfs.rename(&bob, (ROOT, b"tmp/f"), (ROOT, b"f"), 0), Errno::PERM);
    drop(file(&vfs, &bob, b"tmp/g", 0o666));
    refused(vfs.rename(&bob, (ROOT, b"tmp/g"), (ROOT, b"tmp/f"), 0), Errno::PERM);
    for remover in [&alice, &carol, &with_capability(7, Capability::Fowner)] {
        vfs.unlink(remover, ROOT, b"tmp/f").expect("removed");
        make();
    }
}

#[test]
fn a_change_of_data_or_owner_takes_privileges() {
    let vfs = empty();
    let (owner, other) = (user(1001, &[]), user(1002, &[]));
    let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let prepare = |mode: u32| {
        let opened = file(&vfs, &owner, b"f", 0o644);
        vfs.change_mode(&root(), at(b"f"), mode).expect("changed");
        vfs.set_extended_attribute(&root(), at(b"f"), b"security.capability", &capability, 0).expect("set");
        opened
    };
    let has_capability = || vfs.extended_attribute(&root(), at(b"f"), b"security.capability").is_ok();
    for write in [
        (|vfs, who, file| vfs.write(who, file, b"x").map(drop)) as fn(&Vfs, &Process, &tandemfs_vfs::OpenFile) -> tandemfs_vfs::Result<()>,
        |vfs, who, _| vfs.truncate(who, Subject::followed(ROOT, b"f"), 7),
        |vfs, who, file| vfs.allocate(who, file, 0, 0, 10),
        |vfs, who, _| vfs.open(who, ROOT, b"f", libc::O_WRONLY | libc::O_TRUNC, 0).map(drop),
    ] {
        let opened = prepare(0o6777);
        write(&vfs, &other, &opened).expect("written");
        assert_eq!((mode(&vfs, b"f"), has_capability()), (0o777, false));
        let opened = prepare(0o2767);
        write(&vfs, &other, &opened).expect("written");
        assert_eq!(mode(&vfs, b"f"), 0o767, "not in the group");
        let opened = prepare(0o2767);
        write(&vfs, &owner, &opened).expect("written");
        assert_eq!(mode(&vfs, b"f"), 0o2767, "in the group");
        let opened = prepare(0o6777);
        write(&vfs, &root(), &opened).expect("written");
        assert_eq!((mode(&vfs, b"f"), has_capability()), (0o6777, false), "the capabilities go whoever writes");
    }
    drop(prepare(0o6777));
    vfs.change_owner(&root(), at(b"f"), Some(1001), None).expect("changed");
    assert_eq!((mode(&vfs, b"f"), has_capability()), (0o777, false), "also by root");
}

#[test]
fn owners_give_files_to_their_groups_alone() {
    let vfs = empty();
    let (owner, other) = (user(1001, &[50]), user(1002, &[50]));
    drop(file(&vfs, &owner, b"f", 0o666));
    refused(vfs.change_owner(&owner, at(b"f"), Some(1002), None), Errno::PERM);
    refused(vfs.change_owner(&owner, at(b"f"), None, Some(51)), Errno::PERM);
    refused(vfs.change_owner(&other, at(b"f"), None, Some(50)), Errno::PERM);
    vfs.change_owner(&owner, at(b"f"), Some(1001), Some(50)).expect("her own");
    refused(vfs.change_mode(&other, at(b"f"), 0o600), Errno::PERM);
    vfs.change_owner(&root(), at(b"f"), None, Some(77)).expect("changed");
    vfs.change_mode(&owner, at(b"f"), 0o2755).expect("changed");
    assert_eq!(mode(&vfs, b"f"), 0o755, "she is not in the group");
    vfs.change_mode(&with_capability(1001, Capability::Fsetid), at(b"f"), 0o2755).expect("changed");
    assert_eq!(mode(&vfs, b"f"), 0o2755);
}

#[test]
fn writers_set_the_present_time_and_owners_any() {
    let vfs = empty();
    let (owner, writer, reader) = (user(1001, &[]), user(1002, &[1001]), user(1003, &[]));
    drop(file(&vfs, &owner, b"f", 0o664));
    let one = SetTimes { atime: TimeToSet::Omit, mtime: TimeToSet::Now };
    vfs.set_times(&writer, at(b"f"), SetTimes::NOW).expect("set");
    refused(vfs.set_times(&writer, at(b"f"), one), Errno::PERM);
    refused(vfs.set_times(&reader, at(b"f"), SetTimes::NOW), Errno::ACCESS);
    let given = SetTimes { atime: TimeToSet::At(5, 6), mtime: TimeToSet::At(7, 8) };
    vfs.set_times(&owner, at(b"f"), given).expect("set");
    let times = vfs.stat(&root(), at(b"f")).expect("there");
    assert_eq!((times.atime.seconds, times.atime.nanoseconds, times.mtime.seconds, times.mtime.nanoseconds), (5, 6, 7, 8));
    refused(vfs.set_times(&owner, at(b"f"), SetTimes { mtime: TimeToSet::At(0, 1_000_000_000), ..given }), Errno::INVAL);
    let nothing = SetTimes { atime: TimeToSet::Omit, mtime: TimeToSet::Omit };
    vfs.set_times(&reader, at(b"not there"), nothing).expect("the path is not looked at");
}

#[test]
fn links_to_files_of_others_follow_the_rule_of_the_machine() {
    let protected = Some(Protected { hardlinks: 1, ..Protected::default() });
    let vfs = support::with(Settings { protected, ..Settings::default() });
    let (owner, other) = (user(1001, &[]), user(1002, &[]));
    drop(file(&vfs, &owner, b"read_only", 0o644));
    drop(file(&vfs, &owner, b"shared", 0o666));
    drop(file(&vfs, &owner, b"set_id", 0o666));
    vfs.change_mode(&owner, at(b"set_id"), 0o4666).expect("changed");
    let link = |process: &Process, from: &[u8], to: &[u8]| vfs.link(process, (ROOT, from), (ROOT, to), 0);
    refused(link(&other, b"read_only", b"l1"), Errno::PERM);
    refused(link(&other, b"set_id", b"l1"), Errno::PERM);
    link(&other, b"shared", b"l1").expect("made");
    link(&owner, b"set_id", b"l2").expect("made");
}

#[test]
fn each_namespace_of_attributes_has_its_users() {
    let vfs = empty();
    let (owner, other) = (user(1001, &[]), user(1002, &[]));
    drop(file(&vfs, &owner, b"f", 0o640));
    let set = |process: &Process, name: &[u8]| vfs.set_extended_attribute(process, at(b"f"), name, b"value", 0);
    let get = |process: &Process, name: &[u8]| vfs.extended_attribute(process, at(b"f"), name);
    set(&owner, b"user.a").expect("set");
    refused(set(&other, b"user.a"), Errno::ACCESS);
    refused(get(&other, b"user.a"), Errno::ACCESS);
    refused(set(&owner, b"trusted.a"), Errno::PERM);
    set(&root(), b"trusted.a").expect("set");
    refused(get(&owner, b"trusted.a"), Errno::NODATA);
    refused(set(&owner, b"security.a"), Errno::PERM);
    set(&root(), b"security.a").expect("set");
    assert_eq!(get(&other, b"security.a").expect("read by all"), b"value");
    refused(set(&owner, b"security.capability"), Errno::INVAL);
    refused(set(&owner, b"other.a"), Errno::OPNOTSUPP);
    refused(set(&owner, b""), Errno::RANGE);
    let names = |process: &Process| vfs.list_extended_attributes(process, at(b"f")).expect("listed");
    assert!(!names(&owner).windows(9).any(|name| name == b"trusted.a") && names(&root()).windows(9).any(|name| name == b"trusted.a"));
    refused(vfs.set_extended_attribute(&owner, at(b"f"), b"user.a", b"", libc::XATTR_CREATE), Errno::EXIST);
    refused(vfs.set_extended_attribute(&owner, at(b"f"), b"user.b", b"", libc::XATTR_REPLACE), Errno::NODATA);
    support::link(&vfs, b"f", b"l");
    let of_link = Subject::unfollowed(ROOT, b"l");
    refused(vfs.set_extended_attribute(&root(), of_link, b"user.a", b"", 0), Errno::PERM);
    refused(vfs.extended_attribute(&root(), of_link, b"user.a"), Errno::NODATA);
    refused(vfs.extended_attribute(&root(), of_link, ACCESS), Errno::OPNOTSUPP);
    refused(vfs.remove_extended_attribute(&other, of_link, ACCESS), Errno::OPNOTSUPP);
}

#[test]
fn the_owner_alone_gives_a_file_a_place_in_the_memory_zone() {
    let vfs = empty();
    vfs.file_system().enable_homes().expect("has homes");
    let (owner, other) = (user(1001, &[]), user(1002, &[]));
    drop(file(&vfs, &owner, b"f", 0o666));
    let set = |process: &Process, home: &[u8]| vfs.set_extended_attribute(process, at(b"f"), b"user.tandemfs.home", home, 0);
    refused(set(&other, b"memory"), Errno::PERM);
    set(&owner, b"memory").expect("hers");
    set(&other, b"block").expect("who may write gives it another home");
    set(&with_capability(1002, Capability::Fowner), b"memory").expect("counts as the owner");
    set(&owner, b"block").expect("hers");
    vfs.change_mode(&owner, at(b"f"), 0o644).expect("changed");
    refused(set(&other, b"block"), Errno::ACCESS);
    set(&root(), b"memory").expect("counts as the owner");
}
