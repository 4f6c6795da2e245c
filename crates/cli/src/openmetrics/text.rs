//! The OpenMetrics text format (version 1.0.0), as far as it is needed: counters, gauges, histograms, information.

use std::fmt::{Display, Write};

use tandemfs_device::LatencyCounts;

/// What an HTTP server calls the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bounds of the buckets of histograms: these powers of two, in nanoseconds; 128 ns to 17 s. They are the same for every kind and at all times, since
/// who looks compares buckets of different times. [`LatencyCounts::below`] is exact for them.
const BOUNDS_LOG2: std::ops::RangeInclusive<u32> = 7..=34;

/// A text that is being written. Families come one after another; a family's samples follow it.
pub struct Text {
    text: String,
    /// On every sample.
    common: String,
}

/// A name and its value.
pub type Label<'l> = (&'l str, &'l str);

impl Text {
    /// Nothing yet; every sample will have this label.
    pub fn new(label: Label<'_>) -> Self {
        Self { text: String::new(), common: shown(label) }
    }

    /// The whole text.
    pub fn finish(mut self) -> String {
        self.text.push_str("# EOF\n");
        self.text
    }

    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# TYPE {name} {kind}");
        if let Some(unit) =
            ["bytes", "seconds", "ratio"].into_iter().find(|unit| name.strip_suffix(unit).is_some_and(|rest| rest.ends_with('_')))
        {
            let _ = writeln!(self.text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(self.text, "# HELP {name} {}", escaped(help));
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: impl Display) {
        let _ = write!(self.text, "{name}{{{}", self.common);
        for label in labels {
            let _ = write!(self.text, ",{}", shown(*label));
        }
        let _ = writeln!(self.text, "}} {value}");
    }

    /// A family of counters. Nothing where there are no samples.
    pub fn counters<'l>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Vec<Label<'l>>, u64)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.family(name, "counter", help);
        }
        samples.for_each(|(labels, value)| self.sample(&format!("{name}_total"), &labels, value));
    }

    /// A counter.
    pub fn counter(&mut self, name: &str, help: &str, value: Option<u64>) {
        self.counters(name, help, value.map(|value| (Vec::new(), value)));
    }

    /// A family of gauges. Nothing where there are no samples.
    pub fn gauges<'l>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Vec<Label<'l>>, f64)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.family(name, "gauge", help);
        }
        samples.for_each(|(labels, value)| self.sample(name, &labels, value));
    }

    /// A gauge.
    pub fn gauge(&mut self, name: &str, help: &str, value: Option<f64>) {
        self.gauges(name, help, value.map(|value| (Vec::new(), value)));
    }

    /// What does not change while the mount is there.
    pub fn information(&mut self, name: &str, help: &str, labels: &[Label<'_>]) {
        self.family(name, "info", help);
        self.sample(&format!("{name}_info"), labels, 1);
    }

    /// A family of histograms of times.
    pub fn histograms<'l>(&mut self, name: &str, help: &str, samples: impl IntoIterator<Item = (Vec<Label<'l>>, LatencyCounts)>) {
        let mut samples = samples.into_iter().peekable();
        if samples.peek().is_some() {
            self.family(name, "histogram", help);
        }
        for (labels, counts) in samples {
            let bucket = format!("{name}_bucket");
            for bound_ns in BOUNDS_LOG2.map(|log2| 1_u64 << log2) {
                let bound = format!("{}", bound_ns as f64 / 1e9);
                let labels: Vec<Label<'_>> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
                self.sample(&bucket, &labels, counts.below(bound_ns));
            }
            let all: Vec<Label<'_>> = labels.iter().copied().chain([("le", "+Inf")]).collect();
            self.sample(&bucket, &all, counts.samples());
            self.sample(&format!("{name}_count"), &labels, counts.samples());
            self.sample(&format!("{name}_sum"), &labels, counts.sum_ns() as f64 / 1e9);
        }
    }
}

fn shown((name, value): Label<'_>) -> String {
    format!("{name}=\"{}\"", escaped(value))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('"', "\\\"")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_units_labels_are_escaped_and_the_text_ends() {
        let mut text = Text::new(("mountpoint", "/a \"b\"\\c\nd"));
        text.counter("t_read_bytes", "Bytes.", Some(7));
        text.counter("t_absent", "Nothing.", None);
        text.gauges("t_share_ratio", "A share.", [(vec![("zone", "memory")], 0.25), (vec![("zone", "block")], 1.0)]);
        text.information("t_mount", "What it is.", &[("mode", "strict")]);
        let expected = r#"# TYPE t_read_bytes counter
# UNIT t_read_bytes bytes
# HELP t_read_bytes Bytes.
t_read_bytes_total{mountpoint="/a \"b\"\\c\nd"} 7
# TYPE t_share_ratio gauge
# UNIT t_share_ratio ratio
# HELP t_share_ratio A share.
t_share_ratio{mountpoint="/a \"b\"\\c\nd",zone="memory"} 0.25
t_share_ratio{mountpoint="/a \"b\"\\c\nd",zone="block"} 1
# TYPE t_mount info
# HELP t_mount What it is.
t_mount_info{mountpoint="/a \"b\"\\c\nd",mode="strict"} 1
# EOF
"#;
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn buckets_are_cumulative_and_always_the_same() {
        let mut text = Text::new(("mountpoint", "/m"));
        text.histograms("t_seconds", "Times.", [(vec![("of", "x")], LatencyCounts(vec![(128, 2), (144, 1), (1 << 40, 4)]))]);
        let text = text.finish();
        let values: Vec<&str> =
            text.lines().filter(|line| line.contains("_bucket")).map(|line| line.rsplit(' ').next().unwrap_or("")).collect();
        assert_eq!(values.len(), 29);
        assert_eq!((values[0], values[1], values[27], values[28]), ("2", "3", "3", "7"), "{text}");
        assert!(text.contains("t_seconds_bucket{mountpoint=\"/m\",of=\"x\",le=\"0.000000128\"} 2\n"), "{text}");
        assert!(text.contains("t_seconds_count{mountpoint=\"/m\",of=\"x\"} 7\n"), "{text}");
    }
}
