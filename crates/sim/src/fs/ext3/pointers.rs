//! The blocks of a file: 12 in its inode, 1,024 behind an indirect block, 1,024 times as many
//! behind a double indirect block, and again behind a triple indirect block.
//!
//! ```text
//!   inode ─> 0 .. 11
//!         ─> indirect 0 ─> 12 .. 1035
//!         ─> double 0 ─> indirect 1 ─> 1036 .. 2059, indirect 2 ─> ..
//!         ─> triple ─> double 1 ─> indirect 1025 ─> ..
//! ```
//!
//! Pointer blocks are allocated with the first block behind them, before it and from the same
//! window: they are part of the file's sequence on the device.

use std::ops::Range;

/// Pages in the inode.
const DIRECT: u64 = 12;

/// Pointers in a block.
const POINTERS: u64 = 1024;

/// A pointer block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Pointers to double indirect blocks.
    Triple,
    /// Pointers to indirect blocks.
    Double(usize),
    /// Pointers to data.
    Indirect(usize),
}

/// The blocks of a file; 0 for none.
#[derive(Debug, Default)]
pub(super) struct Pointers {
    pages: Vec<u32>,
    indirect: Vec<u32>,
    double: Vec<u32>,
    triple: u32,
    /// Page and block of the last allocation.
    last: Option<(u64, u32)>,
}

impl Pointers {
    /// Blocks of the pages.
    pub(super) fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// Extends the file to at least this length.
    pub(super) fn extend(&mut self, pages: u64) {
        if self.pages.len() < pages as usize {
            self.pages.resize(pages as usize, 0);
        }
    }

    /// All pointer blocks.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        let nodes = self.indirect.iter().chain(&self.double).chain([&self.triple]);
        nodes.copied().filter(|block| *block != 0)
    }

    /// Pointer blocks between the inode and a page, from the top.
    pub(super) fn path(page: u64) -> impl Iterator<Item = Node> {
        let indirect = page.checked_sub(DIRECT).map(|behind| behind / POINTERS);
        let double = indirect.and_then(|index| index.checked_sub(1)).map(|index| index / POINTERS);
        let triple = double.is_some_and(|index| index > 0).then_some(Node::Triple);
        let double = double.map(|index| Node::Double(index as usize));
        let indirect = indirect.map(|index| Node::Indirect(index as usize));
        triple.into_iter().chain(double).chain(indirect)
    }

    /// The block of a pointer block.
    pub(super) fn node(&mut self, node: Node) -> &mut u32 {
        let (blocks, index) = match node {
            Node::Triple => return &mut self.triple,
            Node::Double(index) => (&mut self.double, index),
            Node::Indirect(index) => (&mut self.indirect, index),
        };
        if blocks.len() <= index {
            blocks.resize(index + 1, 0);
        }
        &mut blocks[index]
    }

    /// Sets the block of a page.
    pub(super) fn set(&mut self, page: u64, block: u32) {
        self.pages[page as usize] = block;
        self.last = Some((page, block));
    }

    /// Preferred position of a page's block: after the last allocated block if that was the
    /// previous page. Otherwise after the nearest previous page of the same pointer block, or after
    /// that pointer block, or after the previous one; `None` without any of these. The kernel uses
    /// the same order, but goes up level by level if pointers are missing.
    pub(super) fn goal(&self, page: u64) -> Option<u32> {
        if let Some((last, block)) = self.last
            && last + 1 == page
        {
            return Some(block + 1);
        }
        let before = |from: u64| {
            let range: Range<usize> = from as usize..page as usize;
            self.pages[range].iter().rev().copied().find(|block| *block != 0)
        };
        let Some(behind) = page.checked_sub(DIRECT) else {
            return before(0);
        };
        let index = behind / POINTERS;
        let indirect = self.indirect.iter().take(index as usize + 1).rev();
        before(DIRECT + index * POINTERS)
            .or_else(|| indirect.copied().find(|block| *block != 0))
            .or_else(|| self.pages[..DIRECT as usize].iter().rev().copied().find(|b| *b != 0))
    }
}
