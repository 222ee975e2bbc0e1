//! Making the sidecar of a file.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Error, Result, Stage};
use forebay_format::{GroupEncoder, ParityLayout};
use forebay_store::{ReadRequest, Replacement, Stat, Store, is_url};

use super::reader::sidecar_of;
use crate::scan::call_pool::CallPool;
use crate::scan::sequential::buffer;
use crate::scan::{max_threads, once};
use crate::source::defaults::retry_of;

/// A sidecar that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParityMade {
    /// Where it is: `train-000.tar.parity`.
    pub sidecar: PathBuf,
    /// The size of the file.
    pub file_bytes: u64,
    /// Its own size.
    pub sidecar_bytes: u64,
    /// Of so many blocks of a group …
    pub group_blocks: u32,
    /// … so many may be lost.
    pub parity_blocks: u32,
}

/// A group of a file.
#[derive(Clone)]
pub(super) struct Group {
    pub(super) path: Arc<Path>,
    pub(super) number: u64,
}

impl AsRef<Path> for Group {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

/// Called with how many groups of a file are done, and of how many.
pub(super) type Watch<'a> = &'a mut dyn FnMut(u64, u64);

/// Fails for a file that is not on this machine: only there is it replaced in one step.
pub(super) fn check_is_local(path: &Path) -> Result<()> {
    match is_url(path) {
        false => Ok(()),
        true => Err(Error::config("parity: expected a file of this machine or its mounts, got a URL")
            .at_path(path)
            .with_hint("make it where the archive is made, and copy both: `forebay mirror` does")),
    }
}

/// Makes the sidecar of a finished file, beside it: parity of about this `fraction` of it, 0.02 for 2 %. An earlier one is replaced in one
/// step. Several groups are made at a time, in some 9 MiB each; checksums take 0.2 % of the file's size until the end.
///
/// The file has to stay as it is meanwhile; otherwise nothing is written. `watch` is told how many groups are done.
pub fn make_parity(
    store: &Arc<dyn Store>,
    path: &Path,
    fraction: f64,
    watch: &mut dyn FnMut(u64, u64),
) -> Result<ParityMade> {
    make(store, path, fraction, watch).map_err(|error| error.at_path(path).at_stage(Stage::Scan))
}

fn make(store: &Arc<dyn Store>, path: &Path, fraction: f64, watch: Watch<'_>) -> Result<ParityMade> {
    check_is_local(path)?;
    let (retry, threads) = (retry_of(&**store), max_threads(&**store));
    let asked = Arc::clone(store);
    let stat = once(store, path, retry, move |path| asked.stat(path))?;
    let layout = ParityLayout::new(stat.size_bytes, fraction)?;
    let sidecar = sidecar_of(path);
    let mut out = Replacement::new(&sidecar)?;
    let written = |error| Error::io("written", error).at_path(&sidecar);
    out.write_all(&layout.header()).map_err(written)?;
    let reader = Arc::clone(store);
    let mut pool = CallPool::new(threads, retry, store.capabilities().keeps_deadlines, move |group: &Group| {
        let read = ReadRequest::new(&group.path, retry.deadline).with_expected(stat);
        encode(&*reader, &layout, &read, group.number)
    });
    let shared: Arc<Path> = path.into();
    let (mut asked, mut done, count) = (0, 0, layout.group_count());
    let mut made: BTreeMap<u64, (Vec<u8>, Vec<u8>)> = BTreeMap::new();
    let mut copies = Vec::new();
    while done < count {
        // What waits for those before it is in memory.
        while asked < count && asked < done + 2 * threads as u64 {
            pool.ask(Group { path: Arc::clone(&shared), number: asked });
            asked += 1;
        }
        let Some((group, encoded)) = pool.next()? else {
            return Err(Error::internal("a group was left out of the parity"));
        };
        made.insert(group.number, encoded?);
        while let Some((record, parity)) = made.remove(&done) {
            out.write_all(&record).and_then(|()| out.write_all(&parity)).map_err(written)?;
            let no_memory = |_| Error::internal("no memory was left for the checksums of its blocks");
            copies.try_reserve(record.len()).map_err(no_memory)?;
            copies.extend_from_slice(&record);
            done += 1;
            watch(done, count);
        }
    }
    out.write_all(&copies).and_then(|()| out.write_all(&layout.header())).map_err(written)?;
    let sidecar_bytes = out.commit()?;
    let Stat { size_bytes: file_bytes, .. } = stat;
    let (group_blocks, parity_blocks) = (layout.group_blocks(0), layout.parity_blocks());
    Ok(ParityMade { sidecar, file_bytes, sidecar_bytes, group_blocks, parity_blocks })
}

/// Record and parity of a group.
fn encode(store: &dyn Store, layout: &ParityLayout, read: &ReadRequest<'_>, group: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut encoder = GroupEncoder::new(layout, group)?;
    let mut spare = Vec::new();
    for run in layout.runs_of(group) {
        let request = read.clone().with_range(run.bytes);
        let mut allot = |size| if spare.capacity() == 0 { buffer(size) } else { Ok(std::mem::take(&mut spare)) };
        let object = store.fetch(&request, &mut allot)?;
        encoder.add(&object.bytes)?;
        spare = object.bytes.into_buffer();
    }
    encoder.finish()
}
