//! Parity sidecars: files whose damage is repaired while they are read (`repairing`), made (`make`), checked and repaired in place
//! (`check`). The format is `forebay_format::ParityLayout`'s.

mod check;
mod make;
mod reader;
mod repairing;
mod sidecars;

pub use check::{ParityCheck, check_parity, repair_by_parity};
pub use make::{ParityMade, make_parity};
pub(crate) use reader::is_lost;
pub use repairing::Repairing;
pub use sidecars::Sidecars;
pub(crate) use sidecars::find_sidecars;
