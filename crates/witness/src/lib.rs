//! Programs that hold real mounts of TandemFS to their promises. They see it as any program does: through the kernel.
//!
//! - `write` and `verify` (the program `witness`): a writer works by a `plan`, takes down in `promises`, outside the mount, what was
//!   acknowledged, and later it is verified that everything is there and that nothing else is.
//! - [`kill_loop`]: rounds of a daemon that is killed amid mount, work or unmount.
//! - [`power_cut`]: a device that ends the machine, or the daemon, at one exact step of a commit (the program `mount-until-cut`).
//! - [`drive_cache`]: what a drive may keep of writes that it had only cached, from a log of dm-log-writes.
//!
//! `tests/vm` runs the same programs in virtual machines. Nothing of this is in the product.

pub mod command;
pub mod drive_cache;
pub mod kill_loop;
mod patterns;
pub mod plan;
mod power;
pub mod power_cut;

pub mod promises;
pub mod verify;
pub mod write;
