//! Who is at the other end of a socket ([CRD1], [CRD2]).

use std::fs;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags, open, openat, readlinkat, statx};
use rustix::net::UCred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tandemfs_format::InodeNumber;
use tandemfs_vfs::{Capabilities, Credentials};

use crate::mutant::{Mutant, on};
use crate::server::Entrants;

/// No file of `/proc` that is read here is longer; a process may have 65,536 groups.
const FILE_BYTES_MAX: usize = 1 << 20;

/// The process at the other end, pinned: its directory in `/proc` never becomes that of another process.
#[derive(Debug)]
pub(crate) struct Peer {
    pidfd: OwnedFd,
    directory: OwnedFd,
    pub(crate) pid: i32,
    /// What it was called when it connected.
    pub(crate) command: String,
    /// Its user, group and supplementary groups when it connected, by the kernel's word about the socket ([CRD5]).
    connected: Credentials,
}

/// What a process may do, as `/proc` says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    /// With which it accesses files.
    pub(crate) credentials: Credentials,
    /// What access(2) asks about.
    pub(crate) real: Credentials,
    /// All four user and group ids.
    pub(crate) users: [u32; 4],
    groups: [u32; 4],
    user_namespace: Vec<u8>,
    mount_namespace: Vec<u8>,
    /// Its root directory, as a path from the root directory of the daemon.
    root: Vec<u8>,
    /// Its files have a largest size (RLIMIT_FSIZE), which `vfs` does not know ([CRD4]).
    has_size_limit: bool,
    /// Capabilities that every program keeps which the process starts.
    ambient: Capabilities,
}

impl Peer {
    /// Of a connected socket. The kernel hands out a descriptor of the process (Linux 6.5); before that its number, which is that process's
    /// while the socket is connected.
    pub(crate) fn of(socket: BorrowedFd<'_>) -> io::Result<Self> {
        let UCred { pid, uid, gid } = rustix::net::sockopt::socket_peercred(socket)?;
        let pidfd = match tandemfs_ring::process_of(socket) {
            Ok(pidfd) => pidfd,
            Err(_) => pidfd_open(pid, PidfdFlags::empty())?,
        };
        let groups = tandemfs_ring::groups_of(socket)?;
        Self::pinned(pid, pidfd, Credentials::new(uid.as_raw(), gid.as_raw(), &groups, Capabilities::NONE))
    }

    fn pinned(pid: Pid, pidfd: OwnedFd, connected: Credentials) -> io::Result<Self> {
        let pid = pid.as_raw_nonzero().get();
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open(format!("/proc/{pid}"), flags, Mode::empty())?;
        let mut peer = Self { pidfd, directory, pid, command: String::new(), connected };
        peer.command = peer.read("comm").unwrap_or_default().trim_end().to_owned();
        // It lived when its directory was opened, so the number was its own.
        if peer.is_alive() { Ok(peer) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    fn is_alive(&self) -> bool {
        let mut ends = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut ends, Some(&Timespec::default())), Ok(0))
    }

    /// Another descriptor of the process.
    pub(crate) fn lifeline(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// Whether it is who connected, as far as its rights go ([CRD5]): since then it may have started a program with other rights, while somebody
    /// else has the socket.
    pub(crate) fn is_who_connected(&self, now: &Identity) -> bool {
        let has_ids = now.credentials.without_capabilities() == self.connected;
        let has_only_inherited = now.credentials.uid == 0 || now.credentials.capabilities.0 & !now.ambient.0 == 0;
        has_ids && has_only_inherited || on(Mutant::ConnectedAsSomebodyElse)
    }

    /// What it may do now.
    pub(crate) fn identity(&self) -> io::Result<Identity> {
        let link = |path: &str| readlinkat(&self.directory, path, Vec::new()).map(|text| text.to_bytes().to_vec());
        let mut identity = of_status(&self.read("status")?).ok_or_else(|| io::Error::other("a status without ids"))?;
        identity.has_size_limit = has_size_limit(&self.read("limits")?);
        identity.user_namespace = link("ns/user")?;
        identity.mount_namespace = link("ns/mnt")?;
        identity.root = link("root")?; // not its inode: that may be in the mount, which the daemon must not ask
        Ok(identity)
    }

    /// The mount of a root directory that the process has open with this number. The kernel is asked for the place alone: it takes no lock of an open
    /// file, as `fdinfo` does, and asks no FUSE server.
    pub(crate) fn mount_of_root(&self, number: u32) -> Option<u64> {
        let flags = AtFlags::STATX_DONT_SYNC | AtFlags::NO_AUTOMOUNT;
        let wanted = StatxFlags::MNT_ID | StatxFlags::INO | StatxFlags::TYPE;
        let found = statx(&self.directory, format!("fd/{number}"), flags, wanted).ok()?;
        let has = |flag: StatxFlags| found.stx_mask & flag.bits() == flag.bits();
        (has(wanted) && found.stx_ino == InodeNumber::ROOT.get()).then_some(found.stx_mnt_id)
    }

    fn read(&self, name: &str) -> io::Result<String> {
        let file = openat(&self.directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = String::new();
        io::Read::read_to_string(&mut io::Read::take(fs::File::from(file), FILE_BYTES_MAX as u64), &mut text)?;
        Ok(text)
    }

    /// Its number, for the log.
    pub(crate) fn name(&self) -> String {
        let name = self.read("comm").unwrap_or_default();
        format!("{} ({})", self.pid, name.trim_end())
    }
}

/// This process, to compare with.
pub(crate) fn own() -> io::Result<Identity> {
    let pid = rustix::process::getpid();
    Peer::pinned(pid, pidfd_open(pid, PidfdFlags::empty())?, Credentials::new(0, 0, &[], Capabilities::NONE))?.identity()
}

/// What `/proc/PID/status` says; namespaces and root are left open.
fn of_status(status: &str) -> Option<Identity> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let numbers = |name| field(name)?.split_whitespace().map(|word| word.parse().ok()).collect::<Option<Vec<u32>>>();
    let four = |name| <[u32; 4]>::try_from(numbers(name)?).ok();
    let capabilities = |name| u64::from_str_radix(field(name)?, 16).ok().map(Capabilities);
    let (users, groups) = (four("Uid")?, four("Gid")?);
    let (supplementary, effective, permitted) = (numbers("Groups")?, capabilities("CapEff")?, capabilities("CapPrm")?);
    let ambient = capabilities("CapAmb")?;
    let [real_user, _, _, user] = users;
    let [real_group, _, _, group] = groups;
    let of_real = if real_user == 0 { permitted } else { Capabilities::NONE };
    Some(Identity {
        credentials: Credentials::new(user, group, &supplementary, effective),
        real: Credentials::new(real_user, real_group, &supplementary, of_real),
        users,
        groups,
        user_namespace: Vec::new(),
        mount_namespace: Vec::new(),
        root: Vec::new(),
        has_size_limit: false,
        ambient,
    })
}

/// What `/proc/PID/limits` says; a text without that line is taken for a limit.
fn has_size_limit(limits: &str) -> bool {
    let soft = limits.lines().find_map(|line| line.strip_prefix("Max file size")?.split_whitespace().next());
    soft != Some("unlimited")
}

impl Identity {
    /// Whether the memory zone may be lent to a process ([LND1]): all its user ids are root or who mounted, or it is in the group. A set-id
    /// program of others is neither.
    pub(crate) fn is_trusted(&self, owner: u32, group: u32) -> bool {
        let is_owner = self.users.iter().all(|id| *id == 0 || *id == owner);
        let is_member = self.groups.iter().all(|id| *id == group) || self.credentials.has_supplementary(group);
        is_owner || is_member || on(Mutant::ZoneForEverybody)
    }

    /// Why a process may not enter ([CRD2]); the sentence is for its user.
    pub(crate) fn refusal(&self, daemon: &Self, entrants: Entrants) -> Option<&'static str> {
        if self.user_namespace != daemon.user_namespace {
            return Some("this process is in another user namespace than the daemon of the mount; the mount serves it");
        }
        if self.mount_namespace != daemon.mount_namespace || self.root != b"/" {
            return Some("this process does not see the same mounts as the daemon of the mount; the mount serves it");
        }
        if self.has_size_limit && !on(Mutant::SizeLimitIgnored) {
            return Some(
                "this process has a limit for the size of its files (RLIMIT_FSIZE), which only the kernel keeps; the mount serves it",
            );
        }
        let Entrants::Only { user, group, and_root } = entrants else { return None };
        let of_user = self.users[..3].iter().all(|id| *id == user) && self.groups[..3].iter().all(|id| *id == group);
        let of_root = and_root && self.users[..3].iter().all(|id| *id == 0);
        (!of_user && !of_root).then_some("this mount is for the user who made it alone; it needs the option allow_other")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nUmask:\t0022\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t24 4 \nCapPrm:\t0000000000000003\nCapEff:\t0000000000000002\nCapAmb:\t0000000000000000\n";

    #[test]
    fn files_are_accessed_by_the_last_ids_and_asked_about_by_the_first() {
        let identity = of_status(STATUS).expect("a status");
        assert_eq!(identity.credentials, Credentials::new(4, 8, &[4, 24], Capabilities(2)));
        assert_eq!(identity.real, Credentials::new(1, 5, &[4, 24], Capabilities::NONE));
        let of_root = of_status(&STATUS.replace("Uid:\t1", "Uid:\t0")).expect("a status");
        assert_eq!(of_root.real.capabilities, Capabilities(3), "what a real root may ask for");
        for field in ["Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapAmb"] {
            assert_eq!(of_status(&STATUS.replace(field, "X")), None, "without {field}");
        }
    }

    /// [CRD5]
    #[test]
    fn rights_that_came_after_the_connection_are_not_those_of_who_connected() {
        let pid = rustix::process::getpid();
        let pidfd = || pidfd_open(pid, PidfdFlags::empty()).expect("this process");
        let peer = |uid, gid, groups: &[u32]| {
            Peer::pinned(pid, pidfd(), Credentials::new(uid, gid, groups, Capabilities::NONE)).expect("this process")
        };
        let now = |users: &str, effective: &str, ambient: &str| {
            let status = STATUS.replace("Uid:\t1\t2\t3\t4", users).replace("CapEff:\t0000000000000002", effective);
            of_status(&status.replace("CapAmb:\t0000000000000000", ambient)).expect("a status")
        };
        let (none, some) = ("CapEff:\t0000000000000000", "CapEff:\t0000000000000002");
        let (no_ambient, ambient) = ("CapAmb:\t0000000000000000", "CapAmb:\t0000000000000003");
        let plain = now("Uid:\t1\t2\t3\t4", none, no_ambient);
        assert!(peer(4, 8, &[24, 4]).is_who_connected(&plain));
        for other in [peer(5, 8, &[24, 4]), peer(4, 9, &[24, 4]), peer(4, 8, &[24]), peer(4, 8, &[24, 4, 5])] {
            assert!(!other.is_who_connected(&plain), "{other:?}");
        }
        assert!(
            !peer(4, 8, &[24, 4]).is_who_connected(&now("Uid:\t1\t2\t3\t4", some, no_ambient)),
            "the file of a program may have given it"
        );
        assert!(peer(4, 8, &[24, 4]).is_who_connected(&now("Uid:\t1\t2\t3\t4", some, ambient)), "it has it in every program");
        assert!(peer(0, 8, &[24, 4]).is_who_connected(&now("Uid:\t0\t0\t0\t0", some, no_ambient)), "root");
    }

    /// [LND1]
    #[test]
    fn trusted_are_root_the_owner_and_members_of_the_group() {
        let of = |users: &str, groups: &str, supplementary: &str| {
            let status = STATUS.replace("1\t2\t3\t4", users).replace("5\t6\t7\t8", groups).replace("24 4", supplementary);
            of_status(&status).expect("a status").is_trusted(1000, 50)
        };
        for (users, groups, supplementary) in [
            ("0\t0\t0\t0", "0\t0\t0\t0", "0"),
            ("1000\t1000\t1000\t1000", "9\t9\t9\t9", ""),
            ("1000\t0\t0\t0", "9\t9\t9\t9", ""),
            ("7\t7\t7\t7", "50\t50\t50\t50", ""),
            ("7\t7\t7\t7", "9\t9\t9\t9", "4 50"),
        ] {
            assert!(of(users, groups, supplementary), "{users} {groups} {supplementary}");
        }
        for (users, groups, supplementary) in [
            ("7\t7\t7\t7", "9\t9\t9\t9", "4 51"),
            ("7\t0\t0\t0", "9\t9\t9\t9", ""),          // a set-user-id program of root's
            ("7\t1000\t1000\t1000", "9\t9\t9\t9", ""), // of the owner's
            ("7\t7\t7\t7", "9\t50\t50\t50", ""),       // a set-group-id program
            ("0\t7\t0\t7", "9\t9\t9\t9", ""),          // root for somebody else
        ] {
            assert!(!of(users, groups, supplementary), "{users} {groups} {supplementary}");
        }
    }

    #[test]
    fn a_soft_limit_counts() {
        let text = |soft: &str| {
            format!(
                "Limit   Soft Limit   Hard Limit   Units\nMax cpu time  unlimited unlimited seconds\nMax file size             {soft}            unlimited            bytes\n"
            )
        };
        assert!(!has_size_limit(&text("unlimited")) && has_size_limit(&text("1048576")) && has_size_limit(""));
    }

    #[test]
    fn this_process_is_known_and_lets_itself_in() {
        let own = own().expect("this process");
        assert_eq!(own.credentials.uid, rustix::process::geteuid().as_raw());
        assert_eq!(own.refusal(&own, Entrants::Everybody), None);
        let only = |user: u32| Entrants::Only { user, group: own.groups[0], and_root: false };
        assert_eq!(own.refusal(&own, only(own.users[0])), None);
        assert!(own.refusal(&own, only(own.users[0] + 1)).is_some());
        for other in [
            Identity { user_namespace: b"user:[1]".to_vec(), ..own.clone() },
            Identity { mount_namespace: b"mnt:[1]".to_vec(), ..own.clone() },
            Identity { root: b"/mnt".to_vec(), ..own.clone() },
            Identity { has_size_limit: true, ..own.clone() },
        ] {
            assert!(other.refusal(&own, Entrants::Everybody).is_some(), "{other:?}");
        }
    }
}
