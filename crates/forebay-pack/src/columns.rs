//! What the columns of shards become that say what their fields are: fields of archives, whose endings say it to every reader.

use std::path::PathBuf;
use std::sync::Arc;

use forebay::ShardFields;
use forebay_core::{Element, Epoch, Error, Kind, Result, Rng, SampleId};
use forebay_decode::{Array, Fields, Format, Recipe, Scratch, Value, anymap, write_npy};
use forebay_format::{FieldKind, RecordField};

use crate::names::field_name;

/// A column of whole numbers with one of these names is the label, if it is the only one.
const LABEL_NAMES: [&str; 4] = ["label", "cls", "class", "target"];
/// What a number takes as an array: its header, and its bytes.
const NUMBER_BYTES: u64 = 128 + 8;
/// What the header of an array takes, and its part of what its field is filled up with.
const ARRAY_BYTES: u64 = 128;

/// A column, and what becomes of it.
pub(crate) struct Column {
    /// As the source has it.
    pub(crate) name: String,
    /// The names by which the source finds it.
    pub(crate) names: Vec<String>,
    /// What its field's name begins with.
    base: String,
    pub(crate) makes: Makes,
    /// What the loader makes of its bytes.
    recipe: Arc<dyn Recipe>,
    is_single_number: bool,
}

/// What a column becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Makes {
    /// A picture, whose first bytes say which ending it gets.
    Picture,
    /// A picture that is written as PNG.
    Pixels,
    /// Its bytes.
    Bytes,
    Text,
    Json,
    /// The label, in decimal digits.
    Label,
    /// An array, or a number as an array without dimensions: its type stays.
    Array,
}

impl Makes {
    /// The ending of its field. That of a picture is seen when it is read: this one is longer, and stands for it in the plan.
    fn ending(self) -> &'static str {
        match self {
            Self::Picture => "picture",
            Self::Pixels => "png",
            Self::Bytes => "bin",
            Self::Text => "txt",
            Self::Json => "json",
            Self::Label => "cls",
            Self::Array => "npy",
        }
    }

    pub(crate) fn is_picture(self) -> bool {
        matches!(self, Self::Picture | Self::Pixels)
    }
}

impl Column {
    /// The columns of these names, or all of them. What is not read is refused by its name.
    pub(crate) fn all(fields: &ShardFields, wanted: Option<&[Vec<String>]>) -> Result<Vec<Self>> {
        let all: Vec<_> = fields.all().iter().map(|field| vec![field.name.clone()]).collect();
        let named = wanted.unwrap_or(&all);
        let found = named.iter().map(|names| fields.find(names)).collect::<Result<Vec<_>>>()?;
        refuse_unread(fields, &found)?;
        let is_label = |field: &RecordField| is_whole(&field.kind) && is_label_name(&field.name);
        let has_one_label = found.iter().filter(|field| is_label(field)).count() == 1;
        let mut columns: Vec<Self> = Vec::new();
        for (field, names) in found.into_iter().zip(named) {
            let recipe = fields.value(names)?;
            // A list that is asked for as one (`ids[]`) is no single number.
            let is_list = recipe.layout().is_none();
            let makes = match &field.kind {
                FieldKind::Picture => Makes::Picture,
                FieldKind::Pixels => Makes::Pixels,
                FieldKind::Bytes => Makes::Bytes,
                FieldKind::Text => Makes::Text,
                FieldKind::Json => Makes::Json,
                _ if has_one_label && is_label(field) && !is_list => Makes::Label,
                _ => Makes::Array,
            };
            let (name, base) = (field.name.clone(), field_name(&field.name));
            if let Some(same) = columns.iter().find(|column| column.base == base) {
                let message = format!(
                    "source: expected columns whose names differ in lower case, got {:?} and {name:?}",
                    same.name
                );
                return Err(Error::config(message)
                    .with_hint("readers of archives have names in lower case: name one of them with --fields"));
            }
            let is_single_number = is_number(&field.kind) && !is_list;
            columns.push(Self { name, names: names.clone(), base, makes, recipe, is_single_number });
        }
        Ok(columns)
    }

    /// The name of its field, as it is planned.
    pub(crate) fn field(&self) -> String {
        self.field_with(self.makes.ending())
    }

    fn field_with(&self, ending: &str) -> String {
        // A column that is called as what it becomes, `jpg`, keeps its name.
        if self.base == ending { self.base.clone() } else { format!("{}.{ending}", self.base) }
    }

    /// The bytes that its field is planned with, if so many are in the source.
    pub(crate) fn planned_bytes(&self, size: u64) -> u64 {
        match self.makes {
            Makes::Array if self.is_single_number => NUMBER_BYTES,
            Makes::Array => size.saturating_add(ARRAY_BYTES),
            _ => size,
        }
    }

    /// The name and the bytes of its field. Of pixels the bytes are those of a picture that is not compressed.
    pub(crate) fn make(&self, bytes: Vec<u8>, sample: u64, scratch: &mut Scratch) -> Result<(String, Vec<u8>)> {
        let made = match self.makes {
            Makes::Picture => {
                let format = Format::sniff(&bytes).ok_or_else(|| match bytes.is_empty() {
                    true => Error::new(Kind::Corrupt, "is empty (0 bytes)"),
                    false => Error::new(Kind::Undecodable, "is not a picture in a format that is read"),
                })?;
                return Ok((self.field_with(ending_of(format)), bytes));
            }
            Makes::Pixels => anymap(&bytes)?,
            Makes::Bytes => bytes,
            // They stay what they are, if the loader can read them.
            Makes::Text | Makes::Json => {
                self.value(&bytes, sample, scratch)?;
                bytes
            }
            Makes::Label => digits(&self.array(&bytes, sample, scratch)?)?.into_bytes(),
            Makes::Array => write_npy(&self.array(&bytes, sample, scratch)?)?,
        };
        Ok((self.field(), made))
    }

    fn array(&self, bytes: &[u8], sample: u64, scratch: &mut Scratch) -> Result<Array> {
        match self.value(bytes, sample, scratch)? {
            Value::Array(array) => Ok(array),
            _ => Err(Error::internal(format!("column {:?} is made into no array", self.name))),
        }
    }

    fn value(&self, bytes: &[u8], sample: u64, scratch: &mut Scratch) -> Result<Value> {
        made(&*self.recipe, bytes, sample, scratch)
    }
}

/// What a recipe makes of bytes.
pub(crate) fn made(recipe: &dyn Recipe, bytes: &[u8], sample: u64, scratch: &mut Scratch) -> Result<Value> {
    // None of these recipes asks for random numbers or for the path.
    let rng = &Rng::for_sample(0, Epoch(0), SampleId(sample));
    let sample = forebay_decode::Sample { fields: Fields(&[bytes]), path: &PathBuf::new, rng, scratch, slot: None };
    let (value, _) = recipe.make(sample)?;
    value.ok_or_else(|| Error::internal("a recipe without a place in the batch made no value"))
}

/// Refuses columns whose values are not read.
fn refuse_unread(fields: &ShardFields, found: &[&RecordField]) -> Result<()> {
    let unread = |field: &&&RecordField| matches!(field.kind, FieldKind::Other(_));
    let shown: Vec<_> = found
        .iter()
        .filter(unread)
        .map(|field| match &field.kind {
            FieldKind::Other(what) => format!("{:?} ({what})", field.name),
            _ => format!("{:?}", field.name),
        })
        .collect();
    if shown.is_empty() {
        return Ok(());
    }
    let read = fields.all().iter().filter(|field| !matches!(field.kind, FieldKind::Other(_)));
    let others: Vec<_> = read.map(|field| &*field.name).collect();
    let message = format!("source: has columns that are not read: {}", shown.join(", "));
    Err(Error::config(message).with_hint(match others.is_empty() {
        true => "write them again as numbers, text or bytes".to_owned(),
        false => format!("leave them out: --fields {:?} packs the others", others.join(",")),
    }))
}

fn is_label_name(name: &str) -> bool {
    let last = name.rsplit(['/', '.']).next().unwrap_or(name);
    LABEL_NAMES.iter().any(|known| known.eq_ignore_ascii_case(last))
}

/// Whether it is a whole number that 64 bits hold with its sign.
fn is_whole(kind: &FieldKind) -> bool {
    match kind {
        FieldKind::Integer => true,
        FieldKind::Number(element) => !matches!(
            element,
            Element::Bool | Element::U64 | Element::F16 | Element::BF16 | Element::F32 | Element::F64
        ),
        _ => false,
    }
}

fn is_number(kind: &FieldKind) -> bool {
    matches!(kind, FieldKind::Integer | FieldKind::Decimal | FieldKind::Number(_))
}

/// A whole number in decimal digits.
fn digits(array: &Array) -> Result<String> {
    let Array { element, bytes, .. } = array;
    let is_signed = matches!(element, Element::I8 | Element::I16 | Element::I32 | Element::I64);
    let mut low = bytes.clone();
    if cfg!(target_endian = "big") {
        low.reverse();
    }
    let filler = if is_signed && low.last().is_some_and(|byte| byte & 0x80 != 0) { 0xFF } else { 0 };
    low.resize(8, filler);
    let word = low.first_chunk::<8>().map(|word| i64::from_le_bytes(*word));
    let number = word.filter(|number| is_signed || *number >= 0);
    number.map(|number| number.to_string()).ok_or_else(|| Error::internal(format!("{array:?} is no whole number")))
}

/// The usual ending of pictures in a format.
fn ending_of(format: Format) -> &'static str {
    match format {
        Format::Jpeg => "jpg",
        Format::Png => "png",
        Format::WebP => "webp",
        Format::Gif => "gif",
        Format::Bmp => "bmp",
        Format::Tiff => "tif",
        Format::Pnm => "pnm",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_keep_their_sign() {
        for (element, bytes, expected) in [
            (Element::I8, vec![0xFF], "-1"),
            (Element::U8, vec![0xFF], "255"),
            (Element::I32, (-70_000_i32).to_ne_bytes().to_vec(), "-70000"),
            (Element::U32, u32::MAX.to_ne_bytes().to_vec(), "4294967295"),
            (Element::I64, i64::MIN.to_ne_bytes().to_vec(), "-9223372036854775808"),
        ] {
            assert_eq!(digits(&Array { shape: vec![], element, bytes }).unwrap(), expected);
        }
    }
}
