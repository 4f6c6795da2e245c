//! Answers of the drive's server that wait for their time ([SV2]): of several that are due together the first leave so much earlier that the
//! last leaves in time.
//!
//! [SV2]: super::server

use tandemfs_wire::ParkedReply;

/// An answer that the drive would not have yet.
pub struct Waiting {
    /// When, in the server's nanoseconds, if nothing else leaves then.
    pub release_ns: u64,
    /// Who waits for it.
    pub reply: ParkedReply,
    /// What is said.
    pub what: What,
}

/// What is said to the kernel.
pub enum What {
    /// So many bytes of a buffer.
    Read(Vec<u8>, usize),
    /// So many bytes were written.
    Written(u32),
    /// Nothing more than that it is done.
    Flushed,
}

/// What the drive is at.
#[derive(Default)]
pub struct Queue {
    /// The latest first, so that the next is the last.
    answers: Vec<Waiting>,
    /// Of answers that left, for the next.
    pub buffers: Vec<Vec<u8>>,
    /// When the last answer left.
    pub last_ns: u64,
    /// Since when there was always something to do; 0 where there is nothing.
    pub busy_since_ns: u64,
    cost: SendCost,
}

/// What sending an answer takes: running means.
#[derive(Debug, Default)]
struct SendCost {
    answer_ns: f64,
    byte_ns: f64,
}

impl SendCost {
    const SMALL_BYTES: usize = 8 << 10;
    const SHARE: f64 = 0.05;

    fn learn(&mut self, bytes: usize, took_ns: u64) {
        let took = took_ns as f64;
        if bytes <= Self::SMALL_BYTES {
            self.answer_ns += (took - self.answer_ns) * Self::SHARE;
        } else {
            self.byte_ns += ((took - self.answer_ns).max(0.0) / bytes as f64 - self.byte_ns) * Self::SHARE;
        }
    }

    fn of(&self, bytes: usize) -> u64 {
        (self.answer_ns + self.byte_ns * bytes as f64) as u64
    }
}

impl What {
    /// Bytes that go with it.
    fn bytes(&self) -> usize {
        match self {
            Self::Read(_, length) => *length,
            Self::Written(_) | Self::Flushed => 0,
        }
    }
}

impl Queue {
    /// Keeps an answer until it is time.
    pub fn add(&mut self, answer: Waiting) {
        let place = self.answers.partition_point(|other| other.release_ns > answer.release_ns);
        self.answers.insert(place, answer);
    }

    /// When the next answer has to leave so that none is late.
    fn next_leaves_ns(&self) -> Option<u64> {
        self.answers.iter().fold(None, |behind: Option<u64>, answer| {
            let in_time = behind.map_or(u64::MAX, |behind| behind.saturating_sub(self.cost.of(answer.what.bytes())));
            Some(answer.release_ns.min(in_time))
        })
    }

    /// Sends those whose time has come.
    pub fn send_due(&mut self, now_ns: impl Fn() -> u64) {
        while let Some(leaves_ns) = self.next_leaves_ns() {
            let begun = now_ns();
            if leaves_ns > begun {
                return;
            }
            let Some(next) = self.answers.pop() else { return };
            let bytes = next.what.bytes();
            next.reply.finish(|reply| match &next.what {
                What::Read(buffer, length) => reply.bytes(&buffer[..*length]),
                What::Written(length) => reply.written(*length),
                What::Flushed => reply.ok(),
            });
            if let What::Read(buffer, _) = next.what {
                self.buffers.push(buffer);
            }
            self.last_ns = now_ns();
            self.cost.learn(bytes, self.last_ns - begun);
        }
    }

    /// Answers that have not left.
    pub fn count(&self) -> usize {
        self.answers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_answers_take_is_learnt_by_their_size() {
        let mut cost = SendCost::default();
        for _ in 0..1_000 {
            cost.learn(0, 2_000);
            cost.learn(64 << 10, 2_000 + (64 << 10) / 4);
        }
        assert!((1_990..=2_010).contains(&cost.of(0)), "{cost:?}");
        assert!((18_000..=18_800).contains(&cost.of(64 << 10)), "{cost:?}");
    }
}
