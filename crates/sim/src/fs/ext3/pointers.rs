//! The blocks of a file: 12 that its inode names, 1,024 behind an indirect block, 1,024 times as
//! many behind a double indirect one, and so once more behind the triple.
//!
//! ```text
//!   inode ─> 0 .. 11
//!         ─> indirect 0 ─> 12 .. 1035
//!         ─> double 0 ─> indirect 1 ─> 1036 .. 2059, indirect 2 ─> ..
//!         ─> triple ─> double 1 ─> indirect 1025 ─> ..
//! ```
//!
//! Blocks of pointers are allocated when the first block behind them is, in front of it and from
//! the same window: they are part of the file's sequence on the device.

use std::ops::Range;

/// Pages that the inode names.
const DIRECT: u64 = 12;

/// Pointers in a block.
const POINTERS: u64 = 1024;

/// A block of pointers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Node {
    /// Of double indirect blocks.
    Triple,
    /// Of indirect blocks.
    Double(usize),
    /// Of data.
    Indirect(usize),
}

/// The blocks of a file; 0 where there is none.
#[derive(Debug, Default)]
pub(super) struct Pointers {
    pages: Vec<u32>,
    indirect: Vec<u32>,
    double: Vec<u32>,
    triple: u32,
    /// Page and block that were allocated last.
    last: Option<(u64, u32)>,
}

impl Pointers {
    /// Blocks of the pages.
    pub(super) fn pages(&self) -> &[u32] {
        &self.pages
    }

    /// The file is at least this long.
    pub(super) fn extend(&mut self, pages: u64) {
        if self.pages.len() < pages as usize {
            self.pages.resize(pages as usize, 0);
        }
    }

    /// All blocks of pointers.
    pub(super) fn nodes(&self) -> impl Iterator<Item = u32> {
        let nodes = self.indirect.iter().chain(&self.double).chain([&self.triple]);
        nodes.copied().filter(|block| *block != 0)
    }

    /// Blocks of pointers between the inode and a page, from the top.
    pub(super) fn path(page: u64) -> impl Iterator<Item = Node> {
        let indirect = page.checked_sub(DIRECT).map(|behind| behind / POINTERS);
        let double = indirect.and_then(|index| index.checked_sub(1)).map(|index| index / POINTERS);
        let triple = double.is_some_and(|index| index > 0).then_some(Node::Triple);
        let double = double.map(|index| Node::Double(index as usize));
        let indirect = indirect.map(|index| Node::Indirect(index as usize));
        triple.into_iter().chain(double).chain(indirect)
    }

    /// Where a block of pointers is.
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

    /// A page has a block now.
    pub(super) fn set(&mut self, page: u64, block: u32) {
        self.pages[page as usize] = block;
        self.last = Some((page, block));
    }

    /// Where the block of a page had best be: behind the last one when that was the page before.
    /// Else at the nearest page before that the same pointers name, or at those pointers, or at the
    /// pointers before; none when there is nothing of all that. The kernel looks the same way, but
    /// when pointers are missing it goes up from level to level.
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
