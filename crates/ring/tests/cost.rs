//! What a request that does nothing costs, beside the limit of the machine: a line of shared memory that two threads pass back and forth.
//!
//!     cargo test --release --locked -p tandemfs-ring --test cost -- --ignored --nocapture measure
//!
//! Prints medians of rounds; every round measures the limit and all numbers of clients. A cost is the median of batches of 32, which a busy
//! machine disturbs little while both sides run; the requests a second are all that was done. Built alone, without deliberate bugs.

#[path = "support/processes.rs"]
mod processes;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use processes::{Process, Server, inherited_socket, receive, told};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tandemfs_ring::{Answer, ClientId, End, Handler, Request, Sizes, Ticket};

const ROUNDS: usize = 7;
/// Calls between two looks at the clock.
const BATCH: u32 = 32;
const ROUND: Duration = Duration::from_millis(200);
const SIZES: Sizes = Sizes { slots: 4, data_bytes: 64 << 10 };

/// Binds the calling thread to a CPU if `TANDEMFS_RING_PIN` is set: the daemon's thread to the first, clients to the second in turns. A busy
/// scheduler may otherwise keep both sides on one CPU.
fn pin(index: usize) {
    if std::env::var_os("TANDEMFS_RING_PIN").is_none() {
        return;
    }
    let allowed = sched_getaffinity(None).expect("a set");
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(cpus[index % cpus.len()]);
    sched_setaffinity(None, &one).expect("bound");
}

struct Nothing {
    is_pinned: bool,
}

impl Handler for Nothing {
    fn request(&mut self, _: ClientId, _: &Request, ticket: Ticket) {
        if !std::mem::replace(&mut self.is_pinned, true) {
            pin(0);
        }
        ticket.answer(&Answer::default());
    }

    fn ended(&mut self, _: ClientId, _: End) {}
}

/// A client: says that it is warm, waits for a byte, calls for a round, prints how often.
#[test]
#[ignore = "started by the measurement"]
fn child() {
    let (_, number) = told();
    pin(1 + number as usize);
    let socket = inherited_socket();
    let mut control = UnixStream::from(socket.try_clone().expect("a descriptor"));
    let client = receive(socket);
    let (mut slot, request) = (client.slot().expect("a slot"), Request::new(1));
    for _ in 0..2000 {
        slot.call(&request).expect("answered");
    }
    control.write_all(&[1]).expect("said");
    control.read_exact(&mut [0]).expect("told");
    let (start, mut batches) = (Instant::now(), Vec::with_capacity(1 << 20));
    while start.elapsed() < ROUND {
        let begun = Instant::now();
        for _ in 0..BATCH {
            slot.call(&request).expect("answered");
        }
        batches.push(begun.elapsed().as_nanos() as f64 / f64::from(BATCH));
    }
    let (calls, ns) = (batches.len() * BATCH as usize, start.elapsed().as_nanos());
    println!("calls={calls} ns={ns} median={}", median(&mut batches));
}

/// Nanoseconds of a line that goes to another thread and comes back: the median of batches.
fn line_ns() -> f64 {
    #[repr(align(128))]
    struct Line(AtomicU32);
    static LINE: Line = Line(AtomicU32::new(0));
    const BATCHES: u32 = 4000;
    LINE.0.store(0, Ordering::SeqCst);
    let play = |side: u32| {
        pin(side as usize);
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

/// Requests a second of all clients together, and nanoseconds a call of one of them: the median of the medians of their batches.
fn clients(count: usize) -> (f64, f64) {
    let server = Server::start(None, Nothing { is_pinned: false });
    let mut all: Vec<Process> = (0..count as u64).map(|number| Process::start("calls", number)).collect();
    for process in &all {
        server.connect(&process.socket, SIZES, None);
    }
    all.iter_mut().for_each(|process| process.socket.read_exact(&mut [0]).expect("warm"));
    all.iter_mut().for_each(|process| process.socket.write_all(&[1]).expect("told"));
    let field = |text: &str, name: &str| -> f64 {
        let after = text.split(name).nth(1).unwrap_or_else(|| panic!("{name} in {text}"));
        after.split_whitespace().next().and_then(|number| number.parse().ok()).expect("a number")
    };
    let texts: Vec<String> = all.into_iter().map(Process::succeed).collect();
    let rate = texts.iter().map(|text| field(text, "calls=") / field(text, "ns=") * 1e9).sum::<f64>();
    let mut medians: Vec<f64> = texts.iter().map(|text| field(text, "median=")).collect();
    server.stop();
    (rate, median(&mut medians))
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

#[test]
#[ignore = "a measurement"]
fn measure() {
    const COUNTS: [usize; 3] = [1, 4, 16];
    let (mut limits, mut rates, mut costs) = (Vec::new(), [const { Vec::new() }; 3], [const { Vec::new() }; 3]);
    for _ in 0..ROUNDS {
        limits.push(line_ns());
        for (index, count) in COUNTS.into_iter().enumerate() {
            let (rate, cost) = clients(count);
            rates[index].push(rate);
            costs[index].push(cost);
        }
    }
    let span = |values: &[f64]| format!("{:.0} to {:.0}", values[0], values[values.len() - 1]);
    let limit = median(&mut limits);
    println!("a line there and back: {limit:.0} ns ({})", span(&limits));
    for (index, count) in COUNTS.into_iter().enumerate() {
        let (rate, cost) = (median(&mut rates[index]), median(&mut costs[index]));
        let range = span(&costs[index]);
        println!(
            "{count:2} clients: {:5.0} k requests a second; {cost:6.0} ns a call of one ({range}), {:.1} lines",
            rate / 1e3,
            cost / limit
        );
    }
}
