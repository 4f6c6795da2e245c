//! Cost of the translation layer itself, printed: `cargo test --release -p tandemfs-emulator flash::tests::speed -- --ignored --nocapture`.
