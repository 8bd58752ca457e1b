//! Messages of an operator to a running multipath target (`multipath_message`).
//!
//! | message | what it does |
//! |---|---|
//! | `queue_if_no_path`, `fail_if_no_path` | I/O without a live path waits, or fails |
//! | `switch_group <n>` | the next I/O goes to this group; no group is disabled any more |
//! | `disable_group <n>`, `enable_group <n>` | the group is a last resort, or normal again |
//! | `fail_path <device>`, `reinstate_path <device>` | all paths with that name |
//!
//! Groups count from one. A suspended target refuses all messages.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::{FailedBy, Multipath, PathId};
use crate::dm::control::MessageError;
use crate::dm::words::shown;
use crate::time::Nanos;

const KNOWN: &str = "there are queue_if_no_path, fail_if_no_path, switch_group <n>, disable_group \
                     <n>, enable_group <n>, fail_path <device> and reinstate_path <device>";

impl Multipath {
    /// Executes a message.
    ///
    /// # Errors
    /// When the target is suspended (`EBUSY`), or the message is unknown or names an unknown object
    /// (`EINVAL`); the target is unchanged then.
    pub fn message(&mut self, now: Nanos, text: &str) -> Result<(), MessageError> {
        if self.suspended.is_some() {
            return Err(MessageError::Suspended);
        }
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let [name, args @ ..] = words.as_slice() else {
            return Err(MessageError::Invalid(format!("the message is empty; {KNOWN}")));
        };
        match (name.to_ascii_lowercase().as_str(), args) {
            ("queue_if_no_path", []) => self.queue_if_no_path = true,
            ("fail_if_no_path", []) => self.queue_if_no_path = false,
            ("switch_group", [group]) => {
                let group = self.group(group)?;
                self.groups.iter_mut().for_each(|group| group.bypassed = false);
                self.preferred = group;
                self.switch_to(group);
            }
            ("disable_group", [group]) => self.bypass(group, true)?,
            ("enable_group", [group]) => self.bypass(group, false)?,
            ("fail_path", [device]) => {
                for path in self.named(device)? {
                    self.fail_path(now, path, FailedBy::Operator);
                }
            }
            ("reinstate_path", [device]) => {
                for path in self.named(device)? {
                    self.reinstate_path(now, path);
                }
            }
            ("queue_if_no_path" | "fail_if_no_path", args) => {
                return Err(count(name, "no argument", args));
            }
            ("switch_group" | "disable_group" | "enable_group", args) => {
                return Err(count(name, "the number of a group", args));
            }
            ("fail_path" | "reinstate_path", args) => {
                return Err(count(name, "the name of a device", args));
            }
            _ => {
                let problem = format!("message `{}` is unknown; {KNOWN}", shown(name));
                return Err(MessageError::Invalid(problem));
            }
        }
        Ok(())
    }

    fn bypass(&mut self, group: &str, bypassed: bool) -> Result<(), MessageError> {
        let group = self.group(group)?;
        self.groups[group].bypassed = bypassed;
        self.current = None;
        self.events += 1;
        Ok(())
    }

    /// The group with this number.
    fn group(&self, text: &str) -> Result<usize, MessageError> {
        let count = self.groups.len();
        let number: Option<usize> = text.parse().ok().filter(|number| (1..=count).contains(number));
        number.map(|number| number - 1).ok_or_else(|| {
            let problem = format!("group `{}` is not one of 1 to {count}", shown(text));
            MessageError::Invalid(problem)
        })
    }

    /// The paths with this name, at least one.
    fn named(&self, device: &str) -> Result<Vec<PathId>, MessageError> {
        let named = self.paths().zip(self.spec.paths()).filter(|(_, path)| path.device == device);
        let paths: Vec<PathId> = named.map(|(id, _)| id).collect();
        if paths.is_empty() {
            let problem = format!("no path is named `{}`", shown(device));
            return Err(MessageError::Invalid(problem));
        }
        Ok(paths)
    }
}

fn count(name: &str, takes: &str, args: &[&str]) -> MessageError {
    let problem: String = format!("message {} takes {takes}, but has {}", shown(name), args.len());
    MessageError::Invalid(problem)
}
