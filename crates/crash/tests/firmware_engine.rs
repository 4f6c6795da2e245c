//! Transactions of the drive instead of the journal.

use tandemfs_crash::{Effort, Scene, Setting, explore_sequences, singles};
use tandemfs_device::PersistenceDomain;

#[test]
fn singles_smoke() {
    for domain in [PersistenceDomain::Adr, PersistenceDomain::Gpf, PersistenceDomain::Process] {
        let scene = Scene::small(&Setting::small(domain, 64 << 10).with_firmware());
        match explore_sequences(&scene, &singles(), Effort { states: 16, ..Effort::EXHAUSTIVE }, 7) {
            Ok(tried) => println!("{domain}: {tried:?}"),
            Err(what) => panic!("{domain}: {what}"),
        }
    }
}
