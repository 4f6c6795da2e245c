//! Open files of a client, by number. A number is not used again soon: it has the turn of its place, so a client that keeps an old one gets
//! EBADF.

use std::sync::Arc;

use parking_lot::Mutex;
use rustix::io::Errno;
use tandemfs_protocol::Handle;
use tandemfs_vfs::OpenFile;

use crate::mutant::{self, Mutant};

#[derive(Default)]
struct Slot {
    turn: u32,
    file: Option<Arc<OpenFile>>,
}

/// Open files of one client.
pub(crate) struct Handles {
    slots: Mutex<(Vec<Slot>, Vec<u32>)>,
    most: usize,
}

impl Handles {
    pub(crate) fn new(most: usize) -> Self {
        Self { slots: Mutex::default(), most }
    }

    /// Whether another file can be opened.
    pub(crate) fn has_room(&self) -> bool {
        let (slots, free) = &*self.slots.lock();
        !free.is_empty() || slots.len() < self.most || mutant::on(Mutant::FilesUnbounded)
    }

    /// EMFILE beyond the limit.
    pub(crate) fn add(&self, file: OpenFile) -> Result<Handle, Errno> {
        let (slots, free) = &mut *self.slots.lock();
        let index = match free.pop() {
            Some(index) => index,
            None if slots.len() < self.most || mutant::on(Mutant::FilesUnbounded) => {
                slots.push(Slot::default());
                slots.len() as u32 - 1
            }
            None => return Err(Errno::MFILE),
        };
        let slot = &mut slots[index as usize];
        slot.turn += 1;
        slot.file = Some(Arc::new(file));
        Handle::of(u64::from(slot.turn) << 32 | u64::from(index)).ok_or(Errno::MFILE)
    }

    fn with<T>(&self, handle: Handle, of: impl FnOnce(&mut Slot, &mut Vec<u32>, u32) -> Option<T>) -> Result<T, Errno> {
        let (slots, free) = &mut *self.slots.lock();
        let (turn, index) = ((handle.get() >> 32) as u32, handle.get() as u32);
        let slot = slots.get_mut(index as usize).filter(|slot| slot.turn == turn);
        slot.and_then(|slot| of(slot, free, index)).ok_or(Errno::BADF)
    }

    /// The file of a handle; it stays open while somebody uses it.
    pub(crate) fn get(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.with(handle, |slot, _, _| slot.file.clone())
    }

    /// Ends a handle.
    pub(crate) fn remove(&self, handle: Handle) -> Result<Arc<OpenFile>, Errno> {
        self.with(handle, |slot, free, index| {
            let file = slot.file.take()?;
            // The turn of a place that has been used 2^32 times would begin anew.
            if slot.turn < u32::MAX {
                free.push(index);
            }
            Some(file)
        })
    }

    /// For a deliberate bug: nobody closes what is open.
    pub(crate) fn leak(&self) {
        std::mem::forget(std::mem::take(&mut self.slots.lock().0));
    }

    /// How many are open.
    pub(crate) fn count(&self) -> usize {
        let (slots, _) = &*self.slots.lock();
        slots.iter().filter(|slot| slot.file.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use tandemfs_crash::MemoryDevice;
    use tandemfs_device::{Drive, PersistenceDomain};
    use tandemfs_fs::{FileSystem, FormatOptions, MountOptions, make_file_system};
    use tandemfs_vfs::{At, Capabilities, Credentials, Process, Settings, Vfs};

    use super::*;

    #[test]
    fn a_number_is_used_once_and_no_more_are_open_than_allowed() {
        let device = Arc::new(MemoryDevice::new(32 << 20, 16 << 20, PersistenceDomain::Gpf));
        make_file_system(&Drive::new(device.clone()), &FormatOptions::default()).expect("formats");
        let fs = FileSystem::mount(Drive::new(device), &MountOptions::default()).expect("mounts");
        let vfs = Vfs::new(Arc::new(fs), Settings::default());
        let process = Process::of(Credentials::new(0, 0, &[], Capabilities::ALL));
        let open = || vfs.open(&process, At::Root, b".", libc::O_RDONLY, 0).expect("opened");
        let handles = Handles::new(2);
        let (first, second) = (handles.add(open()).expect("room"), handles.add(open()).expect("room"));
        assert!(!handles.has_room() && handles.count() == 2);
        assert_eq!(handles.add(open()), Err(Errno::MFILE));
        drop(handles.remove(first).expect("open"));
        assert_eq!((handles.get(first).err(), handles.remove(first).err()), (Some(Errno::BADF), Some(Errno::BADF)));
        let third = handles.add(open()).expect("room again");
        assert!(third != first && third != second && handles.get(third).is_ok() && handles.get(second).is_ok());
        for number in [1, 2, 1 << 32 | 2, u64::MAX] {
            assert_eq!(handles.get(Handle::of(number).expect("not zero")).err(), Some(Errno::BADF), "{number:#x}");
        }
    }
}
