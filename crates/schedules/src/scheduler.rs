//! Chooses the next thread. A seed determines every choice, so it repeats a failure.
//!
//! The seed also selects one of three strategies: random choice, with long or short runs of a thread; random choice only at device
//! accesses, since a cut shows a half-done device access; and priorities that change at few points (probabilistic concurrency testing),
//! which finds bugs that need few particular preemptions. Points are counted only where there is a choice, so single-threaded mounting and
//! comparing use none of them up.

use std::collections::HashMap;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use tandemfs_crash::Random;

/// Strategy of choosing threads.
#[derive(Debug)]
enum Style {
    /// Switches to another thread once in so many choices.
    Switching { one_in: u64 },
    /// The same, only at steps of the device.
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
