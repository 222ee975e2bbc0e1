//! What is checked of the settings, and what of them the bytes depend on.

use forebay::recorded_root;
use forebay_core::{Error, FailureLimit, Result};
use forebay_store::{is_url, split_url};
use serde_json::{Map, Value, json};

use crate::plan::{Contents, Plan};
use crate::records::State;
use crate::source::Samples;
use crate::{Pack, SourceKind};

/// Tar archives take at least so much: a sample of one field, and their end.
const MIN_SHARD_BYTES: u64 = 2048;
const MAX_PREFIX_BYTES: usize = 200;

impl Pack {
    /// Refuses settings that make no sense.
    pub(crate) fn check(&self) -> Result<()> {
        let is_plain = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '-' | '_' | '.' | '=');
        let prefix = &self.prefix;
        if prefix.is_empty()
            || prefix.len() > MAX_PREFIX_BYTES
            || prefix.starts_with('.')
            || !prefix.chars().all(is_plain)
        {
            let expected = format!("expected up to {MAX_PREFIX_BYTES} letters, digits, \"-\", \"_\", \".\" or \"=\"");
            return Err(Error::config(format!("--prefix: {expected}, and no leading dot, got {prefix:?}")));
        }
        if let Some(bytes) = self.shard_bytes.filter(|bytes| *bytes < MIN_SHARD_BYTES) {
            return Err(Error::config(format!("--shard-size: expected at least {MIN_SHARD_BYTES} bytes, got {bytes}")));
        }
        if self.samples_per_shard == Some(0) {
            return Err(Error::config("--samples-per-shard: expected at least 1, got 0"));
        }
        if let Some(recoding) = &self.recoding {
            if !(1..=100).contains(&recoding.quality) {
                return Err(Error::config(format!("--quality: expected 1 to 100, got {}", recoding.quality)));
            }
            if recoding.max_side == Some(0) {
                return Err(Error::config("--max-side: expected at least 1, got 0"));
            }
        }
        if let Some(FailureLimit::Fraction(fraction)) = self.max_failures
            && !(0.0..=1.0).contains(&fraction)
        {
            return Err(Error::config(format!("--max-failures: expected a fraction from 0 to 1, got {fraction}")));
        }
        if let Some(fraction) = self.parity {
            if is_url(&self.target) {
                let error = Error::config("--parity: expected a directory as the target, got a URL");
                return Err(error.with_hint("pack to a disk, and copy shards and parity with `forebay mirror`"));
            }
            if !(fraction > 0.0 && fraction <= 1.0) {
                return Err(Error::config(format!("--parity: expected a share above 0 and up to 1, got {fraction}")));
            }
        }
        if self.source.root.is_some() && self.source.kind.is_some_and(|kind| kind != SourceKind::Manifest) {
            return Err(Error::config("--root: expected a manifest as the source"));
        }
        self.check_overlap()
    }

    /// What is packed, and by which settings.
    pub(crate) fn state(&self, plan: &Plan, samples: &Samples) -> Result<State> {
        let Contents { samples: count, names, sizes, versions } = &plan.contents;
        let recoding = self.recoding.as_ref().map(|how| {
            json!({
                "max_side": how.max_side, "format": how.format.map(|coding| coding.extension()), "quality": how.quality,
            })
        });
        let classes: Vec<_> = samples.classes().into_iter().map(|(name, label)| json!([name, label])).collect();
        let classes =
            forebay_core::hash_words(&Value::Array(classes).to_string().bytes().map(u64::from).collect::<Vec<_>>());
        let settings = json!({
            "prefix": self.prefix,
            "shard_bytes": self.shard_bytes,
            "samples_per_shard": self.samples_per_shard,
            "shuffle": self.shuffle,
            "checks": self.checks || self.recoding.is_some(),
            "recoding": recoding,
            "landmarks": self.landmarks,
            "parity": self.parity,
            "samples": count,
            "source_names": names,
            "source_classes": format!("{classes:016x}"),
            "source_sizes": sizes,
            "source_versions": versions,
        });
        let mut settings = match settings {
            Value::Object(settings) => settings,
            _ => Map::new(),
        };
        if let Some(fields) = &self.source.fields {
            settings.insert("fields".to_owned(), json!(fields));
        }
        let source = match is_url(&self.source.path) {
            true => {
                let (plain, _) = split_url(&self.source.path, &self.source.options)?;
                plain.to_string_lossy().into_owned()
            }
            false => {
                recorded_root(&self.source.path).unwrap_or_else(|_| self.source.path.to_string_lossy().into_owned())
            }
        };
        Ok(State::new(source, settings))
    }
}
