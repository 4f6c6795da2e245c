//! Link texts in the place of mapping roots: inode numbers are reused while write-back and a scrub hold positions in the previous file. The
//! text of a short link, or the number of a device, is stored where the root of a mapping would be, and the user chooses its bytes.

use tandemfs_crash::{MemoryDevice, Setting, check_device, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, Scrub, WriteOptions};

use crate::Input;

const STEPS_MAX: usize = 32;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
const BLOCK: u64 = 64 << 10;
/// The length of a log; about fifty of them exceed a tenth of the data area.
const LOG_BYTES: usize = 20_000;

/// The inode that has a name.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    Nothing,
    File,
    Link(Vec<u8>),
    Device(u32),
    Directory,
}

struct World {
    setting: Setting,
    device: MemoryDevice,
    fs: FileSystem,
    named: [Named; NAMES.len()],
    scrub: Option<Scrub>,
}

pub(crate) fn run(bytes: &[u8]) {
    let mut world = World::new();
    let mut input = Input::new(bytes);
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        world.step(&mut input);
        world.judge();
    }
    world.end();
}

impl World {
    fn new() -> Self {
        // Write-back begins when a tenth of the data area is in use, and ends with candidates left over when a twentieth is.
        let mut setting = Setting { block_zone_bytes: 16 << 20, ..Setting::small(PersistenceDomain::Gpf, BLOCK as u32) };
        setting.mount = MountOptions { write_back_percent: 90, ..setting.mount };
        let device = setting.format();
        let fs = mount(&device, &setting.mount).expect("a fresh image mounts");
        Self { setting, device, fs, named: [const { Named::Nothing }; NAMES.len()], scrub: None }
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.below(10) {
            0 | 1 => self.fill(input),
            2 => self.remove(input),
            3 => self.make_link(input),
            4 => {
                let number = input.number(4) as u32;
                self.make(input, Named::Device(number));
            }
            5 => {
                self.make(input, Named::Directory);
            }
            6 => self.fs.checkpoint().expect("a checkpoint"),
            7 => {
                self.fs.write_back().expect("write-back");
            }
            8 => {
                self.fs.write_back_all().expect("write-back");
            }
            _ => self.scrub_some(input),
        }
    }

    /// Writes logs into blocks of a file, which is created if the name is free.
    fn fill(&mut self, input: &mut Input<'_>) {
        let name = self.make(input, Named::File);
        if self.named[name] != Named::File {
            return;
        }
        let file = self.fs.lookup(InodeNumber::ROOT, NAMES[name]).expect("a name").inode;
        let bytes = fill(1, LOG_BYTES);
        for block in 0..1 + u64::from(input.byte() % 100) {
            match self.fs.write(file, block * BLOCK, &bytes, WriteOptions::default()) {
                Ok(_) => {}
                Err(Error::NoSpace { .. }) => break,
                Err(error) => panic!("a write: {error}"),
            }
        }
    }

    fn remove(&mut self, input: &mut Input<'_>) {
        let name = input.below(NAMES.len());
        let removed = match self.named[name] {
            Named::Nothing => return,
            Named::Directory => self.fs.remove_directory(InodeNumber::ROOT, NAMES[name]),
            _ => self.fs.unlink(InodeNumber::ROOT, NAMES[name]),
        };
        removed.expect("removed");
        self.named[name] = Named::Nothing;
    }

    /// A link text of arbitrary bytes, or one that begins like a record.
    fn make_link(&mut self, input: &mut Input<'_>) {
        let mut text = match input.below(3) {
            0 => vec![1 + input.byte() % 8, 0x0c],                           // a pointer and its height
            1 => vec![1 + input.byte() % 16, 4 | (input.byte() & 0x7) << 4], // a block and its flags
            _ => Vec::new(),
        };
        let length = input.below(24);
        text.extend_from_slice(input.take(length));
        self.make(input, Named::Link(text));
    }

    /// Creates an inode under a name if that name is free. Returns the index of the name.
    fn make(&mut self, input: &mut Input<'_>, wanted: Named) -> usize {
        let name = input.below(NAMES.len());
        if self.named[name] != Named::Nothing {
            return name;
        }
        let (mode, rdev, target) = match &wanted {
            Named::Nothing | Named::File => (file_type::REGULAR, 0, &[][..]),
            Named::Link(text) => (file_type::SYMLINK, 0, &text[..]),
            Named::Device(number) => (file_type::CHARACTER, *number, &[][..]),
            Named::Directory => (file_type::DIRECTORY, 0, &[][..]),
        };
        let new = NewInode { mode: mode | 0o700, uid: 0, gid: 0, rdev, target };
        match self.fs.create(InodeNumber::ROOT, NAMES[name], &new) {
            Ok(_) => self.named[name] = wanted,
            Err(Error::InvalidArgument(_)) if mode == file_type::SYMLINK && (target.is_empty() || target.contains(&0)) => {}
            Err(Error::NoSpace { .. }) => {}
            Err(error) => panic!("{wanted:?}: {error}"),
        }
        name
    }

    fn scrub_some(&mut self, input: &mut Input<'_>) {
        let scrub = self.scrub.get_or_insert_with(|| self.fs.scrub());
        if !(0..1 + input.below(12)).all(|_| self.fs.scrub_step(scrub)) {
            self.scrub_ended();
        }
    }

    fn scrub_ended(&mut self) {
        if let Some(scrub) = self.scrub.take() {
            assert!(scrub.findings().is_empty(), "a scrub finds {:?}", scrub.findings());
        }
    }

    /// Checks that no damage is reported, and that every name leads to its inode.
    fn judge(&self) {
        assert_eq!(self.fs.statistics().work.write_back_damaged, 0, "write-back met damage where there is none");
        assert_eq!(self.fs.stopped(), None);
        for (name, named) in NAMES.iter().zip(&self.named) {
            let found = self.fs.lookup(InodeNumber::ROOT, name);
            match (named, found) {
                (Named::Nothing, Err(Error::NotFound)) | (Named::File | Named::Directory, Ok(_)) => {}
                (Named::Link(text), Ok(found)) => assert_eq!(self.fs.read_link(found.inode).expect("a link"), *text),
                (Named::Device(number), Ok(found)) => assert_eq!(found.rdev, *number),
                (named, found) => panic!("{named:?}: {found:?}"),
            }
        }
    }

    fn end(mut self) {
        while self.scrub.as_mut().is_some_and(|scrub| self.fs.scrub_step(scrub)) {}
        self.scrub_ended();
        self.fs.write_back_all().expect("write-back");
        self.judge();
        self.fs.unmount().expect("unmounts");
        self.fs = mount(&self.device, &self.setting.mount).expect("mounts");
        self.judge();
        self.fs.unmount().expect("unmounts");
        check_device(&self.device, false).unwrap_or_else(|findings| panic!("{findings}"));
    }
}

/// Files whose numbers are reused for links and devices while write-back has candidates in them and a scrub is inside them.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let others: [&[u8]; 5] = [
        &[3, 0, 0, 2, 0x41, 0x42, 1],    // a pointer of height 1
        &[3, 0, 3, 3, 1, 2, 3, 1],       // a pointer of height 4
        &[3, 1, 0, 0, 2, 0x41, 0x42, 1], // a block
        &[3, 2, 8, 46, 46, 47, 97, 47, 98, 47, 99, 1],
        &[4, 1, 0x0c, 0, 0, 1], // a device number that looks like a pointer
    ];
    for other in others {
        // Two files with logs. Write-back leaves those of the second file over; that file is removed, and the other inode gets its number.
        let stale: &[u8] = &[0, 0, 99, 0, 1, 9, 7, 2, 1, 6, 0, 0, 0];
        corpus.push([stale, other, &[7, 8]].concat());
        for steps in [4, 6, 8] {
            let inside: &[u8] = &[0, 1, 99, 6, 9, steps, 2, 1, 6];
            corpus.push([inside, other, &[9, 11]].concat());
        }
    }
    corpus.push(vec![0, 0, 99, 0, 1, 60, 7, 2, 1, 6, 5, 1, 7, 8, 2, 1, 6, 3, 2, 3, 1, 2, 3, 1]);
    corpus
}
