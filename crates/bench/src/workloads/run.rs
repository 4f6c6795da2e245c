//! Runs a load: with all workers in virtual time on one thread, or on one thread per worker.

use std::cell::RefCell;
use std::time::Duration;

use tandemfs_device::VirtualTime;
use tandemfs_device::sync::workers::{self, Work};

use super::target::Target;
use super::worker::{Done, Worker};
use crate::failure::{Failure, Result};
use crate::machine;
use crate::measure::on_threads;

/// A worker of virtual time: makes its next call, and returns false if there is none.
pub type Actor<'a> = Box<dyn FnMut() -> Result<bool> + 'a>;

/// Runs actors in virtual time until each has returned false, or one has failed; then `ended`, before the last of them returns. `behind` runs
/// beside them and must return after `ended`. Returns the nanoseconds until the last has returned, `behind` aside.
pub fn together<'a>(
    time: &dyn VirtualTime,
    actors: Vec<Actor<'a>>,
    behind: impl FnOnce() -> Result<()> + 'a,
    ended: impl Fn() + 'a,
) -> Result<u64> {
    let (start, end) = (time.now_ns(), RefCell::new(0));
    let (left, failure) = (RefCell::new(actors.len()), RefCell::new(None));
    let fail = &|error: Failure| {
        failure.borrow_mut().get_or_insert(error);
    };
    let run = &|mut actor: Actor<'a>| {
        while failure.borrow().is_none() {
            match machine::check().and_then(|()| actor()) {
                Ok(true) => {}
                Ok(false) => break,
                Err(error) => fail(error),
            }
        }
        let now = time.now_ns();
        end.replace_with(|end| now.max(*end));
        left.replace_with(|left| *left - 1);
        if *left.borrow() == 0 {
            ended();
        }
    };
    if actors.is_empty() {
        ended();
    }
    let mut works: Vec<Work<'_>> = actors.into_iter().map(|actor| Box::new(move || run(actor)) as Work<'_>).collect();
    works.push(Box::new(|| behind().unwrap_or_else(fail)));
    workers::run(time, works);
    if let Some(error) = failure.take() {
        return Err(error);
    }
    let end = start.max(*end.borrow());
    time.set_now_ns(end);
    Ok(end - start)
}

/// The workers of a load in virtual time ([WO2]); `after` runs after each call.
///
/// [WO2]: super
pub fn actors<'a>(workers: &'a mut [Worker], target: &'a dyn Target, after: &'a dyn Fn() -> Result<()>) -> Vec<Actor<'a>> {
    let actor = |worker: &'a mut Worker| -> Actor<'a> {
        Box::new(move || {
            let goes_on = worker.step(target)?;
            if !goes_on {
                worker.end(target)?;
            }
            after()?;
            Ok(goes_on)
        })
    };
    workers.iter_mut().map(actor).collect()
}

/// Runs each worker on its own thread. Returns the totals, and the time from the first start to the last end.
pub fn run_on_threads(workers: &mut [Worker], target: &dyn Target) -> Result<(Done, Duration)> {
    let (done, elapsed) = on_threads(workers.iter_mut().collect(), |worker: &mut Worker| {
        while worker.step(target)? {
            machine::check()?;
        }
        worker.end(target)?;
        Ok(*worker.done())
    })?;
    Ok((done.iter().fold(Done::default(), Done::and), elapsed))
}
