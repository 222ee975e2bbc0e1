//! What the examples that measure have in common.

use forebay::{Interpolation, Op, Pipeline, Result};

/// Torchvision's usual training transform, as in `benchmarks/contender.py`.
pub(crate) fn pipeline() -> Result<Pipeline> {
    Pipeline::new(vec![
        Op::RandomResizedCrop {
            size: 224.into(),
            scale: (0.08, 1.0),
            ratio: (3.0 / 4.0, 4.0 / 3.0),
            interpolation: Interpolation::Bilinear,
            antialias: true,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::ToTensor,
        Op::Normalize { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] },
    ])
}

/// The sum of some samples' 32-bit words: independent of order, the same as `benchmarks/contender.py` takes.
pub(crate) fn sum(slot: &[u8]) -> u64 {
    slot.chunks_exact(4).map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))).sum()
}

/// What the process has taken of the machine so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    pub(crate) user_seconds: f64,
    pub(crate) system_seconds: f64,
    pub(crate) page_faults: i64,
    /// Waits, and times that a thread lost its processor to another.
    pub(crate) waits: i64,
    pub(crate) preemptions: i64,
}

impl Usage {
    /// Up to now.
    pub(crate) fn now() -> Self {
        // SAFETY: the struct holds numbers only, for which zeros are valid.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: the struct is writable; the call can fail for other arguments only.
        unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
        let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
        Self {
            user_seconds: seconds(usage.ru_utime),
            system_seconds: seconds(usage.ru_stime),
            page_faults: usage.ru_minflt + usage.ru_majflt,
            waits: usage.ru_nvcsw,
            preemptions: usage.ru_nivcsw,
        }
    }

    /// Since then, as members of a JSON object.
    pub(crate) fn since(self) -> String {
        let now = Self::now();
        format!(
            r#""user_seconds": {:.6}, "system_seconds": {:.6}, "page_faults": {}, "waits": {}, "preemptions": {}"#,
            now.user_seconds - self.user_seconds,
            now.system_seconds - self.system_seconds,
            now.page_faults - self.page_faults,
            now.waits - self.waits,
            now.preemptions - self.preemptions,
        )
    }
}
