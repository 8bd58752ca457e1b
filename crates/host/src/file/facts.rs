//! Facts about the block device below, from `/sys`.

use std::path::PathBuf;

/// Facts that determine the queueing of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The device is rotational; for a file, the device of its file system. Unknown means no.
    pub(crate) rotational: bool,
    /// Scheduler in the kernel below, if the device is a block device with a request queue.
    pub(crate) kernel_scheduler: Option<String>,
}

impl Facts {
    /// Facts from `/sys` about the block device with this number. `is_volume`: the device is the
    /// volume itself, not the device under a file.
    pub(crate) fn of(device: u64, is_volume: bool) -> Self {
        let major = rustix::fs::major(device);
        let minor = rustix::fs::minor(device);
        let node = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition's queue is in the folder of its disk.
        let fact = |name: &str| {
            let read = |folder: &str| std::fs::read_to_string(node.join(folder).join(name));
            read("queue").or_else(|_| read("../queue")).ok()
        };
        let scheduler = fact("scheduler").filter(|_| is_volume);
        Self {
            rotational: fact("rotational").is_some_and(|text| text.trim() == "1"),
            kernel_scheduler: scheduler.and_then(|text| active(&text).map(str::to_owned)),
        }
    }
}

/// The word in brackets: `none [mq-deadline] kyber`. A bio-based device (most dm devices) has none.
fn active(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_scheduler_is_the_one_in_brackets() {
        assert_eq!(active("[none] mq-deadline kyber\n"), Some("none"));
        assert_eq!(active("none [mq-deadline]\n"), Some("mq-deadline"));
        assert_eq!(active("none\n"), None);
    }

    #[test]
    fn unknown_device_does_not_seek_and_schedules_nothing() {
        assert_eq!(Facts::of(rustix::fs::makedev(0xffe, 0xffffe), true), Facts::default());
    }
}
