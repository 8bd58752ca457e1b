//! Progress of a copy or of a series of runs: a bar on standard error if that is a terminal, else
//! nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Redraws per second; more is flicker, and slow on some terminals.
const REDRAWS_PER_SECOND: u8 = 5;

/// A visible or hidden bar.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `len_bytes`, or a spinner for an unknown length. Starts at 0.
    pub(crate) fn new(len_bytes: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(
            len_bytes,
            ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND),
        );
        let template = match len_bytes {
            Some(_) => "{wide_bar} {bytes} of {total_bytes}  {bytes_per_sec}  {eta} left ",
            None => "{spinner} {bytes}  {bytes_per_sec} ",
        };
        bar.set_style(
            ProgressStyle::with_template(template).expect("the template is one of two constants"),
        );
        if len_bytes.is_none() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Self { bar }
    }

    /// A bar of this many long steps.
    #[cfg(feature = "lab")]
    pub(crate) fn steps(count: u64) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(count), target);
        let template = "{wide_bar} {pos} of {len}  {eta} left ";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style);
        Self { bar }
    }

    /// A bar of the points of a fit, with text beside it.
    #[cfg(feature = "lab")]
    pub(crate) fn points(count: u64) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(count), target);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} points  {msg} ");
        bar.set_style(style.expect("the template is a constant"));
        Self { bar }
    }

    /// A bar in thousandths, with text beside it.
    pub(crate) fn with_words() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg} ");
        bar.set_style(style.expect("the template is a constant"));
        Self { bar }
    }

    /// True if the bar is not visible.
    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// Sets the text beside the bar.
    pub(crate) fn say(&self, words: String) {
        self.bar.set_message(words);
    }

    /// Sets the number of all steps.
    #[cfg(feature = "lab")]
    pub(crate) fn len(&self, steps: u64) {
        self.bar.set_length(steps);
    }

    /// Sets the number of completed bytes or steps.
    pub(crate) fn at(&self, done_bytes: u64) {
        self.bar.set_position(done_bytes);
    }
}

/// A bar of steps, whose number is known with the first of them; it disappears with the last.
#[cfg(feature = "lab")]
#[derive(Default)]
pub(crate) struct Steps(std::sync::Mutex<Option<Progress>>);

#[cfg(feature = "lab")]
impl Steps {
    /// Sets the number of completed steps and of all steps; on any thread.
    pub(crate) fn at(&self, done: usize, all: usize) {
        let mut bar = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        bar.get_or_insert_with(|| Progress::steps(all as u64)).at(done as u64);
        if done == all {
            *bar = None;
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
