//! The write log of the firmware: skeleton of its interface.

use std::sync::Arc;

use tandemfs_device::{DeviceError, DriveRecovery, FirmwareCounts};
use tandemfs_format::Line;

use crate::medium::{Medium, PageBytes, Pages};

/// Sizes of the log and when it is cleaned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WriteLogOptions {
    /// Bytes of lines that the log holds: whole pages.
    pub(crate) log_bytes: u64,
    /// Bytes of the TxLog: 4 B a transaction.
    pub(crate) transaction_log_bytes: u64,
    /// Fill of the log, or of the TxLog, at which a cleaning starts, in percent.
    pub(crate) clean_at_percent: u32,
}

/// How full the log is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogFill {
    /// Lines that take room in the log, valid or not.
    pub(crate) lines: u64,
    pub(crate) capacity_lines: u64,
    /// Lines of transactions that are not committed.
    pub(crate) uncommitted_lines: u64,
    /// Pages that have lines in the log.
    pub(crate) pages: u64,
    /// Transactions that the TxLog names.
    pub(crate) transactions: u64,
    pub(crate) capacity_transactions: u64,
    /// Host memory of the index.
    pub(crate) index_bytes: u64,
    pub(crate) is_cleaning: bool,
}

/// The write log.
#[derive(Debug)]
pub(crate) struct WriteLog<M: Medium> {
    medium: Arc<M>,
}

impl WriteLogOptions {
    /// Persistent DRAM that it takes, in bytes: a multiple of 4 KiB.
    pub(crate) fn dram_bytes(&self) -> u64 {
        4096 + self.transaction_log_bytes + self.log_bytes / 64 * 80
    }

    /// What is wrong with the sizes.
    pub(crate) fn check(&self, _logical_pages: u64) -> Result<(), String> {
        Ok(())
    }
}

impl<M: Medium> WriteLog<M> {
    pub(crate) fn format(medium: Arc<M>, _dram_offset: u64, _options: WriteLogOptions, _logical_pages: u64) -> Result<Self, DeviceError> {
        Ok(Self { medium })
    }
    pub(crate) fn open(
        medium: Arc<M>,
        _dram_offset: u64,
        _options: WriteLogOptions,
        _logical_pages: u64,
        _pages: &mut impl Pages,
    ) -> Result<Self, DeviceError> {
        Ok(Self { medium })
    }
    /// The name that errors carry.
    pub(crate) fn set_name(&mut self, _name: &str) {}
    pub(crate) fn append(&mut self, _pages: &mut impl Pages, _transaction: u32, _line: u64, _bytes: &Line) -> Result<(), DeviceError> {
        self.medium.load(0, &mut [])
    }
    /// Whether an append or commit since the last question had to finish a cleaning before it could go on: then the access waits for the
    /// flash.
    pub(crate) fn take_waited(&mut self) -> bool {
        false
    }
    pub(crate) fn load(&mut self, _line: u64, _into: &mut Line) -> Result<bool, DeviceError> {
        Ok(false)
    }
    pub(crate) fn merge(&mut self, _page: u64, _into: &mut PageBytes) -> Result<u32, DeviceError> {
        Ok(0)
    }
    /// Whether lines cover the whole page, so that a block read needs no flash.
    pub(crate) fn covers(&self, _page: u64) -> bool {
        false
    }
    pub(crate) fn next_sequence(&self) -> u64 {
        0
    }
    pub(crate) fn forget_page(&mut self, _page: u64) -> Result<(), DeviceError> {
        Ok(())
    }
    pub(crate) fn commit(&mut self, _pages: &mut impl Pages, _transaction: u32) -> Result<(), DeviceError> {
        Ok(())
    }
    pub(crate) fn recover(&mut self, _pages: &mut impl Pages, _read_only: bool) -> Result<DriveRecovery, DeviceError> {
        Ok(DriveRecovery::default())
    }
    pub(crate) fn clean(&mut self, _pages: &mut impl Pages) -> Result<(), DeviceError> {
        Ok(())
    }
    pub(crate) fn settle(&mut self, _pages: &mut impl Pages, _budget_pages: u32) -> Result<(), DeviceError> {
        Ok(())
    }
    pub(crate) fn fill(&self) -> LogFill {
        LogFill::default()
    }
    pub(crate) fn counts(&self) -> FirmwareCounts {
        FirmwareCounts::default()
    }
    pub(crate) fn read_only_reason(&self) -> Option<&str> {
        None
    }
}
