use std::fmt::{self, Display};

/// Why nothing was measured: a sentence. Nobody handles the reasons apart, so there is one type.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    /// With a sentence of its own.
    pub fn new(sentence: impl Into<String>) -> Self {
        Self(sentence.into())
    }
}

impl Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl<E: std::error::Error> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(error.to_string())
    }
}

/// Result of the benchmark's own functions.
pub type Result<T> = std::result::Result<T, Failure>;
