//! Counters of errors since the file system was made, in a part of the superblock with a checksum of its own: a build that does not know
//! them writes zeros there, and then they begin anew.

use zerocopy::{FromZeros, IntoBytes};

use crate::checksum::crc32c;
use crate::integer::{U32, U64};

persistent! {
    /// Counters of errors, in the superblock.
    pub struct ErrorCounterBytes [120] {
        /// CRC-32C of bytes 4..120.
        crc: U32 = 0,
        /// Objects whose metadata was found damaged, once for each mount.
        metadata_damaged: U64 = 4,
        /// Reads of file data that did not match a checksum.
        data_damaged: U64 = 12,
        /// Loads and block reads that the device failed.
        device_reads_failed: U64 = 20,
        /// Stores, block writes and flushes that the device failed.
        device_writes_failed: U64 = 28,
        /// Changes that repairs made.
        repairs: U64 = 36,
        /// Time of the last of these errors, seconds since 1970.
        last_error_seconds: U64 = 44,
        /// Time at which the last scrub ended, seconds since 1970; 0 none.
        scrub_seconds: U64 = 52,
        /// What it found.
        scrub_findings: U64 = 60,
        /// Bytes that it read.
        scrub_bytes: U64 = 68,
        /// Time of the last check that repaired something, seconds since 1970; 0 none.
        check_seconds: U64 = 76,
        /// What it had found.
        check_findings: U64 = 84,
        /// Zero.
        zero: [u8; 28] = 92,
    }
}

/// The counters in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ErrorCounters {
    /// Objects whose metadata was found damaged, once for each mount.
    pub metadata_damaged: u64,
    /// Reads of file data that did not match a checksum.
    pub data_damaged: u64,
    /// Loads and block reads that the device failed.
    pub device_reads_failed: u64,
    /// Stores, block writes and flushes that the device failed.
    pub device_writes_failed: u64,
    /// Changes that repairs made.
    pub repairs: u64,
    /// Time of the last of these errors, seconds since 1970; 0 none.
    pub last_error_seconds: u64,
    /// Time at which the last scrub ended, seconds since 1970; 0 none.
    pub scrub_seconds: u64,
    /// What it found.
    pub scrub_findings: u64,
    /// Bytes that it read.
    pub scrub_bytes: u64,
    /// Time of the last check that repaired something, seconds since 1970; 0 none.
    pub check_seconds: u64,
    /// What it had found.
    pub check_findings: u64,
}

impl ErrorCounters {
    /// The bytes, sealed.
    pub fn encode(&self) -> ErrorCounterBytes {
        let mut bytes = ErrorCounterBytes::new_zeroed();
        bytes.metadata_damaged = self.metadata_damaged.into();
        bytes.data_damaged = self.data_damaged.into();
        bytes.device_reads_failed = self.device_reads_failed.into();
        bytes.device_writes_failed = self.device_writes_failed.into();
        bytes.repairs = self.repairs.into();
        bytes.last_error_seconds = self.last_error_seconds.into();
        bytes.scrub_seconds = self.scrub_seconds.into();
        bytes.scrub_findings = self.scrub_findings.into();
        bytes.scrub_bytes = self.scrub_bytes.into();
        bytes.check_seconds = self.check_seconds.into();
        bytes.check_findings = self.check_findings.into();
        bytes.crc = crc32c(&bytes.as_bytes()[4..]).into();
        bytes
    }

    /// The counters in these bytes; all zero if another build has not kept them.
    pub fn decode(bytes: &ErrorCounterBytes) -> Self {
        if crc32c(&bytes.as_bytes()[4..]) != bytes.crc.get() {
            return Self::default();
        }
        Self {
            metadata_damaged: bytes.metadata_damaged.get(),
            data_damaged: bytes.data_damaged.get(),
            device_reads_failed: bytes.device_reads_failed.get(),
            device_writes_failed: bytes.device_writes_failed.get(),
            repairs: bytes.repairs.get(),
            last_error_seconds: bytes.last_error_seconds.get(),
            scrub_seconds: bytes.scrub_seconds.get(),
            scrub_findings: bytes.scrub_findings.get(),
            scrub_bytes: bytes.scrub_bytes.get(),
            check_seconds: bytes.check_seconds.get(),
            check_findings: bytes.check_findings.get(),
        }
    }

    /// Names and values, in the order of `info --json`. Times are seconds since 1970, 0 for never.
    pub fn entries(&self) -> [(&'static str, u64); 11] {
        [
            ("metadata_damaged", self.metadata_damaged),
            ("data_damaged", self.data_damaged),
            ("device_reads_failed", self.device_reads_failed),
            ("device_writes_failed", self.device_writes_failed),
            ("repairs", self.repairs),
            ("last_error_time_seconds", self.last_error_seconds),
            ("scrub_time_seconds", self.scrub_seconds),
            ("scrub_findings", self.scrub_findings),
            ("scrub_bytes", self.scrub_bytes),
            ("check_time_seconds", self.check_seconds),
            ("check_findings", self.check_findings),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_round_trip_and_begin_anew_where_they_were_not_kept() {
        let counters = ErrorCounters { metadata_damaged: 1, data_damaged: u64::MAX, check_findings: 9, ..ErrorCounters::default() };
        assert_eq!(ErrorCounters::decode(&counters.encode()), counters);
        assert_eq!(ErrorCounters::decode(&ErrorCounterBytes::new_zeroed()), ErrorCounters::default());
        let mut damaged = counters.encode();
        damaged.repairs = 5.into();
        assert_eq!(ErrorCounters::decode(&damaged), ErrorCounters::default());
    }
}
