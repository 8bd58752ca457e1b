//! Requests in the order of their arrival, from whose middle one can be taken (`list_head`).

use alloc::vec::Vec;

use crate::mq::request::RequestId;

/// Neighbours of a request that is in the list.
#[derive(Clone, Copy, Debug)]
struct Links {
    prev: Option<RequestId>,
    next: Option<RequestId>,
}

/// A doubly linked list of requests. Every request is in it at most once.
#[derive(Debug, Default)]
pub struct Fifo {
    /// By request.
    links: Vec<Option<Links>>,
    head: Option<RequestId>,
    tail: Option<RequestId>,
    len: usize,
}

impl Fifo {
    /// Puts a request behind all others.
    pub fn push_back(&mut self, id: RequestId) {
        let links = Links { prev: self.tail, next: None };
        self.link(id, links);
        match self.tail {
            Some(tail) => self.links_mut(tail).next = Some(id),
            None => self.head = Some(id),
        }
        self.tail = Some(id);
    }

    /// Puts a request in front of all others.
    pub fn push_front(&mut self, id: RequestId) {
        let links = Links { prev: None, next: self.head };
        self.link(id, links);
        match self.head {
            Some(head) => self.links_mut(head).prev = Some(id),
            None => self.tail = Some(id),
        }
        self.head = Some(id);
    }

    fn link(&mut self, id: RequestId, links: Links) {
        if self.links.len() <= id.index() {
            self.links.resize(id.index() + 1, None);
        }
        assert!(self.links[id.index()].is_none(), "a request is in a list once");
        self.links[id.index()] = Some(links);
        self.len += 1;
    }

    fn links_mut(&mut self, id: RequestId) -> &mut Links {
        self.links[id.index()].as_mut().expect("a neighbour is in the list")
    }

    /// Takes a request out.
    ///
    /// # Panics
    /// When it is not there.
    pub fn remove(&mut self, id: RequestId) {
        let links = self.links[id.index()].take().expect("the request is in this list");
        match links.prev {
            Some(prev) => self.links_mut(prev).next = links.next,
            None => self.head = links.next,
        }
        match links.next {
            Some(next) => self.links_mut(next).prev = links.prev,
            None => self.tail = links.prev,
        }
        self.len -= 1;
    }

    /// Moves `survivor` to the place of `absorbed`, which leaves the list (`list_move`,
    /// `list_replace`).
    ///
    /// # Panics
    /// When one of them is not there, or they are the same.
    pub fn take_place(&mut self, survivor: RequestId, absorbed: RequestId) {
        assert!(survivor != absorbed);
        self.remove(survivor);
        let links = self.links[absorbed.index()].take().expect("the request is in this list");
        self.links[survivor.index()] = Some(links);
        match links.prev {
            Some(prev) => self.links_mut(prev).next = Some(survivor),
            None => self.head = Some(survivor),
        }
        match links.next {
            Some(next) => self.links_mut(next).prev = Some(survivor),
            None => self.tail = Some(survivor),
        }
    }

    /// The oldest.
    #[must_use]
    pub fn front(&self) -> Option<RequestId> {
        self.head
    }

    /// The one that came after a request of the list.
    #[must_use]
    pub fn next(&self, id: RequestId) -> Option<RequestId> {
        self.links[id.index()].expect("the request is in this list").next
    }

    /// Takes the oldest out.
    pub fn pop_front(&mut self) -> Option<RequestId> {
        let head = self.head?;
        self.remove(head);
        Some(head)
    }

    /// Whether it is there.
    #[must_use]
    pub fn contains(&self, id: RequestId) -> bool {
        self.links.get(id.index()).is_some_and(Option::is_some)
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.head.is_none()
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
