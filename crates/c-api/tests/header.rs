//! The header, beside the sources that it is made of.

use std::fs;
use std::path::{Path, PathBuf};

/// In the order of the header.
const SOURCES: [&str; 7] = ["types", "held", "mount", "names", "files", "directories", "mappings"];
const RENEW: &str = "TANDEMFS_RENEW_HEADER=1 cargo test -p tandemfs-c --test header";

fn here(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn generated() -> String {
    let config = cbindgen::Config::from_file(here("cbindgen.toml")).expect("the configuration");
    let builder = cbindgen::Builder::new().with_config(config);
    let builder = SOURCES.iter().fold(builder, |builder, name| builder.with_src(here(&format!("src/{name}.rs"))));
    let mut text = Vec::new();
    builder.generate().expect("generated").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

fn source(name: &str) -> String {
    fs::read_to_string(here(&format!("src/{name}.rs"))).expect("read")
}

#[test]
fn it_is_what_the_sources_say() {
    let (generated, path) = (generated(), here("include/tandemfs.h"));
    if std::env::var_os("TANDEMFS_RENEW_HEADER").is_some() {
        fs::write(&path, &generated).expect("written");
    }
    let kept = fs::read_to_string(&path).unwrap_or_default();
    assert!(kept == generated, "include/tandemfs.h is not that of the sources; renew it: {RENEW}");
}

/// Each function by its name, and what stands between its braces' begin and the end of the file.
fn functions(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.split("extern \"C\" fn ").skip(1).filter_map(|after| {
        let (name, rest) = after.split_once('(')?;
        Some((name, rest.split_once(" {\n")?.1))
    })
}

#[test]
fn every_function_is_in_it_with_a_comment_and_lets_no_panic_out() {
    // They return what is constant.
    const BARE: [&str; 2] = ["tandemfs_version", "tandemfs_release"];
    let header = generated();
    let mut count = 0;
    for file in fs::read_dir(here("src")).expect("listed") {
        let path = file.expect("one").path();
        let name = path.file_stem().and_then(|name| name.to_str()).expect("a name").to_owned();
        let text = source(&name);
        let is_listed = SOURCES.contains(&name.as_str());
        assert!(is_listed || !text.contains("no_mangle"), "{name}.rs has functions of the header; list it here");
        for (function, body) in functions(&text).filter(|(function, _)| function.starts_with("tandemfs_")) {
            count += 1;
            assert!(BARE.contains(&function) || body.trim_start().starts_with("guarded(||"), "{function} is not guarded");
            let declared = header.split_once(&format!("{function}(")).unwrap_or_else(|| panic!("{function} is not declared")).0;
            let before = declared.rsplit_once('\n').map_or("", |(before, _)| before);
            assert!(before.trim_end().ends_with("*/"), "{function} has no comment");
        }
    }
    assert!(count > 30, "{count} functions");
}
