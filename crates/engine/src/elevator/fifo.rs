//! Requests in the order of their arrival, from whose middle one can be taken (`list_head`).

use alloc::vec::Vec;

use crate::mq::request::RequestId;

/// Neighbours of a request that is in the list, as indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Links {
    prev: u32,
    next: u32,
}

/// No neighbour on this side.
const NOBODY: u32 = u32::MAX;

/// Of a request that is not in the list: its only neighbours would be the same one.
const OUT: Links = Links { prev: u32::MAX - 1, next: u32::MAX - 1 };

/// A doubly linked list of requests. Every request is in it at most once.
#[derive(Debug)]
pub struct Fifo {
    /// By request.
    links: Vec<Links>,
    head: u32,
    tail: u32,
    len: usize,
}

impl Default for Fifo {
    fn default() -> Self {
        Self { links: Vec::new(), head: NOBODY, tail: NOBODY, len: 0 }
    }
}

impl Fifo {
    /// Puts a request behind all others.
    pub fn push_back(&mut self, id: RequestId) {
        self.link(id, Links { prev: self.tail, next: NOBODY });
    }

    /// Puts a request in front of all others.
    pub fn push_front(&mut self, id: RequestId) {
        self.link(id, Links { prev: NOBODY, next: self.head });
    }

    fn link(&mut self, id: RequestId, links: Links) {
        if self.links.len() <= id.index() {
            self.links.resize(id.index() + 1, OUT);
        }
        assert!(self.links[id.index()] == OUT, "a request is in a list once");
        self.links[id.index()] = links;
        self.len += 1;
        self.join(links.prev, id.0);
        self.join(id.0, links.next);
    }

    /// Makes two neighbours, or one the end of the list.
    fn join(&mut self, former: u32, latter: u32) {
        match self.links.get_mut(former as usize) {
            Some(links) => links.next = latter,
            None => self.head = latter,
        }
        match self.links.get_mut(latter as usize) {
            Some(links) => links.prev = former,
            None => self.tail = former,
        }
    }

    fn unlink(&mut self, id: RequestId) -> Links {
        let links = core::mem::replace(&mut self.links[id.index()], OUT);
        assert!(links != OUT, "the request is in this list");
        self.len -= 1;
        links
    }

    /// Takes a request out.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, id: RequestId) {
        let Links { prev, next } = self.unlink(id);
        self.join(prev, next);
    }

    /// Moves `survivor` to the place of `absorbed`, which leaves the list (`list_move`,
    /// `list_replace`).
    ///
    /// # Panics
    /// When one of them is not there, or they are the same.
    pub fn take_place(&mut self, survivor: RequestId, absorbed: RequestId) {
        assert!(survivor != absorbed);
        self.remove(survivor);
        let links = self.unlink(absorbed);
        self.link(survivor, links);
    }

    /// The oldest.
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        request(self.head)
    }

    /// The one that came after a request of the list.
    #[must_use]
    pub fn next(&self, id: RequestId) -> Option<RequestId> {
        let links = self.links[id.index()];
        assert!(links != OUT, "the request is in this list");
        request(links.next)
    }

    /// Takes the oldest out.
    pub fn pop_front(&mut self) -> Option<RequestId> {
        let head = self.front()?;
        self.remove(head);
        Some(head)
    }

    /// Whether it is there.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.links.get(id.index()).is_some_and(|links| *links != OUT)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head == NOBODY
    }
}

fn request(index: u32) -> Option<RequestId> {
    (index != NOBODY).then_some(RequestId(index))
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
