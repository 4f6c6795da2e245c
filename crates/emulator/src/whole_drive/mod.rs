//! The whole drive compared with a plain array and a commit log: random operations, power failures at any step, deliberate bugs.
//!
//! What must hold for every configuration:
//!
//! [WD1] *Reads.* A load and a block read return the latest store, whichever path, window and transaction stored it.
//! [WD2] *Power failures.* After a power failure and RECOVER every page has the acknowledged contents: untagged stores, block writes,
//!       discards, and the lines of committed transactions in commit order; nothing of other transactions.
//! [WD3] *In flight.* An unacknowledged operation is done from its start up to some point: an untagged store line by line (with a page
//!       cache word by word), block requests page by page, a commit atomically.
//! [WD4] *Refusals* happen only where the interface allows them. A refused store has no effect beyond its lines before the refused one.
//! [WD5] A worn-out drive still returns its data.
//! [WD6] A drive with damaged tables is refused with one sentence, or every access returns bytes or an error.

mod damage;
mod model;
mod mutants;
mod operation;
mod rig;
mod runs;
