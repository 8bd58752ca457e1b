//! Control path of a target: messages, status, suspension (`dm_message_fn`, `dm_status_fn`,
//! `dm_presuspend_fn`).

use alloc::string::String;

use super::TargetCx;

/// Kind of suspension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspend {
    /// All I/O in flight ends first, with an error if necessary.
    Flush,
    /// Blocked I/O is kept until the device is resumed (`dmsetup suspend --noflush`).
    NoFlush,
}

/// The reason why a message was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// `EBUSY`.
    #[error("the device is suspended; resume it first")]
    Suspended,
    /// `EINVAL`, with the problem.
    #[error("{0}")]
    Invalid(String),
}

/// Status of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// `STATUSTYPE_INFO`.
    pub info: String,
    /// `STATUSTYPE_TABLE`.
    pub table: String,
}

/// The control path of a target.
pub trait TargetControl {
    /// Executes a message.
    ///
    /// # Errors
    /// When the message is refused; the target is unchanged then.
    fn message(&mut self, text: &str, cx: &mut TargetCx<'_>) -> Result<(), MessageError>;

    /// State (`STATUSTYPE_INFO`).
    fn info(&self) -> String;

    /// Current arguments of the line (`STATUSTYPE_TABLE`).
    fn table(&self) -> String;

    /// Prepares for suspension.
    fn suspend(&mut self, how: Suspend, cx: &mut TargetCx<'_>);

    /// Resumes after a suspension.
    fn resume(&mut self, cx: &mut TargetCx<'_>);
}
