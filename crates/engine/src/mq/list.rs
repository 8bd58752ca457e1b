//! A list of requests with links inside the requests (`struct list_head`): it needs no allocation,
//! and a request is in one list at a time.

use crate::request::{Links, RequestId, Requests};

/// A FIFO with removal from the middle.
#[derive(Debug, Default)]
pub(super) struct List {
    head: Option<RequestId>,
    tail: Option<RequestId>,
    len: u32,
}

impl List {
    pub(super) fn push_back(&mut self, requests: &mut Requests, id: RequestId) {
        requests.at(id).list = Links { prev: self.tail, next: None };
        match self.tail {
            Some(tail) => requests.at(tail).list.next = Some(id),
            None => self.head = Some(id),
        }
        self.tail = Some(id);
        self.len += 1;
    }

    /// Removes a request of this list.
    pub(super) fn remove(&mut self, requests: &mut Requests, id: RequestId) {
        let Links { prev, next } = core::mem::take(&mut requests.at(id).list);
        match prev {
            Some(prev) => requests.at(prev).list.next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => requests.at(next).list.prev = prev,
            None => self.tail = prev,
        }
        assert!(self.len > 0, "the request is in this list");
        self.len -= 1;
    }

    pub(super) fn pop_front(&mut self, requests: &mut Requests) -> Option<RequestId> {
        let head = self.head?;
        self.remove(requests, head);
        Some(head)
    }

    pub(super) fn front(&self) -> Option<RequestId> {
        self.head
    }

    pub(super) fn back(&self) -> Option<RequestId> {
        self.tail
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.head.is_none()
    }
}
