//! Requests in the order of arrival, with removal from the middle (`list_head`).

use alloc::vec::Vec;

use crate::request::RequestId;

/// Neighbours of a request in the list, as places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Links {
    prev: u32,
    next: u32,
}

/// Place of both ends of the list. A request's place is its number plus one.
const ENDS: u32 = 0;

/// Links of a request outside the list.
const OUT: Links = Links { prev: u32::MAX, next: u32::MAX };

/// A doubly linked list of requests. Every request is in it at most once.
///
/// The list is a ring that includes the ends: whether a request has neighbours is unpredictable,
/// and so no branch depends on it.
#[derive(Debug)]
pub struct Fifo {
    /// Links by place.
    links: Vec<Links>,
    len: usize,
}

impl Default for Fifo {
    fn default() -> Self {
        Self { links: alloc::vec![Links { prev: ENDS, next: ENDS }], len: 0 }
    }
}

fn place(id: RequestId) -> usize {
    id.index() + 1
}

fn request(place: u32) -> Option<RequestId> {
    (place != ENDS).then(|| RequestId(place - 1))
}

impl Fifo {
    fn ends(&self) -> Links {
        self.links[ENDS as usize]
    }

    /// Adds a request at the end.
    pub fn push_back(&mut self, id: RequestId) {
        self.link(id, Links { prev: self.ends().prev, next: ENDS });
    }

    /// Adds a request at the front.
    pub fn push_front(&mut self, id: RequestId) {
        self.link(id, Links { prev: ENDS, next: self.ends().next });
    }

    fn link(&mut self, id: RequestId, links: Links) {
        if self.links.len() <= place(id) {
            self.links.resize(place(id) + 1, OUT);
        }
        assert!(self.links[place(id)] == OUT, "a request is in a list once");
        self.links[place(id)] = links;
        self.len += 1;
        self.links[links.prev as usize].next = id.0 + 1;
        self.links[links.next as usize].prev = id.0 + 1;
    }

    fn unlink(&mut self, id: RequestId) -> Links {
        let links = core::mem::replace(&mut self.links[place(id)], OUT);
        assert!(links != OUT, "the request is in this list");
        self.len -= 1;
        links
    }

    /// Removes a request.
    ///
    /// # Panics
    /// When it is not in the list.
    pub fn remove(&mut self, id: RequestId) {
        let Links { prev, next } = self.unlink(id);
        self.links[prev as usize].next = next;
        self.links[next as usize].prev = prev;
    }

    /// Moves `survivor` to the place of `absorbed`, which is removed (`list_move`, `list_replace`).
    ///
    /// # Panics
    /// When one of them is not in the list, or they are the same.
    pub fn take_place(&mut self, survivor: RequestId, absorbed: RequestId) {
        assert!(survivor != absorbed);
        self.remove(survivor);
        let links = self.unlink(absorbed);
        self.link(survivor, links);
    }

    /// The first request.
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        request(self.ends().next)
    }

    /// The request after another one.
    #[must_use]
    pub fn next(&self, id: RequestId) -> Option<RequestId> {
        let links = self.links[place(id)];
        assert!(links != OUT, "the request is in this list");
        request(links.next)
    }

    /// Removes the first request.
    pub fn pop_front(&mut self) -> Option<RequestId> {
        let head = self.front()?;
        self.remove(head);
        Some(head)
    }

    /// Whether a request is in the list.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.links.get(place(id)).is_some_and(|links| *links != OUT)
    }

    /// Number of requests.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(fifo: &Fifo) -> Vec<u32> {
        core::iter::successors(fifo.front(), |id| fifo.next(*id)).map(|id| id.0).collect()
    }

    #[test]
    fn taken_from_the_middle_the_rest_keeps_its_order() {
        let mut fifo = Fifo::default();
        (0..5).for_each(|id| fifo.push_back(RequestId(id)));
        fifo.remove(RequestId(2));
        fifo.remove(RequestId(4));
        fifo.push_front(RequestId(2));
        assert_eq!((order(&fifo), fifo.len()), (alloc::vec![2, 0, 1, 3], 4));
        while fifo.pop_front().is_some() {}
        assert!(fifo.is_empty());
    }

    #[test]
    fn survivor_of_a_merge_takes_the_place_of_the_absorbed() {
        for (survivor, absorbed, after) in
            [(3, 1, [0, 3, 2]), (3, 0, [3, 1, 2]), (0, 3, [1, 2, 0]), (1, 2, [0, 1, 3])]
        {
            let mut fifo = Fifo::default();
            (0..4).for_each(|id| fifo.push_back(RequestId(id)));
            fifo.take_place(RequestId(survivor), RequestId(absorbed));
            assert_eq!((order(&fifo), fifo.len()), (after.to_vec(), 3));
        }
    }
}
