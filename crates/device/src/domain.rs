use std::fmt;
use std::str::FromStr;

/// Persistence domain: which failures a store survives. A mount may choose a weaker domain, never a stronger one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PersistenceDomain {
    /// A store survives nothing.
    None,
    /// A store survives the death of the process, not a power failure: a regular file, an image on an ordinary disk.
    Process,
    /// A store survives once it was flushed and fenced. Before, 64 B lines are lost or kept in any order; 8 B words are atomic.
    Adr,
    /// A store that retired survives (eADR, CXL Global Persistent Flush). No flush is needed.
    Gpf,
}

impl PersistenceDomain {
    /// Whether a store must be flushed from the CPU's caches to survive.
    pub fn needs_flush(self) -> bool {
        self == Self::Adr
    }

    /// The name in options, JSON and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Process => "process",
            Self::Adr => "adr",
            Self::Gpf => "gpf",
        }
    }
}

impl fmt::Display for PersistenceDomain {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl FromStr for PersistenceDomain {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            "process" => Ok(Self::Process),
            "adr" => Ok(Self::Adr),
            "gpf" | "eadr" => Ok(Self::Gpf),
            other => Err(format!("'{other}' is no persistence domain; one of none, process, adr, eadr, gpf")),
        }
    }
}
