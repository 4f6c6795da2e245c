//! What the doctor finds.

use serde_json::{Value, json};

/// How much it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Somebody should look at it: data, space or much speed is at stake.
    Unusual,
    /// Good to know. It does not change the exit status.
    Note,
}

/// Something that is not as on a machine and a drive that are set up well.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// For scripts; names stay.
    pub name: &'static str,
    pub level: Level,
    /// What was found.
    pub what: String,
    /// What to do.
    pub advice: String,
}

impl Finding {
    pub fn unusual(name: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, level: Level::Unusual, what: what.into(), advice: advice.into() }
    }

    pub fn note(name: &'static str, what: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, level: Level::Note, what: what.into(), advice: advice.into() }
    }

    pub fn json(&self) -> Value {
        let level = match self.level {
            Level::Unusual => "unusual",
            Level::Note => "note",
        };
        json!({ "name": self.name, "level": level, "what": self.what, "advice": self.advice })
    }
}

/// Names of findings, in order, for tests.
#[cfg(test)]
pub fn names(findings: &[Finding]) -> Vec<&'static str> {
    findings.iter().map(|finding| finding.name).collect()
}
