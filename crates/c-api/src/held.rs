//! What a handle stands for, as long as this is the process that made it ([CAP3]).

use std::ffi::c_int;
use std::mem::ManuallyDrop;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::Mutex;

use crate::failure::{Failure, Result};
use crate::mutant::{Mutant, on};

/// How many forks lie between the process that loaded this library and this one.
static FORKS: AtomicU64 = AtomicU64::new(0);
/// The errno of the attempt to count them, 0 if they are.
static COUNTED: LazyLock<c_int> = LazyLock::new(|| {
    // SAFETY: the handler adds to an atomic, which any process may do at any time.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) }
});

extern "C" fn in_child() {
    FORKS.fetch_add(1, Relaxed);
}

/// A part of the client library, of this process or of one that it was forked from.
#[derive(Debug)]
pub(crate) struct Held<T> {
    forks: u64,
    /// Dropped where it was made: to drop it is a request.
    value: ManuallyDrop<T>,
}

impl<T> Held<T> {
    /// Of this process.
    fn new(value: T) -> Result<Self> {
        match *COUNTED {
            0 => Ok(Self { forks: FORKS.load(Relaxed), value: ManuallyDrop::new(value) }),
            errno => Err(Failure::of(errno)),
        }
    }

    fn is_ours(&self) -> bool {
        self.forks == FORKS.load(Relaxed) || on(Mutant::ForkForgotten)
    }

    /// What it stands for.
    pub(crate) fn get(&self) -> Result<&T> {
        if self.is_ours() { Ok(&self.value) } else { Err(Failure::of(libc::ENOTCONN)) }
    }

    /// Takes it out.
    pub(crate) fn into_inner(mut self) -> Result<T> {
        self.get()?;
        // SAFETY: `self` is forgotten at once, so the value is there once.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        std::mem::forget(self);
        Ok(value)
    }
}

impl<T> Drop for Held<T> {
    fn drop(&mut self) {
        if self.is_ours() {
            // SAFETY: once, and nobody uses it any more.
            unsafe { ManuallyDrop::drop(&mut self.value) };
        }
    }
}

/// A type of the header, which C programs have pointers to.
pub(crate) trait Handle: Sized {
    type Of;

    fn around(held: Held<Self::Of>) -> Self;
    fn held(&self) -> &Held<Self::Of>;
    fn into_held(self) -> Held<Self::Of>;

    fn of(value: Self::Of) -> Result<Self> {
        Held::new(value).map(Self::around)
    }
}

/// A mount that this process is connected to.
#[derive(Debug)]
pub struct MountHandle(Held<tandemfs_client::Mount>);

/// An open file.
#[derive(Debug)]
pub struct FileHandle(Held<tandemfs_client::File>);

/// A listing of a directory.
#[derive(Debug)]
pub struct DirectoryHandle(Held<Mutex<tandemfs_client::Directory>>);

/// A mapped range of a file.
#[derive(Debug)]
pub struct MappingHandle(Held<tandemfs_client::Mapping>);

macro_rules! handle {
    ($name:ident, $of:ty) => {
        impl Handle for $name {
            type Of = $of;

            fn around(held: Held<$of>) -> Self {
                Self(held)
            }

            fn held(&self) -> &Held<$of> {
                &self.0
            }

            fn into_held(self) -> Held<$of> {
                self.0
            }
        }
    };
}

handle!(MountHandle, tandemfs_client::Mount);
handle!(FileHandle, tandemfs_client::File);
handle!(DirectoryHandle, Mutex<tandemfs_client::Directory>);
handle!(MappingHandle, tandemfs_client::Mapping);
