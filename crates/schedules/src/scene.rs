//! A workload of a few threads: run under a schedule, compared with the reference model, cut in places, recovered and compared again.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use tandemfs_crash::{
    Answer, Bound, Call, CrashState, Cut, Event, Harness, History, MemoryDevice, Model, Operation, PausingDevice, Random, Recorded, SLOTS,
    Setting, Step, Tree, check_device, each_state, mount, mount_device,
};
use tandemfs_fs::FileSystem;

/// Checks after each schedule.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Crash states that are recovered, roughly.
    pub states: u64,
    /// One of so many recovered states goes through `tandemfs_check`, before and after recovery; 0 for none.
    pub check_one_in: u64,
    /// One of so many schedules ends with a comparison of space and `tandemfs_check`; 0 for none.
    pub finish_one_in: u64,
}

impl Effort {
    /// Schedules alone.
    pub const SCHEDULES: Self = Self { states: 0, check_one_in: 0, finish_one_in: 1 };
    /// Schedules and their crash states.
    pub const CUTS: Self = Self { states: 6, check_one_in: 4, finish_one_in: 4 };
}

/// The workload of one schedule.
#[derive(Debug, Clone, Default)]
pub struct Workload {
    /// Executed first by a single thread: opens files.
    pub first: Vec<Operation>,
    /// One list for each thread.
    pub threads: Vec<Vec<Step>>,
    /// One bit a thread: it first tries each step without waiting, again and again, as the caller of `no_wait` may.
    pub trying: u64,
}

/// A prepared file system on which workloads run.
pub struct Scene {
    base: Arc<Recorded>,
    setting: Setting,
    model: Model,
    bound: Vec<&'static str>,
    recovered: AtomicU64,
}

impl Scene {
    /// Formats, does the preparation and unmounts. Workloads lead through these directories alone; files among them are
    /// meant as inodes, not by name.
    ///
    /// Locks cannot be taken outside of a schedule, so the preparation runs in its own execution.
    ///
    /// # Errors
    /// Where the preparation disagrees with the model.
    pub fn new(setting: &Setting, preparation: &'static [Operation], bound: &[&'static str]) -> Result<Self, String> {
        let prepared: Arc<Mutex<Option<(Recorded, Model)>>> = Arc::default();
        let (result, own) = (prepared.clone(), setting.clone());
        crate::explore("preparation", 1, move |_| {
            let mut harness = Harness::new(own.format(), &own.mount, Model::default())?;
            for operation in preparation {
                harness.apply(operation)?;
            }
            harness.compare()?;
            harness.fs.unmount().map_err(|error| format!("unmount: {error}"))?;
            *result.lock().unwrap_or_else(PoisonError::into_inner) = Some((harness.device.zones(), harness.model.clone()));
            Ok(())
        })?;
        let (base, mut model) =
            prepared.lock().unwrap_or_else(PoisonError::into_inner).take().ok_or_else(|| "the preparation did not end".to_owned())?;
        model.bind(bound);
        Ok(Self { base: Arc::new(base), setting: setting.clone(), model, bound: bound.to_vec(), recovered: AtomicU64::new(0) })
    }

    /// Crash states that were recovered so far.
    pub fn recovered(&self) -> u64 {
        self.recovered.load(Relaxed)
    }

    /// Runs a workload in the caller's schedule and checks the result.
    ///
    /// # Errors
    /// A description of the failure.
    pub fn run(&self, workload: &Workload, effort: Effort, random: &mut Random) -> Result<(), String> {
        self.run_workload(workload, effort, random).map_err(|what| format!("{what}\n{workload:?}"))
    }

    fn run_workload(&self, workload: &Workload, effort: Effort, random: &mut Random) -> Result<(), String> {
        let device = self.setting.over(self.base.clone());
        let yielding = Arc::new(PausingDevice::new(device.clone(), shuttle::thread::yield_now));
        let fs = Arc::new(mount_device(yielding, &self.setting.mount).map_err(|error| format!("mount: {error}"))?);
        let bound = Arc::new(Bound::new(&fs, &self.bound).map_err(|error| format!("binding: {error}"))?);
        let mut model = self.model.clone();
        for operation in &workload.first {
            bound.perform(&fs, &Step::Do(*operation))?;
            model.apply(operation).map_err(|refusal| format!("{operation:?}: {refusal:?}"))?;
        }
        // All acknowledged work is durable, so earlier records are not needed.
        let start = device.fork();
        device.start_recording();
        let history = perform(&fs, &bound, &device, workload)?;
        let tree = Tree::read(&fs)?;
        let events = device.stop_recording();
        let mut end = history.explain(&model, &tree)?;
        if effort.states > 0 {
            self.cut(&start, &events, &history, &model, effort, random)?;
        }
        if effort.finish_one_in > 0 && random.one_in(effort.finish_one_in) {
            self.finish(&fs, &bound, &device, &mut end)?;
        }
        Ok(())
    }

    /// Final checks: space equals a rebuild, `tandemfs_check` finds nothing, the tree is the same after a clean mount.
    fn finish(&self, fs: &FileSystem, bound: &Bound, device: &MemoryDevice, model: &mut Model) -> Result<(), String> {
        for slot in 0..SLOTS {
            bound.perform(fs, &Step::Do(Operation::Forget(slot)))?;
            let _always = model.apply(&Operation::Forget(slot));
        }
        fs.checkpoint().map_err(|error| format!("checkpoint at the end: {error}"))?;
        let rebuilt = mount(&device.fork(), &self.setting.mount)?;
        let (live, found) = (fs.space(), rebuilt.space());
        if live != found {
            return Err(format!("space at the end {live:?}, rebuilt {found:?}"));
        }
        fs.unmount().map_err(|error| format!("unmount: {error}"))?;
        check_device(device, false)?;
        let again = mount(device, &self.setting.mount)?;
        Tree::read(&again)?.difference(&model.tree()).map_or(Ok(()), |what| Err(format!("after unmount and mount: {what}")))
    }

    fn cut(
        &self,
        start: &MemoryDevice,
        events: &[Event],
        history: &History,
        model: &Model,
        effort: Effort,
        random: &mut Random,
    ) -> Result<(), String> {
        let is_mark = |event: &&Event| matches!(event, Event::Call(_) | Event::Return(_));
        let mut known: HashMap<(usize, u64), ()> = HashMap::new();
        let mut failure = None;
        let one_in = (events.len() as u64 * 2 / effort.states).max(1);
        let mut chosen = Random::new(random.next());
        each_state(start, events, 0, 2, random, &mut |cut, state| {
            if failure.is_some() || cut.call.is_none() || !chosen.one_in(one_in) {
                return;
            }
            let instant = events[..cut.event].iter().filter(is_mark).count();
            if known.insert((instant, state.hash), ()).is_some() {
                return;
            }
            let check = effort.check_one_in > 0 && chosen.one_in(effort.check_one_in);
            let result = self.recover(state, &history.until(instant), model, check);
            failure = result.err().map(|what| format!("{}: {what}", describe(cut, events)));
        });
        failure.map_or(Ok(()), Err)
    }

    fn recover(&self, state: CrashState, history: &History, model: &Model, check: bool) -> Result<(), String> {
        if check {
            check_device(&state.device, true).map_err(|what| format!("check before recovery: {what}"))?;
        }
        self.recovered.fetch_add(1, Relaxed);
        let fs = mount(&state.device, &self.setting.mount)?;
        let tree = Tree::read(&fs)?;
        history.explain(model, &tree)?;
        if check {
            fs.unmount().map_err(|error| format!("unmount after recovery: {error}"))?;
            check_device(&state.device, false).map_err(|what| format!("check after recovery: {what}"))?;
        }
        Ok(())
    }
}

fn describe(cut: Cut, events: &[Event]) -> String {
    let near = &events[cut.event.saturating_sub(3)..events.len().min(cut.event + 2)];
    let near: Vec<String> = near.iter().map(|event| format!("{event:.60?}").chars().take(90).collect()).collect();
    format!("{cut:?} of {} events, near {near:?}", events.len())
}

/// How often a step is tried before it waits.
const TRIES: usize = 6;

/// A step by a thread that tries it some times before it waits. What a refusal left behind shows in the answers, or at the end.
fn perform_trying(fs: &FileSystem, bound: &Bound, step: &Step) -> Result<Answer, String> {
    for _ in 0..TRIES {
        if let Some(answer) = bound.try_perform(fs, step)? {
            return Ok(answer);
        }
        shuttle::thread::yield_now();
    }
    bound.perform(fs, step)
}

/// Calls that the threads have made so far; the time is the number of marks in the device's record.
#[derive(Default)]
struct Log {
    calls: Vec<Call>,
    now: usize,
    failure: Option<String>,
}

fn perform(fs: &Arc<FileSystem>, bound: &Arc<Bound>, device: &MemoryDevice, workload: &Workload) -> Result<History, String> {
    let log: Arc<Mutex<Log>> = Arc::default();
    let trying = workload.trying;
    let running: Vec<_> = workload
        .threads
        .iter()
        .cloned()
        .enumerate()
        .map(|(thread, steps)| {
            let (fs, bound, device, log) = (fs.clone(), bound.clone(), device.clone(), log.clone());
            shuttle::thread::spawn(move || {
                for step in steps {
                    // No scheduling point lies between the tick of the clock and the mark.
                    let index = {
                        let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                        let (index, begun) = (log.calls.len(), log.now);
                        log.now += 1;
                        log.calls.push(Call { thread, step, begun, returned: None });
                        device.mark(index);
                        index
                    };
                    let answer = match trying >> thread & 1 {
                        0 => bound.perform(&fs, &step),
                        _ => perform_trying(&fs, &bound, &step),
                    };
                    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                    let returned = log.now;
                    log.now += 1;
                    device.mark_return(index);
                    match answer {
                        Ok(answer) => log.calls[index].returned = Some((returned, answer)),
                        Err(what) => {
                            log.failure.get_or_insert(what);
                            return;
                        }
                    }
                }
            })
        })
        .collect();
    for thread in running {
        thread.join().map_err(|_| "a thread panicked".to_owned())?;
    }
    let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
    let history = History(std::mem::take(&mut log.calls));
    log.failure.take().map_or(Ok(()), |what| Err(format!("{what}\n{}", history.describe())))?;
    Ok(history)
}
