//! MOVE commands of a drive whose cache the host manages: what a cut leaves amid them, and a small host that keeps pages in such a cache,
//! under cuts in every persistence domain and on a drive whose MOVE fails, lies or hangs. Hosts that break a rule of MOVE are caught.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use tandemfs_crash::{
    Access, FaultDevice, Harness, Lie, LyingDevice, MOVES_AT_ONCE, MemoryDevice, Mix, Model, Place, Random, Recorded, Setting, StuckDevice,
    each_state, seed_or,
};
use tandemfs_device::{
    BytePath, CacheMove, CacheMoves, Device, DeviceCache, DeviceError, Drive, Fenced, MoveDirection, MoveState, Moved, Moving,
    PersistenceDomain, Structure,
};
use tandemfs_format::{LineAddress, SECTOR_BYTES, Sector};

const PAGE: u64 = SECTOR_BYTES as u64;
const CACHE_PAGES: u64 = 2;
const SECTORS: u64 = 4;
const DOMAINS: [PersistenceDomain; 3] = [PersistenceDomain::Process, PersistenceDomain::Adr, PersistenceDomain::Gpf];
const A_MOMENT: Duration = Duration::from_millis(20);

fn device(domain: PersistenceDomain) -> MemoryDevice {
    MemoryDevice::with_cache(PAGE, SECTORS * PAGE, CACHE_PAGES * PAGE, domain)
}

fn command(direction: MoveDirection, cache_page: u64, sector: u64, count: u32) -> CacheMove {
    CacheMove { direction, cache_page, sector: Sector::new(sector), count }
}

fn submitted(device: &dyn CacheMoves, command: CacheMove) -> tandemfs_device::MoveTicket {
    device.submit(&command).expect("inside").expect("a place")
}

/// What the first and last bytes of the cache's first page and of the first two sectors may be after a cut.
fn found(domain: PersistenceDomain, work: impl FnOnce(&MemoryDevice)) -> HashSet<[u8; 6]> {
    let start = device(domain);
    start.damage(|zones| zones.blocks[..2 * SECTOR_BYTES].fill(1));
    let live = start.fork();
    live.start_recording();
    work(&live);
    let events = live.stop_recording();
    let mut found = HashSet::new();
    each_state(&start, &events, 0, 512, &mut Random::new(3), &mut |_, state| {
        let Recorded { memory, blocks } = state.device.zones();
        let ends = |bytes: &[u8], page: usize| [bytes[page * SECTOR_BYTES], bytes[(page + 1) * SECTOR_BYTES - 1]];
        found.insert([ends(&memory, 1), ends(&blocks, 0), ends(&blocks, 1)].concat().try_into().expect("six bytes"));
    });
    found
}

#[test]
fn a_cut_amid_a_move_leaves_any_part_of_it_and_what_is_complete_is_there() {
    for domain in DOMAINS {
        let under_way = found(domain, |device| drop(submitted(device, command(MoveDirection::ToCache, 0, 0, 1))));
        for ends in [[0, 0], [0, 1], [1, 0], [1, 1]] {
            assert!(under_way.iter().any(|found| found[..2] == ends), "{domain}: {ends:?} of {under_way:?}");
        }
        let complete = found(domain, |device| {
            let ticket = submitted(device, command(MoveDirection::ToCache, 0, 0, 1));
            device.fence(); // of no meaning for a MOVE
            let MoveState::Pending(ticket) = device.poll(ticket) else { panic!("the first look") };
            let MoveState::Done(Ok(())) = device.poll(ticket) else { panic!("the second one") };
            BytePath::store(device, 0, &[5]).expect("inside"); // a cut is before it
        });
        assert!(complete.contains(&[1, 1, 1, 1, 1, 1]), "{domain}: {complete:?}");
    }
}

/// Four bytes of the two sectors, after a MOVE of two pages of sevens to them.
fn of_flash(domain: PersistenceDomain, flush_amid: bool, flush_after: bool) -> HashSet<[u8; 4]> {
    let mut states = HashSet::new();
    let start = device(domain);
    start.damage(|zones| zones.memory[SECTOR_BYTES..].fill(7));
    let live = start.fork();
    live.start_recording();
    let ticket = submitted(&live, command(MoveDirection::ToFlash, 0, 0, 2));
    if flush_amid {
        live.block_path().flush().expect("flushed");
    }
    let MoveState::Done(Ok(())) = live.wait(ticket, A_MOMENT) else { panic!("done") };
    if flush_after {
        live.block_path().flush().expect("flushed");
    }
    let events = live.stop_recording();
    each_state(&start, &events, 0, 512, &mut Random::new(3), &mut |cut, state| {
        if cut.event == events.len() {
            let blocks = state.device.zones().blocks;
            states.insert([0, 4095, 4096, 8191].map(|at| blocks[at]));
        }
    });
    states
}

#[test]
fn a_move_to_flash_is_durable_from_the_flush_on_that_follows_its_completion() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf] {
        for flush_amid in [false, true] {
            let states = of_flash(domain, flush_amid, false);
            for part in [[0; 4], [7, 7, 0, 0], [0, 0, 7, 7], [7; 4]] {
                assert!(states.contains(&part), "{domain}, {flush_amid}: {part:?} of {states:?}");
            }
            assert!(states.iter().any(|[first, last, ..]| first != last), "torn at 512 B");
        }
        assert_eq!(of_flash(domain, false, true), HashSet::from([[7; 4]]), "{domain}");
    }
    assert_eq!(of_flash(PersistenceDomain::Process, false, false), HashSet::from([[7; 4]]), "the host survives");
}

#[test]
fn a_move_to_flash_lacks_what_was_not_fenced() {
    let live = device(PersistenceDomain::Adr);
    let start = live.fork();
    live.start_recording();
    BytePath::store(&live, PAGE, &[7; 128]).expect("inside");
    BytePath::flush(&live, PAGE, 64);
    live.fence();
    let ticket = submitted(&live, command(MoveDirection::ToFlash, 0, 0, 1));
    let MoveState::Done(Ok(())) = live.wait(ticket, A_MOMENT) else { panic!("done") };
    live.block_path().flush().expect("flushed");
    let events = live.stop_recording();
    let mut last = HashSet::new();
    each_state(&start, &events, 0, 64, &mut Random::new(3), &mut |cut, state| {
        if cut.event == events.len() {
            let blocks = state.device.zones().blocks;
            last.insert([blocks[0], blocks[64]]);
        }
    });
    assert_eq!(last, HashSet::from([[7, 0]]));
}

/// Rules that a host may break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// A page is filled again before its MOVE to the flash is complete.
    ReusedBeforeDone,
    /// A page that was moved to the flash is forgotten before a FLUSH.
    NotFlushed,
    /// A page is named before its MOVE to the cache is complete.
    NamedBeforeDone,
    /// A page is moved before what was stored to it is fenced.
    MovedBeforeFence,
    /// A page that leaves the cache is not moved.
    NotMoved,
}

/// A host that keeps sectors in the cache. A word of the memory zone for each page says which sector it holds, and is newer than the flash.
/// Sectors have two words that count: the first and the last line's.
struct Host<'d> {
    drive: &'d Drive,
    cache: DeviceCache<'d>,
    mistake: Mistake,
    next_victim: u64,
    /// The error of a MOVE ends its work.
    held: [Option<u64>; CACHE_PAGES as usize],
}

const LAST_LINE: u64 = PAGE - 64;

fn ended<Proof: tandemfs_device::MoveProof>(cache: &DeviceCache<'_>, moving: Moving<Proof>) -> Result<Proof, DeviceError> {
    match cache.wait(moving, A_MOMENT) {
        Moved::Done(result) => result,
        Moved::Pending(_) => {
            let source = std::io::ErrorKind::TimedOut.into();
            Err(DeviceError::Block { device: "host".into(), operation: "move", offset: 0, length: 0, source })
        }
    }
}

impl<'d> Host<'d> {
    fn new(drive: &'d Drive, mistake: Mistake) -> Self {
        let held = std::array::from_fn(|page| word(drive, LineAddress::new(page as u64 + 1)).checked_sub(1));
        Self { drive, cache: drive.cache().expect("a cache"), mistake, next_victim: 0, held }
    }

    fn name(&self, page: u64, sector: Option<u64>) -> Result<Fenced, DeviceError> {
        let word = sector.map_or(0, |sector| sector + 1);
        self.drive.persist(Structure::Mapping, LineAddress::new(page + 1), &word.to_le_bytes())
    }

    fn update(&mut self, sector: u64, value: u64) -> Result<(), DeviceError> {
        let page = match self.held.iter().position(|held| *held == Some(sector)) {
            Some(page) => page as u64,
            None => self.bring_in(sector)?,
        };
        let first = self.drive.store(Structure::Data, self.cache.address(page), &value.to_le_bytes())?;
        let last = self.drive.store_within(Structure::Data, self.cache.address(page), LAST_LINE, &value.to_le_bytes())?;
        if self.mistake == Mistake::MovedBeforeFence {
            drop((first, last)); // later, when it is named again
            return Ok(());
        }
        drop::<Fenced>(self.drive.fence(self.drive.flush_lines(first).and(self.drive.flush_lines(last))));
        Ok(())
    }

    fn bring_in(&mut self, sector: u64) -> Result<u64, DeviceError> {
        let page = self.next_victim;
        self.next_victim = (page + 1) % CACHE_PAGES;
        let fenced = Fenced::nothing_stored();
        let mut leaving = None;
        if let Some(old) = self.held[page as usize].filter(|_| self.mistake != Mistake::NotMoved) {
            let moving = self.cache.write_back(page, Sector::new(old), 1, &fenced)?.expect("a place");
            if self.mistake == Mistake::ReusedBeforeDone {
                leaving = Some(moving);
            } else {
                let written = ended(&self.cache, moving)?;
                if self.mistake != Mistake::NotFlushed {
                    let _flushed = self.drive.flush_blocks(written)?;
                }
            }
        }
        if self.mistake != Mistake::ReusedBeforeDone {
            drop(self.name(page, None)?);
            self.held[page as usize] = None;
        }
        let arriving = self.cache.bring_in(Sector::new(sector), page, 1, &fenced)?.expect("a place");
        if self.mistake == Mistake::NamedBeforeDone {
            drop(self.name(page, Some(sector))?);
        }
        drop(ended(&self.cache, arriving)?);
        if let Some(leaving) = leaving {
            let written = ended(&self.cache, leaving)?;
            let _flushed = self.drive.flush_blocks(written)?;
        }
        drop(self.name(page, Some(sector))?);
        self.held[page as usize] = Some(sector);
        Ok(page)
    }
}

fn word(drive: &Drive, address: LineAddress) -> u64 {
    let mut bytes = [0; 8];
    drive.load(Structure::Mapping, address, &mut bytes).expect("loaded");
    u64::from_le_bytes(bytes)
}

/// The two words of each sector, as a recovery finds them.
fn recovered(device: &MemoryDevice) -> [[u64; 2]; SECTORS as usize] {
    let Recorded { memory, blocks } = device.zones();
    let at = |bytes: &[u8], offset: u64| u64::from_le_bytes(bytes[offset as usize..offset as usize + 8].try_into().expect("a word"));
    std::array::from_fn(|sector| {
        let cached = (0..CACHE_PAGES).find(|page| at(&memory, (page + 1) * 64) == sector as u64 + 1);
        match cached {
            Some(page) => [0, LAST_LINE].map(|line| at(&memory, (page + 1) * PAGE + line)),
            None => [0, LAST_LINE].map(|line| at(&blocks, sector as u64 * PAGE + line)),
        }
    })
}

fn updates(seed: u64) -> Vec<(u64, u64)> {
    let mut random = Random::new(seed);
    (1..=8).map(|value| (random.below(SECTORS), value)).collect()
}

/// Cuts everywhere in some updates: what was acknowledged is there, and of the one under way each word is old or new.
fn explore(domain: PersistenceDomain, mistake: Mistake, seed: u64) -> Result<u64, String> {
    let live = device(domain);
    let start = live.fork();
    let drive = Drive::new(Arc::new(live.clone()));
    let updates = updates(seed);
    live.start_recording();
    let mut host = Host::new(&drive, mistake);
    for (call, (sector, value)) in updates.iter().enumerate() {
        live.mark(call);
        host.update(*sector, *value).map_err(|error| error.to_string())?;
    }
    let events = live.stop_recording();
    let (mut count, mut wrong) = (0, None);
    each_state(&start, &events, 0, 24, &mut Random::new(seed), &mut |cut, state| {
        count += 1;
        let returned = cut.call.map_or(0, |call| call + usize::from(cut.between));
        let mut expected = [0; SECTORS as usize];
        updates[..returned].iter().for_each(|(sector, value)| expected[*sector as usize] = *value);
        let under_way = updates.get(returned).filter(|_| cut.call.is_some_and(|call| call == returned));
        for (sector, found) in recovered(&state.device).into_iter().enumerate() {
            let may_be = |word: u64| {
                word == expected[sector] || under_way.is_some_and(|(changed, value)| *changed == sector as u64 && *value == word)
            };
            if !found.into_iter().all(may_be) {
                wrong.get_or_insert(format!("{domain}, seed {seed}, {cut:?}: sector {sector} has {found:?}, not {}", expected[sector]));
            }
        }
    });
    wrong.map_or(Ok(count), Err)
}

#[test]
fn a_host_that_keeps_the_rules_loses_nothing() {
    let first = seed_or(1);
    let mut states = 0;
    for domain in DOMAINS {
        for seed in first..first + 20 {
            states += explore(domain, Mistake::None, seed).unwrap_or_else(|what| panic!("{what}"));
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn hosts_that_break_a_rule_are_caught() {
    for (mistake, domain) in [
        (Mistake::ReusedBeforeDone, PersistenceDomain::Gpf),
        (Mistake::ReusedBeforeDone, PersistenceDomain::Process),
        (Mistake::NotFlushed, PersistenceDomain::Gpf),
        (Mistake::NamedBeforeDone, PersistenceDomain::Gpf),
        (Mistake::NamedBeforeDone, PersistenceDomain::Process),
        (Mistake::MovedBeforeFence, PersistenceDomain::Adr),
        (Mistake::NotMoved, PersistenceDomain::Process),
    ] {
        let caught = (1..=20).find_map(|seed| explore(domain, mistake, seed).err());
        println!("{mistake:?}: {}", caught.unwrap_or_else(|| panic!("{mistake:?} in {domain} was not caught")));
    }
}

#[test]
fn a_move_that_fails_loses_nothing() {
    for domain in DOMAINS {
        for access in Access::MOVES {
            let mut was_hit = 0;
            for (succeed, seed) in (0..8).flat_map(|succeed| (1..4).map(move |seed| (succeed, seed))) {
                let live = device(domain);
                let faulty = Arc::new(FaultDevice::new(live.clone(), access, succeed, false));
                let drive = Drive::new(faulty.clone());
                let mut host = Host::new(&drive, Mistake::None);
                let mut expected = [[0; 2]; SECTORS as usize];
                for (sector, value) in updates(seed) {
                    match host.update(sector, value) {
                        Ok(()) => expected[sector as usize] = [value; 2],
                        Err(error) => {
                            assert!(matches!(error, DeviceError::Block { operation, .. } if operation.starts_with("move to ")), "{error}");
                            was_hit += 1;
                        }
                    }
                    assert_eq!(recovered(&live), expected, "{domain}, {access:?} after {succeed}, seed {seed}");
                }
                let failures = drive.counters().failures();
                assert_eq!(failures.reads + failures.writes, u64::from(faulty.hit()));
            }
            assert!(was_hit > 0, "{access:?}");
        }
    }
}

#[test]
fn a_failed_move_of_several_pages_moved_a_part() {
    let live = device(PersistenceDomain::Gpf);
    live.damage(|zones| zones.memory[SECTOR_BYTES..].fill(7));
    let faulty = FaultDevice::at(live.clone(), Place::Blocks(PAGE..PAGE + 1), false);
    let ticket = submitted(&faulty, command(MoveDirection::ToFlash, 0, 0, 2));
    let MoveState::Done(Err(error)) = faulty.wait(ticket, A_MOMENT) else { panic!("a bad sector") };
    assert!(error.to_string().contains("move to flash of 8192 B at byte 0 failed"), "{error}");
    let blocks = live.zones().blocks;
    assert_eq!([blocks[0], blocks[4096]], [7, 0]);
    let ticket = submitted(&faulty, command(MoveDirection::ToFlash, 0, 2, 2));
    let MoveState::Done(Ok(())) = faulty.wait(ticket, A_MOMENT) else { panic!("good sectors") };
}

#[test]
fn a_move_that_lies_is_told_apart_by_content_alone() {
    let live = device(PersistenceDomain::Gpf);
    live.damage(|zones| zones.blocks.fill(7));
    let lying = LyingDevice::new(live.clone(), live.fork(), Lie::Zeros, 1);
    for (page, is_true) in [(0, true), (1, false)] {
        let ticket = submitted(&lying, command(MoveDirection::ToCache, page, 0, 1));
        let MoveState::Done(Ok(())) = lying.wait(ticket, A_MOMENT) else { panic!("no error shows it") };
        assert_eq!(live.zones().memory[((page + 1) * PAGE) as usize], if is_true { 7 } else { 0 });
    }
    assert_eq!(lying.told().expect("it lied").place, Place::Blocks(0..PAGE));
    assert_eq!(live.zones().blocks[0], 7, "the flash is as it was");
}

#[test]
fn a_move_that_hangs_holds_up_nothing_else() {
    let live = device(PersistenceDomain::Gpf);
    live.damage(|zones| zones.blocks.fill(7));
    let stuck = StuckDevice::new(live.clone());
    stuck.set_trap(Access::MoveToCache, PAGE);
    let hanging = submitted(&*stuck, command(MoveDirection::ToCache, 0, 0, 1));
    let MoveState::Pending(hanging) = stuck.wait(hanging, A_MOMENT) else { panic!("it hangs") };
    let MoveState::Pending(hanging) = stuck.poll(hanging) else { panic!("it hangs") };
    let other = submitted(&*stuck, command(MoveDirection::ToCache, 1, 0, 1));
    let MoveState::Done(Ok(())) = stuck.wait(other, A_MOMENT) else { panic!("the other one is done") };
    assert_eq!([PAGE, 2 * PAGE].map(|at| live.zones().memory[at as usize]), [0, 7]);
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| stuck.wait(hanging, Duration::from_secs(3600)));
        stuck.release();
        let MoveState::Done(Ok(())) = waiting.join().expect("it ends") else { panic!("released") };
    });
    assert_eq!(live.zones().memory[PAGE as usize], 7);
}

#[test]
fn a_full_queue_says_so() {
    let device = device(PersistenceDomain::Gpf);
    let command = command(MoveDirection::ToCache, 0, 0, 1);
    let mut tickets: Vec<_> = (0..MOVES_AT_ONCE).map(|_| submitted(&device, command)).collect();
    assert_eq!(device.submit(&command).expect("inside"), None);
    let MoveState::Done(Ok(())) = device.wait(tickets.pop().expect("one"), A_MOMENT) else { panic!("done") };
    assert!(device.submit(&command).expect("inside").is_some());
}

/// A file system does not use the cache yet: what is there stays, whatever the file system does.
#[test]
fn a_file_system_leaves_the_cache_alone() {
    let setting = Setting::small(PersistenceDomain::Gpf, 4096);
    let formatted = setting.format().zones();
    let cache_bytes = 1 << 20;
    let memory = [&formatted.memory[..], &vec![0xc5; cache_bytes]].concat();
    let device = MemoryDevice::from_zones(Recorded { memory, blocks: formatted.blocks }, setting.domain).given_cache(cache_bytes as u64);
    assert_eq!(device.description().memory_bytes, formatted.memory.len() as u64);
    let mut random = Random::new(seed_or(5));
    let mut harness = Harness::new(device.clone(), &setting.mount, Model::default()).expect("mounts");
    let mix = Mix::draw(&mut random, setting.room_bytes());
    for _ in 0..200 {
        let operation = mix.next(&mut random);
        harness.apply(&operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    }
    harness.compare().expect("as the model");
    drop(harness);
    assert!(device.zones().memory[formatted.memory.len()..].iter().all(|byte| *byte == 0xc5));
}
