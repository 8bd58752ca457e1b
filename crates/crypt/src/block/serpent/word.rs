//! Operands of Serpent's circuits: 32-bit words, many of them side by side.

use std::ops::{BitAnd, BitOr, BitXor, Not};

/// One or more 32-bit words that go through the same operations.
pub(super) trait Word:
    Copy + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self> + Not<Output = Self>
{
    /// Copies a word to every lane.
    fn splat(word: u32) -> Self;

    /// Each word shifted left by `N`.
    fn shl<const N: i32>(self) -> Self;

    /// Each word shifted right by `N`.
    fn shr<const N: i32>(self) -> Self;
}

impl Word for u32 {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        word
    }

    #[inline(always)]
    fn shl<const N: i32>(self) -> Self {
        self << N
    }

    #[inline(always)]
    fn shr<const N: i32>(self) -> Self {
        self >> N
    }
}

/// A register as a [`Word`], with the named intrinsics as operations.
macro_rules! lanes {
    (
        $register:ty, and: $and:path, or: $or:path, xor: $xor:path,
        splat: $splat:path, shl: $shl:ident, shr: $shr:ident $(,)?
    ) => {
        /// Words side by side. Only kernels create values, after a check of the CPU.
        #[derive(Clone, Copy)]
        struct Lanes($register);

        impl std::ops::BitAnd for Lanes {
            type Output = Self;

            #[inline(always)]
            fn bitand(self, other: Self) -> Self {
                // SAFETY: a value exists only on a CPU with the instruction.
                Self(unsafe { $and(self.0, other.0) })
            }
        }

        impl std::ops::BitOr for Lanes {
            type Output = Self;

            #[inline(always)]
            fn bitor(self, other: Self) -> Self {
                // SAFETY: as in `bitand`.
                Self(unsafe { $or(self.0, other.0) })
            }
        }

        impl std::ops::BitXor for Lanes {
            type Output = Self;

            #[inline(always)]
            fn bitxor(self, other: Self) -> Self {
                // SAFETY: as in `bitand`.
                Self(unsafe { $xor(self.0, other.0) })
            }
        }

        impl std::ops::Not for Lanes {
            type Output = Self;

            #[inline(always)]
            fn not(self) -> Self {
                self ^ Self::splat(u32::MAX)
            }
        }

        impl $crate::block::serpent::word::Word for Lanes {
            #[inline(always)]
            fn splat(word: u32) -> Self {
                // SAFETY: only kernels of this file compute on `Lanes`, and they have the
                // instructions.
                Self(unsafe { $splat(word.cast_signed()) })
            }

            #[inline(always)]
            fn shl<const N: i32>(self) -> Self {
                // SAFETY: as in `bitand`.
                Self(unsafe { $shl::<N>(self.0) })
            }

            #[inline(always)]
            fn shr<const N: i32>(self) -> Self {
                // SAFETY: as in `bitand`.
                Self(unsafe { $shr::<N>(self.0) })
            }
        }
    };
}

pub(super) use lanes;

/// Two words with alternating operations, which keep registers and execution units busy.
#[derive(Clone, Copy)]
pub(super) struct Pair<W>(pub(super) W, pub(super) W);

impl<W: Word> BitAnd for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitand(self, other: Self) -> Self {
        Self(self.0 & other.0, self.1 & other.1)
    }
}

impl<W: Word> BitOr for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0, self.1 | other.1)
    }
}

impl<W: Word> BitXor for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn bitxor(self, other: Self) -> Self {
        Self(self.0 ^ other.0, self.1 ^ other.1)
    }
}

impl<W: Word> Not for Pair<W> {
    type Output = Self;

    #[inline(always)]
    fn not(self) -> Self {
        Self(!self.0, !self.1)
    }
}

impl<W: Word> Word for Pair<W> {
    #[inline(always)]
    fn splat(word: u32) -> Self {
        Self(W::splat(word), W::splat(word))
    }

    #[inline(always)]
    fn shl<const N: i32>(self) -> Self {
        Self(self.0.shl::<N>(), self.1.shl::<N>())
    }

    #[inline(always)]
    fn shr<const N: i32>(self) -> Self {
        Self(self.0.shr::<N>(), self.1.shr::<N>())
    }
}
