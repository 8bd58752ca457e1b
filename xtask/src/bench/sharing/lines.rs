//! Cache lines, and the threads that use them.

use super::code::Access;
use std::collections::HashMap;

/// Size of a cache line of x86.
const LINE_BYTES: u64 = 64;

/// Frames of a chain.
const FRAMES: usize = 8;

/// Address of an instruction, and those of the calls that it is in, the innermost first.
pub(super) type Chain = [u64; FRAMES];

/// The bytes of a line that a thread has used, a bit for each.
#[derive(Clone, Copy, Default)]
struct Used {
    read: u64,
    written: u64,
}

#[derive(Default)]
struct Line {
    by_thread: Vec<(usize, Used)>,
    /// Executions of its instructions.
    executions: HashMap<Chain, u64>,
}

/// A line that a thread writes, and another one reads or writes.
pub(super) struct Shared {
    /// Requests that use it, at least: executions of its most frequent instruction.
    pub(super) requests: u64,
    /// Whether no two threads use the same byte of it.
    pub(super) is_false: bool,
    pub(super) executions: HashMap<Chain, u64>,
}

/// Lines by their number.
#[derive(Default)]
pub(super) struct Lines(HashMap<u64, Line>);

impl Lines {
    pub(super) fn add(&mut self, thread: usize, chain: &Chain, access: Access) {
        let end = access.address.saturating_add(access.len_bytes.max(1));
        let mut at = access.address;
        while at < end {
            let number = at / LINE_BYTES;
            let line_end = end.min((number + 1) * LINE_BYTES);
            let bytes = mask(at % LINE_BYTES, line_end - at);
            self.0.entry(number).or_default().add(thread, chain, bytes, access);
            at = line_end;
        }
    }

    /// The lines that threads share.
    pub(super) fn shared(self) -> Vec<Shared> {
        self.0.into_values().filter_map(Line::shared).collect()
    }
}

/// The bits of these bytes.
fn mask(first: u64, len_bytes: u64) -> u64 {
    let ones = if len_bytes == LINE_BYTES { u64::MAX } else { (1 << len_bytes) - 1 };
    ones << first
}

impl Line {
    fn add(&mut self, thread: usize, chain: &Chain, bytes: u64, access: Access) {
        let at = self.by_thread.iter().position(|(of, _)| *of == thread);
        let at = at.unwrap_or_else(|| {
            self.by_thread.push((thread, Used::default()));
            self.by_thread.len() - 1
        });
        let used = &mut self.by_thread[at].1;
        used.read |= if access.reads { bytes } else { 0 };
        used.written |= if access.writes { bytes } else { 0 };
        *self.executions.entry(*chain).or_default() += 1;
    }

    fn shared(self) -> Option<Shared> {
        let is_written = self.by_thread.iter().any(|(_, used)| used.written != 0);
        if self.by_thread.len() < 2 || !is_written {
            return None;
        }
        let pairs = self.by_thread.iter().flat_map(|one| {
            self.by_thread.iter().filter(|other| other.0 != one.0).map(|other| (one.1, other.1))
        });
        let meet = |(one, other): (Used, Used)| one.written & (other.read | other.written) != 0;
        let is_false = !pairs.into_iter().any(meet);
        let mut by_instruction: HashMap<u64, u64> = HashMap::new();
        for (chain, count) in &self.executions {
            *by_instruction.entry(chain[0]).or_default() += count;
        }
        let requests = by_instruction.into_values().max().unwrap_or_default();
        Some(Shared { requests, is_false, executions: self.executions })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64, len_bytes: u64, writes: bool) -> Access {
        Access { address, len_bytes, reads: !writes, writes }
    }

    #[test]
    fn line_is_shared_if_one_thread_writes_and_another_reads() {
        let mut lines = Lines::default();
        for address in [0, 64] {
            lines.add(0, &[1; FRAMES], access(address, 8, false));
            lines.add(1, &[2; FRAMES], access(address, 8, address == 64));
            lines.add(1, &[2; FRAMES], access(address, 8, address == 64));
        }
        lines.add(0, &[1; FRAMES], access(128, 8, true));
        let shared = lines.shared();
        assert_eq!(shared.len(), 1, "two threads read one line, and one uses another alone");
        assert_eq!((shared[0].requests, shared[0].is_false), (2, false));
    }

    #[test]
    fn different_bytes_of_a_line_are_shared_falsely() {
        let mut lines = Lines::default();
        lines.add(0, &[1; FRAMES], access(0, 8, true));
        lines.add(1, &[1; FRAMES], access(56, 16, true));
        let shared = lines.shared();
        assert_eq!(shared.len(), 1, "the second access continues in a line of its own");
        assert!(shared[0].is_false);
    }
}
