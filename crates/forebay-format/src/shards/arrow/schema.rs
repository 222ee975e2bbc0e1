//! The schema of Arrow files: what columns there are, and how each lies in the buffers of a record batch.

use forebay_core::{Element, Error, Kind, Result};
use serde_json::Value as Json;
use xxhash_rust::xxh3::xxh3_64;

use super::flatbuffer::Table;
use crate::shards::mds::corrupt;
use crate::shards::{FieldKind, RecordField};

/// More fields, of all depths, are no table of samples. (Tables of a message may overlap: few bytes may claim many.)
const MAX_FIELDS: usize = 10_000;
const MAX_DEPTH: usize = 32;

/// How the values of a column lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Values {
    /// So many bytes each.
    Fixed(u64),
    /// A bit each.
    Bits,
    /// From one offset to the next, in elements of so many bytes; offsets have 32 or 64 bits.
    Offsets { size: u64, are_wide: bool },
    /// So many elements of so many bytes each.
    Several { count: u64, size: u64 },
}

/// A column whose values are read, by the numbers of its buffers and nodes in a record batch.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) values: Values,
    /// The node of the column, and its bitmap of values that are there; of a struct's child that one's, too.
    pub(super) present: Vec<(usize, usize)>,
    /// Where offsets are.
    pub(super) offsets: Option<usize>,
    /// Where values are, and the node that says how many.
    pub(super) data: usize,
    pub(super) data_node: usize,
}

/// What a file says of its columns.
#[derive(Clone, Debug)]
pub struct ArrowSchema {
    /// All columns; those that are not read are [`FieldKind::Other`].
    pub fields: Vec<RecordField>,
    pub(super) columns: Vec<Column>,
    pub(super) node_count: usize,
    pub(super) buffer_count: usize,
}

/// The parts of a field that count.
struct Field<'a> {
    name: &'a str,
    kind: u8,
    r#type: Option<Table<'a>>,
    is_dictionary: bool,
    children: Vec<Field<'a>>,
}

impl ArrowSchema {
    /// Reads the header of a schema's message.
    pub(super) fn read(schema: Table<'_>) -> Result<Self> {
        if schema.i16(0) != 0 {
            return Err(Error::new(Kind::Undecodable, "holds numbers with high bytes first, which are not read"));
        }
        let damaged = || corrupt("has a schema that cannot be read");
        let mut count = 0;
        let fields = schema.tables(1).ok_or_else(damaged)?;
        let fields: Vec<_> =
            fields.map(|field| parse(field.ok_or_else(damaged)?, 0, &mut count)).collect::<Result<_>>()?;
        let features = features(schema);
        let mut made = Self { fields: Vec::new(), columns: Vec::new(), node_count: 0, buffer_count: 0 };
        for field in &fields {
            let feature = features.get(field.name).and_then(|feature| feature.get("_type")).and_then(Json::as_str);
            made.add(field, feature)?;
        }
        Ok(made)
    }

    /// A number of it, which differs for other columns.
    pub(super) fn fingerprint(&self) -> u64 {
        xxh3_64(format!("{:?}", (&self.fields, &self.columns)).as_bytes())
    }

    /// Adds a column with its buffers, whether it is read or not.
    fn add(&mut self, field: &Field<'_>, feature: Option<&str>) -> Result<()> {
        let (node, buffer) = (self.node_count, self.buffer_count);
        self.skip(field)?;
        let (kind, values) = match read_as(field, feature) {
            Ok(found) => found,
            Err(what) => {
                let kind = FieldKind::Other(what);
                self.fields.push(RecordField { name: field.name.to_owned(), kind, size_bytes: None });
                return Ok(());
            }
        };
        let mut column = Column {
            name: field.name.to_owned(),
            values,
            present: vec![(node, buffer)],
            offsets: None,
            data: buffer + 1,
            data_node: node,
        };
        match field.kind {
            // A struct's only buffer is its bitmap; the bytes are those of one of its children.
            STRUCT => {
                let (mut node, mut buffer) = (node + 1, buffer + 1);
                for child in &field.children {
                    if child.name == "bytes" {
                        column.present.push((node, buffer));
                        (column.offsets, column.data, column.data_node) = (Some(buffer + 1), buffer + 2, node);
                        break;
                    }
                    let before =
                        Self { fields: Vec::new(), columns: Vec::new(), node_count: node, buffer_count: buffer };
                    let mut behind = before;
                    behind.skip(child)?;
                    (node, buffer) = (behind.node_count, behind.buffer_count);
                }
            }
            LIST | LARGE_LIST => {
                (column.offsets, column.data, column.data_node) = (Some(buffer + 1), buffer + 3, node + 1);
            }
            FIXED_SIZE_LIST => (column.data, column.data_node) = (buffer + 2, node + 1),
            BINARY | UTF8 | LARGE_BINARY | LARGE_UTF8 => (column.offsets, column.data) = (Some(buffer + 1), buffer + 2),
            _ => {}
        }
        self.columns.push(column);
        self.fields.push(RecordField { name: field.name.to_owned(), kind, size_bytes: None });
        Ok(())
    }

    /// Counts the nodes and buffers of a field and of those in it.
    fn skip(&mut self, field: &Field<'_>) -> Result<()> {
        self.node_count += 1;
        if field.is_dictionary {
            self.buffer_count += 2;
            return Ok(());
        }
        self.buffer_count += match field.kind {
            NULL => 0,
            STRUCT | FIXED_SIZE_LIST => 1,
            BINARY | UTF8 | LARGE_BINARY | LARGE_UTF8 => 3,
            INT | FLOAT | BOOL | 7..=11 | LIST | LARGE_LIST | FIXED_SIZE_BINARY | MAP | DURATION => 2,
            other => {
                let message = format!("has a column {:?} of a type that is not known (number {other})", field.name);
                return Err(Error::new(Kind::Undecodable, message).with_hint("write it again without this column"));
            }
        };
        field.children.iter().try_for_each(|child| self.skip(child))
    }
}

const NULL: u8 = 1;
const INT: u8 = 2;
const FLOAT: u8 = 3;
const BINARY: u8 = 4;
const UTF8: u8 = 5;
const BOOL: u8 = 6;
const LIST: u8 = 12;
const STRUCT: u8 = 13;
const FIXED_SIZE_BINARY: u8 = 15;
const FIXED_SIZE_LIST: u8 = 16;
const MAP: u8 = 17;
const DURATION: u8 = 18;
const LARGE_BINARY: u8 = 19;
const LARGE_UTF8: u8 = 20;
const LARGE_LIST: u8 = 21;

fn parse<'a>(field: Table<'a>, depth: usize, count: &mut usize) -> Result<Field<'a>> {
    *count += 1;
    if *count > MAX_FIELDS || depth > MAX_DEPTH {
        return Err(corrupt(format!(
            "has too many columns (expected at most {MAX_FIELDS}, and {MAX_DEPTH} in each other)"
        )));
    }
    let damaged = || corrupt("has a schema that cannot be read");
    let children = match field.tables(5) {
        Some(children) => {
            children.map(|child| parse(child.ok_or_else(damaged)?, depth + 1, count)).collect::<Result<_>>()?
        }
        None => Vec::new(),
    };
    let (name, is_dictionary) = (field.text(0).unwrap_or_default(), field.table(4).is_some());
    Ok(Field { name, kind: field.u8(2), r#type: field.table(3), is_dictionary, children })
}

/// What `datasets` has written about columns, by their names.
fn features(schema: Table<'_>) -> serde_json::Map<String, Json> {
    let entries = schema.tables(2).into_iter().flatten().flatten();
    let text = entries.filter(|entry| entry.text(0) == Some("huggingface")).find_map(|entry| entry.text(1));
    let parsed: Option<Json> = text.and_then(|text| serde_json::from_str(text).ok());
    match parsed.and_then(|mut parsed| parsed.pointer_mut("/info/features").map(Json::take)) {
        Some(Json::Object(features)) => features,
        _ => serde_json::Map::new(),
    }
}

/// How a column is read; or what it is, where it is not.
fn read_as(field: &Field<'_>, feature: Option<&str>) -> Result<(FieldKind, Values), String> {
    if field.is_dictionary {
        return Err("values of a dictionary".to_owned());
    }
    let is_picture = feature == Some("Image");
    let bytes = |are_wide| Values::Offsets { size: 1, are_wide };
    let plain = if is_picture { FieldKind::Picture } else { FieldKind::Bytes };
    if let Some(element) = element(field) {
        let kind = FieldKind::Number(element);
        return Ok((
            kind,
            if element == Element::Bool { Values::Bits } else { Values::Fixed(element.size_bytes() as u64) },
        ));
    }
    let only = || match &*field.children {
        [child] if !child.is_dictionary => element(child).filter(|element| *element != Element::Bool),
        _ => None,
    };
    match field.kind {
        BINARY | LARGE_BINARY => Ok((plain, bytes(field.kind == LARGE_BINARY))),
        UTF8 | LARGE_UTF8 => Ok((FieldKind::Text, bytes(field.kind == LARGE_UTF8))),
        LIST | LARGE_LIST => match only() {
            Some(element) => {
                let (size, are_wide) = (element.size_bytes() as u64, field.kind == LARGE_LIST);
                Ok((FieldKind::Numbers(element), Values::Offsets { size, are_wide }))
            }
            None => Err("a list of something else than numbers".to_owned()),
        },
        FIXED_SIZE_LIST => {
            let count = field.r#type.map_or(0, |list| list.i32(0));
            match (only(), usize::try_from(count)) {
                (Some(element), Ok(count)) if count > 0 => {
                    let kind = FieldKind::Array { element: Some(element), shape: Some(vec![count]) };
                    Ok((kind, Values::Several { count: count as u64, size: element.size_bytes() as u64 }))
                }
                _ => Err("a list of something else than numbers".to_owned()),
            }
        }
        STRUCT => match field.children.iter().find(|child| child.name == "bytes" && !child.is_dictionary) {
            Some(child) if matches!(child.kind, BINARY | LARGE_BINARY) && feature.is_some() => {
                Ok((plain, bytes(child.kind == LARGE_BINARY)))
            }
            _ => Err("a struct".to_owned()),
        },
        other => Err(format!("values of a type that is not read (number {other})")),
    }
}

/// The element type of numbers.
fn element(field: &Field<'_>) -> Option<Element> {
    let own = field.r#type.filter(|_| !field.is_dictionary)?;
    Some(match (field.kind, own.i32(0), own.u8(1) != 0) {
        (BOOL, ..) => Element::Bool,
        (INT, 8, true) => Element::I8,
        (INT, 16, true) => Element::I16,
        (INT, 32, true) => Element::I32,
        (INT, 64, true) => Element::I64,
        (INT, 8, false) => Element::U8,
        (INT, 16, false) => Element::U16,
        (INT, 32, false) => Element::U32,
        (INT, 64, false) => Element::U64,
        (FLOAT, ..) => match own.i16(0) {
            0 => Element::F16,
            1 => Element::F32,
            2 => Element::F64,
            _ => return None,
        },
        _ => return None,
    })
}
