//! Unmodified Debian programs, each with the settings that make its writes durable; one file for each.

use super::{fio, postgres, redis, rocksdb, sqlite};
use crate::compare::case::Cases;

/// All cases of the applications.
pub fn cases() -> Cases {
    [fio::cases(), redis::cases(), sqlite::cases(), postgres::cases(), rocksdb::cases()].into_iter().flatten().collect()
}
