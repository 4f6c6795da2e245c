//! Deliberate bugs, which show that the tests of this crate can fail (`docs/TESTING.md`), and points at which a test interferes as another
//! thread would. Without the feature `mutants` every switch is `false` at compile time; no program enables it. Bugs and points are those of
//! one thread, so that parallel tests do not affect each other.

/// A deliberate bug and the rule of `lib.rs` that it breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(feature = "mutants", allow(missing_docs))]
pub enum Mutant {
    #[cfg(feature = "mutants")]
    None,
    /// [KV1]: an access is checked with the rights of the daemon.
    RightsOfTheDaemon,
    /// [KV2]: an open file does not hold its inode.
    OpenNotHeld,
    /// [KV2]: the hold of a walk does not end.
    HoldKept,
    /// [KV3]: a name is removed whatever it stands for by then.
    RemovedUnseen,
    /// [KV3]: a name is moved, and another replaced, whatever they stand for by then.
    RenamedUnseen,
    /// [KV4]: an absolute link leads to the root of the file system.
    AbsoluteStaysHere,
    /// [KV4]: a mount point of the caller is passed.
    MountPointPassed,
    /// [KV4]: a directory is moved with what is mounted below it.
    MountsMoved,
    /// [KV4]: a device or a pipe is opened as a file.
    SpecialOpened,
    /// [KV5]: a write takes the capabilities of a program only behind its data.
    DataBeforePrivileges,
    /// [KV5]: a change that is no write takes no privileges.
    PrivilegesKept,
    /// [KV6]: what is appended counts as changed where the end was before.
    AppendGuessed,
    /// [KV7]: what takes long is done in any case.
    LongInside,
    /// [KV7]: the end of a change waits inside of `no_wait`.
    ChangeEndedInside,
    /// [KV3]: a name is removed if its number fits, whatever file has the number by then.
    GenerationIgnored,
    /// [KV6]: pages that came in while memory was lent for stores are not dropped.
    LentBesidePages,
    /// [KV6]: room behind a file is lent though somebody has had pages of it.
    RoomLentBesideMappings,
    /// [KV8]: what somebody watches is changed all the same.
    WatchersUntold,
    /// [KV9]: a file is mapped for stores though somebody has it open who may keep pages of it.
    MappedThoughOpen,
    /// [KV10]: holes get space for whoever maps the file for loads.
    HolesFilledByReaders,
    /// [KV1]: who may only read a file maps it for stores.
    MappedByReaders,
}

/// Where a test interferes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Point {
    /// A name was checked, and is about to be removed or moved.
    Checked,
    /// Bytes of a file have changed.
    Written,
}

#[cfg(feature = "mutants")]
mod selected {
    use std::cell::{Cell, RefCell};

    use super::{Mutant, Point};

    type Interference = Box<dyn FnMut(Point)>;

    thread_local! {
        static SELECTED: Cell<Mutant> = const { Cell::new(Mutant::None) };
        static INTERFERENCE: RefCell<Option<Interference>> = const { RefCell::new(None) };
    }

    /// Selects the bug of this thread; [`Mutant::None`] for none.
    pub fn select(mutant: Mutant) {
        SELECTED.set(mutant);
    }

    pub(crate) fn on(mutant: Mutant) -> bool {
        SELECTED.get() == mutant
    }

    /// What happens at the points that this thread passes; not at those that it passes by itself.
    pub fn interfere(interference: Option<Interference>) {
        INTERFERENCE.with(|cell| *cell.borrow_mut() = interference);
    }

    pub(crate) fn at(point: Point) {
        let interference = INTERFERENCE.with(|cell| cell.borrow_mut().take());
        if let Some(mut interference) = interference {
            interference(point);
            INTERFERENCE.with(|cell| {
                cell.borrow_mut().get_or_insert(interference);
            });
        }
    }
}

#[cfg(feature = "mutants")]
pub(crate) use selected::{at, on};
#[cfg(feature = "mutants")]
pub use selected::{interfere, select};

#[cfg(not(feature = "mutants"))]
pub(crate) const fn on(_: Mutant) -> bool {
    false
}

#[cfg(not(feature = "mutants"))]
pub(crate) const fn at(_: Point) {}
