//! JSON lines: one object per line, with path and class or label. Other keys are ignored.

use std::borrow::Cow;

use forebay_core::{Error, Result, Version};
use serde::Deserialize;
use serde_json::Value;

use super::labels::Cell;
use super::rows::{CellError, Row, Rows};
use super::{Head, shown};

#[derive(Deserialize)]
struct Line<'a> {
    #[serde(borrow)]
    path: Cow<'a, str>,
    #[serde(borrow, default)]
    class: Option<Cow<'a, str>>,
    #[serde(default)]
    label: Option<i64>,
    #[serde(default)]
    size_bytes: Option<u64>,
    #[serde(default)]
    mtime_ns: Option<i64>,
    #[serde(borrow, default)]
    etag: Option<Cow<'a, str>>,
}

pub(super) fn read(bytes: &[u8], rows: &mut Rows) -> Result<Head> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let mut columns = Vec::new();
    for (number, line) in (1..).zip(bytes.split(|&byte| byte == b'\n')) {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let place = format!("line {number}");
        let object: Value;
        let (parsed, cells) = if rows.has_classes() {
            (serde_json::from_slice::<Line<'_>>(line), Vec::new())
        } else {
            object = serde_json::from_slice(line).map_err(|error| explain(line, &place, &error))?;
            let cell = |name: &String| cell(&object, name);
            let cells: Result<_, _> = rows.label_columns().iter().map(cell).collect();
            (unlabelled(line), cells.map_err(|wrong| wrong.at(&place))?)
        };
        let parsed = parsed.map_err(|error| explain(line, &place, &error))?;
        if columns.is_empty() {
            columns = names(line);
        }
        let version = Version {
            size_bytes: parsed.size_bytes,
            mtime_ns: parsed.mtime_ns,
            etag: parsed.etag.as_deref().filter(|etag| !etag.is_empty()).map(Box::from),
        };
        let row = Row {
            path: &parsed.path,
            class: parsed.class.as_deref(),
            label: parsed.label,
            version,
            content: None,
            cells,
        };
        rows.push(row).map_err(|wrong| wrong.at(&place))?;
    }
    Ok(Head { columns, ..Head::default() })
}

/// A line without class and label, which may be user-defined columns here and contain anything.
fn unlabelled(line: &[u8]) -> serde_json::Result<Line<'_>> {
    #[derive(Deserialize)]
    struct Unlabelled<'a> {
        #[serde(borrow)]
        path: Cow<'a, str>,
        #[serde(default)]
        size_bytes: Option<u64>,
        #[serde(default)]
        mtime_ns: Option<i64>,
        #[serde(borrow, default)]
        etag: Option<Cow<'a, str>>,
    }
    let Unlabelled { path, size_bytes, mtime_ns, etag } = serde_json::from_slice(line)?;
    Ok(Line { path, class: None, label: None, size_bytes, mtime_ns, etag })
}

fn cell<'a>(object: &'a Value, name: &str) -> Result<Cell<'a>, CellError> {
    match object.get(name) {
        None | Some(Value::Null) => Ok(Cell::Missing),
        Some(Value::Bool(value)) => Ok(Cell::Bool(*value)),
        Some(Value::String(text)) => Ok(Cell::Text(text)),
        Some(Value::Number(number)) => {
            Ok(number.as_i64().map_or_else(|| Cell::F64(number.as_f64().unwrap_or(f64::NAN)), Cell::I64))
        }
        Some(other) => Err(CellError::new(
            name,
            format!("expected a number, text or a boolean, got {}", shown(&other.to_string())),
        )),
    }
}

fn names(line: &[u8]) -> Vec<String> {
    match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object.keys().cloned().collect(),
        _ => Vec::new(),
    }
}

/// Finds the column that could not be parsed. Only called for errors, so it costs nothing otherwise.
fn explain(line: &[u8], place: &str, error: &serde_json::Error) -> Error {
    let object = match serde_json::from_slice(line) {
        Ok(Value::Object(object)) => object,
        Ok(_) => return Error::config(format!("has no object in {place} (expected {{\"path\": …, \"class\": …}})")),
        Err(error) => {
            return Error::config(format!("is not JSON in {place}: {error}"))
                .with_hint("expected one JSON object per line; if the file is truncated, create it again");
        }
    };
    for column in ["path", "class", "label", "size_bytes", "mtime_ns", "etag"] {
        let is_text = matches!(column, "path" | "class" | "etag");
        let expected = if is_text { "text" } else { "a whole number" };
        let fits = |value: &Value| match column {
            _ if is_text => value.is_string(),
            "size_bytes" => value.is_u64(),
            _ => value.is_i64(),
        };
        let wrong = match object.get(column) {
            None if column == "path" => CellError::new(column, format!("expected {expected}, got none")),
            Some(value) if !fits(value) && (column == "path" || !value.is_null()) => {
                CellError::new(column, format!("expected {expected}, got {}", shown(&value.to_string())))
            }
            _ => continue,
        };
        return wrong.at(place);
    }
    Error::config(format!("cannot be parsed in {place}: {error}"))
}
