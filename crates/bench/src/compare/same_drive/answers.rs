//! Replies of the drive's server that are delayed until their release time ([SV2]). If several are due together, the first ones are sent
//! early enough that the last one is on time.
//!
//! [SV2]: super::server

use tandemfs_wire::ParkedReply;

/// A reply that the modelled drive has not completed yet.
pub struct Waiting {
    /// Release time in the server's nanoseconds, if no other reply is due then.
    pub release_ns: u64,
    /// The parked FUSE request.
    pub reply: ParkedReply,
    /// Content of the reply.
    pub what: What,
}

/// Content of a reply to the kernel.
pub enum What {
    /// A buffer and the number of its bytes to send.
    Read(Vec<u8>, usize),
    /// This many bytes were written.
    Written(u32),
    /// Success without data.
    Flushed,
}

/// State of the server's queue.
#[derive(Default)]
pub struct Queue {
    /// Sorted by descending release time, so the next reply is the last element.
    answers: Vec<Waiting>,
    /// Buffers of sent replies, for reuse.
    pub buffers: Vec<Vec<u8>>,
    /// When the last reply was sent.
    pub last_ns: u64,
    /// Since when the server has been busy without a break; 0 if idle.
    pub busy_since_ns: u64,
    cost: SendCost,
}

/// Cost of sending a reply: running means.
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
    /// Payload bytes of the reply.
    fn bytes(&self) -> usize {
        match self {
            Self::Read(_, length) => *length,
            Self::Written(_) | Self::Flushed => 0,
        }
    }
}

impl Queue {
    /// Queues a reply until its release time.
    pub fn add(&mut self, answer: Waiting) {
        let place = self.answers.partition_point(|other| other.release_ns > answer.release_ns);
        self.answers.insert(place, answer);
    }

    /// When the next reply must be sent so that no later one is late.
    fn next_leaves_ns(&self) -> Option<u64> {
        self.answers.iter().fold(None, |behind: Option<u64>, answer| {
            let in_time = behind.map_or(u64::MAX, |behind| behind.saturating_sub(self.cost.of(answer.what.bytes())));
            Some(answer.release_ns.min(in_time))
        })
    }

    /// Sends all replies that are due.
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

    /// Number of queued replies.
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
