//! The waiting requests of one client under `cfq` and `bfq`: the order of the sectors, the order of
//! arrival, and the request that the head prefers.
//!
//! The head prefers to go forward. A request behind it is a candidate too if it is at most
//! `back_seek_max` away, at `back_seek_penalty` times its distance. (The kernel compares
//! synchronousness first, which is equal within one queue.)
//!
//! ```text
//!            <-- back_seek_max --> head
//!    ...wraps..|..100........150...|..........260........> sectors
//!                       50 · 2 = 100     60: nearest, served next
//! ```

use super::fifo::Fifo;
use super::sort::SortTree;
use crate::bio::Sector;
use crate::request::{RequestId, Requests};

/// Waiting requests of one client.
#[derive(Debug, Default)]
pub struct Nearest {
    sort: SortTree,
    fifo: Fifo,
    /// Preferred request and its sector; while there is none, the sector is meaningless.
    next: Option<RequestId>,
    next_sector: Sector,
}

impl Nearest {
    /// The request that the head prefers.
    #[must_use]
    pub fn next(&self) -> Option<RequestId> {
        self.next
    }

    /// First sector of the preferred request, or of the last one that was.
    #[must_use]
    pub fn next_sector(&self) -> Sector {
        self.next_sector
    }

    /// The request that arrived first.
    #[must_use]
    pub fn oldest(&self) -> Option<RequestId> {
        self.fifo.front()
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.fifo.len()
    }

    /// Whether no request waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.fifo.is_empty()
    }

    /// Adds a request.
    pub fn add(&mut self, id: RequestId, requests: &Requests, head: Head) {
        let sector = requests[id].sector;
        self.sort.insert(id, sector);
        self.fifo.push_back(id);
        self.consider(id, sector, head);
    }

    /// Makes this request the next one if it is better.
    fn consider(&mut self, id: RequestId, sector: Sector, head: Head) {
        if self.next.is_none() || head.is_better(sector, self.next_sector) {
            self.next = Some(id);
            self.next_sector = sector;
        }
    }

    /// Removes a request for dispatch: the head goes there.
    ///
    /// # Panics
    /// When it does not wait here.
    pub fn remove(&mut self, id: RequestId, requests: &Requests, reach: BackwardReach) {
        self.fifo.remove(id);
        if self.next != Some(id) {
            self.sort.remove(id);
            return;
        }
        let [before, after] = self.sort.remove_between(id);
        let after = after.or_else(|| self.sort.first()); // the lowest follows the last one
        self.next = None;
        let head = Head { at: requests[id].sector, reach };
        for candidate in [after, before].into_iter().flatten() {
            self.consider(candidate, requests[candidate].sector, head);
        }
    }

    /// Handles a waiting request's new start sector.
    ///
    /// # Panics
    /// When it does not wait here.
    pub fn moved(&mut self, id: RequestId, requests: &Requests, head: Head) {
        self.sort.remove(id);
        let sector = requests[id].sector;
        self.sort.insert(id, sector);
        if self.next == Some(id) {
            self.next_sector = sector;
        } else {
            self.consider(id, sector, head);
        }
    }

    /// Handles the merge of `absorbed` into `survivor`, which takes the earlier place in the order
    /// of arrival.
    ///
    /// # Panics
    /// When one of them does not wait here.
    pub fn absorb(&mut self, survivor: RequestId, absorbed: RequestId, is_older: bool) {
        self.sort.remove(absorbed);
        if is_older {
            self.fifo.take_place(survivor, absorbed);
        } else {
            self.fifo.remove(absorbed);
        }
        if self.next == Some(absorbed) {
            self.next = Some(survivor);
        }
    }
}

/// Limits of backward seeks (`back_seek_max`, `back_seek_penalty`).
#[derive(Clone, Copy, Debug)]
pub struct BackwardReach {
    /// Greatest distance.
    pub max_sectors: u64,
    /// Cost factor of the distance.
    pub penalty: u64,
}

/// Position of the head, and the cost of moving it.
#[derive(Clone, Copy, Debug)]
pub struct Head {
    /// The sector after the last request.
    pub at: Sector,
    /// Limits of backward seeks.
    pub reach: BackwardReach,
}

/// Cost of a move: all requests within reach are cheaper than the others, of which the lowest
/// sector is best.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum SeekCost {
    Reach(u64),
    Wrap(Sector),
}

impl Head {
    /// Whether `other` is the better one of two candidates (`cfq_choose_req`, `bfq_choose_req`).
    fn is_better(self, other: Sector, one: Sector) -> bool {
        let seek_cost = self.seek_cost(one);
        let other_cost = self.seek_cost(other);
        // At equal distance the higher one: the head keeps its direction.
        other_cost < seek_cost || (other_cost == seek_cost && other > one)
    }

    fn seek_cost(self, to: Sector) -> SeekCost {
        let back = self.at.0.saturating_sub(to.0);
        if back == 0 {
            SeekCost::Reach(to.0 - self.at.0)
        } else if back <= self.reach.max_sectors {
            SeekCost::Reach(back.saturating_mul(self.reach.penalty))
        } else {
            SeekCost::Wrap(to)
        }
    }
}
