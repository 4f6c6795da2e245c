//! What stores cost on an emulated drive with a model of a CPU's cache and of persistent memory behind it, by the handle that a file system uses. Bytes, in
//! virtual time: nothing depends on the host's speed.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use tandemfs_device::{Drive, Lines, Mechanism, MediaBytes, PersistenceDomain, StoreWay, Structure};
use tandemfs_emulator::{
    CreateOptions, MediaOptions, ModelOptions, NO_BLOCKS, OpenOptions, create_with, info, media_statistics, open_image,
};
use tandemfs_format::LineAddress;
use tempfile::TempDir;

const MEMORY_BYTES: u64 = 64 << 20;
/// 1024 sets of 12 lines.
const CACHE_BYTES: u64 = 768 << 10;
const LINES: u64 = MEMORY_BYTES / 64;
const STORES: u64 = 200_000;
/// In the image, from creation on.
const MEMORY_OFFSET: u64 = 2 << 20;

fn chosen(persistent_caches: bool) -> ModelOptions {
    let media = MediaOptions { cache_bytes: Some(CACHE_BYTES), persistent_caches, ..MediaOptions::default() };
    ModelOptions { media: Some(media), ..ModelOptions::default() }
}

fn image(model: &ModelOptions) -> (TempDir, PathBuf) {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let options = CreateOptions { profile: "optane".into(), memory_bytes: MEMORY_BYTES, block_bytes: NO_BLOCKS };
    create_with(&path, &options, model).expect("created");
    (directory, path)
}

fn open(path: &Path) -> Drive {
    Drive::new(open_image(path, &OpenOptions { virtual_time: true, ..OpenOptions::default() }).expect("opened"))
}

struct Rig {
    drive: Drive,
    path: PathBuf,
    _directory: TempDir,
}

impl Rig {
    fn new(domain: PersistenceDomain) -> Self {
        let (directory, path) = image(&chosen(domain == PersistenceDomain::Gpf));
        let drive = open(&path);
        assert_eq!(drive.domain(), domain);
        Self { drive, path, _directory: directory }
    }

    fn store(&self, structure: Structure, way: StoreWay, line: u64, bytes: &[u8]) -> Lines<tandemfs_device::Dirty> {
        self.drive.store_by(structure, way, LineAddress::new(line), 0, bytes).expect("stored")
    }

    /// As the file system stores: flushed and fenced where the domain needs it.
    fn persist(&self, structure: Structure, line: u64, bytes: &[u8]) {
        drop(self.drive.persist(structure, LineAddress::new(line), bytes).expect("stored"));
    }

    fn total(&self) -> MediaBytes {
        self.drive.media().expect("a model").counts().total()
    }

    /// The same with all that is still on its way.
    fn settled(&self) -> MediaBytes {
        self.drive.media().expect("a model").write_back_all();
        self.total()
    }
}

fn scattered(number: u64, limit: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ (mixed >> 31)) % limit
}

fn amplification(bytes: &MediaBytes) -> f64 {
    bytes.written() as f64 / bytes.stored_bytes as f64
}

const BOTH: [PersistenceDomain; 2] = [PersistenceDomain::Adr, PersistenceDomain::Gpf];

/// Four, but for what meets by chance: 1.2 % of the stores find their line in the cache, and of what is in the cache at the end (6 % of the stores), 3.5 %
/// have a neighbour there.
#[test]
fn lines_at_random_cost_four_times_their_size() {
    for domain in BOTH {
        let rig = Rig::new(domain);
        (0..STORES).for_each(|number| rig.persist(Structure::Inode, scattered(number, LINES), &[1; 64]));
        let total = rig.settled();
        assert_eq!(total.stored_bytes, STORES * 64);
        assert!((3.9..=4.0).contains(&amplification(&total)), "{domain}: {total:?}");
        let by = if domain == PersistenceDomain::Adr { Mechanism::Flushed } else { Mechanism::Evicted };
        assert_eq!(total.written_bytes[by as usize], total.written(), "{domain}");
        assert!(total.merge_read_bytes > total.written() * 9 / 10, "almost no media line was complete: {total:?}");
    }
}

/// Never more than once: the four lines of a media line are evicted together, since their sets see the same accesses. A little less where a line is stored
/// to again while it is in the cache (5 % of them may be).
#[test]
fn whole_media_lines_cost_their_size() {
    for domain in BOTH {
        let rig = Rig::new(domain);
        (0..STORES / 4).for_each(|number| rig.persist(Structure::Data, scattered(number, LINES / 4) * 4, &[2; 256]));
        let total = rig.settled();
        assert!((0.95..=1.0).contains(&amplification(&total)), "{domain}: {total:?}");
        assert_eq!(total.merge_read_bytes, 0, "{domain}");
    }
}

/// The other half of the paper's argument (FusionFS §1): as soon as other accesses push single lines of a large store out of the cache, its lines reach the media one
/// by one. Flushed at once, or stored past the cache, the same bytes cost their size.
#[test]
fn evictions_among_other_accesses_tear_media_lines_apart() {
    let cost = |way: StoreWay, flushes: bool| {
        let rig = Rig::new(PersistenceDomain::Gpf);
        for number in 0..STORES / 4 {
            let lines = rig.store(Structure::Data, way, scattered(number, LINES / 4) * 4, &[3; 256]);
            if flushes {
                drop(rig.drive.write_back_lines(lines));
            }
            for load in 0..8 {
                rig.drive
                    .load(Structure::Mapping, LineAddress::new(scattered((STORES + number) * 8 + load, LINES)), &mut [0; 64])
                    .expect("loaded");
            }
        }
        rig.drive.media().expect("a model").write_back_all();
        let bytes = *rig.drive.media().expect("a model").counts().of(Some(Structure::Data));
        amplification(&bytes)
    };
    let (evicted, flushed, bypassing) = (cost(StoreWay::Cached, false), cost(StoreWay::Cached, true), cost(StoreWay::NonTemporal, false));
    assert!(evicted > 2.0, "{evicted}");
    assert!((0.95..=1.0).contains(&flushed) && (0.999..=1.0).contains(&bypassing), "{flushed} {bypassing}");
}

#[test]
fn hot_lines_in_a_persistent_cache_cost_next_to_nothing() {
    let rig = Rig::new(PersistenceDomain::Gpf);
    let hot = CACHE_BYTES / 64 * 2 / 3;
    (0..STORES).for_each(|number| rig.persist(Structure::Inode, scattered(number, hot), &[4; 64]));
    assert_eq!(rig.total().written(), 0, "all of them are in the cache");
    let total = rig.settled();
    assert!(amplification(&total) < 0.05, "each of them once, at the end: {total:?}");
}

/// Where the cache must be flushed, hot lines cost what their flushes cost: nothing while they all meet in the buffer of 16 KiB, four times their size
/// where they do not (of 2,048 media lines the buffer has 64, so 3 % meet).
#[test]
fn hot_lines_that_are_flushed_cost_what_the_buffer_does_not_combine() {
    let cost = |hot: u64| {
        let rig = Rig::new(PersistenceDomain::Adr);
        (0..STORES).for_each(|number| rig.persist(Structure::Inode, scattered(number, hot), &[5; 64]));
        amplification(&rig.settled())
    };
    let (in_buffer, beyond) = (cost((16 << 10) / 64), cost(8192));
    assert!(in_buffer < 0.05, "{in_buffer}");
    assert!((3.7..4.0).contains(&beyond), "{beyond}");
}

#[test]
fn stores_past_the_cache_cost_their_size_and_fetch_nothing() {
    for domain in BOTH {
        let rig = Rig::new(domain);
        for number in 0..STORES / 4 {
            let lines = rig.store(Structure::Data, StoreWay::NonTemporal, scattered(number, LINES / 4) * 4, &[6; 256]);
            drop(rig.drive.fence(rig.drive.flush_lines(lines)));
        }
        let total = rig.settled();
        // Two stores to one media line while it waits in the buffer are one write of it: 64 of 262,144 wait.
        assert!((0.999..=1.0).contains(&amplification(&total)), "{total:?}");
        assert_eq!(total.written_bytes[Mechanism::NonTemporal as usize], total.written(), "{domain}");
        assert_eq!((total.read_bytes, total.merge_read_bytes), (0, 0), "{domain}");
    }
}

/// The ends of a store that are no whole lines go through the cache.
#[test]
fn incomplete_lines_do_not_go_past_the_cache() {
    let rig = Rig::new(PersistenceDomain::Gpf);
    let stored = rig.drive.store_by(Structure::Data, StoreWay::NonTemporal, LineAddress::new(4), 10, &[7; 256]).expect("stored");
    assert_eq!((rig.total().written(), rig.total().read_bytes), (0, 256 * 2), "both ends were fetched, the middle waits in the buffer");
    drop(stored);
    let total = rig.settled();
    assert_eq!(total.written(), 512);
    let of = |mechanism: Mechanism| total.written_bytes[mechanism as usize];
    assert!(of(Mechanism::NonTemporal) == 256 * 3 / 4 && of(Mechanism::Evicted) == 256 / 4 + 256, "{total:?}");
}

#[test]
fn pinned_lines_never_reach_the_media_while_a_scan_takes_the_rest() {
    let written = |ways: u32| {
        let rig = Rig::new(PersistenceDomain::Gpf);
        let media = rig.drive.media().expect("a model");
        media.reserve_ways(ways).expect("reserved");
        // Half of what two ways hold.
        let pinned = CACHE_BYTES / 64 / 12;
        for number in 0..STORES {
            if number % 50 == 0 {
                drop(rig.store(Structure::Journal, StoreWay::Pinned, number / 50 % pinned, &[8; 64]));
            }
            drop(rig.store(Structure::Data, StoreWay::Cached, pinned + number % (LINES - pinned), &[9; 64]));
            rig.drive.load(Structure::Mapping, LineAddress::new(pinned + scattered(number, LINES - pinned)), &mut [0; 64]).expect("loaded");
        }
        let counts = media.counts();
        assert!(counts.of(Some(Structure::Data)).written() > STORES * 60, "the scan went through the cache");
        assert_eq!(counts.total().written_bytes[Mechanism::Pinned as usize], 0);
        counts.of(Some(Structure::Journal)).written()
    };
    assert_eq!(written(2), 0);
    assert!(written(0) > 0, "without reserved ways they are evicted as others");
}

#[test]
fn more_ways_than_can_be_reserved_are_refused() {
    let rig = Rig::new(PersistenceDomain::Gpf);
    let media = rig.drive.media().expect("a model");
    assert_eq!((media.reserve_ways(6), media.reserve_ways(7)), (Ok(()), Err(6)));
}

#[test]
fn bytes_are_counted_by_structure_and_mechanism() {
    let rig = Rig::new(PersistenceDomain::Adr);
    let page = |number: u64| number * 64;
    rig.persist(Structure::Journal, page(0), &[1; 256]);
    drop(rig.store(Structure::Data, StoreWay::NonTemporal, page(1), &[1; 4096]));
    drop(rig.store(Structure::Inode, StoreWay::Cached, page(2), &[1; 128]));
    rig.drive.load(Structure::Dentry, LineAddress::new(page(3)), &mut [0; 64]).expect("loaded");
    let total = rig.settled();
    let counts = rig.drive.media().expect("a model").counts();
    let of = |structure: Structure, mechanism: Mechanism| counts.of(Some(structure)).written_bytes[mechanism as usize];
    assert_eq!(of(Structure::Journal, Mechanism::Flushed), 256);
    assert_eq!(of(Structure::Data, Mechanism::NonTemporal), 4096);
    assert_eq!(of(Structure::Inode, Mechanism::Evicted), 256);
    assert_eq!(total.written(), 256 + 4096 + 256, "[PMM5]");
    let reads = |structure: Structure| (counts.of(Some(structure)).read_bytes, counts.of(Some(structure)).merge_read_bytes);
    assert_eq!(
        [Structure::Journal, Structure::Data, Structure::Inode, Structure::Dentry].map(reads),
        [(256, 0), (0, 0), (256, 256), (256, 0)]
    );
}

/// What the image contains does not depend on the model: the same accesses leave the same bytes, at once and in the file ([PMM1]).
#[test]
fn the_image_is_the_same_with_the_model_and_without() {
    let contents = |model: &ModelOptions| {
        let (_directory, path) = image(model);
        let (drive, file) = (open(&path), File::open(&path).expect("opened"));
        assert_eq!(drive.media().is_some(), model.media.is_some());
        if let Some(media) = drive.media() {
            media.reserve_ways(3).expect("reserved");
        }
        for number in 0..20_000 {
            let way = [StoreWay::Cached, StoreWay::NonTemporal, StoreWay::Pinned][scattered(number, 3) as usize];
            let (line, length) = (scattered(!number, 40_000), scattered(number << 20, 700) as usize);
            let bytes = vec![number as u8; length];
            let stored = drive.store_by(Structure::Data, way, LineAddress::new(line), number % 64, &bytes).expect("stored");
            let mut found = vec![0; length];
            file.read_exact_at(&mut found, MEMORY_OFFSET + line * 64 + number % 64).expect("read");
            assert!(found == bytes, "what is stored is in the image at once, flushed or not");
            if number % 3 == 0 {
                drop(drive.fence(drive.flush_lines(stored)));
            }
        }
        let mut loaded = vec![0; 4 << 20];
        drive.load(Structure::Data, LineAddress::new(0), &mut loaded).expect("loaded");
        loaded
    };
    assert!(contents(&chosen(false)) == contents(&ModelOptions::default()));
}

fn elapsed_ns(rig: &Rig, stores: impl FnOnce()) -> u64 {
    let begun = rig.drive.now_ns();
    stores();
    rig.drive.now_ns() - begun
}

/// The media of the profile write 2.3 GB/s and read 6.6 GB/s, one after the other.
fn media_ns(bytes: &MediaBytes) -> u64 {
    bytes.written() * 10 / 23 + (bytes.read_bytes + bytes.merge_read_bytes) * 10 / 66
}

#[test]
fn what_reaches_the_media_takes_their_time() {
    let rig = Rig::new(PersistenceDomain::Adr);
    let found = elapsed_ns(&rig, || (0..STORES).for_each(|number| rig.persist(Structure::Inode, scattered(number, LINES), &[1; 64])));
    let least = media_ns(&rig.total());
    // Before the last stores the media may be behind by a buffer, 7 us.
    assert!((least * 98 / 100..least * 102 / 100).contains(&found), "{found} ns, the media take {least}");
    let rig = Rig::new(PersistenceDomain::Gpf);
    let found = elapsed_ns(&rig, || (0..STORES).for_each(|number| rig.persist(Structure::Inode, scattered(number, 256), &[1; 64])));
    assert!(found < STORES * 5 + 256 * 1000, "hits take 5 ns: {found}");
    let found = elapsed_ns(&rig, || rig.drive.load(Structure::Inode, LineAddress::new(LINES / 2), &mut [0; 64]).expect("loaded"));
    assert!(found >= 305, "a line that is not in the cache: {found}");
}

/// Two threads together are not faster than the media.
#[test]
fn threads_share_the_media() {
    let rig = Rig::new(PersistenceDomain::Adr);
    let (begun, count) = (rig.drive.now_ns(), STORES / 8);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let rig = &rig;
            scope.spawn(move || {
                (0..count).for_each(|number| rig.persist(Structure::Inode, scattered(number * 2 + thread, LINES), &[1; 64]))
            });
        }
    });
    let least = media_ns(&rig.total());
    // A thread that begins takes up the latest clock of all.
    let latest = std::thread::scope(|scope| scope.spawn(|| rig.drive.now_ns()).join().expect("a clock"));
    assert!(latest - begun >= least * 98 / 100, "{} ns, the media take {least}", latest - begun);
}

#[test]
fn counters_are_kept_over_the_life_of_the_drive() {
    let Rig { drive, path, _directory } = Rig::new(PersistenceDomain::Gpf);
    assert_eq!(media_statistics(&path).map_err(|error| error.to_string()).err().as_deref().map(|said| said.contains("in use")), Some(true));
    let mut expected = 0;
    let mut drive = Some(drive);
    for _ in 0..2 {
        let open_drive = drive.take().unwrap_or_else(|| open(&path));
        drop(open_drive.store(Structure::Inode, LineAddress::new(7), &[1; 64]).expect("stored"));
        drop(open_drive);
        expected += 1;
        let counts = media_statistics(&path).expect("read").expect("a model");
        // What was only in the cache is written when the drive is closed.
        assert_eq!((counts.total().stored_bytes, counts.total().written()), (expected * 64, expected * 256));
        assert_eq!(counts.of(Some(Structure::Inode)).written_bytes[Mechanism::Evicted as usize], expected * 256);
    }
    let reading = OpenOptions { read_only: true, virtual_time: true, ..OpenOptions::default() };
    let reader = Drive::new(open_image(&path, &reading).expect("opened"));
    reader.load(Structure::Inode, LineAddress::new(0), &mut [0; 64]).expect("loaded");
    drop(reader);
    let counts = media_statistics(&path).expect("read").expect("a model");
    assert_eq!(counts.missed_lines, expected, "a reader writes nothing");
}

/// Without its time an image is as fast as any: nothing is modelled, and the zone can be lent.
#[test]
fn without_timing_there_is_no_model() {
    let (_directory, path) = image(&chosen(false));
    let untimed = open_image(&path, &OpenOptions { timing: false, ..OpenOptions::default() }).expect("opened");
    assert!(untimed.media().is_none() && untimed.lent_zone().is_some());
    drop(untimed);
    let timed = open_image(&path, &OpenOptions::default()).expect("opened");
    assert!(timed.media().is_some() && timed.lent_zone().is_none());
}

#[test]
fn the_model_is_a_choice_at_creation() {
    let (_directory, path) = image(&ModelOptions::default());
    let plain = info(&path).expect("an image");
    assert!(plain.media.is_none() && plain.domain == PersistenceDomain::Adr && media_statistics(&path).expect("read").is_none());
    let (_other, path) = image(&chosen(true));
    let modelled = info(&path).expect("an image");
    assert!(modelled.domain == PersistenceDomain::Gpf && modelled.media.is_some_and(|model| model.cache_bytes == CACHE_BYTES));
    for (profile, model, said) in [
        ("off", chosen(false), "name one of romefs-b, optane"),
        ("bytefs", chosen(false), "no model of CPU caches"),
        ("optane", ModelOptions { no_timing: true, ..chosen(false) }, "part of the timing model"),
    ] {
        let target = path.with_extension("refused");
        let options = CreateOptions { profile: profile.into(), memory_bytes: MEMORY_BYTES, block_bytes: 512 << 20 };
        let refused = create_with(&target, &options, &model).expect_err("refused").to_string();
        assert!(refused.contains(said) && !target.exists(), "{refused}");
    }
}

/// Beside blocks it is the same.
#[test]
fn a_drive_with_blocks_has_the_model_too() {
    let directory = TempDir::new_in("/dev/shm").expect("a directory");
    let path = directory.path().join("disk.img");
    let options = CreateOptions { profile: "romefs-b".into(), memory_bytes: 16 << 20, block_bytes: 64 << 20 };
    create_with(&path, &options, &chosen(false)).expect("created");
    let drive = open(&path);
    drop(drive.persist(Structure::Journal, LineAddress::new(4), &[1; 256]).expect("stored"));
    let begun = drive.now_ns();
    let sector = tandemfs_format::Sector::new(3);
    let mut requests = [tandemfs_device::BlockRequest::Write { sector, buffer: (&[1; 4096][..]).into() }];
    drop(drive.transfer(Structure::Data, &mut requests, &mut || {}).expect("written"));
    assert!(drive.now_ns() - begun >= 10_000, "blocks take their time");
    let media = drive.media().expect("a model");
    media.write_back_all();
    assert_eq!(media.counts().total().written(), 256, "and are no part of the memory");
}
