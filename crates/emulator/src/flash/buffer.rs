//! The queue of write-buffer slots that wait to be programmed, oldest first. Derived from the tables when the drive is opened.

use crate::lists::Lists;

/// The only list: waiting slots.
const WAITING: u32 = 0;

#[derive(Debug)]
pub(super) struct WriteBuffer {
    /// The logical page of each waiting slot.
    logical: Vec<u64>,
    waiting: Lists,
    waiting_count: u32,
    free: Vec<u32>,
}

impl WriteBuffer {
    /// A buffer with these slots waiting, oldest first.
    pub(super) fn new(slot_count: u32, waiting: &[(u32, u64)]) -> Self {
        let mut buffer = Self {
            logical: vec![0; slot_count as usize],
            waiting: Lists::new(1, slot_count),
            waiting_count: 0,
            free: Vec::with_capacity(slot_count as usize),
        };
        let mut is_waiting = vec![false; slot_count as usize];
        for &(slot, logical) in waiting {
            is_waiting[slot as usize] = true;
            buffer.enqueue(slot, logical);
        }
        buffer.free.extend((0..slot_count).rev().filter(|&slot| !is_waiting[slot as usize]));
        buffer
    }

    /// A slot that no entry names; it stays free until [`WriteBuffer::fill`].
    pub(super) fn free_slot(&self) -> Option<u32> {
        self.free.last().copied()
    }

    /// Adds the free slot, which now holds a page, to the end of the queue.
    pub(super) fn fill(&mut self, slot: u32, logical: u64) {
        let taken = self.free.pop();
        debug_assert_eq!(taken, Some(slot), "the free slot is the one that was offered");
        self.enqueue(slot, logical);
    }

    fn enqueue(&mut self, slot: u32, logical: u64) {
        self.logical[slot as usize] = logical;
        self.waiting.push(WAITING, slot);
        self.waiting_count += 1;
    }

    /// Frees the slot of a page that was programmed, rewritten or discarded.
    pub(super) fn release(&mut self, slot: u32) {
        self.waiting.remove(slot);
        self.waiting_count -= 1;
        self.free.push(slot);
    }

    /// The oldest waiting slot and its page.
    pub(super) fn oldest(&self) -> Option<(u32, u64)> {
        self.waiting.first(WAITING).map(|slot| (slot, self.logical[slot as usize]))
    }

    pub(super) fn waiting_count(&self) -> u32 {
        self.waiting_count
    }
}
