//! Texts of links in the place of mappings: inode numbers that are used again while write-back and a scrub hold positions in the file that had
//! them. The text of a short link lies where the root of a mapping would, and its bytes are the user's choice; so is the number of a device.

use tandemfs_crash::{MemoryDevice, Setting, check_device, fill, mount};
use tandemfs_device::PersistenceDomain;
use tandemfs_format::InodeNumber;
use tandemfs_format::inode::file_type;
use tandemfs_fs::{Error, FileSystem, MountOptions, NewInode, Scrub, WriteOptions};

use crate::Input;

const STEPS_MAX: usize = 32;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
const BLOCK: u64 = 64 << 10;
/// A log of this length; some fifty of them are more than a tenth of the data area.
const LOG_BYTES: usize = 20_000;

/// What has a name.
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
        // Write-back begins where a tenth is taken, and leaves candidates over when a twentieth is.
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

    /// Logs in blocks of a file, which is made where there is none.
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

    /// A text of any bytes, or one that begins as a record does.
    fn make_link(&mut self, input: &mut Input<'_>) {
        let mut text = match input.below(3) {
            0 => vec![1 + input.byte() % 8, 0x0c],                           // a pointer and its height
            1 => vec![1 + input.byte() % 16, 4 | (input.byte() & 0x7) << 4], // a block and what it has
            _ => Vec::new(),
        };
        let length = input.below(24);
        text.extend_from_slice(input.take(length));
        self.make(input, Named::Link(text));
    }

    /// Gives a name that is free to what is wanted. Returns which name it was.
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

    /// Nothing is damaged, and every name leads to what was made.
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

/// Files whose numbers come to links and devices while write-back has candidates of them and a scrub is inside them.
pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    let others: [&[u8]; 5] = [
        &[3, 0, 0, 2, 0x41, 0x42, 1],    // a pointer of height 1
        &[3, 0, 3, 3, 1, 2, 3, 1],       // a pointer of height 4
        &[3, 1, 0, 0, 2, 0x41, 0x42, 1], // a block
        &[3, 2, 8, 46, 46, 47, 97, 47, 98, 47, 99, 1],
        &[4, 1, 0x0c, 0, 0, 1], // the number of a device that reads as a pointer
    ];
    for other in others {
        // Two files with logs: write-back leaves those of the second over, which goes, and its number comes to the other one.
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
