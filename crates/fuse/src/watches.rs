//! Who watches files of this mount by inotify or fanotify. The kernel tells a FUSE daemon nothing of it and lets nobody raise such events, so clients
//! that reach files past the kernel are handed back what concerns something watched ([KV8] of `vfs`): the kernel then does it, and tells. What
//! is watched is shown by `/proc/PID/fdinfo`.
//!
//! [WCH1] *Who begins to watch asks this daemon.* The kernel checks that a file may be read before somebody watches it, and knows its attributes
//!        for no time ([BS1]). So each process that watches something here has sent a GETATTR before; the threads that send one are noted, and no others
//!        need be looked at.
//! [WCH2] *They are looked at before a client's call.* A thread is noted before it has its reply, so what was watched when a call of a client
//!        begins is known when that call goes on. The watch comes into being behind the reply: a thread is looked at again some times, the last time
//!        after more than a second.
//! [WCH3] *Looking is paid for.* After a look nobody looks for fifty times as long as it took of a CPU, and two milliseconds at least. Until then an
//!        answer is that of the last look: a watch may miss what happens so shortly after it began. By the clock a look during which the daemon was
//!        stopped, or got no CPU, would be followed by minutes of that.
//! [WCH4] *A watch has no owner.* A process that is gone may have left it to another, by a fork or a message, also before it was looked at. So
//!        what was found in it counts until a look at all processes, which another thread makes now and then while there is something to find out.
//! [WCH5] Nothing is looked for while no client asks.
//! [WCH6] *Who answers by himself is told.* Clients may open a file again without a request ([KNW6] of `crates/direct`). They may do so while nobody
//!        watches anything and nobody is looked at. A thread that asks is noted first; then the version of that is raised ([VS8] of the file system), so
//!        these clients ask again; then the thread has its reply.
//!
//! Not found: watches of processes that this daemon may not look at (those of other users, unless it is root's) or that are in no namespace of
//! processes below its own.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use tandemfs_format::InodeNumber;
use tandemfs_fs::{Result, may_wait};

use crate::later::Later;

const SHARDS: usize = 16;
/// Threads that are noted in a shard; beyond that all processes are looked at.
const NOTED_MAX: usize = 256;
/// A look is followed by so many times its CPU time without one ([WCH3]).
const REST: u64 = 50;
const REST_LEAST: u64 = 2_000;
/// The same for a look at all processes.
const REST_OF_ALL: u64 = 100;
const REST_OF_ALL_LEAST: u64 = 1_000_000;
/// A thread is looked at again so long after the look before ([WCH2]), in microseconds.
const AGAIN: [u64; 5] = [2_000, 10_000, 50_000, 250_000, 1_000_000];
/// Who watches something is looked at again after this time.
const WATCHERS_AGAIN: u64 = 100_000;
const NEVER: u64 = u64::MAX;

/// What is watched, as far as it is known.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
struct Marks {
    inodes: HashSet<InodeNumber>,
    /// The whole file system, or a mount of it.
    everything: bool,
}

impl Marks {
    fn is_empty(&self) -> bool {
        self.inodes.is_empty() && !self.everything
    }

    fn add(&mut self, other: &Self) {
        self.inodes.extend(&other.inodes);
        self.everything |= other.everything;
    }
}

/// A thread that has asked for attributes.
#[derive(Debug, Clone, Copy, Default)]
struct Asker {
    looks: usize,
    /// When it is looked at again, in microseconds since the start.
    next: u64,
}

/// What a process watches.
#[derive(Debug)]
struct Watcher {
    marks: Marks,
    looked_at: u64,
}

#[derive(Debug, Default)]
struct State {
    askers: HashMap<u32, Asker>,
    watchers: HashMap<u32, Watcher>,
    /// There may be watches in processes that are not known ([WCH4]).
    is_unsure: bool,
    /// All processes are looked at, by another thread.
    looks_at_all: bool,
    all_again: u64,
}

/// Who watches, of one mount.
#[derive(Debug)]
pub(crate) struct Watches {
    start: Instant,
    /// The device number of the mount, as `/proc` shows it here; nothing can be watched before it is known.
    device: OnceLock<Device>,
    noted: [Mutex<HashSet<u32>>; SHARDS],
    /// When to look next, in microseconds since the start, and the earliest time at which that may be.
    due: AtomicU64,
    rests_until: AtomicU64,
    overflowed: AtomicBool,
    state: Mutex<State>,
    found: Mutex<Arc<Marks>>,
    is_any: AtomicBool,
    all: Later,
    /// Looks that are under way, also those at all processes that are to come ([WCH6]).
    under_way: AtomicU64,
    /// Each look is held up so long, as by a stop of the daemon.
    #[cfg(test)]
    looks_last: Mutex<std::time::Duration>,
}

/// A device number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Device {
    /// As `major:minor`.
    text: String,
    /// As one number of the kernel's.
    number: u64,
}

impl Device {
    fn of(text: &str) -> Option<Self> {
        let (major, minor) = text.split_once(':')?;
        Some(Self { text: text.to_owned(), number: major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()? })
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The CPU time that this thread has used, in microseconds.
fn cpu_time() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000 + time.tv_nsec as u64 / 1000
}

/// What a look costs: the CPU time of its thread when it began.
struct Cost(u64);

impl Cost {
    /// How long nobody looks after it ([WCH3]).
    fn rest(&self, times: u64, least: u64) -> u64 {
        (times * (cpu_time() - self.0)).max(least)
    }
}

impl Watches {
    pub(crate) fn start() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            start: Instant::now(),
            device: OnceLock::new(),
            noted: std::array::from_fn(|_| Mutex::default()),
            due: AtomicU64::new(NEVER),
            rests_until: AtomicU64::new(0),
            overflowed: AtomicBool::new(false),
            state: Mutex::default(),
            found: Mutex::default(),
            is_any: AtomicBool::new(false),
            all: Later::start("watches")?,
            under_way: AtomicU64::new(0),
            #[cfg(test)]
            looks_last: Mutex::default(),
        }))
    }

    /// The mount has this device number, `major:minor`.
    pub(crate) fn of_device(&self, number: &str) {
        if let Some(device) = Device::of(number) {
            let _first = self.device.set(device);
        }
    }

    pub(crate) fn stop(&self) {
        self.all.stop();
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }

    /// A look that begins.
    #[cfg_attr(not(test), expect(clippy::unused_self, reason = "tests delay it"))]
    fn begins_to_look(&self) -> Cost {
        let cost = Cost(cpu_time());
        #[cfg(test)]
        std::thread::sleep(*locked(&self.looks_last));
        cost
    }

    /// A thread asks for attributes and may watch that file next ([WCH1]); before it gets its reply. 0 is nobody who could be found.
    pub(crate) fn note(&self, thread: u32) {
        if thread == 0 {
            return;
        }
        let mut noted = locked(&self.noted[thread as usize % SHARDS]);
        if noted.len() < NOTED_MAX {
            noted.insert(thread);
        } else if !noted.contains(&thread) {
            self.overflowed.store(true, SeqCst);
        }
        drop(noted);
        self.is_due_at(self.rests_until.load(SeqCst));
    }

    fn is_due_at(&self, time: u64) {
        if self.due.load(SeqCst) > time {
            self.due.fetch_min(time, SeqCst);
        }
    }

    /// Whether somebody watches one of these inodes.
    ///
    /// # Errors
    /// `WouldWait` where somebody has to be looked at.
    pub(crate) fn is_any(self: &Arc<Self>, inodes: &[InodeNumber]) -> Result<bool> {
        let due = self.due.load(SeqCst);
        if due != NEVER && due <= self.now() {
            may_wait()?;
            self.look();
        }
        if !self.is_any.load(SeqCst) {
            return Ok(false);
        }
        let found = Arc::clone(&locked(&self.found));
        Ok(found.everything || inodes.iter().any(|inode| found.inodes.contains(inode)))
    }

    /// Whether somebody watches something, or is being looked at. Otherwise whoever begins is noted before ([WCH1]).
    pub(crate) fn looks(&self) -> bool {
        // In this order: whoever ends a look has said before what it has found.
        self.under_way.load(SeqCst) > 0 || self.due.load(SeqCst) != NEVER || self.is_any.load(SeqCst)
    }

    /// Looks at the processes that are due ([WCH2]).
    fn look(self: &Arc<Self>) {
        let mut state = locked(&self.state);
        let begun = self.now();
        if self.due.load(SeqCst) > begun {
            return; // somebody else has, meanwhile
        }
        let _under_way = UnderWay::begin(&self.under_way);
        for noted in &self.noted {
            state.askers.extend(locked(noted).drain().map(|thread| (thread, Asker::default())));
        }
        let cost = self.begins_to_look();
        let State { askers, watchers, is_unsure, .. } = &mut *state;
        *is_unsure |= self.overflowed.swap(false, SeqCst);
        let Some(device) = self.device.get() else { return };
        askers.retain(|thread, asker| {
            if asker.next > begun {
                return true;
            }
            match marks_of(*thread, device) {
                Ok(marks) if marks.is_empty() && !watchers.contains_key(thread) => {}
                Ok(marks) => drop(watchers.insert(*thread, Watcher { marks, looked_at: begun })),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    *is_unsure = true; // [WCH4]
                    return false;
                }
                Err(_) => return false,
            }
            asker.next = begun + AGAIN.get(asker.looks).copied().unwrap_or(NEVER / 2);
            asker.looks += 1;
            asker.looks <= AGAIN.len()
        });
        for (thread, watcher) in watchers.iter_mut().filter(|(_, watcher)| begun.saturating_sub(watcher.looked_at) >= WATCHERS_AGAIN) {
            if let Ok(marks) = marks_of(*thread, device) {
                *watcher = Watcher { marks, looked_at: begun };
            } else {
                *is_unsure = true; // [WCH4]
            }
        }
        self.show(&state);
        let ended = self.now();
        let rests_until = ended + cost.rest(REST, REST_LEAST);
        self.rests_until.store(rests_until, SeqCst);
        self.look_at_all_later(&mut state, ended);
        let again = state.askers.values().map(|asker| asker.next).min().unwrap_or(NEVER);
        let again = again.min(state.watchers.values().map(|watcher| watcher.looked_at + WATCHERS_AGAIN).min().unwrap_or(NEVER));
        let again = again.min(if state.is_unsure { state.all_again } else { NEVER });
        self.due.store(again.max(rests_until), SeqCst);
        // Who was noted since the shards were emptied.
        if self.noted.iter().any(|noted| !locked(noted).is_empty()) {
            self.is_due_at(rests_until);
        }
    }

    /// What is found from now on.
    fn show(&self, state: &State) {
        let mut all = Marks::default();
        state.watchers.values().for_each(|watcher| all.add(&watcher.marks));
        self.is_any.store(!all.is_empty(), SeqCst);
        *locked(&self.found) = Arc::new(all);
    }

    /// Has all processes looked at if there is a reason, and the last time is long ago ([WCH4]).
    fn look_at_all_later(self: &Arc<Self>, state: &mut State, now: u64) {
        if state.is_unsure && !state.looks_at_all && state.all_again <= now {
            (state.looks_at_all, state.is_unsure) = (true, false);
            let this = Arc::clone(self);
            self.under_way.fetch_add(1, SeqCst);
            self.all.push(move || {
                let _under_way = UnderWay(&this.under_way);
                this.look_at_all();
            });
        }
    }

    fn look_at_all(&self) {
        let (begun, cost) = (self.now(), self.begins_to_look());
        let found = self.device.get().map(all_watchers).unwrap_or_default();
        let mut state = locked(&self.state);
        state.watchers.retain(|_, watcher| watcher.looked_at >= begun);
        for (process, marks) in found {
            state.watchers.entry(process).or_insert(Watcher { marks, looked_at: begun });
        }
        self.show(&state);
        state.looks_at_all = false;
        state.all_again = self.now() + cost.rest(REST_OF_ALL, REST_OF_ALL_LEAST);
        if !state.watchers.is_empty() {
            self.is_due_at(self.rests_until.load(SeqCst));
        }
    }
}

/// A look that is under way.
struct UnderWay<'w>(&'w AtomicU64);

impl<'w> UnderWay<'w> {
    fn begin(count: &'w AtomicU64) -> Self {
        count.fetch_add(1, SeqCst);
        Self(count)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, SeqCst);
    }
}

/// What each process watches that watches something.
fn all_watchers(device: &Device) -> HashMap<u32, Marks> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let processes = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let watchers = processes.filter_map(|process| Some((process, marks_of(process, device).ok()?)));
    watchers.filter(|(_, marks)| !marks.is_empty()).collect()
}

/// What the process of a thread watches of a device.
fn marks_of(thread: u32, device: &Device) -> io::Result<Marks> {
    let mut marks = Marks::default();
    for entry in fs::read_dir(format!("/proc/{thread}/fd"))? {
        let entry = entry?;
        let may_watch = fs::read_link(entry.path()).is_ok_and(|target| is_group(target.as_os_str().as_bytes()));
        if !may_watch {
            continue;
        }
        if let Ok(text) = fs::read_to_string(format!("/proc/{thread}/fdinfo/{}", entry.file_name().to_string_lossy())) {
            let is_mount = |id: u64| fs::read(format!("/proc/{thread}/mountinfo")).is_ok_and(|mounts| has_mount(&mounts, id, &device.text));
            marks.add(&marks_in(&text, device.number, is_mount));
        }
    }
    Ok(marks)
}

/// Whether a descriptor is one of inotify or fanotify.
fn is_group(target: &[u8]) -> bool {
    target == b"anon_inode:inotify" || target == b"anon_inode:[fanotify]"
}

/// The marks of a group on a device, in the lines of its `fdinfo`: numbers are hexadecimal. `is_mount`: whether a mount of this id is one of it.
fn marks_in(text: &str, device: u64, is_mount: impl Fn(u64) -> bool) -> Marks {
    let mut marks = Marks::default();
    for line in text.lines().filter(|line| line.starts_with("inotify ") || line.starts_with("fanotify ")) {
        let field = |name: &str| {
            let value = line.split_whitespace().find_map(|word| word.strip_prefix(name)?.strip_prefix(':'))?;
            u64::from_str_radix(value, 16).ok()
        };
        match (field("sdev"), field("ino"), field("mnt_id")) {
            (Some(of), Some(inode), _) if of == device => drop(marks.inodes.insert(InodeNumber::new(inode))),
            (Some(of), None, _) if of == device => marks.everything = true,
            (None, _, Some(id)) if is_mount(id) => marks.everything = true,
            _ => {}
        }
    }
    marks
}

/// Whether a list of mounts has one of this id and device.
fn has_mount(mounts: &[u8], id: u64, device: &str) -> bool {
    mounts.split(|byte| *byte == b'\n').any(|line| {
        let mut fields = line.split(|byte| *byte == b' ');
        let is_it = fields.next().is_some_and(|field| field == id.to_string().as_bytes());
        is_it && fields.nth(1) == Some(device.as_bytes())
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::time::Duration;

    use rustix::fs::inotify;

    use super::*;

    fn numbers(marks: &Marks) -> Vec<u64> {
        let mut numbers: Vec<u64> = marks.inodes.iter().map(|inode| inode.get()).collect();
        numbers.sort_unstable();
        numbers
    }

    /// As Linux 6.18 shows them.
    #[test]
    fn marks_on_this_device_are_found_and_no_others() {
        let text = "pos:\t0\nflags:\t02004000\nmnt_id:\t15\nino:\t1057\n\
                    inotify wd:2 ino:2a sdev:2f mask:fce ignored_mask:0 fhandle-bytes:c fhandle-type:81 f_handle:2a00000000000000\n\
                    inotify wd:1 ino:1 sdev:2f mask:fce ignored_mask:0 \n\
                    inotify wd:3 ino:7 sdev:800002 mask:fce ignored_mask:0 \n\
                    fanotify flags:10 event-flags:0\n\
                    fanotify ino:10 sdev:2f mflags:0 mask:3b ignored_mask:0 \n";
        let marks = marks_in(text, 0x2f, |_| false);
        assert_eq!((numbers(&marks), marks.everything), (vec![1, 0x10, 0x2a], false));
        assert!(marks_in(text, 0x30, |_| true).is_empty());
        assert!(marks_in("fanotify sdev:2f mflags:0 mask:2 ignored_mask:0\n", 0x2f, |_| false).everything);
        let of_mount = "fanotify mnt_id:1c mflags:0 mask:3b ignored_mask:40000000\n";
        assert!(marks_in(of_mount, 0x2f, |id| id == 0x1c).everything && marks_in(of_mount, 0x2f, |_| false).is_empty());
    }

    #[test]
    fn a_mount_is_known_by_its_id_and_device() {
        let mounts = b"22 1 0:20 / /proc rw - proc proc rw\n28 22 0:47 / /mnt rw - fuse.tandemfs x rw\n";
        assert!(has_mount(mounts, 28, "0:47") && !has_mount(mounts, 22, "0:47") && !has_mount(mounts, 2, "0:47"));
    }

    /// A directory, its device and its inode.
    fn directory() -> (tempfile::TempDir, u64, InodeNumber) {
        use std::os::unix::fs::MetadataExt;
        let directory = tempfile::tempdir().expect("made");
        let status = fs::metadata(directory.path()).expect("there");
        (directory, status.dev(), InodeNumber::new(status.ino()))
    }

    /// Who looks for watches of a device.
    fn watching(device: u64) -> Arc<Watches> {
        let watches = Watches::start().expect("a thread");
        watches.of_device(&format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device)));
        watches
    }

    /// Begins to watch a directory, until the group is dropped.
    fn watch(directory: &tempfile::TempDir) -> OwnedFd {
        let group = inotify::init(inotify::CreateFlags::CLOEXEC).expect("a group");
        inotify::add_watch(&group, directory.path(), inotify::WatchFlags::MODIFY).expect("watched");
        group
    }

    /// Threads of this process watch directories of their own; what the kernel says of it is found, and its end too.
    #[test]
    fn who_was_noted_is_looked_at_and_who_was_not_is_not() {
        let (directory, device, inode) = directory();
        let watches = watching(device);
        let rest = || std::thread::sleep(Duration::from_millis(20));
        let own = std::process::id();
        assert!(!watches.is_any(&[inode]).expect("waits"), "nobody was noted");
        watches.note(own);
        assert!(!watches.is_any(&[inode]).expect("waits"), "nobody watches");
        let group = watch(&directory);
        // [WCH2]: as a thread that was looked at too early. It is looked at again.
        assert!(found_within(&watches, inode, true));
        assert!(!watches.is_any(&[InodeNumber::new(u64::MAX)]).expect("waits"));
        drop(group);
        assert!(found_within(&watches, inode, false), "it ends with its group");
        rest();
        let _group = watch(&directory);
        watches.note(own);
        assert!(found_within(&watches, inode, true));
        watches.stop();
    }

    /// [WCH4]: a watch in a process that nobody has noted is found by the look at all, which a thread that is gone is the reason for.
    #[test]
    fn a_watch_that_was_left_to_another_process_is_found() {
        let (directory, device, inode) = directory();
        let _group = watch(&directory);
        let watches = watching(device);
        assert!(!watches.is_any(&[inode]).expect("waits"));
        watches.note(u32::MAX >> 1); // no such thread
        assert!(found_within(&watches, inode, true));
        watches.stop();
    }

    /// [WCH3]: a daemon that is stopped for a moment looked at nobody for fifty times as long.
    #[test]
    fn regression_a_stop_within_a_look_is_no_reason_to_rest() {
        let (directory, device, inode) = directory();
        let watches = watching(device);
        *locked(&watches.looks_last) = Duration::from_secs(4);
        watches.note(std::process::id());
        assert!(!watches.is_any(&[inode]).expect("waits"), "nobody watches");
        *locked(&watches.looks_last) = Duration::ZERO;
        let _group = watch(&directory);
        assert!(found_within(&watches, inode, true));
        watches.stop();
    }

    fn found_within(watches: &Arc<Watches>, inode: InodeNumber, expected: bool) -> bool {
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(60) {
            if watches.is_any(&[inode]).expect("waits") == expected {
                return true;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        false
    }
}
