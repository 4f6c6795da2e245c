//! Who runs next. A seed decides everything, so a failure is repeated by its seed alone.
//!
//! Three ways, drawn by the seed: at random, with threads that go on for a while or hardly at all; the same, but only where the device is
//! reached, since what is half on the device is what a cut shows; and by priorities that change at few points (probabilistic concurrency
//! testing), which finds what needs few but particular preemptions. Points are counted only where there
//! is a choice, so that mounting and comparing, which one thread does, use none of them up.

use std::collections::HashMap;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use tandemfs_crash::Random;

/// How threads are chosen.
#[derive(Debug)]
enum Style {
    /// Another thread than the running one, once in so many choices.
    Switching { one_in: u64 },
    /// The same, at steps of the device alone.
    AtDevice { one_in: u64 },
    /// The thread of the highest priority; at these choices the running thread becomes the lowest.
    Priorities { change_at: Vec<u64> },
}

/// A scheduler of one execution.
#[derive(Debug)]
pub(crate) struct Seeded {
    random: Random,
    style: Style,
    begun: bool,
    choices: u64,
    priorities: HashMap<usize, u64>,
    lowest: u64,
}

impl Seeded {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let one_in = *random.pick(&[1, 2, 4, 10, 40]);
        let style = match random.below(3) {
            0 => Style::Switching { one_in },
            1 => Style::AtDevice { one_in },
            _ => {
                let horizon = 1 << (4 + random.below(9));
                let count = 1 + random.below(4);
                Style::Priorities { change_at: (0..count).map(|_| random.below(horizon)).collect() }
            }
        };
        Self { random, style, begun: false, choices: 0, priorities: HashMap::new(), lowest: 1 << 32 }
    }

    fn priority(&mut self, task: usize) -> u64 {
        let random = &mut self.random;
        *self.priorities.entry(task).or_insert_with(|| random.below(1 << 32))
    }
}

impl Scheduler for Seeded {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!std::mem::replace(&mut self.begun, true)).then(|| Schedule::new(0))
    }

    /// Only the device yields.
    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, at_device: bool) -> Option<TaskId> {
        if let [only] = runnable {
            return Some(only.id());
        }
        self.choices += 1;
        let choice = self.choices - 1;
        match &self.style {
            Style::Switching { one_in } | Style::AtDevice { one_in } => {
                let stays = matches!(self.style, Style::AtDevice { .. }) && !at_device || !self.random.one_in(*one_in);
                let running = runnable.iter().map(|task| task.id()).find(|id| Some(*id) == current);
                match running {
                    Some(running) if stays => Some(running),
                    _ => Some(self.random.pick(runnable).id()),
                }
            }
            Style::Priorities { change_at } => {
                if let Some(current) = current.filter(|_| change_at.contains(&choice)) {
                    self.lowest += 1;
                    self.priorities.insert(usize::from(current), self.lowest);
                }
                let mut ids: Vec<TaskId> = runnable.iter().map(|task| task.id()).collect();
                ids.sort();
                ids.into_iter().min_by_key(|id| self.priority(usize::from(*id)))
            }
        }
    }

    fn next_u64(&mut self) -> u64 {
        self.random.next()
    }
}
