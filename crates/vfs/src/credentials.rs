//! Who asks: ids, groups and capabilities of a process, and what else of it an operation depends on.

use std::collections::HashSet;

use tandemfs_format::InodeNumber;

/// A capability that counts for files. The numbers are those of Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Capability {
    /// Changes owners and groups.
    Chown = 0,
    /// Passes permissions, except execution of what nobody can execute.
    DacOverride = 1,
    /// Reads everything and searches every directory.
    DacReadSearch = 2,
    /// Counts as the owner of every file.
    Fowner = 3,
    /// Keeps set-id bits.
    Fsetid = 4,
    /// Reads and writes attributes in `trusted.`, writes those in `security.`.
    SysAdmin = 21,
    /// Uses reserved space.
    SysResource = 24,
    /// Makes device files.
    Mknod = 27,
    /// Gives programs capabilities.
    Setfcap = 31,
}

/// A set of capabilities, as in `CapEff` of `/proc/PID/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(pub u64);

impl Capabilities {
    /// None.
    pub const NONE: Self = Self(0);
    /// All.
    pub const ALL: Self = Self(u64::MAX);

    /// Whether one is in the set.
    pub fn has(self, capability: Capability) -> bool {
        self.0 >> capability as u8 & 1 == 1
    }

    /// Without one.
    #[must_use]
    pub fn without(self, capability: Capability) -> Self {
        Self(self.0 & !(1 << capability as u8))
    }
}

/// With which a process accesses files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User (`fsuid`).
    pub uid: u32,
    /// Group (`fsgid`).
    pub gid: u32,
    /// Supplementary groups, sorted.
    groups: Box<[u32]>,
    /// Effective capabilities in the user namespace of the mount; none in any other namespace.
    pub capabilities: Capabilities,
}

impl Credentials {
    /// Of a user with supplementary groups and capabilities.
    pub fn new(uid: u32, gid: u32, groups: &[u32], capabilities: Capabilities) -> Self {
        let mut groups: Box<[u32]> = groups.into();
        groups.sort_unstable();
        Self { uid, gid, groups, capabilities }
    }

    /// The same ids, without capabilities.
    #[must_use]
    pub fn without_capabilities(&self) -> Self {
        Self { capabilities: Capabilities::NONE, ..self.clone() }
    }

    /// Whether a group is the user's own or a supplementary one.
    pub fn is_in_group(&self, group: u32) -> bool {
        self.gid == group || self.groups.binary_search(&group).is_ok()
    }

    /// Whether a group is a supplementary one, which no set-group-id program gives.
    pub fn has_supplementary(&self, group: u32) -> bool {
        self.groups.binary_search(&group).is_ok()
    }

    /// Whether the user has a capability.
    pub fn has(&self, capability: Capability) -> bool {
        self.capabilities.has(capability)
    }

    /// Whether the user owns a file of this owner, or counts as its owner.
    pub fn owns(&self, uid: u32) -> bool {
        self.uid == uid || self.has(Capability::Fowner)
    }

    /// Whether the user may leave the set-group-id bit on a file of this group.
    pub fn may_keep_set_group_id(&self, group: u32) -> bool {
        self.is_in_group(group) || self.has(Capability::Fsetid)
    }

    /// Whether the user may use the space reserved for root.
    pub fn may_use_reserve(&self) -> bool {
        self.uid == 0 || self.has(Capability::SysResource)
    }
}

/// A process, as far as operations depend on it.
#[derive(Debug, Clone)]
pub struct Process {
    /// Credentials of its accesses.
    pub credentials: Credentials,
    /// What `access` without AT_EACCESS asks about: the real ids, with the permitted capabilities if the real user is root, else none.
    pub real: Credentials,
    /// Permissions that new files do not get.
    pub umask: u16,
    /// Directories and files on which the process sees something else mounted.
    pub mount_points: HashSet<InodeNumber>,
    /// Calls on what somebody watches by the kernel are handed back ([KV8] of `lib.rs`).
    pub leaves_watched: bool,
}

impl Process {
    /// Whether its real ids and their capabilities are those of its accesses: what it may do by one it may by the other.
    pub fn acts_by_real_ids(&self) -> bool {
        self.credentials == self.real
    }

    /// A process whose real ids are the effective ones, with umask 022 and no mounts.
    pub fn of(credentials: Credentials) -> Self {
        let capabilities = if credentials.uid == 0 { credentials.capabilities } else { Capabilities::NONE };
        let real = Credentials { capabilities, ..credentials.clone() };
        Self { credentials, real, umask: 0o022, mount_points: HashSet::new(), leaves_watched: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_need_no_order_and_the_own_group_is_one() {
        let user = Credentials::new(1000, 7, &[30, 10, 20], Capabilities::NONE);
        for (group, is_in) in [(7, true), (10, true), (20, true), (30, true), (15, false), (0, false), (u32::MAX, false)] {
            assert_eq!(user.is_in_group(group), is_in, "{group}");
        }
    }

    #[test]
    fn capabilities_have_the_numbers_of_the_kernel() {
        let set = Capabilities(1 << 4 | 1 << 31);
        assert!(set.has(Capability::Fsetid) && set.has(Capability::Setfcap) && !set.has(Capability::Chown));
        assert!(!set.without(Capability::Fsetid).has(Capability::Fsetid));
        assert!(Capabilities::ALL.has(Capability::SysResource) && !Capabilities::NONE.has(Capability::DacOverride));
    }

    #[test]
    fn access_asks_with_capabilities_only_where_the_real_user_is_root() {
        let root = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
        assert!(root.real.has(Capability::DacOverride) && root.acts_by_real_ids());
        let user = Process::of(Credentials::new(5, 0, &[], Capabilities::ALL));
        assert!(!user.real.has(Capability::DacOverride) && user.credentials.has(Capability::DacOverride) && !user.acts_by_real_ids());
    }
}
