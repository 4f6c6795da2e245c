//! Rights of the caller of a request, where the kernel leaves the check to the daemon. They are read from `/proc`, so only where needed:
//! when a file with the set-group-id bit and without group execute permission is changed, when attributes are listed that only some users
//! see, when the home of a file becomes the memory zone, and when only reserved space is left.

use std::cell::OnceCell;
use std::fs;

use tandemfs_wire::Request;

/// `CAP_FOWNER`: counts as the owner of any file.
const CAP_FOWNER: u32 = 3;
/// `CAP_FSETID`: a change keeps set-id bits.
const CAP_FSETID: u32 = 4;
/// `CAP_SYS_ADMIN`: sees `trusted.` attributes.
const CAP_SYS_ADMIN: u32 = 21;
/// `CAP_SYS_RESOURCE`: may use reserved space.
const CAP_SYS_RESOURCE: u32 = 24;

/// The process that made a request.
pub(crate) struct Caller {
    /// User and group id; `None` if the kernel does not send them ([DO6] of `door.rs`).
    ids: Option<(u32, u32)>,
    pid: u32,
    /// `/proc/PID/status`, read when it is needed; `None` if there is none.
    status: OnceCell<Option<String>>,
}

impl Caller {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        Self { ids: request.caller(), pid: request.pid, status: OnceCell::new() }
    }

    /// The caller as one number, for [`Caller::numbered`]; `None` for root.
    pub(crate) fn number(&self) -> Option<u64> {
        match self.ids {
            Some((0, _)) => None,
            Some((uid, _)) => Some(u64::from(uid) << 32 | u64::from(self.pid)),
            None => Some(u64::from(u32::MAX) << 32 | u64::from(self.pid)), // no user has this id
        }
    }

    /// The caller of a number, without its group.
    pub(crate) fn numbered(number: u64) -> Self {
        let (uid, pid) = ((number >> 32) as u32, number as u32);
        Self { ids: (uid != u32::MAX).then_some((uid, u32::MAX)), pid, status: OnceCell::new() }
    }

    /// Whether the caller sees attributes of the namespace `trusted.`.
    pub(crate) fn is_trusted(&self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    /// Whether the caller owns a file of this user, or counts as its owner. How the mount in use maps ids is unknown here.
    pub(crate) fn is_owner(&self, user: u32) -> bool {
        self.ids().is_some_and(|(uid, _)| uid == user) || self.has(CAP_FOWNER)
    }

    /// Whether the caller may use the space reserved for root: uid 0 even without the capability, as with ext4's `resuid=0`, and holders of
    /// CAP_SYS_RESOURCE. It is the caller's own id that counts, however the mount maps it, as with ext4.
    pub(crate) fn may_use_reserve(&self) -> bool {
        self.ids().is_some_and(|(uid, _)| uid == 0) || self.has(CAP_SYS_RESOURCE)
    }

    /// Whether the caller may leave the set-group-id bit on a file of this group. How the mount in use maps ids is unknown here.
    pub(crate) fn is_in_group(&self, group: u32) -> bool {
        let is_own = self.ids().is_some_and(|(_, gid)| gid == group);
        is_own || self.has(CAP_FSETID) || self.status().is_some_and(|status| groups(status).any(|found| found == group))
    }

    /// The ids with which the caller accesses files; `None` if unknown.
    fn ids(&self) -> Option<(u32, u32)> {
        self.ids.or_else(|| self.status().and_then(of_file_accesses))
    }

    /// If `/proc` has no answer, as for a caller in another PID namespace, root has every capability and others have none, nor has a caller
    /// whose ids are unknown. Capabilities in a user namespace of the caller's own are no rights here.
    fn has(&self, capability: u32) -> bool {
        match self.status().and_then(effective) {
            Some(capabilities) => capabilities >> capability & 1 == 1 && self.is_in_our_user_namespace(),
            None => self.ids.is_some_and(|(uid, _)| uid == 0),
        }
    }

    fn status(&self) -> Option<&str> {
        let read = || fs::read_to_string(format!("/proc/{}/status", self.pid)).ok();
        self.status.get_or_init(read).as_deref()
    }

    /// The namespace of another user's process is hidden from an ordinary user's daemon; its map is not. Only root can make a second
    /// namespace with the map of the first one.
    fn is_in_our_user_namespace(&self) -> bool {
        let theirs = |file| format!("/proc/{}/{file}", self.pid);
        match fs::read_link(theirs("ns/user")) {
            Ok(namespace) => fs::read_link("/proc/self/ns/user").is_ok_and(|ours| ours == namespace),
            Err(_) => fs::read(theirs("uid_map")).is_ok_and(|map| fs::read("/proc/self/uid_map").is_ok_and(|ours| ours == map)),
        }
    }
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn effective(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff")?.trim(), 16).ok()
}

/// The last of the four ids of each kind: real, effective, saved, and that of file accesses.
fn of_file_accesses(status: &str) -> Option<(u32, u32)> {
    let last = |name| field(status, name)?.split_whitespace().nth(3)?.parse().ok();
    Some((last("Uid")?, last("Gid")?))
}

fn groups(status: &str) -> impl Iterator<Item = u32> {
    field(status, "Groups").unwrap_or("").split_whitespace().filter_map(|group| group.parse().ok())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    use super::*;

    const STATUS: &str =
        "Name:\tcat\nUid:\t1\t2\t3\t4\nGid:\t5\t6\t7\t8\nGroups:\t4 24 1000 \nCapInh:\t0000000000000000\nCapEff:\t0000000000200010\n";

    fn of(ids: Option<(u32, u32)>, pid: u32) -> Caller {
        Caller { ids, pid, status: OnceCell::new() }
    }

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        assert_eq!(effective(STATUS), Some(1 << CAP_SYS_ADMIN | 1 << CAP_FSETID));
        assert_eq!(groups(STATUS).collect::<Vec<_>>(), [4, 24, 1000]);
        assert_eq!(of_file_accesses(STATUS), Some((4, 8)));
        let nothing = "Name:\tx\nUid:\t0\t0\n";
        assert_eq!((effective(nothing), groups(nothing).count(), of_file_accesses(nothing)), (None, 0, None));
    }

    #[test]
    fn this_process_is_known_and_a_foreign_one_is_root_or_nobody() {
        let here = of(Some((1, 7)), std::process::id());
        assert_eq!(here.is_trusted(), here.status().and_then(effective).expect("a process") >> CAP_SYS_ADMIN & 1 == 1);
        assert!(of(Some((0, 7)), 0).is_trusted());
        assert!(!of(Some((1000, 7)), 0).is_trusted());
        assert!(of(Some((1000, 7)), 0).is_in_group(7));
        assert!(!of(Some((1000, 7)), 0).is_in_group(8));
        assert!(of(Some((1000, 7)), 0).is_owner(1000) && !of(Some((1000, 7)), 0).is_owner(7) && of(Some((0, 7)), 0).is_owner(1000));
    }

    #[test]
    fn without_ids_the_process_says_who_it_is_and_without_both_nobody_has_rights() {
        let here = of(None, std::process::id());
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        assert_eq!(here.ids(), Some((uid, gid)));
        assert_eq!(here.may_use_reserve(), uid == 0 || here.has(CAP_SYS_RESOURCE));
        assert!(here.is_in_group(gid));
        let numbered = Caller::numbered(here.number().expect("its ids are unknown"));
        assert_eq!((numbered.ids, numbered.pid, numbered.may_use_reserve()), (None, here.pid, here.may_use_reserve()));
        assert_eq!(Caller::numbered(of(Some((7, 8)), 9).number().expect("not root")).ids(), Some((7, u32::MAX)));
        assert_eq!(of(Some((0, 8)), 9).number(), None);
        let unknown = of(None, 0);
        assert!(!unknown.may_use_reserve() && !unknown.is_trusted() && !unknown.is_in_group(0) && !unknown.is_in_group(u32::MAX));
    }

    /// Whoever makes a user namespace has all capabilities there.
    #[test]
    fn capabilities_of_another_user_namespace_are_no_rights() {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let Ok(mut child) = command.spawn() else { return println!("skipped: no unshare(1)") };
        let (mut input, mut output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        // An answer means that `cat` runs in its namespace.
        let is_there = input.write_all(b"x").is_ok() && output.read_exact(&mut [0]).is_ok();
        let caller = of(None, child.id());
        let found = (caller.status().and_then(effective), caller.is_trusted(), caller.has(CAP_SYS_RESOURCE), caller.has(CAP_FSETID));
        drop(input);
        child.wait().expect("ended");
        if !is_there {
            return println!("skipped: no user namespaces here");
        }
        assert!(found.0.is_some_and(|capabilities| capabilities >> CAP_SYS_ADMIN & 1 == 1), "it has them: {found:?}");
        assert_eq!((found.1, found.2, found.3), (false, false, false), "{found:?}");
    }
}
