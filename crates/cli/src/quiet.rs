//! What libraries report as an error and is none.
//!
//! The kernel refuses a reply with ENOENT where nobody waits for it any more. So it does when a caller is killed just as its request is
//! answered: the reply to the INTERRUPT that the kernel sent meanwhile comes too late. The FUSE library reports it as an error. Replies that
//! fail for any other reason stay what they are.

use std::fmt;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// Where the library reports it, and how.
const TARGET: &str = "fuser::reply";
const MESSAGE: &str = "Failed to send FUSE reply: ";

/// A layer that keeps such events from all layers of its subscriber.
pub struct Quiet;

impl<S: Subscriber> Layer<S> for Quiet {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        let mut record = Record::default();
        // Records of the crate `log` have their target in a field.
        if event.metadata().target() == "log" {
            event.record(&mut record);
        }
        !record.is_of_a_caller_that_is_gone()
    }
}

#[derive(Default)]
struct Record {
    target: String,
    message: String,
}

impl Record {
    fn is_of_a_caller_that_is_gone(&self) -> bool {
        let gone = format!("(os error {})", rustix::io::Errno::NOENT.raw_os_error());
        self.target == TARGET && self.message.strip_prefix(MESSAGE).is_some_and(|reason| reason.ends_with(&gone))
    }
}

impl Visit for Record {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "log.target" {
            self.target = value.to_owned();
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex, PoisonError};

    use tracing_subscriber::layer::SubscriberExt;
    use tracing_subscriber::util::SubscriberInitExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reply_to_nobody_is_no_error_and_every_other_is() {
        let lines = Lines::default();
        let writer = lines.clone();
        let layer = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false);
        // The records of `log` come as they do in a daemon: through the one bridge of the process.
        tracing_subscriber::registry().with(Quiet).with(layer).init();
        let failed = |number: i32| format!("Failed to send FUSE reply: {}", io::Error::from_raw_os_error(number));
        log::error!(target: "fuser::reply", "{}", failed(2));
        log::error!(target: "fuser::reply", "{} of EINVAL", failed(22));
        log::error!(target: "fuser::session", "{} elsewhere", failed(2));
        log::warn!(target: "fuser::reply", "another sentence (os error 2)");
        tracing::error!("one of ours (os error 2)");
        let said = String::from_utf8(lines.0.lock().unwrap_or_else(PoisonError::into_inner).clone()).expect("text");
        assert_eq!(said.lines().count(), 4, "{said}");
        assert!(!said.lines().any(|line| line.ends_with(&failed(2))), "{said}");
    }
}
