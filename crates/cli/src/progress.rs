//! How far a copy or a series of runs has come, for a person who watches: a bar on standard error
//! if that is a terminal, and nothing otherwise.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Redraws a second; more is flicker, and costs a slow terminal time.
const REDRAWS_PER_SECOND: u8 = 5;

/// A bar that is there or not.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar of `len_bytes`, or a spinner where the length is unknown. Starts at 0.
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

    /// A bar of so many steps, which take long.
    #[cfg(feature = "lab")]
    pub(crate) fn steps(count: u64) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(count), target);
        let template = "{wide_bar} {pos} of {len}  {eta} left ";
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style);
        Self { bar }
    }

    /// A bar of the points of a fit, with words beside it.
    #[cfg(feature = "lab")]
    pub(crate) fn points(count: u64) -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(count), target);
        let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} points  {msg} ");
        bar.set_style(style.expect("the template is a constant"));
        Self { bar }
    }

    /// A bar of parts of a thousand, with words beside it.
    pub(crate) fn with_words() -> Self {
        let target = ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND);
        let bar = ProgressBar::with_draw_target(Some(1000), target);
        let style = ProgressStyle::with_template("{wide_bar} {percent:>3} %  {msg} ");
        bar.set_style(style.expect("the template is a constant"));
        Self { bar }
    }

    /// Whether nobody sees it.
    pub(crate) fn is_hidden(&self) -> bool {
        self.bar.is_hidden()
    }

    /// The words beside the bar.
    pub(crate) fn say(&self, words: String) {
        self.bar.set_message(words);
    }

    /// Says how many bytes or steps are done.
    pub(crate) fn at(&self, done_bytes: u64) {
        self.bar.set_position(done_bytes);
    }
}

/// A bar of steps whose number comes with the first of them; it goes with the last.
#[cfg(feature = "lab")]
#[derive(Default)]
pub(crate) struct Steps(std::sync::Mutex<Option<Progress>>);

#[cfg(feature = "lab")]
impl Steps {
    /// Says how many of how many steps are done; on any thread.
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
