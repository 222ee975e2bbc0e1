//! Plain loops compiled a second time for wider vectors.
//!
//! The compiler may use AVX2 inside the closure and nothing else changes: it neither reorders float operations nor
//! fuses them, so the result is the same to the last bit.

/// Runs `work`, with AVX2 where the processor has it. The closure must be small enough to be inlined to gain by it.
#[inline]
pub(crate) fn widest<R>(work: impl FnOnce() -> R) -> R {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
            work()
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { with_avx2(work) };
        }
    }
    work()
}
