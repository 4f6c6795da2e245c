//! The whole drive against a plain array with a commit log: random operations, power failures at any step, deliberate bugs.
//!
//! What must hold, whatever the drive is made of:
//!
//! [WD1] *Reads.* A load and a block read show what was stored last, by whichever path and window, and by whichever transaction.
//! [WD2] *Power failures.* After one and a RECOVER every page is what was acknowledged: untagged stores, block writes, discards, and the
//!       lines of committed transactions in the order of the commits; nothing of other transactions.
//! [WD3] *Under way.* What was not acknowledged is done from its start up to some point and no further: an untagged store line by line
//!       (with a page cache word by word), block requests page by page, a commit in one piece.
//! [WD4] *Refusals* come where the interface says so, and then nothing is done beyond what came before in the same store.
//! [WD5] A drive that is worn out answers reads with what was there.
//! [WD6] A drive whose tables are damaged is refused in a sentence, or answers every access with bytes or an error.

mod damage;
mod model;
mod mutants;
mod operation;
mod rig;
mod runs;
