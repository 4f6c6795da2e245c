//! The server of the direct door: programs reach a mounted file system by shared memory, beside its mount.
//!
//! `reception.rs` has the thread that greets new clients and looks after their credentials (`peers.rs`, `mountinfo.rs`). `clients.rs` has what is
//! known of each client, `handles.rs` its open files, `tally.rs` its counters, `known.rs` which answers it may give itself, `mappings.rs`
//! what it has mapped ([MAP1]–[MAP9]), `lent_stores.rs` what it may store to ([LNS1]–[LNS8]).
//! `descriptors.rs` sends files of the mount. `serving.rs` makes messages calls of `vfs` (`calls.rs`). The poller (`polling.rs`)
//! serves them, or the threads of `pool.rs`.
//!
//! [D1] The daemon trusts nothing in shared memory. The ring copies and checks a request; texts are copied once; a buffer is private until it
//!      is whole, but for large transfers, which the drive makes from and to the client's memory ([SM3], [SM4] of the file system). No
//!      loop, allocation or wait depends on a client's word without a bound: [`Limits`].
//! [D2] An answer is what the mount would say: `vfs` has the rules and the table of errnos.
//! [D3] Nobody waits for a client. Its end is seen by the hang-up of its socket or the end of its process; its open files end with it, in
//!      the pool, as giving up the last hold of a removed file is a change.
//! [D8] What the mount's kernel keeps of data is settled before it is read here and dropped around a change (`Caches` of `vfs`); names and
//!      attributes it asks for anew while there is this door.
//! [D9] One thread looks at all clients, or sleeps until one rings (the ring's poller). It serves what it can serve at once.
//! [D10] The poller never waits. Every operation of the file system may (an inode that somebody else changes, room in the journal, the
//!       drive), even `fstat`: what would wait or take long is refused unchanged and runs in the pool ([SRV1]–[SRV5] of `serving.rs`).
//! [D14] What only the kernel can decide goes back to the client, which makes the call through the mount. An inode on which something is mounted is
//!       known as such while that mount is there, whatever name a directory above it has got meanwhile.
//!
//! [CRD1] Credentials come from the kernel: the process of the socket's other end, and `/proc` of that very process. They are read again
//!        every 100 ms while the client is active, and the connection ends when they have changed.
//! [CRD2] Only processes see the door which see the mount: same user and mount namespace, same root directory, whom the mount lets in, and who
//!        can reach it: they say which descriptor is its root directory, which the kernel tells from others without asking the mount. It is asked before and behind
//!        the list of mounts, so that the number of its mount is of no earlier or later one, and last the kernel is asked
//!        whether this daemon's own mount still stands: until then nobody else had its device number.
//! [CRD3] A mount that is idmapped or was made read-only by others than the daemon is left to the kernel.
//! [CRD4] A process whose files have a largest size (RLIMIT_FSIZE) is left to the kernel, which alone keeps it. The limit counts as one of its
//!        credentials ([CRD1]).
//! [CRD5] Who is served had these rights when it connected: user, group and supplementary groups are compared with those that the kernel keeps of
//!        that moment. Otherwise a process could connect, leave the socket to a child, and start a set-id program. The kernel keeps no capabilities; so
//!        those of a process that is not root's count only if they are ambient, which no program gets from its file. Others go by the mount.
//!
//! [CRD6] No descriptor is taken from a client, not even to close it: a close waits for whoever serves the file, if it is of another mount. The kernel
//!        refuses them to whoever sends one. Before Linux 6.16 it cannot, and whoever may connect could hold up the door and the unmount; so only root, who
//!        mounted, and the group of `direct=GROUP` may connect there.
//!
//! [LND1] The memory zone, with everything on the drive, is lent for loads where the mount says to whom (`direct=GROUP`): to root, to who
//!        mounted, and to members of the group, if they ask for it. Each gets a description of its own that cannot be stored to ([LZ1] of the
//!        device layer). It is asked once, at the greeting: a process that gives rights up keeps what it has got, as it keeps descriptors. Who has it may ask for
//!        descriptions for stores, each for one mapping ([MAP6] of `mappings.rs`).
//! [LND2] A client without the zone is not told where bytes lie, and its greeting does not name the operation.
//! [LND3] What is lent is looked up and verified by the pool. Nobody waits for who loads ([LM1]–[LM5] of the file system), so there is nothing
//!        to take back from a client that is stopped or killed, and nothing kept for it but its connection.
//! [LND4] A zone that has grown in use is lent as far as the client was told of it: places behind that would be outside of its zone, and an answer that
//!        names one is none to it ([CN1] of the client). Bytes there go by requests until it connects again.
//! [LND5] What a greeting does not name is not served to that client, whatever it asks: which operations those are is kept with the client and
//!        looked at before each request, which gets ENOSYS.
//!
//! *Architecture invariant:* names, blocks and permissions belong to `vfs` and `fs`; this crate knows clients and threads.

#![forbid(unsafe_code)]

mod calls;
mod clients;
mod descriptors;
mod handles;
mod known;
mod lent_stores;
mod mappings;
mod mountinfo;
#[cfg(not(feature = "mutants"))]
mod mutant;
#[cfg(feature = "mutants")]
pub mod mutant;
mod peers;
mod polling;
mod pool;
mod reception;
mod server;
mod serving;
mod tally;
mod traced;

pub use descriptors::{Opener, Wanted};
pub use server::{Entrants, Limits, MountIdentity, Observer, Server};
pub use tally::{ClientStatistics, Counts, OperationCount, StoreCounts};
