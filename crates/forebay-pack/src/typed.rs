//! Shards whose fields are typed values (MDS, LitData, TFRecord, Arrow, Parquet) as a source: where the samples are, and how what is read
//! of one is taken apart.

use std::path::PathBuf;
use std::sync::Arc;

use forebay::{Dataset, FormattedShards, IndexPlace, ShardFormat, Shards, Unpacked};
use forebay_core::{Error, Field, Kind, Locator, Result, SampleId, Stage};
use forebay_decode::{BytesRecipe, Recipe, Recoder, Scratch, Value};
use forebay_store::Store;

use crate::Handling;
use crate::columns::{Column, Makes, made};
use crate::names::record_key;
use crate::read::{Made, SampleReader};
use crate::source::{Holds, Piece, Sample, Samples};
use crate::target::Halt;

/// So many samples are looked at to find out which columns of bytes are pictures.
const LOOKED_AT: u64 = 16;

/// The samples of shards, and what becomes of their columns.
pub(crate) struct Typed {
    pub(crate) shards: Shards,
    /// What all shards are below.
    root: PathBuf,
    columns: Vec<Column>,
    /// Takes a record apart; `None` where each field lies at a place of its own.
    split: Option<Arc<dyn Recipe>>,
}

impl Typed {
    /// The samples of files of a format, with the columns of these names, and the store that they are read from.
    pub(crate) fn open(
        format: &ShardFormat,
        files: Arc<dyn Dataset>,
        (store, root): (&Arc<dyn Store>, PathBuf),
        wanted: Option<&[Vec<String>]>,
    ) -> Result<(Self, Arc<dyn Store>)> {
        let FormattedShards { shards, fields } =
            format.open(files, store, (&root, &IndexPlace::Beside), wanted, true)?;
        let columns = Column::all(&fields, wanted)?;
        let split = match fields.are_apart() {
            true => None,
            false => {
                let bytes = |column: &Column| -> (String, Vec<String>, Arc<dyn Recipe>) {
                    (column.name.clone(), column.names.clone(), Arc::new(BytesRecipe))
                };
                Some(fields.recipe(columns.iter().map(bytes).collect())?)
            }
        };
        let store = match shards.tables() {
            Some(tables) => Arc::new(Unpacked::new(Arc::clone(store), vec![Arc::clone(tables)])) as Arc<dyn Store>,
            None => Arc::clone(store),
        };
        Ok((Self { shards, root, columns, split }, store))
    }

    /// A sample; one whose key is `long` has the ending of its shard in it.
    pub(crate) fn sample(&self, number: u64, is_long: bool) -> Result<Sample> {
        let (file, index, place) = self.shards.shard_of(SampleId(number));
        let path = self.shards.file_path(file);
        let below = path.strip_prefix(&self.root).unwrap_or(&path).to_string_lossy().into_owned();
        let key = record_key(&below, (place, index.len()), is_long);
        let expected = self.shards.expected(SampleId(number), Field(0));
        let piece = |name: &str, columns: std::ops::Range<usize>| {
            let mut member = String::new();
            index.write_key(place, &mut member);
            if !name.is_empty() {
                member.push('.');
                member.push_str(name);
            }
            let mut locator = Locator { path: path.clone(), range: None, member: Some(member) };
            let named = index.fields().iter().position(|field| field == name).and_then(|at| u16::try_from(at).ok());
            let Some((_, part)) = named.and_then(|named| index.find(place, &[named])) else {
                let message = format!("has no field {name:?}");
                return Err(Error::new(Kind::Corrupt, message).at_path(&locator.name()).at_stage(Stage::Scan));
            };
            let size = part.range.end - part.range.start;
            locator.range = Some(part.range);
            let (hash, lost, holds) = (part.hash, part.lost, Holds::Columns(columns));
            Ok(Piece { holds, locator, size, expected, hash, lost, is_file: false })
        };
        let pieces = match self.split {
            // A record has no name of its own.
            Some(_) => vec![piece(index.fields().first().map_or("", String::as_str), 0..self.columns.len())?],
            None => {
                let each = self.columns.iter().enumerate();
                each.map(|(at, column)| piece(&column.name, at..at + 1)).collect::<Result<_>>()?
            }
        };
        Ok(Sample { key, pieces, label: None })
    }

    /// The names and the sizes of the fields that a piece is planned as: by its size in the index alone.
    pub(crate) fn planned(&self, columns: std::ops::Range<usize>, size: u64) -> impl Iterator<Item = (String, u64)> {
        let is_record = self.split.is_some();
        self.columns[columns].iter().enumerate().map(move |(at, column)| {
            // How a record is divided among its fields only the record says: the first one stands for what all of them hold.
            let own = if is_record && at > 0 { 0 } else { size };
            (column.field(), column.planned_bytes(own).max(if is_record { own } else { 0 }))
        })
    }

    /// The fields that are in the bytes of a piece, each with its column.
    pub(crate) fn make(
        &self,
        columns: std::ops::Range<usize>,
        bytes: Vec<u8>,
        sample: u64,
        scratch: &mut Scratch,
    ) -> Result<Vec<(Makes, String, Vec<u8>)>> {
        let columns = &self.columns[columns];
        let Some(split) = &self.split else {
            let column = &columns[0];
            let (name, bytes) = column.make(bytes, sample, scratch)?;
            return Ok(vec![(column.makes, name, bytes)]);
        };
        let values = match made(&**split, &bytes, sample, scratch)? {
            Value::Row(values) => values,
            value => vec![value],
        };
        if values.len() != columns.len() {
            let (expected, got) = (columns.len(), values.len());
            return Err(Error::internal(format!("a record was taken apart into {got} fields (expected {expected})")));
        }
        let field = |(column, value): (&Column, Value)| {
            let Value::Bytes(bytes) = value else { return Err(Error::internal("a field of a record is no bytes")) };
            let made = column.make(bytes, sample, scratch).map_err(|error| error.in_part(&column.name));
            made.map(|(name, bytes)| (column.makes, name, bytes))
        };
        columns.iter().zip(values).map(field).collect()
    }

    /// Refuses to write pictures again where several columns are some: one of them may be a mask.
    pub(crate) fn check_recoding(&self) -> Result<()> {
        let pictures: Vec<_> = self.columns.iter().filter(|column| column.makes.is_picture()).collect();
        if pictures.len() < 2 {
            return Ok(());
        }
        let names = pictures.iter().map(|column| &*column.name).collect::<Vec<_>>().join(", ");
        let error = Error::config(format!("--max-side, --format: expected one column of pictures, got {names}"));
        Err(error.with_hint(
            "masks must not be blurred: name one column of pictures, and what else is wanted, with --fields",
        ))
    }
}

impl Samples {
    /// Finds out which columns of bytes are pictures: by the first sample that has bytes there.
    pub(crate) fn look_at_bytes(&mut self, halt: &Halt, handling: Handling) -> Result<()> {
        let handling = Handling { checks: false, recoding: None, landmarks: false, ..handling };
        let (mut recoder, mut number) = (Recoder::default(), 0);
        let mut unknown = match self.typed() {
            Some(typed) => typed.columns.iter().map(|column| column.makes == Makes::Bytes).collect(),
            None => Vec::new(),
        };
        while unknown.contains(&true) && number < self.len().min(LOOKED_AT) {
            let (seen, mut found) = (SampleReader::new(self, halt, handling).make(number, number)?, Vec::new());
            number += 1;
            match seen {
                Made::Good { fields, .. } => {
                    for (at, field) in
                        fields.iter().enumerate().filter(|(at, field)| unknown[*at] && !field.bytes.is_empty())
                    {
                        found.push((at, recoder.check(&field.bytes).is_ok()));
                    }
                }
                Made::Bad { failure, is_of_storage: true } => {
                    let error = Error::new(Kind::Unavailable, failure.message.clone()).at_path(&failure.path());
                    return Err(
                        error.with_hint("nothing was packed: run the same command again when the storage answers")
                    );
                }
                Made::Bad { .. } => {}
            }
            for (at, is_picture) in found {
                unknown[at] = false;
                if let Some(typed) = self.typed_mut().filter(|_| is_picture) {
                    typed.columns[at].makes = Makes::Picture;
                }
            }
        }
        Ok(())
    }
}
