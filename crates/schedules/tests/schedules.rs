//! Schedules of two and three threads on the parts that they share, with random steps. `TANDEMFS_SCHEDULES` sets their number.

mod support;

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use support::{explored, must};
use tandemfs_crash::{Bound, Event, Operation, PausingDevice, Random, Setting, Step, mount_device};
use tandemfs_device::PersistenceDomain;
use tandemfs_schedules::{explore, rounds_or};

use Operation::{Create, Symlink};

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
    batches: 400;
    batches_cut: 80;
    orphans: 800;
    orphans_cut: 100;
    last_holder: 200;
    commits_cut: 100;
    pools: 250;
    rings_that_wrap: 40;
    rings_cut: 120;
    caches_that_evict: 500;
    names_on_firmware_cut: 120;
    one_block_on_firmware_cut: 150;
    caches_on_firmware: 500;
    orphans_on_firmware_cut: 100;
    pools_on_firmware: 200;
    names_tried: 600;
    names_tried_cut: 80;
    one_block_tried: 400;
    one_block_tried_cut: 80;
    orphans_tried: 400;
    pools_tried: 100;
    rings_tried: 30;
    commits_tried_cut: 80;
    caches_tried: 200;
    names_tried_on_firmware_cut: 80;
}

/// What reached the device in each of 20 schedules: kinds of steps and places.
fn traces() -> Vec<Vec<(&'static str, u64)>> {
    let traces: Arc<Mutex<Vec<_>>> = Arc::default();
    let all = traces.clone();
    let body = move |_: &mut Random| {
        let setting = Setting::small(PersistenceDomain::Adr, 4 << 10);
        let device = setting.format();
        let pausing = PausingDevice::new(device.clone(), shuttle::thread::yield_now);
        let fs = Arc::new(mount_device(Arc::new(pausing), &setting.mount).map_err(|error| error.to_string())?);
        let bound = Arc::new(Bound::new(&fs, &[]).map_err(|error| error.to_string())?);
        device.start_recording();
        let threads = [Create("a"), Create("b"), Symlink("c", 500)].map(|operation| {
            let (fs, bound) = (fs.clone(), bound.clone());
            shuttle::thread::spawn(move || bound.perform(&fs, &Step::Do(operation)).map(drop))
        });
        for thread in threads {
            thread.join().map_err(|_| "a thread panicked".to_owned())??;
        }
        let place = |event: Event| match event {
            Event::Store { offset, .. } => ("store", offset),
            Event::FlushLines { offset, .. } => ("flush", offset),
            _ => ("other", 0),
        };
        let trace = device.stop_recording().into_iter().map(place).collect();
        all.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
        Ok(())
    };
    must(explore("traces", 20, body));
    std::mem::take(&mut traces.lock().unwrap_or_else(PoisonError::into_inner))
}

#[test]
fn a_seed_repeats_its_schedule() {
    let (first, second) = (traces(), traces());
    assert_eq!(first, second);
    let different: HashSet<_> = first.iter().collect();
    assert!(different.len() > 5, "{} different schedules of 20", different.len());
}
