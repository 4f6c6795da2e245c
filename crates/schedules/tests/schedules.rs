//! Schedules of two and three threads over the parts where they meet, with random steps. `TANDEMFS_SCHEDULES` says how many of each.

mod support;

use support::{explored, must};
use tandemfs_schedules::rounds_or;

macro_rules! scenes {
    ($($name:ident: $schedules:expr;)*) => {$(
        #[test]
        fn $name() {
            must(explored(support::$name, rounds_or($schedules)));
        }
    )*};
}

scenes! {
    names: 1200;
    names_cut_adr: 120;
    names_cut_gpf: 120;
    directories_that_cross: 800;
    one_block: 800;
    one_block_cut_adr: 150;
    one_block_cut_gpf: 150;
    neighbouring_blocks: 500;
    orphans: 800;
    orphans_cut: 100;
    last_holder: 200;
    commits_cut: 100;
    pools: 250;
    rings_that_wrap: 40;
    rings_cut: 120;
    caches_that_evict: 500;
}
