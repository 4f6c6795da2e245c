//! The functions behind those of this library: libc's, or those of another preloaded library.

use std::ffi::{CStr, c_void};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed};

use crate::mutant::{Mutant, on};

/// A function behind one of this library. It is looked up when it is first needed, or with all others before this process gets a second thread or loads code:
/// a look takes a lock of the loader, which may be held by a constructor that waits for the thread that looks.
pub(crate) struct Next {
    name: &'static CStr,
    /// Null if it was not looked up yet.
    found: AtomicPtr<c_void>,
}

/// What stands for a function that nobody has.
const NOBODYS: *mut c_void = ptr::without_provenance_mut(1);

impl Next {
    /// `name` ends with NUL. It is a static of the section `tandemfs_next`: see [`next!`].
    pub(crate) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("no NUL") };
        Self { name, found: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Its address; null if nobody has it.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.found.load(Relaxed);
        let found = if known.is_null() { self.look_up() } else { known };
        if found == NOBODYS { ptr::null_mut() } else { found }
    }

    #[cold]
    fn look_up(&self) -> *mut c_void {
        // SAFETY: a name that ends with NUL.
        let mut found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        if found.is_null() {
            // Functions that only old programs use have no version that is the newest.
            let version = if cfg!(target_arch = "x86_64") { c"GLIBC_2.2.5" } else { c"GLIBC_2.17" };
            // SAFETY: names that end with NUL.
            found = unsafe { libc::dlvsym(libc::RTLD_NEXT, self.name.as_ptr(), version.as_ptr()) };
        }
        if found.is_null() {
            found = NOBODYS;
        }
        self.found.store(found, Relaxed);
        found
    }
}

// The ends of the section are of this library alone.
std::arch::global_asm!(".hidden __start_tandemfs_next", ".hidden __stop_tandemfs_next");

/// All of them.
fn all() -> &'static [Next] {
    unsafe extern "C" {
        /// The ends of the section, by the linker.
        #[link_name = "__start_tandemfs_next"]
        static START: u8;
        #[link_name = "__stop_tandemfs_next"]
        static STOP: u8;
    }
    let (start, stop) = ((&raw const START).cast::<Next>(), (&raw const STOP).cast::<Next>());
    // SAFETY: statics of this type alone, one behind the other, of one library.
    unsafe { std::slice::from_raw_parts(start, stop.offset_from_unsigned(start)) }
}

/// Looks up all that were not yet ([PRL23] of `lib.rs`).
pub(crate) fn look_up_all() {
    static IS_DONE: AtomicBool = AtomicBool::new(false);
    if !IS_DONE.load(Relaxed) && !on(Mutant::LookedUpLate) {
        all().iter().for_each(|next| {
            next.get();
        });
        IS_DONE.store(true, Relaxed);
    }
}

/// The function behind one of this library, by its name.
macro_rules! next {
    ($name:expr) => {{
        #[used]
        #[unsafe(link_section = "tandemfs_next")]
        static NEXT: crate::next::Next = crate::next::Next::new(concat!($name, "\0"));
        &NEXT
    }};
}
pub(crate) use next;

/// Declares a function that stands in front of one of libc. The body calls that one as `next()`, with the same arguments.
macro_rules! interpose {
    ($($(#[$attribute:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty, |$next:ident| $body:block)*) => {$(
        $(#[$attribute])*
        /// As libc's.
        ///
        /// # Safety
        /// As libc's.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(clippy::too_many_arguments, reason = "libc's")]
        pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
            #[allow(unused, reason = "some functions never ask libc")]
            let $next = || -> $result {
                let found = crate::next::next!(stringify!($name)).get();
                if found.is_null() {
                    crate::sys::set_errno(libc::ENOSYS);
                    return (-1_i8).into();
                }
                // SAFETY: the function of this name, which has this type; the arguments are the caller's.
                unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn($($type),*) -> $result>(found)($($argument),*) }
            };
            $body
        }
    )*};
}
pub(crate) use interpose;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_functions_are_looked_up_at_once() {
        look_up_all();
        let of = |name: &CStr| all().iter().find(|next| next.name == name).map(|next| next.found.load(Relaxed));
        assert!(all().len() > 300 && all().iter().all(|next| !next.found.load(Relaxed).is_null()), "{}", all().len());
        assert_eq!(of(c"io_uring_setup").map(|found| found == NOBODYS), Some(true));
        assert!([c"open", c"vfork", c"closefrom", c"pthread_create"].iter().all(|name| of(name).is_some_and(|found| found != NOBODYS)));
    }
}
