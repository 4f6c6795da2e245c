//! What a call by the client costs, beside the limit of the machine: a line of shared memory that two threads pass back and forth.
//!
//!     cargo test --release --locked -p tandemfs-client --test cost -- --ignored --nocapture measure
//!     TANDEMFS_DIRECT_MOUNT=/mnt cargo test --release --locked -p tandemfs-client --test cost -- --ignored --nocapture measure
//!
//! Without a mount the server is one of this process that does nothing, so what is seen is the client and the ring. With one, calls are
//! those of its daemon, and what they return for is durable. Prints medians of batches of 32 calls, the least and largest median of the
//! rounds, and the fastest batch, which a busy machine disturbs least.

mod support;

use std::hint::black_box;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use support::{Reply, SIZES, Server, connected, done, welcome};
use tandemfs_client::{Attributes, Errno, Mount, OpenOptions, Result, Tree};
use tandemfs_protocol::Operation;
use tandemfs_ring::{Answer, Ticket};

const ROUNDS: usize = 7;
/// Calls between two looks at the clock.
const BATCH: u32 = 32;
const ROUND: Duration = Duration::from_millis(150);
const NAME: &str = "tandemfs-cost";

/// Nanoseconds of a line that goes to another thread and comes back: the median of batches.
fn line_ns() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU32);
    static LINE: Line = Line(AtomicU32::new(0));
    const BATCHES: u32 = 2000;
    LINE.0.store(0, Ordering::SeqCst);
    let play = |side: u32| {
        let (mut turn, mut batches) = (side, Vec::new());
        for _ in 0..BATCHES {
            let begun = Instant::now();
            for _ in 0..BATCH {
                let mut looks = 0_u32;
                while LINE.0.load(Ordering::Acquire) != turn {
                    looks += 1;
                    if looks.is_multiple_of(1000) {
                        std::thread::yield_now(); // the other one may need this CPU
                    }
                }
                LINE.0.store(turn + 1, Ordering::Release);
                turn += 2;
            }
            batches.push(begun.elapsed().as_nanos() as f64 / f64::from(BATCH));
        }
        median(&mut batches)
    };
    std::thread::scope(|scope| {
        let sides = [0, 1].map(|side| scope.spawn(move || play(side)));
        sides.map(|side| side.join().unwrap_or(f64::NAN))[0]
    })
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn nothing(operation: &Operation<'_>, _: &Ticket) -> Reply {
    match operation {
        Operation::Open { .. } => done(1),
        Operation::Write { from, .. } => done(from.length.into()),
        Operation::Stat { .. } | Operation::StatAhead { .. } => {
            Reply::Now(Answer { attributes: Some(Attributes::default()), ..Answer::default() })
        }
        _ => done(0),
    }
}

fn mount() -> (Mount, Option<Server>) {
    match std::env::var_os("TANDEMFS_DIRECT_MOUNT") {
        Some(mountpoint) => (Mount::connect(mountpoint).expect("connects"), None),
        None => {
            println!("no TANDEMFS_DIRECT_MOUNT: a server that does nothing");
            let (mount, server) = connected(welcome(SIZES), nothing);
            (mount, Some(server))
        }
    }
}

/// The median of the batches of a round, and the fastest.
fn call_ns(call: &dyn Fn() -> Result<()>) -> (f64, f64) {
    for _ in 0..BATCH {
        call().expect("done");
    }
    let (start, mut batches) = (Instant::now(), Vec::with_capacity(1 << 16));
    while start.elapsed() < ROUND {
        let begun = Instant::now();
        for _ in 0..BATCH {
            call().expect("done");
        }
        batches.push(begun.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    (median(&mut batches), batches[0])
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    let (mount, _server) = mount();
    let file = OpenOptions::new().read(true).write(true).create(true).open(&mount, NAME).expect("made");
    file.write_all_at(&[1; 1 << 16], 0).expect("written");
    let block = [7; 4096];
    let encoded = |operation: Operation<'_>| {
        let _request = black_box(operation.encode().map_err(|_| Errno::NAMETOOLONG)?);
        Ok(())
    };
    let calls: [(&str, &dyn Fn() -> Result<()>); 6] = [
        ("making a request, without sending it", &|| encoded(black_box(Operation::Nothing))),
        ("a request that does nothing", &|| mount.ping()),
        ("stat of a name", &|| mount.attributes(NAME).map(drop)),
        ("fstat", &|| file.attributes().map(drop)),
        ("open and close", &|| mount.open(NAME)?.close()),
        ("an overwrite of 4 KiB", &|| file.write_all_at(&block, 4096)),
    ];
    let (mut limits, mut costs) = (Vec::new(), vec![(Vec::new(), f64::INFINITY); calls.len()]);
    for _ in 0..ROUNDS {
        limits.push(line_ns());
        for ((_, call), (medians, fastest)) in calls.iter().zip(&mut costs) {
            let (median, least) = call_ns(call);
            medians.push(median);
            *fastest = fastest.min(least);
        }
    }
    let limit = median(&mut limits);
    println!("a line there and back: {limit:.0} ns ({:.0} to {:.0})", limits[0], limits[limits.len() - 1]);
    for ((name, _), (medians, fastest)) in calls.iter().zip(&mut costs) {
        let cost = median(medians);
        let range = format!("{:.0} to {:.0}", medians[0], medians[medians.len() - 1]);
        println!("{name}: {cost:.0} ns ({range}, fastest batch {fastest:.0}), {:.1} lines", cost / limit);
    }
    drop(file);
    if std::env::var_os("TANDEMFS_DIRECT_MOUNT").is_some() {
        mount.unlink(NAME).expect("removed");
    }
}
