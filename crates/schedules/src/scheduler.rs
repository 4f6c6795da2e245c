//! Who runs next. A seed decides everything, so a failure is repeated by its seed alone.
//!
//! Two ways, drawn by the seed: at random, with threads that go on for a while or hardly at all; and by priorities that change at few
//! points (probabilistic concurrency testing), which finds what needs few but particular preemptions. Points are counted only where there
//! is a choice, so that mounting and comparing, which one thread does, use none of them up.

use std::collections::HashMap;

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use tandemfs_crash::Random;

/// How threads are chosen.
#[derive(Debug)]
enum Style {
    /// Another thread than the running one, once in so many choices.
    Switching { one_in: u64 },
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
        let style = if random.one_in(2) {
            Style::Switching { one_in: *random.pick(&[1, 2, 4, 10, 40]) }
        } else {
            let horizon = 1 << (4 + random.below(9));
            let count = 1 + random.below(4);
            Style::Priorities { change_at: (0..count).map(|_| random.below(horizon)).collect() }
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

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, is_yielding: bool) -> Option<TaskId> {
        if let [only] = runnable {
            return Some(only.id());
        }
        self.choices += 1;
        let choice = self.choices - 1;
        match &self.style {
            Style::Switching { one_in } => {
                let one_in = *one_in;
                let running = runnable.iter().map(|task| task.id()).find(|id| Some(*id) == current);
                match running {
                    Some(running) if !is_yielding && !self.random.one_in(one_in) => Some(running),
                    _ => Some(self.random.pick(runnable).id()),
                }
            }
            Style::Priorities { change_at } => {
                if let Some(current) = current.filter(|_| is_yielding || change_at.contains(&choice)) {
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
