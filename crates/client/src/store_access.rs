//! The memory zone as a client stores to it, with the words of its leases: what `lent_stores.rs` and `tail.rs` share.

use std::sync::atomic::{Ordering::Release, fence};

use tandemfs_device::Mapping;
use tandemfs_ring::Leases;

use crate::mutant::{self, Mutant};

/// The memory zone, as far as stores need it.
pub(crate) trait Zone {
    /// Its length in bytes.
    fn length(&self) -> u64;
    /// Loads bytes; none where that fails.
    fn load(&self, at: u64, into: &mut [u8]) -> Option<()>;
    /// Stores bytes, eight aligned ones at once; none where that fails.
    fn store(&self, at: u64, from: &[u8]) -> Option<()>;
    /// The same past the CPU's caches, as far as that goes.
    fn store_streaming(&self, at: u64, from: &[u8]) -> Option<()>;
    /// Begins to flush what was stored.
    fn flush(&self, at: u64, length: u64);
    /// Waits until what was flushed, or stored past the caches, is durable.
    fn fence(&self);
    /// Whether all that was flushed could be.
    fn is_flushed(&self) -> bool {
        true
    }
}

impl Zone for Mapping {
    fn length(&self) -> u64 {
        self.length()
    }

    #[inline]
    fn load(&self, at: u64, into: &mut [u8]) -> Option<()> {
        self.load(at, into).ok()
    }

    #[inline]
    fn store(&self, at: u64, from: &[u8]) -> Option<()> {
        self.store(at, from).ok()
    }

    #[inline]
    fn store_streaming(&self, at: u64, from: &[u8]) -> Option<()> {
        self.store_streaming(at, from).ok()
    }

    #[inline]
    fn flush(&self, at: u64, length: u64) {
        self.flush(at, length);
    }

    #[inline]
    fn fence(&self) {
        self.fence();
    }

    #[inline]
    fn is_flushed(&self) -> bool {
        self.flushed().is_ok()
    }
}

/// What a client stores by.
#[derive(Debug)]
pub(crate) struct StoreAccess<Z = Mapping> {
    pub(crate) zone: Z,
    needs_flush: bool,
    pub(crate) leases: Leases,
}

impl<Z: Zone> StoreAccess<Z> {
    pub(crate) fn new(zone: Z, needs_flush: bool, leases: Leases) -> Self {
        Self { zone, needs_flush, leases }
    }

    /// Stores bytes, which are durable behind [`persist`](Self::persist) ([STR2]).
    #[inline]
    pub(crate) fn put(&self, at: u64, bytes: &[u8]) -> Option<()> {
        if !self.needs_flush {
            return self.zone.store(at, bytes);
        }
        self.zone.store_streaming(at, bytes)?;
        self.flush(at, bytes.len());
        Some(())
    }

    /// Stores eight aligned bytes at once, behind all that was stored before.
    #[inline]
    pub(crate) fn put_word(&self, at: u64, word: u64) -> Option<()> {
        fence(Release);
        self.zone.store(at, &word.to_le_bytes())?;
        if self.needs_flush && !mutant::on(Mutant::WordUnflushed) {
            self.flush(at, size_of::<u64>());
        }
        Some(())
    }

    fn flush(&self, at: u64, length: usize) {
        if !mutant::on(Mutant::StoresUnflushed) {
            self.zone.flush(at, length as u64);
        }
    }

    /// Waits until what was stored is durable, where the domain asks for that ([STR2]); none where it cannot be.
    #[inline]
    pub(crate) fn persist(&self) -> Option<()> {
        if self.needs_flush && !mutant::on(Mutant::StoresUnfenced) {
            self.zone.fence();
            return self.zone.is_flushed().then_some(());
        }
        Some(())
    }
}

/// Memory for tests of what is stored.
#[cfg(test)]
pub(crate) mod weak {
    use std::ops::Range;
    use std::sync::Arc;

    use parking_lot::Mutex;
    use tandemfs_ring::{Arena, Client, Doorbell, Sizes, VersionWords, Versions};

    use super::Zone;

    pub(crate) const PAGE: u64 = 4096;

    /// A client of a daemon that lives.
    pub(crate) fn living() -> (Client, Arc<Arena>) {
        let arena = Arena::new(Sizes { slots: 1, data_bytes: PAGE }, Doorbell::Futex).expect("made");
        let ring = Client::map(arena.descriptors().arena, arena.descriptors().words, None, None).expect("mapped");
        ring.set_versions(Versions::map(VersionWords::new().expect("made").file()).expect("mapped"));
        (ring, arena)
    }

    type Ranges = Vec<Range<u64>>;

    /// Memory of which only what was flushed and fenced survives, and something that happens at each store.
    pub(crate) struct Weak<F> {
        pub(crate) bytes: Mutex<Vec<u8>>,
        /// Bytes that were stored, and flushed, and not yet fenced.
        pub(crate) lines: Mutex<(Ranges, Ranges)>,
        at_stores: F,
    }

    impl<F: Fn()> Weak<F> {
        pub(crate) fn new(at_stores: F) -> Self {
            Self { bytes: Mutex::new(vec![0; 16 * PAGE as usize]), lines: Mutex::default(), at_stores }
        }
    }

    impl<F: Fn()> Zone for Weak<F> {
        fn length(&self) -> u64 {
            16 * PAGE
        }

        fn load(&self, at: u64, into: &mut [u8]) -> Option<()> {
            into.copy_from_slice(&self.bytes.lock()[at as usize..][..into.len()]);
            Some(())
        }

        fn store(&self, at: u64, from: &[u8]) -> Option<()> {
            (self.at_stores)();
            self.bytes.lock()[at as usize..][..from.len()].copy_from_slice(from);
            self.lines.lock().0.push(at..at + from.len() as u64);
            Some(())
        }

        fn store_streaming(&self, at: u64, from: &[u8]) -> Option<()> {
            self.store(at, from)
        }

        fn flush(&self, at: u64, length: u64) {
            let (stored, flushed) = &mut *self.lines.lock();
            flushed.extend(stored.extract_if(.., |range| at <= range.start && range.end <= at + length));
        }

        fn fence(&self) {
            self.lines.lock().1.clear();
        }
    }
}
