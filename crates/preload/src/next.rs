//! The functions behind those of this library: libc's, or those of another preloaded library.

use std::ffi::{CStr, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

/// A function that is looked up when it is first needed.
pub(crate) struct Next {
    name: &'static CStr,
    found: AtomicPtr<c_void>,
}

impl Next {
    /// `name` ends with NUL.
    pub(crate) const fn new(name: &'static str) -> Self {
        let Ok(name) = CStr::from_bytes_with_nul(name.as_bytes()) else { panic!("no NUL") };
        Self { name, found: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// Its address; null if nobody has it.
    pub(crate) fn get(&self) -> *mut c_void {
        let known = self.found.load(Ordering::Relaxed);
        if known.is_null() { self.look_up() } else { known }
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
        self.found.store(found, Ordering::Relaxed);
        found
    }
}

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
                static NEXT: crate::next::Next = crate::next::Next::new(concat!(stringify!($name), "\0"));
                let found = NEXT.get();
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
