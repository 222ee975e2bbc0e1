//! Properties of a store that are known before the first call.

/// Properties that callers may rely on. A wrapper passes on those of the store behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Objects come from a server. Otherwise they are files of this machine and its mounts.
    pub is_remote: bool,
    /// Every call returns in time. Otherwise callers must be able to continue without the calling thread.
    pub keeps_deadlines: bool,
    /// Directories can be listed; those of HTTP servers cannot.
    pub can_list: bool,
    /// How many calls it serves at a time; further ones wait. `None` if there is no limit.
    pub max_calls: Option<usize>,
    /// Files are read in other processes ([`crate::Store::readers`]).
    pub is_isolated: bool,
    /// Objects are kept in a cache ([`crate::Store::origin`]).
    pub is_cached: bool,
}

impl Default for Capabilities {
    /// The properties of files that are read in the calling thread.
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
