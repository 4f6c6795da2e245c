//! The write log compared with a reference model: a plain array of lines with visible contents, committed contents, and the stores of open
//! transactions; power failures between any two steps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tandemfs_device::DeviceError;
use tandemfs_format::{LINE_BYTES, Line, PAGE_LINES};

use super::*;
use crate::medium::test_medium::TestMedium;
use crate::medium::{FLASH_PAGE_BYTES, PhysicalPage, Spare};

const LOGICAL_PAGES: u64 = 8;
const LINES: u64 = LOGICAL_PAGES * PAGE_LINES;
/// 64 lines, 16 transactions.
const OPTIONS: WriteLogOptions = WriteLogOptions { log_bytes: 4096, transaction_log_bytes: 64, clean_at_percent: 85 };
/// What random runs use in turn; a ring's length need be no power of two.
const SIZES: [WriteLogOptions; 4] = [
    OPTIONS,
    WriteLogOptions { log_bytes: 8192, clean_at_percent: 50, ..OPTIONS },
    WriteLogOptions { clean_at_percent: 95, ..OPTIONS },
    WriteLogOptions { log_bytes: 3 * 4096, transaction_log_bytes: 128, clean_at_percent: 70 },
];
/// Where the log is, behind the translation of [`TestPages`].
const LOG_OFFSET: u64 = 4096;

/// Pages over the flash of a [`TestMedium`]: always written elsewhere, then one 8 B store switches the translation entry.
#[derive(Debug)]
struct TestPages {
    medium: Arc<TestMedium>,
    next_physical: u64,
    /// The flash refuses writes.
    is_worn_out: bool,
}

impl TestPages {
    fn physical(&self, logical: u64) -> Result<Option<PhysicalPage>, DeviceError> {
        let mut entry = [0; 8];
        self.medium.load(logical * 8, &mut entry)?;
        Ok(u64::from_le_bytes(entry).checked_sub(1).map(PhysicalPage))
    }
}

impl Pages for TestPages {
    fn read(&mut self, logical: u64, into: &mut PageBytes) -> Result<(), DeviceError> {
        match self.physical(logical)? {
            Some(page) => self.medium.read_page(page, into),
            None => {
                into.fill(0);
                Ok(())
            }
        }
    }

    fn write(&mut self, logical: u64, from: &PageBytes, stamp: u64) -> Result<(), DeviceError> {
        if self.is_worn_out {
            return Err(DeviceError::Firmware { device: "test".into(), command: "write", reason: "no spare block is left".into() });
        }
        let old = self.physical(logical)?;
        self.next_physical += 1;
        self.medium.program_page(PhysicalPage(self.next_physical), from, Spare { logical_plus_one: logical + 1, stamp })?;
        self.medium.store(logical * 8, &(self.next_physical + 1).to_le_bytes())?;
        old.map_or(Ok(()), |old| self.medium.erase(old, 1))
    }

    fn stamp(&self, logical: u64) -> Result<u64, DeviceError> {
        self.physical(logical)?.map_or(Ok(0), |page| Ok(self.medium.spare(page)?.stamp))
    }

    fn discard(&mut self, logical: u64, stamp: u64) -> Result<(), DeviceError> {
        self.write(logical, &[0; FLASH_PAGE_BYTES], stamp)
    }

    fn is_mapped(&self, logical: u64) -> Result<bool, DeviceError> {
        Ok(self.physical(logical)?.is_some())
    }
}

/// The lines of a drive; a line is as good as one number.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Model {
    visible: Vec<u64>,
    committed: Vec<u64>,
    open: BTreeMap<u32, BTreeMap<u64, u64>>,
    /// Transactions committed since the TxLog was emptied for certain.
    known: BTreeSet<u32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Store { transaction: u32, line: u64, value: u64 },
    Commit { transaction: u32 },
    WriteBlock { page: u64, value: u64 },
    Discard { page: u64 },
    ReadBlock { page: u64 },
    Load { line: u64 },
    Settle { budget_pages: u32 },
    Clean,
    Recover,
    Reopen,
}

/// Numbers that look drawn.
#[derive(Debug, Clone)]
struct Draw(u64);

impl Draw {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

/// What steps are drawn.
#[derive(Debug, Clone, Copy)]
struct Mix {
    /// Transactions that may be open beside each other.
    transactions: u64,
    /// Places in a page that stores go to.
    places: u64,
    /// Whether transactions store to lines of their own only, as those of a file system do.
    is_disjoint: bool,
    /// Weight of commits, in percent.
    commits: u64,
}

const MIXES: [Mix; 4] = [
    Mix { transactions: 3, places: 3, is_disjoint: false, commits: 15 },
    Mix { transactions: 3, places: 30, is_disjoint: true, commits: 12 },
    // Long transactions: their lines meet several cleanings.
    Mix { transactions: 2, places: 6, is_disjoint: true, commits: 3 },
    // The TxLog fills first.
    Mix { transactions: 2, places: 2, is_disjoint: false, commits: 40 },
];

fn draw_steps(seed: u64, mix: Mix, count: usize) -> Vec<Step> {
    let mut draw = Draw(seed);
    let mut numbers: Vec<u32> = (1..=mix.transactions as u32).collect();
    let mut last_number = mix.transactions as u32;
    let mut value = 0;
    let mut has_stored: BTreeSet<u32> = BTreeSet::new();
    let mut steps = Vec::new();
    while steps.len() < count {
        value += 1;
        let which = draw.below(mix.transactions) as usize;
        let page = draw.below(LOGICAL_PAGES);
        let mut line = page * PAGE_LINES + draw.below(mix.places) * 2;
        let kind = draw.below(100);
        let step = if draw.below(100) < mix.commits {
            let transaction = numbers[which];
            if !has_stored.remove(&transaction) {
                continue;
            }
            // Small numbers, so that they come again and meet their TxLog entries.
            last_number = last_number % 60 + 1;
            while numbers.contains(&last_number) {
                last_number = last_number % 60 + 1;
            }
            numbers[which] = last_number;
            Step::Commit { transaction }
        } else {
            match kind {
                0..55 => {
                    let transaction = if draw.below(2) == 0 { 0 } else { numbers[which] };
                    if mix.is_disjoint {
                        // Of four neighbours one is everybody's, and each transaction has one.
                        line = (line & !3) + if transaction == 0 { 0 } else { 1 + which as u64 };
                    }
                    has_stored.insert(transaction);
                    Step::Store { transaction, line, value }
                }
                55..60 => Step::WriteBlock { page, value },
                60..62 => Step::Discard { page },
                62..70 => Step::ReadBlock { page },
                70..84 => Step::Load { line },
                84..96 => Step::Settle { budget_pages: 1 + draw.below(3) as u32 },
                // Rarely: each empties the log, and it should fill.
                _ => match draw.below(20) {
                    0..3 => Step::Clean,
                    3 => Step::Recover,
                    4 => Step::Reopen,
                    _ => continue,
                },
            }
        };
        if matches!(step, Step::Recover | Step::Reopen) {
            has_stored.clear();
        }
        steps.push(step);
    }
    steps
}

fn line_of(value: u64) -> Line {
    let mut bytes: Line = [0; _];
    for (index, word) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        // Every word says which line it is of, so that a torn line shows.
        *word = if value == 0 { [0; 8] } else { (value << 8 | index as u64).to_le_bytes() };
    }
    bytes
}

fn page_of(value: u64) -> PageBytes {
    let mut bytes = [0; FLASH_PAGE_BYTES];
    bytes.as_chunks_mut::<LINE_BYTES>().0.fill(line_of(value));
    bytes
}

impl Model {
    fn new() -> Self {
        let lines = vec![0; LINES as usize];
        Self { visible: lines.clone(), committed: lines, open: BTreeMap::new(), known: BTreeSet::new() }
    }

    fn store(&mut self, transaction: u32, line: u64, value: u64) {
        self.visible[line as usize] = value;
        if transaction == 0 {
            self.committed[line as usize] = value;
        } else {
            self.open.entry(transaction).or_default().insert(line, value);
            self.known.remove(&transaction);
        }
    }

    fn commit(&mut self, transaction: u32) {
        for (line, value) in self.open.remove(&transaction).unwrap_or_default() {
            self.visible[line as usize] = value;
            self.committed[line as usize] = value;
        }
        self.known.insert(transaction);
    }

    fn write_block(&mut self, page: u64, value: u64) {
        let lines = page * PAGE_LINES..(page + 1) * PAGE_LINES;
        for line in lines.clone() {
            self.visible[line as usize] = value;
            self.committed[line as usize] = value;
        }
        for stored in self.open.values_mut() {
            stored.retain(|line, _| !lines.contains(line));
        }
    }

    fn recover(&mut self) {
        self.open.clear();
        self.known.clear();
        self.visible = self.committed.clone();
    }
}

/// A log with its pages and the model beside it.
struct Bench {
    options: WriteLogOptions,
    medium: Arc<TestMedium>,
    pages: TestPages,
    log: WriteLog<TestMedium>,
    model: Model,
    /// A RECOVER was refused: what it hid shows again when the log is opened, until the next one.
    has_failed_recovery: bool,
}

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

fn is_cut(error: &DeviceError) -> bool {
    error.to_string().contains("the power failed")
}

fn is_worn_out(error: &DeviceError) -> bool {
    error.to_string().contains("no spare block is left")
}

impl Bench {
    fn new(options: WriteLogOptions) -> Self {
        let (medium, pages, log) = parts(options, LOGICAL_PAGES);
        Self { options, medium, pages, log, model: Model::new(), has_failed_recovery: false }
    }

    fn of_seed(seed: u64) -> Self {
        Self::new(SIZES[(seed / MIXES.len() as u64) as usize % SIZES.len()])
    }

    fn open(&mut self) -> Result<(), DeviceError> {
        self.log = WriteLog::open(Arc::clone(&self.medium), LOG_OFFSET, self.options, LOGICAL_PAGES, &mut self.pages)?;
        Ok(())
    }

    /// Does a step with the log alone. Ok(false) where it was refused.
    fn act(&mut self, step: Step) -> Result<bool, DeviceError> {
        let (log, pages) = (&mut self.log, &mut self.pages);
        match step {
            Step::Store { transaction, line, value } => log.append(pages, transaction, line, &line_of(value))?,
            Step::Commit { transaction } => log.commit(pages, transaction)?,
            Step::WriteBlock { page, value } => {
                pages.write(page, &page_of(value), log.next_sequence())?;
                log.forget_page(page)?;
            }
            Step::Discard { page } => {
                pages.discard(page, log.next_sequence())?;
                log.forget_page(page)?;
            }
            Step::ReadBlock { .. } | Step::Load { .. } => {}
            Step::Settle { budget_pages } => log.settle(pages, budget_pages)?,
            Step::Clean => log.clean(pages)?,
            Step::Recover => drop(log.recover(pages, false)?),
            Step::Reopen => {
                self.open()?;
                if !self.has_failed_recovery {
                    self.check_visible()?;
                }
                self.log.recover(&mut self.pages, false)?;
            }
        }
        Ok(true)
    }

    /// What is visible, beside the model; only after a step that was not cut.
    fn check_visible(&mut self) -> Result<(), DeviceError> {
        let wrong = |reason| DeviceError::Firmware { device: "test".into(), command: "check", reason };
        self.compare(&self.model.visible.clone()).map_err(wrong)
    }

    /// Does what the model says of a step.
    fn model_after(&self, step: Step) -> Model {
        let mut model = self.model.clone();
        match step {
            Step::Store { transaction, line, value } => model.store(transaction, line, value),
            Step::Commit { transaction } => model.commit(transaction),
            Step::WriteBlock { page, value } => model.write_block(page, value),
            Step::Discard { page } => model.write_block(page, 0),
            Step::ReadBlock { .. } | Step::Load { .. } | Step::Settle { .. } => {}
            Step::Clean => model.known.clear(),
            Step::Recover | Step::Reopen => model.recover(),
        }
        model
    }

    /// Whether the model expects that a step is refused. None: it may be.
    fn is_refused(&self, step: Step) -> Option<bool> {
        let open: u64 = self.model.open.values().map(|lines| lines.len() as u64).sum();
        match step {
            Step::Store { transaction, .. } if transaction != 0 => {
                let is_full = open >= self.options.log_bytes / LINE_BYTES as u64 / 4;
                // The TxLog may still have it.
                if is_full {
                    Some(true)
                } else if self.model.known.contains(&transaction) {
                    None
                } else {
                    Some(false)
                }
            }
            Step::Commit { transaction } => Some(!self.model.open.contains_key(&transaction)),
            Step::Clean => Some(!self.model.open.is_empty()),
            _ => Some(false),
        }
    }

    /// Every line by a load and by a block read.
    fn compare(&mut self, expected: &[u64]) -> Result<(), String> {
        let fail = |error: DeviceError| error.to_string();
        for page in 0..LOGICAL_PAGES {
            let mut flash = page_of(0);
            self.pages.read(page, &mut flash).map_err(fail)?;
            let mut merged = flash;
            self.log.merge(page, &mut merged).map_err(fail)?;
            let covers = self.log.covers(page);
            for at in 0..PAGE_LINES {
                let line = page * PAGE_LINES + at;
                let wanted = line_of(expected[line as usize]);
                let mut loaded: Line = flash[at as usize * LINE_BYTES..][..LINE_BYTES].try_into().unwrap();
                let is_hit = self.log.load(line, &mut loaded).map_err(fail)?;
                ensure!(is_hit || !covers, "line {line} is not covered");
                ensure!(loaded == wanted, "line {line} loads {:x?}, not {:x?}", &loaded[..16], &wanted[..16]);
                ensure!(merged[at as usize * LINE_BYTES..][..LINE_BYTES] == wanted, "line {line} is not merged into a block read");
            }
        }
        Ok(())
    }

    /// What must be true between any two steps.
    fn check_state(&self) -> Result<(), String> {
        let fill = self.log.fill();
        ensure!(fill.lines <= fill.capacity_lines && fill.transactions <= fill.capacity_transactions, "over the brim: {fill:?}");
        let open: u64 = self.model.open.values().map(|lines| lines.len() as u64).sum();
        ensure!(fill.uncommitted_lines == open, "{} uncommitted lines, not {open}", fill.uncommitted_lines);
        Ok(())
    }

    /// A step with the model beside it. Ok(false) where the power failed.
    fn step(&mut self, step: Step) -> Result<bool, String> {
        match (self.act(step), self.is_refused(step)) {
            (Err(error), _) if is_cut(&error) => return Ok(false),
            (Err(error), _) if is_worn_out(&error) => {
                if matches!(step, Step::Recover | Step::Reopen) {
                    // What was not committed is hidden already; the TxLog is as it was.
                    self.model = Model { known: self.model.known.clone(), ..self.model_after(step) };
                    self.has_failed_recovery = true;
                }
                return self.compare(&self.model.visible.clone()).map(|()| true).map_err(|what| format!("{step:?} was refused: {what}"));
            }
            (Err(DeviceError::Firmware { command, .. }), None | Some(true)) if command != "check" => return Ok(true),
            (Err(error), _) => return Err(format!("{step:?}: {error}")),
            (Ok(_), Some(true)) => return Err(format!("{step:?} was not refused")),
            (Ok(_), _) => self.model = self.model_after(step),
        }
        if matches!(step, Step::Clean | Step::Recover | Step::Reopen) {
            self.has_failed_recovery = false;
        }
        match step {
            Step::Load { line } => {
                let (mut loaded, wanted) = ([0; _], line_of(self.model.visible[line as usize]));
                if self.log.load(line, &mut loaded).map_err(|error| error.to_string())? {
                    ensure!(loaded == wanted, "line {line} loads {:x?}, not {:x?}", &loaded[..16], &wanted[..16]);
                }
            }
            Step::ReadBlock { .. } | Step::Clean | Step::Recover | Step::Reopen | Step::Commit { .. } => {
                self.compare(&self.model.visible.clone()).map_err(|what| format!("{step:?}: {what}"))?;
            }
            _ => {}
        }
        if step == Step::Clean {
            let fill = self.log.fill();
            ensure!(fill.lines == 0 && fill.transactions == 0 && fill.pages == 0, "CLEAN left {fill:?}");
        }
        self.check_state()?;
        Ok(true)
    }

    /// After a power failure inside a step: opens and recovers, with further failures after so many steps each, and compares with the model
    /// before or after the step.
    fn revive(&mut self, step: Step, cuts: &[u64]) -> Result<(), String> {
        let fail = |error: DeviceError| error.to_string();
        for cut in cuts.iter().map(|cut| Some(*cut)).chain([None]) {
            self.medium.cut_after(cut);
            self.open().map_err(fail)?;
            match self.log.recover(&mut self.pages, false) {
                Ok(_) => break,
                Err(error) if is_cut(&error) => {}
                Err(error) => return Err(fail(error)),
            }
        }
        self.medium.cut_after(None);
        self.has_failed_recovery = false;
        let after = self.model_after(step);
        let (mut before, mut after) = (self.model.clone(), if self.is_refused(step) == Some(true) { self.model.clone() } else { after });
        before.recover();
        after.recover();
        match (self.compare(&before.committed), self.compare(&after.committed)) {
            (Ok(()), _) => self.model = before,
            (_, Ok(())) => self.model = after,
            (Err(before), Err(after)) => return Err(format!("a cut in {step:?}: neither before ({before}) nor after ({after})")),
        }
        let fill = self.log.fill();
        ensure!(fill.lines == 0 && fill.transactions == 0 && fill.pages == 0, "RECOVER left {fill:?}");
        Ok(())
    }
}

/// Random steps without power failures; answers how often the log was cleaned since it was opened.
fn run_plain(seed: u64, count: usize) -> Result<u64, String> {
    let mut bench = Bench::of_seed(seed);
    for (number, step) in draw_steps(seed, MIXES[seed as usize % MIXES.len()], count).into_iter().enumerate() {
        bench.step(step).map_err(|what| format!("seed {seed}, step {number}: {what}"))?;
    }
    Ok(bench.log.counts().log_cleanings)
}

/// Random steps with power failures at random moments, recovery's too.
fn run_cut(seed: u64, count: usize) -> Result<u64, String> {
    let mut bench = Bench::of_seed(seed);
    let mut draw = Draw(seed ^ 0xc075);
    let mut cuts = 0;
    bench.medium.cut_after(Some(draw.below(400)));
    for (number, step) in draw_steps(seed, MIXES[seed as usize % MIXES.len()], count).into_iter().enumerate() {
        let failed = |what| format!("seed {seed}, step {number}: {what}");
        if !bench.step(step).map_err(failed)? {
            let in_recovery: Vec<u64> = (0..draw.below(4)).map(|_| draw.below(60)).collect();
            bench.revive(step, &in_recovery).map_err(failed)?;
            bench.medium.cut_after(Some(draw.below(800)));
            cuts += 1;
        }
    }
    Ok(cuts)
}

/// Random steps on a flash that refuses writes now and then, with power failures beside that.
fn run_worn_out(seed: u64, count: usize) -> Result<u64, String> {
    let mut bench = Bench::of_seed(seed);
    let mut draw = Draw(seed ^ 0x3049);
    let mut refusals = 0;
    for (number, step) in draw_steps(seed, MIXES[seed as usize % MIXES.len()], count).into_iter().enumerate() {
        let failed = |what| format!("seed {seed}, step {number}: {what}");
        if draw.below(30) == 0 {
            bench.pages.is_worn_out = !bench.pages.is_worn_out;
            if !bench.pages.is_worn_out {
                refusals += u64::from(bench.log.read_only_reason().is_some());
                bench.step(Step::Reopen).map_err(failed)?;
            }
        }
        if draw.below(100) == 0 {
            bench.medium.cut_after(Some(draw.below(20)));
        }
        if !bench.step(step).map_err(failed)? {
            bench.pages.is_worn_out = false;
            bench.revive(step, &[]).map_err(failed)?;
        }
        bench.medium.cut_after(None);
    }
    Ok(refusals)
}

/// One sequence, cut after every single one of its steps, from its start each time; the recovery cut as well.
/// Answers how many steps there were, and how many cleanings.
fn run_every_cut(seed: u64, count: usize) -> Result<(u64, u64), String> {
    let steps = draw_steps(seed, MIXES[seed as usize % MIXES.len()], count);
    let mut cut = 0;
    loop {
        let mut bench = Bench::of_seed(seed);
        bench.medium.cut_after(Some(cut));
        let failed = |what| format!("seed {seed}, cut after {cut}: {what}");
        let mut was_cut = false;
        for step in &steps {
            if !bench.step(*step).map_err(failed)? {
                bench.revive(*step, &[cut % 37, cut % 11]).map_err(failed)?;
                was_cut = true;
                break;
            }
        }
        if !was_cut {
            return Ok((cut, bench.log.counts().log_cleanings));
        }
        cut += 1;
    }
}

fn rounds(default: u64) -> u64 {
    std::env::var("TANDEMFS_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(default)
}

fn first_seed() -> u64 {
    std::env::var("TANDEMFS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1)
}

#[test]
fn random_steps_are_as_in_the_model() {
    let mut cleanings = 0;
    for seed in (first_seed()..).take(rounds(200) as usize) {
        cleanings += run_plain(seed, 400).unwrap();
    }
    println!("seeds from {}: {cleanings} cleanings", first_seed());
    assert!(cleanings > rounds(200));
}

#[test]
fn power_failures_leave_what_was_committed_and_only_that() {
    let mut cuts = 0;
    for seed in (first_seed()..).take(rounds(200) as usize) {
        cuts += run_cut(seed, 400).unwrap();
    }
    println!("seeds from {}: {cuts} power failures", first_seed());
    assert!(cuts > rounds(200));
}

#[test]
fn a_flash_that_refuses_now_and_then_loses_nothing() {
    let refusals: u64 = (first_seed()..).take(rounds(200) as usize).map(|seed| run_worn_out(seed, 400).unwrap()).sum();
    println!("seeds from {}: {refusals} times read-only", first_seed());
    assert!(refusals > rounds(200) / 2);
}

#[test]
fn a_power_failure_after_every_step() {
    for seed in (first_seed()..).take(rounds(4) as usize) {
        let (steps, cleanings) = run_every_cut(seed, 200).unwrap();
        println!("seed {seed}: cut after each of {steps} steps, with {cleanings} cleanings");
        assert!(steps > 500);
    }
}

type Parts = (Arc<TestMedium>, TestPages, WriteLog<TestMedium>);

fn parts(options: WriteLogOptions, logical_pages: u64) -> Parts {
    let medium = Arc::new(TestMedium::new(LOG_OFFSET + options.dram_bytes()));
    let log = WriteLog::format(Arc::clone(&medium), LOG_OFFSET, options, logical_pages).unwrap();
    let pages = TestPages { medium: Arc::clone(&medium), next_physical: 0, is_worn_out: false };
    (medium, pages, log)
}

fn reopened((medium, pages, _): &mut Parts, options: WriteLogOptions, logical_pages: u64) -> Result<WriteLog<TestMedium>, DeviceError> {
    WriteLog::open(Arc::clone(medium), LOG_OFFSET, options, logical_pages, pages)
}

fn said<T: std::fmt::Debug>(result: Result<T, DeviceError>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn a_flash_that_refuses_makes_the_log_read_only_and_loses_nothing() {
    let mut bench = Bench::new(OPTIONS);
    bench.step(Step::Store { transaction: 7, line: 500, value: 70 }).unwrap();
    let mut value = 0;
    bench.pages.is_worn_out = true;
    let refused = loop {
        value += 1;
        let step = Step::Store { transaction: 0, line: value * 5 % 400, value };
        match bench.act(step) {
            Ok(_) => bench.model = bench.model_after(step),
            Err(error) => break error.to_string(),
        }
    };
    assert!(value > 40 && refused.contains("no spare block is left"), "{value}: {refused}");
    let reason = bench.log.read_only_reason().unwrap().to_owned();
    assert!(reason.contains("cannot be cleaned") && reason.contains("no spare block is left"), "{reason}");
    let again = bench.log.append(&mut bench.pages, 0, 1, &line_of(1)).unwrap_err().to_string();
    assert!(again.contains("store was refused") && again.contains("cannot be cleaned"), "{again}");
    // Loads, block reads and COMMITs go on.
    bench.compare(&bench.model.visible.clone()).unwrap();
    bench.step(Step::Commit { transaction: 7 }).unwrap();
    bench.check_state().unwrap();
    bench.log.settle(&mut bench.pages, 100).unwrap();
    assert!(said(bench.log.clean(&mut bench.pages)).contains("no spare block"));
    bench.open().unwrap();
    assert!(said(bench.log.recover(&mut bench.pages, false)).contains("no spare block"));
    assert!(bench.log.read_only_reason().is_some());
    bench.compare(&bench.model.committed.clone()).unwrap();
    bench.pages.is_worn_out = false;
    bench.step(Step::Reopen).unwrap();
    bench.compare(&bench.model.committed.clone()).unwrap();
    assert_eq!((bench.model.committed[500], bench.log.read_only_reason()), (70, None));
}

#[test]
fn recovery_for_reading_only_hides_and_stores_nothing() {
    let mut bench = Bench::new(OPTIONS);
    for (transaction, line, value) in [(0, 3, 1), (4, 3, 2), (5, 3, 3), (4, 9, 4)] {
        bench.step(Step::Store { transaction, line, value }).unwrap();
    }
    bench.step(Step::Commit { transaction: 4 }).unwrap();
    let steps = bench.medium.steps();
    bench.open().unwrap();
    bench.compare(&bench.model.visible.clone()).unwrap();
    let found = bench.log.recover(&mut bench.pages, true).unwrap();
    assert_eq!((found.lines_kept, found.lines_discarded, found.transactions), (2, 1, 1));
    bench.compare(&bench.model.committed.clone()).unwrap();
    assert_eq!((bench.model.committed[3], bench.medium.steps()), (2, steps));
    bench.step(Step::Reopen).unwrap();
    bench.compare(&bench.model.committed.clone()).unwrap();
}

#[test]
fn a_number_is_free_again_after_a_clean() {
    let (_, mut pages, mut log) = parts(OPTIONS, LOGICAL_PAGES);
    assert!(said(log.commit(&mut pages, 3)).contains("COMMIT was refused: transaction 3 is unknown"));
    log.append(&mut pages, 3, 1, &line_of(1)).unwrap();
    assert!(said(log.clean(&mut pages)).contains("CLEAN was refused: transaction 3 is open"));
    log.commit(&mut pages, 3).unwrap();
    assert!(said(log.commit(&mut pages, 3)).contains("committed already"));
    assert!(said(log.append(&mut pages, 3, 2, &line_of(2))).contains("transaction 3 is committed and still in the TxLog"));
    assert!(!log.load(2, &mut [0; _]).unwrap(), "a refused line is stored");
    log.clean(&mut pages).unwrap();
    log.append(&mut pages, 3, 2, &line_of(2)).unwrap();
    log.commit(&mut pages, 3).unwrap();
    assert!(matches!(log.append(&mut pages, 0, LINES, &line_of(1)), Err(DeviceError::OutOfRange { .. })));
    assert!(matches!(log.append(&mut pages, 0, u64::MAX, &line_of(1)), Err(DeviceError::OutOfRange { .. })));
}

#[test]
fn a_full_transaction_log_starts_a_cleaning_although_the_log_is_empty() {
    let options = WriteLogOptions { log_bytes: 64 << 10, ..OPTIONS };
    let mut parts = parts(options, 32);
    for number in 1..=1000 {
        let (_, pages, log) = &mut parts;
        log.append(pages, number, u64::from(number) % 8, &line_of(u64::from(number))).unwrap();
        log.commit(pages, number).unwrap();
        assert!(log.fill().lines <= 40);
    }
    assert!(parts.2.counts().log_cleanings >= 50 && parts.2.counts().commits == 1000);
    let mut log = reopened(&mut parts, options, 32).unwrap();
    log.recover(&mut parts.1, false).unwrap();
    let mut page = page_of(0);
    parts.1.read(0, &mut page).unwrap();
    for line in 0..8 {
        assert_eq!(page[line * LINE_BYTES..][..LINE_BYTES], line_of(993 + (line as u64 + 7) % 8), "line {line}");
    }
}

#[test]
fn an_open_transaction_outlives_many_cleanings_and_may_hold_a_quarter() {
    let (_, mut pages, mut log) = parts(OPTIONS, LOGICAL_PAGES);
    for line in 0..16 {
        log.append(&mut pages, 9, line, &line_of(line + 1)).unwrap();
    }
    assert!(said(log.append(&mut pages, 9, 16, &line_of(1))).contains("hold 16 lines, a quarter"));
    for value in 0..1000 {
        // Beside its lines, and over every second one.
        log.append(&mut pages, 0, 64 + value % 200, &line_of(value + 100)).unwrap();
        log.append(&mut pages, 0, value % 8 * 2, &line_of(value + 2000)).unwrap();
    }
    assert!(log.counts().log_cleanings > 20);
    let mut loaded: Line = [0; _];
    let mut page = page_of(0);
    pages.read(0, &mut page).unwrap();
    log.merge(0, &mut page).unwrap();
    for line in 0..16 {
        let expected = if line % 2 == 0 { line_of(992 + line / 2 + 2000) } else { line_of(line + 1) };
        assert_eq!(page[line as usize * LINE_BYTES..][..LINE_BYTES], expected, "line {line}");
    }
    log.commit(&mut pages, 9).unwrap();
    for line in 0..16 {
        assert!(log.load(line, &mut loaded).unwrap());
        assert_eq!(loaded, line_of(line + 1), "line {line} after the COMMIT");
    }
    log.clean(&mut pages).unwrap();
    pages.read(0, &mut page).unwrap();
    assert_eq!(page[..16 * LINE_BYTES].as_chunks::<LINE_BYTES>().0, &std::array::from_fn::<_, 16, _>(|line| line_of(line as u64 + 1)));
}

#[test]
fn a_steady_load_cleans_in_small_shares() {
    let options = WriteLogOptions { log_bytes: 64 << 10, ..OPTIONS };
    let (_, mut pages, mut log) = parts(options, 256);
    let (mut draw, mut most) = (Draw(3), 0);
    for value in 0..20_000 {
        let before = pages.next_physical;
        log.append(&mut pages, 0, draw.below(256 * PAGE_LINES), &line_of(value)).unwrap();
        most = most.max(pages.next_physical - before);
    }
    assert!(log.counts().log_cleanings > 10 && most <= 8, "{most} pages in one append");
}

#[test]
fn a_line_that_takes_the_place_of_cleaned_ones_waits_for_the_flash() {
    let (_, mut pages, mut log) = parts(OPTIONS, LOGICAL_PAGES);
    let mut waits = Vec::new();
    for number in 0..200 {
        log.append(&mut pages, 0, number * 37 % LINES, &line_of(number + 1)).unwrap();
        if log.take_waited() {
            waits.push(number);
        }
    }
    // 64 lines fit; what a cleaning that began at 55 of them gave back is used from the 65th on.
    assert!(waits[0] == 64 && waits.len() <= 4 && waits.len() >= 3, "{waits:?}");
}

#[test]
fn logs_that_make_no_sense_are_refused() {
    let good = WriteLogOptions::default();
    assert_eq!(good.check((32 << 30) / 4096), Ok(()));
    assert_eq!(good.dram_bytes(), (256 << 20) + (64 << 20) + (2 << 20) + 4096);
    for (bad, what) in [
        (WriteLogOptions { log_bytes: 0, ..good }, "0 B"),
        (WriteLogOptions { log_bytes: 4160, ..good }, "whole pages"),
        (WriteLogOptions { log_bytes: 4 << 30, ..good }, "4 GiB"),
        (WriteLogOptions { log_bytes: 1 << 30, ..good }, "larger than the drive"),
        (WriteLogOptions { transaction_log_bytes: 0, ..good }, "TxLog"),
        (WriteLogOptions { transaction_log_bytes: 100, ..good }, "TxLog"),
        (WriteLogOptions { clean_at_percent: 100, ..good }, "100 %"),
    ] {
        let reason = bad.check(100_000).unwrap_err();
        assert!(reason.contains(what), "{reason}");
    }
}

#[test]
fn a_log_of_another_geometry_or_none_is_not_opened() {
    let mut parts = parts(OPTIONS, LOGICAL_PAGES);
    for (options, logical_pages, what) in [
        (WriteLogOptions { transaction_log_bytes: 128, ..OPTIONS }, LOGICAL_PAGES, "made for 16 TxLog entries, not for 32"),
        (OPTIONS, LOGICAL_PAGES + 1, "made for 8 pages, not for 9"),
    ] {
        let said = said(reopened(&mut parts, options, logical_pages));
        assert!(said.contains(what), "{said}");
    }
    let (medium, pages, log) = &mut parts;
    log.append(pages, 0, 0, &line_of(1)).unwrap();
    // The place of the first line, in its descriptor: a line far outside.
    medium.store(LOG_OFFSET + 4096 + 64 + 8, &(1u64 << 40).to_le_bytes()).unwrap();
    assert!(said(reopened(&mut parts, OPTIONS, LOGICAL_PAGES)).contains("outside the drive"));
    for word in 0..7 {
        let medium = &parts.0;
        let mut kept = [0; 8];
        medium.load(LOG_OFFSET + word * 8, &mut kept).unwrap();
        medium.store(LOG_OFFSET + word * 8, &[0xff, 0, 0, 0, 0, 0, 0, 0]).unwrap();
        let opened = reopened(&mut parts, OPTIONS, LOGICAL_PAGES);
        // A tail that is wrong but may be right cannot be told.
        assert!(opened.is_err() || word == 4, "word {word}");
        parts.0.store(LOG_OFFSET + word * 8, &kept).unwrap();
    }
}

#[test]
fn a_format_forgets_what_was_there() {
    let (medium, mut pages, mut log) = parts(OPTIONS, LOGICAL_PAGES);
    for line in 0..40 {
        log.append(&mut pages, 0, line, &line_of(line + 1)).unwrap();
    }
    drop(WriteLog::format(Arc::clone(&medium), LOG_OFFSET, OPTIONS, LOGICAL_PAGES).unwrap());
    let log = WriteLog::open(medium, LOG_OFFSET, OPTIONS, LOGICAL_PAGES, &mut pages).unwrap();
    assert_eq!((log.fill().lines, log.fill().pages), (0, 0));
}

/// A bug is caught by one of the runs that find nothing without it.
fn is_caught(bug: Mutant) {
    crate::mutant::select(bug);
    let what = (1..=60).find_map(|seed| run_plain(seed, 400).err().or_else(|| run_cut(seed, 400).err()));
    crate::mutant::select(Mutant::None);
    println!("{bug:?}: {}", what.unwrap_or_else(|| panic!("{bug:?} was not caught")));
}

macro_rules! caught {
    ($($name:ident: $bug:ident;)*) => { mod mutants { $(#[test] fn $name() { super::is_caught(super::Mutant::$bug); })* } };
}

caught! {
    uncommitted_lines_kept: UncommittedKept;
    oldest_version_recovered: OldestRecovered;
    log_emptied_before_its_pages_are_written: EmptiedBeforeFlush;
    transaction_log_kept: TransactionLogKept;
    uncommitted_lines_dropped: UncommittedDropped;
    latest_version_taken: LatestTaken;
    hidden_lines_shown: HiddenShown;
    tail_before_pages: TailBeforePages;
    transaction_log_emptied_early: TransactionLogEmptiedEarly;
    transaction_log_fill_ignored: TransactionLogFillIgnored;
    stamp_ignored: StampIgnored;
    valid_before_bytes: ValidBeforeBytes;
    commit_order_ignored: CommitOrderIgnored;
}
