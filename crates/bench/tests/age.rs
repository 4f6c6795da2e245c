//! `tandemfs-bench age` as a program: an image and a directory are aged, ended, continued, and refused.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tandemfs_device::Drive;
use tandemfs_emulator::{CreateOptions, DeviceOptions};
use tandemfs_fs::{FormatOptions, make_file_system};

fn age(target: &Path, options: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandemfs-bench"));
    command.arg("age").arg(target).args(["--json", "--large", "8388608"]).args(options).stdin(Stdio::null());
    command
}

fn image(directory: &Path) -> std::path::PathBuf {
    let path = directory.join("image");
    let options = CreateOptions { profile: "off".to_owned(), memory_bytes: 32 << 20, block_bytes: 128 << 20 };
    tandemfs_emulator::create(&path, &options).expect("created");
    let device = tandemfs_emulator::open_device(path.to_str().expect("Unicode"), &DeviceOptions::default()).expect("opened");
    make_file_system(&Drive::new(device), &FormatOptions::default()).expect("formatted");
    path
}

fn report(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn share(sample: &Value, name: &str) -> f64 {
    sample[name].as_f64().unwrap_or_else(|| panic!("{name} in {sample}"))
}

#[test]
fn an_image_is_aged_and_sampled_at_each_utilization() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let report = report(&age(&image, &["--utilization", "40%,70%", "--churn", "4"]).output().expect("run"));
    let samples = report["samples"].as_array().expect("samples");
    assert_eq!(samples.len(), 3);
    assert!(share(&samples[0], "aligned_free_share") > 0.9, "{}", samples[0]);
    for (sample, percent) in samples[1..].iter().zip([40.0, 70.0]) {
        let full = share(sample, "utilization_percent");
        assert!((percent - 8.0..=percent).contains(&full), "{full} of {percent}");
        assert!(share(sample, "aligned_free_share") < share(&samples[0], "aligned_free_share"));
        assert!(share(sample, "pieces_a_file") >= 0.5);
    }
    assert!(share(&samples[2], "churn") >= 4.0);
}

/// [AX3]
#[test]
fn files_come_at_the_rate_that_is_asked_for() {
    let directory = tempfile::tempdir().expect("a directory");
    let (image, began) = (image(directory.path()), Instant::now());
    let report = report(&age(&image, &["--utilization", "40%", "--churn", "0.5", "--rate", "64M"]).output().expect("run"));
    let (took, sample) = (began.elapsed(), &report["samples"][1]);
    let created = (share(sample, "churn") * 128.0) / 64.0; // seconds; the last file has no time of its own
    assert!(took.as_secs_f64() > created * 0.7 && created > 1.0, "{took:?} for {created} s: {sample}");
}

#[test]
fn a_run_that_was_killed_ends_as_one_that_was_not() {
    let directories = [tempfile::tempdir().expect("a directory"), tempfile::tempdir().expect("a directory")];
    let options = ["--utilization", "60%", "--churn", "30", "--seed", "9"];
    let notes = |directory: &Path| directory.join("image.age-notes.json");
    let whole = image(directories[0].path());
    let expected = report(&age(&whole, &options).output().expect("run"));
    let killed = image(directories[1].path());
    let mut child = age(&killed, &options).stdout(Stdio::null()).spawn().expect("run");
    let give_up = Instant::now() + Duration::from_secs(120);
    // The first note of steps, else only its samples are known.
    let is_under_way = || fs::read_to_string(notes(directories[1].path())).is_ok_and(|text| !text.contains("\"steps\":0,"));
    while !is_under_way() && child.try_wait().expect("asked").is_none() {
        assert!(Instant::now() < give_up, "no note within two minutes");
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().expect("killed");
    child.wait().expect("ended");
    let found = report(&age(&killed, &options).output().expect("run"));
    assert_eq!(found["steps"], expected["steps"]);
    for name in ["files", "churn", "age_error"] {
        assert_eq!(found["samples"][1][name], expected["samples"][1][name], "{name}");
    }
    let refused = age(&killed, &["--seed", "10"]).output().expect("run");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("other options"), "{}", String::from_utf8_lossy(&refused.stderr));
}

#[test]
fn a_full_device_is_said_in_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let image = image(directory.path());
    let output = age(&image, &["--utilization", "99%", "--churn", "50"]).output().expect("run");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("--utilization") && said.lines().count() == 1, "{said}");
    // What was made is there, and the file system is whole.
    let fs = tandemfs_emulator::open_device(image.to_str().expect("Unicode"), &DeviceOptions::default()).expect("opened");
    let fs = tandemfs_fs::FileSystem::mount(Drive::new(fs), &tandemfs_fs::MountOptions::default()).expect("mounted");
    assert!(fs.lookup(tandemfs_format::InodeNumber::ROOT, b"aged").is_ok());
}

#[test]
fn bad_input_is_refused_in_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    let refusals: [(&[&str], &str); 4] = [
        (&["--profile", "nobody"], "no profile"),
        (&["--utilization", "120%"], "not 1% to 99%"),
        (&["--churn=-1"], "not 0 to 100000"),
        (&["--rate", "5"], "no size here"),
    ];
    for (options, expected) in refusals {
        let output = age(directory.path(), options).output().expect("run");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(expected), "{said}");
    }
}

#[test]
fn a_file_that_is_no_image_stays_as_it_is() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("file");
    fs::write(&file, "no image").expect("written");
    let output = age(&file, &[]).output().expect("run");
    assert!(!output.status.success(), "a file that is no image");
    assert_eq!(fs::read(&file).expect("read"), b"no image");
}

/// On a tmpfs, of which no tool tells what lies where. In a mount namespace of its own, so that nothing stays mounted.
#[test]
fn a_directory_of_any_file_system_is_aged() {
    if !rustix::process::geteuid().is_root() {
        println!("not run, only root may mount");
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let script = "mount -t tmpfs -o size=64m none \"$1\" && \"$0\" age \"$1\" --json --large 4194304 --utilization 50% --churn 3 --threads 2 \
                  --write --notes \"$1/notes\" && find \"$1/aged\" -type f | wc -l";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, env!("CARGO_BIN_EXE_tandemfs-bench")]).arg(directory.path());
    let output = command.output().expect("run");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (report, files) = said.trim().split_once('\n').expect("a report and a number");
    let report: Value = serde_json::from_str(report).expect("JSON");
    let sample = &report["samples"][1];
    assert_eq!(sample["files"].to_string(), files, "the files are those of the run");
    assert!(sample["aligned_free_share"].is_null());
    assert!((30.0..=50.0).contains(&share(sample, "utilization_percent")), "{sample}");
}
