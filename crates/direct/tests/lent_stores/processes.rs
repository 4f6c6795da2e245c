//! Clients of other processes that are killed or stopped inside of a lease, lie, keep their mapping, or hand their description on.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tandemfs_crash::{Awake, Random};
use tandemfs_device::{Mapping, StoreZone};
use tandemfs_direct::mutant::{self, Mutant};
use tandemfs_protocol::Hello;
use tandemfs_ring::Leases;

use crate::greeting::greeted;
use crate::memory::{alone, somebody};
use crate::raw::Raw;
use crate::support::socket_to;
use crate::{PAGE, Scene, leased, opened, scene, storing};

/// A client of another process: it gets a lease, enters it, and does what it is told by lines.
#[test]
#[ignore = "started by a test"]
fn child() {
    let path = std::path::PathBuf::from(std::env::var_os("TANDEMFS_TEST_SOCKET").expect("where"));
    let say = |text: &str| {
        println!("\nchild: {text}");
        std::io::stdout().flush().expect("said");
    };
    let mut raw = Some(Raw::connect(&path));
    // Of an empty file there is none.
    let (mut token, at) = raw.as_mut().expect("connected").lease().unwrap_or((tandemfs_ring::LeaseToken { index: 0, epoch: 0 }, 0));
    let mut tail = None;
    let mut inside = None;
    let mut keeps: (Option<StoreZone>, Option<Mapping>) = (None, None);
    let mut last = None;
    say("ready");
    for line in std::io::stdin().lines() {
        match line.expect("a line").as_str() {
            "enter" => {
                let leases: &'static Leases =
                    Box::leak(Box::new(Leases::map(raw.as_ref().expect("connected").words.as_fd()).expect("mapped")));
                inside = leases.enter(token);
                say(if inside.is_some() { "inside" } else { "outside" });
            }
            "store" => {
                let map = raw.as_ref().map(|raw| &raw.map).or(keeps.1.as_ref()).expect("mapped");
                map.store(at, &[7; PAGE]).expect("stored");
                say("stored");
            }
            "tail" => {
                let lent = raw.as_mut().expect("connected").tail();
                say(&lent.map_or("tail none".to_owned(), |(_, tail)| format!("tail {}", tail.size())));
                if let Some(lent) = lent {
                    (token, tail) = (lent.0, Some(lent.1));
                }
            }
            step @ ("append bytes" | "append word") => {
                let (map, tail) = (&raw.as_ref().expect("connected").map, tail.expect("lent"));
                match step {
                    "append bytes" => map.store(tail.last.zone_offset + tail.last.bytes, &[2; 50]).expect("stored"),
                    _ => map.store(tail.word_offset, &(tail.word + 50).to_le_bytes()).expect("stored"),
                }
                say("stored");
            }
            "appended" => {
                say(&raw.as_mut().expect("connected").appended(token).map_or("not".to_owned(), |size| format!("appended {size}")))
            }
            "leave" => say(&format!("left {}", inside.take().expect("inside").leave())),
            "lie" => {
                let words = raw.as_ref().expect("connected").words.try_clone().expect("cloned");
                last = Some(std::thread::spawn(move || {
                    let mut random = Random::new(5);
                    loop {
                        let word = 4096 + 64 * random.below(tandemfs_ring::LEASE_WORDS.into());
                        words.write_all_at(&random.next().to_le_bytes(), word).expect("written");
                    }
                }));
                say("lies");
            }
            "disconnect" => {
                let gone = raw.take().expect("connected");
                let zone = StoreZone::received(
                    gone.zone.descriptor().try_clone_to_owned().expect("cloned"),
                    gone.zone.start(),
                    gone.zone.length(),
                );
                keeps = (Some(zone), Some(gone.map));
                say("gone");
            }
            "hand on" => {
                let zone = raw.as_ref().expect("connected").zone.descriptor().try_clone_to_owned().expect("cloned");
                let child = Command::new("sleep").arg("600").stdin(Stdio::from(zone)).stdout(Stdio::null()).spawn();
                say(&format!("handed {}", child.expect("started").id()));
            }
            "reconnect" => {
                drop(raw.take());
                let socket = socket_to(&path);
                let (welcome, _descriptors) = greeted(socket.as_fd(), Hello::new(1, 1 << 20).wanting_stores(true));
                say(&format!("stores {}", welcome.stores.is_some()));
            }
            "lease" => say(&format!("lease {}", raw.as_mut().expect("connected").lease().is_some())),
            other => panic!("{other}"),
        }
    }
    drop((keeps, last));
}

pub(crate) struct Told {
    child: Child,
    tell: ChildStdin,
    said: BufReader<ChildStdout>,
}

impl Told {
    pub(crate) fn start(scene: &Scene) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "processes::child", "--nocapture"])
            .env("TANDEMFS_TEST_SOCKET", scene.server.socket())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let (tell, said) = (child.stdin.take().expect("piped"), BufReader::new(child.stdout.take().expect("piped")));
        let mut told = Self { child, tell, said };
        assert_eq!(told.hear(), "ready");
        told
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        while self.said.read_line(&mut line).expect("a line") > 0 {
            if let Some(text) = line.trim_end().strip_prefix("child: ") {
                return text.to_owned();
            }
            line.clear();
        }
        panic!("it ended");
    }

    fn say(&mut self, line: &str) {
        writeln!(self.tell, "{line}").expect("told");
    }

    pub(crate) fn tell(&mut self, line: &str) -> String {
        self.say(line);
        self.hear()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.child.id() as i32).expect("a process"), signal).expect("sent");
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub(crate) fn kill(mut self) {
        self.child.kill().expect("it lived");
        self.child.wait().expect("it ends");
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

/// What comes of an act, how long it took by the clock, and how long this process ran meanwhile: for lower and upper bounds.
pub(crate) fn timed<T>(act: impl FnOnce() -> T) -> (T, Duration, Duration) {
    let (begun, awake) = (Instant::now(), Awake::now());
    (act(), begun.elapsed(), awake.elapsed())
}

/// It dies in the middle of a store: nobody waits.
#[test]
fn a_client_that_is_killed_inside_of_a_lease_delays_nobody() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!((told.tell("enter"), told.tell("store")), ("inside".into(), "stored".into()));
    told.kill();
    let (found, _, took) = timed(|| scene.read(&other, 0, 2 * PAGE));
    assert!(found[..PAGE] == [7; PAGE] && found[PAGE..] == [1; PAGE], "what it had stored is the file's");
    assert!(took < Duration::from_millis(900), "{took:?}");
    assert!(scene.comes(|scene| scene.lent() == (0, 0) && !scene.vfs.file_system().drive().is_zone_held()));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// [LNS5]: it is stopped inside, and goes on when its bytes were taken away. Others wait once.
#[test]
fn a_client_that_is_stopped_inside_of_a_lease_delays_others_once() {
    let _alone = alone();
    fn may_again() -> bool {
        let scene = scene();
        let other = scene.made("f", 100_000);
        let mut told = Told::start(&scene);
        assert_eq!((told.tell("enter"), told.tell("store")), ("inside".into(), "stored".into()));
        told.signal(Signal::STOP);
        let (found, took, awake) = timed(|| scene.read(&other, 0, 2 * PAGE));
        assert!(found[..PAGE] == [7; PAGE] && found[PAGE..] == [1; PAGE], "what it had stored is in the copy");
        assert!(took >= Duration::from_millis(900) && awake < Duration::from_secs(5), "{took:?}");
        let counts = scene.counts();
        assert_eq!((counts.held, counts.ended, counts.taken_away, counts.is_late), (0, 1, 1, true));
        assert!(scene.lent().1 >= 100_000, "its pages are kept back: {:?}", scene.lent());
        scene.write(&other, 0, &[3; 2 * PAGE]);
        // Others would get its pages.
        let filler = scene.open("filler");
        (0..40).for_each(|at| drop(scene.vfs.write_at(&somebody(), &filler, at << 20, &[2; 1 << 20], 0)));
        told.signal(Signal::CONT);
        assert_eq!((told.tell("store"), told.tell("leave")), ("stored".into(), "left false".into()));
        assert_eq!(told.tell("lease"), "lease false", "it gets none any more");
        assert!(scene.read(&other, 0, 2 * PAGE) == [3; 2 * PAGE], "a late store is no part of the file");
        for at in 0..40 {
            let found = scene.read(&filler, at << 20, 1 << 20);
            assert!(found.iter().all(|byte| *byte == 2), "nor of another one");
        }
        let may = told.tell("reconnect") == "stores true";
        told.kill();
        scene.vfs.file_system().space();
        assert!(scene.comes(|scene| {
            scene.vfs.file_system().space();
            scene.lent() == (0, 0)
        }));
        scene.vfs.file_system().unmount().expect("unmounts");
        may
    }
    assert!(!may_again());
    mutant::select(Mutant::LateForgotten);
    let found = may_again();
    mutant::select(Mutant::None);
    assert!(found, "LateForgotten escaped");
}

/// Its connection ends, and it keeps its mapping, inside of the lease: the pages are kept back as long as it lives.
#[test]
fn a_client_that_keeps_its_mapping_keeps_its_pages_alone() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!((told.tell("enter"), told.tell("disconnect")), ("inside".into(), "gone".into()));
    assert!(scene.comes(|scene| scene.lent().0 == 0 && scene.lent().1 >= 100_000), "{:?}", scene.lent());
    assert_eq!(told.tell("store"), "stored");
    assert!(scene.read(&other, 0, PAGE) == [1; PAGE]);
    assert!(scene.vfs.file_system().unmount().is_err(), "somebody can store to what the next mount gives out");
    told.kill();
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        scene.lent() == (0, 0)
    }));
    scene.vfs.file_system().unmount().expect("unmounts");
}

/// A process that a client has started, and which outlives it.
struct Heir(Pid);

impl Drop for Heir {
    fn drop(&mut self) {
        let _gone = kill_process(self.0, Signal::KILL);
    }
}

/// It dies inside, and another process has its description.
#[test]
fn a_description_that_was_handed_on_counts() {
    let _alone = alone();
    let scene = scene();
    let other = scene.made("f", 100_000);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("enter"), "inside");
    let said = told.tell("hand on");
    let heir = Heir(said.strip_prefix("handed ").and_then(|id| Pid::from_raw(id.parse().ok()?)).expect("a process"));
    told.kill();
    assert!(scene.read(&other, 0, PAGE) == [1; PAGE]);
    assert!(scene.lent().1 >= 100_000, "{:?}", scene.lent());
    drop(heir);
    assert!(scene.comes(|scene| {
        scene.vfs.file_system().space();
        scene.lent() == (0, 0)
    }));
}

/// [LNS2]: its words change at any moment. Others wait once; its own file has bytes of its own.
#[test]
fn a_client_that_lies_harms_itself_alone() {
    let _alone = alone();
    let scene = scene();
    let (other, quiet) = (scene.made("f", 100_000), scene.made("g", 100_000));
    let mount = scene.connect(&storing());
    let file = opened(&mount, "g");
    leased(&scene, &file, 0);
    let mut told = Told::start(&scene);
    assert_eq!(told.tell("lie"), "lies");
    let (_, _, all) = timed(|| {
        for round in 0..200_u64 {
            let bytes = round.to_le_bytes().repeat(PAGE / 8);
            scene.write(&other, 0, &bytes);
            assert!(scene.read(&other, 0, PAGE) == bytes);
            assert_eq!(scene.requests_of(|| file.write_all_at(&bytes, 0).expect("written")), 0, "leases of others go on");
            if round % 10 == 0 {
                told.tell("lease");
            }
        }
    });
    assert!(all < Duration::from_secs(5), "{all:?}");
    told.kill();
    assert!(scene.read(&quiet, 0, PAGE) == 199_u64.to_le_bytes().repeat(PAGE / 8));
    assert!(scene.comes(|scene| scene.server.clients().0 == 1));
}
