//! Text from people and programs: device names, and requests at the daemon's control socket.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use serde_json::{Value, json};
use tandemfs_emulator::DeviceSpec;
use tandemfs_fuse::control;

/// A socket accepts this much without a reader.
const LINE_BYTES_MAX: usize = 32 << 10;

pub(crate) fn run(bytes: &[u8]) {
    let Some((choice, text)) = bytes.split_first() else { return };
    if choice % 2 == 0 {
        name(&String::from_utf8_lossy(text));
    } else {
        let reply = converse(&text[..text.len().min(LINE_BYTES_MAX)]);
        check_reply(text, &reply);
    }
}

/// A name denotes an image or a pair, or is refused with a sentence. An accepted name keeps its meaning when it is formatted and parsed
/// again.
fn name(text: &str) {
    match text.parse::<DeviceSpec>() {
        Ok(DeviceSpec::Image(path)) => assert!(path.as_os_str() == text, "{text:?} names {path:?}"),
        Ok(DeviceSpec::Memory(memory)) => {
            let again = format!("memory={}", memory.display()).parse();
            assert_eq!(again, Ok(DeviceSpec::Memory(memory)), "{text:?}");
        }
        Ok(DeviceSpec::Pair { memory, block, cache_bytes }) => {
            let cache = if cache_bytes > 0 { format!(",cache={cache_bytes}") } else { String::new() };
            let again = format!("memory={},block={}{cache}", memory.display(), block.display()).parse();
            assert_eq!(again, Ok(DeviceSpec::Pair { memory, block, cache_bytes }), "{text:?}");
        }
        Err(reason) => assert!(reason.contains("memory=PATH"), "{text:?} is refused with '{reason}'"),
    }
}

/// Sends text to a control socket and returns the whole reply.
fn converse(text: &[u8]) -> Vec<u8> {
    let (mut ours, theirs) = UnixStream::pair().unwrap_or_else(|error| panic!("a pair of sockets: {error}"));
    ours.write_all(text).and_then(|()| ours.shutdown(Shutdown::Write)).unwrap_or_else(|error| panic!("{error}"));
    let answered = control::converse(theirs, &|request| json!({ "seen": format!("{request:?}") }));
    let mut reply = Vec::new();
    let _reset_where_it_did_not_read_all = ours.read_to_end(&mut reply);
    assert!(answered.is_ok() || reply.is_empty(), "an error after an answer: {answered:?}");
    reply
}

/// Checks that a reply is one line of JSON: an answer, or an error with a reason. If the text is not UTF-8, the connection is closed.
pub(crate) fn check_reply(text: &[u8], reply: &[u8]) {
    if reply.is_empty() {
        assert!(std::str::from_utf8(text).is_err(), "no answer to {text:?}");
        return;
    }
    assert_eq!(reply.iter().position(|byte| *byte == b'\n'), Some(reply.len() - 1), "one line");
    let value: Value = serde_json::from_slice(reply).unwrap_or_else(|error| panic!("no JSON: {error}"));
    assert!(value.get("seen").is_some() || value["error"].as_str().is_some_and(|error| error.starts_with("not a request")), "{value}");
}

pub(crate) fn corpus() -> Vec<Vec<u8>> {
    let texts: [(u8, &[u8]); 12] = [
        (0, b"disk.image"),
        (0, b"./a=b"),
        (0, b"memory=/dev/dax0.0,block=/dev/nvme0n1"),
        (0, b"block=x,memory=y"),
        (0, b"memory=,block"),
        (0, b""),
        (1, b"{\"request\":\"stats\",\"reset\":true}\n"),
        (1, b"{\"request\":\"info\"}\n"),
        (1, b"{\"request\":\"format\"}\n"),
        (1, b"[[[[[[[[[[[[[[[["),
        (1, b"\xff\xfe\n"),
        (1, b""),
    ];
    texts.iter().map(|(choice, text)| [&[*choice], *text].concat()).collect()
}

/// See [`crate::Target::lies`].
pub(crate) const LIES: &[(&str, fn())] = &[
    ("silence", || check_reply(b"{}", b"")),
    ("two lines", || check_reply(b"{}", b"{\"seen\":1}\n{\"seen\":1}\n")),
    ("no JSON", || check_reply(b"{}", b"yes\n")),
    ("neither answer nor error", || check_reply(b"{}", b"{\"other\":1}\n")),
];
