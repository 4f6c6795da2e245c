//! Keeps unbound kernel workers, including the loop device's, off the CPU of the drive's server. Otherwise they run sometimes there and
//! sometimes on their client's CPU, and the detour would have two different latencies.

use std::fs;

use serde::{Deserialize, Serialize};

/// CPU mask of unbound kernel workers: hexadecimal digits, the lowest last.
const MASK: &str = "/sys/devices/virtual/workqueue/cpumask";

/// Restores the mask when dropped. Best effort: if the kernel rejects the mask, nothing changes.
pub struct KeptOff {
    before: Option<String>,
}

impl KeptOff {
    /// Removes the first CPU from the mask, if there are others.
    pub fn first_cpu() -> Self {
        let before = mask();
        let is_told = before.as_deref().and_then(without_first).is_some_and(|mask| fs::write(MASK, mask).is_ok());
        Self { before: before.filter(|_| is_told) }
    }

    /// What another process needs to know to restore the mask if this one is killed.
    pub fn before(&self) -> Before {
        Before(self.before.clone())
    }
}

impl Drop for KeptOff {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            say_again(before);
        }
    }
}

fn mask() -> Option<String> {
    fs::read_to_string(MASK).ok().map(|mask| mask.trim().to_owned())
}

fn say_again(before: &str) {
    if let Err(error) = fs::write(MASK, before) {
        eprintln!("{MASK}: {error}; it was {before}");
    }
}

/// The mask that a drive's process found and changed; `None` where it changed nothing, as beside another drive. Only that process knows it:
/// the drives of other processes come and go meanwhile.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Before(Option<String>);

impl Before {
    /// Restores the mask if the kernel workers are still kept off.
    pub fn restore(&self) {
        let Some(before) = &self.0 else { return };
        if mask().is_some_and(|mask| without_first(before) == Some(mask)) {
            say_again(before);
        }
    }
}

/// Whether kernel workers may use the first CPU, or the mask is unknown.
#[cfg(test)]
pub fn may_use_first() -> bool {
    mask().and_then(|mask| mask.chars().last()?.to_digit(16)).is_none_or(|digit| digit % 2 == 1)
}

/// A mask without its first CPU; `None` if that CPU is not in it, or is the only one.
fn without_first(mask: &str) -> Option<String> {
    let lowest = mask.chars().last()?.to_digit(16).filter(|digit| digit % 2 == 1)?;
    let others = format!("{}{:x}", &mask[..mask.len() - 1], lowest - 1);
    others.chars().any(|digit| digit.to_digit(16).is_some_and(|digit| digit > 0)).then_some(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_loses_its_first_cpu_and_never_its_only_one() {
        assert_eq!(without_first("3").as_deref(), Some("2"));
        assert_eq!(without_first("ff,ffffffff").as_deref(), Some("ff,fffffffe"));
        assert_eq!(without_first("1,00000001").as_deref(), Some("1,00000000"));
        for kept in ["1", "0,00000001", "2", "", "zz"] {
            assert_eq!(without_first(kept), None, "{kept}");
        }
    }
}
