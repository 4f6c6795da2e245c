//! Random operations of random users.

use tandemfs_crash::Random;

/// Most files that are open at once.
pub const SLOTS: usize = 6;

/// A call. Paths begin in the root.
#[derive(Debug, Clone)]
pub enum Operation {
    Open {
        slot: usize,
        path: String,
        flags: i32,
        mode: u32,
    },
    Close {
        slot: usize,
    },
    Read {
        slot: usize,
        length: usize,
    },
    ReadAt {
        slot: usize,
        offset: u64,
        length: usize,
    },
    Write {
        slot: usize,
        length: usize,
    },
    WriteAt {
        slot: usize,
        offset: u64,
        length: usize,
    },
    Seek {
        slot: usize,
        offset: i64,
        whence: i32,
    },
    /// From the start: whether a listing goes on with names made since is nobody's promise.
    List {
        slot: usize,
    },
    TruncateOpen {
        slot: usize,
        length: u64,
    },
    Allocate {
        slot: usize,
        flags: u32,
        offset: u64,
        length: u64,
    },
    Copy {
        from: (usize, u64),
        to: (usize, u64),
        length: usize,
    },
    ChangeModeOpen {
        slot: usize,
        mode: u32,
    },
    ChangeOwnerOpen {
        slot: usize,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    LinkOpen {
        slot: usize,
        path: String,
    },
    OpenIn {
        slot: usize,
        directory: usize,
        path: String,
        flags: i32,
        mode: u32,
    },
    Stat {
        path: String,
        follows: bool,
    },
    Access {
        path: String,
        mode: u32,
        effective: bool,
    },
    MakeDirectory {
        path: String,
        mode: u32,
    },
    MakeNode {
        path: String,
        mode: u32,
        rdev: u32,
    },
    MakeLink {
        target: String,
        path: String,
    },
    Link {
        from: String,
        to: String,
        follows: bool,
    },
    Unlink {
        path: String,
    },
    RemoveDirectory {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        flags: u32,
    },
    ReadLink {
        path: String,
    },
    Truncate {
        path: String,
        length: u64,
    },
    ChangeMode {
        path: String,
        mode: u32,
    },
    ChangeOwner {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
        follows: bool,
    },
    SetTimes {
        path: String,
        atime: i64,
        mtime: i64,
        follows: bool,
    },
    SetAttribute {
        path: String,
        name: &'static str,
        value: Vec<u8>,
        flags: i32,
        follows: bool,
    },
    GetAttribute {
        path: String,
        name: &'static str,
        follows: bool,
    },
    RemoveAttribute {
        path: String,
        name: &'static str,
        follows: bool,
    },
    ListAttributes {
        path: String,
        follows: bool,
    },
}

/// A time of [`Operation::SetTimes`] that stands for UTIME_NOW, and one for UTIME_OMIT.
pub const NOW: i64 = -1;
pub const OMIT: i64 = -2;

const NAMES: [&str; 4] = ["a", "b", "c", "d"];
const ATTRIBUTES: [&str; 9] = [
    "user.one",
    "user.two",
    "trusted.one",
    "security.one",
    "security.capability",
    "system.posix_acl_access",
    "system.posix_acl_access",
    "system.posix_acl_default",
    "unknown.one",
];
const IDS: [u32; 5] = [0, 1001, 1002, 1003, 1500];

fn one_of<T: Copy>(random: &mut Random, list: &[T]) -> T {
    list[random.below(list.len() as u64) as usize]
}

fn path(random: &mut Random) -> String {
    let mut path = String::new();
    for step in 0..=one_of(random, &[0, 0, 0, 1, 1, 2]) {
        if step > 0 {
            path += one_of(random, &["/", "/", "/", "/", "//", "/./"]);
        }
        path += match random.below(40) {
            0 => "..",
            1 => ".",
            _ => one_of(random, &NAMES),
        };
    }
    match random.below(60) {
        0 => path += "/.",
        1 => path += "/..",
        2..=4 => path += "/",
        5 => path += &"n".repeat(256),
        6 => path = path.repeat(700).replace("aa", "a/").replace("bb", "b/"),
        _ => {}
    }
    path
}

fn mode(random: &mut Random) -> u32 {
    let special = if random.below(3) == 0 { random.below(8) << 9 } else { 0 };
    let plain = one_of(random, &[0o777, 0o777, 0o777, 0o755, 0o700, 0o644, 0o666, 0o070, 0o007, 0o000, 0o2775]);
    (special | if random.below(6) == 0 { random.below(0o1000) } else { plain }) as u32
}

fn id(random: &mut Random) -> Option<u32> {
    (random.below(4) > 0).then(|| one_of(random, &IDS))
}

fn flags(random: &mut Random) -> i32 {
    let mut flags = one_of(random, &[libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR]);
    let further = [
        (libc::O_CREAT, 2),
        (libc::O_TRUNC, 6),
        (libc::O_APPEND, 6),
        (libc::O_EXCL, 10),
        (libc::O_DIRECTORY, 12),
        (libc::O_NOFOLLOW, 10),
        (libc::O_PATH, 16),
    ];
    for (flag, one_in) in further {
        if random.one_in(one_in) {
            flags |= flag;
        }
    }
    match random.below(16) {
        0 => flags |= libc::O_TMPFILE,
        1 => flags |= libc::O_NOATIME,
        _ => {}
    }
    flags | libc::O_CLOEXEC
}

fn list(random: &mut Random) -> Vec<u8> {
    let mut entries: Vec<(u16, u32)> = vec![(1, u32::MAX)];
    let (users, groups) = (random.below(3), random.below(3));
    entries.extend((0..users).map(|number| (2, 1001 + number as u32)));
    entries.push((4, u32::MAX));
    entries.extend((0..groups).map(|number| (8, [1001, 1500][number as usize])));
    if users + groups > 0 || random.below(2) == 0 {
        entries.push((16, u32::MAX));
    }
    entries.push((32, u32::MAX));
    match random.below(30) {
        0 => drop(entries.pop()),
        1 => entries.clear(),
        2 => entries.push((64, 0)),
        _ => {}
    }
    let mut value = if random.below(40) == 0 { 1_u32 } else { 2 }.to_le_bytes().to_vec();
    for (tag, id) in entries {
        let permissions = random.below(8) as u16;
        value.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

fn value(random: &mut Random, name: &str) -> Vec<u8> {
    match name {
        "security.capability" if random.below(8) > 0 => vec![1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        name if name.starts_with("system.") => list(random),
        _ => vec![7; 1 + random.below(40) as usize],
    }
}

fn time(random: &mut Random) -> i64 {
    match random.below(4) {
        0 => OMIT,
        1 => NOW,
        _ => random.below(100_000) as i64,
    }
}

impl Operation {
    pub fn random(random: &mut Random) -> Self {
        let slot = random.below(SLOTS as u64) as usize;
        let (offset, length) = (random.below(9000), random.below(3000) as usize);
        let follows = random.below(3) > 0;
        match random.below(100) {
            0..=12 => Self::Open { slot, path: path(random), flags: flags(random), mode: mode(random) },
            13..=14 => Self::Close { slot },
            15 => Self::Read { slot, length },
            16 => Self::ReadAt { slot, offset, length },
            17..=18 => Self::Write { slot, length },
            19..=20 => Self::WriteAt { slot, offset, length },
            21 => Self::Seek { slot, offset: offset as i64 - 4000, whence: random.below(3) as i32 },
            22..=23 => Self::List { slot },
            24 => Self::TruncateOpen { slot, length: offset },
            25 => Self::Allocate { slot, flags: one_of(random, &[0, 1, 2, 3, 0x10, 0x11, 8, 0x20]), offset, length: length as u64 },
            26 => Self::Copy { from: (slot, offset), to: (random.below(SLOTS as u64) as usize, random.below(9000)), length },
            27 => Self::ChangeModeOpen { slot, mode: mode(random) },
            28 => Self::ChangeOwnerOpen { slot, uid: id(random), gid: id(random) },
            29 => Self::LinkOpen { slot, path: path(random) },
            30..=32 => {
                let directory = random.below(SLOTS as u64) as usize;
                Self::OpenIn { slot, directory, path: path(random), flags: flags(random), mode: mode(random) }
            }
            33..=35 => Self::Stat { path: path(random), follows },
            36..=40 => Self::Access { path: path(random), mode: random.below(8) as u32, effective: random.below(2) == 0 },
            41..=50 => Self::MakeDirectory { path: path(random), mode: mode(random) },
            51..=53 => {
                let kind = one_of(random, &[0, 0o100_000, 0o010_000, 0o020_000, 0o060_000, 0o140_000, 0o040_000]);
                Self::MakeNode { path: path(random), mode: kind | mode(random), rdev: one_of(random, &[0, 0x103]) }
            }
            54..=56 => Self::MakeLink { target: path(random), path: path(random) },
            57..=60 => Self::Link { from: path(random), to: path(random), follows },
            61..=64 => Self::Unlink { path: path(random) },
            65..=66 => Self::RemoveDirectory { path: path(random) },
            67..=73 => Self::Rename { from: path(random), to: path(random), flags: one_of(random, &[0, 0, 0, 1, 2, 3, 4, 6]) },
            74 => Self::ReadLink { path: path(random) },
            75..=76 => Self::Truncate { path: path(random), length: offset },
            77..=82 => Self::ChangeMode { path: path(random), mode: mode(random) },
            83..=86 => Self::ChangeOwner { path: path(random), uid: id(random), gid: id(random), follows },
            87..=89 => Self::SetTimes { path: path(random), atime: time(random), mtime: time(random), follows },
            90..=95 => {
                let name = one_of(random, &ATTRIBUTES);
                let flags = one_of(random, &[0, 0, 0, 1, 2, 3, 4]);
                Self::SetAttribute { path: path(random), name, value: value(random, name), flags, follows }
            }
            96..=97 => Self::GetAttribute { path: path(random), name: one_of(random, &ATTRIBUTES), follows },
            98 => Self::RemoveAttribute { path: path(random), name: one_of(random, &ATTRIBUTES), follows },
            _ => Self::ListAttributes { path: path(random), follows },
        }
    }
}
