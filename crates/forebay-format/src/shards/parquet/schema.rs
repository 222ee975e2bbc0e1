//! The schema of Parquet files: what columns there are, and what their values are.

use std::collections::{HashMap, HashSet};

use forebay_core::Element as Number;
use serde_json::{Map, Value as Json};

use super::footer::{Element, Footer, Logical};
use super::page::Codec;
use crate::shards::{FieldKind, RecordField};

const MAX_DEPTH: usize = 64;

const REQUIRED: i32 = 0;
const REPEATED: i32 = 2;

/// How the values of a column are stored. (The numbers are Parquet's own.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Physical {
    Boolean,
    Fixed { bytes: usize },
    ByteArray,
}

/// What has to be known of a column to read its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) physical: Physical,
    /// Bytes of a value as it is read: the low ones of a number that is stored in more of them. 0 where values say it themselves.
    pub(super) width: usize,
    /// Whether it holds whole numbers, which may be delta-encoded.
    pub(super) is_integer: bool,
    /// The definition level of a value that is there.
    pub(super) max_def: u16,
    /// Of a list the definition level of its elements; 0 where it is none.
    pub(super) list_def: u16,
}

/// A column that is read.
#[derive(Clone, Debug)]
pub(super) struct Column {
    pub(super) field: RecordField,
    /// Its number among the chunks of a row group.
    pub(super) leaf: usize,
    pub(super) layout: Layout,
}

/// What a file says of its columns.
#[derive(Clone, Debug, Default)]
pub struct ParquetSchema {
    /// All columns; those that are not read are [`FieldKind::Other`].
    pub fields: Vec<RecordField>,
    pub(super) columns: Vec<Column>,
    /// How many chunks a row group has.
    pub(super) leaves: usize,
}

/// An element of the schema with its children.
struct Node<'a> {
    element: &'a Element,
    /// The number of its first leaf, and how many it has.
    leaf: usize,
    leaves: usize,
    children: Vec<Node<'a>>,
}

/// Where in the tree a column is.
#[derive(Clone, Copy)]
struct Place<'a> {
    name: &'a str,
    def: u16,
    is_repeated: bool,
}

impl ParquetSchema {
    pub(super) fn read(footer: &Footer) -> Result<Self, String> {
        let (mut rest, mut leaves) = (footer.elements.iter(), 0);
        let root = take_node(&mut rest, &mut leaves, 0)?;
        if rest.next().is_some() {
            return Err("its schema has columns that are in no group".to_owned());
        }
        let features = features(footer);
        let mut schema = Self { leaves, ..Self::default() };
        for child in &root.children {
            let feature = features.get(&child.element.name);
            schema.add(child, Place { name: &child.element.name, def: 0, is_repeated: false }, feature);
        }
        let mut names = HashSet::new();
        match schema.fields.iter().find(|field| !names.insert(field.name.to_ascii_lowercase())) {
            Some(twice) => Err(format!("it names a column twice ({:?}, in upper or lower case)", twice.name)),
            None => Ok(schema),
        }
    }

    /// Columns that are compressed in a way that is not read are not read.
    pub(super) fn leave_out_unknown_codecs(&mut self, footer: &Footer) {
        let mut unknown = HashMap::new();
        for group in &footer.groups {
            for (leaf, chunk) in group.chunks.iter().enumerate() {
                if let Err(name) = Codec::of(chunk.codec) {
                    unknown.insert(leaf, name);
                }
            }
        }
        self.columns.retain(|column| match unknown.get(&column.leaf) {
            Some(name) => {
                let own = self.fields.iter_mut().find(|field| field.name == column.field.name);
                own.into_iter()
                    .for_each(|field| field.kind = FieldKind::Other(format!("values compressed with {name}")));
                false
            }
            None => true,
        });
    }

    /// The columns that are read.
    pub fn read_fields(&self) -> impl Iterator<Item = &RecordField> {
        self.columns.iter().map(|column| &column.field)
    }

    /// Adds a column, or those of a group.
    fn add(&mut self, node: &Node<'_>, place: Place<'_>, feature: Option<&Json>) {
        let element = node.element;
        let place = Place {
            def: place.def + u16::from(element.repetition != REQUIRED),
            is_repeated: place.is_repeated || element.repetition == REPEATED,
            ..place
        };
        let kind_of = |feature: Option<&Json>| {
            feature.and_then(|feature| feature.get("_type")).and_then(Json::as_str).map(str::to_owned)
        };
        if element.physical.is_some() {
            // A repeated leaf is a list of the old form.
            let list_def = if place.is_repeated { place.def } else { 0 };
            return self.push(place.name, node, (place.def, list_def), kind_of(feature).as_deref());
        }
        if place.is_repeated {
            return self.push_other(place.name, "a list of something else than numbers");
        }
        if is_map(element) {
            return self.push_other(place.name, "a map");
        }
        if is_list(element) {
            return match only_element(node, place.def) {
                Some((leaf, def, list_def)) => {
                    let before = self.fields.len();
                    self.push(place.name, leaf, (def, list_def), None);
                    self.fix_length(before, feature);
                }
                None => self.push_other(place.name, "a list of something else than numbers"),
            };
        }
        // Pictures and sounds of `datasets`: their bytes, beside the path that they were read from.
        if let (Some(kind), Some(bytes)) =
            (kind_of(feature), node.children.iter().find(|child| child.element.name == "bytes"))
            && bytes.element.physical.is_some()
        {
            let def = place.def + u16::from(bytes.element.repetition != REQUIRED);
            return self.push(place.name, bytes, (def, 0), Some(&kind));
        }
        if node.children.is_empty() {
            return self.push_other(place.name, "a struct of nothing");
        }
        for child in &node.children {
            let name = format!("{}.{}", place.name, child.element.name);
            let feature = feature.and_then(|feature| feature.get(&child.element.name));
            self.add(child, Place { name: &name, ..place }, feature);
        }
    }

    fn push_other(&mut self, name: &str, what: &str) {
        let kind = FieldKind::Other(what.to_owned());
        self.fields.push(RecordField { name: name.to_owned(), kind, size_bytes: None });
    }

    fn push(&mut self, name: &str, leaf: &Node<'_>, (max_def, list_def): (u16, u16), feature: Option<&str>) {
        let (kind, physical) = match read_as(leaf.element, feature) {
            Ok(found) => found,
            Err(what) => return self.push_other(name, what),
        };
        let (kind, width) = match (kind, list_def > 0) {
            (FieldKind::Number(number), false) => (FieldKind::Number(number), number.size_bytes()),
            (FieldKind::Number(number), true) if number != Number::Bool => {
                (FieldKind::Numbers(number), number.size_bytes())
            }
            (_, true) => return self.push_other(name, "a list of something else than numbers"),
            (other, false) => match physical {
                Physical::Fixed { bytes } => (other, bytes),
                _ => (other, 0),
            },
        };
        let is_integer = matches!(leaf.element.physical, Some(1 | 2));
        let layout = Layout { physical, width, is_integer, max_def, list_def };
        let field = RecordField { name: name.to_owned(), kind, size_bytes: None };
        self.fields.push(field.clone());
        self.columns.push(Column { field, leaf: leaf.leaf, layout });
    }

    /// Lists are arrays of a fixed length, if `datasets` says so.
    fn fix_length(&mut self, at: usize, feature: Option<&Json>) {
        let length = feature.and_then(|feature| feature.get("length")).and_then(Json::as_u64).unwrap_or(0);
        let Some(FieldKind::Numbers(number)) = self.fields.get(at).map(|field| field.kind.clone()) else { return };
        if let (Some(length), Some(column)) =
            (u32::try_from(length).ok().filter(|length| *length > 0), self.columns.last_mut())
        {
            let kind = FieldKind::Array { element: Some(number), shape: Some(vec![length as usize]) };
            self.fields[at].kind = kind.clone();
            column.field.kind = kind;
        }
    }
}

/// The next element with all that is below it.
fn take_node<'a>(
    rest: &mut std::slice::Iter<'a, Element>,
    leaves: &mut usize,
    depth: usize,
) -> Result<Node<'a>, String> {
    let element = rest.next().ok_or("its schema ends early")?;
    if depth > MAX_DEPTH {
        return Err(format!("its schema is nested more than {MAX_DEPTH} deep"));
    }
    let first = *leaves;
    let count = usize::try_from(element.children).ok().filter(|count| *count <= rest.len());
    let count = count.ok_or("its schema claims more columns than it has")?;
    if element.physical.is_some() {
        *leaves += 1;
    }
    let children = (0..count).map(|_| take_node(rest, leaves, depth + 1)).collect::<Result<_, _>>()?;
    Ok(Node { element, leaf: first, leaves: *leaves - first, children })
}

fn is_list(element: &Element) -> bool {
    element.converted == Some(3) || element.logical == Some(Logical::Other(3))
}

fn is_map(element: &Element) -> bool {
    matches!(element.converted, Some(1 | 2)) || element.logical == Some(Logical::Other(2))
}

/// The only leaf of a list, with its definition level and that of the list's elements: of the form with three levels, and of the
/// old one, in which the repeated element is the leaf.
fn only_element<'a, 'b>(list: &'b Node<'a>, def: u16) -> Option<(&'b Node<'a>, u16, u16)> {
    let [repeated] = &*list.children else { return None };
    if repeated.element.repetition != REPEATED || repeated.leaves != 1 {
        return None;
    }
    let list_def = def + 1;
    if repeated.element.physical.is_some() {
        return Some((repeated, list_def, list_def));
    }
    let [leaf] = &*repeated.children else { return None };
    let is_leaf = leaf.element.physical.is_some() && leaf.element.repetition != REPEATED;
    is_leaf.then(|| (leaf, list_def + u16::from(leaf.element.repetition != REQUIRED), list_def))
}

/// What `datasets` has written about columns, by their names.
fn features(footer: &Footer) -> Map<String, Json> {
    let parsed: Option<Json> = footer.huggingface.as_deref().and_then(|text| serde_json::from_slice(text).ok());
    match parsed.and_then(|mut parsed| parsed.pointer_mut("/info/features").map(Json::take)) {
        Some(Json::Object(features)) => features,
        _ => Map::new(),
    }
}

/// How values are read; or what they are, where they are not.
fn read_as(element: &Element, feature: Option<&str>) -> Result<(FieldKind, Physical), &'static str> {
    const DATE: &str = "dates or times";
    const DECIMAL: &str = "decimals";
    match (element.converted, element.logical) {
        (Some(5), _) | (_, Some(Logical::Other(5))) => return Err(DECIMAL),
        (Some(6..=10 | 21), _) | (_, Some(Logical::Other(6..=8))) => return Err(DATE),
        (_, Some(Logical::Other(16..))) => return Err("values of a type that is not known"),
        _ => {}
    }
    let bits = match (element.logical, element.converted) {
        (Some(Logical::Integer { bits, is_signed }), _) => Some((bits, is_signed)),
        (_, Some(number @ 11..=14)) => Some((8 << (number - 11), false)),
        (_, Some(number @ 15..=18)) => Some((8 << (number - 15), true)),
        _ => None,
    };
    let number = |number, bytes| Ok((FieldKind::Number(number), Physical::Fixed { bytes }));
    let plain = match feature {
        Some("Image") => FieldKind::Picture,
        _ => FieldKind::Bytes,
    };
    match element.physical {
        Some(0) => Ok((FieldKind::Number(Number::Bool), Physical::Boolean)),
        Some(1) => match bits {
            Some((8, true)) => number(Number::I8, 4),
            Some((16, true)) => number(Number::I16, 4),
            Some((8, false)) => number(Number::U8, 4),
            Some((16, false)) => number(Number::U16, 4),
            Some((32, false)) => number(Number::U32, 4),
            _ => number(Number::I32, 4),
        },
        Some(2) if bits == Some((64, false)) => number(Number::U64, 8),
        Some(2) => number(Number::I64, 8),
        Some(3) => Err(DATE),
        Some(4) => number(Number::F32, 4),
        Some(5) => number(Number::F64, 8),
        Some(6) => {
            // UTF8, ENUM and JSON, by their new names and by their old ones.
            let is_text = matches!(element.logical, Some(Logical::Other(1 | 4 | 12)))
                || matches!(element.converted, Some(0 | 4 | 19));
            Ok((if is_text { FieldKind::Text } else { plain }, Physical::ByteArray))
        }
        Some(7) => match usize::try_from(element.type_length) {
            Ok(2) if element.logical == Some(Logical::Other(15)) => number(Number::F16, 2),
            Ok(bytes) if bytes > 0 => Ok((plain, Physical::Fixed { bytes })),
            _ => Err("values of no length"),
        },
        _ => Err("values of a type that is not known"),
    }
}
