//! Answers that are kept ([VS1]–[VS3] of the file system's `versions.rs`): random changes by random users, and after each of them every answer
//! whose versions have not changed is held against a fresh one. Once with a version for each thing, once with a few that many things share.
//! A deliberate bug for each thing whose version is not raised must be found.

mod support;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;
use support::{ROOT, empty, root, user};
use tandemfs_crash::{Random, rounds_or, seed_or};
use tandemfs_fs::mutant::{self, Mutant};
use tandemfs_fs::{Noted, Versions};
use tandemfs_vfs::{At, OpenFile, Process, Result, SetTimes, Subject, TimeToSet, Vfs};

/// Runs an operation and returns also what it has read.
fn noting<T>(vfs: &Vfs, operation: impl FnOnce() -> T) -> (T, Noted) {
    vfs.file_system().noting(operation, |result, noted| (result, noted.clone()))
}

/// Versions as their definition says.
struct Table(Mutex<Words>);

#[derive(Default)]
struct Words {
    places: HashMap<u64, u32>,
    values: Vec<u64>,
    /// So many there are.
    most: usize,
}

impl Table {
    fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Words { most, ..Words::default() })))
    }

    fn with<T>(&self, act: impl FnOnce(&mut Words) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn agree(&self, seen: &[(u32, u64)]) -> bool {
        self.with(|words| seen.iter().all(|(place, value)| words.values[*place as usize] == *value))
    }
}

impl Words {
    fn place(&mut self, thing: u64) -> u32 {
        let (count, values, most) = (self.places.len(), &mut self.values, self.most);
        *self.places.entry(thing).or_insert_with(|| {
            if values.len() < most {
                values.push(0);
            }
            (count % most) as u32
        })
    }
}

struct Publishing(Arc<Table>);

impl Versions for Publishing {
    fn raise(&self, thing: u64) {
        self.0.with(|words| {
            let place = words.place(thing);
            words.values[place as usize] += 1;
        });
    }

    fn current(&self, thing: u64) -> (u32, u64) {
        self.0.with(|words| {
            let place = words.place(thing);
            (place, words.values[place as usize])
        })
    }
}

const PATHS: [&[u8]; 20] = [
    b"a",
    b"b",
    b"c",
    b"a/a",
    b"a/b",
    b"b/a",
    b"b/c",
    b"c/a",
    b"a/b/c",
    b"a/b/a",
    b"b/c/a",
    b"a/..",
    b"a/b/..",
    b"a/b/../a",
    b"b/../a/a",
    b"c/",
    b"a/b/",
    b".",
    b"x/y",
    b"",
];
/// Those of them that a change may mean.
const CHANGED: &[&[u8]] = PATHS.first_chunk::<11>().expect("more");
const TARGETS: [&[u8]; 6] = [b"a", b"b/a", b"../b", b"c", b"nowhere", b"b/"];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Asked {
    Stat(usize),
    Lstat(usize),
    Access(usize, u32),
    /// A path that begins in an open directory, or the open file itself.
    Below(usize, usize),
    Open(usize),
    /// All entries of an open directory.
    List(usize),
    /// A read of an open file, and where.
    Read(usize, u64),
}

#[derive(Debug, Clone, PartialEq)]
enum Told {
    Attributes(String),
    Bytes(Vec<u8>),
    Entries(Vec<(u64, u8, Vec<u8>)>),
    Allowed,
    Errno(Errno),
    /// Not to be kept.
    Other,
}

fn told<T>(result: Result<T>, say: impl FnOnce(T) -> Told) -> Told {
    match result {
        Ok(value) => say(value),
        Err(refused) => match refused.errno() {
            Some(errno @ (Errno::NOENT | Errno::NOTDIR | Errno::ACCESS)) => Told::Errno(errno),
            _ => Told::Other,
        },
    }
}

/// All entries of a directory: inode, type, name.
fn listed(vfs: &Vfs, directory: &OpenFile) -> Result<Vec<(u64, u8, Vec<u8>)>> {
    let mut entries = Vec::new();
    vfs.read_directory_behind(directory, 0, &mut |entry| {
        entries.push((entry.inode.get(), entry.file_type, entry.name.to_vec()));
        true
    })?;
    Ok(entries)
}

/// Where versions are, and which they were.
type Places = Vec<(u32, u64)>;

struct Played {
    vfs: Vfs,
    table: Arc<Table>,
    users: [Process; 3],
    open: Vec<OpenFile>,
    kept: HashMap<(usize, Asked), (Told, Places)>,
    right: u64,
    asked: u64,
}

impl Played {
    fn new(most: usize) -> Self {
        let (vfs, table) = (empty(), Table::new(most));
        assert!(vfs.file_system().publish(Box::new(Publishing(Arc::clone(&table)))));
        let users = [root(), user(1001, &[50]), user(1002, &[50])].map(|user| Process { umask: 0, ..user });
        Self { vfs, table, users, open: Vec::new(), kept: HashMap::new(), right: 0, asked: 0 }
    }

    /// Most calls fail, since most paths lead nowhere.
    fn change(&mut self, random: &mut Random) {
        let (vfs, process) = (self.vfs.clone(), &self.users[random.below(3) as usize]);
        let (path, other) = (random.pick(CHANGED), random.pick(CHANGED));
        let subject = if random.one_in(3) { Subject::unfollowed(ROOT, path) } else { Subject::followed(ROOT, path) };
        let mode = *random.pick(&[0o777, 0o755, 0o750, 0o700, 0o640, 0o600, 0o000, 0o4755, 0o2750, 0o1777]);
        match random.below(21) {
            0..4 => {
                if let Ok(opened) = vfs.open(process, ROOT, path, libc::O_CREAT | libc::O_RDWR, mode) {
                    drop(vfs.write_at(process, &opened, random.below(9) as i64, b"bytes", 0));
                    self.open.push(opened);
                }
            }
            4..7 => drop(vfs.make_directory(process, ROOT, path, mode)),
            7 => drop(vfs.make_link(process, random.pick::<&[u8]>(&TARGETS), ROOT, path)),
            8 => drop(vfs.link(process, (ROOT, path), (ROOT, other), 0)),
            9 => drop(vfs.unlink(process, ROOT, path)),
            10 => drop(vfs.remove_directory(process, ROOT, path)),
            11 | 12 => {
                let flags = *random.pick(&[0, 0, libc::RENAME_EXCHANGE, libc::RENAME_NOREPLACE, libc::RENAME_WHITEOUT]);
                drop(vfs.rename(process, (ROOT, path), (ROOT, other), flags));
            }
            13 => drop(vfs.change_mode(process, subject, mode)),
            14 => {
                let id = *random.pick(&[0, 50, 1001, 1002]);
                let (uid, gid) = if random.one_in(2) { (Some(id), None) } else { (None, Some(id)) };
                drop(vfs.change_owner(process, subject, uid, gid));
            }
            15 => {
                let times = SetTimes { atime: TimeToSet::At(random.below(1 << 30) as i64, 7), mtime: TimeToSet::Now };
                drop(vfs.set_times(process, subject, times));
            }
            16 => drop(vfs.truncate(process, subject, random.below(20_000) as i64)),
            17 => {
                let which = if random.one_in(3) { &b"system.posix_acl_default"[..] } else { b"system.posix_acl_access" };
                drop(match random.one_in(3) {
                    true => vfs.remove_extended_attribute(process, subject, which),
                    false => vfs.set_extended_attribute(process, subject, which, &list(random), 0),
                });
            }
            18 => {
                // Holes, zeros, blocks that go and come.
                let flags = *random.pick(&[0, 3, 0x10, 8, 0x20]);
                if let [file, ..] = self.open.as_slice() {
                    drop(vfs.allocate(process, file, flags, (random.below(3) * 4096) as i64, 4096));
                }
            }
            19 => {
                if let [file, .., last] = self.open.as_slice() {
                    let (from, to) = (random.below(5000) as i64, random.below(5000) as i64);
                    drop(vfs.copy_range(process, (file, from), (last, to), random.below(5000), 0));
                }
            }
            _ => match self.open.as_slice() {
                [] => {}
                open => {
                    let file = random.pick(open);
                    match random.below(3) {
                        0 => drop(vfs.write_at(process, file, random.below(9000) as i64, b"more", 0)),
                        1 => drop(vfs.change_mode(process, Subject::Open(file), mode)),
                        _ => drop(vfs.set_times(process, Subject::Open(file), SetTimes::NOW)),
                    }
                }
            },
        }
        if random.one_in(9) {
            self.open.extend(self.vfs.open(&self.users[0], ROOT, random.pick::<&[u8]>(CHANGED), libc::O_RDONLY | libc::O_DIRECTORY, 0));
        }
        if self.open.len() > 6 {
            let gone = random.below(self.open.len() as u64) as usize;
            drop(self.open.remove(gone));
            self.kept.retain(|(_, asked), _| !matches!(asked, Asked::Below(..) | Asked::Open(_) | Asked::List(_) | Asked::Read(..)));
        }
    }

    fn ask(&self, user: usize, asked: Asked) -> (Told, Vec<(u32, u64)>) {
        let (vfs, process) = (&self.vfs, &self.users[user]);
        let stat = |subject| {
            let (result, noted) = noting(vfs, || vfs.stat(process, subject));
            let inode = result.as_ref().ok().map(|attributes| attributes.inode);
            let said = told(result, |attributes| Told::Attributes(format!("{attributes:?}")));
            (said, noted.versions(inode).collect())
        };
        match asked {
            Asked::Stat(path) => stat(Subject::followed(ROOT, PATHS[path])),
            Asked::Lstat(path) => stat(Subject::unfollowed(ROOT, PATHS[path])),
            Asked::Below(open, path) => stat(Subject::followed(At::Open(&self.open[open]), PATHS[path])),
            Asked::Open(open) => stat(Subject::Open(&self.open[open])),
            Asked::Read(open, offset) => {
                let mut bytes = [0; 700];
                let (result, noted) = noting(vfs, || vfs.read_at(&self.open[open], offset as i64, &mut bytes));
                (told(result, |length| Told::Bytes(bytes[..length].to_vec())), noted.versions(None).collect())
            }
            Asked::List(open) => {
                let (result, noted) = noting(vfs, || listed(vfs, &self.open[open]));
                (told(result, Told::Entries), noted.versions(None).collect())
            }
            Asked::Access(path, mode) => {
                let subject = Subject::followed(ROOT, PATHS[path]);
                let (result, noted) = noting(vfs, || vfs.access(process, subject, mode, true));
                (told(result, |()| Told::Allowed), noted.versions(None).collect())
            }
        }
    }

    /// Holds every answer that is kept and whose versions agree against a fresh one, and keeps the fresh ones of others.
    fn check(&mut self) -> std::result::Result<(), String> {
        let by_path = (0..PATHS.len()).flat_map(|path| {
            [Asked::Stat(path), Asked::Lstat(path), Asked::Access(path, 1), Asked::Access(path, 2), Asked::Access(path, 4)]
        });
        let by_open = (0..self.open.len()).flat_map(|open| {
            let reads = [0, 300, 4000, 8000].map(|offset| Asked::Read(open, offset));
            [Asked::Open(open), Asked::List(open), Asked::Below(open, 0), Asked::Below(open, 12)].into_iter().chain(reads)
        });
        let all: Vec<Asked> = by_path.chain(by_open).collect();
        for (user, asked) in (0..3).flat_map(|user| all.iter().map(move |asked| (user, *asked))) {
            self.asked += 1;
            let (fresh, seen) = self.ask(user, asked);
            match self.kept.get(&(user, asked)) {
                Some((known, versions)) if self.table.agree(versions) => {
                    self.right += 1;
                    if *known != fresh {
                        return Err(format!("user {user}, {asked:?}: {known:?} is known, {fresh:?} is so"));
                    }
                }
                _ if fresh == Told::Other || seen.is_empty() => drop(self.kept.remove(&(user, asked))),
                _ => drop(self.kept.insert((user, asked), (fresh, seen))),
            }
        }
        Ok(())
    }
}

/// An access control list with a user, a group and a mask.
fn list(random: &mut Random) -> Vec<u8> {
    const NOBODY: u32 = u32::MAX;
    let mut right = || random.below(8) as u16;
    let entries =
        [(1, right(), NOBODY), (2, right(), 1002), (4, right(), NOBODY), (8, right(), 50), (16, right(), NOBODY), (32, right(), NOBODY)];
    let mut value = 2_u32.to_le_bytes().to_vec();
    for (tag, right, id) in entries {
        value.extend([u16::to_le_bytes(tag), u16::to_le_bytes(right)].concat());
        value.extend(u32::to_le_bytes(id));
    }
    value
}

/// Returns which part of the answers was known.
fn play(seed: u64, steps: u64, most: usize) -> std::result::Result<f64, String> {
    let (mut random, mut played) = (Random::new(seed), Played::new(most));
    for step in 0..steps {
        played.change(&mut random);
        played.check().map_err(|what| format!("seed {seed}, step {step}: {what}"))?;
    }
    Ok(played.right as f64 / played.asked as f64)
}

/// A mutant is global to the process.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

#[test]
fn what_is_known_is_so() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let mut shares = Vec::new();
    for (most, least) in [(usize::MAX, 0.6), (64, 0.1), (1, 0.0)] {
        for round in 0..rounds_or(4) {
            let share = play(seed_or(1) + round, 300, most).expect("right");
            assert!(share > least, "with {most} versions {share} of the answers were known");
            shares.push(share);
        }
    }
    println!("known: {shares:.2?}");
}

#[test]
fn a_version_that_is_not_raised_is_found() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let bugs =
        [Mutant::RightsNotRaised, Mutant::AttributesNotRaised, Mutant::NameNotRaised, Mutant::EntriesNotRaised, Mutant::BytesNotRaised];
    for bug in bugs {
        mutant::select(bug);
        let found = (0..50).find_map(|seed| play(seed, 100, usize::MAX).err());
        mutant::select(Mutant::None);
        println!("{bug:?}: {}", found.as_ref().unwrap_or_else(|| panic!("{bug:?} escaped")));
    }
}

/// What a thread lets grow, and how others learn how far.
#[derive(Debug, Clone, Copy)]
enum Grows {
    /// The size of a file, by its attributes.
    Size,
    /// The number that is the only name of a directory, by its entries.
    Name,
}

/// A thread lets something grow; others say what they know of it, or look. Nobody says less than anybody has said before.
fn grown(what: Grows, rounds: u64) -> std::result::Result<u64, String> {
    let (vfs, table) = (empty(), Table::new(usize::MAX));
    assert!(vfs.file_system().publish(Box::new(Publishing(Arc::clone(&table)))));
    let file = support::file(&vfs, &root(), b"f", 0o644);
    vfs.make_directory(&root(), ROOT, b"d", 0o755).expect("made");
    drop(support::file(&vfs, &root(), b"d/0", 0o644));
    let directory = vfs.open(&root(), ROOT, b"d", libc::O_RDONLY, 0).expect("opened");
    let look = || -> std::result::Result<(u64, Places), String> {
        let failed = |refused| format!("{refused:?}");
        Ok(match what {
            Grows::Size => {
                let (result, noted) = noting(&vfs, || vfs.stat(&root(), Subject::Open(&file)));
                let found = result.map_err(failed)?;
                (found.size, noted.versions(Some(found.inode)).collect())
            }
            Grows::Name => {
                let (result, noted) = noting(&vfs, || listed(&vfs, &directory));
                let found = result.map_err(failed)?;
                let numbers: Vec<u64> = found.iter().filter_map(|(_, _, name)| std::str::from_utf8(name).ok()?.parse().ok()).collect();
                let [number] = numbers[..] else { return Err(format!("{numbers:?} are there at once")) };
                (number, noted.versions(None).collect())
            }
        })
    };
    let grow = |to: u64| match what {
        Grows::Size => vfs.truncate(&root(), Subject::Open(&file), to as i64),
        Grows::Name => vfs.rename(&root(), (ROOT, format!("d/{}", to - 1).as_bytes()), (ROOT, format!("d/{to}").as_bytes()), 0),
    };
    let (floor, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let readers = [0, 1].map(|_| {
            scope.spawn(|| {
                let (mut known, mut right) = (None::<(u64, Places)>, 0);
                while !ends.load(SeqCst) {
                    let least = floor.load(SeqCst);
                    let said = match &known {
                        Some((said, seen)) if table.agree(seen) => {
                            right += 1;
                            *said
                        }
                        _ => known.insert(look()?).0,
                    };
                    if said < least {
                        return Err(format!("{said} is said, but {least} was seen before"));
                    }
                    floor.fetch_max(said, SeqCst);
                }
                Ok(right)
            })
        });
        for to in 1..=rounds {
            grow(to).map_err(|refused| format!("{refused:?}"))?;
            floor.fetch_max(to, SeqCst);
        }
        ends.store(true, SeqCst);
        let mut all = 0;
        for reader in readers {
            all += reader.join().map_err(|_| "a reader")??;
        }
        Ok(all)
    })
}

#[test]
fn nobody_says_what_was_before_while_threads_change_it() {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for what in [Grows::Size, Grows::Name] {
        let right = grown(what, rounds_or(20_000)).expect("right");
        println!("{what:?}: {right} answers were known");
        mutant::select(Mutant::NotedBehindLock);
        let found = (0..100).find_map(|_| grown(what, 20_000).err());
        mutant::select(Mutant::None);
        println!("{}", found.unwrap_or_else(|| panic!("{what:?}: NotedBehindLock escaped")));
    }
}
