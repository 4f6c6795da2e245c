//! Which mappings of files there are (`data/mapped.rs`).

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tandemfs_format::{InodeNumber, LineAddress};

use crate::error::{Error, Result};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Pages of a mapping: where they begin, and bytes.
pub(crate) type MappedPages = Arc<[(LineAddress, u64)]>;

/// The mappings that there are ([FM6] of `data/mapped.rs`), and whether more may be made.
#[derive(Default)]
pub(crate) struct Mappings {
    state: Mutex<State>,
    /// Entries of `stored`, for who only wants to know whether there are any.
    stored: AtomicUsize,
}

#[derive(Default)]
struct State {
    count: usize,
    is_closed: bool,
    /// Pages that are mapped for stores, by file and pin. They stay where they are as long as the pin.
    stored: BTreeMap<(u64, u64), MappedPages>,
    /// Files of mappings that were left ([FM8] of `data/mapped.rs`), and what keeps them in memory with their pins.
    left: BTreeMap<u64, Arc<dyn Any + Send + Sync>>,
}

impl Mappings {
    pub(crate) fn enter(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(Error::Unmounting);
        }
        state.count += 1;
        Ok(())
    }

    pub(crate) fn leave(&self) {
        self.state.lock().count -= 1;
    }

    /// A mapping of a file is for stores, from now on.
    pub(crate) fn stores_begin(&self, file: InodeNumber, pin: u64, pages: MappedPages) {
        self.state.lock().stored.insert((file.get(), pin), pages);
        self.stored.fetch_add(1, SeqCst);
    }

    /// It no longer is; nothing if it was not.
    pub(crate) fn stores_end(&self, file: InodeNumber, pin: u64) {
        if self.state.lock().stored.remove(&(file.get(), pin)).is_some() {
            self.stored.fetch_sub(1, SeqCst);
        }
    }

    pub(crate) fn is_stored_to(&self, file: InodeNumber) -> bool {
        self.stored.load(SeqCst) > 0 && self.state.lock().stored.range((file.get(), 0)..=(file.get(), u64::MAX)).next().is_some()
    }

    /// Pages that are mapped for stores, of a file or of all.
    pub(crate) fn stored_pages(&self, file: Option<InodeNumber>) -> Vec<MappedPages> {
        if self.stored.load(SeqCst) == 0 {
            return Vec::new();
        }
        let (first, last) = file.map_or((0, u64::MAX), |file| (file.get(), file.get()));
        self.state.lock().stored.range((first, 0)..=(last, u64::MAX)).map(|(_, pages)| Arc::clone(pages)).collect()
    }

    /// Pages of one mapping, if it is for stores.
    pub(crate) fn pages_of(&self, file: InodeNumber, pin: u64) -> Vec<MappedPages> {
        self.state.lock().stored.get(&(file.get(), pin)).into_iter().map(Arc::clone).collect()
    }

    /// A mapping is left as it is ([FM8] of `data/mapped.rs`), and no longer keeps an unmount from coming. `in_core` is the file in memory.
    pub(crate) fn leave_behind(&self, file: InodeNumber, in_core: Arc<dyn Any + Send + Sync>) {
        let mut state = self.state.lock();
        state.count -= 1;
        state.left.insert(file.get(), in_core);
    }

    /// Files of mappings that were left.
    pub(crate) fn left(&self) -> BTreeSet<u64> {
        self.state.lock().left.keys().copied().collect()
    }

    /// No more of them.
    ///
    /// # Errors
    /// `MappingsHeld`: there are some.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.state.lock();
        if state.count > 0 {
            return Err(Error::MappingsHeld { count: state.count });
        }
        state.is_closed = true;
        Ok(())
    }
}
