//! Streams for text and JSON: standard output, and the error stream for failures and progress.
//!
//! Owns the decision between text and JSON, and the answer to a reader that goes away. Never panics on a closed pipe.
//!
//! Invariant I1: with `--json`, standard output carries exactly one JSON object, on one line.

use std::fmt;
use std::io::{self, BufWriter, StdoutLock, Write};
use std::path::Path;

use serde::Serialize;

/// Form of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Aligned text for people.
    Text,
    /// One JSON object.
    Json,
}

/// A count with its word: `1 row`, `2 rows`.
pub(crate) fn counted<N>(count: N, one: &str, many: &str) -> String
where
    N: fmt::Display + PartialEq + From<u8>,
{
    let word = if count == N::from(1) { one } else { many };
    format!("{count} {word}")
}

/// A path as text for JSON: bytes that are no text become U+FFFD.
pub(crate) fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// Standard output, buffered, in one of two forms.
#[derive(Debug)]
pub(crate) struct Output {
    form: Form,
    stream: BufWriter<StdoutLock<'static>>,
}

impl Output {
    /// Output in `form`.
    #[must_use]
    pub(crate) fn new(form: Form) -> Self {
        Self { form, stream: BufWriter::new(io::stdout().lock()) }
    }

    /// Form of the output.
    #[must_use]
    pub(crate) const fn form(&self) -> Form {
        self.form
    }

    /// The stream, for output that is written piece by piece.
    pub(crate) const fn stream(&mut self) -> &mut impl Write {
        &mut self.stream
    }

    /// Writes `value` as one line of JSON, or the text that `text` makes.
    ///
    /// # Errors
    ///
    /// Errors of the stream; a closed pipe among them.
    pub(crate) fn show(
        &mut self,
        value: &impl Serialize,
        text: impl FnOnce() -> String,
    ) -> io::Result<()> {
        match self.form {
            Form::Json => {
                serde_json::to_writer(&mut self.stream, value)?;
                writeln!(self.stream)
            }
            Form::Text => write!(self.stream, "{}", text()),
        }
    }

    /// Hands everything to the operating system.
    ///
    /// # Errors
    ///
    /// Errors of the stream; a closed pipe among them.
    pub(crate) fn finish(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}
