//! Requests in the order of their sectors (`elv_rb_add`, the `sort_list` of the schedulers).
//!
//! Requests may start at the same sector: the one that came later lies behind. The order is a
//! position, not a list: a request that was taken out can still be asked for its neighbours by
//! sector.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crate::bio::Sector;
use crate::mq::request::RequestId;

/// Sector, then order of arrival.
type Key = (Sector, u64);

/// A sort tree. Every request is in it at most once.
#[derive(Debug, Default)]
pub struct SortTree {
    tree: BTreeMap<Key, RequestId>,
    /// By request.
    keys: Vec<Option<Key>>,
    arrivals: u64,
}

impl SortTree {
    /// Puts a request at its sector, behind others that start there.
    pub fn insert(&mut self, id: RequestId, sector: Sector) {
        if self.keys.len() <= id.index() {
            self.keys.resize(id.index() + 1, None);
        }
        assert!(self.keys[id.index()].is_none(), "a request is in a tree once");
        let key = (sector, self.arrivals);
        self.arrivals += 1;
        self.keys[id.index()] = Some(key);
        self.tree.insert(key, id);
    }

    /// Takes a request out.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, id: RequestId) {
        let key = self.keys[id.index()].take().expect("the request is in this tree");
        self.tree.remove(&key);
    }

    /// Whether it is there.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.keys.get(id.index()).is_some_and(Option::is_some)
    }

    /// The request behind one that is there (`elv_rb_latter_request`).
    #[must_use]
    pub fn next(&self, id: RequestId) -> Option<RequestId> {
        let (sector, arrival) = self.keys[id.index()].expect("the request is in this tree");
        self.tree.range((sector, arrival + 1)..).next().map(|(_, next)| *next)
    }

    /// The request in front of one that is there (`elv_rb_former_request`).
    #[must_use]
    pub fn prev(&self, id: RequestId) -> Option<RequestId> {
        let key = self.keys[id.index()].expect("the request is in this tree");
        self.tree.range(..key).next_back().map(|(_, prev)| *prev)
    }

    /// The first request that starts at `sector` or behind it.
    #[must_use]
    pub fn first_from(&self, sector: Sector) -> Option<RequestId> {
        self.tree.range((sector, 0)..).next().map(|(_, id)| *id)
    }

    /// The last request that starts in front of `sector`.
    #[must_use]
    pub fn last_before(&self, sector: Sector) -> Option<RequestId> {
        self.tree.range(..(sector, 0)).next_back().map(|(_, id)| *id)
    }

    /// The request with the lowest sector.
    #[must_use]
    pub fn first(&self) -> Option<RequestId> {
        self.tree.first_key_value().map(|(_, id)| *id)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tree.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tree.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_sectors_keep_their_order_of_arrival() {
        let mut tree = SortTree::default();
        for (id, sector) in [(0, 50), (1, 20), (2, 50), (3, 80)] {
            tree.insert(RequestId(id), Sector(sector));
        }
        let mut order = alloc::vec![tree.first().unwrap()];
        while let Some(next) = tree.next(order[order.len() - 1]) {
            order.push(next);
        }
        assert_eq!(order, [1, 0, 2, 3].map(RequestId));
        assert_eq!(tree.prev(RequestId(2)), Some(RequestId(0)));
        assert_eq!(tree.prev(RequestId(1)), None);
    }

    #[test]
    fn positions_without_a_request_have_neighbours() {
        let mut tree = SortTree::default();
        tree.insert(RequestId(0), Sector(10));
        tree.insert(RequestId(1), Sector(30));
        tree.remove(RequestId(0));
        tree.insert(RequestId(0), Sector(20));
        assert_eq!(tree.first_from(Sector(20)), Some(RequestId(0)));
        assert_eq!(tree.first_from(Sector(21)), Some(RequestId(1)));
        assert_eq!(tree.last_before(Sector(20)), None);
        assert_eq!(tree.first_from(Sector(31)), None);
    }
}
