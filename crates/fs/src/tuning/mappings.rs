//! How many mappings of files there are (`data/mapped.rs`).

use crate::error::{Error, Result};
use crate::sync::Mutex;

/// How many mappings there are ([FM6] of `data/mapped.rs`), and whether more may be made.
#[derive(Default)]
pub(crate) struct Mappings(Mutex<(usize, bool)>);

impl Mappings {
    pub(crate) fn enter(&self) -> Result<()> {
        let mut state = self.0.lock();
        if state.1 {
            return Err(Error::Unmounting);
        }
        state.0 += 1;
        Ok(())
    }

    pub(crate) fn leave(&self) {
        self.0.lock().0 -= 1;
    }

    /// No more of them.
    ///
    /// # Errors
    /// `MappingsHeld`: there are some.
    pub(crate) fn close(&self) -> Result<()> {
        let mut state = self.0.lock();
        if state.0 > 0 {
            return Err(Error::MappingsHeld { count: state.0 });
        }
        state.1 = true;
        Ok(())
    }
}
