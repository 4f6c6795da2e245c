//! Calls arrive as they were made and their results come back: splitting, threads, texts and values of every length, listings.

#[path = "../examples/notes.rs"]
#[allow(dead_code, reason = "the example is called without its command line")]
mod notes;
mod support;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use support::files::Files;
use support::{SIZES, by, connected, refused, welcome};
use tandemfs_client::{Errno, Mount, OpenOptions, Tree};
use tandemfs_protocol::Operation;
use tandemfs_ring::{Sizes, Ticket};

fn fill(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 7 + seed) % 251) as u8).collect()
}

fn files() -> (Mount, support::Server) {
    by(Files::default())
}

#[test]
fn the_example_keeps_notes() {
    let (mount, _server) = files();
    notes::keep_notes(&mount).expect("kept");
    notes::keep_notes(&mount).expect("kept once more");
    assert_eq!(mount.attributes("notes/list").expect("there").size_bytes, 2 * 11);
}

#[test]
fn transfers_of_every_length_arrive_whole() {
    let (mount, _server) = files();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&mount, "f").expect("made");
    // From the slot's own memory to many times the whole of it.
    for (seed, length) in [1, 4096, 4097, 40_000, 256 << 10, (3 << 20) + 5].into_iter().enumerate() {
        let data = fill(length, seed);
        assert_eq!(file.write_at(&data, 100).expect("written"), length);
        let mut back = vec![0; length];
        file.read_exact_at(&mut back, 100).expect("read");
        assert!(back == data, "{length} bytes");
    }
    let size = file.attributes().expect("there").size_bytes;
    assert_eq!(size, 100 + (3 << 20) + 5);
    let mut beyond = vec![0; 1 << 20];
    assert_eq!(file.read_at(&mut beyond, size - 10).expect("read"), 10, "up to the end");
    assert_eq!(file.read_at(&mut beyond, size).expect("read"), 0);
    assert_eq!((file.read_at(&mut [], 0).expect("read"), file.write_at(&[], 0).expect("written")), (0, 0));
    refused(file.read_exact_at(&mut beyond, size - 10), Errno::NODATA);
    refused(file.write_at(b"x", u64::MAX), Errno::INVAL);
    file.close().expect("closed");
}

#[test]
fn a_buffer_is_read_and_written_in_parts_by_one_request_each() {
    let (mount, _server) = files();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&mount, "f").expect("made");
    let mut buffer = mount.buffer(150_000).expect("memory");
    assert_eq!((buffer.len(), buffer.is_empty()), (150_000, false));
    let data = fill(150_000, 3);
    buffer.write(0, &data);
    assert_eq!(file.write_buffer_at(&buffer, 0..150_000, 7).expect("written"), 150_000);
    assert_eq!(file.write_buffer_at(&buffer, 10..20, 150_007).expect("written"), 10);
    buffer.bytes()[99_999].store(200, Ordering::Relaxed);
    assert_eq!(file.read_buffer_at(&mut buffer, 100_000..100_100, 7).expect("read"), 100);
    let mut back = vec![0; 150_000];
    buffer.read(0, &mut back);
    let mut expected = data.clone();
    expected[99_999] = 200;
    expected[100_000..100_100].copy_from_slice(&data[..100]);
    assert!(back == expected, "nothing else changes");
    let mut of_file = vec![0; 150_010];
    file.read_exact_at(&mut of_file, 7).expect("read");
    assert!(of_file == [&data[..], &data[10..20]].concat());
    assert_eq!(file.read_buffer_at(&mut buffer, 0..100, 150_000).expect("read"), 17, "up to the end");
    assert_eq!(file.read_buffer_at(&mut buffer, 5..5, 0).expect("read"), 0);
    refused(file.write_buffer_at(&buffer, 149_999..150_001, 0), Errno::INVAL);
    refused(file.read_buffer_at(&mut buffer, 149_999..150_001, 0), Errno::INVAL);
    for bytes in [0, mount.transfer_bytes_max() + 1] {
        refused(mount.buffer(bytes).map(drop), Errno::INVAL);
    }
    let (other, _other_server) = files();
    let foreign = other.buffer(10).expect("memory");
    refused(file.write_buffer_at(&foreign, 0..1, 0), Errno::INVAL);
}

/// A buffer keeps its memory from other calls, and gives it back.
#[test]
fn the_memory_of_a_buffer_is_waited_for() {
    let (mount, _server) = files();
    let most = u32::try_from(SIZES.data_bytes / 2).expect("small");
    let buffer = mount.buffer(most).expect("memory");
    std::thread::scope(|scope| {
        let second = scope.spawn(|| mount.buffer(most + 4096).map(drop));
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(buffer);
        second.join().expect("no panic").expect("given back");
    });
    let _all = mount.buffer(most + 4096).expect("given back too");
    refused(mount.buffer(most + 4096).map(drop), Errno::NOMEM);
}

#[test]
fn a_request_is_not_longer_than_the_daemon_allows() {
    static LONGEST: AtomicUsize = AtomicUsize::new(0);
    static OFFSETS: Mutex<Vec<i64>> = Mutex::new(Vec::new());
    let mut table = Files::default();
    let small = tandemfs_protocol::Welcome { transfer_bytes_max: 10_000, ..welcome(SIZES) };
    let (mount, _server) = connected(small, move |operation: &Operation<'_>, ticket: &Ticket| {
        if let Operation::Write { from, offset, .. } = operation {
            LONGEST.fetch_max(from.length as usize, Ordering::Relaxed);
            OFFSETS.lock().expect("no panic").push(*offset);
        }
        support::Answers::answer(&mut table, operation, ticket)
    });
    assert_eq!(mount.transfer_bytes_max(), 10_000);
    let file = mount.create("f").expect("made");
    assert_eq!(file.write_at(&fill(45_000, 1), 0).expect("written"), 45_000);
    assert_eq!(LONGEST.load(Ordering::Relaxed), 10_000);
    assert_eq!(*OFFSETS.lock().expect("no panic"), [0, 10_000, 20_000, 30_000, 40_000], "each once, in order");
    let file = OpenOptions::new().read(true).open(&mount, "f").expect("opened");
    let mut back = vec![0; 50_000];
    assert_eq!(file.read_at(&mut back, 0).expect("read"), 45_000, "up to the end");
    assert!(back[..45_000] == fill(45_000, 1));
}

#[test]
fn an_append_says_where_it_ended() {
    let (mount, _server) = files();
    let file = OpenOptions::new().append(true).create(true).open(&mount, "log").expect("made");
    assert_eq!(file.append(b"abc").expect("appended"), (3, 3));
    assert_eq!(file.append(&fill(700_000, 3)).expect("appended"), (700_000, 700_003));
    let plain = OpenOptions::new().write(true).open(&mount, "log").expect("opened");
    assert_eq!(plain.append(b"d").expect("appended"), (1, 700_004), "also without O_APPEND");
}

#[test]
fn texts_of_every_length_arrive() {
    let (mount, _server) = files();
    for length in [1, 255, 256, 300, 4095] {
        let (path, other) = ("p".repeat(length), "q".repeat(length));
        drop(mount.create(&path).expect("made"));
        assert_eq!(mount.attributes(&path).expect("there").mode, 0o100_644);
        mount.rename(&path, &other).expect("moved");
        refused(mount.attributes(&path), Errno::NOENT);
        assert!(mount.attributes(&other).is_ok());
    }
    refused(mount.attributes("p".repeat(4096)), Errno::NAMETOOLONG);
}

#[test]
fn paths_begin_in_an_open_directory() {
    let (mount, _server) = files();
    mount.make_directory("d", 0o777).expect("made");
    let directory = mount.open("d").expect("opened");
    drop(directory.create("f").expect("made"));
    assert!(mount.attributes("d/f").is_ok());
    mount.rename_with("d/f", &directory, "g", 0).expect("moved");
    assert!(directory.attributes().is_ok(), "the directory itself");
    assert!(Tree::attributes(&directory, "g").is_ok(), "a name in it");
    let (other, _other_server) = files();
    refused(mount.rename_with("d/g", &other, "g", 0), Errno::XDEV);
}

#[test]
fn values_of_every_length_come_back() {
    let (mount, _server) = files();
    drop(mount.create("f").expect("made"));
    for length in [0, 1, 1024, 1025, 65_536] {
        let value = fill(length, 9);
        mount.set_extended_attribute("f", b"user.a", &value, 0).expect("set");
        assert!(mount.extended_attribute("f", b"user.a").expect("there") == value, "{length} bytes");
    }
    refused(mount.extended_attribute("f", b"user.b"), Errno::NODATA);
    mount.set_extended_attribute("f", b"user.b", b"", 0).expect("set");
    assert_eq!(mount.extended_attributes("f").expect("listed"), ["user.a", "user.b"]);
}

#[test]
fn a_listing_has_every_name_once() {
    let (mount, _server) = files();
    for number in 0..2000 {
        drop(mount.create(format!("a name that is not short {number:04}")).expect("made"));
    }
    let mut listing = mount.read_directory(".").expect("opened");
    let names: Vec<_> = listing.by_ref().map(|entry| entry.expect("listed").name().to_owned()).collect();
    assert_eq!((names.len(), names[0].as_encoded_bytes(), names[1].as_encoded_bytes()), (2002, &b"."[..], &b".."[..]));
    assert!(names.windows(2).all(|pair| pair[0] < pair[1]), "in the order of the server, each once");
    assert!(listing.next().is_none(), "the end stays");
    listing.seek(0);
    let third = listing.nth(2).expect("an entry").expect("listed");
    listing.seek(third.cookie());
    assert_eq!(listing.next().expect("an entry").expect("listed").name(), names[3]);
}

#[test]
fn more_threads_than_slots_take_turns() {
    let sizes = Sizes { slots: 2, data_bytes: 64 << 10 };
    let (mount, _server) = connected(welcome(sizes), Files::default());
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let mount = mount.clone();
            scope.spawn(move || {
                let options = OpenOptions::new().read(true).write(true).create(true);
                let file = options.open(&mount, format!("f{thread}")).expect("made");
                for round in 0..100 {
                    let data = fill(10_000 + 100 * thread, round);
                    file.write_all_at(&data, 0).expect("written");
                    let mut back = vec![0; data.len()];
                    file.read_exact_at(&mut back, 0).expect("read");
                    assert!(back == data, "thread {thread}, round {round}");
                }
            });
        }
    });
}
