//! `tf.train.Example`: named features, each a list of byte strings, of floats or of whole numbers.
//!
//! ```text
//! Example { Features features = 1 }   Features { map<string, Feature> feature = 1 }   an entry { string key = 1, Feature value = 2 }
//! Feature { BytesList = 1 | FloatList = 2 | Int64List = 3 }, each of them with `repeated value = 1`
//! ```

use forebay_core::{Error, Kind, Result};

use super::protobuf::{Message, Wire, damaged, varint};
use super::{Part, RecordFormat, framed};
use crate::memory::reserve;

/// What a feature is a list of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeatureKind {
    /// Byte strings.
    Bytes,
    /// Floats of 32 bits.
    Floats,
    /// Whole numbers of 64 bits.
    Integers,
}

impl FeatureKind {
    fn name(self) -> &'static str {
        match self {
            Self::Bytes => "bytes",
            Self::Floats => "float",
            Self::Integers => "int64",
        }
    }
}

/// A feature of an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Feature<'a> {
    /// Its name.
    pub name: &'a str,
    /// What it is a list of, and that list; none where it has no value at all.
    pub list: Option<(FeatureKind, &'a [u8])>,
}

impl<'a> Feature<'a> {
    /// How many values it has.
    pub fn len(&self) -> Result<usize> {
        match self.list {
            None => Ok(0),
            Some((FeatureKind::Bytes, list)) => strings(list).map(|strings| strings.1),
            Some((kind, list)) => {
                let are_floats = kind == FeatureKind::Floats;
                Ok(numbers(list, are_floats)?.len() / if are_floats { 4 } else { 8 })
            }
        }
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// The first byte string, where there are any.
    pub fn first_bytes(&self) -> Result<Option<&'a [u8]>> {
        match self.list {
            Some((FeatureKind::Bytes, list)) => strings(list).map(|strings| strings.0),
            _ => Ok(None),
        }
    }
}

/// Calls `each` with the features of an example, which is in its frame.
pub fn features<'a>(frame: &'a [u8], each: &mut dyn FnMut(Feature<'a>)) -> Result<()> {
    let mut example = Message(framed::content(frame)?);
    while let Some((number, wire)) = example.next()? {
        let (1, Wire::Bytes(features)) = (number, wire) else { continue };
        let mut features = Message(features);
        while let Some((number, wire)) = features.next()? {
            if let (1, Wire::Bytes(entry)) = (number, wire) {
                each(feature(entry)?);
            }
        }
    }
    Ok(())
}

/// One entry of the map: its key and its value, which stand in any order.
fn feature(entry: &[u8]) -> Result<Feature<'_>> {
    let (mut name, mut list, mut entry) = ("", None, Message(entry));
    while let Some((number, wire)) = entry.next()? {
        match (number, wire) {
            (1, Wire::Bytes(key)) => name = std::str::from_utf8(key).map_err(|_| damaged())?,
            (2, Wire::Bytes(value)) => {
                let mut value = Message(value);
                while let Some((number, wire)) = value.next()? {
                    list = match (number, wire) {
                        (1, Wire::Bytes(list)) => Some((FeatureKind::Bytes, list)),
                        (2, Wire::Bytes(list)) => Some((FeatureKind::Floats, list)),
                        (3, Wire::Bytes(list)) => Some((FeatureKind::Integers, list)),
                        _ => list,
                    };
                }
            }
            _ => {}
        }
    }
    Ok(Feature { name, list })
}

/// The first of a list of byte strings, and how many there are.
fn strings(list: &[u8]) -> Result<(Option<&[u8]>, usize)> {
    let (mut first, mut count, mut list) = (None, 0, Message(list));
    while let Some((number, wire)) = list.next()? {
        if let (1, Wire::Bytes(value)) = (number, wire) {
            first = first.or(Some(value));
            count += 1;
        }
    }
    Ok((first, count))
}

/// A list of numbers, which stand one behind the other or as a field each, as elements of an array.
pub(super) fn numbers(list: &[u8], are_floats: bool) -> Result<Vec<u8>> {
    let (mut elements, mut list) = (Vec::new(), Message(list));
    let mut push = |bytes: &[u8]| {
        reserve(&mut elements, bytes.len(), "a list of its numbers")?;
        elements.extend_from_slice(bytes);
        Ok(())
    };
    while let Some((number, wire)) = list.next()? {
        match (number, wire) {
            (1, Wire::Bytes(packed)) if are_floats && packed.len().is_multiple_of(4) => push(packed)?,
            (1, Wire::Narrow(value)) if are_floats => push(&value)?,
            (1, Wire::Bytes(mut packed)) if !are_floats => {
                while !packed.is_empty() {
                    push(&varint(&mut packed)?.to_le_bytes())?;
                }
            }
            (1, Wire::Varint(value)) if !are_floats => push(&value.to_le_bytes())?,
            (1, _) => return Err(damaged()),
            _ => {}
        }
    }
    Ok(elements)
}

/// A feature that examples are asked for.
#[derive(Clone, Debug)]
pub struct WantedFeature {
    /// The names that it may have, of which the first counts that is there.
    pub names: Vec<String>,
    /// What it is a list of.
    pub kind: FeatureKind,
    /// Whether it has to have one value, and no more: byte strings always have to.
    pub is_single: bool,
}

/// Examples in their frames. Numbers are given little-endian, one behind the other.
#[derive(Clone, Debug)]
pub struct ExampleRecord(Vec<WantedFeature>);

impl ExampleRecord {
    /// Examples of which these features are wanted.
    pub fn new(wanted: Vec<WantedFeature>) -> Self {
        Self(wanted)
    }
}

impl RecordFormat for ExampleRecord {
    fn field_count(&self) -> usize {
        self.0.len()
    }

    fn verify(&self, record: &[u8]) -> Result<()> {
        framed::verify(record)
    }

    fn split<'a>(&self, record: &'a [u8]) -> Result<Vec<Part<'a>>, (usize, Error)> {
        // Of each wanted feature the place of its name, and the feature.
        let mut found: Vec<Option<(usize, Feature<'a>)>> = vec![None; self.0.len()];
        let taken = features(record, &mut |feature| {
            for (wanted, found) in self.0.iter().zip(&mut found) {
                let place = wanted.names.iter().position(|name| name == feature.name);
                // The last one of a name counts, as in a map.
                if let Some(place) = place.filter(|place| found.is_none_or(|(before, _)| *place <= before)) {
                    *found = Some((place, feature));
                }
            }
        });
        taken.map_err(|error| (usize::MAX, error))?;
        let mut parts = Vec::with_capacity(found.len());
        for (at, (WantedFeature { names, kind, is_single }, found)) in self.0.iter().zip(found).enumerate() {
            let fail = |message: String| Err((at, Error::new(Kind::Corrupt, message)));
            let Some((_, feature)) = found else {
                return fail(format!("is missing (expected a feature {})", names.join(" or ")));
            };
            parts.push(match feature.list {
                Some((own, list)) if own == *kind && own == FeatureKind::Bytes => {
                    match strings(list).map_err(|error| (at, error))? {
                        (Some(bytes), 1) => Part::Plain(bytes),
                        (_, count) => return fail(format!("has {count} values (expected 1)")),
                    }
                }
                Some((own, _)) if own == *kind && *is_single => {
                    let count = feature.len().map_err(|error| (at, error))?;
                    if count != 1 {
                        let message = format!("has {count} values (expected 1, as in the first example)");
                        let hint = "name it with [] behind it, as in \"ids[]\", to have lists of any length";
                        return Err((at, Error::new(Kind::Corrupt, message).with_hint(hint)));
                    }
                    Part::Numbers {
                        list: feature.list.map_or(&[], |(_, list)| list),
                        are_floats: own == FeatureKind::Floats,
                    }
                }
                Some((own, list)) if own == *kind => Part::Numbers { list, are_floats: own == FeatureKind::Floats },
                Some((own, _)) => {
                    return fail(format!("is of another type (expected {}, got {})", kind.name(), own.name()));
                }
                None if *kind == FeatureKind::Bytes => return fail("has 0 values (expected 1)".to_owned()),
                None => Part::Numbers { list: &[], are_floats: *kind == FeatureKind::Floats },
            });
        }
        Ok(parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, bytes.len() as u8][..], bytes].concat()
    }

    fn entry(name: &str, kind: u8, list: &[u8]) -> Vec<u8> {
        field(1, &[field(1, name.as_bytes()), field(2, &field(kind, list))].concat())
    }

    fn example(entries: &[Vec<u8>]) -> Vec<u8> {
        framed::framed(&field(1, &entries.concat()))
    }

    fn format(wanted: &[(&str, FeatureKind)]) -> ExampleRecord {
        let names = |names: &str| names.split(';').map(str::to_owned).collect();
        let wanted =
            wanted.iter().map(|(name, kind)| WantedFeature { names: names(name), kind: *kind, is_single: false });
        ExampleRecord::new(wanted.collect())
    }

    #[test]
    fn features_are_found_by_their_names() {
        let record = example(&[
            entry("image", 1, &field(1, b"JPEG")),
            entry("packed", 3, &field(1, &[1, 0x96, 1])),
            entry("single", 3, &[0x08, 5, 0x08, 6]),
            entry("floats", 2, &[&[0x0D][..], &1f32.to_le_bytes()].concat()),
        ]);
        let wanted = format(&[
            ("none;image", FeatureKind::Bytes),
            ("packed", FeatureKind::Integers),
            ("single", FeatureKind::Integers),
            ("floats", FeatureKind::Floats),
        ]);
        wanted.verify(&record).unwrap();
        let parts = wanted.split(&record).unwrap();
        let bytes: Vec<_> = parts.into_iter().map(|part| part.bytes().unwrap().into_owned()).collect();
        let integers = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(bytes, [b"JPEG".to_vec(), integers(&[1, 150]), integers(&[5, 6]), 1f32.to_le_bytes().to_vec()]);
        let mut found = Vec::new();
        features(&record, &mut |feature| found.push((feature.name, feature.len().unwrap()))).unwrap();
        assert_eq!(found, [("image", 1), ("packed", 2), ("single", 2), ("floats", 1)]);
    }

    #[test]
    fn what_is_not_as_expected_is_said_of_the_feature() {
        let record = example(&[entry("a", 1, &[field(1, b"x"), field(1, b"y")].concat()), entry("b", 3, &[])]);
        for (name, kind, part) in [
            ("c", FeatureKind::Bytes, "is missing (expected a feature c)"),
            ("a", FeatureKind::Bytes, "has 2 values (expected 1)"),
            ("a", FeatureKind::Floats, "is of another type (expected float, got bytes)"),
        ] {
            let (at, error) = format(&[("b", FeatureKind::Integers), (name, kind)]).split(&record).unwrap_err();
            assert_eq!((at, error.message()), (1, part));
        }
        let odd = example(&[entry("f", 2, &field(1, b"abc"))]);
        let parts = format(&[("f", FeatureKind::Floats)]).split(&odd).unwrap();
        assert_eq!(parts[0].bytes().unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn damage_never_panics() {
        let record = field(1, &[entry("a", 1, &field(1, b"x")), entry("b", 3, &field(1, &[7, 8]))].concat());
        let wanted = format(&[("a", FeatureKind::Bytes), ("b", FeatureKind::Integers)]);
        for at in 0..record.len() {
            for change in 0..=255 {
                let mut damaged = record.clone();
                damaged[at] = change;
                if let Ok(parts) = wanted.split(&framed::framed(&damaged)) {
                    parts.into_iter().for_each(|part| drop(part.bytes()));
                }
            }
        }
    }
}
