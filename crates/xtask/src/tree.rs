//! The files of the repository, as texts.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

/// Folders of build output and history.
const NOT_LISTED: [&str; 2] = ["target", ".git"];

/// A file that checks read.
#[derive(Debug)]
pub(crate) struct File {
    /// Path from the root of the repository, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

/// The repository.
#[derive(Debug, Default)]
pub(crate) struct Tree {
    /// Sources of `crates/`.
    pub(crate) sources: Vec<File>,
    /// Manifests of the crates.
    pub(crate) manifests: Vec<File>,
    /// Documents of the root, and of `docs/` and its folders.
    pub(crate) documents: Vec<File>,
    /// Every file and folder, folders without a `/` at the end.
    pub(crate) paths: BTreeSet<String>,
}

/// The root of the repository that the current directory is in.
pub(crate) fn root() -> io::Result<PathBuf> {
    let here = std::env::current_dir()?;
    let is_root = |path: &&Path| path.join("Cargo.lock").is_file() && path.join("crates").is_dir();
    let none = || io::Error::new(io::ErrorKind::NotFound, format!("{} is not inside it; go there", here.display()));
    here.ancestors().find(is_root).map(Path::to_path_buf).ok_or_else(none)
}

impl Tree {
    /// Whether this is a path of a file, not of a folder.
    pub(crate) fn has_file(&self, path: &str) -> bool {
        let inside = format!("{path}/");
        let is_folder = self.paths.range(inside.clone()..).next().is_some_and(|next| next.starts_with(&inside));
        self.paths.contains(path) && !is_folder
    }

    /// Lists everything and reads what checks look at.
    pub(crate) fn load(root: &Path) -> io::Result<Self> {
        let mut tree = Self::default();
        list(root, "", &mut tree.paths)?;
        for path in &tree.paths {
            let into = match kind(path) {
                Some(Kind::Source) => &mut tree.sources,
                Some(Kind::Manifest) => &mut tree.manifests,
                Some(Kind::Document) => &mut tree.documents,
                None => continue,
            };
            let text =
                std::fs::read_to_string(root.join(path)).map_err(|error| io::Error::new(error.kind(), format!("{path}: {error}")))?;
            into.push(File { path: path.clone(), text });
        }
        Ok(tree)
    }

    /// A repository of these files.
    #[cfg(test)]
    pub(crate) fn of(files: &[(&str, &str)]) -> Self {
        let mut tree = Self::default();
        for (path, text) in files {
            let parents = path.match_indices('/').map(|(at, _)| path[..at].to_owned());
            tree.paths.extend(parents.chain([(*path).to_owned()]));
            let file = File { path: (*path).to_owned(), text: (*text).to_owned() };
            match kind(path) {
                Some(Kind::Source) => tree.sources.push(file),
                Some(Kind::Manifest) => tree.manifests.push(file),
                Some(Kind::Document) => tree.documents.push(file),
                None => {}
            }
        }
        tree
    }
}

enum Kind {
    Source,
    Manifest,
    Document,
}

fn kind(path: &str) -> Option<Kind> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    if path.starts_with("crates/") && path.ends_with(".rs") {
        Some(Kind::Source)
    } else if path.starts_with("crates/") && path.ends_with("/Cargo.toml") {
        Some(Kind::Manifest)
    } else if path.ends_with(".md") && (path.starts_with("docs/") || folder.is_empty()) {
        Some(Kind::Document)
    } else {
        None
    }
}

fn list(root: &Path, folder: &str, paths: &mut BTreeSet<String>) -> io::Result<()> {
    for entry in std::fs::read_dir(root.join(folder))? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| !NOT_LISTED.contains(name)) else { continue };
        let path = if folder.is_empty() { name.to_owned() } else { format!("{folder}/{name}") };
        if entry.file_type()?.is_dir() {
            list(root, &path, paths)?;
        }
        paths.insert(path);
    }
    Ok(())
}
