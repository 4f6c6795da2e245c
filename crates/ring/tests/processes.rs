//! Clients in processes of their own: echoes, kills, stops, more clients than CPUs, a daemon that dies.

#[path = "support/processes.rs"]
mod processes;
#[path = "support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use processes::{Process, Server, inherited_socket, receive, send, told};
use rustix::process::Signal;
use support::{Echo, SIZES, echo};
use tandemfs_ring::{Answer, Arena, Client, ClientId, Doorbell, End, Ended, Handler, Poller, Range, Request, Ticket};

/// The role of a process that another test has started.
#[test]
#[ignore = "started by other tests"]
fn child() {
    let (role, calls) = told();
    match role.as_str() {
        "calls" => make_calls(&receive(inherited_socket()), calls),
        "serves" => serve_for_ever(),
        other => panic!("no role {other}"),
    }
}

/// Calls with numbers and data, each answer checked.
fn make_calls(client: &Client, calls: u64) {
    let mut slot = client.slot().expect("a slot");
    let mut buffer = Some(client.buffer(5000).expect("room"));
    for number in 0..calls {
        let mut with_data = buffer.take().expect("given back");
        with_data.write(4990, &[number as u8]);
        let request = Request { node: number, offset: 5, ranges: [with_data.range(), Range::default()], ..Request::new(3) };
        let (answer, mut buffers) = slot.submit(&request, vec![with_data]).and_then(|pending| pending.wait()).expect("answered");
        assert_eq!(answer, echo(&request));
        let mut byte = [0];
        buffers[0].read(4990, &mut byte);
        assert_eq!(byte, [(number as u8).wrapping_add(1)], "the daemon adds one");
        buffer = buffers.pop();
        if number.is_multiple_of(64) {
            std::thread::sleep(Duration::from_micros(100)); // the daemon dozes
        }
    }
}

/// A daemon with one client, which the test kills.
fn serve_for_ever() {
    let poller = Poller::new(Duration::from_micros(50)).expect("a poller");
    let arena = Arena::new(SIZES, poller.doorbell()).expect("an arena");
    send(&inherited_socket().into(), &arena);
    poller.control().add(arena, Vec::new());
    poller.run(&mut Echo::default()).expect("it serves");
}

/// Counts the requests of each client; keeps the ticket of every hundredth.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicU64>, Arc<Mutex<Vec<Ticket>>>, bool);

impl Handler for Counting {
    fn request(&mut self, client: ClientId, request: &Request, ticket: Ticket) {
        let count = self.0.fetch_add(1, Ordering::Relaxed);
        if self.2 && count.is_multiple_of(100) {
            self.1.lock().expect("no panic").push(ticket);
        } else {
            Echo::default().request(client, request, ticket);
        }
    }

    fn ended(&mut self, _: ClientId, _: End) {}
}

impl Counting {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn await_count(&self, count: u64) {
        let start = Instant::now();
        while self.count() < count {
            assert!(start.elapsed() < Duration::from_secs(60), "{} of {count} requests", self.count());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_process_is_served_by_either_doorbell() {
    for doorbell in [None, Some(Doorbell::Eventfd)] {
        let server = Server::start(doorbell, Echo::default());
        let process = Process::start("calls", 5000);
        let id = server.connect(&process.socket, SIZES, Some(process.pidfd()));
        process.succeed();
        assert_eq!(server.end_of(id), End::Gone);
        server.stop();
    }
}

#[test]
fn sixteen_clients_share_two_cpus() {
    let (counting, calls) = (Counting::default(), 2000);
    let server = Server::start(None, counting.clone());
    let all: Vec<Process> = (0..16).map(|_| Process::start("calls", calls)).collect();
    for process in &all {
        server.connect(&process.socket, SIZES, None);
    }
    all.into_iter().for_each(|process| drop(process.succeed()));
    assert_eq!(counting.count(), 16 * calls);
    server.stop();
}

/// Its last request is answered after its death.
#[test]
fn a_client_killed_in_a_request_costs_others_nothing() {
    let counting = Counting(Arc::default(), Arc::default(), true);
    let server = Server::start(None, counting.clone());
    let mut victim = Process::start("calls", u64::MAX);
    let id = server.connect(&victim.socket, SIZES, Some(victim.pidfd()));
    counting.await_count(1);
    victim.signal(Signal::KILL);
    victim.child.wait().expect("it ends");
    assert_eq!(server.end_of(id), End::Gone);
    let ticket = counting.1.lock().expect("no panic").pop().expect("kept");
    ticket.data(Range { start: 0, length: 9 }).expect("still mapped").write(0, b"too late!");
    ticket.answer(&Answer::default());
    let beside = Process::start("calls", 90);
    server.connect(&beside.socket, SIZES, None);
    beside.succeed();
    server.stop();
}

#[test]
fn a_client_killed_between_any_two_steps_leaves_the_daemon_to_others() {
    let counting = Counting::default();
    let server = Server::start(None, counting.clone());
    let beside = Process::start("calls", 10_000);
    let beside_id = server.connect(&beside.socket, SIZES, None);
    for round in 0..10 {
        let mut victim = Process::start("calls", u64::MAX);
        let id = server.connect(&victim.socket, SIZES, (round % 2 == 0).then(|| victim.pidfd()));
        let before = counting.count();
        counting.await_count(before + 300 + 37 * round);
        victim.signal(Signal::KILL);
        victim.child.wait().expect("it ends");
        drop(victim);
        let (ended, end) = server.ended.recv_timeout(Duration::from_secs(30)).expect("it ends");
        assert!(end == End::Gone && [id, beside_id].contains(&ended), "{ended:?}: {end:?}");
    }
    beside.succeed();
    server.stop();
}

#[test]
fn a_stopped_client_costs_others_nothing() {
    let counting = Counting::default();
    let server = Server::start(None, counting.clone());
    let mut stopped = Process::start("calls", u64::MAX);
    server.connect(&stopped.socket, SIZES, None);
    counting.await_count(500);
    stopped.stop();
    std::thread::sleep(Duration::from_millis(20));
    let before = counting.count();
    let beside = Process::start("calls", 3000);
    server.connect(&beside.socket, SIZES, None);
    beside.succeed();
    let counted = counting.count() - before;
    // What it had asked when it was stopped may be looked at later.
    assert!((3000..=3001).contains(&counted), "the stopped one asks nothing: {counted}");
    stopped.signal(Signal::CONT);
    counting.await_count(before + counted + 500); // it goes on
    stopped.signal(Signal::KILL);
    stopped.child.wait().expect("it ends");
    server.stop();
}

#[test]
fn a_client_that_is_removed_or_whose_daemon_stops_is_told() {
    let server = Server::start(None, Echo::default());
    let connect = || {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("sockets");
        let id = server.connect(&theirs, SIZES, None);
        (id, receive(ours.into()), theirs)
    };
    let ((first, removed, _kept), (_, left, _kept_too)) = (connect(), connect());
    let request = Request { node: 4, ..Request::new(1) };
    for client in [&removed, &left] {
        assert_eq!(client.slot().expect("a slot").call(&request), Ok(echo(&request)));
    }
    server.control.remove(first);
    assert_eq!(server.end_of(first), End::Removed);
    assert_eq!(removed.slot().expect("a slot").call(&request), Err(Ended));
    assert_eq!(left.slot().expect("a slot").call(&request), Ok(echo(&request)));
    server.stop();
    assert_eq!(left.slot().expect("a slot").call(&request), Err(Ended));
}

#[test]
fn a_daemon_that_is_killed_ends_calls() {
    let mut daemon = Process::start("serves", 0);
    let client = receive(daemon.socket.try_clone().expect("a descriptor").into());
    let mut slot = client.slot().expect("a slot");
    let request = Request { node: 4, ..Request::new(1) };
    assert_eq!(slot.call(&request), Ok(echo(&request)));
    daemon.stop();
    let pending = slot.submit(&request, Vec::new()).expect("nobody said that it ended");
    daemon.signal(Signal::KILL);
    daemon.child.wait().expect("it ends");
    let start = Instant::now();
    assert_eq!(pending.wait().map(|(answer, _)| answer), Err(Ended));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
