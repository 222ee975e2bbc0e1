//! What a store is and can do, known before anything is asked of it.

/// What callers may rely on with a store. A wrapper passes on what is true of the store behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// It asks a server for its objects. Otherwise they are files of this machine and its mounts.
    pub is_remote: bool,
    /// Every call comes back in time. Where not, callers must be ready to go on without their thread.
    pub keeps_deadlines: bool,
    /// Its directories can be listed: those of HTTP servers cannot.
    pub can_list: bool,
    /// How many calls it answers at a time; further ones wait. `None` where there is no limit.
    pub max_calls: Option<usize>,
    /// It reads in other processes ([`crate::Store::readers`]).
    pub is_isolated: bool,
    /// It keeps copies of what it reads ([`crate::Store::origin`]).
    pub is_cached: bool,
}

impl Default for Capabilities {
    /// Those of files that are read in the calling thread.
    fn default() -> Self {
        Self {
            is_remote: false,
            keeps_deadlines: false,
            can_list: true,
            max_calls: None,
            is_isolated: false,
            is_cached: false,
        }
    }
}
