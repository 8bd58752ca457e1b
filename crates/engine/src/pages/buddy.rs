//! A buddy system: free blocks of 2^order pages, split on demand, merged with their neighbours.
//!
//! Both worlds keep their pages in one. It holds page numbers only. A block is aligned to its size.
//! Its *buddy* is the other half of the next larger block; two free buddies are merged.
//!
//! ```text
//!   order 2   [0 . . .]        alloc(0) = 0:   [1] [2 .]        free(0, 0):  [0 . . .]
//! ```

use alloc::vec;
use alloc::vec::Vec;

use super::ORDER_MAX;

const ORDERS: usize = ORDER_MAX as usize + 1;
/// Value of `order_of`: no free block starts here.
const NO_BLOCK: u8 = u8::MAX;
/// No page.
const NONE: u32 = u32::MAX;

/// The free pages of a memory.
#[derive(Clone, Debug)]
pub struct Buddy {
    /// Order of the free block that starts at each page.
    order_of: Vec<u8>,
    /// Doubly linked free lists by order, the last freed block first.
    next: Vec<u32>,
    previous: Vec<u32>,
    heads: [u32; ORDERS],
    free_pages: u32,
}

impl Buddy {
    /// All of the pages `0..pages` are free.
    ///
    /// # Panics
    /// When there are 2^32 - 1 of them.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        assert!(pages < NONE, "the last number stands for none");
        let places = pages as usize;
        let mut buddy = Self {
            order_of: vec![NO_BLOCK; places],
            next: vec![NONE; places],
            previous: vec![NONE; places],
            heads: [NONE; ORDERS],
            free_pages: pages,
        };
        // From the end, so that the first pages are at the front of the lists. The order of a block
        // is limited by its alignment and by the space up to the next block.
        let mut end = pages;
        while end > 0 {
            let order = end.trailing_zeros().min(u32::from(ORDER_MAX));
            end -= 1 << order;
            buddy.link(end, u8::try_from(order).expect("at most ORDER_MAX"));
        }
        buddy
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> u32 {
        u32::try_from(self.order_of.len()).expect("as many as at the start")
    }

    /// Number of free pages.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.free_pages
    }

    /// Order of the largest free block.
    #[must_use]
    pub fn order_free_max(&self) -> Option<u8> {
        (0..=ORDER_MAX).rev().find(|order| self.heads[usize::from(*order)] != NONE)
    }

    /// Allocates a block; also returns the order of the block that was split.
    pub fn alloc(&mut self, order: u8) -> Option<(u32, u8)> {
        let from = (order..=ORDER_MAX).find(|from| self.heads[usize::from(*from)] != NONE)?;
        let first = self.heads[usize::from(from)];
        self.unlink(first, from);
        for half in (order..from).rev() {
            self.link(first + (1 << half), half);
        }
        self.free_pages -= 1 << order;
        Some((first, from))
    }

    /// Frees a block; returns the order of the merged block.
    ///
    /// # Panics
    /// When it is not a block of this memory, or part of it is free already.
    pub fn free(&mut self, first: u32, order: u8) -> u8 {
        assert!(first.is_multiple_of(1 << order), "a block is aligned to its size");
        assert!(u64::from(first) + (1 << order) <= u64::from(self.pages()), "a block of ours");
        assert!(self.free_block(first).is_none(), "page {first} was not free");
        self.free_pages += 1 << order;
        let mut first = first;
        let mut order = order;
        while order < ORDER_MAX {
            let buddy = first ^ (1 << order);
            if self.order_of.get(buddy as usize) != Some(&order) {
                break;
            }
            self.unlink(buddy, order);
            first = first.min(buddy);
            order += 1;
        }
        self.link(first, order);
        order
    }

    /// Allocates exactly this page; false if it was not free.
    pub fn take(&mut self, page: u32) -> bool {
        let Some((first, order)) = self.free_block(page) else { return false };
        self.unlink(first, order);
        let mut first = first;
        for half in (0..order).rev() {
            let middle = first + (1 << half);
            if page < middle {
                self.link(middle, half);
            } else {
                self.link(first, half);
                first = middle;
            }
        }
        self.free_pages -= 1;
        true
    }

    /// The free block that contains a page: its first page and its order.
    #[must_use]
    pub fn free_block(&self, page: u32) -> Option<(u32, u8)> {
        (0..=ORDER_MAX)
            .map(|order| (page >> order << order, order))
            .find(|(first, order)| self.order_of.get(*first as usize) == Some(order))
    }

    fn link(&mut self, first: u32, order: u8) {
        let head = self.heads[usize::from(order)];
        self.order_of[first as usize] = order;
        self.next[first as usize] = head;
        self.previous[first as usize] = NONE;
        if head != NONE {
            self.previous[head as usize] = first;
        }
        self.heads[usize::from(order)] = first;
    }

    fn unlink(&mut self, first: u32, order: u8) {
        let next = self.next[first as usize];
        let previous = self.previous[first as usize];
        self.order_of[first as usize] = NO_BLOCK;
        if next != NONE {
            self.previous[next as usize] = previous;
        }
        match previous {
            NONE => self.heads[usize::from(order)] = next,
            _ => self.next[previous as usize] = next,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_is_split_and_its_halves_merge_again() {
        let mut buddy = Buddy::new(8);
        assert_eq!(buddy.alloc(0), Some((0, 3)));
        assert_eq!(buddy.alloc(1), Some((2, 1)));
        assert_eq!(buddy.alloc(2), Some((4, 2)));
        assert_eq!((buddy.alloc(1), buddy.free_pages()), (None, 1));
        assert_eq!(buddy.free(4, 2), 2);
        assert_eq!(buddy.free(2, 1), 1);
        assert_eq!(buddy.free(0, 0), 3);
        assert_eq!(buddy.order_free_max(), Some(3));
    }

    #[test]
    fn memory_that_is_no_power_of_two_is_all_there() {
        let mut buddy = Buddy::new(2500);
        let mut seen = vec![false; 2500];
        while let Some((page, _)) = buddy.alloc(0) {
            assert!(!core::mem::replace(&mut seen[page as usize], true));
        }
        assert!(seen.iter().all(|seen| *seen));
    }

    #[test]
    fn page_in_the_middle_can_be_taken_out_of_its_block() {
        let mut buddy = Buddy::new(8);
        assert!(buddy.take(5));
        assert!(!buddy.take(5));
        assert_eq!(buddy.order_free_max(), Some(2));
        assert_eq!(buddy.free_block(7), Some((6, 1)));
        assert_eq!(buddy.free_block(5), None);
        buddy.free(5, 0);
        assert_eq!(buddy.free_block(5), Some((0, 3)));
    }

    #[test]
    #[should_panic(expected = "page 3 was not free")]
    fn freeing_twice_is_a_programmer_error() {
        let mut buddy = Buddy::new(4);
        buddy.take(3);
        buddy.free(3, 0);
        buddy.free(3, 0);
    }
}
