//! Room lent behind the end of a file: every cut of a lease that is made, appended to and ended, in each domain, by its program or by force; what a
//! program that comes back late can reach; who sees the size; and the deliberate bugs.
//!
//! A mutant is global to the process, so the tests of this file run one after the other.

mod support;

use std::sync::{Arc, Mutex};

use support::bugs::{alone, find_nothing, is_caught};
use support::work::in_every_domain;
use tandemfs_crash::{
    CrashState, Cut, MemoryDevice, PausingDevice, Random, Setting, Storing, Window, check_device, content, each_state, fill, mount,
    mount_device,
};
use tandemfs_device::{Drive, PersistenceDomain};
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::mutant::Mutant;
use tandemfs_fs::{FileSystem, MountOptions, NewInode, SetAttributes, StoreLease, WriteOptions};

const STATES: u64 = 12;
const SIZE: usize = 10_000;
/// What is appended, first and then.
const FIRST: usize = 300;
const SECOND: usize = 500;
/// By how much the file grows when the lease has ended.
const GROWTH: usize = 700;
/// The steps of a scenario, as they are marked in the recording.
const LEND: usize = 0;
const BYTES: usize = 1;
const WORD: usize = 2;
const ASK: usize = 3;
const AGAIN: usize = 4;
const MORE: usize = 5;
const END: usize = 6;
const LATER: usize = 7;
const GROW: usize = 8;
const NEXT: usize = 9;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn setting(domain: PersistenceDomain, block_bytes: u32) -> Setting {
    Setting::small(domain, block_bytes).with_memory_homes()
}

fn create(fs: &FileSystem, name: &[u8]) -> Result<InodeNumber, String> {
    let new = NewInode { mode: file_type::REGULAR | 0o600, uid: 0, gid: 0, rdev: 0, target: b"" };
    fs.create(InodeNumber::ROOT, name, &new).map(|made| made.inode).map_err(text)
}

fn write(fs: &FileSystem, file: InodeNumber, offset: u64, bytes: &[u8]) -> Result<(), String> {
    fs.write(file, offset, bytes, WriteOptions::default()).map(drop).map_err(text)
}

fn set_size(fs: &FileSystem, file: InodeNumber, size: usize) -> Result<(), String> {
    fs.set_attributes(file, &SetAttributes { size: Some(size as u64), ..SetAttributes::default() }).map(drop).map_err(text)
}

struct Program {
    storing: Arc<Storing>,
    lease: Arc<StoreLease>,
    window: Window,
}

fn lend(fs: &Arc<FileSystem>, file: InodeNumber) -> Result<Program, String> {
    let (storing, access) = Storing::new();
    let lease = fs.lend_stores_to_append(&Arc::default(), &access, file).map_err(text)?.ok_or("nothing is lent")?;
    let window = Window::of(fs.drive(), &lease)?;
    if window.room() < (FIRST + SECOND + GROWTH) as u64 {
        return Err(format!("{} B of room", window.room()));
    }
    Ok(Program { storing, lease, window })
}

/// The file at last; which lengths of it a cut may leave.
fn allow(cut: Cut, whole: &[u8], found: &[u8]) -> Result<(), String> {
    let (first, second, grown) = (SIZE + FIRST, SIZE + FIRST + SECOND, SIZE + FIRST + SECOND + GROWTH);
    let sizes = match (cut.call.unwrap_or(LEND), cut.between) {
        (LEND | BYTES, _) => [SIZE, SIZE],
        (WORD, false) => [SIZE, first],
        (WORD, true) | (ASK, _) => [first, first],
        (AGAIN, false) => [first, second],
        (GROW, false) => [second, grown],
        (GROW, true) | (NEXT, _) => [grown, grown],
        _ => [second, second],
    };
    if !sizes.contains(&found.len()) {
        return Err(format!("{} B long, expected {sizes:?}", found.len()));
    }
    match found.iter().zip(whole).position(|(found, whole)| found != whole) {
        Some(at) => Err(format!("byte {at} of {}", found.len())),
        None => Ok(()),
    }
}

/// Lends, appends, asks for the size, appends again, stores behind that what no size covers, ends the lease, grows the file and lends again: the
/// program ends it, or a reader does while the program is inside and stays there. Every state of every cut is checked, mounted without and with
/// writing, read and grown.
fn cuts(domain: PersistenceDomain, block_bytes: u32, by_force: bool) -> Result<(), String> {
    let setting = setting(domain, block_bytes);
    let device = setting.format();
    let mut whole = fill(1, SIZE);
    {
        let fs = mount(&device, &setting.mount)?;
        let file = create(&fs, b"f")?;
        // Pages that were another file's: what is behind an end is no zeros.
        let other = create(&fs, b"other")?;
        write(&fs, other, 0, &vec![0xa5; 400_000])?;
        set_size(&fs, other, 0)?;
        write(&fs, file, 0, &whole)?;
        fs.unmount().map_err(text)?;
    }
    let fs = Arc::new(mount(&device, &setting.mount)?);
    let file = fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode;
    fs.checkpoint().map_err(text)?;
    let start = device.fork();
    device.start_recording();
    device.mark(LEND);
    let Program { storing, lease, window } = lend(&fs, file)?;
    device.mark_return(LEND);
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    let [first, second] = [fill(2, FIRST), fill(3, SECOND)];
    whole.extend(&first);
    device.mark(BYTES);
    window.store(SIZE as u64, &first)?;
    window.persist(SIZE as u64, FIRST as u64)?;
    device.mark_return(BYTES);
    device.mark(WORD);
    window.say(whole.len() as u64, true)?;
    device.mark_return(WORD);
    device.mark(ASK);
    let asked = fs.attributes(file).map_err(text)?.size;
    device.mark_return(ASK);
    if asked != whole.len() as u64 {
        return Err(format!("it has {asked} B"));
    }
    device.mark(AGAIN);
    window.append(whole.len() as u64, &second)?;
    device.mark_return(AGAIN);
    whole.extend(&second);
    device.mark(MORE);
    window.store(whole.len() as u64, &fill(4, 900))?;
    device.mark_return(MORE);
    if !by_force {
        storing.leave();
    }
    device.mark(END);
    match by_force {
        true => fs.read(file, SIZE as u64, &mut [0; 8]).map(drop).map_err(text)?,
        false => fs.end_stores(&lease).map_err(text)?,
    }
    device.mark_return(END);
    device.mark(LATER);
    if by_force {
        window.append(whole.len() as u64, &[0xee; 100])?;
        if storing.leave() {
            return Err("it was not told that its lease was taken away".into());
        }
        if lease.appended_to() != Some(whole.len() as u64) {
            return Err(format!("it is told {:?}", lease.appended_to()));
        }
    }
    fs.checkpoint().map_err(text)?;
    device.mark_return(LATER);
    device.mark(GROW);
    whole.resize(whole.len() + GROWTH, 0);
    set_size(&fs, file, whole.len())?;
    device.mark_return(GROW);
    device.mark(NEXT);
    let (_storing, access) = Storing::new();
    if !by_force {
        fs.lend_stores_to_append(&Arc::default(), &access, file).map_err(text)?.ok_or("nothing is lent again")?;
    }
    let events = device.stop_recording();
    if content(&fs, file).map_err(text)? != whole {
        return Err("it reads differently afterwards".into());
    }
    let (mut failure, mut states) = (None, 0);
    each_state(&start, &events, 0, STATES, &mut Random::new(7), &mut |cut, state| {
        if failure.is_none() {
            states += 1;
            failure = recover(&setting, state, cut, &whole).err().map(|what| format!("{cut:?}: {what}"));
        }
    });
    match failure {
        Some(what) => Err(what),
        None if states < 20 => Err(format!("{states} states are too few")),
        None => Ok(()),
    }
}

fn recover(setting: &Setting, state: CrashState, cut: Cut, whole: &[u8]) -> Result<(), String> {
    let device = state.device;
    check_device(&device, true).map_err(|found| format!("check after the cut: {found}"))?;
    let of = |fs: &FileSystem| fs.lookup(InodeNumber::ROOT, b"f").map(|found| (found.inode, found.size)).map_err(text);
    let read_only = MountOptions { read_only: true, ..setting.mount.clone() };
    let without_writing = {
        let fs = mount(&device.fork(), &read_only)?;
        content(&fs, of(&fs)?.0).map_err(text)?
    };
    let fs = mount(&device, &setting.mount)?;
    let (file, size) = of(&fs)?;
    let found = content(&fs, file).map_err(text)?;
    allow(cut, whole, &found)?;
    if size != found.len() as u64 || without_writing != found {
        return Err(format!("{size} B, read {}, without writing {}", found.len(), without_writing.len()));
    }
    fs.unmount().map_err(text)?;
    let counts = check_device(&device, false).map_err(|found| format!("check after an unmount: {found}"))?;
    if counts.open_pages > 0 {
        return Err(format!("{} pages stay open", counts.open_pages));
    }
    let fs = mount(&device, &setting.mount)?;
    set_size(&fs, file, found.len() + 3000)?;
    let grown = content(&fs, file).map_err(text)?;
    match grown.strip_prefix(&found[..]) {
        Some(behind) if behind.iter().all(|byte| *byte == 0) => Ok(()),
        _ => Err("what is behind the end became visible".into()),
    }
}

fn ended_by_the_program(domain: PersistenceDomain, block_bytes: u32) -> Result<(), String> {
    cuts(domain, block_bytes, false)
}

fn cuts_of_large_blocks() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 64 << 10, false)
}

fn cuts_of_single_pages() -> Result<(), String> {
    cuts(PersistenceDomain::Adr, 4096, false)
}

fn lent(block_bytes: u32) -> Result<(MemoryDevice, Arc<FileSystem>, InodeNumber, Program), String> {
    let setting = setting(PersistenceDomain::Adr, block_bytes);
    let device = setting.format();
    let fs = Arc::new(mount(&device, &setting.mount)?);
    let file = create(&fs, b"f")?;
    write(&fs, file, 0, &fill(1, SIZE))?;
    let program = lend(&fs, file)?;
    Ok((device, fs, file, program))
}

/// Who asks for a size, and who uses one, has what a program has appended.
fn seen_by_all() -> Result<(), String> {
    type Use = (&'static str, fn(&FileSystem, InodeNumber, u64) -> Result<bool, String>);
    let uses: [Use; 8] = [
        ("attributes", |fs, file, size| Ok(fs.attributes(file).map_err(text)?.size == size)),
        ("a look-up", |fs, _, size| Ok(fs.lookup(InodeNumber::ROOT, b"f").map_err(text)?.size == size)),
        ("the size", |fs, file, size| Ok(fs.size(file).map_err(text)? == size)),
        ("a read at the end", |fs, file, size| Ok(fs.read(file, size - 4, &mut [0; 20]).map_err(text)? == 4)),
        ("a search for data", |fs, file, size| Ok(fs.seek(file, size - 1, tandemfs_fs::SeekTo::Data).map_err(text)? == Some(size - 1))),
        ("an append", |fs, file, size| {
            let options = WriteOptions { append: true, ..WriteOptions::default() };
            fs.write(file, 0, b"appended", options).map_err(text)?;
            let mut found = [0; 20];
            Ok(fs.read(file, size, &mut found).map_err(text)? == 8 && &found[..8] == b"appended")
        }),
        ("a write far behind", |fs, file, size| {
            write(fs, file, 1 << 20, b"far")?;
            let mut found = [9; 20];
            Ok(fs.read(file, size - 2, &mut found).map_err(text)? == 20 && found[2..] == [0; 18] && found[..2] == [6, 6])
        }),
        ("space behind", |fs, file, size| {
            let mode = tandemfs_fs::AllocateMode::Allocate { keep_size: false };
            fs.allocate(file, size + 100, 5000, mode).map_err(text)?;
            Ok(fs.attributes(file).map_err(text)?.size == size + 5100)
        }),
    ];
    for block_bytes in [4096, 64 << 10] {
        for (what, uses) in &uses {
            let (device, fs, file, Program { storing, window, .. }) = lent(block_bytes)?;
            if !storing.enter() {
                return Err("the lease has ended".into());
            }
            window.append(SIZE as u64, &[6; FIRST])?;
            storing.leave();
            if !uses(&fs, file, (SIZE + FIRST) as u64)? {
                return Err(format!("{what}, blocks of {block_bytes} B"));
            }
            let end = fs.attributes(file).map_err(text)?.size;
            if storing.enter() {
                window.append(end, &[7; 50])?;
                storing.leave();
                if fs.read(file, end, &mut [0; 100]).map_err(text)? != 50 {
                    return Err(format!("an append after {what}, blocks of {block_bytes} B"));
                }
            }
            fs.unmount().map_err(text)?;
            check_device(&device, false)?;
        }
    }
    Ok(())
}

/// Somebody writes far behind the end, where no block of the lease is.
fn far_behind() -> Result<(), String> {
    let (_device, fs, file, Program { storing, .. }) = lent(4096)?;
    write(&fs, file, 1 << 20, b"far")?;
    if storing.enter() { Err("it appends inside of the file".into()) } else { Ok(()) }
}

/// A program that was late says a size when its slot would be another's.
fn late() -> Result<(), String> {
    let (device, fs, file, Program { storing, window, .. }) = lent(64 << 10)?;
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    let before = content(&fs, file).map_err(text)?;
    let other = create(&fs, b"other")?;
    write(&fs, other, 0, &fill(3, SIZE))?;
    let second = lend(&fs, other)?;
    if !second.storing.enter() {
        return Err("the lease of the other file has ended".into());
    }
    second.window.append(SIZE as u64, &[5; 40])?;
    second.storing.leave();
    window.append(SIZE as u64, &[0xee; 1000])?;
    storing.leave();
    if content(&fs, other).map_err(text)?.len() != SIZE + 40 {
        return Err("a late word counts for another file".into());
    }
    if content(&fs, file).map_err(text)? != before {
        return Err("a late word counts".into());
    }
    storing.unmap();
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

/// What is done before each step of the device, for [`late_at_each_step`].
static AT_STEP: Mutex<Option<Box<dyn FnMut() + Send>>> = Mutex::new(None);

fn at_step() {
    let act = AT_STEP.lock().expect("locked").take();
    if let Some(mut act) = act {
        act();
        *AT_STEP.lock().expect("locked") = Some(act);
    }
}

/// The bytes of a program are taken away. The machine stops at each step of that, when the program has just stored more and said so: what it said too late
/// is not there, or with its bytes.
fn late_at_each_step() -> Result<(), String> {
    const LATE: [u8; 100] = [0xee; 100];
    let setting = setting(PersistenceDomain::Gpf, 16 << 10);
    let device = setting.format();
    let pausing = PausingDevice::new(device.clone(), at_step);
    let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(text)?);
    let file = create(&fs, b"f")?;
    let whole = [fill(1, SIZE), fill(2, FIRST)].concat();
    write(&fs, file, 0, &whole[..SIZE])?;
    let Program { storing, lease, window } = lend(&fs, file)?;
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    window.append(SIZE as u64, &whole[SIZE..])?;
    let states = Arc::<Mutex<Vec<_>>>::default();
    let (all, end) = (states.clone(), whole.len() as u64);
    *AT_STEP.lock().expect("locked") = Some(Box::new(move || {
        let state = device.fork();
        let late = Window::of(&Drive::new(Arc::new(state.clone())), &lease).and_then(|window| window.append(end, &LATE));
        all.lock().expect("locked").push(late.map(|()| state));
    }));
    let read = fs.read(file, SIZE as u64, &mut [0; 8]);
    *AT_STEP.lock().expect("locked") = None;
    read.map_err(text)?;
    let states = std::mem::take(&mut *states.lock().expect("locked"));
    if states.len() < 10 {
        return Err(format!("{} states are too few", states.len()));
    }
    for (step, device) in states.into_iter().enumerate() {
        let device = device?;
        let after = mount(&device, &setting.mount)?;
        let found = content(&after, after.lookup(InodeNumber::ROOT, b"f").map_err(text)?.inode).map_err(text)?;
        if found != whole && found.strip_prefix(&whole[..]) != Some(&LATE[..]) {
            return Err(format!("step {step}: {} B", found.len()));
        }
        after.unmount().map_err(text)?;
        check_device(&device, false)?;
    }
    storing.leave();
    storing.unmap();
    fs.unmount().map_err(text)
}

/// Appends until the block is full; then there is room in the next one when something is there.
fn to_the_end_of_a_block() -> Result<(), String> {
    let (device, fs, file, Program { storing, window, lease }) = lent(16 << 10)?;
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    let rest = window.room() as usize;
    window.append(SIZE as u64, &vec![8; rest])?;
    storing.leave();
    let size = fs.attributes(file).map_err(text)?.size;
    if size != 16 << 10 {
        return Err(format!("{size} B"));
    }
    fs.end_stores(&lease).map_err(text)?;
    let (_storing, access) = Storing::new();
    let lease = fs.lend_stores_to_append(&Arc::default(), &access, file).map_err(text)?.ok_or("nothing is lent")?;
    if lease.room().is_some() {
        return Err("there is room in a full block".into());
    }
    write(&fs, file, size, b"more")?;
    let Program { storing, window, .. } = lend(&fs, file)?;
    if !storing.enter() {
        return Err("the lease has ended".into());
    }
    window.append(size + 4, b"and more")?;
    storing.leave();
    let found = content(&fs, file).map_err(text)?;
    if found.get(16 << 10..) != Some(b"moreand more") || found.get(SIZE..16 << 10) != Some(&vec![8; rest][..]) {
        return Err("it reads differently".into());
    }
    fs.unmount().map_err(text)?;
    check_device(&device, false).map(drop)
}

#[test]
fn without_a_bug_nothing_is_caught() {
    let _alone = alone();
    in_every_domain(ended_by_the_program);
    for (domain, block_bytes) in [(PersistenceDomain::Adr, 4096), (PersistenceDomain::Adr, 64 << 10), (PersistenceDomain::Gpf, 16 << 10)] {
        cuts(domain, block_bytes, true).unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}, by force: {what}"));
    }
    find_nothing(&[seen_by_all, far_behind, late, late_at_each_step, to_the_end_of_a_block]);
}

#[test]
fn lr1_lent_end_unmarked() {
    is_caught(Mutant::LentEndUnmarked, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn lr1_open_mark_forgotten() {
    is_caught(Mutant::OpenMarkForgotten, &[cuts_of_large_blocks, cuts_of_single_pages]);
}

#[test]
fn lr2_lent_line_at_once() {
    is_caught(Mutant::LentLineAtOnce, &[cuts_of_large_blocks]);
}

#[test]
fn lr2_lent_word_stale() {
    is_caught(Mutant::LentWordStale, &[cuts_of_large_blocks]);
}

#[test]
fn lr4_lent_size_forgotten() {
    is_caught(Mutant::LentSizeForgotten, &[cuts_of_large_blocks, seen_by_all]);
}

#[test]
fn lr5_lent_slot_left() {
    is_caught(Mutant::LentSlotLeft, &[cuts_of_large_blocks, to_the_end_of_a_block]);
}

#[test]
fn lr6_lent_rooms_not_adopted() {
    is_caught(Mutant::LentRoomsNotAdopted, &[cuts_of_large_blocks]);
}

#[test]
fn lr7_lent_word_reused() {
    is_caught(Mutant::LentWordReused, &[late]);
}

#[test]
fn lr7_lent_slot_kept_for_copy() {
    is_caught(Mutant::LentSlotKeptForCopy, &[late_at_each_step]);
}

#[test]
fn lr8_lent_bit_forgotten() {
    is_caught(Mutant::LentBitForgotten, &[cuts_of_large_blocks]);
}
