//! Programs that test the promises of TandemFS on real mounts. Like any program, they access it through the kernel.
//!
//! - `write` and `verify` (the program `witness`): a writer executes a `plan` and logs outside the mount (`promises`) which operations were
//!   acknowledged. Later `verify` checks that everything acknowledged exists and nothing else.
//! - [`kill_loop`]: rounds of a daemon that is killed during mount, work or unmount.
//! - [`power_cut`]: a device that cuts the machine's power, or kills the daemon, at one exact step of a commit (the program
//!   `mount-until-cut`).
//! - [`mapped`]: a file mapped by the library, on a device that is not mounted.
//! - [`drive_cache`]: the possible contents of a drive that loses its cache, from a log of dm-log-writes.
//!
//! `tests/vm` runs the same programs in virtual machines. Nothing of this is in the product.

pub mod command;
pub mod drive_cache;
pub mod kill_loop;
pub mod mapped;
mod patterns;
pub mod plan;
mod power;
pub mod power_cut;

pub mod promises;
pub mod verify;
pub mod write;
