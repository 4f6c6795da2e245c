//! Users of all kinds, as threads of this process and as credentials of `vfs`.

use rustix::fs::{Gid, Uid};
use rustix::thread::{CapabilitySet, CapabilitySets};
use tandemfs_vfs::{Capabilities, Capability, Credentials, Process};

/// A user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub groups: &'static [u32],
    /// Bits as the kernel numbers them.
    pub capabilities: u64,
}

const fn bit(capability: Capability) -> u64 {
    1 << capability as u64
}

pub const ROOT: User = User { uid: 0, gid: 0, groups: &[], capabilities: u64::MAX };

/// Root, more often than others, ordinary users who share groups, root with few capabilities, and users with some.
pub const USERS: [User; 10] = [
    ROOT,
    ROOT,
    ROOT,
    User { uid: 1001, gid: 1001, groups: &[1002], capabilities: 0 },
    User { uid: 1002, gid: 1002, groups: &[], capabilities: 0 },
    User { uid: 1003, gid: 1003, groups: &[1500, 1001], capabilities: 0 },
    User { uid: 1003, gid: 1500, groups: &[], capabilities: bit(Capability::Fsetid) | bit(Capability::DacReadSearch) },
    User { uid: 0, gid: 0, groups: &[1002], capabilities: bit(Capability::Chown) | bit(Capability::Mknod) },
    User { uid: 1002, gid: 1500, groups: &[], capabilities: bit(Capability::Fowner) | bit(Capability::Setfcap) },
    User { uid: 1004, gid: 1004, groups: &[1500], capabilities: bit(Capability::DacOverride) | bit(Capability::SysAdmin) },
];

impl User {
    /// Runs a call in a thread of its own with the user's credentials: credentials belong to threads.
    pub fn does<T: Send>(self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(move || {
                self.become_it();
                work()
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn become_it(self) {
        let groups: Vec<Gid> = self.groups.iter().map(|group| Gid::from_raw(*group)).collect();
        rustix::thread::set_thread_groups(&groups).expect("root may");
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        rustix::thread::set_keep_capabilities(true).expect("always");
        rustix::thread::set_thread_res_gid(gid, gid, gid).expect("root may");
        rustix::thread::set_thread_res_uid(uid, uid, uid).expect("root may");
        if self.capabilities != u64::MAX {
            let set = CapabilitySet::from_bits_retain(self.capabilities);
            let sets = CapabilitySets { effective: set, permitted: set, inheritable: CapabilitySet::empty() };
            rustix::thread::set_capabilities(None, sets).expect("fewer are always possible");
        }
    }

    /// The same user for `vfs`.
    pub fn process(self, umask: u16) -> Process {
        let credentials = Credentials::new(self.uid, self.gid, self.groups, Capabilities(self.capabilities));
        Process { umask, ..Process::of(credentials) }
    }
}
