//! A few files in memory, without permissions: enough to see that bytes, names and numbers arrive.

use std::collections::BTreeMap;

use tandemfs_client::{Attributes, Errno};
use tandemfs_protocol::{EntryWriter, Handle, Listed, Operation, Place, Subject};
use tandemfs_ring::{Answer, Range, Ticket};

use super::{Answers, Reply, bytes, done, fails, put, text};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const CREATE: i32 = 0o100;
const EXCLUSIVE: i32 = 0o200;
const TRUNCATE: i32 = 0o1000;
const APPEND: i32 = 0o2000;
const RWF_APPEND: i32 = 0x10;

#[derive(Default)]
struct Node {
    mode: u32,
    content: Vec<u8>,
    attributes: BTreeMap<Vec<u8>, Vec<u8>>,
}

#[derive(Default)]
pub struct Files {
    nodes: BTreeMap<Vec<u8>, Node>,
    open: BTreeMap<u64, (Vec<u8>, i32)>,
    next: u64,
}

impl Files {
    fn path(&self, at: Place, path: Vec<u8>) -> Vec<u8> {
        match at {
            Place::Root => path,
            Place::Open(handle) => [&self.open[&handle.get()].0[..], b"/", &path].concat(),
        }
    }

    fn of(&self, subject: Subject<'_>, ticket: &Ticket) -> Vec<u8> {
        match subject {
            Subject::Path { at, path, .. } => self.path(at, text(path, ticket)),
            Subject::Open(handle) => self.open[&handle.get()].0.clone(),
        }
    }

    fn attributes(&self, path: &[u8]) -> Reply {
        let Some(node) = self.nodes.get(path) else { return fails(Errno::NOENT) };
        let attributes = Attributes { mode: node.mode, size_bytes: node.content.len() as u64, links: 1, ..Attributes::default() };
        Reply::Now(Answer { attributes: Some(attributes), ..Answer::default() })
    }

    fn open(&mut self, path: Vec<u8>, flags: i32, mode: u32) -> Reply {
        let is_root = path == b".";
        match self.nodes.get_mut(&path) {
            Some(_) if flags & EXCLUSIVE != 0 => return fails(Errno::EXIST),
            Some(node) if flags & TRUNCATE != 0 => node.content.clear(),
            Some(_) => {}
            None if flags & CREATE == 0 && !is_root => return fails(Errno::NOENT),
            None if is_root => {}
            None => {
                self.nodes.insert(path.clone(), Node { mode: REGULAR | mode, ..Node::default() });
            }
        }
        self.next += 1;
        self.open.insert(self.next, (path, flags));
        done(self.next)
    }

    fn write(&mut self, handle: Handle, offset: i64, from: &[u8], flags: i32) -> Reply {
        let (path, of_open) = &self.open[&handle.get()];
        let Some(node) = self.nodes.get_mut(path) else { return fails(Errno::BADF) };
        let appends = flags & RWF_APPEND != 0 || of_open & APPEND != 0;
        let at = if appends { node.content.len() } else { offset as usize };
        node.content.resize(node.content.len().max(at + from.len()), 0);
        node.content[at..at + from.len()].copy_from_slice(from);
        Reply::Now(Answer { value: from.len() as u64, further: (at + from.len()) as u64, ..Answer::default() })
    }

    fn read(&self, handle: Handle, offset: i64, into: Range, ticket: &Ticket) -> Reply {
        let content = &self.nodes[&self.open[&handle.get()].0].content;
        done(put(into, content.get(offset as usize..).unwrap_or_default(), ticket))
    }

    fn list(&self, handle: Handle, cookie: u64, into: Range, ticket: &Ticket) -> Reply {
        let below = match &self.open[&handle.get()].0[..] {
            b"." => Vec::new(),
            path => [path, b"/"].concat(),
        };
        let names = self.nodes.keys().filter_map(|path| path.strip_prefix(&below[..])).filter(|name| !name.contains(&b'/'));
        let mut writer = EntryWriter::new(into.length as usize);
        for (number, name) in (1..).zip([&b"."[..], b".."].into_iter().chain(names)).filter(|(number, _)| *number > cookie) {
            if !writer.push(&Listed { inode: number + 100, cookie: number, kind: 8, name }) {
                break;
            }
        }
        done(put(into, writer.bytes(), ticket))
    }

    fn of_any_length(value: Option<Vec<u8>>, into: Range, ticket: &Ticket) -> Reply {
        match value {
            None => fails(Errno::NODATA),
            Some(value) if into.length == 0 => done(value.len() as u64),
            Some(value) if value.len() > into.length as usize => fails(Errno::RANGE),
            Some(value) => done(put(into, &value, ticket)),
        }
    }
}

impl Answers for Files {
    fn answer(&mut self, operation: &Operation<'_>, ticket: &Ticket) -> Reply {
        match *operation {
            Operation::Nothing | Operation::Sync { .. } | Operation::SyncFileSystem => done(0),
            Operation::Open { at, path, flags, mode, umask, .. } => {
                let path = self.path(at, text(path, ticket));
                self.open(path, flags, mode & !u32::from(umask))
            }
            Operation::Close { handle } => match self.open.remove(&handle.get()) {
                Some(_) => done(0),
                None => fails(Errno::BADF),
            },
            Operation::Read { handle, offset, into, .. } => self.read(handle, offset, into, ticket),
            Operation::Write { handle, offset, from, flags, .. } => self.write(handle, offset, &bytes(from, ticket), flags),
            Operation::ReadDirectory { handle, cookie, into } => self.list(handle, cookie, into, ticket),
            Operation::Stat { subject } | Operation::StatAhead { subject, .. } => self.attributes(&self.of(subject, ticket)),
            Operation::MakeDirectory { at, path, mode, umask } => {
                let path = self.path(at, text(path, ticket));
                if self.nodes.contains_key(&path) {
                    return fails(Errno::EXIST);
                }
                let mode = DIRECTORY | mode & !u32::from(umask);
                self.nodes.insert(path.clone(), Node { mode, ..Node::default() });
                self.attributes(&path)
            }
            Operation::Rename { from, to, .. } => {
                let (from, to) = (self.path(from.0, text(from.1, ticket)), self.path(to.0, text(to.1, ticket)));
                match self.nodes.remove(&from) {
                    Some(node) => {
                        self.nodes.insert(to, node);
                        done(0)
                    }
                    None => fails(Errno::NOENT),
                }
            }
            Operation::SetAttribute { subject, name, value, .. } => {
                let path = self.of(subject, ticket);
                self.nodes.get_mut(&path).expect("there").attributes.insert(name.to_vec(), bytes(value, ticket));
                done(0)
            }
            Operation::GetAttribute { subject, name, into } => {
                let value = self.nodes[&self.of(subject, ticket)].attributes.get(name).cloned();
                Self::of_any_length(value, into, ticket)
            }
            Operation::ListAttributes { subject, into } => {
                let names = self.nodes[&self.of(subject, ticket)].attributes.keys();
                Self::of_any_length(Some(names.flat_map(|name| [&name[..], b"\0"].concat()).collect()), into, ticket)
            }
            _ => fails(Errno::NOSYS),
        }
    }
}
