//! Clears vector registers after a call: they still hold the last round keys.

/// Clears the vector registers.
#[inline]
pub(crate) fn clear() {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the CPU's features were checked.
            unsafe { x86::clear_avx512() }
        } else if is_x86_feature_detected!("avx") {
            // SAFETY: the CPU has AVX: it was checked.
            unsafe { x86::clear_avx() }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;

    /// Clears all 32 registers of AVX-512.
    #[target_feature(enable = "avx512f")]
    pub(super) fn clear_avx512() {
        // SAFETY: it changes registers that are declared as clobbered.
        unsafe {
            asm!(
                "vpxord zmm16, zmm16, zmm16", "vpxord zmm17, zmm17, zmm17",
                "vpxord zmm18, zmm18, zmm18", "vpxord zmm19, zmm19, zmm19",
                "vpxord zmm20, zmm20, zmm20", "vpxord zmm21, zmm21, zmm21",
                "vpxord zmm22, zmm22, zmm22", "vpxord zmm23, zmm23, zmm23",
                "vpxord zmm24, zmm24, zmm24", "vpxord zmm25, zmm25, zmm25",
                "vpxord zmm26, zmm26, zmm26", "vpxord zmm27, zmm27, zmm27",
                "vpxord zmm28, zmm28, zmm28", "vpxord zmm29, zmm29, zmm29",
                "vpxord zmm30, zmm30, zmm30", "vpxord zmm31, zmm31, zmm31",
                out("zmm16") _, out("zmm17") _, out("zmm18") _, out("zmm19") _,
                out("zmm20") _, out("zmm21") _, out("zmm22") _, out("zmm23") _,
                out("zmm24") _, out("zmm25") _, out("zmm26") _, out("zmm27") _,
                out("zmm28") _, out("zmm29") _, out("zmm30") _, out("zmm31") _,
                options(nomem, nostack, preserves_flags),
            );
        }
        clear_avx();
    }

    /// Clears the full width of the sixteen AVX registers.
    #[target_feature(enable = "avx")]
    pub(super) fn clear_avx() {
        // SAFETY: as in `clear_avx512`.
        unsafe {
            asm!(
                "vzeroall",
                out("ymm0") _, out("ymm1") _, out("ymm2") _, out("ymm3") _,
                out("ymm4") _, out("ymm5") _, out("ymm6") _, out("ymm7") _,
                out("ymm8") _, out("ymm9") _, out("ymm10") _, out("ymm11") _,
                out("ymm12") _, out("ymm13") _, out("ymm14") _, out("ymm15") _,
                options(nomem, nostack, preserves_flags),
            );
        }
    }
}
