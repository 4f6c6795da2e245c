//! The name by which programs find the library when they run. It changes where a program that was built before would be served wrongly.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libtandemfs.so.0");
}
