//! Idle files: open files that a program has closed and its client keeps for the next open. The daemon takes one back as soon as the file is in the way,
//! without asking: a file that has lost its last name must not keep its space.
//!
//! [IDL1] The arena has words for idle files. A word has the number of one, or 0. Who exchanges the number for 0 has the file: the client uses it again,
//!        the daemon closes it. So it is one of the two, and the other finds the word changed.
//! [IDL2] An inode's number says which eight words may have its files, one line of memory. So the daemon looks at one line of each client.
//! [IDL3] The client stores the number, and then compares the version words under which the file was opened ([VER5] of `versions.rs`). The daemon
//!        raises them before it looks at the words. So of a file that loses its name while it becomes idle one of the two learns.
//! [IDL4] The daemon believes no word: a number is looked up among the files of that client, and what is taken back is its own file of that inode.
//!        A client that writes something else there harms itself alone.

use std::ops::Range;

use crate::arena::Arena;
use crate::client::Client;
use crate::layout::{IDLE_SETS, IDLE_WAYS};
use crate::memory::Memory;
use crate::mutant::{self, Mutant};
use crate::sync;

/// Words of all idle files of a client.
pub const IDLE_PLACES: usize = IDLE_SETS * IDLE_WAYS;

/// Where the files of an inode may be ([IDL2]).
pub fn idle_places(node: u64) -> Range<usize> {
    let set = (node.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize % IDLE_SETS;
    set * IDLE_WAYS..(set + 1) * IDLE_WAYS
}

/// Exchanges a number for 0.
fn take(memory: &Memory, at: usize, number: u64) -> bool {
    if mutant::on(Mutant::IdleTakenByTwo) {
        let is_there = memory.load_version(at) == number;
        memory.store_long(at, 0);
        return is_there;
    }
    memory.exchange(at, number, 0) // [IDL1]
}

impl Client {
    /// Whether there is no file at a place: none was put there, or the daemon has taken it back.
    pub fn is_idle_free(&self, place: usize) -> bool {
        self.memory().load_version(self.sizes().idle_word(place)) == 0
    }

    /// A file is not used from now on, until [`Client::take_idle`]. The version words are to be compared behind this ([IDL3]).
    pub fn set_idle(&self, place: usize, number: u64) {
        self.memory().store_long(self.sizes().idle_word(place), number);
        if !mutant::on(Mutant::IdleUnfenced) {
            sync::fence();
        }
    }

    /// Takes an idle file to use it again, or to close it; false if the daemon has taken it back.
    pub fn take_idle(&self, place: usize, number: u64) -> bool {
        take(self.memory(), self.sizes().idle_word(place), number)
    }
}

impl Arena {
    /// Takes back idle files of an inode, which has been changed before: those of whose number `is_of_inode` says so. Never waits.
    pub fn take_idle_back(&self, node: u64, is_of_inode: impl Fn(u64) -> bool) -> impl Iterator<Item = u64> {
        sync::fence(); // [IDL3]
        idle_places(node).filter_map(move |place| {
            let at = self.sizes().idle_word(place);
            let number = self.memory().load_version(at);
            (number != 0 && is_of_inode(number) && take(self.memory(), at, number)).then_some(number)
        })
    }
}
