//! Samples that are records of CSV.

use std::borrow::Cow;
use std::str::FromStr;
use std::time::Instant;

use forebay_core::{Element, Error, Kind, Result};
use half::{bf16, f16};

use crate::{Array, ColumnKind, ColumnSpec, Dense, Fields, Made, Order, Recipe, Sample, Scratch, Timing, Value};

/// One column of a table that a sample has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CsvColumn {
    /// What it is called in a batch.
    pub name: String,
    /// Which of a record's fields it is, from 0.
    pub place: usize,
    /// What its numbers become; `None` for text.
    pub element: Option<Element>,
}

/// Every sample is a record of CSV: a column for each of those that are named, of text or numbers.
#[derive(Clone, Debug)]
pub struct CsvRecipe {
    delimiter: u8,
    width: usize,
    columns: Vec<CsvColumn>,
}

impl CsvRecipe {
    /// Records with `width` fields, of which `columns` are taken.
    pub fn new(delimiter: u8, width: usize, columns: Vec<CsvColumn>) -> Result<Self> {
        if columns.is_empty() {
            return Err(Error::config("columns: expected at least one, got none"));
        }
        if let Some(column) = columns.iter().find(|column| column.place >= width) {
            return Err(Error::config(format!("columns: expected places below {width}, got {}", column.place)));
        }
        Ok(Self { delimiter, width, columns })
    }

    fn row(&self, record: &[u8]) -> Result<Vec<Value>> {
        let fields = csv_fields(record, self.delimiter)?;
        if fields.len() != self.width {
            let (expected, got) = (self.width, fields.len());
            return Err(Error::new(Kind::Corrupt, format!("has {got} fields (expected {expected})"))
                .with_hint("a field that has a delimiter, a quote or a line break has to be quoted"));
        }
        self.columns.iter().map(|column| value_of(column, &fields[column.place])).collect()
    }
}

impl Recipe for CsvRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let column = |CsvColumn { name, element, .. }: &CsvColumn| {
            let kind = match *element {
                Some(element) => ColumnKind::Dense(Dense { shape: Vec::new(), element, order: Order::default() }),
                None => ColumnKind::Text,
            };
            ColumnSpec { name: name.clone().into(), kind }
        };
        self.columns.iter().map(column).collect()
    }

    fn layout(&self) -> Option<&Dense> {
        None
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        // Each byte may be a field of its own, of which place and text are kept.
        let field = (size_of::<Cow<'_, [u8]>>() + size_of::<Value>()) as u64;
        Ok((fields.only().len() as u64).saturating_mul(field + 1))
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        let started = Instant::now();
        let mut row = self.row(sample.fields.only())?;
        let value = if row.len() == 1 { row.swap_remove(0) } else { Value::Row(row) };
        Ok((Some(value), Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

/// The fields of one record, without their quotes. Line ends after it are left out.
pub fn csv_fields(record: &[u8], delimiter: u8) -> Result<Vec<Cow<'_, [u8]>>> {
    let end = record.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    let (record, mut fields, mut at) = (&record[..end], Vec::new(), 0);
    loop {
        let (field, end) = match record.get(at) {
            Some(b'"') => quoted(record, at, delimiter)?,
            _ => {
                let end = record[at..].iter().position(|byte| *byte == delimiter).map_or(record.len(), |end| at + end);
                (Cow::Borrowed(&record[at..end]), end)
            }
        };
        crate::memory::reserve(&mut fields, 1, "its fields")?;
        fields.push(field);
        if end == record.len() {
            return Ok(fields);
        }
        at = end + 1;
    }
}

/// The field whose opening quote is at `open`, and where it ends: at a delimiter, or with the record.
fn quoted(record: &[u8], open: usize, delimiter: u8) -> Result<(Cow<'_, [u8]>, usize)> {
    let mut field = Cow::Borrowed(&record[open + 1..open + 1]);
    let mut from = open + 1;
    loop {
        let Some(quote) = record[from..].iter().position(|byte| *byte == b'"').map(|quote| from + quote) else {
            return Err(damaged(record, open, "has a quote that is not closed"));
        };
        match &mut field {
            Cow::Borrowed(empty) if empty.is_empty() && from == open + 1 => field = Cow::Borrowed(&record[from..quote]),
            more => more.to_mut().extend_from_slice(&record[from..quote]),
        }
        match record.get(quote + 1) {
            Some(b'"') => {
                field.to_mut().push(b'"');
                from = quote + 2;
            }
            Some(byte) if *byte != delimiter => {
                return Err(damaged(record, quote, "has more behind a quoted field than a delimiter"));
            }
            _ => return Ok((field, quote + 1)),
        }
    }
}

/// What is wrong, with the place by line, of a record that has several, and column.
fn damaged(record: &[u8], at: usize, what: &str) -> Error {
    let line = 1 + record[..at].iter().filter(|byte| **byte == b'\n').count();
    let column = at - record[..at].iter().rposition(|byte| *byte == b'\n').map_or(0, |before| before + 1) + 1;
    let place = if line == 1 { String::new() } else { format!("line {line} of it, ") };
    Error::new(Kind::Corrupt, format!("{what} ({place}column {column})"))
        .with_hint("a field that has a delimiter, a quote or a line break has to be quoted")
}

fn value_of(column: &CsvColumn, field: &[u8]) -> Result<Value> {
    let text = std::str::from_utf8(field).map_err(|_| {
        Error::new(Kind::Corrupt, format!("is not UTF-8 in the column {:?}", column.name))
            .with_hint("save it as CSV in UTF-8")
    })?;
    let Some(element) = column.element else { return Ok(Value::Text(text.to_owned())) };
    match number(element, text.trim()) {
        Some(bytes) => Ok(Value::Array(Array { shape: Vec::new(), element, bytes })),
        None => {
            let shown: String = text.chars().take(40).collect();
            let (name, expected) = (&column.name, element.name());
            Err(Error::new(Kind::Corrupt, format!("has {shown:?} in the column {name:?} (expected {expected})")))
        }
    }
}

/// One number, as the machine writes it. A missing one is NaN where there is one.
fn number(element: Element, text: &str) -> Option<Vec<u8>> {
    fn parsed<T: FromStr, const N: usize>(text: &str, bytes: impl Fn(T) -> [u8; N]) -> Option<Vec<u8>> {
        text.parse().ok().map(|number| bytes(number).to_vec())
    }
    let float = if text.is_empty() { "nan" } else { text };
    match element {
        Element::Bool => match text {
            "1" | "true" | "True" | "TRUE" => Some(vec![1]),
            "0" | "false" | "False" | "FALSE" => Some(vec![0]),
            _ => None,
        },
        Element::I8 => parsed(text, i8::to_ne_bytes),
        Element::I16 => parsed(text, i16::to_ne_bytes),
        Element::I32 => parsed(text, i32::to_ne_bytes),
        Element::I64 => parsed(text, i64::to_ne_bytes),
        Element::U8 => parsed(text, u8::to_ne_bytes),
        Element::U16 => parsed(text, u16::to_ne_bytes),
        Element::U32 => parsed(text, u32::to_ne_bytes),
        Element::U64 => parsed(text, u64::to_ne_bytes),
        Element::F16 => parsed(float, |number: f64| f16::from_f64(number).to_ne_bytes()),
        Element::BF16 => parsed(float, |number: f64| bf16::from_f64(number).to_ne_bytes()),
        Element::F32 => parsed(float, f32::to_ne_bytes),
        Element::F64 => parsed(float, f64::to_ne_bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(record: &str) -> Vec<String> {
        let text = |field: Cow<'_, [u8]>| String::from_utf8(field.into_owned()).unwrap();
        csv_fields(record.as_bytes(), b',').unwrap().into_iter().map(text).collect()
    }

    #[test]
    fn fields_are_those_of_pythons_csv() {
        for (record, expected) in [
            ("a,b\n", vec!["a", "b"]),
            ("", vec![""]),
            (",\r\n\n", vec!["", ""]),
            ("\"a,b\",\"c\nd\"", vec!["a,b", "c\nd"]),
            ("\"\",\"\"\"\",\"a\"\"b\"\"\"\n", vec!["", "\"", "a\"b\""]),
            ("a\"b, \"c\"", vec!["a\"b", " \"c\""]),
        ] {
            assert_eq!(fields(record), expected, "{record:?}");
        }
    }

    #[test]
    fn what_is_malformed_has_its_place() {
        for (record, message) in [
            ("a,\"b", "has a quote that is not closed (column 3)"),
            ("\"a\nb\",c,\"d", "has a quote that is not closed (line 2 of it, column 6)"),
            ("\"a\"b,c", "has more behind a quoted field than a delimiter (column 3)"),
        ] {
            let error = csv_fields(record.as_bytes(), b',').unwrap_err();
            assert_eq!((error.kind(), error.message()), (Kind::Corrupt, message));
        }
        let column = |name: &str, place, element| CsvColumn { name: name.to_owned(), place, element };
        let recipe = CsvRecipe::new(b';', 2, vec![column("n", 1, Some(Element::I16)), column("t", 0, None)]).unwrap();
        let error = recipe.row(b"a;70000\n").unwrap_err();
        assert_eq!(error.message(), "has \"70000\" in the column \"n\" (expected int16)");
        assert_eq!(recipe.row(b"a;1;2\n").unwrap_err().message(), "has 3 fields (expected 2)");
        assert_eq!(recipe.row(b"\xFF;1").unwrap_err().message(), "is not UTF-8 in the column \"t\"");
        assert!(CsvRecipe::new(b';', 1, vec![column("n", 1, None)]).is_err());
        assert!(CsvRecipe::new(b';', 1, vec![]).is_err());
    }

    #[test]
    fn numbers_are_of_their_type() {
        assert_eq!(number(Element::F32, "1.5"), Some(1.5f32.to_ne_bytes().to_vec()));
        assert!(number(Element::F64, "").is_some_and(|bytes| f64::from_ne_bytes(bytes.try_into().unwrap()).is_nan()));
        assert_eq!((number(Element::I64, ""), number(Element::U8, "-1")), (None, None));
        assert_eq!((number(Element::Bool, "True"), number(Element::Bool, "2")), (Some(vec![1]), None));
        assert_eq!(number(Element::BF16, "1"), Some(bf16::ONE.to_ne_bytes().to_vec()));
    }
}
