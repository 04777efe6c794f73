//! A progress line on the error stream during long work.
//!
//! Owns the line; knows nothing of the work. Draws on terminals only, and never with `--json`.

use std::borrow::Cow;
use std::io::{IsTerminal, stderr};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Form;

/// Progress of a command: a phase, and how much of it is done.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
    phase: String,
}

impl Progress {
    /// A line for output in `form`, drawn only when somebody can see it.
    #[must_use]
    pub(crate) fn new(form: Form) -> Self {
        let visible = form == Form::Text && stderr().is_terminal();
        let target =
            if visible { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Self { bar: ProgressBar::with_draw_target(None, target), phase: String::new() }
    }

    /// A line that shows that `phase` goes on, for work without a measure of its progress.
    #[must_use]
    pub(crate) fn spinning(form: Form, phase: &str) -> Self {
        let mut progress = Self::new(form);
        progress.report(phase, 0, 0);
        progress
    }

    /// Says that `done` of `total` is done in `phase`; a total of 0 means that it is not known.
    pub(crate) fn report(&mut self, phase: &str, done: u64, total: u64) {
        if self.phase != phase {
            self.begin(phase, total);
        }
        if total > 0 {
            self.bar.set_length(total);
        }
        self.bar.set_position(done);
    }

    /// Starts a phase: a new line length, and the clock from zero.
    fn begin(&mut self, phase: &str, total: u64) {
        phase.clone_into(&mut self.phase);
        let style = if total > 0 { BAR } else { SPINNER };
        // The templates are constants; a bad one would leave the default style.
        if let Ok(style) = ProgressStyle::with_template(style) {
            self.bar.set_style(style.progress_chars("=> "));
        }
        self.bar.set_message(Cow::Owned(phase.to_owned()));
        self.bar.reset();
        // No earlier: a line without its phase would be drawn first, in another style.
        if !self.bar.is_hidden() {
            self.bar.enable_steady_tick(Duration::from_millis(200));
        }
    }

    /// Removes the line.
    pub(crate) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

const BAR: &str = "{msg:28} [{bar:32}] {human_pos}/{human_len} {per_sec} {eta}";
const SPINNER: &str = "{msg:28} {spinner} {human_pos} {elapsed}";
