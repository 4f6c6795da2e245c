use std::fmt::{self, Display};

/// Why a measurement failed, as a sentence. Callers do not distinguish reasons, except for closed standard output.
#[derive(Debug)]
pub struct Failure {
    sentence: String,
    output_closed: bool,
}

impl Failure {
    /// A failure with this sentence.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self { sentence: sentence.into(), output_closed: false }
    }

    /// Standard output was closed by its reader (`tandemfs-bench | head`).
    pub(crate) fn output_closed() -> Self {
        Self { output_closed: true, ..Self::new("standard output was closed") }
    }

    pub(crate) fn is_output_closed(&self) -> bool {
        self.output_closed
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.sentence)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(error.to_string())
    }
}

/// Result of the benchmark's own functions.
pub type Result<T> = std::result::Result<T, Failure>;
