//! `tandemfs upgrade`: gives a file system the features that newer builds give to new ones.
//!
//! Nothing else adds features, so a file system that an older build mounts as well stays as it is until this command. It asks nothing:
//! `--dry-run` says first what would change.

use std::fmt::Write;

use serde_json::{Value, json};
use tandemfs_check::{CheckOptions, Finding, Located, Severity};
use tandemfs_device::Drive;
use tandemfs_fs::{FEATURES, Feature};

use crate::arguments::UpgradeArguments;
use crate::device::{self, Opening};
use crate::failure::Failure;
use crate::output;

/// Lists the features, or adds those that are missing.
pub fn run(arguments: &UpgradeArguments) -> Result<u8, Failure> {
    let device = &arguments.device;
    let writes = !arguments.list && !arguments.dry_run;
    let drive = device::open(device, Opening { read_only: !writes, ..Opening::default() })?;
    if arguments.list {
        let superblock = tandemfs_fs::read_superblock(&drive).map_err(Failure::because)?;
        let features: Vec<(&Feature, bool)> = FEATURES.iter().map(|feature| (feature, feature.is_of(&superblock))).collect();
        return show_list(arguments, &features);
    }
    let missing = tandemfs_fs::missing_features(&drive).map_err(Failure::because)?;
    if !missing.is_empty() {
        refuse_damaged(device, &drive)?;
    }
    let gained = if writes { tandemfs_fs::upgrade(&drive).map_err(|error| Failure::at(device, error))? } else { missing };
    let value = json!({
        "device": device,
        "dry_run": arguments.dry_run,
        "gained": gained.iter().map(|feature| of_feature(feature)).collect::<Vec<_>>(),
    });
    output::print_result(arguments.json, &value, &sentences(device, &gained, arguments.dry_run))?;
    Ok(0)
}

/// New features would write into metadata that is damaged. A copy of the superblock that is damaged or older is written again by the
/// upgrade: perhaps an earlier one was interrupted.
fn refuse_damaged(device: &str, drive: &Drive) -> Result<(), Failure> {
    let options = CheckOptions { data: false, ..CheckOptions::default() };
    let report = tandemfs_check::check(drive, &options, &mut |_| {}).map_err(Failure::because)?;
    let is_damage =
        |found: &&Located| found.finding.severity() == Severity::Error && !matches!(found.finding, Finding::SuperblockDamaged { .. });
    match report.findings.iter().find(is_damage) {
        None => Ok(()),
        Some(first) => {
            Err(Failure::Failed(format!("{device}: is damaged ({first}); run tandemfs check --repair first; nothing was changed")))
        }
    }
}

fn of_feature(feature: &Feature) -> Value {
    json!({ "feature": feature.name, "gain": feature.gain, "older_builds": feature.older_builds() })
}

fn sentences(device: &str, gained: &[&Feature], dry_run: bool) -> String {
    let mut text = String::new();
    let mut line = |what: String| {
        let _cannot_fail = writeln!(text, "{device}: {what}");
    };
    if gained.is_empty() {
        line("has all features already, nothing to do".into());
    }
    for feature in gained {
        let gains = if dry_run { "would gain" } else { "gained" };
        line(format!("{gains} '{}': {}; older builds {}", feature.name, feature.gain, feature.older_builds()));
    }
    text
}

fn show_list(arguments: &UpgradeArguments, features: &[(&Feature, bool)]) -> Result<u8, Failure> {
    if arguments.json {
        let features: Vec<Value> = features
            .iter()
            .map(|(feature, is_there)| {
                let mut value = of_feature(feature);
                value["is_there"] = json!(is_there);
                value
            })
            .collect();
        output::print_json(&json!({ "device": arguments.device, "features": features }))?;
        return Ok(0);
    }
    let rows: Vec<(String, String)> = features
        .iter()
        .map(|(feature, is_there)| {
            let state = if *is_there { "is there" } else { "missing" };
            (feature.name.to_owned(), format!("{state:8}  {}; older builds {}", feature.gain, feature.older_builds()))
        })
        .collect();
    output::print_rows(&rows)?;
    Ok(0)
}
