//! Requests captured between a kernel (Linux 6.18, protocol 7.45) and a mount, and arbitrary bytes.

use proptest::prelude::*;
use tandemfs_wire::{CopyFileRange, Dialect, Init, InitFlags, Operation, Request, RequestError, SetAttributes, SetTime, Time, Write, abi};
use zerocopy::IntoBytes;

const DIALECT: Dialect = Dialect { setxattr_ext: true, allow_idmap: false };

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
}

/// Header, fixed part and rest in hexadecimal; spaces only help the reader. A thread id other than 0 was replaced by 77.
fn golden() -> Vec<(&'static str, Operation<'static>)> {
    vec![
        (
            "680000001a0000000200000000000000000000000000000000000000000000000000000000000000 \
             070000002d00000000000200fbffff73fd05000000000000000000000000000000000000000000000000000000000000 \
             00000000000000000000000000000000",
            Operation::Init(Init { major: 7, minor: 45, max_readahead: 128 << 10, flags: InitFlags::from_words(0x73ff_fffb, 0x5fd) }),
        ),
        (
            "2f000000010000000600000000000000010000000000000000000000000000004d00000000000000 \
             73746561647900",
            Operation::Lookup { name: b"steady" },
        ),
        (
            "3000000002000000a600000000000000060000000000000000000000000000000000000000000000 \
             0200000000000000",
            Operation::Forget { count: 2 },
        ),
        (
            "38000000030000000400000000000000010000000000000000000000000000004d00000000000000 \
             00000000000000000000000000000000",
            Operation::Getattr { handle: None },
        ),
        (
            "40000000340000000c00000000000000050000000000000000000000000000004d00000000000000 \
             0000000000000000000000000000000000000000ff0f0000",
            Operation::Statx { handle: None, flags: 0, mask: 0xfff },
        ),
        (
            "80000000040000001800000000000000050000000000000000000000000000004d00000000000000 \
             08020000000000000000000000000000000000000000000002c67f4a174681a000000000000000000000000000000000 \
             00000000000000000000000000000000000000000000000000000000000000000000000000000000",
            Operation::Setattr(SetAttributes { size: Some(0), lock_owner: Some(0xa081_4617_4a7f_c602), ..SetAttributes::default() }),
        ),
        (
            "80000000040000005c00000000000000050000000000000000000000000000004d00000000000000 \
             010000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 \
             0000000000000000000000000000000000000000ed89000000000000000000000000000000000000",
            Operation::Setattr(SetAttributes { mode: Some(0o104_755), ..SetAttributes::default() }),
        ),
        (
            "80000000040000005e00000000000000050000000000000000000000000000004d00000000000000 \
             3001000000000000000000000000000000000000000000000000000000000000fbffffffffffffff1694036b00000000 \
             0000000000000000070000003eb6d63a000000000000000000000000000000000000000000000000",
            Operation::Setattr(SetAttributes {
                atime: Some(SetTime::At(Time { seconds: -5, nanoseconds: 7 })),
                mtime: Some(SetTime::Now),
                ..SetAttributes::default()
            }),
        ),
        (
            "80000000040000006200000000000000050000000000000000000000000000004d00000000000000 \
             060800000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000 \
             000000000000000000000000000000000000000000000000000000000c0000002200000000000000",
            Operation::Setattr(SetAttributes { uid: Some(12), gid: Some(34), kill_suidgid: true, ..SetAttributes::default() }),
        ),
        ("28000000050000003a00000000000000070000000000000000000000000000004d00000000000000", Operation::Readlink),
        (
            "35000000060000003600000000000000010000000000000000000000000000004d00000000000000 \
             73796d00746f2f746865726500",
            Operation::Symlink { name: b"sym", target: b"to/there" },
        ),
        (
            "3c000000080000008a00000000000000010000000000000000000000000000004d00000000000000 \
             8021000003010000120000000000000064657600",
            Operation::Mknod { name: b"dev", mode: 0o020_600, umask: 0o022, rdev: 0x103 },
        ),
        (
            "34000000090000002400000000000000010000000000000000000000000000004d00000000000000 \
             ed0100001200000064697200",
            Operation::Mkdir { name: b"dir", mode: 0o755, umask: 0o022 },
        ),
        (
            "2d0000000a000000a000000000000000010000000000000000000000000000004d00000000000000 \
             6861726400",
            Operation::Unlink { name: b"hard" },
        ),
        (
            "2d0000000b000000a400000000000000010000000000000000000000000000004d00000000000000 \
             6469723300",
            Operation::Rmdir { name: b"dir3" },
        ),
        (
            "390000000c0000002a00000000000000010000000000000000000000000000004d00000000000000 \
             0100000000000000646972006469723200",
            Operation::Rename { name: b"dir", new_parent: 1, new_name: b"dir2", flags: 0 },
        ),
        (
            "420000002d0000003000000000000000010000000000000000000000000000004d00000000000000 \
             0100000000000000010000000000000064697232006469723300",
            Operation::Rename { name: b"dir2", new_parent: 1, new_name: b"dir3", flags: 1 },
        ),
        (
            "350000000d0000003e00000000000000010000000000000000000000000000004d00000000000000 \
             05000000000000006861726400",
            Operation::Link { target: 5, name: b"hard" },
        ),
        (
            "300000000e0000001400000000000000050000000000000000000000000000004d00000000000000 \
             0180000000000000",
            Operation::Open { flags: 0o100_001, kill_suidgid: false },
        ),
        (
            "500000000f0000000e00000000000000050000000000000000000000000000004d00000000000000 \
             07000000000000000000000000000000001000000000000000000000000000000080000000000000",
            Operation::Read { handle: 7, offset: 0, size: 4096, flags: 0o100_000, lock_owner: None },
        ),
        (
            "57000000100000001c00000000000000050000000000000000000000000000004d00000000000000 \
             070000000000000000000000000000000700000000000000000000000000000001800000000000007061796c6f6164",
            Operation::Write(Write {
                handle: 7,
                offset: 0,
                data: b"payload",
                flags: 0o100_001,
                from_cache: false,
                kill_suidgid: false,
                lock_owner: None,
            }),
        ),
        (
            "520000001000000072000000000000000500000000000000e8030000e80300004d00000000000000 \
             07000000000000000700000000000000020000000400000000000000000000000184000000000000780a",
            Operation::Write(Write {
                handle: 7,
                offset: 7,
                data: b"x\n",
                flags: 0o102_001,
                from_cache: false,
                kill_suidgid: true,
                lock_owner: None,
            }),
        ),
        ("28000000110000008c00000000000000010000000000000000000000000000004d00000000000000", Operation::Statfs),
        (
            "40000000120000002000000000000000050000000000000000000000000000000000000000000000 \
             070000000000000001800000000000000000000000000000",
            Operation::Release { handle: 7, flags: 0o100_001, flush: false, flock_unlock: false, lock_owner: 0 },
        ),
        (
            "38000000140000005000000000000000080000000000000000000000000000004d00000000000000 \
             07000000000000000100000000000000",
            Operation::Fsync { handle: 7, data_only: true },
        ),
        (
            "44000000150000005400000000000000050000000000000000000000000000004d00000000000000 \
             05000000010000000000000000000000757365722e6b0076616c7565",
            Operation::Setxattr { name: b"user.k", value: b"value", flags: 1, acl_kill_sgid: Some(false) },
        ),
        (
            "37000000160000005600000000000000050000000000000000000000000000004d00000000000000 \
             4d00000000000000757365722e6b00",
            Operation::Getxattr { name: b"user.k", size: 77 },
        ),
        (
            "30000000170000005800000000000000050000000000000000000000000000004d00000000000000 \
             6300000000000000",
            Operation::Listxattr { size: 99 },
        ),
        (
            "2f000000180000005a00000000000000050000000000000000000000000000004d00000000000000 \
             757365722e6b00",
            Operation::Removexattr { name: b"user.k" },
        ),
        (
            "40000000190000001e00000000000000050000000000000000000000000000004d00000000000000 \
             0700000000000000000000000000000002c67f4a174681a0",
            Operation::Flush { handle: 7, lock_owner: 0xa081_4617_4a7f_c602 },
        ),
        (
            "300000001b0000007c00000000000000010000000000000000000000000000004d00000000000000 \
             0088010000000000",
            Operation::Opendir { flags: 0o304_000 },
        ),
        (
            "400000001d0000008200000000000000010000000000000000000000000000000000000000000000 \
             070000000000000000880100000000000000000000000000",
            Operation::Releasedir { handle: 7, flags: 0o304_000 },
        ),
        (
            "3c000000230000004400000000000000010000000000000000000000000000004d00000000000000 \
             41820000a481000012000000000000006e657700",
            Operation::Create { name: b"new", mode: 0o100_644, umask: 0o022, flags: 0o101_101, kill_suidgid: false },
        ),
        (
            "3a000000330000008400000000000000010000000000000000000000000000004d00000000000000 \
             01804100a481000012000000000000002f00",
            Operation::Tmpfile { mode: 0o100_644, umask: 0o022, flags: 0o20_300_001, kill_suidgid: false },
        ),
        (
            "3000000024000000b300000000000000000000000000000000000000000000000000000000000000 \
             b200000000000000",
            Operation::Interrupt { unique: 178 },
        ),
        (
            "40000000280000008e00000000000000080000000000000000000000000000004d00000000000000 \
             070000000000000004000000000000000100000019000000",
            Operation::Poll { handle: 7, kernel_handle: 4, events: 0x19, notify: true },
        ),
        (
            "50000000290000000100000000000000050000000000000000000000000000004d00000000000000 \
             00000000000000000000000000000000000000000000000000000000000000000000000000000000",
            Operation::NotifyReply { offset: 0, data: b"" },
        ),
        (
            "480000002b0000004a00000000000000080000000000000000000000000000004d00000000000000 \
             0700000000000000001000000000000000200000000000000100000000000000",
            Operation::Fallocate { handle: 7, offset: 4096, length: 8192, mode: 1 },
        ),
        (
            "500000002c0000008000000000000000010000000000000000000000000000004d00000000000000 \
             07000000000000000a00000000000000008000000000000000000000000000000088010000000000",
            Operation::Readdirplus { handle: 7, offset: 10, size: 32 << 10, flags: 0o304_000 },
        ),
        (
            "400000002e0000004c00000000000000080000000000000000000000000000004d00000000000000 \
             070000000000000003000000000000000300000000000000",
            Operation::Lseek { handle: 7, offset: 3, whence: 3 },
        ),
        (
            "60000000350000004e00000000000000050000000000000000000000000000004d00000000000000 \
             070000000000000001000000000000000800000000000000070000000000000014000000000000000400000000000000 \
             0000000000000000",
            Operation::CopyFileRange(CopyFileRange {
                handle: 7,
                offset: 1,
                target: 8,
                target_handle: 7,
                target_offset: 20,
                length: 4,
                flags: 0,
            }),
        ),
    ]
}

#[test]
#[cfg(target_endian = "little")]
fn requests_of_a_kernel_are_understood() {
    for (hex, expected) in golden() {
        let bytes = bytes(hex);
        let request = Request::parse(&bytes, DIALECT).expect(hex);
        assert_eq!(request.operation, expected);
        assert!(matches!(request.pid, 0 | 77) && !request.is_resent(), "{request:?}");
    }
}

#[test]
#[cfg(target_endian = "little")]
fn the_header_says_who_asks() {
    let bytes = bytes(
        "48000000090000009c00000000000000010000000000000000000000000000004d00000002000000 \
         ed0100001200000067726f7570656400100000002000000001000000e1100000",
    );
    let request = Request::parse(&bytes, DIALECT).expect("a request");
    assert_eq!(request.operation, Operation::Mkdir { name: b"grouped", mode: 0o755, umask: 0o022 });
    assert_eq!((request.unique, request.node, request.uid, request.gid, request.pid), (156, 1, 0, 0, 77));
    assert_eq!(request.extensions.groups.iter().collect::<Vec<_>>(), [4321]);
    assert_eq!(request.extensions.security_context, None);
}

/// With ALLOW_IDMAP the header has the owner of a new inode, or no ids at all; the caller's own ids it never has.
#[test]
fn with_mapped_ids_the_header_does_not_say_who_asks() {
    let with_ids = |opcode, body: &[u8], (uid, gid)| {
        let header = abi::InHeader { len: (40 + body.len()) as u32, opcode, unique: 2, nodeid: 1, uid, gid, pid: 77, ..Default::default() };
        [header.as_bytes(), body].concat()
    };
    let mapped = Dialect { allow_idmap: true, ..DIALECT };
    let (mkdir, ids) = ([abi::MkdirIn::default().as_bytes(), b"new\0"].concat(), (1000, 100));
    let bytes = with_ids(abi::opcode::MKDIR, &mkdir, ids);
    let of = |dialect| Request::parse(&bytes, dialect).map(|request| (request.caller(), request.new_owner()));
    assert_eq!(of(DIALECT), Ok((Some(ids), Some(ids))));
    assert_eq!(of(mapped), Ok((None, Some(ids))));

    let nobody = (abi::INVALID_UIDGID, abi::INVALID_UIDGID);
    let rename = |flags| [abi::Rename2In { newdir: 1, flags, padding: 0 }.as_bytes(), b"old\0new\0"].concat();
    for (opcode, body, ids, owner) in [
        (abi::opcode::UNLINK, b"name\0".to_vec(), nobody, None),
        (abi::opcode::RENAME2, rename(1), nobody, None),
        (abi::opcode::RENAME2, rename(4), ids, Some(ids)),
        // A whiteout of a caller that the mount maps to nobody.
        (abi::opcode::RENAME2, rename(4), nobody, None),
        (abi::opcode::RENAME2, rename(4), (1000, abi::INVALID_UIDGID), None),
    ] {
        let bytes = with_ids(opcode, &body, ids);
        let request = Request::parse(&bytes, mapped).expect("a request");
        assert_eq!((request.caller(), request.new_owner()), (None, owner), "{request:?}");
    }
}

/// Over io_uring the same request comes in parts: header, fixed part and rest.
#[test]
#[cfg(target_endian = "little")]
fn a_request_in_parts_is_the_same() {
    let fixed = [
        ("Mkdir", size_of::<abi::MkdirIn>()),
        ("Write", size_of::<abi::WriteIn>()),
        ("Setxattr", size_of::<abi::SetxattrIn>()),
        ("Lookup", 0),
        ("Symlink", 0),
        ("Tmpfile", size_of::<abi::CreateIn>()),
        ("Readlink", 0),
    ];
    let mut seen = 0;
    for (hex, expected) in golden() {
        let name = format!("{expected:?}");
        let Some((_, fixed)) = fixed.iter().find(|(of, _)| name.starts_with(of)) else { continue };
        let bytes = bytes(hex);
        let (header, body) = bytes.split_at(size_of::<abi::InHeader>());
        let (fixed, rest) = body.split_at(*fixed);
        let mut entry = [0; 128];
        entry[..header.len()].copy_from_slice(header);
        assert_eq!(Request::parse_parts(&entry, fixed, rest, DIALECT).expect(&name).operation, expected);
        seen += 1;
    }
    assert!(seen >= fixed.len(), "{seen}");
}

/// Every wrong length is refused, and a truncated message is never taken for a request with less data.
#[test]
#[cfg(target_endian = "little")]
fn messages_that_are_cut_are_refused() {
    for (hex, expected) in golden() {
        let whole = bytes(hex);
        for length in 0..whole.len() {
            let mut cut = whole[..length].to_vec();
            assert!(matches!(Request::parse(&cut, DIALECT), Err(RequestError::Length { .. })), "{expected:?}");
            // With a corrected length in the header, only a request that needs no further bytes is accepted.
            if length >= 40 {
                cut[..4].copy_from_slice(&(length as u32).to_ne_bytes());
                if let Ok(request) = Request::parse(&cut, DIALECT) {
                    assert!(matches!(request.operation, Operation::Init(_)), "{length} bytes give {request:?}");
                }
            }
        }
    }
}

#[test]
fn operations_that_are_not_known_are_told_from_those_that_are_malformed() {
    let message = |opcode| abi::InHeader { len: 40, opcode, unique: 9, ..Default::default() };
    let parse = |header: abi::InHeader| Request::parse(header.as_bytes(), DIALECT).map(|request| request.unique);
    for opcode in [0, 7, 19, 54, 4096, u32::MAX] {
        assert_eq!(parse(message(opcode)), Err(RequestError::Unknown { unique: 9, opcode }));
    }
    for opcode in [abi::opcode::LOOKUP, abi::opcode::WRITE, abi::opcode::INIT] {
        assert_eq!(parse(message(opcode)), Err(RequestError::Malformed { unique: 9, opcode }));
    }
    assert_eq!(parse(message(abi::opcode::STATFS)), Ok(9));
}

fn message(opcode: u32, total_extlen: u16, body: &[u8]) -> Vec<u8> {
    let header = abi::InHeader { len: (40 + body.len()) as u32, opcode, unique: 5, total_extlen, ..Default::default() };
    [header.as_bytes(), body].concat()
}

/// All slices of a request.
fn slices<'a>(request: &Request<'a>) -> Vec<&'a [u8]> {
    let mut all = match request.operation {
        Operation::Lookup { name }
        | Operation::Mknod { name, .. }
        | Operation::Mkdir { name, .. }
        | Operation::Unlink { name }
        | Operation::Rmdir { name }
        | Operation::Link { name, .. }
        | Operation::Getxattr { name, .. }
        | Operation::Removexattr { name }
        | Operation::Create { name, .. } => vec![name],
        Operation::Symlink { name, target } => vec![name, target],
        Operation::Rename { name, new_name, .. } => vec![name, new_name],
        Operation::Setxattr { name, value, .. } => vec![name, value],
        Operation::Write(write) => vec![write.data],
        Operation::Ioctl(ioctl) => vec![ioctl.data],
        Operation::NotifyReply { data, .. } => vec![data],
        _ => vec![],
    };
    all.extend(request.extensions.security_context.iter().flat_map(|context| [context.name, context.value]));
    all
}

/// Whether every byte of `part` is one of `whole`. An empty part has none, and its address means nothing.
fn lies_within(part: &[u8], whole: &[u8]) -> bool {
    if part.is_empty() {
        return true;
    }
    let (part, whole) = (part.as_ptr_range(), whole.as_ptr_range());
    whole.start <= part.start && part.end <= whole.end
}

/// The empty data of a NOTIFY_REPLY that ends with its structure need not point into the message.
#[test]
fn regression_a_notify_reply_without_data_holds_none() {
    let bytes = message(abi::opcode::NOTIFY_REPLY, 0, &[0; size_of::<abi::NotifyRetrieveIn>()]);
    let request = Request::parse(&bytes, DIALECT).expect("a NOTIFY_REPLY");
    assert_eq!(slices(&request), [b""]);
    assert!(slices(&request).iter().all(|slice| lies_within(slice, &bytes)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, ..ProptestConfig::default() })]

    /// [RQ1]
    #[test]
    fn any_bytes_give_a_request_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _either = Request::parse(&bytes, DIALECT);
        let _either = Request::parse_parts(&bytes, &bytes, &[], DIALECT);
    }

    /// [RQ1], with a valid header: small numbers make lengths that sometimes fit.
    #[test]
    fn whatever_is_parsed_lies_within_the_message(
        opcode in 0_u32..56,
        extensions in prop_oneof![4 => Just(0_u16), 1 => 0_u16..8],
        body in proptest::collection::vec(prop_oneof![3 => Just(0_u8), 2 => 1_u8..40, 1 => any::<u8>()], 0..300),
        (setxattr_ext, allow_idmap) in any::<(bool, bool)>(),
        cut in 0_usize..300,
    ) {
        let dialect = Dialect { setxattr_ext, allow_idmap };
        let bytes = message(opcode, extensions, &body);
        if let Ok(request) = Request::parse(&bytes, dialect) {
            for slice in slices(&request) {
                prop_assert!(lies_within(slice, &bytes));
            }
            if let Operation::BatchForget(forgets) = request.operation {
                prop_assert!(forgets.iter().count() * 16 <= body.len());
            }
            prop_assert!(request.extensions.groups.iter().count() * 4 <= body.len());
        }
        let (fixed, rest) = body.split_at(cut.min(body.len()));
        if let Ok(request) = Request::parse_parts(&bytes[..40], fixed, rest, dialect) {
            for slice in slices(&request) {
                prop_assert!(lies_within(slice, fixed) || lies_within(slice, rest));
            }
        }
    }

    /// A WRITE with arbitrary values is parsed.
    #[test]
    fn a_write_says_what_it_holds(
        (handle, offset, lock_owner) in any::<(u64, u64, u64)>(),
        write_flags in 0_u32..8,
        data in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let given = abi::WriteIn { fh: handle, offset, size: data.len() as u32, write_flags, lock_owner, ..Default::default() };
        let bytes = message(abi::opcode::WRITE, 0, &[given.as_bytes(), &data].concat());
        let Ok(Request { operation: Operation::Write(write), .. }) = Request::parse(&bytes, DIALECT) else { panic!("no WRITE") };
        let expected = Write {
            handle,
            offset,
            data: &data,
            flags: 0,
            from_cache: write_flags & 1 != 0,
            kill_suidgid: write_flags & 4 != 0,
            lock_owner: (write_flags & 2 != 0).then_some(lock_owner),
        };
        prop_assert_eq!(write, expected);
    }
}
