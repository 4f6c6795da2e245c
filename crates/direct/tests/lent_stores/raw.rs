//! A client that does what no library does.

use std::fs::File as HostFile;
use std::os::fd::AsFd;
use std::path::Path;

use tandemfs_device::{Mapping, StoreZone};
use tandemfs_protocol::{Handle, Hello, LentRange, LentTail, Operation, Outcome, Place, StoreLease, StorePlace, Text, ZonePlace};
use tandemfs_ring::{Answer, Client, LeaseToken, Leases, Range, Slot};

use crate::greeting::greeted;
use crate::support::socket_to;

/// A client that does what no library does.
pub(crate) struct Raw {
    pub(crate) slot: Slot,
    pub(crate) client: Client,
    pub(crate) handle: Handle,
    pub(crate) zone: StoreZone,
    pub(crate) map: Mapping,
    pub(crate) words: HostFile,
    pub(crate) leases: Leases,
}

pub(crate) fn answered(slot: &mut Slot, operation: &Operation<'_>) -> Result<Answer, i32> {
    match Outcome::decode(slot.call(&operation.encode().expect("short")).expect("answered")).expect("an outcome") {
        Outcome::Done(answer) => Ok(answer),
        Outcome::Errno(errno) => Err(errno),
        Outcome::Crossed(crossed) => panic!("{crossed:?}"),
    }
}

impl Raw {
    pub(crate) fn connect(path: &Path) -> Self {
        let socket = socket_to(path);
        let (welcome, mut descriptors) = greeted(socket.as_fd(), Hello::new(2, 1 << 20).wanting_stores(true));
        let StorePlace { zone: ZonePlace { start, bytes }, .. } = welcome.stores.expect("it may store");
        let words = HostFile::from(descriptors.pop().expect("lease words"));
        let zone = StoreZone::received(descriptors.pop().expect("a zone"), start, bytes);
        assert_eq!(descriptors.len(), 3 + usize::from(descriptors.len() > 3), "arena, words, versions, perhaps a bell");
        let bell = if descriptors.len() > 3 { Some(descriptors.remove(2)) } else { None };
        let client = Client::map(descriptors[0].as_fd(), descriptors[1].as_fd(), bell, Some(socket)).expect("mapped");
        let mut slot = client.slot().expect("a slot");
        let open =
            Operation::Open { at: Place::Root, path: Text::Here(b"f"), flags: libc::O_RDWR, mode: 0, umask: 0, into: Range::default() };
        let handle = Handle::of(answered(&mut slot, &open).expect("opened").value).expect("a handle");
        let (map, leases) = (zone.map().expect("mapped"), Leases::map(words.as_fd()).expect("mapped"));
        Self { slot, client, handle, zone, map, words, leases }
    }

    /// A lease of the first window, and where it begins in the zone.
    pub(crate) fn lease(&mut self) -> Option<(LeaseToken, u64)> {
        let buffer = self.client.buffer(4096).expect("room");
        let lend = Operation::LendStores { handle: self.handle, offset: 0, into: buffer.range() };
        let answer = answered(&mut self.slot, &lend).expect("lent");
        let mut bytes = vec![0; answer.value as usize];
        buffer.read(0, &mut bytes);
        let first = *LentRange::decode(&bytes, 0, self.map.length()).expect("ranges").first()?;
        Some((StoreLease::decode(answer.further).expect("a lease").0, first.zone_offset))
    }

    /// The end of the file.
    pub(crate) fn tail(&mut self) -> Option<(LeaseToken, LentTail)> {
        let buffer = self.client.buffer(4096).expect("room");
        let lend = Operation::LendTail { handle: self.handle, into: buffer.range() };
        let answer = answered(&mut self.slot, &lend).expect("answered");
        let mut bytes = vec![0; answer.value as usize];
        buffer.read(0, &mut bytes);
        (!bytes.is_empty()).then(|| {
            let tail = LentTail::decode(&bytes, self.map.length()).expect("a tail");
            (StoreLease::decode(answer.further).expect("a lease").0, tail)
        })
    }

    /// Gives a lease back.
    pub(crate) fn give_back(&mut self, token: LeaseToken) {
        let lease = StoreLease(token).number().expect("a number");
        answered(&mut self.slot, &Operation::ReturnStores { lease }).expect("given back");
    }

    /// How far appends count.
    pub(crate) fn appended(&mut self, token: LeaseToken) -> Result<u64, i32> {
        let lease = StoreLease(token).number().expect("a number");
        answered(&mut self.slot, &Operation::Appended { lease }).map(|answer| answer.value)
    }
}
