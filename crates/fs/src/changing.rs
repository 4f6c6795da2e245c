//! Changes the settings of a mount that is in use (`settings.rs`).
//!
//! [CS1] All settings of one change are checked before the first is changed: a change happens whole or not at all.
//! [CS2] What a setting needs is there before the setting holds: the measured threshold, the table of ages, the table of sectors read.
//! [CS3] A lower limit of host memory is kept when the change returns, but for what is in use or dirty at that moment: dirty pages of metadata are
//!       written home first, then pages, inodes and directory indexes are evicted, in steps, so that operations do not wait for all of it.
//!       What is needed stays, whatever the limit: each cache has a least size.
//! [CS4] Changes come one after the other. Operations wait for none of them.

use crate::error::{Error, Result};
use crate::file_system::FileSystem;
use crate::mount::{check_write_back_percent, page_cache_bytes};
use crate::mutant::{Mutant, on};
use crate::settings::SettingsChange;
use crate::tuning::threshold::Splitting;
use crate::types::{MountOptions, Promote, Threshold};
use crate::wait::may_wait;

impl FileSystem {
    /// Changes settings of the mount while it is in use, all of them or none. Operations that begin after it returns go by them. Nothing on the
    /// device changes: a mount after this one has its own. Returns the options in force.
    ///
    /// # Errors
    /// `InvalidArgument`: the threshold is not a multiple of the block size, or the limit of write-back is no share from 1 to 90 percent. `WouldWait`.
    pub fn change_settings(&self, change: &SettingsChange) -> Result<MountOptions> {
        may_wait()?;
        let _one_at_a_time = self.settings.changing.lock(); // [CS4]
        if on(Mutant::SettingsChangedInPart) {
            self.change_memory(change);
        }
        if let Some(threshold) = change.threshold {
            Splitting::check(threshold, self.volume.geometry.block_bytes())?; // [CS1]
        }
        change.write_back_percent.map_or(Ok(()), check_write_back_percent)?;
        self.change_threshold(change);
        self.change_write_back(change);
        self.change_promotion(change);
        let settings = &self.settings;
        change.in_place_bytes.into_iter().for_each(|bytes| settings.set_in_place_bytes(bytes));
        change.modified_lines.into_iter().for_each(|lines| settings.set_modified_lines(lines));
        change.discard.into_iter().for_each(|discard| settings.set_discard(discard));
        self.change_memory(change);
        Ok(self.options())
    }

    fn change_threshold(&self, change: &SettingsChange) {
        let Some(threshold) = change.threshold else { return };
        if threshold == Threshold::Auto && self.volume.health.check_writable().is_ok() {
            let _leaving = self.leaving.enter(); // who finds no space meanwhile waits for what the measurement has taken
            self.splitting.calibrate(&self.volume); // [CS2]
        }
        self.settings.set_threshold(threshold);
    }

    fn change_write_back(&self, change: &SettingsChange) {
        let settings = &self.settings;
        if let Some(policy) = change.write_back.filter(|policy| *policy != settings.write_back()) {
            self.write_back.heat.begin(policy, settings.memory_bytes()); // [CS2]
            settings.set_write_back(policy);
            self.write_back.left.lock().clear(); // in the order of another policy
        }
        if let Some(percent) = change.write_back_percent {
            settings.set_write_back_percent(percent);
            self.resize_spare_pages();
            if self.is_data_area_low() && !self.is_read_only() {
                self.ask_write_back();
            }
        }
    }

    fn change_promotion(&self, change: &SettingsChange) {
        let Some(promote) = change.promote else { return };
        if !self.is_read_only() {
            self.promotion.begin(promote, self.volume.memory.spare_pages.copies_max()); // [CS2]
        }
        self.settings.set_promote(promote);
        if promote == Promote::Off {
            self.drop_promoted(); // no read goes by them any more
        }
    }

    /// Read-ahead too, which has a part of it.
    fn change_memory(&self, change: &SettingsChange) {
        let (settings, before) = (&self.settings, self.settings.memory_bytes());
        change.read_ahead_bytes.into_iter().for_each(|bytes| settings.set_read_ahead_bytes(bytes));
        let memory_bytes = change.memory_bytes.unwrap_or(before);
        settings.set_memory_bytes(memory_bytes);
        self.read_ahead.resize(memory_bytes, settings.read_ahead_bytes());
        if memory_bytes == before {
            return;
        }
        if memory_bytes < before
            && !self.is_read_only()
            && let Err(error) = self.checkpoint()
            && !matches!(error, Error::Stopped { .. })
        {
            tracing::warn!(%error, "dirty pages of metadata stay in memory until the next checkpoint"); // [CS3]
        }
        self.resize_spare_pages();
        if on(Mutant::LowerMemoryNotGivenBack) {
            return;
        }
        self.inodes.resize(memory_bytes);
        self.volume.pages.resize(page_cache_bytes(memory_bytes), &self.volume.live.work);
    }

    fn resize_spare_pages(&self) {
        let (memory, settings) = (&self.volume.memory, &self.settings);
        memory.spare_pages.resize(memory, settings.memory_bytes(), settings.write_back_percent());
    }
}
