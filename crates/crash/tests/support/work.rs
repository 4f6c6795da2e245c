//! Random work against the model, and every cut of a scenario, for tests of what blocks consist of.

use tandemfs_check::Counts;
use tandemfs_crash::{Harness, MemoryDevice, Operation, check_device, compare_space};
use tandemfs_device::PersistenceDomain;

/// All block sizes.
pub const BLOCK_SIZES: [u32; 9] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20];

/// What a device holds that nobody has mounted, or that is as a checkpoint left it; the check finds nothing.
pub fn checked(device: &MemoryDevice, what: &str) -> Result<Counts, String> {
    check_device(device, false).map_err(|found| format!("{what}: {found}"))
}

/// Does operations as `next` draws them, each fourth time with a comparison, a check and a count of space, whose result goes to `counted`. Then
/// removes everything and counts again.
pub fn random_work(
    harness: &mut Harness,
    steps: usize,
    mut next: impl FnMut(usize, &mut Harness) -> Result<Operation, String>,
    mut counted: impl FnMut(&Counts),
) -> Result<(), String> {
    for step in 0..steps {
        let operation = next(step, harness)?;
        let told = |error| format!("step {step}, {operation:?}: {error}");
        harness.apply(&operation).map_err(told)?;
        if step % 4 == 3 {
            harness.compare().map_err(told)?;
            harness.apply(&Operation::Checkpoint)?;
            let counts = checked(&harness.device, &format!("step {step}, {operation:?}"))?;
            compare_space(&harness.fs.space(), &counts, &harness.model.tree()).map_err(told)?;
            counted(&counts);
        }
    }
    harness.compare_space()?;
    harness.remove_everything()?;
    harness.compare_space()
}

/// Runs a scenario in each domain and with single pages, several pages and large blocks.
pub fn in_every_domain(scenario: impl Fn(PersistenceDomain, u32) -> Result<(), String>) {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        for block_bytes in [4096, 16 << 10, 64 << 10] {
            scenario(domain, block_bytes).unwrap_or_else(|what| panic!("{domain}, blocks of {block_bytes}: {what}"));
        }
    }
}
