//! Manifest columns that become the samples' labels: numbers, text or booleans, one value per sample.

use forebay_core::{ScalarColumn, Scalars};

use super::rows::CellError;
use super::shown;

/// The labels of a manifest's samples.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Labels {
    /// Their class: the column `class` or `label`, at least one of which must exist.
    #[default]
    Class,
    /// These columns, possibly none; classes are then ignored.
    Columns(Vec<String>),
}

impl Labels {
    /// The columns by name.
    pub(super) fn columns(&self) -> &[String] {
        match self {
            Self::Class => &[],
            Self::Columns(columns) => columns,
        }
    }
}

/// A cell of such a column.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Cell<'a> {
    Missing,
    Bool(bool),
    I64(i64),
    F64(f64),
    Text(&'a str),
    /// From a file that does not distinguish numbers from text: all cells of the column together decide.
    Untyped(&'a str),
}

/// The cells of a column so far.
#[derive(Debug)]
pub(super) struct LabelColumn {
    name: String,
    values: Option<Scalars>,
    is_untyped: bool,
}

impl LabelColumn {
    pub(super) fn new(name: &str) -> Self {
        Self { name: name.to_owned(), values: None, is_untyped: false }
    }

    /// Adds a cell. It must have the type of the earlier ones; integers become floats if floats follow.
    pub(super) fn push(&mut self, cell: Cell<'_>) -> Result<(), CellError> {
        let first = || match cell {
            Cell::Missing | Cell::F64(_) => Scalars::F64(Vec::new()),
            Cell::Bool(_) => Scalars::Bool(Vec::new()),
            Cell::I64(_) => Scalars::I64(Vec::new()),
            Cell::Text(_) | Cell::Untyped(_) => Scalars::Text(Vec::new()),
        };
        self.is_untyped |= matches!(cell, Cell::Untyped(_));
        let values = self.values.get_or_insert_with(first);
        if let (Scalars::I64(whole), Cell::F64(_) | Cell::Missing) = (&*values, cell) {
            *values = Scalars::F64(whole.iter().map(|value| *value as f64).collect());
        }
        match (values, cell) {
            (Scalars::Bool(values), Cell::Bool(value)) => values.push(value),
            (Scalars::I64(values), Cell::I64(value)) => values.push(value),
            (Scalars::F64(values), Cell::F64(value)) => values.push(value),
            (Scalars::F64(values), Cell::I64(value)) => values.push(value as f64),
            // As pandas does for a missing number.
            (Scalars::F64(values), Cell::Missing) => values.push(f64::NAN),
            (Scalars::Text(values), Cell::Text(value) | Cell::Untyped(value)) => values.push(value.to_owned()),
            (values, cell) => {
                let expected = match values {
                    Scalars::Bool(_) => "a boolean",
                    Scalars::I64(_) | Scalars::F64(_) => "a number",
                    Scalars::Text(_) => "text",
                };
                let got = match cell {
                    Cell::Missing => "none".to_owned(),
                    Cell::Text(text) | Cell::Untyped(text) => shown(text),
                    Cell::Bool(value) => value.to_string(),
                    Cell::I64(value) => value.to_string(),
                    Cell::F64(value) => value.to_string(),
                };
                return Err(CellError::new(
                    &self.name,
                    format!("expected {expected} as in the rows before, got {got}"),
                ));
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> ScalarColumn {
        let values = match self.values.unwrap_or(Scalars::F64(Vec::new())) {
            Scalars::Text(texts) if self.is_untyped => typed(texts),
            values => values,
        };
        ScalarColumn::new(&self.name, values)
    }
}

/// Cells without a type: numbers if all of them are.
fn typed(texts: Vec<String>) -> Scalars {
    let whole: Option<Vec<i64>> = texts.iter().map(|text| text.trim().parse().ok()).collect();
    if let Some(whole) = whole {
        return Scalars::I64(whole);
    }
    let number = |text: &String| match text.trim() {
        "" => Some(f64::NAN),
        text => text.parse().ok(),
    };
    let is_any_number = texts.iter().any(|text| !text.trim().is_empty());
    match texts.iter().map(number).collect::<Option<Vec<f64>>>() {
        Some(numbers) if is_any_number => Scalars::F64(numbers),
        _ => Scalars::Text(texts),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(cells: &[Cell<'_>]) -> Result<Scalars, CellError> {
        let mut column = LabelColumn::new("x");
        cells.iter().try_for_each(|cell| column.push(*cell))?;
        Ok(column.finish().values)
    }

    #[test]
    fn cells_have_the_type_of_their_column() {
        assert_eq!(column(&[Cell::I64(1), Cell::I64(-2)]).unwrap(), Scalars::I64(vec![1, -2]));
        assert_eq!(column(&[Cell::I64(1), Cell::F64(0.5)]).unwrap(), Scalars::F64(vec![1.0, 0.5]));
        assert_eq!(column(&[Cell::Bool(true)]).unwrap(), Scalars::Bool(vec![true]));
        assert_eq!(column(&[Cell::Text("1")]).unwrap(), Scalars::Text(vec!["1".to_owned()]), "a text stays one");
        let Scalars::F64(numbers) = column(&[Cell::I64(1), Cell::Missing]).unwrap() else { panic!("numbers") };
        assert!(numbers[0] == 1.0 && numbers[1].is_nan());
        for cells in
            [[Cell::Text("a"), Cell::I64(1)], [Cell::I64(1), Cell::Text("a")], [Cell::Text("a"), Cell::Missing]]
        {
            let wrong = column(&cells).unwrap_err();
            assert!(wrong.message.contains("as in the rows before"), "{wrong:?}");
        }
    }

    #[test]
    fn cells_without_a_type_are_numbers_if_all_are() {
        let untyped =
            |texts: &[&'static str]| column(&texts.iter().map(|text| Cell::Untyped(text)).collect::<Vec<_>>());
        assert_eq!(untyped(&["1", " 2 "]).unwrap(), Scalars::I64(vec![1, 2]));
        assert_eq!(untyped(&["1", "2.5"]).unwrap(), Scalars::F64(vec![1.0, 2.5]));
        assert_eq!(untyped(&["1", "b"]).unwrap(), Scalars::Text(vec!["1".to_owned(), "b".to_owned()]));
        assert_eq!(untyped(&["", ""]).unwrap(), Scalars::Text(vec![String::new(); 2]));
        assert!(matches!(untyped(&["1", ""]).unwrap(), Scalars::F64(numbers) if numbers[1].is_nan()));
    }
}
