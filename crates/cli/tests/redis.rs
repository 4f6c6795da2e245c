//! Redis with `appendfsync always` under `tandemfs run`, killed, with its daemon, and its daemon alone: every key that it acknowledged is there
//! when it runs again. Where there is no redis-server, nothing runs (`scripts/setup.sh redis` installs it).

mod support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use support::{Mount, Place, start, under_run};

/// How many writers there are, and acknowledged keys before the kill.
const WRITERS: u64 = 3;
const BEFORE: u64 = 300;
/// How long Redis may take to read what it has, on a machine with other work.
const STARTED_WITHIN: Duration = Duration::from_secs(60);

fn is_there() -> bool {
    let version = start(Command::new("redis-server").arg("--version").stdout(Stdio::null())).and_then(|mut server| server.wait());
    let is_there = version.is_ok_and(|status| status.success());
    if !is_there {
        println!("not run: there is no redis-server; scripts/setup.sh redis installs it");
    }
    is_there
}

fn value(writer: u64, number: u64) -> String {
    format!("value-{writer}-{number}-{}", "x".repeat((number % 200) as usize))
}

/// A server under `tandemfs run`, whose files are in the mount and whose socket is beside it.
struct Redis {
    server: Child,
    socket: String,
}

impl Redis {
    fn start(place: &Place, mount: &Mount) -> Self {
        let (socket, log) = (place.path("redis.socket"), place.path("redis.log"));
        let directory = mount.path("redis");
        let directory = directory.to_str().expect("UTF-8");
        // run becomes the program, so this is its process.
        let mut command = under_run(mount.root().to_str().expect("UTF-8"), &[]);
        command.args(["redis-server", "--port", "0", "--unixsocket", &socket, "--dir", directory, "--appendonly", "yes"]);
        command.args(["--appendfsync", "always", "--daemonize", "no", "--save", "", "--logfile", &log]);
        let server = start(command.stdin(Stdio::null()).stdout(Stdio::null())).expect("started");
        let mut redis = Self { server, socket };
        let start = Instant::now();
        while redis.connect().is_none_or(|mut connection| connection.ask("PING") != Some("+PONG".into())) {
            let ended = redis.server.try_wait().expect("waited");
            let said = || std::fs::read_to_string(place.path("redis.log")).unwrap_or_default();
            assert!(ended.is_none() && start.elapsed() < STARTED_WITHIN, "redis does not answer: {ended:?}\n{}", said());
            std::thread::sleep(Duration::from_millis(5));
        }
        redis
    }

    fn connect(&self) -> Option<Connection> {
        let stream = UnixStream::connect(&self.socket).ok()?;
        Some(Connection { lines: BufReader::new(stream.try_clone().ok()?), stream })
    }

    fn process_id(&self) -> u64 {
        self.server.id().into()
    }

    fn kill(mut self) {
        self.server.kill().expect("killed");
        self.server.wait().expect("ended");
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ended_already = self.server.kill();
        let _reaped_already = self.server.wait();
    }
}

struct Connection {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Connection {
    /// The first line of the answer; none when the server is gone.
    fn ask(&mut self, command: &str) -> Option<String> {
        self.stream.write_all(format!("{command}\r\n").as_bytes()).ok()?;
        self.line()
    }

    fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        self.lines.read_line(&mut line).ok()?;
        Some(line.strip_suffix("\r\n")?.to_owned())
    }

    fn get(&mut self, key: &str) -> Option<String> {
        match self.ask(&format!("GET {key}"))?.as_str() {
            "$-1" => None,
            length if length.starts_with('$') => self.line(),
            other => panic!("{key}: {other}"),
        }
    }
}

/// Sets keys one by one until the server is gone, and counts those that it acknowledged.
fn writers(redis: &Redis, acknowledged: &Arc<[AtomicU64; WRITERS as usize]>, first: [u64; WRITERS as usize]) -> Vec<JoinHandle<()>> {
    let writer = |writer: u64| {
        let (mut connection, acknowledged) = (redis.connect().expect("connected"), Arc::clone(acknowledged));
        std::thread::spawn(move || {
            for number in first[writer as usize].. {
                match connection.ask(&format!("SET {writer}:{number} {}", value(writer, number))).as_deref() {
                    Some("+OK") => acknowledged[writer as usize].store(number + 1, SeqCst),
                    // A write that the daemon's end made fail; then it ends.
                    _ => break,
                }
            }
        })
    };
    (0..WRITERS).map(writer).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Killed {
    Server,
    Daemon,
    Both,
}

#[test]
fn what_redis_acknowledged_survives_kills() {
    if !is_there() {
        return;
    }
    let place = Place::formatted();
    let mut mount = place.mount("strict,direct");
    std::fs::create_dir(mount.path("redis")).expect("made");
    let acknowledged: Arc<[AtomicU64; WRITERS as usize]> = Arc::default();
    for killed in [Killed::Server, Killed::Daemon, Killed::Both, Killed::Server] {
        let redis = Redis::start(&place, &mount);
        let clients = mount.stats()["direct"]["clients"].as_array().expect("a door").clone();
        assert!(clients.iter().any(|client| client["process_id"] == redis.process_id()), "redis is at the door: {clients:?}");
        let before: Vec<u64> = acknowledged.iter().map(|count| count.load(SeqCst)).collect();
        let working = writers(&redis, &acknowledged, std::array::from_fn(|writer| before[writer]));
        let start = Instant::now();
        while acknowledged.iter().zip(&before).any(|(now, before)| now.load(SeqCst) < before + BEFORE / WRITERS) {
            assert!(start.elapsed() < STARTED_WITHIN, "{killed:?}: {acknowledged:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
        match killed {
            Killed::Server => redis.kill(),
            Killed::Daemon => {
                mount.kill();
                redis.kill();
                mount = place.mount("strict,direct");
            }
            Killed::Both => {
                let daemon = std::thread::spawn(move || mount.kill());
                redis.kill();
                daemon.join().expect("killed");
                mount = place.mount("strict,direct");
            }
        }
        working.into_iter().for_each(|writer| writer.join().expect("ended"));

        let redis = Redis::start(&place, &mount);
        let mut connection = redis.connect().expect("connected");
        for (writer, count) in (0..WRITERS).zip(acknowledged.iter()) {
            for number in 0..count.load(SeqCst) {
                let found = connection.get(&format!("{writer}:{number}"));
                assert_eq!(found.as_deref(), Some(&*value(writer, number)), "{killed:?}: {writer}:{number}");
            }
        }
        redis.kill();
    }
    mount.unmount();
    place.check();
}
