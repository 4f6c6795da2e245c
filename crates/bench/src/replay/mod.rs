//! `tandemfs-bench replay`: runs a trace of `tandemfs trace` again in a directory of any file system. First it makes the names that the trace needs,
//! then it repeats the operations: those of one thread in their order, those of several beside each other as far as they did not wait for each
//! other (`order.rs`). `places.rs` knows where the trace's files are (`names.rs`: by which names), `act.rs` makes an operation system
//! calls. A trace has no bytes of files: what is written is made up. It may be anybody's, and is not trusted ([RPP1]).

mod act;
mod names;
mod order;
mod places;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{self, File};
use std::io::BufReader;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::json;
use tandemfs_trace::{Door, End, Frame, Known, Operation, Reader, Record};

use crate::arguments::ReplayArguments;
use crate::failure::{Failure, Result};
use crate::machine;
use crate::output::say;
use act::{Actor, Outcome};
use order::{Lanes, Position, Step};
use places::Places;

/// Differences that are shown.
const SHOWN_MAX: usize = 10;
/// Longest sleep between looks at what an operation waits for.
const LOOK_EVERY: Duration = Duration::from_micros(50);
/// Longest sleep between looks at signals.
const SLEEP_MAX: Duration = Duration::from_millis(100);
const STACK_BYTES: usize = 512 << 10;

/// A trace in memory.
struct Trace {
    known: Vec<Known>,
    records: Vec<Record<'static>>,
    /// None if its recorder was killed.
    end: Option<End>,
}

fn load(path: &Path) -> Result<Trace> {
    let failed = |error: &dyn std::fmt::Display| Failure::new(format!("{}: {error}", path.display()));
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut reader = Reader::new(BufReader::new(file)).map_err(|error| failed(&error))?;
    let mut trace = Trace { known: Vec::new(), records: Vec::new(), end: None };
    while let Some(frame) = reader.next_frame().map_err(|error| failed(&error))? {
        match frame {
            Frame::Tree(known) => trace.known.extend(known),
            Frame::Operations(records) => trace.records.extend(records),
            Frame::End(end) => trace.end = Some(end),
        }
    }
    trace.records.sort_by_key(|record| record.started_ns);
    if let Some(name) = trace.no_name() {
        return Err(failed(&format!("'{}' is no name that a file can have; this is no trace that was recorded", name.escape_ascii())));
    }
    Ok(trace)
}

impl Trace {
    /// What stands for a name and is none. Only by the direct door there are paths.
    fn no_name(&self) -> Option<&[u8]> {
        let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..") && !name.iter().any(|byte| matches!(byte, b'/' | 0));
        let known = self.known.iter().filter(|known| known.parent != 0).map(|known| known.name.as_slice());
        let by_mount = self.records.iter().filter(|record| record.door == Door::Mount);
        let names = by_mount.flat_map(|record| {
            // The kernel looks these two up, for servers of NFS.
            let is_up = record.operation == Operation::Lookup && matches!(&*record.name, b"." | b"..");
            let name = (order::takes_name(record.operation) && !is_up).then_some(&*record.name);
            let other_name = (record.operation == Operation::Rename).then_some(&*record.other_name);
            name.into_iter().chain(other_name)
        });
        known.chain(names).find(|name| !is_name(name))
    }

    fn root(&self) -> u64 {
        self.known.iter().find(|known| known.parent == 0).map_or(1, |root| root.inode)
    }

    /// The names that were there before the first operation and are needed, or all of those; directories before what is in them.
    fn names(&self, all: bool) -> Vec<&Known> {
        let mut first_uses: HashMap<(u64, &[u8]), &Record<'_>> = HashMap::new();
        let mut used: HashSet<u64> = HashSet::new();
        let mut made_before_use: HashSet<u64> = HashSet::new();
        for record in &self.records {
            if record.errno == 0 && !record.name.is_empty() {
                first_uses.entry((record.inode, &*record.name)).or_insert(record);
            }
            if let Some(inode) = order::found(record)
                && order::makes(record)
                && !used.contains(&inode)
            {
                made_before_use.insert(inode);
            }
            used.extend([record.inode, record.other].into_iter().chain(order::found(record)));
        }
        // The walk that found the names ran while operations did: a name that an operation made was not there before it. By the direct door an
        // operation that makes a file may have found it.
        let is_made_later = |known: &Known| {
            let first = first_uses.get(&(known.parent, known.name.as_slice()));
            let is_sure = |record: &&&Record<'_>| record.door == Door::Mount || record.operation != Operation::Create;
            let makes = first.filter(is_sure).is_some_and(|record| order::makes(record) && record.value == known.inode);
            makes && made_before_use.contains(&known.inode)
        };
        let by_inode: HashMap<u64, &Known> = self.known.iter().map(|known| (known.inode, known)).collect();
        let mut needed: HashSet<u64> = HashSet::new();
        let paths: HashSet<(u64, &[u8])> = self
            .records
            .iter()
            .flat_map(|record| [(record.inode, &*record.name), (record.other, &*record.other_name)])
            .filter(|(_, name)| !name.is_empty())
            .collect();
        // By the direct door a path may lead through directories that nothing else names.
        let has_paths = paths.iter().any(|(_, name)| name.contains(&b'/'));
        for known in &self.known {
            if all || has_paths || used.contains(&known.inode) || paths.contains(&(known.parent, known.name.as_slice())) {
                needed.insert(known.inode);
            }
        }
        // What they are in, too: by each of their names.
        let directly: Vec<&Known> = self.known.iter().filter(|known| needed.contains(&known.inode)).collect();
        for known in directly {
            let mut at = by_inode.get(&known.parent);
            while let Some(directory) = at.filter(|directory| needed.insert(directory.inode)) {
                at = by_inode.get(&directory.parent);
            }
        }
        let depth = |known: &Known| {
            let mut at = known;
            (0..1000).find(|_| by_inode.get(&at.parent).is_none_or(|parent| std::mem::replace(&mut at, parent).parent == 0)).unwrap_or(1000)
        };
        let mut names: Vec<(usize, &Known)> = self
            .known
            .iter()
            .filter(|known| needed.contains(&known.inode) && !is_made_later(known))
            .map(|known| (depth(known), known))
            .collect();
        names.sort_by_key(|(depth, _)| *depth);
        names.into_iter().map(|(_, known)| known).collect()
    }
}

/// Times and results of one kind of operation.
struct Kind {
    count: u64,
    /// Times of those with the same result: what fails, or is not done, is no work.
    recorded: Histogram<u64>,
    repeated: Histogram<u64>,
    differ: u64,
    skipped: u64,
}

impl Kind {
    fn new() -> Result<Self> {
        let histogram = || Histogram::new_with_bounds(1, 3_600_000_000_000, 2).map_err(|error| Failure::new(error.to_string()));
        Ok(Self { count: 0, recorded: histogram()?, repeated: histogram()?, differ: 0, skipped: 0 })
    }

    fn add(&mut self, other: &Self) -> Result<()> {
        let failed = |error: hdrhistogram::errors::AdditionError| Failure::new(error.to_string());
        self.recorded.add(&other.recorded).map_err(failed)?;
        self.repeated.add(&other.repeated).map_err(failed)?;
        self.count += other.count;
        self.differ += other.differ;
        self.skipped += other.skipped;
        Ok(())
    }
}

type Kinds = BTreeMap<(&'static str, &'static str), Kind>;

/// What one lane has done.
#[derive(Default)]
struct Done {
    kinds: Kinds,
    /// Some of what differed, in words.
    differences: Vec<String>,
}

/// Runs a trace again.
pub fn run(asked: &ReplayArguments) -> Result<()> {
    let trace = load(&asked.trace)?;
    let place = &asked.directory;
    let mut entries =
        fs::read_dir(place).map_err(|error| Failure::new(format!("{}: {error}; name an empty directory", place.display())))?;
    if entries.next().is_some() {
        return Err(Failure::new(format!("{}: there is something in it; name an empty directory", place.display())));
    }
    let names = trace.names(asked.all);
    let plan = order::plan(trace.records.clone(), &names);
    open_files_as_allowed();
    let places = Places::new(place, trace.root(), plan.uses, asked.synchronous)?;
    let left_out = places.create(&names)?;
    let lanes = plan.lanes;
    let start = Instant::now();
    let mut done = Done::default();
    for lane in run_lanes(&lanes, &places, asked.speed, lane_thread)? {
        for (kind, found) in lane.kinds {
            match done.kinds.get_mut(&kind) {
                Some(kind) => kind.add(&found)?,
                None => drop(done.kinds.insert(kind, found)),
            }
        }
        done.differences.extend(lane.differences);
    }
    if machine::check().is_err() {
        return Err(Failure::new(format!("interrupted; what was made so far is in {}", place.display())));
    }
    show(asked, &trace, (names.len() - left_out, left_out), (lanes.len(), start.elapsed()), &done)
}

/// A trace may have many removed files open at once.
fn open_files_as_allowed() {
    let limit = getrlimit(Resource::Nofile);
    let _best_effort = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

fn lane_thread(_lane: usize) -> std::thread::Builder {
    std::thread::Builder::new().stack_size(STACK_BYTES)
}

/// How far the lanes are.
struct Progress {
    /// Operations of each that have ended.
    ended: Vec<AtomicUsize>,
    /// One has failed: the others end too.
    failed: AtomicBool,
}

impl Progress {
    fn goes_on(&self) -> bool {
        !self.failed.load(SeqCst) && machine::check().is_ok()
    }

    /// False if it never comes about.
    fn wait_for(&self, position: Position) -> bool {
        let mut looks = 0_u32;
        while self.ended[position.lane].load(SeqCst) <= position.index {
            if self.failed.load(SeqCst) {
                return false;
            }
            looks += 1;
            if looks < 100 { std::thread::yield_now() } else { std::thread::sleep(LOOK_EVERY) }
        }
        true
    }

    /// False if it goes on no more before.
    fn sleep_until(&self, due: Instant) -> bool {
        while self.goes_on() {
            match due.saturating_duration_since(Instant::now()) {
                Duration::ZERO => return true,
                left => std::thread::sleep(left.min(SLEEP_MAX)),
            }
        }
        false
    }
}

/// Runs all lanes beside each other, each in a thread that `thread` describes.
fn run_lanes(lanes: &Lanes, places: &Places, speed: Option<f64>, thread: fn(usize) -> std::thread::Builder) -> Result<Vec<Done>> {
    let progress = Progress { ended: lanes.iter().map(|_| AtomicUsize::new(0)).collect(), failed: AtomicBool::new(false) };
    let start = Instant::now();
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for lane in 0..lanes.len() {
            let progress = &progress;
            let run = move || {
                let _ends = Ends { progress, lane };
                run_lane(lane, &lanes[lane], places, progress, (start, speed))
            };
            match thread(lane).spawn_scoped(scope, run) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    // Those that were started would wait for this one.
                    progress.failed.store(true, SeqCst);
                    return Err(Failure::new(format!("the trace has {} threads at once: {error}", lanes.len())));
                }
            }
        }
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(Failure::new("a thread of the replay panicked")))).collect()
    })
}

/// Nobody waits for a lane that has ended, however it did.
struct Ends<'p> {
    progress: &'p Progress,
    lane: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.progress.failed.store(true, SeqCst);
        }
        self.progress.ended[self.lane].store(usize::MAX, SeqCst);
    }
}

fn run_lane(lane: usize, steps: &[Step], places: &Places, progress: &Progress, (start, speed): (Instant, Option<f64>)) -> Result<Done> {
    let mut done = Done::default();
    let mut actor = Actor::new(places);
    for (index, step) in steps.iter().enumerate() {
        let record = &step.record;
        let due = speed.map(|speed| start + Duration::from_nanos((record.started_ns as f64 / speed) as u64));
        let is_ready = progress.goes_on() && step.after.iter().all(|position| progress.wait_for(*position)); // [RPO2]
        if !is_ready || !due.is_none_or(|due| progress.sleep_until(due)) {
            return Ok(done);
        }
        let began = Instant::now();
        let outcome = actor.act(record, step.is_needed_later);
        let took_ns = began.elapsed().as_nanos() as u64;
        progress.ended[lane].store(index + 1, SeqCst);
        places.used(&step.kept);
        note(&mut done, record, outcome, took_ns)?;
    }
    Ok(done)
}

fn note(done: &mut Done, record: &Record<'_>, outcome: Outcome, took_ns: u64) -> Result<()> {
    let key = (act::way(record), record.operation.name());
    let kind = match done.kinds.entry(key) {
        std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
        std::collections::btree_map::Entry::Vacant(entry) => entry.insert(Kind::new()?),
    };
    kind.count += 1;
    if matches!(outcome, Outcome::Skipped(_)) {
        kind.skipped += 1;
    } else if act::is_same(record, outcome) {
        kind.recorded.saturating_record(record.took_ns.max(1));
        kind.repeated.saturating_record(took_ns.max(1));
    } else {
        kind.differ += 1;
        if done.differences.len() < SHOWN_MAX {
            let name = String::from_utf8_lossy(&record.name);
            done.differences.push(format!(
                "{} of inode {} '{name}' at {} s: the trace has error {} and {}, here it is {outcome:?}",
                record.operation.name(),
                record.inode,
                record.started_ns as f64 / 1e9,
                record.errno,
                record.value
            ));
        }
    }
    Ok(())
}

fn line(text: &str) -> Result<()> {
    say(&format!("{text}\n"))
}

fn show(
    asked: &ReplayArguments,
    trace: &Trace,
    (names, left_out): (usize, usize),
    (lanes, took): (usize, Duration),
    done: &Done,
) -> Result<()> {
    let sum = |of: fn(&Kind) -> u64| done.kinds.values().map(of).sum::<u64>();
    let (differ, skipped) = (sum(|kind| kind.differ), sum(|kind| kind.skipped));
    let recorded_ns = trace.records.iter().map(|record| record.started_ns.saturating_add(record.took_ns)).max().unwrap_or(0);
    if asked.json {
        let kinds = done.kinds.iter().map(|((way, name), kind)| {
            json!({
                "operation": name, "way": way, "count": kind.count, "differ": kind.differ, "skipped": kind.skipped,
                "recorded_p50_ns": kind.recorded.value_at_quantile(0.5), "recorded_p99_ns": kind.recorded.value_at_quantile(0.99),
                "p50_ns": kind.repeated.value_at_quantile(0.5), "p99_ns": kind.repeated.value_at_quantile(0.99),
            })
        });
        return line(
            &json!({
                "trace": asked.trace.to_string_lossy(), "directory": asked.directory.to_string_lossy(), "names": names,
                "names_left_out": left_out, "lanes": lanes,
                "operations": trace.records.len(), "dropped": trace.end.map(|end| end.dropped), "complete": trace.end.is_some(),
                "recorded_seconds": recorded_ns as f64 / 1e9, "seconds": took.as_secs_f64(), "differ": differ, "skipped": skipped,
                "differences": done.differences, "kinds": kinds.collect::<Vec<_>>(),
            })
            .to_string(),
        );
    }
    line(&format!(
        "{:<20} {:>9} {:>12} {:>12} {:>12} {:>12} {:>8}",
        "operation", "count", "p50 trace", "p50 here", "p99 trace", "p99 here", "differ"
    ))?;
    for ((way, name), kind) in &done.kinds {
        let us = |histogram: &Histogram<u64>, quantile: f64| format!("{:.1} us", histogram.value_at_quantile(quantile) as f64 / 1e3);
        let name = if *way == "mount" { (*name).to_owned() } else { format!("{name} (direct)") };
        let (was, is) = (&kind.recorded, &kind.repeated);
        line(&format!(
            "{name:<20} {:>9} {:>12} {:>12} {:>12} {:>12} {:>8}",
            kind.count,
            us(was, 0.5),
            us(is, 0.5),
            us(was, 0.99),
            us(is, 0.99),
            kind.differ
        ))?;
    }
    for difference in done.differences.iter().take(SHOWN_MAX) {
        line(difference)?;
    }
    if trace.end.is_none_or(|end| end.dropped > 0) {
        line("the trace is incomplete: operations were dropped, or its recorder was killed")?;
    }
    if left_out > 0 {
        line(&format!("{left_out} names of the tree were left out: they were moved or removed while the trace's walk went over them"))?;
    }
    line(&format!(
        "{} operations by {lanes} threads in {:.2} s (recorded in {:.2} s), {differ} with another result, {skipped} left out",
        trace.records.len(),
        took.as_secs_f64(),
        recorded_ns as f64 / 1e9
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(inode: u64, parent: u64, name: &str, mode: u32) -> Known {
        Known { inode, parent, size: 0, mode, name: name.into(), target: Vec::new() }
    }

    #[test]
    fn a_file_is_made_with_all_of_its_names_and_what_they_are_in() {
        let known = vec![
            known(1, 0, "", 0o040_755),
            known(2, 1, "one", 0o040_755),
            known(3, 1, "other", 0o040_755),
            known(4, 3, "deep", 0o040_755),
            known(5, 1, "not needed", 0o040_755),
            known(9, 2, "a", 0o100_644),
            known(9, 4, "b", 0o100_644),
        ];
        let records = vec![Record::new(Operation::Read, Door::Mount, 9)];
        let trace = Trace { known, records, end: None };
        let names: Vec<&[u8]> = trace.names(false).iter().map(|known| known.name.as_slice()).collect();
        assert_eq!(names, [b"".as_slice(), b"one", b"other", b"deep", b"a", b"b"]);
    }

    /// A lane that cannot begin ends the others, which would wait for it.
    #[test]
    fn a_thread_that_cannot_be_made_ends_the_replay() {
        let directory = tempfile::tempdir().expect("a directory");
        let record = |thread, started_ns| Record { thread, started_ns, took_ns: 5, ..Record::new(Operation::Getattr, Door::Mount, 1) };
        // The first lane's last operation waits for the second lane.
        let plan = order::plan(vec![record(1, 0), record(2, 10), record(1, 20)], &[]);
        assert_eq!(plan.lanes.len(), 2);
        let places = Places::new(directory.path(), 1, plan.uses, false).expect("a directory");
        let thread = |lane| if lane == 1 { std::thread::Builder::new().stack_size(1 << 60) } else { lane_thread(lane) };
        let error = run_lanes(&plan.lanes, &places, None, thread).err().expect("no stack is as large").to_string();
        assert!(error.starts_with("the trace has 2 threads at once: "), "{error}");
        assert_eq!(run_lanes(&plan.lanes, &places, None, lane_thread).expect("it runs").len(), 2);
    }
}
