//! Writing objects: in one request, or in parts if they are large. Either way an object appears complete.
//!
//! Each object carries the modification time of its source as metadata under the name `forebay`: listings do not
//! include it, so reading it takes one request per object.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind, Result};
use object_store::multipart::{MultipartStore, PartId};
use object_store::{Attribute, Attributes, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload};

use super::Remote;
use super::call::{Call, stat_of};
use super::location::Protocol;
use crate::sink::{Age, Held};

/// The name of the metadata: letters only, because Azure allows nothing else.
const NAME: &str = "forebay";
/// Timeout of a write request including its body: 70 KB/s for a part of 8 MiB. Not measured.
const MAX_WAIT: Duration = Duration::from_secs(120);

fn attributes(mtime_ns: i64) -> Attributes {
    Attributes::from_iter([(Attribute::Metadata(NAME.into()), format!("mtime_ns={mtime_ns}"))])
}

fn mtime_of(attributes: &Attributes) -> Option<i64> {
    let text = attributes.get(&Attribute::Metadata(NAME.into()))?;
    text.as_ref().strip_prefix("mtime_ns=")?.parse().ok()
}

impl Remote {
    /// Fails if the protocol cannot write objects.
    pub(crate) fn check_writable(&self) -> Result<()> {
        self.call(Path::new(&self.place.location.base), MAX_WAIT)?.parts().map(|_| ())
    }

    fn writing<T>(&self, path: &Path, write: impl FnOnce(Call) -> Result<T>) -> Result<T> {
        let written = self.call(path, MAX_WAIT).and_then(write);
        written.map_err(|error| error.at_path(path))
    }

    /// Writes a whole object, replacing an existing one.
    pub(crate) fn put(&self, path: &Path, bytes: &[u8], mtime_ns: i64) -> Result<()> {
        self.writing(path, |call| {
            let (store, key) = (Arc::clone(&call.client.store), call.key()?);
            let payload = PutPayload::from(bytes.to_vec());
            let options = PutOptions { attributes: attributes(mtime_ns), ..PutOptions::default() };
            let request = async move { store.put_opts(&key, payload, options).await };
            let (_, note) = call.ask_within(MAX_WAIT, "written", request)?;
            call.verify_sent(&note, bytes)
        })
    }

    /// Begins a multipart upload.
    pub(crate) fn begin(&self, path: &Path, mtime_ns: i64) -> Result<Upload> {
        self.writing(path, |call| {
            let (parts, key) = (call.parts()?, call.key()?);
            // Azure takes metadata with the last request, which the client does not support.
            let attributes =
                if call.client.protocol == Protocol::Azure { Attributes::new() } else { attributes(mtime_ns) };
            let options = PutMultipartOptions { attributes, ..PutMultipartOptions::default() };
            let request = async move { parts.create_multipart_opts(&key, options).await };
            let (id, _) = call.ask_within(MAX_WAIT, "written", request)?;
            Ok(Upload { store: self.clone(), path: path.to_owned(), id, parts: Vec::new() })
        })
    }

    /// The metadata of an existing object; `None` if there is none.
    pub(crate) fn held(&self, path: &Path) -> Result<Option<Held>> {
        let looked = self.writing(path, |call| {
            let (got, _) = call.head_with_note()?;
            let stat = stat_of(&got.meta);
            let age = match mtime_of(&got.attributes) {
                Some(mtime_ns) => Age::SourceTime(mtime_ns),
                None if call.client.protocol == Protocol::Azure => Age::WrittenAt(stat.mtime_ns),
                None => Age::Unknown,
            };
            Ok(Held { size_bytes: stat.size_bytes, age })
        });
        match looked {
            Ok(held) => Ok(Some(held)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes an object. A missing object is not an error.
    pub(crate) fn remove(&self, path: &Path) -> Result<()> {
        let removed = self.writing(path, |call| {
            let (store, key) = (Arc::clone(&call.client.store), call.key()?);
            call.ask_within(MAX_WAIT, "removed", async move { store.delete(&key).await })
        });
        match removed {
            // Azure uses a batch request, whose response body says what is missing.
            Err(error) if error.kind() != Kind::NotFound && !matches!(self.held(path), Ok(None)) => Err(error),
            _ => Ok(()),
        }
    }
}

impl Call {
    fn parts(&self) -> Result<Arc<dyn MultipartStore>> {
        self.client.parts.clone().ok_or_else(|| {
            Error::config(format!("target: {} cannot be written to", self.client.protocol.name()))
                .with_hint("give a directory, or a URL that begins with s3://, gs:// or az://")
        })
    }
}

/// A multipart upload. Nothing of it is visible until it is finished.
#[derive(Debug)]
pub(crate) struct Upload {
    store: Remote,
    path: PathBuf,
    id: String,
    parts: Vec<PartId>,
}

impl Upload {
    /// Uploads a part. A failed part can be uploaded again.
    pub(crate) fn write(&mut self, number: usize, bytes: &[u8]) -> Result<()> {
        let part = self.store.writing(&self.path, |call| {
            let (parts, key, id) = (call.parts()?, call.key()?, self.id.clone());
            let payload = PutPayload::from(bytes.to_vec());
            let request = async move { parts.put_part(&key, &id, number, payload).await };
            let (part, note) = call.ask_within(MAX_WAIT, "written", request)?;
            call.verify_sent(&note, bytes)?;
            Ok(part)
        })?;
        self.parts.truncate(number);
        self.parts.push(part);
        Ok(())
    }

    /// Combines the parts into one object.
    pub(crate) fn finish(&self) -> Result<()> {
        self.store.writing(&self.path, |call| {
            let (store, key, id, parts) = (call.parts()?, call.key()?, self.id.clone(), self.parts.clone());
            let request = async move { store.complete_multipart(&key, &id, parts).await };
            call.ask_within(MAX_WAIT, "written", request).map(|_| ())
        })
    }

    /// Aborts the upload, so that its parts are not billed.
    pub(crate) fn abandon(&self) -> Result<()> {
        self.store.writing(&self.path, |call| {
            let (store, key, id) = (call.parts()?, call.key()?, self.id.clone());
            call.ask_within(MAX_WAIT, "removed", async move { store.abort_multipart(&key, &id).await }).map(|_| ())
        })
    }
}
