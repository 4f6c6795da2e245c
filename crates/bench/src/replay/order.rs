//! In which order operations of a trace run again.
//!
//! [RPO1] Those of one thread run one after another, in the order in which they began.
//! [RPO2] An operation begins when all have ended that had ended before it began in the trace and are about one of its files. So what one thread
//!       made is there when another one uses it, whatever the speed.
//! [RPO3] Threads that did not live at the same time share a lane. Operations wait for earlier ones alone, so no lane waits for itself.
//! [RPO4] A file that loses its name is kept open if operations of its life are still to come, until the last of them. The same number in a
//!        later life is another file.

use std::collections::{BTreeMap, HashMap, HashSet};

use tandemfs_trace::{Door, Known, Operation, Record};

use super::names::Names;

/// Where an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    pub lane: usize,
    /// In its lane.
    pub index: usize,
}

/// An inode's number, and how many files have had it before.
pub type Life = (u64, u32);

/// An operation that is to run.
#[derive(Debug)]
pub struct Step {
    pub record: Record<'static>,
    /// What has to have ended before.
    pub after: Vec<Position>,
    /// Something later is about the file that this one takes the name of ([RPO4]).
    pub is_needed_later: bool,
    /// The files of this one that are kept open at some time.
    pub kept: Vec<Life>,
}

/// What runs beside each other.
pub type Lanes = Vec<Vec<Step>>;

/// All operations in their order.
#[derive(Debug)]
pub struct Plan {
    pub lanes: Lanes,
    /// How many operations are about each file that is kept open at some time.
    pub uses: HashMap<Life, usize>,
}

/// Orders operations. `known` are the names that were there before.
pub fn plan(mut records: Vec<Record<'static>>, known: &[&Known]) -> Plan {
    records.sort_by_key(|record| record.started_ns);
    let touched = touched(&records, known);
    let needed = needed_later(&records, &touched);
    let kept: HashSet<Life> = touched.iter().zip(&needed).filter_map(|(touched, needed)| touched.unnamed.filter(|_| *needed)).collect();
    let lane_of = lane_of_threads(&records);
    let count = lane_of.values().map(|lane| lane + 1).max().unwrap_or(0);
    let mut plan = Plan { lanes: (0..count).map(|_| Vec::new()).collect(), uses: HashMap::new() };
    let mut users = Users::default();
    for ((record, touched), is_needed_later) in records.into_iter().zip(touched).zip(needed) {
        let lane = lane_of[&record.thread];
        let position = Position { lane, index: plan.lanes[lane].len() };
        let mut after = Vec::new();
        touched.files.iter().for_each(|(file, _)| users.ended_before(*file, record.started_ns, lane, &mut after));
        // Of each lane the last one is enough.
        after.sort_unstable_by(|one, other| other.cmp(one));
        after.dedup_by_key(|position| position.lane);
        after.reverse();
        touched.files.iter().for_each(|(file, _)| users.uses(*file, position, end_ns(&record)));
        let kept: Vec<Life> = touched.files.into_iter().filter(|file| kept.contains(file)).collect();
        kept.iter().for_each(|file| *plan.uses.entry(*file).or_default() += 1);
        plan.lanes[lane].push(Step { record, after, is_needed_later, kept });
    }
    plan
}

fn end_ns(record: &Record<'_>) -> u64 {
    record.started_ns.saturating_add(record.took_ns)
}

/// For each operation, whether the file that it takes the name of is used by one that ends later.
fn needed_later(records: &[Record<'_>], touched: &[Touched]) -> Vec<bool> {
    let mut last_uses: HashMap<Life, usize> = HashMap::new();
    for (number, touched) in touched.iter().enumerate() {
        last_uses.extend(touched.files.iter().map(|file| (*file, number)));
    }
    let mut ends: HashMap<Life, u64> = HashMap::new();
    let mut needed = Vec::new();
    for (number, (record, touched)) in records.iter().zip(touched).enumerate() {
        let is_used = |file: Life| {
            last_uses.get(&file).is_some_and(|last| *last > number) || ends.get(&file).is_some_and(|end| *end > record.started_ns)
        };
        needed.push(touched.unnamed.is_some_and(is_used));
        for file in &touched.files {
            let end = ends.entry(*file).or_default();
            *end = (*end).max(end_ns(record));
        }
    }
    needed
}

/// Operations of one lane that were about a file.
#[derive(Default)]
struct Used {
    /// The last one that has ended.
    ended: Option<Position>,
    /// Those that may not have, and when they do. Several of one thread run at once where it is none: the kernel, a process by the direct
    /// door.
    running: Vec<(Position, u64)>,
}

impl Used {
    /// Times that are asked for rise.
    fn ended_before(&mut self, time_ns: u64) -> Option<Position> {
        let ended = &mut self.ended;
        self.running.retain(|(position, end_ns)| {
            let has_ended = *end_ns <= time_ns;
            if has_ended {
                *ended = (*ended).max(Some(*position));
            }
            !has_ended
        });
        *ended
    }
}

/// By lane, for each file.
#[derive(Default)]
struct Users(HashMap<u64, BTreeMap<usize, Used>>);

impl Users {
    fn uses(&mut self, file: u64, position: Position, end_ns: u64) {
        self.0.entry(file).or_default().entry(position.lane).or_default().running.push((position, end_ns));
    }

    fn ended_before(&mut self, file: u64, time_ns: u64, own_lane: usize, into: &mut Vec<Position>) {
        for (lane, used) in self.0.get_mut(&file).into_iter().flatten() {
            let ended = used.ended_before(time_ns);
            into.extend(ended.filter(|_| *lane != own_lane));
        }
    }
}

/// A lane for each thread ([RPO3]). The kernel's own operations have a thread of their own.
fn lane_of_threads(records: &[Record<'_>]) -> HashMap<u32, usize> {
    let mut lives: HashMap<u32, (u64, u64)> = HashMap::new();
    for record in records {
        let end = record.started_ns.saturating_add(record.took_ns);
        let life = lives.entry(record.thread).or_insert((record.started_ns, end));
        life.1 = life.1.max(end);
    }
    let mut lives: Vec<(u64, u64, u32)> = lives.into_iter().map(|(thread, (from, to))| (from, to, thread)).collect();
    lives.sort_unstable();
    let mut ends: Vec<u64> = Vec::new();
    let mut lanes = HashMap::new();
    for (from, to, thread) in lives {
        let lane = ends.iter().position(|end| *end < from).unwrap_or(ends.len());
        match ends.get_mut(lane) {
            Some(end) => *end = to,
            None => ends.push(to),
        }
        lanes.insert(thread, lane);
    }
    lanes
}

/// What an operation is about.
#[derive(Debug)]
struct Touched {
    /// Also those that it only names.
    files: Vec<Life>,
    /// The one that it takes a name of, or makes without one.
    unnamed: Option<Life>,
}

fn touched(records: &[Record<'_>], known: &[&Known]) -> Vec<Touched> {
    let mut names = Names::default();
    known.iter().for_each(|known| names.add(known.inode, (known.parent, known.name.clone())));
    let mut lives: HashMap<u64, u32> = HashMap::new();
    let touched = records.iter().map(|record| {
        let has_other = has_other(record.operation);
        let (first, second) = (names.last(record.inode, &record.name), names.last(record.other, &record.other_name));
        let mut files = vec![record.inode, first.0];
        files.extend(names.file(&first));
        if has_other {
            files.extend([record.other, second.0].into_iter().chain(names.file(&second)));
        }
        let mut unnamed = None;
        if record.errno == 0 {
            let found = found(record);
            files.extend(found);
            match record.operation {
                Operation::Unlink | Operation::Rmdir => unnamed = names.take(&first),
                Operation::Rename => {
                    let swaps = swaps(record);
                    unnamed = names.file(&second).filter(|file| !swaps && names.file(&first) != Some(*file));
                    names.moved(first, second, swaps);
                }
                _ => {
                    if let Some(inode) = found {
                        if is_new(record, &names) {
                            *lives.entry(inode).or_default() += 1;
                            names.clear(inode);
                        }
                        learn(&mut names, record, inode, first);
                        unnamed = found.filter(|_| record.operation == Operation::Tmpfile);
                    }
                }
            }
        }
        files.sort_unstable();
        files.dedup();
        let life = |inode: u64| (inode, lives.get(&inode).copied().unwrap_or_default());
        Touched { files: files.into_iter().map(life).collect(), unnamed: unnamed.map(life) }
    });
    touched.collect()
}

/// Whether a rename puts each of two files in the other one's place.
pub fn swaps(record: &Record<'_>) -> bool {
    record.flags & rustix::fs::RenameFlags::EXCHANGE.bits() != 0
}

/// What an operation that makes files has found is new. By the direct door it may have been there: then it has a name.
fn is_new(record: &Record<'_>, names: &Names) -> bool {
    let may_be_old = record.operation == Operation::Create && record.door == Door::Direct;
    makes(record) && !(may_be_old && names.name(record.value).is_some())
}

/// An operation has found a file by a name. Those of the direct door follow symbolic links.
pub fn learn(names: &mut Names, record: &Record<'_>, inode: u64, name: super::names::Name) {
    let is_sure = record.door == Door::Mount || record.operation == Operation::Link || is_new(record, names);
    if record.operation == Operation::Tmpfile || record.name.is_empty() || inode == record.inode {
        return;
    }
    if is_sure { names.add(inode, name) } else { names.add_first(inode, name) }
}

/// Whether the operation is about a name in a directory, by the mount.
pub fn takes_name(operation: Operation) -> bool {
    matches!(
        operation,
        Operation::Lookup
            | Operation::Symlink
            | Operation::Mknod
            | Operation::Mkdir
            | Operation::Unlink
            | Operation::Rmdir
            | Operation::Rename
            | Operation::Link
            | Operation::Create
    )
}

fn has_other(operation: Operation) -> bool {
    matches!(operation, Operation::Rename | Operation::Link | Operation::CopyRange)
}

/// The inode that an operation found or made under its name.
pub fn found(record: &Record<'_>) -> Option<u64> {
    let has = match record.operation {
        Operation::Lookup | Operation::Symlink | Operation::Mknod | Operation::Mkdir | Operation::Create | Operation::Tmpfile => true,
        Operation::Open | Operation::Link => !record.name.is_empty(),
        _ => false,
    };
    (has && record.errno == 0 && record.value != 0).then_some(record.value)
}

/// Whether it makes what it found.
pub fn makes(record: &Record<'_>) -> bool {
    let is_made =
        matches!(record.operation, Operation::Symlink | Operation::Mknod | Operation::Mkdir | Operation::Create | Operation::Tmpfile);
    is_made && record.errno == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandemfs_trace::Door;

    fn record(thread: u32, started_ns: u64, operation: Operation, inode: u64, name: &'static str, value: u64) -> Record<'static> {
        Record { thread, started_ns, took_ns: 5, name: name.as_bytes().into(), value, ..Record::new(operation, Door::Mount, inode) }
    }

    fn lanes(records: Vec<Record<'static>>, known: &[Known]) -> Lanes {
        plan(records, &known.iter().collect::<Vec<_>>()).lanes
    }

    fn after(lanes: &Lanes, lane: usize, index: usize) -> Vec<(usize, usize)> {
        lanes[lane][index].after.iter().map(|position| (position.lane, position.index)).collect()
    }

    #[test]
    fn what_is_used_is_made_before_and_what_goes_is_used_before() {
        let lanes = lanes(
            vec![
                record(7, 16, Operation::Unlink, 1, "a", 0),
                record(5, 0, Operation::Create, 1, "a", 9),
                record(6, 10, Operation::Write, 9, "", 3),
                record(6, 12, Operation::Write, 8, "", 3),
                record(5, 38, Operation::Read, 9, "", 3),
            ],
            &[],
        );
        assert_eq!(lanes.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 1]);
        assert_eq!(after(&lanes, 1, 0), [(0, 0)], "[RPO2]: it was made");
        assert_eq!(after(&lanes, 1, 1), [], "another file");
        // The unlink is about the directory and the file.
        assert_eq!(after(&lanes, 2, 0), [(0, 0), (1, 0)]);
        assert_eq!(after(&lanes, 0, 1), [(1, 0), (2, 0)]);
        assert!(lanes[2][0].is_needed_later && !lanes[0][1].is_needed_later, "it is read when it has no name");
    }

    #[test]
    fn threads_that_never_met_share_a_lane() {
        let one = |thread: u32, at: u64| record(thread, at, Operation::Statfs, u64::from(thread), "", 0);
        let lanes = lanes(vec![one(1, 0), one(2, 3), one(3, 10), one(1, 4), one(4, 100)], &[]);
        let threads: Vec<Vec<u32>> = lanes.iter().map(|lane| lane.iter().map(|step| step.record.thread).collect()).collect();
        assert_eq!(threads, [vec![1, 1, 3, 4], vec![2]], "[RPO3]");
    }

    #[test]
    fn names_are_followed_through_renames() {
        let known = [Known { inode: 3, parent: 1, size: 0, mode: 0o100_644, name: b"old".to_vec(), target: Vec::new() }];
        let rename = Record { other: 2, other_name: b"new".as_slice().into(), ..record(1, 10, Operation::Rename, 1, "old", 0) };
        let lanes = lanes(vec![record(2, 0, Operation::Read, 3, "", 0), rename, record(2, 20, Operation::Unlink, 2, "new", 0)], &known);
        assert_eq!(after(&lanes, 1, 0), [(0, 0)]);
        assert_eq!(after(&lanes, 0, 1), [(1, 0)]);
    }

    /// Some of one thread at once, as of a process by the direct door.
    #[test]
    fn of_operations_that_overlap_all_that_ended_are_waited_for() {
        let write = |at, took_ns| Record { took_ns, ..record(1, at, Operation::Write, 9, "", 3) };
        let all = [write(0, 100), write(10, 5), write(20, 80), write(25, 80), write(26, 80)];
        let read_at = |at| lanes(all.iter().cloned().chain([record(2, at, Operation::Read, 9, "", 3)]).collect(), &[]);
        assert_eq!(after(&read_at(30), 1, 0), [(0, 1)], "[RPO2]: the one that had ended, although three began after it");
        assert_eq!(after(&read_at(102), 1, 0), [(0, 2)]);
        assert_eq!(after(&read_at(9), 1, 0), []);
    }

    #[test]
    fn only_a_removed_file_that_is_used_later_is_kept_and_until_its_last_use() {
        let make = |at, inode| record(1, at, Operation::Create, 1, "a", inode);
        let remove = |at| record(1, at, Operation::Unlink, 1, "a", 0);
        let on = |at, operation, inode| record(1, at, operation, inode, "", 0);
        let plan = plan(
            vec![
                make(0, 9),
                remove(10), // the directory is used on, the number too: no reason to keep the file
                make(20, 9),
                on(30, Operation::Write, 9),
                remove(40),
                on(50, Operation::Read, 9),
                on(60, Operation::Release, 9),
                make(70, 9),
            ],
            &[],
        );
        let lane = &plan.lanes[0];
        assert_eq!(
            lane.iter().map(|step| step.is_needed_later).collect::<Vec<_>>(),
            [false, false, false, false, true, false, false, false]
        );
        assert_eq!(lane.iter().map(|step| step.kept.len()).collect::<Vec<_>>(), [0, 0, 1, 1, 1, 1, 1, 0]);
        assert_eq!(plan.uses, HashMap::from([((9, 2), 5)]));
    }

    #[test]
    fn a_file_that_is_renamed_over_is_lost_and_an_exchange_loses_none() {
        let rename =
            |at, flags: u32| Record { other: 1, other_name: b"b".as_slice().into(), flags, ..record(1, at, Operation::Rename, 1, "a", 0) };
        let read = |at, inode| record(1, at, Operation::Read, inode, "", 0);
        let known = [2, 3].map(|inode| Known {
            inode,
            parent: 1,
            size: 0,
            mode: 0o100_644,
            name: vec![b'a' + inode as u8 - 2],
            target: Vec::new(),
        });
        let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
        let all = |flags, then| {
            let lanes = lanes(vec![rename(0, flags), then, read(20, 2), read(30, 3)], &known);
            lanes[0].iter().map(|step| step.is_needed_later).collect::<Vec<_>>()
        };
        assert_eq!(all(0, read(10, 5)), [true, false, false, false]);
        assert_eq!(all(exchange, read(10, 5)), [false; 4]);
        // After the exchange "a" is inode 3, which is read later.
        assert_eq!(all(exchange, record(1, 10, Operation::Unlink, 1, "a", 0)), [false, true, false, false]);
        let lanes = lanes(vec![rename(0, exchange), record(1, 10, Operation::Unlink, 1, "a", 0), read(20, 2)], &known);
        assert!(lanes[0].iter().all(|step| !step.is_needed_later), "inode 3 is not");
    }

    #[test]
    fn a_file_is_the_same_by_a_path_and_in_its_directory() {
        let directory = record(1, 0, Operation::Mkdir, 1, "d", 5);
        let made = record(1, 10, Operation::Create, 5, "f", 9);
        let by_path = Record { door: Door::Direct, ..record(2, 20, Operation::Unlink, 1, "./d/f", 0) };
        let read = record(1, 30, Operation::Read, 9, "", 0);
        let lanes = lanes(vec![directory, made, by_path, read], &[]);
        assert!(lanes[1][0].is_needed_later);
        assert_eq!((after(&lanes, 1, 0), after(&lanes, 0, 2)), (vec![(0, 1)], vec![(1, 0)]));
    }
}
