//! Samples that are JSON documents.

use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};
use serde_json::Value as Json;

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Recipe, Sample, Scratch, Timing, Value};

/// Every sample is a JSON document: as one object, or with a column for each of the fields that are named.
///
/// As a column, a number or a list of numbers (of lists, …) becomes an array, a string a text, and everything else stays an
/// object.
#[derive(Clone, Debug, Default)]
pub struct JsonRecipe {
    /// The fields of each document that become columns; empty: the whole document becomes one.
    pub fields: Vec<String>,
    /// Every document is a line of a file, which has a number of its own.
    pub is_line: bool,
}

impl JsonRecipe {
    fn row(&self, document: &mut Json) -> Result<Vec<Value>> {
        let missing = |field: &str| {
            let names = self.fields.join(", ");
            Error::new(Kind::Corrupt, format!("has no field {field:?} (expected an object with {names})"))
        };
        let take = |field: &String| {
            let value = document.get_mut(field).map(Json::take).ok_or_else(|| missing(field))?;
            column_value(value)
        };
        self.fields.iter().map(take).collect()
    }
}

impl Recipe for JsonRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        if self.fields.is_empty() {
            return vec![ColumnSpec::new("json", ColumnKind::Objects)];
        }
        let column = |field: &String| ColumnSpec { name: field.clone().into(), kind: ColumnKind::Objects };
        self.fields.iter().map(column).collect()
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        // "[0,0,…" has a value of 32 bytes for every two of its own, in a list that doubles when it is full.
        let value = size_of::<Json>() as u64;
        Ok((fields.only().len() as u64).saturating_mul(value + 2))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let bytes = sample.fields.only().strip_prefix(b"\xEF\xBB\xBF").unwrap_or(sample.fields.only());
        let mut document: Json = serde_json::from_slice(bytes).map_err(|error| {
            let message = match self.is_line {
                true => format!("is not JSON (column {})", error.column()),
                false => format!("is not JSON (line {}, column {})", error.line(), error.column()),
            };
            Error::new(Kind::Corrupt, message).with_detail(error.to_string())
        })?;
        let value = match self.fields.len() {
            0 => Value::Json(document),
            1 => self.row(&mut document)?.swap_remove(0),
            _ => Value::Row(self.row(&mut document)?),
        };
        Ok((Some(value), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

fn column_value(value: Json) -> Result<Value> {
    Ok(match value {
        Json::String(text) => Value::Text(text),
        Json::Bool(value) => {
            Value::Array(Array { shape: vec![], element: Element::Bool, bytes: vec![u8::from(value)] })
        }
        value @ (Json::Number(_) | Json::Array(_)) => match numbers(&value)? {
            Some(array) => Value::Array(array),
            None => Value::Json(value),
        },
        value @ (Json::Null | Json::Object(_)) => Value::Json(value),
    })
}

/// A number, or lists of numbers that are all of one length at each depth; `None` for everything else.
fn numbers(value: &Json) -> Result<Option<Array>> {
    let mut shape = Vec::new();
    let mut first = value;
    while let Json::Array(items) = first {
        shape.push(items.len());
        match items.first() {
            Some(item) => first = item,
            None => break,
        }
    }
    let mut found = Vec::new();
    if !gather(value, &shape, &mut found)? {
        return Ok(None);
    }
    let whole: Option<Vec<i64>> = found.iter().map(|number| number.as_i64()).collect();
    let (element, bytes) = match whole {
        Some(whole) if !whole.is_empty() => {
            (Element::I64, whole.iter().flat_map(|value| value.to_ne_bytes()).collect())
        }
        _ => {
            let floats = found.iter().map(|number| number.as_f64().unwrap_or(f64::NAN));
            (Element::F64, floats.flat_map(f64::to_ne_bytes).collect())
        }
    };
    Ok(Some(Array { shape, element, bytes }))
}

/// Collects the numbers below a value; false where something else is among them, or a list has another length.
fn gather<'a>(value: &'a Json, shape: &[usize], found: &mut Vec<&'a serde_json::Number>) -> Result<bool> {
    match (value, shape) {
        (Json::Number(number), []) => {
            crate::memory::reserve(found, 1, "an array of its numbers")?;
            found.push(number);
            Ok(true)
        }
        (Json::Array(items), [length, inner @ ..]) if items.len() == *length => {
            for item in items {
                if !gather(item, inner, found)? {
                    return Ok(false);
                }
            }
            Ok(true)
        }
        _ => Ok(false),
    }
}

/// About how many bytes a document takes.
pub(crate) fn size_bytes(value: &Json) -> usize {
    let inner: usize = match value {
        Json::String(text) => text.len(),
        Json::Array(items) => items.iter().map(size_bytes).sum(),
        Json::Object(fields) => fields.iter().map(|(name, value)| name.len() + size_bytes(value)).sum(),
        Json::Null | Json::Bool(_) | Json::Number(_) => 0,
    };
    size_of::<Json>() + inner
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::{Epoch, Rng, SampleId};

    fn make(fields: &[&str], text: &str) -> Result<Value> {
        let recipe = JsonRecipe { fields: fields.iter().map(|field| (*field).to_owned()).collect(), is_line: false };
        let (rng, scratch) = (&Rng::for_sample(0, Epoch(0), SampleId(0)), &mut Scratch::default());
        let sample = Sample { fields: Fields(&[text.as_bytes()]), path: &|| "unused".into(), rng, scratch, slot: None };
        Ok(recipe.make(sample)?.0.unwrap())
    }

    fn array(text: &str) -> Option<(Vec<usize>, Element, usize)> {
        match make(&["x"], &format!("{{\"x\": {text}}}")).unwrap() {
            Value::Array(array) => Some((array.shape, array.element, array.bytes.len())),
            _ => None,
        }
    }

    #[test]
    fn a_document_is_one_object_and_fields_are_columns() {
        let document = "\u{FEFF}{\"text\": \"grün\", \"ids\": [1, 2], \"more\": {\"a\": null}}";
        assert!(matches!(make(&[], document).unwrap(), Value::Json(Json::Object(fields)) if fields.len() == 3));
        let Value::Row(row) = make(&["ids", "text", "more"], document).unwrap() else { panic!("a row") };
        assert!(matches!(&row[0], Value::Array(array) if array.shape == [2] && array.element == Element::I64));
        assert!(matches!(&row[1], Value::Text(text) if text == "grün"));
        assert!(matches!(&row[2], Value::Json(Json::Object(_))));
    }

    #[test]
    fn numbers_become_arrays_where_they_are_rectangular() {
        assert_eq!(array("7"), Some((vec![], Element::I64, 8)));
        assert_eq!(array("true"), Some((vec![], Element::Bool, 1)));
        assert_eq!(array("[1, 2.5]"), Some((vec![2], Element::F64, 16)));
        assert_eq!(array("[[1, 2, 3], [4, 5, 6]]"), Some((vec![2, 3], Element::I64, 48)));
        assert_eq!(array("[]"), Some((vec![0], Element::F64, 0)));
        for other in ["[[1], [2, 3]]", "[1, \"a\"]", "[1, [2]]", "null", "{}", "\"text\""] {
            assert_eq!(array(other), None, "{other}");
        }
        // Beyond 64 bits.
        assert_eq!(array("18446744073709551615"), Some((vec![], Element::F64, 8)));
    }

    #[test]
    fn what_is_no_json_says_where() {
        let error = make(&[], "{\"a\": 1,\n \"b\": }").unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Corrupt, "is not JSON (line 2, column 7)"));
        let error = make(&["b"], "{\"a\": 1}").unwrap_err();
        assert!(error.message().starts_with("has no field \"b\""), "{error}");
        assert!(make(&["b"], "[1]").is_err());
        assert!(make(&[], &"[".repeat(100_000)).is_err(), "deeper than any document");
    }

    #[test]
    fn the_memory_of_a_document_is_charged() {
        let text = format!("[{}0]", "0,".repeat(1000));
        let charged = JsonRecipe::default().memory_bytes(Fields(&[text.as_bytes()]), &mut Scratch::default()).unwrap();
        let Value::Json(document) = make(&[], &text).unwrap() else { panic!("a document") };
        assert!(charged >= size_bytes(&document) as u64 * 2, "a list that has just doubled");
    }
}
