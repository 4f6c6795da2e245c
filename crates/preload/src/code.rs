//! Whether all code of this process calls the kernel by libc alone ([PRL16] of `lib.rs`): the loader is asked which objects there are, and each
//! is looked through once (`code/instructions.rs`). libc, the loader, the kernel's own object and this library are not: what they do with a
//! program's descriptors is known.
//!
//! The loader counts the objects that it has ever loaded, so whether there are new ones is asked at each open. `dlopen` cannot be followed by
//! a look, since libc must see who calls it. So before it all placeholders become real, and none is made until its thread opens a file again,
//! when its objects are there. What libc loads by itself (for names of users and hosts, for character sets) works on files that it opens itself.

mod functions;
mod instructions;
mod known;
mod object;

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::{outside, settings, sys};
use known::Known;
use object::Object;

/// What was looked through: objects that the loader has ever loaded, that it has removed, and the first ones of its list.
#[derive(Default)]
struct Seen {
    loaded: u64,
    removed: u64,
    objects: usize,
}

/// Nothing yet, or one more than the objects that were ever loaded when all were found to call the kernel by libc.
static FOUND: AtomicU64 = AtomicU64::new(0);
static SEEN: Mutex<Seen> = Mutex::new(Seen { loaded: 0, removed: 0, objects: 0 });
/// Threads that may be loading objects.
static LOADING: Mutex<Vec<i32>> = Mutex::new(Vec::new());
static IS_LOADING: AtomicBool = AtomicBool::new(false);
/// Rises before placeholders become real because objects are loaded.
static LOADS: AtomicU32 = AtomicU32::new(0);

/// When it was looked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment(u32);

/// Whether nothing has been about to be loaded since then.
pub(crate) fn is_as_at(moment: Moment) -> bool {
    LOADS.load(SeqCst) == moment.0
}

/// Whether there may be a placeholder now; inside. An error says why not: [`Way::OwnCalls`] for good.
pub(crate) fn look() -> Result<Moment, Way> {
    let moment = Moment(LOADS.load(SeqCst));
    if IS_LOADING.load(SeqCst) && others_load() {
        return Err(Way::Loads);
    }
    let known = FOUND.load(SeqCst);
    if known != 0 && (on(Mutant::LoadedNotSought) || known == loaded() + 1) {
        return Ok(moment);
    }
    // Not a wait: who holds this may wait for the loader, whose lock a caller of ours may have.
    let Ok(mut seen) = SEEN.try_lock() else { return Err(Way::Loads) };
    let mut search = Search { seen: std::mem::take(&mut *seen), position: 0, has_own_calls: false, known: None };
    iterate(searched, &raw mut search);
    if search.has_own_calls {
        return Err(Way::OwnCalls);
    }
    search.seen.objects = search.position;
    FOUND.store(search.seen.loaded + 1, SeqCst);
    *seen = search.seen;
    Ok(moment)
}

/// Before the calling thread loads objects; inside. The caller has placeholders become real afterwards.
pub(crate) fn loading() {
    let mut threads = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let this = sys::thread_id();
    if !threads.contains(&this) {
        threads.push(this);
    }
    IS_LOADING.store(true, SeqCst);
    LOADS.fetch_add(1, SeqCst);
    outside::withdraw();
}

/// Whether another thread may be loading. This one is not: it is behind its call, or in an initializer of objects that are all there.
fn others_load() -> bool {
    let mut threads = LOADING.lock().unwrap_or_else(PoisonError::into_inner);
    let this = sys::thread_id();
    threads.retain(|thread| *thread != this && sys::is_thread(*thread));
    IS_LOADING.store(!threads.is_empty(), SeqCst);
    !threads.is_empty()
}

type Callback<T> = extern "C" fn(&libc::dl_phdr_info, usize, &mut T) -> c_int;

fn iterate<T>(callback: Callback<T>, data: *mut T) {
    // SAFETY: the loader calls it with its own structures, which stay while it does, and with our data, which nobody else has.
    unsafe {
        let callback =
            std::mem::transmute::<Callback<T>, unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int>(callback);
        libc::dl_iterate_phdr(Some(callback), data.cast());
    }
}

/// Objects that the loader has ever loaded.
fn loaded() -> u64 {
    extern "C" fn first(found: &libc::dl_phdr_info, _: usize, loaded: &mut u64) -> c_int {
        *loaded = found.dlpi_adds;
        1
    }
    let mut loaded = 0;
    iterate(first, &raw mut loaded);
    loaded
}

struct Search {
    seen: Seen,
    position: usize,
    has_own_calls: bool,
    /// Open when it was first needed; none within if there is none.
    known: Option<Option<Known>>,
}

impl Search {
    fn has_own_calls(&mut self, object: &Object<'_>) -> bool {
        if is_known(object) || on(Mutant::OwnCallsNotSought) {
            return false;
        }
        let Some(key) = known::key(object) else { return instructions::has_own_calls(object) };
        let open = || settings::get().and_then(|settings| Known::open(settings.code.as_deref()?));
        let known = self.known.get_or_insert_with(open).as_ref();
        known.and_then(|known| known.get(key)).unwrap_or_else(|| {
            let found = instructions::has_own_calls(object);
            known.inspect(|known| known.set(key, found));
            found
        })
    }
}

extern "C" fn searched(found: &libc::dl_phdr_info, _: usize, search: &mut Search) -> c_int {
    if search.position == 0 {
        // New ones stand behind the others; of a list from which some were removed nothing is known.
        if found.dlpi_subs != search.seen.removed {
            search.seen.objects = 0;
        }
        (search.seen.loaded, search.seen.removed) = (found.dlpi_adds, found.dlpi_subs);
    }
    search.position += 1;
    if search.position > search.seen.objects {
        let object = Object::of(found);
        search.has_own_calls = search.has_own_calls(&object);
    }
    c_int::from(search.has_own_calls)
}

/// libc, the loader, the kernel's object, this library.
fn is_known(object: &Object<'_>) -> bool {
    // Not by dlsym(3), which waits for those who load, while these may wait for the list of objects.
    unsafe extern "C" {
        fn __tls_get_addr();
    }
    // SAFETY: a plain call.
    let kernel = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } as usize;
    let functions = [libc::gnu_get_libc_version as *const (), __tls_get_addr as *const (), is_known as *const ()];
    functions.into_iter().map(|function| function as usize).chain([kernel]).any(|address| object.has(address))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names of objects, and whether they have system calls of their own.
    fn all() -> Vec<(String, bool, bool)> {
        extern "C" fn each(found: &libc::dl_phdr_info, _: usize, all: &mut Vec<(String, bool, bool)>) -> c_int {
            let object = Object::of(found);
            // SAFETY: the loader's text.
            let name = unsafe { std::ffi::CStr::from_ptr(found.dlpi_name) }.to_string_lossy().into_owned();
            all.push((name, is_known(&object), instructions::has_own_calls(&object)));
            0
        }
        let mut all = Vec::new();
        iterate(each, &raw mut all);
        all
    }

    #[test]
    fn objects_with_system_calls_are_told_from_others() {
        let all = all();
        let of = |part: &str| all.iter().find(|(name, ..)| name.contains(part)).map(|(_, known, own)| (*known, *own));
        assert_eq!((all[0].1, all[0].2), (true, true), "this program, which has this library in it: {all:?}");
        assert_eq!(of("libc.so"), Some((true, true)), "{all:?}");
        assert_eq!(of("ld-linux"), Some((true, true)), "{all:?}");
        assert!(of("vdso").is_none_or(|(known, _)| known), "{all:?}");
        assert_eq!(of("libgcc_s"), Some((false, false)), "it compares code with these bytes: {all:?}");
    }

    #[test]
    fn a_process_of_libc_alone_is_found_and_loading_is_noticed() {
        let Ok(moment) = look() else { panic!("own calls") };
        assert!(is_as_at(moment) && look() == Ok(moment));
        loading();
        assert!(!is_as_at(moment));
        std::thread::spawn(|| assert_eq!(look().err(), Some(Way::Loads))).join().expect("no panic");
        assert!(look().is_ok_and(|later| later != moment), "the thread that loaded is behind it");
        std::thread::spawn(loading).join().expect("no panic");
        assert!(look().is_ok(), "a thread that is no more loads nothing");
    }
}
