//! What is told to a target while it runs, and asked of it: messages, status, suspending
//! (`dm_message_fn`, `dm_status_fn`, `dm_presuspend_fn`). None of it is on the data path.

use alloc::string::String;

use super::TargetCx;

/// How a device is suspended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Suspend {
    /// Everything in flight ends first, in an error if it must.
    Flush,
    /// What cannot go on is kept until the device is resumed (`dmsetup suspend --noflush`).
    NoFlush,
}

/// Why a message was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// `EBUSY`.
    #[error("the device is suspended; resume it first")]
    Suspended,
    /// `EINVAL`: what is wrong.
    #[error("{0}")]
    Invalid(String),
}

/// What a target says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetStatus {
    /// `STATUSTYPE_INFO`.
    pub info: String,
    /// `STATUSTYPE_TABLE`.
    pub table: String,
}

/// The control path of a target.
pub trait TargetControl {
    /// Does what a message says.
    ///
    /// # Errors
    /// When it is refused; nothing has changed then.
    fn message(&mut self, text: &str, cx: &mut TargetCx<'_>) -> Result<(), MessageError>;

    /// How it is (`STATUSTYPE_INFO`).
    fn info(&self) -> String;

    /// The arguments of its line as they are now (`STATUSTYPE_TABLE`).
    fn table(&self) -> String;

    /// The device is about to be suspended.
    fn suspend(&mut self, how: Suspend, cx: &mut TargetCx<'_>);

    /// It goes on.
    fn resume(&mut self, cx: &mut TargetCx<'_>);
}
