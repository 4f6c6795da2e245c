//! What changes who a process is, or what it sees ([PRL2] of `lib.rs`). The daemon knows the credentials that a connection was made with.

use std::ffi::{c_char, c_int, c_ulong, c_void};

use libc::{gid_t, size_t, uid_t};

use crate::door::{end, without_connection};
use crate::next::interpose;

interpose! {
    fn setuid(user: uid_t) -> c_int, |next| { without_connection(next) }
    fn setgid(group: gid_t) -> c_int, |next| { without_connection(next) }
    fn seteuid(user: uid_t) -> c_int, |next| { without_connection(next) }
    fn setegid(group: gid_t) -> c_int, |next| { without_connection(next) }
    fn setreuid(real: uid_t, effective: uid_t) -> c_int, |next| { without_connection(next) }
    fn setregid(real: gid_t, effective: gid_t) -> c_int, |next| { without_connection(next) }
    fn setresuid(real: uid_t, effective: uid_t, saved: uid_t) -> c_int, |next| { without_connection(next) }
    fn setresgid(real: gid_t, effective: gid_t, saved: gid_t) -> c_int, |next| { without_connection(next) }
    fn setgroups(count: size_t, groups: *const gid_t) -> c_int, |next| { without_connection(next) }
    fn initgroups(user: *const c_char, group: gid_t) -> c_int, |next| { without_connection(next) }

    // Of one thread alone, while the daemon knows those of the process.
    fn setfsuid(user: uid_t) -> c_int, |next| { end(); next() }
    fn setfsgid(group: gid_t) -> c_int, |next| { end(); next() }
    fn capset(header: *mut c_void, data: *const c_void) -> c_int, |next| { end(); next() }

    fn chroot(path: *const c_char) -> c_int, |next| { end(); next() }
    fn unshare(flags: c_int) -> c_int, |next| { end(); next() }
    fn setns(descriptor: c_int, kind: c_int) -> c_int, |next| { end(); next() }

    // The daemon hears of it a moment later, while the program relies on it with its next call.
    fn mount(source: *const c_char, target: *const c_char, kind: *const c_char, flags: c_ulong, data: *const c_void) -> c_int, |next| { end(); next() }
    fn umount(target: *const c_char) -> c_int, |next| { end(); next() }
    fn umount2(target: *const c_char, flags: c_int) -> c_int, |next| { end(); next() }
}
