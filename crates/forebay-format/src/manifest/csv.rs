//! CSV as spreadsheets and pandas write it: a header, commas, quotes where a field has a comma, a quote or a line break.

use forebay_core::{Error, Result, Version};

use super::labels::Cell;
use super::rows::{CellError, Row, Rows, checked_size};
use super::{Head, shown};

pub(super) fn read(bytes: &[u8], rows: &mut Rows) -> Result<Head> {
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(bytes);
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = 1 + bytes[..error.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
        Error::config(format!("is not UTF-8 in line {line}")).with_hint("save it as CSV in UTF-8")
    })?;
    let mut reader = Reader { rest: text, line: 1, fields: Vec::new() };
    let header: Vec<String> = match reader.next()? {
        Some(_) => reader.fields.iter().map(|field| field.trim().to_owned()).collect(),
        None => return Err(Error::config("is empty (expected a header: path,class or path,label)")),
    };
    let find = |name: &str| header.iter().position(|column| column == name);
    let path = find("path").ok_or_else(|| lacks("path", &header))?;
    let columns = rows.label_columns().iter().map(|name| find(name).ok_or_else(|| lacks(name, &header)));
    let columns = columns.collect::<Result<Vec<_>>>()?;
    // With user-defined label columns, class and label may be among them and contain anything.
    let (class, label) = if rows.has_classes() { (find("class"), find("label")) } else { (None, None) };
    if rows.has_classes() && class.is_none() && label.is_none() {
        return Err(lacks("class or label", &header));
    }
    let (size_bytes, mtime_ns, etag) = (find("size_bytes"), find("mtime_ns"), find("etag"));
    while let Some(line) = reader.next()? {
        let fields = &reader.fields;
        if fields.len() != header.len() {
            let message =
                format!("has {} fields in line {line} (expected {}, as in its header)", fields.len(), header.len());
            return Err(Error::config(message).with_hint("a path that contains a comma has to be quoted"));
        }
        let text = |column: Option<usize>| column.map(|column| fields[column].as_str());
        // An empty cell means that the value is unknown.
        let known = |column: Option<usize>| text(column).filter(|cell| !cell.is_empty());
        let whole = |name: &str, column: Option<usize>| -> Result<Option<i64>, CellError> {
            let parse = |cell: &str| {
                let parsed = cell.trim().parse();
                parsed.map_err(|_| CellError::new(name, format!("expected a whole number, got {}", shown(cell))))
            };
            known(column).map(parse).transpose()
        };
        let row = || -> Result<Row<'_>, CellError> {
            let label = whole("label", label).map_err(|mut wrong| {
                wrong.hint = Some("labels are numbers; call a column of names `class`");
                wrong
            })?;
            let size_bytes = whole("size_bytes", size_bytes)?.map(checked_size).transpose()?;
            let version =
                Version { size_bytes, mtime_ns: whole("mtime_ns", mtime_ns)?, etag: known(etag).map(Box::from) };
            let cells = columns.iter().map(|column| Cell::Untyped(&fields[*column])).collect();
            Ok(Row { path: &fields[path], class: text(class), label, version, content: None, cells })
        };
        row().and_then(|row| rows.push(row)).map_err(|wrong| wrong.at(&format!("line {line}")))?;
    }
    Ok(Head { columns: header, ..Head::default() })
}

fn lacks(column: &str, header: &[String]) -> Error {
    let got = header.iter().map(|name| shown(name)).take(10).collect::<Vec<_>>().join(", ");
    Error::config(format!("has no column {column} in its header (expected path,class or path,label, got {got})"))
        .with_hint("the first line names the columns, with commas between them")
}

/// Parses records one after the other, and reuses the memory for their fields.
struct Reader<'a> {
    rest: &'a str,
    /// The line of the next record.
    line: u64,
    fields: Vec<String>,
}

impl Reader<'_> {
    /// Reads the next record that is not a blank line. Returns the line it begins in.
    fn next(&mut self) -> Result<Option<u64>> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let begun = self.line;
            let count = self.record(begun)?;
            let is_blank = count == 1 && self.fields[0].is_empty();
            self.fields.truncate(count);
            if !is_blank {
                return Ok(Some(begun));
            }
        }
    }

    fn record(&mut self, begun: u64) -> Result<usize> {
        let mut count = 0;
        loop {
            if self.fields.len() == count {
                self.fields.push(String::new());
            }
            let field = &mut self.fields[count];
            field.clear();
            count += 1;
            let end = match self.rest.strip_prefix('"') {
                Some(mut quoted) => loop {
                    let Some(end) = quoted.find('"') else {
                        return Err(Error::config(format!("has an unterminated quote in line {begun}")));
                    };
                    field.push_str(&quoted[..end]);
                    quoted = &quoted[end + 1..];
                    match quoted.strip_prefix('"') {
                        Some(more) => {
                            field.push('"');
                            quoted = more;
                        }
                        None => {
                            self.rest = quoted;
                            break quoted.find([',', '\n']).unwrap_or(quoted.len());
                        }
                    }
                },
                None => self.rest.find([',', '\n']).unwrap_or(self.rest.len()),
            };
            self.line += field.bytes().filter(|&byte| byte == b'\n').count() as u64;
            let plain = &self.rest[..end];
            field.push_str(if self.rest[end..].starts_with(',') { plain } else { plain.trim_end_matches('\r') });
            match self.rest.as_bytes().get(end) {
                Some(b',') => self.rest = &self.rest[end + 1..],
                Some(_) => {
                    self.rest = &self.rest[end + 1..];
                    self.line += 1;
                    return Ok(count);
                }
                None => {
                    self.rest = "";
                    return Ok(count);
                }
            }
        }
    }
}
