//! How a command ends if it fails: one sentence on standard error, and an exit status that its caller understands.

use std::fmt::Display;
use std::io;

use tandemfs_fuse::control;
use tandemfs_fuse::mounts::Mounted;

use crate::helpers::Caller;

/// Why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// An invalid command line: what is wrong with it.
    Usage(String),
    /// clap's message about the command line, including help and version.
    Arguments(clap::Error),
    /// The command failed: what happened and what to do.
    Failed(String),
    /// As `Failed`, with its own exit status.
    Status(u8, String),
    /// The reader of the output has closed the pipe (`tandemfs … | head`).
    OutputClosed,
}

impl Failure {
    /// A failure with the sentence of an error.
    pub fn because(error: impl Display) -> Self {
        Self::Failed(error.to_string())
    }

    /// A failure about a named thing.
    pub fn at(place: impl Display, error: impl Display) -> Self {
        Self::Failed(format!("{place}: {error}"))
    }

    /// Prints what happened and returns the exit status.
    pub fn report(self, caller: Caller) -> u8 {
        match self {
            Self::Usage(message) => {
                eprint_line(&message);
                caller.usage_status()
            }
            Self::Arguments(error) if !error.use_stderr() => {
                // --help and --version.
                let _ = error.print();
                0
            }
            Self::Arguments(error) => {
                let text = error.render().to_string();
                eprint_line(text.strip_prefix("error: ").unwrap_or(&text).trim_end());
                caller.usage_status()
            }
            Self::Failed(message) => {
                eprint_line(&message);
                caller.failed_status()
            }
            Self::Status(status, message) => {
                eprint_line(&message);
                status
            }
            Self::OutputClosed => 0,
        }
    }
}

impl From<io::Error> for Failure {
    /// For errors of standard output; others name the thing they are about.
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::OutputClosed,
            _ => Self::at("standard output", error),
        }
    }
}

/// The failure of asking the daemon of a mount.
pub fn no_answer(mount: &Mounted, error: &io::Error) -> Failure {
    use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied, TimedOut, WouldBlock};
    let place = mount.mountpoint.display();
    let user = rustix::process::geteuid();
    Failure::Failed(match error.kind() {
        NotFound | PermissionDenied if !user.is_root() && user.as_raw() != mount.user => {
            format!("{place}: another user mounted it; its daemon answers that user and root")
        }
        ConnectionRefused => format!("{place}: its daemon died; unmount it and mount it again"),
        NotFound => format!("{place}: its daemon has no control socket: it is ending, died, or could not create one (see its log)"),
        WouldBlock | TimedOut => {
            format!("{place}: its daemon does not answer; if that lasts, 'tandemfs umount --force' disconnects it")
        }
        _ if control::is_unknown_request(error) => {
            format!("{place}: its daemon is of an older build, which does not know this command; unmount, and mount again with this build")
        }
        _ => format!("{place}: {error}"),
    })
}

/// Errors of system calls without their numbers, which say nothing to people that their words do not say.
fn without_numbers(message: &str) -> String {
    let mut parts = message.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest))
}

/// Prints a warning.
pub fn warn(message: &str) {
    eprint_line(&format!("warning: {message}"));
}

/// Prints one line to standard error; ignores the error if standard error is closed.
fn eprint_line(message: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "tandemfs: {}", without_numbers(message));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_errors_are_left_out() {
        for (message, said) in [
            ("a: not found (os error 2)", "a: not found"),
            ("a: x (os error 2); b: y (os error 13), or else", "a: x; b: y, or else"),
            ("nothing of the kind", "nothing of the kind"),
        ] {
            assert_eq!(without_numbers(message), said);
        }
    }
}
