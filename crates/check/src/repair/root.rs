//! Makes the root directory anew if its inode is lost.
//!
//! [NR1] Of a damaged inode a line that verifies is used: the hot line for mode, times and generation, the cold line for owner and
//!       attributes. Without its hot line the root gets the generation 0, with which `mkfs` makes it. Its pages are found by that ([DM1]).
//! [NR2] The new inode is one record; without pages it is an empty directory, and everything goes to lost and found.

use tandemfs_device::Structure;
use tandemfs_format::attributes::AttributePointer;
use tandemfs_format::inode::{Inode, InodeColdLine, InodeHotLine, Timestamp, file_type, state};
use tandemfs_format::mapping::Record;
use tandemfs_format::{EMPTY_LINE, InodeNumber, Line, LineAddress, PAGE_BYTES};
use zerocopy::FromBytes;

use crate::checker::Inspection;
use crate::image::Image;
use crate::mend::Owner;

use super::directories::{Salvage, build_tree};
use super::plan::{Group, Plan};

const ROOT: u64 = 1;

/// The root as its pages are sealed.
pub(crate) fn owner(inspection: &Inspection<'_>) -> Owner {
    let image = &inspection.image;
    let hot = image.segments.inode_address(ROOT).and_then(|address| verified(image, address));
    let hot = hot.and_then(|line| InodeHotLine::read_from_bytes(&line).ok()).filter(is_of_directory);
    Owner { inode: ROOT, generation: hot.map_or(0, |hot| hot.generation.get()) }
}

/// A line of the root's inode that is not empty and verifies.
fn verified(image: &Image<'_>, address: LineAddress) -> Option<Line> {
    let line = image.line(Structure::Inode, address).ok()?;
    let place = Inode::place(image.pair, InodeNumber::new(ROOT), address);
    (line != EMPTY_LINE && place.verify(&line).is_ok()).then_some(line)
}

fn is_of_directory(hot: &InodeHotLine) -> bool {
    hot.mode.get() & file_type::MASK == file_type::DIRECTORY && hot.state.get() & state::IN_USE != 0
}

/// A new root directory.
pub(crate) fn rebuild(plan: &mut Plan<'_>, salvage: &Salvage) {
    let Some(address) = plan.image.segments.inode_address(ROOT) else { return };
    let owner = owner(plan.inspection);
    let mut pages: Vec<LineAddress> = salvage.pages_of(owner).collect();
    let root = build_tree(plan, owner, &pages).unwrap_or_else(|| {
        pages.clear(); // no space: better an empty root than none
        Record::HOLE.encode()
    });
    let mut inode = new_directory(owner, ROOT);
    inode.mode = file_type::DIRECTORY | 0o755;
    inode.size = (pages.len() * PAGE_BYTES) as u64;
    inode.root = root.to_bytes();
    if let Some(hot) = verified(plan.image, address).and_then(|line| InodeHotLine::read_from_bytes(&line).ok()).filter(is_of_directory) {
        (inode.mode, inode.change_count) = (hot.mode.get(), hot.change_count.get());
        (inode.atime, inode.mtime, inode.ctime) =
            (Timestamp::decode(hot.atime.get()), Timestamp::decode(hot.mtime.get()), Timestamp::decode(hot.ctime.get()));
    }
    if let Some(cold) = verified(plan.image, address.nth(1)).and_then(|line| InodeColdLine::read_from_bytes(&line).ok()) {
        (inode.uid, inode.gid, inode.project) = (cold.uid.get(), cold.gid.get(), cold.project.get());
        inode.birth = Timestamp::decode(cold.birth.get());
        inode.attributes = AttributePointer { address: LineAddress::new(cold.attributes.get()), class: cold.attributes_class };
    }
    let group = lines_of(plan.image, owner.inode, address, &inode);
    plan.add(group); // [NR2]
}

/// An empty directory of root's, for nobody else.
pub(crate) fn new_directory(owner: Owner, parent: u64) -> Inode {
    let since_1970 = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let now = Timestamp { seconds: since_1970.as_secs() as i64, nanoseconds: since_1970.subsec_nanos() };
    Inode {
        mode: file_type::DIRECTORY | 0o700,
        state: state::IN_USE,
        nlink: 2,
        generation: owner.generation,
        size: 0,
        space_512: 0,
        atime: now,
        mtime: now,
        ctime: now,
        change_count: 1,
        uid: 0,
        gid: 0,
        project: 0,
        flags: 0,
        birth: now,
        parent: InodeNumber::new(parent),
        attributes: AttributePointer::NONE,
        root: [0; 20],
    }
}

/// Both lines of an inode.
pub(crate) fn lines_of(image: &Image<'_>, number: u64, address: LineAddress, inode: &Inode) -> Group {
    let place = |line| Inode::place(image.pair, InodeNumber::new(number), line);
    let (hot, cold) = (inode.encode_hot(&place(address)), inode.encode_cold(&place(address.nth(1))));
    Group::from([(address.number(), hot), (address.number() + 1, cold)])
}
