//! A call by the door: from its start to its end no signal is taken ([PRL3] and [PRL19] of `lib.rs`).

use std::sync::Arc;

use crate::door::{self, Door};
use crate::lent;
use crate::mutant::{Mutant, on};
use crate::report::Way;
use crate::settings::Settings;
use crate::sys::{self, Signals};

/// A thread that works on a placeholder, which no mount can do in its place: so it waits for a fork or a change of credentials.
pub(crate) struct Within {
    before: Signals,
    errno: i32,
}

impl Within {
    /// None in a process that only shares this memory, whose descriptors are its own.
    pub(crate) fn enter() -> Option<Self> {
        loop {
            let errno = sys::errno();
            let before = if on(Mutant::SignalsTaken) { Signals::of_thread() } else { lent::blocked().set() };
            match door::pass() {
                Ok(true) => return Some(Self { before, errno }),
                Ok(false) => {
                    before.set();
                    sys::pause();
                }
                Err(_) => {
                    before.set();
                    return None;
                }
            }
        }
    }
}

impl Drop for Within {
    fn drop(&mut self) {
        door::passed();
        sys::set_errno(self.errno);
        self.before.set();
    }
}

/// A thread in a call.
pub(crate) struct Inside {
    door: Option<Arc<Door>>,
    before: Signals,
    errno: i32,
}

impl Inside {
    pub(crate) fn enter(settings: &'static Settings) -> Result<Self, Way> {
        let errno = sys::errno();
        let before = if on(Mutant::SignalsTaken) { Signals::of_thread() } else { lent::blocked().set() };
        match door::enter(settings) {
            Ok(door) => {
                if on(Mutant::SignalsTaken) {
                    sys::pause(); // one comes
                }
                Ok(Self { door: Some(door), before, errno })
            }
            Err(way) => {
                before.set();
                sys::set_errno(errno);
                Err(way)
            }
        }
    }

    pub(crate) fn door(&self) -> &Arc<Door> {
        match &self.door {
            Some(door) => door,
            None => unreachable!("it goes at the end"),
        }
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        if let Some(door) = self.door.take() {
            door::leave(door);
        }
        sys::set_errno(self.errno);
        self.before.set();
    }
}
