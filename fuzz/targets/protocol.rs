#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tandemfs_fuzz_targets::run("protocol", bytes));
