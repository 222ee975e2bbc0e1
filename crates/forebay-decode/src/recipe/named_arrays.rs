//! Files that hold several arrays by name: NumPy's `.npz` and `.safetensors`. Each sample has some of them.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};
use serde::Deserialize;

use crate::{
    Array, ColumnKind, ColumnSpec, Dense, Endian, Fields, Made, Recipe, Sample, Scratch, Timing, Value, npy, zip,
};

/// What holds the arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArrayArchive {
    /// A ZIP archive of `.npy` files, by `numpy.savez`.
    Npz,
    /// A header of JSON, and the elements behind it.
    Safetensors,
}

/// Every sample is a file, and has a column for each of the arrays that are named.
#[derive(Clone, Debug)]
pub struct NamedArraysRecipe {
    archive: ArrayArchive,
    names: Vec<String>,
}

impl NamedArraysRecipe {
    /// These arrays of each file.
    pub fn new(archive: ArrayArchive, names: Vec<String>) -> Result<Self> {
        match names.is_empty() {
            true => Err(Error::config("fields: expected at least one, got none")),
            false => Ok(Self { archive, names }),
        }
    }

    fn row(&self, bytes: &[u8]) -> Result<Vec<Value>> {
        let arrays = Arrays::open(self.archive, bytes)?;
        self.names.iter().map(|name| arrays.read(name).map(Value::Array)).collect()
    }
}

impl Recipe for NamedArraysRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let column = |name: &String| ColumnSpec { name: name.clone().into(), kind: ColumnKind::Arrays };
        self.names.iter().map(column).collect()
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        let arrays = Arrays::open(self.archive, fields.only())?;
        let size = |name: &String| arrays.size_bytes(name).unwrap_or(0);
        // One that is being unpacked is there twice.
        let most = self.names.iter().map(size).max().unwrap_or(0);
        Ok(self.names.iter().map(size).fold(most, u64::saturating_add))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let mut row = self.row(sample.fields.only())?;
        let value = if row.len() == 1 { row.swap_remove(0) } else { Value::Row(row) };
        Ok((Some(value), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// The names of the arrays in a file, in its own order.
pub fn array_names(archive: ArrayArchive, bytes: &[u8]) -> Result<Vec<String>> {
    Ok(Arrays::open(archive, bytes)?.all.into_iter().map(|array| array.name).collect())
}

/// The arrays of one file.
struct Arrays<'a> {
    bytes: &'a [u8],
    all: Vec<Named<'a>>,
}

struct Named<'a> {
    name: String,
    place: Place<'a>,
}

enum Place<'a> {
    Member(zip::Member<'a>),
    Elements { element: Element, shape: Vec<usize>, bytes: &'a [u8] },
}

impl<'a> Arrays<'a> {
    fn open(archive: ArrayArchive, bytes: &'a [u8]) -> Result<Self> {
        let all = match archive {
            ArrayArchive::Npz => npz(bytes)?,
            ArrayArchive::Safetensors => safetensors(bytes)?,
        };
        Ok(Self { bytes, all })
    }

    fn find(&self, name: &str) -> Result<&Named<'a>> {
        self.all.iter().find(|array| array.name == name).ok_or_else(|| {
            let names: Vec<_> = self.all.iter().take(20).map(|array| array.name.as_str()).collect();
            Error::new(Kind::Corrupt, format!("has no array {name:?} (it has {names:?})"))
        })
    }

    fn size_bytes(&self, name: &str) -> Result<u64> {
        Ok(match &self.find(name)?.place {
            Place::Member(member) => member.size_bytes(),
            Place::Elements { bytes, .. } => bytes.len() as u64,
        })
    }

    fn read(&self, name: &str) -> Result<Array> {
        match &self.find(name)?.place {
            Place::Member(member) => npy::read(&member.read(self.bytes)?).map_err(|error| {
                let message = format!("has the array {name:?}, which {}", error.message());
                Error::new(error.kind(), message)
            }),
            Place::Elements { element, shape, bytes } => {
                Array::of_bytes(bytes, shape.clone(), *element, Endian::Little)
            }
        }
    }
}

fn npz(bytes: &[u8]) -> Result<Vec<Named<'_>>> {
    let mut all = Vec::new();
    for member in zip::members(bytes)? {
        let name = String::from_utf8_lossy(member.name.strip_suffix(b".npy").unwrap_or(member.name)).into_owned();
        all.push(Named { name, place: Place::Member(member) });
    }
    Ok(all)
}

/// No header is longer: the library that defines the format refuses it, too.
const MAX_HEADER_BYTES: u64 = 100_000_000;

#[derive(Deserialize)]
struct TensorInfo {
    dtype: String,
    shape: Vec<usize>,
    data_offsets: [usize; 2],
}

fn safetensors(bytes: &[u8]) -> Result<Vec<Named<'_>>> {
    let damaged = |what: String| Error::new(Kind::Corrupt, what);
    let (size, rest) =
        bytes.split_first_chunk::<8>().ok_or_else(|| damaged(format!("is truncated ({} bytes)", bytes.len())))?;
    let size = u64::from_le_bytes(*size);
    if size > MAX_HEADER_BYTES || size > rest.len() as u64 {
        return Err(damaged(format!("claims a header of {size} bytes, and has {} behind its size", rest.len())));
    }
    let (header, elements) = rest.split_at(size as usize);
    let header: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(header)
        .map_err(|error| damaged("has a header that is not JSON".to_owned()).with_detail(error.to_string()))?;
    let tensors = header.into_iter().filter(|(name, _)| name != "__metadata__");
    tensors
        .map(|(name, info)| {
            let info: TensorInfo = serde_json::from_value(info).map_err(|error| {
                damaged(format!("has a damaged header for {name:?}")).with_detail(error.to_string())
            })?;
            let element = element_of(&info.dtype).ok_or_else(|| {
                let message = format!("has {name:?} in the type {:?}, which is not read", info.dtype);
                Error::new(Kind::Undecodable, message)
            })?;
            let [start, end] = info.data_offsets;
            let outside = || damaged(format!("has {name:?} at {start} to {end} of {} bytes", elements.len()));
            let bytes = elements.get(start..end).ok_or_else(outside)?;
            let expected = crate::array::size_bytes(&info.shape, element);
            if expected != Some(bytes.len()) {
                let (shape, got) = (info.shape, bytes.len());
                return Err(damaged(format!("has {name:?} of the shape {shape:?} in {got} bytes")));
            }
            Ok(Named { name, place: Place::Elements { element, shape: info.shape, bytes } })
        })
        .collect()
}

fn element_of(dtype: &str) -> Option<Element> {
    Some(match dtype {
        "BOOL" => Element::Bool,
        "U8" => Element::U8,
        "I8" => Element::I8,
        "U16" => Element::U16,
        "I16" => Element::I16,
        "U32" => Element::U32,
        "I32" => Element::I32,
        "U64" => Element::U64,
        "I64" => Element::I64,
        "F16" => Element::F16,
        "BF16" => Element::BF16,
        "F32" => Element::F32,
        "F64" => Element::F64,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensors(header: &str, elements: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements].concat()
    }

    fn error(bytes: &[u8]) -> String {
        array_names(ArrayArchive::Safetensors, bytes).unwrap_err().to_string()
    }

    #[test]
    fn tensors_are_read_by_name_in_the_order_of_the_header() {
        let header = r#"{"__metadata__": {"a": "b"}, "y": {"dtype": "I16", "shape": [2], "data_offsets": [0, 4]},
            "x": {"dtype": "F32", "shape": [], "data_offsets": [4, 8]}}"#;
        let file = tensors(header, &[1, 0, 2, 0, 0, 0, 128, 63]);
        assert_eq!(array_names(ArrayArchive::Safetensors, &file).unwrap(), ["y", "x"]);
        let recipe = NamedArraysRecipe::new(ArrayArchive::Safetensors, vec!["x".into(), "y".into()]).unwrap();
        let row = recipe.row(&file).unwrap();
        let arrays = row.iter().map(|value| match value {
            Value::Array(array) => (array.shape.clone(), array.element, array.bytes.clone()),
            other => panic!("{other:?}"),
        });
        let arrays: Vec<_> = arrays.collect();
        assert_eq!(arrays[0], (vec![], Element::F32, 1f32.to_ne_bytes().to_vec()));
        assert_eq!(arrays[1].0, [2]);
        let missing = NamedArraysRecipe::new(ArrayArchive::Safetensors, vec!["z".into()]).unwrap();
        assert_eq!(missing.row(&file).unwrap_err().message(), "has no array \"z\" (it has [\"y\", \"x\"])");
    }

    #[test]
    fn headers_that_lie_are_refused() {
        assert_eq!(error(b"short"), "is truncated (5 bytes)");
        assert!(error(&u64::MAX.to_le_bytes()).starts_with("claims a header of 18446744073709551615 bytes"));
        assert_eq!(error(&tensors("[]", &[])), "has a header that is not JSON");
        for (info, message) in [
            (r#"{"dtype": "F32", "shape": [2], "data_offsets": [0, 9]}"#, "has \"x\" at 0 to 9 of 8 bytes"),
            (r#"{"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}"#, "has \"x\" at 8 to 0 of 8 bytes"),
            (r#"{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}"#, "has \"x\" of the shape [3] in 8 bytes"),
            (
                r#"{"dtype": "F32", "shape": [18446744073709551615, 4], "data_offsets": [0, 8]}"#,
                "has \"x\" of the shape [18446744073709551615, 4] in 8 bytes",
            ),
            (
                r#"{"dtype": "F4", "shape": [2], "data_offsets": [0, 8]}"#,
                "has \"x\" in the type \"F4\", which is not read",
            ),
            (r#"{"dtype": "F32"}"#, "has a damaged header for \"x\""),
        ] {
            assert_eq!(error(&tensors(&format!("{{\"x\": {info}}}"), &[0; 8])), message);
        }
    }

    #[test]
    fn archives_that_lie_are_refused() {
        // One member, "x.npy", stored, of three bytes that are no array.
        let mut local = b"PK\x03\x04".to_vec();
        local.extend([0; 22]);
        local.extend([5, 0, 0, 0]);
        local.extend(b"x.npyabc");
        let directory = |size: u32, offset: u32, crc: u32| {
            let mut entry = b"PK\x01\x02".to_vec();
            entry.extend([0; 12]);
            for number in [crc, size, 3] {
                entry.extend(number.to_le_bytes());
            }
            entry.extend([5, 0]);
            entry.extend([0; 12]);
            entry.extend(offset.to_le_bytes());
            entry.extend(b"x.npy");
            entry
        };
        let archive = |entry: Vec<u8>, count: u16| {
            let mut end = b"PK\x05\x06\0\0\0\0".to_vec();
            for number in [count, count] {
                end.extend(number.to_le_bytes());
            }
            for number in [entry.len() as u32, local.len() as u32] {
                end.extend(number.to_le_bytes());
            }
            end.extend([0, 0]);
            [local.clone(), entry, end].concat()
        };
        let recipe = NamedArraysRecipe::new(ArrayArchive::Npz, vec!["x".into()]).unwrap();
        let error = |entry, count| recipe.row(&archive(entry, count)).unwrap_err().message().to_owned();
        let crc = 0x3524_41C2; // of "abc"
        assert_eq!(array_names(ArrayArchive::Npz, &archive(directory(3, 0, crc), 1)).unwrap(), ["x"]);
        assert!(error(directory(3, 0, crc), 1).starts_with("has the array \"x\", which "));
        assert_eq!(error(directory(3, 0, 0), 1), "has the member \"x.npy\", whose checksum does not fit");
        assert_eq!(error(directory(4, 0, crc), 1), "has the member \"x.npy\" with two different sizes");
        assert_eq!(error(directory(3, 1, crc), 1), "has the member \"x.npy\" outside of the file");
        assert_eq!(error(directory(3, u32::MAX - 1, crc), 1), "has the member \"x.npy\" outside of the file");
        assert_eq!(error(directory(3, 0, crc), 9999), "claims 9999 members in a directory of 51 bytes");
        assert_eq!(
            recipe.row(b"no archive").unwrap_err().message(),
            "has no end of a ZIP archive: it is truncated, or something else"
        );
        let whole = archive(directory(3, 0, crc), 1);
        for end in 0..whole.len() {
            assert!(recipe.row(&whole[..end]).is_err(), "{end}");
        }
    }
}
