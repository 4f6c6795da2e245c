//! Caches of a kernel that a test says the state of.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use tandemfs_format::InodeNumber;
use tandemfs_vfs::{Caches, Change};

/// The kernel has pages of every file, or of none; it has every file open, or none; somebody may be watching, or nobody.
#[derive(Default)]
pub struct Pages(pub AtomicBool, pub AtomicBool, pub AtomicBool);

struct Nothing;

impl Change for Nothing {
    fn ends_at_once(&mut self) -> bool {
        true
    }
}

impl Caches for Pages {
    fn settle(&self, _: InodeNumber) -> tandemfs_fs::Result<()> {
        Ok(())
    }

    fn change(self: Arc<Self>, _: InodeNumber, _: Range<u64>) -> tandemfs_fs::Result<Box<dyn Change>> {
        Ok(Box::new(Nothing))
    }

    fn has_pages(&self, _: InodeNumber) -> bool {
        self.0.load(SeqCst)
    }

    fn is_open(&self, _: InodeNumber) -> bool {
        self.1.load(SeqCst)
    }

    fn is_watched(&self, _: &[InodeNumber]) -> tandemfs_fs::Result<bool> {
        Ok(false)
    }

    fn may_be_watched(&self) -> bool {
        self.2.load(SeqCst)
    }

    fn name_gone(&self, _: InodeNumber, _: &[u8]) {}
}
