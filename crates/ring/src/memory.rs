//! Words of a mapping, by the roads of [`crate::sync`].

use std::sync::Arc;
use std::sync::atomic::AtomicU8;

use crate::sync;
use crate::sys::Mapping;

/// A shared mapping that this process may write.
#[derive(Debug, Clone)]
pub(crate) struct Memory(pub(crate) Arc<Mapping>);

impl Memory {
    /// Loads a word; what its writer stored before it is seen as well.
    #[inline]
    pub(crate) fn load(&self, at: usize) -> u32 {
        crate::mutant::load();
        sync::load32(&self.0, at)
    }

    /// Stores a word, behind all that was stored before it.
    #[inline]
    pub(crate) fn store(&self, at: usize, value: u32) {
        sync::store32(&self.0, at, value);
    }

    /// Adds one.
    pub(crate) fn increment(&self, at: usize) {
        sync::increment(&self.0, at);
    }

    /// Loads 8 bytes, in no order with other accesses.
    #[inline]
    pub(crate) fn load_long(&self, at: usize) -> u64 {
        crate::mutant::load();
        sync::load64(&self.0, at)
    }

    /// Stores 8 bytes, in no order with other accesses.
    #[inline]
    pub(crate) fn store_long(&self, at: usize, value: u64) {
        sync::store64(&self.0, at, value);
    }

    /// Sleeps while a word has this value; see [`sync::sleep`].
    pub(crate) fn sleep(&self, at: usize, value: u32) {
        sync::sleep(&self.0, at, value);
    }

    /// Wakes who sleeps on a word.
    pub(crate) fn wake(&self, at: usize) {
        sync::wake(&self.0, at);
    }

    /// Adds one to 8 bytes.
    #[inline]
    pub(crate) fn raise(&self, at: usize) {
        sync::raise(&self.0, at);
    }

    /// Loads 8 bytes that are raised; what whoever raised them stored before is seen as well.
    #[inline]
    pub(crate) fn load_version(&self, at: usize) -> u64 {
        crate::mutant::load();
        sync::load_version(&self.0, at)
    }

    /// Adds to 8 bytes, before whatever follows. Returns what they were.
    #[inline]
    pub(crate) fn add(&self, at: usize, value: u64) -> u64 {
        sync::add64(&self.0, at, value)
    }

    /// Sets bits of 8 bytes, before whatever follows. Returns what they were.
    pub(crate) fn or(&self, at: usize, bits: u64) -> u64 {
        sync::or64(&self.0, at, bits)
    }

    /// Keeps these bits of 8 bytes and clears the others, before whatever follows. Returns what they were.
    pub(crate) fn and(&self, at: usize, bits: u64) -> u64 {
        sync::and64(&self.0, at, bits)
    }

    /// Puts a value in the place of another, before whatever follows. False if there was another.
    #[inline]
    pub(crate) fn exchange(&self, at: usize, from: u64, to: u64) -> bool {
        sync::exchange64(&self.0, at, from, to)
    }

    pub(crate) fn copy_in(&self, at: usize, bytes: &[u8]) {
        sync::bytes();
        self.0.copy_in(at, bytes);
    }

    pub(crate) fn copy_out(&self, at: usize, bytes: &mut [u8]) {
        crate::mutant::load();
        sync::bytes();
        self.0.copy_out(at, bytes);
    }

    pub(crate) fn atomics(&self, at: usize, bytes: usize) -> &[AtomicU8] {
        crate::mutant::load();
        sync::bytes();
        self.0.atomics(at, bytes)
    }
}

/// The word file as a client maps it: it can only be loaded.
#[derive(Debug)]
pub(crate) struct ReadOnly(pub(crate) Memory);

impl ReadOnly {
    #[inline]
    pub(crate) fn load(&self, at: usize) -> u32 {
        self.0.load(at)
    }

    pub(crate) fn load_long(&self, at: usize) -> u64 {
        self.0.load_long(at)
    }

    #[inline]
    pub(crate) fn load_version(&self, at: usize) -> u64 {
        self.0.load_version(at)
    }
}
