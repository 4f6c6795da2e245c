//! Findings of check and scrub: one form in JSON, and lines for people in which a run of damage is one line.

use serde_json::{Value, json};
use tandemfs_check::{Finding, Located, Severity};
use tandemfs_format::SECTOR_BYTES;

use crate::output;

/// Lines for findings, in their order. Neighbours of one kind in one file are one line.
pub fn lines(findings: &[Located]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut run: Option<Run<'_>> = None;
    for located in findings {
        let is_taken = run.as_mut().is_some_and(|run| run.takes(located));
        if !is_taken {
            lines.extend(run.replace(Run::of(located)).map(Run::line));
        }
    }
    lines.extend(run.map(Run::line));
    lines
}

/// Findings that follow each other and say the same of one inode.
struct Run<'f> {
    first: &'f Located,
    count: u64,
    /// Of findings about file data: from the first byte to behind the last one, and how many of them are meant.
    bytes: Option<(u64, u64, u64)>,
}

impl<'f> Run<'f> {
    fn of(first: &'f Located) -> Self {
        Self { first, count: 1, bytes: bytes(&first.finding).map(|(start, end)| (start, end, end - start)) }
    }

    fn takes(&mut self, next: &Located) -> bool {
        let first = self.first;
        let is_same = (first.finding.id(), first.finding.inode(), &first.path) == (next.finding.id(), next.finding.inode(), &next.path);
        if !is_same || first.finding.inode().is_none() {
            return false;
        }
        if let (Some((start, end, amount)), Some((next_start, next_end))) = (self.bytes, bytes(&next.finding)) {
            self.bytes = Some((start.min(next_start), end.max(next_end), amount + (next_end - next_start)));
        }
        self.count += 1;
        true
    }

    fn line(self) -> String {
        let severity = match self.first.severity {
            Severity::Warning => "warning",
            Severity::Error => "error",
        };
        let message = match (self.count, self.bytes) {
            (_, Some(bytes)) => self.of_data(bytes),
            (1, None) => self.first.message.clone(),
            (count, None) => format!("{}; {} more of this kind in the same inode", self.first.message, count - 1),
        };
        match &self.first.path {
            Some(path) => format!("{severity}: {message} ({path})"),
            None => format!("{severity}: {message}"),
        }
    }

    /// One sentence for findings about file data.
    fn of_data(&self, (start, end, amount): (u64, u64, u64)) -> String {
        let finding = &self.first.finding;
        let inode = finding.inode().unwrap_or_default();
        let last = end - u64::from(end > start);
        let place = if amount == end - start { format!("bytes {start} to {last}") } else { format!("between bytes {start} and {last}") };
        let sectors = output::count(amount.div_ceil(SECTOR_BYTES as u64), "sector", "sectors");
        match finding {
            Finding::DataUnreadable { .. } => format!("inode {inode}: the device cannot read {sectors} of data, {place}"),
            Finding::LogDamaged { .. } => {
                format!("inode {inode}: checksum mismatch in {}, {place}", output::count(self.count, "data log", "data logs"))
            }
            _ => format!("inode {inode}: checksum mismatch in {sectors} of data, {place}"),
        }
    }
}

/// The bytes of the file that a finding names.
fn bytes(finding: &Finding) -> Option<(u64, u64)> {
    match *finding {
        Finding::DataDamaged { offset, sectors, .. } => Some((offset, offset + sectors * SECTOR_BYTES as u64)),
        Finding::LogDamaged { offset, length, .. } => Some((offset, offset + u64::from(length))),
        Finding::DataUnreadable { offset, bytes, .. } => Some((offset, offset + bytes)),
        _ => None,
    }
}

/// A finding of check as scripts read it. The names are those of [`of_scrub`]; fields of the one kind follow.
pub fn of_check(located: &Located) -> Value {
    let mut value = serde_json::to_value(located).unwrap_or_else(|error| json!({ "message": error.to_string() }));
    value["inode"] = json!(located.finding.inode());
    let range = bytes(&located.finding);
    value["file_offset"] = json!(range.map(|(start, _)| start));
    value["length"] = json!(range.map(|(start, end)| end - start));
    value
}

/// Findings of a scrub in runs: what follows each other and says the same of one inode is one line, `path: sentence`.
pub fn lines_of_scrub(findings: &[Value]) -> Vec<String> {
    let is_same = |one: &Value, other: &Value| {
        !one["inode"].is_null() && ["what", "inode", "path", "cause"].iter().all(|field| one[field] == other[field])
    };
    findings.chunk_by(is_same).map(line_of_scrub).collect()
}

fn line_of_scrub(run: &[Value]) -> String {
    let Some(first) = run.first() else { return String::new() };
    let path = first["path"].as_str().map(|path| output::printable(path) + ": ").unwrap_or_default();
    let offsets = || run.iter().filter_map(|found| Some((found["file_offset"].as_u64()?, found["length"].as_u64()?)));
    let (start, end) = offsets().fold((u64::MAX, 0), |(start, end), (offset, length)| (start.min(offset), end.max(offset + length)));
    let bytes: u64 = run.iter().filter_map(|found| found["length"].as_u64()).sum();
    let (inode, cause) = (&first["inode"], first["cause"].as_str().unwrap_or_default());
    match run.len() {
        1 => format!("{path}{}", first["text"].as_str().unwrap_or_default()),
        pieces if end == 0 => format!("{path}inode {inode}: {bytes} B of metadata at {pieces} places: {cause}"),
        pieces => {
            let last = end - 1;
            format!("{path}inode {inode}: {bytes} B of data in {pieces} pieces, between bytes {start} and {last}: {cause}")
        }
    }
}

/// A finding of a scrub as scripts read it. Everything that a scrub finds is damage, and it repairs nothing.
pub fn of_scrub(found: &Value) -> Value {
    let mut value = found.clone();
    value["finding"] = found["what"].clone();
    value["severity"] = json!("error");
    value["repairable"] = json!(false);
    value["message"] = found["text"].clone();
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn located(finding: Finding, path: Option<&str>) -> Located {
        let (severity, message) = (finding.severity(), finding.to_string());
        Located { severity, repairable: finding.repairable(), finding, path: path.map(str::to_owned), message }
    }

    #[test]
    fn a_run_of_damage_is_one_line() {
        let block = |inode, number: u64| located(Finding::DataDamaged { inode, offset: number * 65536, sectors: 16 }, Some("/mail"));
        let mut all: Vec<Located> = (0..160).map(|number| block(5, number)).collect();
        all.push(block(6, 201));
        // A sector of each block.
        all.extend((0..160).map(|number| located(Finding::DataDamaged { inode: 7, offset: number * 65536, sectors: 1 }, None)));
        all.push(located(Finding::LogDamaged { inode: 7, offset: 100, length: 50 }, None));
        let expected = [
            "error: inode 5: checksum mismatch in 2560 sectors of data, bytes 0 to 10485759 (/mail)",
            "error: inode 6: checksum mismatch in 16 sectors of data, bytes 13172736 to 13238271 (/mail)",
            "error: inode 7: checksum mismatch in 160 sectors of data, between bytes 0 and 10424319",
            "error: inode 7: checksum mismatch in 1 data log, bytes 100 to 149",
        ];
        assert_eq!(lines(&all), expected);
    }

    #[test]
    fn many_of_one_kind_are_counted_and_others_keep_their_lines() {
        let slot = |slot| located(Finding::EntryHash { directory: 3, slot }, None);
        let all = [
            slot(1),
            slot(2),
            slot(9),
            located(Finding::RootMissing {}, None),
            located(Finding::MapKind { piece: 1 }, None),
            located(Finding::MapKind { piece: 2 }, None),
        ];
        let lines = lines(&all);
        assert_eq!(lines.len(), 4, "{lines:?}");
        assert!(lines[0].ends_with("slot 1 has a wrong hash; 2 more of this kind in the same inode"), "{lines:?}");
    }

    #[test]
    fn a_run_of_a_scrub_is_one_line() {
        let found = |inode: u64, offset: Value, cause: &str| json!({ "what": "sectors", "inode": inode, "path": "/a\u{1b}", "file_offset": offset, "length": 4096, "cause": cause, "text": "t" });
        let mut all: Vec<Value> = (0..160).map(|number| found(5, json!(number * 65536), "checksum mismatch")).collect();
        all.extend([found(6, json!(0), "checksum mismatch"), found(6, Value::Null, "x"), found(6, Value::Null, "x")]);
        let expected = [
            "/a\\u{1b}: inode 5: 655360 B of data in 160 pieces, between bytes 0 and 10424319: checksum mismatch",
            "/a\\u{1b}: t",
            "/a\\u{1b}: inode 6: 8192 B of metadata at 2 places: x",
        ];
        assert_eq!(lines_of_scrub(&all), expected);
        assert!(lines_of_scrub(&[]).is_empty());
    }

    #[test]
    fn findings_of_both_have_the_same_names() {
        let of_check = of_check(&located(Finding::DataDamaged { inode: 5, offset: 8192, sectors: 2 }, Some("/a")));
        let of_scrub = of_scrub(&json!({
            "what": "sectors", "inode": 5, "path": "/a", "file_offset": 8192, "device_offset": 4096, "length": 8192, "cause": "c", "text": "t",
        }));
        for name in ["finding", "severity", "repairable", "inode", "path", "message", "file_offset", "length"] {
            assert!(of_check.get(name).is_some() && of_scrub.get(name).is_some(), "{name}");
        }
        assert_eq!((&of_check["file_offset"], &of_check["length"]), (&of_scrub["file_offset"], &of_scrub["length"]));
        assert_eq!(of_scrub["message"], "t");
    }
}
