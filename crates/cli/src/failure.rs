//! How a command ends if it fails: one sentence on standard error, and an exit status that its caller understands.

use std::fmt::Display;
use std::io;

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

/// Prints one line to standard error; ignores the error if standard error is closed.
fn eprint_line(message: &str) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "tandemfs: {message}");
}
