//! What shards are, by their directory's own index or by their first bytes, and their samples: of every format but tar.

use std::collections::HashMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_core::{Element, Error, FRAME_HEADER_BYTES, Field, Kind, Locator, Result, SampleId, Stage, frame_length};
use forebay_decode::{
    BytesRecipe, Encoding, Endian, ExampleRecord, Feature, FeatureKind, FieldsRecipe, Format, FramedRecord,
    HeadedArrayRecipe, InvalidText, JsonRecipe, RawRecipe, Recipe, RecordFormat, RecordRecipe, ScalarRecipe,
    SizedRecord, TextRecipe, WantedFeature, features,
};
use forebay_format::{
    ArrowScanner, ArrowSchema, Directory, FieldKind, FolderIndex, Listed, RecordField, SHARD_RULE, ShardIndex,
    TableScanner, TfRecordScanner, arrow_schema, litdata_elements, read_saved_dataset,
};
use forebay_store::{ReadRequest, Stat, Store};

use crate::scan::once;
use crate::scan::ranges::index_ranges;
use crate::scan::sequential::{UnreadFile, buffer};
use crate::source::defaults::retry_of;
use crate::source::indexes::{Indexes, index_by};
use crate::source::shards::{IndexPlace, Shards};
use crate::source::{Dataset, parquet, read_located, read_request};

/// The file of streaming and of LitData that says which shards there are.
const DIRECTORY_NAME: &str = "index.json";
/// The one of Hugging Face's `datasets`.
const STATE_NAME: &str = "state.json";
/// The file that it has in place of that where there are several.
const SPLITS_NAME: &str = "dataset_dict.json";
/// Behind the name of a feature: it is a list of numbers, even if the first example has one.
const LIST_SUFFIX: &str = "[]";
/// So much of a file says what it is.
const PROBE_BYTES: u64 = 512;
/// The schema of most Arrow files is shorter.
const SCHEMA_BYTES: u64 = 64 << 10;
/// The beginning of an Arrow file, and that of a message, which is all that the stream format has.
const ARROW_FILE: &[u8] = b"ARROW1\0\0";
const ARROW_MESSAGE: [u8; 4] = [0xFF; 4];
/// Where tar has its magic number.
const TAR_MAGIC: std::ops::Range<usize> = 257..262;

/// The format of shards.
#[derive(Clone, Debug)]
pub enum ShardFormat {
    /// MDS shards or LitData chunks, with what their directory says, and where that is.
    Listed {
        /// What it says.
        directory: Directory,
        /// Where it is.
        root: PathBuf,
    },
    /// Files of TFRecords.
    TfRecord,
    /// Arrow files, and where they are, if a dataset of Hugging Face lists them.
    Arrow(Option<Vec<PathBuf>>),
    /// Parquet files.
    Parquet,
}

/// The samples of shards, and what they are made of.
pub struct FormattedShards {
    /// The samples.
    pub shards: Shards,
    /// Their fields.
    pub fields: ShardFields,
}

/// The fields of samples in shards.
#[derive(Clone, Debug)]
pub struct ShardFields {
    fields: Vec<RecordField>,
    form: Form,
    /// Whether samples are tuples: their fields are numbered.
    pub is_tuple: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// One behind the other, with their sizes in front of them.
    Sized,
    /// Those of an example in a frame.
    Example,
    /// One, in a frame.
    Framed,
    /// Each at a place of its own.
    Apart,
}

impl ShardFormat {
    /// What a directory's own index says; `None` where it has none.
    pub fn of_directory(store: &Arc<dyn Store>, root: &Path) -> Result<Option<Self>> {
        let located = |name: &str, error: Error| error.at_path(&root.join(name)).at_stage(Stage::Scan);
        let read = |name: &str| match read_whole(store, &root.join(name)) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) if error.kind() == Kind::NotFound => Ok(None),
            Err(error) => Err(located(name, error)),
        };
        if let Some(bytes) = read(DIRECTORY_NAME)? {
            let directory = Directory::read(&bytes).map_err(|error| located(DIRECTORY_NAME, error))?;
            return Ok(Some(Self::Listed { directory, root: root.to_owned() }));
        }
        if let Some(bytes) = read(STATE_NAME)? {
            let names = read_saved_dataset(&bytes).map_err(|error| located(STATE_NAME, error))?;
            return Ok(Some(Self::Arrow(Some(names.iter().map(|name| root.join(name)).collect()))));
        }
        if read(SPLITS_NAME)?.is_some() {
            let error =
                Error::new(Kind::Undecodable, "says that this is several datasets (splits), each with its state.json");
            return Err(located(SPLITS_NAME, error.with_hint("name the directory of one of them, such as …/train")));
        }
        Ok(None)
    }

    /// What files are, by the beginning of the first one; `None` for archives, and for what is of no other format.
    pub fn of_files(files: &dyn Dataset, store: &Arc<dyn Store>) -> Result<Option<Self>> {
        if files.is_empty() {
            return Ok(None);
        }
        let path = files.path(SampleId(0));
        if path.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("tar")) {
            return Ok(None);
        }
        let bytes =
            read_start(store, &path, PROBE_BYTES).map_err(|error| error.at_path(&path).at_stage(Stage::Scan))?;
        match recognise(&bytes) {
            Ok(format) => Ok(format),
            Err(error) => Err(error.at_path(&path).at_stage(Stage::Scan)),
        }
    }

    /// The files that the directory names; `None` where they were given.
    pub fn files(&self) -> Result<Option<FolderIndex>> {
        let paths: Vec<_> = match self {
            Self::Listed { directory, root } => directory.files.iter().map(|(name, _)| root.join(name)).collect(),
            Self::Arrow(Some(paths)) => paths.clone(),
            Self::Arrow(None) | Self::TfRecord | Self::Parquet => return Ok(None),
        };
        FolderIndex::of_paths(paths.iter().map(PathBuf::as_path)).map(Some)
    }

    /// The samples of files of this format, with these fields: each has several names, of which the first counts that samples
    /// have; by default with all. Without `parses_examples` a TFRecord is a sample as it is. `root` is the directory or the URL
    /// that all files are below.
    pub fn open(
        &self,
        files: Arc<dyn Dataset>,
        store: &Arc<dyn Store>,
        (root, place): (&Path, &IndexPlace),
        wanted: Option<&[Vec<String>]>,
        parses_examples: bool,
    ) -> Result<FormattedShards> {
        self.open_all(files, store, (root, place), wanted, parses_examples)?.with_fields(wanted)
    }

    /// The same with all fields that were looked at.
    fn open_all(
        &self,
        files: Arc<dyn Dataset>,
        store: &Arc<dyn Store>,
        (root, place): (&Path, &IndexPlace),
        wanted: Option<&[Vec<String>]>,
        parses_examples: bool,
    ) -> Result<FormattedShards> {
        match self {
            Self::Listed { directory, root: listed_at } => {
                let listed: HashMap<_, _> =
                    directory.files.iter().map(|(name, listed)| (listed_at.join(name), *listed)).collect();
                let listed = |path: &Path| listed.get(path).copied().unwrap_or_else(Listed::default);
                let first = files.path(SampleId(0));
                if directory.has_rows_behind && has_rows(&first, listed(&first), store)? {
                    let begin = |path: &Path| table_bytes(listed(path));
                    return arrow_rows(files, store, (root, place), begin);
                }
                let indexes = place.indexes(&*files, store, root, |unread| {
                    let scanner = |file: &UnreadFile| TableScanner::new(file.stat.size_bytes, listed(&file.path));
                    index_ranges(store, scanner, unread)
                });
                let indexes = indexes.map_err(|error| explain_missing(error, directory))?;
                refuse_rows_elsewhere(&indexes)?;
                let shards = Shards::of(files, indexes, "look at what the index of the directory lists")?;
                let Directory { fields, is_tuple, .. } = directory.clone();
                Ok(FormattedShards { shards, fields: ShardFields { fields, form: Form::Sized, is_tuple } })
            }
            Self::TfRecord => {
                let indexes = place.indexes(&*files, store, root, |unread| {
                    index_ranges(store, |file| TfRecordScanner::new(file.stat.size_bytes), unread)
                })?;
                let shards = Shards::of(files, indexes, "expected TFRecord files")?;
                let (fields, form) = match parses_examples {
                    true => (first_example(&shards, store)?, Form::Example),
                    false => {
                        let field = RecordField { name: "record".to_owned(), kind: FieldKind::Bytes, size_bytes: None };
                        (vec![field], Form::Framed)
                    }
                };
                Ok(FormattedShards { shards, fields: ShardFields { fields, form, is_tuple: false } })
            }
            Self::Arrow(_) => arrow_rows(files, store, (root, place), |_| 0),
            Self::Parquet => {
                let (shards, fields) = parquet::open(files, store, (root, place), wanted)?;
                Ok(FormattedShards { shards, fields: ShardFields { fields, form: Form::Apart, is_tuple: false } })
            }
        }
    }
}

impl FormattedShards {
    /// The samples with these fields: each has several names, of which the first counts that samples have. By default with all.
    fn with_fields(self, wanted: Option<&[Vec<String>]>) -> Result<Self> {
        let Self { shards, fields } = self;
        let own = |names: &Vec<String>| fields.find(names).map(|field| vec![field.name.clone()]);
        let names = match (fields.form, wanted) {
            (Form::Apart, Some(wanted)) => wanted.iter().map(own).collect::<Result<_>>()?,
            (Form::Apart, None) => fields.fields.iter().map(|field| vec![field.name.clone()]).collect(),
            // A record is read as a whole.
            _ => return Ok(Self { shards, fields }),
        };
        Ok(Self { shards: shards.with_fields(names), fields })
    }
}

/// The rows of Arrow files, which begin at a place in each file.
fn arrow_rows(
    files: Arc<dyn Dataset>,
    store: &Arc<dyn Store>,
    (root, place): (&Path, &IndexPlace),
    begin: impl Fn(&Path) -> u64 + Sync,
) -> Result<FormattedShards> {
    let indexes = place.indexes(&*files, store, root, |unread| {
        index_ranges(store, |file| ArrowScanner::behind(begin(&file.path), file.stat.size_bytes), unread)
    })?;
    check_schemas(&*files, &indexes)?;
    let first = files.path(SampleId(0));
    let schema = read_schema(&first, begin(&first), store)?;
    let shards = Shards::of(files, indexes, "expected Arrow files with rows in them")?;
    let fields = ShardFields { fields: schema.fields, form: Form::Apart, is_tuple: false };
    Ok(FormattedShards { shards, fields })
}

/// How long the table of a chunk is: a count, and an offset more than samples, in 32 bits each.
fn table_bytes(listed: Listed) -> u64 {
    listed.samples.saturating_add(2).saturating_mul(4)
}

/// Whether a chunk has an Arrow file behind a table of records without bytes.
fn has_rows(path: &Path, listed: Listed, store: &Arc<dyn Store>) -> Result<bool> {
    let end = table_bytes(listed);
    let bytes = read_part(store, path, end - 4..end.saturating_add(8));
    let bytes = bytes.map_err(|error| error.at_path(path).at_stage(Stage::Scan))?;
    let Some((last, begin)) = bytes.split_first_chunk::<4>() else { return Ok(false) };
    Ok(u64::from(u32::from_le_bytes(*last)) == end && (begin == ARROW_FILE || begin.starts_with(&ARROW_MESSAGE)))
}

/// Files of other columns than the first one are of another dataset.
fn check_schemas(files: &dyn Dataset, indexes: &Indexes<ShardIndex>) -> Result<()> {
    let mut schemas = (0..).zip(&indexes.indexes).map(|(file, index)| (file, ArrowScanner::schema_of(index)));
    let Some((_, first)) = schemas.next() else { return Ok(()) };
    match schemas.find(|(_, own)| *own != first) {
        Some((file, _)) => {
            let error = Error::new(Kind::Undecodable, "has other columns, or other types of them, than the first file");
            let hint = "name files of one dataset, or write them again with the same features";
            Err(error.with_hint(hint).at_path(&files.path(SampleId(file))).at_stage(Stage::Scan))
        }
        None => Ok(()),
    }
}

/// The schema of an Arrow file that begins here.
fn read_schema(path: &Path, begin: u64, store: &Arc<dyn Store>) -> Result<ArrowSchema> {
    let located = |error: Error| error.at_path(path).at_stage(Stage::Scan);
    let read = |most: u64| read_part(store, path, begin..begin.saturating_add(most)).map_err(located);
    match arrow_schema(&read(SCHEMA_BYTES)?).map_err(located)? {
        Ok(schema) => Ok(schema),
        Err(needed) => match arrow_schema(&read(needed)?).map_err(located)? {
            Ok(schema) => Ok(schema),
            Err(_) => Err(located(Error::new(Kind::Corrupt, "ends in its schema"))),
        },
    }
}

impl IndexPlace {
    /// The indexes of files: as they were kept here, or made.
    pub(super) fn indexes(
        &self,
        files: &dyn Dataset,
        store: &Arc<dyn Store>,
        root: &Path,
        make: impl FnOnce(&[UnreadFile]) -> Result<Vec<ShardIndex>>,
    ) -> Result<Indexes<ShardIndex>> {
        let beside = self.beside(root);
        index_by(files, store, (Some(root), self.keep(&beside)), SHARD_RULE, make)
    }
}

/// What the beginning of a file says about its format.
fn recognise(bytes: &[u8]) -> Result<Option<ShardFormat>> {
    let refused = |what: &str, hint: &'static str| {
        let message = format!(
            "looks like {what} (expected a tar archive, an MDS, LitData or Hugging Face directory, TFRecords, Arrow or Parquet files)"
        );
        Err(Error::new(Kind::Undecodable, message).with_hint(hint))
    };
    if bytes.first_chunk::<FRAME_HEADER_BYTES>().and_then(frame_length).is_some() {
        return Ok(Some(ShardFormat::TfRecord));
    }
    let unpack = "unpack it first: single samples cannot be read from a compressed file";
    match bytes {
        _ if bytes.get(TAR_MAGIC) == Some(b"ustar") => Ok(None),
        [0xFF, 0xFF, 0xFF, 0xFF, ..] if arrow_schema(bytes).is_ok() => Ok(Some(ShardFormat::Arrow(None))),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => Ok(Some(ShardFormat::Arrow(None))),
        [0x1F, 0x8B, ..] => refused("a file compressed with gzip", unpack),
        [0x28, 0xB5, 0x2F, 0xFD, ..] => refused("a file compressed with zstd", unpack),
        [0x78, 0x01 | 0x5E | 0x9C | 0xDA, ..] => refused("a file compressed with zlib", unpack),
        [b'P', b'A', b'R', b'1', ..] => Ok(Some(ShardFormat::Parquet)),
        _ => Ok(None),
    }
}

/// Shards that are there in their compressed form alone.
fn explain_missing(error: Error, directory: &Directory) -> Error {
    let Some(name) = directory.compression.as_ref().filter(|_| error.kind() == Kind::NotFound) else { return error };
    let path = error.path().map(Path::to_owned).unwrap_or_default();
    let message = format!("is there only in its compressed form ({name:?})");
    let hint = "unpack the shards: streaming's StreamingDataset leaves plain ones in its local directory";
    Error::new(Kind::Undecodable, message).with_hint(hint).at_path(&path).at_stage(Stage::Scan)
}

/// LitData keeps some rows elsewhere than in the records, which have no bytes then.
fn refuse_rows_elsewhere(indexes: &Indexes<ShardIndex>) -> Result<()> {
    let is_empty = |index: &ShardIndex| {
        let is_none =
            |sample| index.find(sample, &[0]).is_some_and(|(_, part)| part.range.is_empty() && part.lost.is_none());
        (0..index.len()).all(is_none)
    };
    match indexes.indexes.iter().find(|index| !index.is_empty()) {
        Some(index) if is_empty(index) => {
            let message = "chunks whose records have no bytes, and no rows in an Arrow file behind their table";
            let hint = "write them again with a current LitData, or as JSON lines, Parquet or WebDataset";
            Err(Error::new(Kind::Undecodable, message).with_hint(hint).at_stage(Stage::Scan))
        }
        _ => Ok(()),
    }
}

fn read_whole(store: &Arc<dyn Store>, path: &Path) -> Result<Vec<u8>> {
    let (reader, owned, retry) = (Arc::clone(store), path.to_owned(), retry_of(&**store));
    once(store, path, retry, move |_| {
        let request = ReadRequest::new(&owned, retry.deadline);
        reader.fetch(&request, &mut |size| buffer(size)).map(|object| object.bytes.into_vec())
    })
}

pub(super) fn read_start(store: &Arc<dyn Store>, path: &Path, most: u64) -> Result<Vec<u8>> {
    read_part(store, path, 0..most)
}

/// As much of a range as the file has.
fn read_part(store: &Arc<dyn Store>, path: &Path, range: Range<u64>) -> Result<Vec<u8>> {
    let (reader, owned, retry) = (Arc::clone(store), path.to_owned(), retry_of(&**store));
    once(store, path, retry, move |_| {
        let Stat { size_bytes, .. } = reader.stat(&owned)?;
        let end = size_bytes.min(range.end);
        let request = ReadRequest::new(&owned, retry.deadline).with_range(range.start.min(end)..end);
        reader.fetch(&request, &mut |size| buffer(size)).map(|object| object.bytes.into_vec())
    })
}

/// The features of the first example that can be read, sorted by name.
fn first_example(shards: &Shards, store: &Arc<dyn Store>) -> Result<Vec<RecordField>> {
    let (sample, mut locator) = (SampleId(0), Locator::default());
    shards.locate(sample, Field(0), &mut locator);
    let located = |error: Error| error.at_path(&locator.name()).at_stage(Stage::Scan);
    shards.verify(sample, Field(0), &[]).map_err(located)?;
    let request = read_request(&locator, retry_of(&**store).deadline);
    let object =
        read_located(&**store, shards, (sample, Field(0)), &request, &mut |size| buffer(size)).map_err(located)?;
    let no_example = |error: Error| {
        let hint = "records of another kind are samples of bytes with `decode=false`";
        located(error.with_hint(hint))
    };
    FramedRecord.verify(&object.bytes).map_err(located)?;
    let mut found = Vec::new();
    let mut each = |feature: Feature<'_>| found.push(kind_of(&feature).map(|kind| (feature.name.to_owned(), kind)));
    features(&object.bytes, &mut each).map_err(no_example)?;
    let mut fields: Vec<_> = found.into_iter().collect::<Result<_>>().map_err(no_example)?;
    if fields.is_empty() {
        return Err(no_example(Error::new(Kind::Undecodable, "is no tf.train.Example with features")));
    }
    fields.sort_by(|(one, _), (other, _)| one.cmp(other));
    fields.dedup_by(|(one, _), (other, _)| one == other);
    Ok(fields.into_iter().map(|(name, kind)| RecordField { name, kind, size_bytes: None }).collect())
}

/// What a feature is, by what it is in the first example.
fn kind_of(feature: &Feature<'_>) -> Result<FieldKind> {
    let element = match feature.list {
        None => return Ok(FieldKind::Other("a feature without a value in the first example".to_owned())),
        Some((FeatureKind::Bytes, _)) => {
            return Ok(match (feature.first_bytes()?, feature.len()?) {
                (Some(bytes), 1) if Format::sniff(bytes).is_some() => FieldKind::Picture,
                (Some(_), 1) => FieldKind::Bytes,
                (_, count) => FieldKind::Other(format!("a list of {count} byte strings in the first example")),
            });
        }
        Some((FeatureKind::Floats, _)) => Element::F32,
        Some((FeatureKind::Integers, _)) => Element::I64,
    };
    Ok(if feature.len()? == 1 { FieldKind::Number(element) } else { FieldKind::Numbers(element) })
}

impl ShardFields {
    /// All fields.
    pub fn all(&self) -> &[RecordField] {
        &self.fields
    }

    /// Whether each field of a sample lies at a place of its own. Otherwise a record with all of them is read, and taken apart by
    /// [`ShardFields::recipe`].
    pub fn are_apart(&self) -> bool {
        self.form == Form::Apart
    }

    /// The first field that has one of these names, in upper or lower case; an error with all of them where none has.
    pub fn find(&self, names: &[String]) -> Result<&RecordField> {
        self.number(names).map(|number| &self.fields[number])
    }

    fn number(&self, names: &[String]) -> Result<usize> {
        let find = |name: &str| {
            let same = |field: &RecordField| field.name.to_lowercase() == name.to_lowercase();
            self.fields.iter().position(|field| field.name == *name).or_else(|| self.fields.iter().position(same))
        };
        names.iter().map(|name| self.bare(name)).find_map(find).ok_or_else(|| {
            let known: Vec<_> = self.fields.iter().take(50).map(|field| &*field.name).collect();
            let (expected, got) = (known.join(", "), names.join(" or "));
            Error::config(format!("fields: expected names among {expected}, got {got}"))
        })
    }

    /// Whether the bytes of a field are there to be read, whatever they are.
    pub fn has_bytes(&self, field: &RecordField) -> bool {
        self.form != Form::Apart || !matches!(field.kind, FieldKind::Other(_))
    }

    /// The recipe of the field of these names, which is no picture.
    pub fn value(&self, names: &[String]) -> Result<Arc<dyn Recipe>> {
        let is_list = self.form == Form::Example && names.iter().any(|name| name.ends_with(LIST_SUFFIX));
        Ok(match &self.find(names)?.kind {
            FieldKind::Number(Element::Bool) if self.form == Form::Apart => Arc::new(ScalarRecipe::bit()),
            FieldKind::Number(element) if is_list => {
                Arc::new(RawRecipe::of_any_length(Vec::new(), *element, Endian::Little)?)
            }
            FieldKind::Text => {
                Arc::new(TextRecipe { encoding: Encoding::Utf8, invalid: InvalidText::Strict, is_line: false })
            }
            FieldKind::Integer => Arc::new(ScalarRecipe::integer()),
            FieldKind::Decimal => Arc::new(ScalarRecipe::decimal()),
            FieldKind::Json => Arc::new(JsonRecipe::default()),
            FieldKind::Number(element) => Arc::new(RawRecipe::new(Vec::new(), *element, Endian::Little)?),
            FieldKind::Numbers(element) => Arc::new(RawRecipe::of_any_length(Vec::new(), *element, Endian::Little)?),
            FieldKind::Array { element: Some(element), shape: Some(shape) } => {
                Arc::new(RawRecipe::new(shape.clone(), *element, Endian::Little)?)
            }
            FieldKind::Array { element, shape } => Arc::new(HeadedArrayRecipe::mds(*element, shape.clone())),
            FieldKind::NumpyArray => Arc::new(HeadedArrayRecipe::litdata(litdata_elements(true), Endian::Little)),
            FieldKind::Tensor => Arc::new(HeadedArrayRecipe::litdata(litdata_elements(false), Endian::Big)),
            _ => Arc::new(BytesRecipe),
        })
    }

    /// The recipe of samples with these columns: the name of each, those that its field may have, and what is made of that.
    pub fn recipe(&self, mut columns: Vec<(String, Vec<String>, Arc<dyn Recipe>)>) -> Result<Arc<dyn Recipe>> {
        let numbers = columns.iter().map(|(_, names, _)| self.number(names)).collect::<Result<Vec<_>>>()?;
        let format: Arc<dyn RecordFormat> = match self.form {
            Form::Sized => {
                Arc::new(SizedRecord::new(self.fields.iter().map(|field| field.size_bytes).collect(), numbers))
            }
            Form::Example => {
                let wanted = columns.iter().zip(&numbers).map(|((_, names, _), number)| {
                    let kind = match self.fields[*number].kind {
                        FieldKind::Number(Element::F32) | FieldKind::Numbers(Element::F32) => FeatureKind::Floats,
                        FieldKind::Number(_) | FieldKind::Numbers(_) => FeatureKind::Integers,
                        _ => FeatureKind::Bytes,
                    };
                    let is_single = matches!(self.fields[*number].kind, FieldKind::Number(_))
                        && !names.iter().any(|name| name.ends_with(LIST_SUFFIX));
                    WantedFeature { names: self.alternatives(names), kind, is_single }
                });
                Arc::new(ExampleRecord::new(wanted.collect()))
            }
            Form::Framed => Arc::new(FramedRecord),
            // A field alone is made as a file of it would be.
            Form::Apart if columns.len() == 1 => return Ok(columns.swap_remove(0).2),
            Form::Apart => {
                let fields = columns.into_iter().map(|(name, _, recipe)| (name, recipe));
                return Ok(Arc::new(FieldsRecipe::new(fields.collect())?));
            }
        };
        let columns = columns.into_iter().map(|(name, _, recipe)| (name, recipe)).collect();
        Ok(Arc::new(RecordRecipe::new(format, columns)?))
    }

    /// Names as the first example has them, where it has them.
    fn alternatives(&self, names: &[String]) -> Vec<String> {
        let own = |name: &String| match self.find(std::slice::from_ref(name)) {
            Ok(field) => field.name.clone(),
            Err(_) => self.bare(name).to_owned(),
        };
        names.iter().map(own).collect()
    }

    /// A name without what says that it is a list.
    fn bare<'a>(&self, name: &'a str) -> &'a str {
        match self.form {
            Form::Example if !self.fields.iter().any(|field| field.name == name) => {
                name.strip_suffix(LIST_SUFFIX).unwrap_or(name)
            }
            _ => name,
        }
    }
}
