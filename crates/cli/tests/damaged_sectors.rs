//! A sector of file data that was damaged while the device was unused: EIO for exactly that page through a real mount, in every mode, with
//! and without the page cache.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use support::{MODES, Mount, Place, pattern};

const PAGE: usize = 4096;
const PAGES: usize = 96;
const EIO: Option<i32> = Some(5);
/// In the middle of a block, at the start of one, the last of the file.
const BAD: [usize; 3] = [21, 48, 95];

fn damage(place: &Place, content: &[u8]) {
    let image = fs::read(place.image()).expect("read");
    let file = OpenOptions::new().write(true).open(place.image()).expect("opened");
    for page in BAD {
        let wanted = &content[page * PAGE..(page + 1) * PAGE];
        let found: Vec<usize> = (0..image.len() / PAGE).filter(|at| &image[at * PAGE..(at + 1) * PAGE] == wanted).collect();
        assert_eq!(found.len(), 1, "page {page} is at one place: {found:?}");
        file.write_all_at(&[0xdb; PAGE], (found[0] * PAGE) as u64).expect("written");
    }
}

fn each_page(mount: &Mount, content: &[u8], what: &str) {
    let file = File::open(mount.path("file")).expect("opened");
    let mut page_bytes = [0; PAGE];
    for page in (0..PAGES).chain((0..PAGES).rev()) {
        let read = file.read_exact_at(&mut page_bytes, (page * PAGE) as u64);
        if BAD.contains(&page) {
            assert_eq!(read.err().and_then(|error| error.raw_os_error()), EIO, "{what}: page {page}");
        } else {
            read.unwrap_or_else(|error| panic!("{what}: page {page}: {error}"));
            assert!(page_bytes == content[page * PAGE..(page + 1) * PAGE], "{what}: page {page}");
        }
    }
}

/// Reads that are longer than a page return what lies before the damage, or fail; never what is behind it as if it were there.
fn long_reads(file: &File, content: &[u8], buffer: &mut [u8], what: &str) {
    for first in (0..PAGES).step_by(8) {
        let buffer = &mut buffer[..8 * PAGE];
        let bad = BAD.into_iter().find(|page| (first..first + 8).contains(page));
        match file.read_at(buffer, (first * PAGE) as u64) {
            Ok(length) => {
                assert!(length <= bad.map_or(8, |bad| bad - first) * PAGE && length > 0, "{what}: {length} B from page {first}");
                assert!(buffer[..length] == content[first * PAGE..first * PAGE + length], "{what}: page {first}");
            }
            Err(error) => assert!(error.raw_os_error() == EIO && bad.is_some(), "{what}: page {first}: {error}"),
        }
    }
}

#[test]
fn only_the_page_of_a_damaged_sector_answers_eio() {
    for mode in MODES {
        let place = Place::formatted();
        let content = pattern(3, PAGES * PAGE);
        let mount = place.mount(mode);
        fs::write(mount.path("file"), &content).expect("written");
        mount.unmount();
        damage(&place, &content);

        let mount = place.mount(mode);
        each_page(&mount, &content, mode);
        mount.unmount();
        // The whole file at once first, so that the kernel and the engine read ahead over the damage.
        let mount = place.mount(mode);
        assert_eq!(fs::read(mount.path("file")).err().and_then(|error| error.raw_os_error()), EIO, "{mode}");
        each_page(&mount, &content, mode);
        long_reads(&File::open(mount.path("file")).expect("opened"), &content, &mut vec![0; 8 * PAGE], mode);
        if let Ok(direct) = OpenOptions::new().read(true).custom_flags(direct_flag()).open(mount.path("file")) {
            let mut room = vec![0; 9 * PAGE];
            let skip = room.as_ptr().align_offset(PAGE);
            long_reads(&direct, &content, &mut room[skip..], &format!("{mode}, O_DIRECT"));
        }
        mount.unmount();
    }
}

fn direct_flag() -> i32 {
    rustix::fs::OFlags::DIRECT.bits() as i32
}
