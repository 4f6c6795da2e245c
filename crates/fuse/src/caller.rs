//! Rights of the caller of a request, where the kernel leaves the check to the daemon. They are read from `/proc`, so only where needed:
//! when an access control list is set on a file with the set-group-id bit, when attributes are listed that only some users see, and when
//! only reserved space is left.

use std::fs;

use tandemfs_wire::Request;

/// `CAP_FSETID`: a change keeps set-id bits.
const CAP_FSETID: u32 = 4;
/// `CAP_SYS_ADMIN`: sees `trusted.` attributes.
const CAP_SYS_ADMIN: u32 = 21;
/// `CAP_SYS_RESOURCE`: may use reserved space.
const CAP_SYS_RESOURCE: u32 = 24;

/// The process that made a request.
pub(crate) struct Caller {
    uid: u32,
    gid: u32,
    pid: u32,
}

impl Caller {
    pub(crate) fn of(request: &Request<'_>) -> Self {
        Self { uid: request.uid, gid: request.gid, pid: request.pid }
    }

    /// Whether the caller sees attributes of the namespace `trusted.`.
    pub(crate) fn is_trusted(&self) -> bool {
        self.has(CAP_SYS_ADMIN)
    }

    /// Whether the caller may use the space reserved for root: uid 0 even without the capability, as with ext4's `resuid=0`, and holders of
    /// CAP_SYS_RESOURCE.
    pub(crate) fn may_use_reserve(&self) -> bool {
        self.uid == 0 || self.has(CAP_SYS_RESOURCE)
    }

    /// Whether the caller may leave the set-group-id bit on a file of this group.
    pub(crate) fn is_in_group(&self, group: u32) -> bool {
        self.gid == group || self.has(CAP_FSETID) || self.status().is_some_and(|status| groups(&status).any(|found| found == group))
    }

    /// If `/proc` has no answer, as for a caller in another PID namespace, root has every capability and others have none.
    fn has(&self, capability: u32) -> bool {
        match self.status().and_then(|status| effective(&status)) {
            Some(capabilities) => capabilities >> capability & 1 == 1,
            None => self.uid == 0,
        }
    }

    fn status(&self) -> Option<String> {
        fs::read_to_string(format!("/proc/{}/status", self.pid)).ok()
    }
}

fn field<'s>(status: &'s str, name: &str) -> Option<&'s str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn effective(status: &str) -> Option<u64> {
    u64::from_str_radix(field(status, "CapEff")?.trim(), 16).ok()
}

fn groups(status: &str) -> impl Iterator<Item = u32> {
    field(status, "Groups").unwrap_or("").split_whitespace().filter_map(|group| group.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &str = "Name:\tcat\nGroups:\t4 24 1000 \nCapInh:\t0000000000000000\nCapEff:\t0000000000200010\n";

    #[test]
    fn what_the_kernel_says_of_a_process_is_read() {
        assert_eq!(effective(STATUS), Some(1 << CAP_SYS_ADMIN | 1 << CAP_FSETID));
        assert_eq!(groups(STATUS).collect::<Vec<_>>(), [4, 24, 1000]);
        assert_eq!((effective("Name:\tx\n"), groups("Name:\tx\n").count()), (None, 0));
    }

    #[test]
    fn this_process_is_known_and_a_foreign_one_is_root_or_nobody() {
        let of = |uid, pid| Caller { uid, gid: 7, pid };
        let here = of(1, std::process::id());
        assert_eq!(here.is_trusted(), here.status().and_then(|status| effective(&status)).expect("a process") >> CAP_SYS_ADMIN & 1 == 1);
        assert!(of(0, 0).is_trusted());
        assert!(!of(1000, 0).is_trusted());
        assert!(of(1000, 0).is_in_group(7));
        assert!(!of(1000, 0).is_in_group(8));
    }
}
