//! The trials: what is done to the loader on which mount, and what is known afterwards.

use std::collections::BTreeSet;
use std::thread::sleep;
use std::time::Duration;

use crate::Result;
use crate::engine::{Engine, Gone};
use crate::epoch::{Ended, Settings};
use crate::machine::{Cut, Mounted, Pictures, Server};

/// How long the link is cut.
pub(crate) const CUT: Duration = Duration::from_secs(20);
/// The step of epoch 0 after which trouble begins: a third of the way.
pub(crate) const HOLD_STEP: u64 = 9;
const EPOCHS: u64 = 2;

/// A way to mount the folder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    pub(crate) name: &'static str,
    pub(crate) options: &'static str,
    pub(crate) is_soft: bool,
}

/// Hard mounts as they come; soft ones with what their users set, or a call would wait for three minutes.
pub(crate) const WAYS: [Way; 4] = [
    Way { name: "v3 hard", options: "vers=3,nolock,hard", is_soft: false },
    Way { name: "v3 soft", options: "vers=3,nolock,soft,timeo=7,retrans=2", is_soft: true },
    Way { name: "v4.2 hard", options: "vers=4.2,hard", is_soft: false },
    Way { name: "v4.2 soft", options: "vers=4.2,soft,timeo=7,retrans=2", is_soft: true },
];

/// What is done to the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    Nothing,
    /// The link loses everything for [`CUT`], and the deadline is longer.
    CutPatient,
    /// The same, and the deadline is shorter.
    CutImpatient,
    /// The link loses everything until the run has given up.
    CutForGood,
    /// The server ends its threads, and starts them again once the loader stands still.
    Restart,
    /// One file of ten is deleted on the server.
    Delete,
    /// While the link is cut, the process ends.
    Leave(Exit),
}

/// How a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    Return,
    Terminated,
    Killed,
}

pub(crate) const TROUBLES: [Trouble; 9] = [
    Trouble::Nothing,
    Trouble::CutPatient,
    Trouble::CutImpatient,
    Trouble::CutForGood,
    Trouble::Restart,
    Trouble::Delete,
    Trouble::Leave(Exit::Return),
    Trouble::Leave(Exit::Terminated),
    Trouble::Leave(Exit::Killed),
];

impl Trouble {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::CutPatient => "link lost for 20 s, deadline 60 s",
            Self::CutImpatient => "link lost for 20 s, deadline 8 s",
            Self::CutForGood => "link lost for good, deadline 4 s",
            Self::Restart => "server restarts",
            Self::Delete => "24 files deleted",
            Self::Leave(Exit::Return) => "link lost, the loop is left",
            Self::Leave(Exit::Terminated) => "link lost, SIGTERM",
            Self::Leave(Exit::Killed) => "link lost, SIGKILL",
        }
    }

    /// The run ends before its epochs do.
    pub(crate) const fn ends_early(self) -> bool {
        matches!(self, Self::CutForGood | Self::Leave(_))
    }

    /// Retries for as long as the deadline allows where nothing may fail: soft mounts give an error every few seconds.
    pub(crate) fn settings(self) -> Settings {
        let (deadline_seconds, retries) = match self {
            Self::CutImpatient => (8, 6),
            Self::CutForGood => (4, 6),
            Self::CutPatient | Self::Restart | Self::Leave(_) => (60, 100),
            Self::Nothing | Self::Delete => (60, 6),
        };
        Settings {
            epochs: EPOCHS,
            deadline_seconds,
            retries,
            hold_step: (self != Self::Nothing).then_some(HOLD_STEP),
            leaves_at_stall: self == Self::Leave(Exit::Return),
            tells_samples: false,
        }
    }
}

/// What is known after a trial.
pub(crate) struct Seen {
    /// What the loader said in the end; a killed one says nothing.
    pub(crate) ended: Option<Ended>,
    pub(crate) gone: Gone,
    pub(crate) deleted: BTreeSet<u64>,
}

/// Makes the trouble.
pub(crate) fn run(way: Way, trouble: Trouble, server: &Server, pictures: &Pictures) -> Result<Seen> {
    pictures.restore()?;
    let mounted = Mounted::new(way.options)?;
    let mut engine = Engine::start(mounted.path(), &trouble.settings())?;
    if trouble != Trouble::Nothing {
        engine.wait_until_held()?;
    }
    let mut deleted = BTreeSet::new();
    let mut cut = None;
    match trouble {
        Trouble::Nothing => {}
        Trouble::CutPatient | Trouble::CutImpatient => {
            let cut = Cut::new()?;
            engine.go_on()?;
            // Not a wait for something: this long is what is being tried.
            sleep(CUT);
            cut.mend()?;
        }
        Trouble::CutForGood => {
            cut = Some(Cut::new()?);
            engine.go_on()?;
        }
        Trouble::Restart => {
            server.stop()?;
            engine.go_on()?;
            let stalled = engine.wait_until_stalled();
            server.resume()?;
            stalled?;
        }
        Trouble::Delete => {
            deleted = pictures.delete()?;
            engine.go_on()?;
        }
        Trouble::Leave(exit) => {
            cut = Some(Cut::new()?);
            engine.go_on()?;
            engine.wait_until_stalled()?;
            match exit {
                Exit::Return => {}
                Exit::Terminated => engine.signal(libc::SIGTERM)?,
                Exit::Killed => engine.signal(libc::SIGKILL)?,
            }
        }
    }
    let ended = match trouble {
        Trouble::Leave(Exit::Terminated | Exit::Killed) => None,
        _ => Some(engine.wait_until_ended()?),
    };
    let gone = engine.wait_until_gone()?;
    cut.map(Cut::mend).transpose()?;
    mounted.unmount()?;
    Ok(Seen { ended, gone, deleted })
}
