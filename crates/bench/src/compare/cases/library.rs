//! Durable operations of the file system as a library: the counterparts of the same cases through a mount, durable on return.

use std::collections::HashMap;

use tandemfs_format::InodeNumber;
use tandemfs_fs::{FileSystem, WriteOptions};

use super::clients::timed_alone;
use crate::compare::case::{Outcome, Stage};
use crate::failure::{Failure, Result};
use crate::scene;
use crate::workloads::content;
use crate::workloads::random::Random;

/// Factor for operations in the library: they take a microsecond or two, and some clients would finish before all have started.
const TIMES: u64 = 10;
const PAGE: u64 = 4096;
const FILE_BYTES: u64 = 64 << 20;
/// Content keys of written data start here; lower keys are those of the initial content.
const WRITTEN: u64 = 1 << 32;

/// A kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Overwrites of random pages.
    Overwrite,
    /// Appends of a page.
    Append,
    /// New files of a page.
    Create,
}

/// The form of a case, if it has one.
pub fn form(case: &str) -> Option<Form> {
    match case {
        "durable-overwrite-4k" => Some(Form::Overwrite),
        "append-fsync-4k" => Some(Form::Append),
        "create-write-fsync-4k" => Some(Form::Create),
        _ => None,
    }
}

/// What a client works on.
struct Client {
    number: u64,
    inode: InodeNumber,
    /// The last write to each page.
    last: HashMap<u64, u64>,
}

/// Runs ten times `each` operations of every client.
///
/// # Errors
/// A call failed, or what is read back is not what was written.
pub fn run(form: Form, stage: &mut Stage<'_>, fs: &FileSystem, clients: u32, each: u64) -> Result<Outcome> {
    let (each, seed, file_bytes) = (each * TIMES, stage.seed, FILE_BYTES / u64::from(clients));
    let mut all: Vec<Client> = Vec::new();
    for number in 0..u64::from(clients) {
        let new = if form == Form::Create { scene::new_directory() } else { scene::new_file() };
        let inode = fs.create(InodeNumber::ROOT, format!("client-{number}").as_bytes(), &new)?.inode;
        let mut piece = vec![0; 1 << 20];
        for offset in (0..file_bytes).step_by(piece.len()).filter(|_| form == Form::Overwrite) {
            content::fill(number, offset, &mut piece);
            scene::write(fs, inode, offset, &piece, WriteOptions::default())?;
        }
        all.push(Client { number, inode, last: HashMap::new() });
    }
    let outcome = timed_alone(stage, &mut all, |client, watch| {
        let (mut random, mut page) = (Random::new(seed, client.number), vec![0; PAGE as usize]);
        for operation in 0..each {
            let offset = if form == Form::Overwrite { random.below(file_bytes / PAGE) * PAGE } else { operation * PAGE };
            content::fill(WRITTEN + operation, offset, &mut page);
            let name = format!("message-{operation:06}");
            watch.time(|| match form {
                Form::Overwrite => scene::write(fs, client.inode, offset, &page, WriteOptions::default()),
                Form::Append => scene::write(fs, client.inode, 0, &page, WriteOptions { append: true, ..WriteOptions::default() }),
                Form::Create => {
                    let inode = fs.create(client.inode, name.as_bytes(), &scene::new_file())?.inode;
                    scene::write(fs, inode, 0, &page, WriteOptions::default())
                }
            })?;
            if form != Form::Create {
                client.last.insert(offset, operation);
            }
        }
        Ok(())
    })?;
    let mut found = vec![0; PAGE as usize];
    for client in &all {
        for (offset, operation) in &client.last {
            fs.read(client.inode, *offset, &mut found)?;
            if !content::is(WRITTEN + operation, *offset, &found) {
                return Err(Failure::new(format!("{form:?}: what is at offset {offset} is not what was written there")));
            }
        }
    }
    Ok(outcome)
}
