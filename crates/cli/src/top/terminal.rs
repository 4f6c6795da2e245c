//! The terminal of `tandemfs top`, and who has something to say meanwhile: keys, signals, the daemon. Each of them has a thread, so that `q`
//! ends it also while the daemon does not answer.
//!
//! However it ends (a key, a signal, an error, a panic), the terminal is as before.

use std::io;
use std::panic;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, sleep};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyEvent, KeyEventKind};
use ratatui::crossterm::execute;
use serde_json::Value;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use tandemfs_fuse::control::{self, Request};
use tandemfs_fuse::mounts::Mounted;

use super::sample::{Named, Sample};
use super::screen::{Screen, Wish};
use crate::failure::{Failure, no_answer};

/// Exit status after a panic.
const PANICKED: i32 = 101;

/// What somebody says.
enum News {
    Key(KeyEvent),
    /// The terminal has another size.
    Resized,
    /// There is no terminal any more.
    NoTerminal(io::Error),
    Signal(i32),
    Answer(io::Result<Value>),
}

/// Shows it until somebody ends it.
pub fn run(mount: &Mounted, named: Named, first: Sample, interval: Duration, client: Option<i64>) -> Result<u8, Failure> {
    let failed = |error: io::Error| Failure::at("the terminal", error);
    let mut screen = Screen::new(named, first, client);
    let (news, heard) = channel();
    // Before the terminal changes: none may end the process between.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP, SIGQUIT]).map_err(|error| Failure::at("signals", error))?;
    let mut terminal = Raw::enter().map_err(failed)?;
    listen(signals, &news).map_err(failed)?;
    read_keys(&news).map_err(failed)?;
    ask_again(mount.clone(), interval, news).map_err(failed)?;
    loop {
        terminal.0.draw(|frame| screen.draw(frame)).map_err(failed)?;
        match heard.recv() {
            Ok(News::Key(key)) if screen.key(key) == Wish::Quit => return Ok(0),
            Ok(News::Key(_) | News::Resized) => {}
            Ok(News::Answer(Ok(stats))) => screen.take(Sample::new(stats)),
            Ok(News::Answer(Err(error))) => return Err(no_answer(mount, &error)),
            Ok(News::NoTerminal(error)) => return Err(failed(error)),
            Ok(News::Signal(signal)) => {
                drop(terminal);
                emulate_default_handler(signal).map_err(failed)?;
                return Ok(0);
            }
            // Its threads have panicked, and that was said.
            Err(_) => return Err(Failure::Failed("top has ended".into())),
        }
    }
}

fn listen(mut signals: Signals, news: &Sender<News>) -> io::Result<()> {
    let news = news.clone();
    let listen = move || {
        for signal in signals.forever() {
            let _ended = news.send(News::Signal(signal));
        }
    };
    thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
}

fn read_keys(news: &Sender<News>) -> io::Result<()> {
    let news = news.clone();
    let read = move || {
        loop {
            let said = match event::read() {
                Ok(Event::Key(key)) if key.kind != KeyEventKind::Release => News::Key(key),
                Ok(Event::Resize(..)) => News::Resized,
                Ok(_) => continue,
                Err(error) => News::NoTerminal(error),
            };
            let is_end = matches!(said, News::NoTerminal(_));
            if news.send(said).is_err() || is_end {
                break;
            }
        }
    };
    thread::Builder::new().name("keys".into()).spawn(read).map(drop)
}

fn ask_again(mount: Mounted, interval: Duration, news: Sender<News>) -> io::Result<()> {
    let ask = move || {
        loop {
            sleep(interval);
            if news.send(News::Answer(control::ask(&mount, Request::Stats { reset: false }))).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("daemon".into()).spawn(ask).map(drop)
}

/// The terminal without echo and lines, on its other screen; as before when dropped, also by a panic.
struct Raw(DefaultTerminal);

impl Raw {
    fn enter() -> io::Result<Self> {
        let terminal = ratatui::try_init().inspect_err(|_| put_back())?;
        // A panic of any thread puts the terminal back before it says what it is.
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            put_back();
            before(info);
            if thread::current().name() != Some("main") {
                std::process::exit(PANICKED); // the screen would go on without it
            }
        }));
        Ok(Self(terminal))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        put_back();
    }
}

fn put_back() {
    // Where there is no terminal any more, nothing has to be put back.
    let _ = execute!(io::stdout(), Show);
    let _ = ratatui::try_restore();
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::fs::File;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::OpenOptionsExt;
    use std::process::{Command, Stdio};

    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};

    use super::*;

    const PANICS: &str = "TANDEMFS_TEST_TOP_PANICS";

    /// Run by the other test, on a terminal of its own.
    #[test]
    fn panics_on_a_terminal() {
        if env::var_os(PANICS).is_some() {
            let _raw = Raw::enter().expect("a terminal");
            let modes = tcgetattr(io::stdin()).expect("a terminal").local_modes;
            assert!(!modes.contains(LocalModes::ECHO), "it is raw");
            panic!("as meant");
        }
    }

    #[test]
    fn a_panic_puts_the_terminal_back() {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("unlocked");
        let path = ptsname(&master, Vec::new()).expect("a name").into_string().expect("UTF-8");
        // Not the terminal of this process, which may lead a session.
        let mut options = File::options();
        options.read(true).write(true).custom_flags(libc::O_NOCTTY);
        let side = || Stdio::from(OwnedFd::from(options.open(&path).expect("opened")));
        let mut master = File::from(master);
        let before = tcgetattr(&master).expect("a terminal").local_modes;
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.args(["--exact", "top::terminal::tests::panics_on_a_terminal", "--nocapture"]).env(PANICS, "1");
        let mut child = command.stdin(side()).stdout(side()).stderr(side()).spawn().expect("started");
        drop(command); // it has the other side open
        let (mut shown, mut bytes) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = master.read(&mut bytes) {
            shown.extend_from_slice(&bytes[..count]);
        }
        let (shown, status) = (String::from_utf8_lossy(&shown), child.wait().expect("ended"));
        assert_eq!(status.code(), Some(PANICKED), "{shown:?}");
        let at = |what: &str| shown.rfind(what).unwrap_or_else(|| panic!("{what:?} was not sent: {shown:?}"));
        assert!(at("as meant") > at("\x1b[?1049l") && at("\x1b[?1049l") > at("\x1b[?1049h"), "{shown:?}");
        assert!(at("\x1b[?25h") > 0);
        assert_eq!(tcgetattr(&master).expect("a terminal").local_modes, before);
    }
}
