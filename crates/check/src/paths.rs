//! The path of an inode, for messages: found by following parents up to the root.

use tandemfs_format::LineAddress;

use crate::image::Image;
use crate::inodes::Inodes;
use crate::namespace::DentryPage;

/// Maximum number of directories in a path.
const DEPTH_MAX: usize = 256;

/// A path of an inode from the root, with control characters escaped. `None` if it is not reachable from the root.
pub(crate) fn path_of(image: &Image<'_>, inodes: &Inodes, number: u64) -> Option<String> {
    let mut names = Vec::new();
    let mut at = number;
    while at != 1 {
        if names.len() == DEPTH_MAX {
            return None;
        }
        let facts = inodes.get(at)?;
        let directory = inodes.get(facts.named_in)?;
        let line = LineAddress::new(facts.name_line);
        let page = DentryPage::load(image, facts.named_in, directory.generation, line.page())?;
        names.push(printable(&page.entry(line.index_in_page()).ok()??.name));
        at = facts.named_in;
    }
    names.reverse();
    Some(format!("/{}", names.join("/")))
}

/// A name as text.
pub(crate) fn printable(name: &[u8]) -> String {
    let mut text = String::new();
    for character in String::from_utf8_lossy(name).chars() {
        if character.is_control() {
            text.extend(character.escape_default());
        } else {
            text.push(character);
        }
    }
    text
}
