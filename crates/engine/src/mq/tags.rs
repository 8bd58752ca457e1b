//! Driver tags: numbers of the requests at the device (`struct blk_mq_tags`).

use alloc::vec::Vec;

use crate::request::RequestId;

/// The driver tags of one hardware queue.
#[derive(Debug)]
pub(super) struct Tags {
    /// Free tags; the last used one is the next one.
    free: Vec<u32>,
    /// Issued request of each tag.
    issued: Vec<Option<RequestId>>,
}

impl Tags {
    pub(super) fn new(depth: u32) -> Self {
        let issued = core::iter::repeat_n(None, depth as usize).collect();
        Self { free: (0..depth).rev().collect(), issued }
    }

    pub(super) fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    pub(super) fn put(&mut self, index: u32) {
        debug_assert!(!self.free.contains(&index), "a tag that is put was taken");
        self.free.push(index);
    }

    pub(super) fn is_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Marks the request as issued.
    pub(super) fn issue(&mut self, index: u32, id: RequestId) {
        let before = self.issued[index as usize].replace(id);
        assert!(before.is_none(), "a tag names one request at a time");
    }

    /// The issued request of this tag.
    ///
    /// # Panics
    /// When there is none.
    pub(super) fn owner(&self, index: u32) -> RequestId {
        self.issued[index as usize].expect("the tag is of an issued request")
    }

    /// Marks the tag as returned by the device.
    ///
    /// # Panics
    /// When no request is issued under it: a completion came twice.
    pub(super) fn end(&mut self, index: u32) -> RequestId {
        self.issued[index as usize].take().expect("the tag is of an issued request")
    }
}
