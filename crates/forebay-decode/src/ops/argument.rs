//! Arguments of transforms, parsed from Python and printed: one implementation of [`Setting`] for each field type of
//! the table.

use std::fmt;

use forebay_core::{Error, Result};

use super::{Erase, Interpolation, Op, Padding, PaddingMode, ResizeTo, Size};
use crate::Dtype;

/// An argument of any transform, before its type is checked.
#[derive(Clone, Debug)]
pub enum Argument {
    /// Python's `None`.
    None,
    /// True or false.
    Bool(bool),
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Number(f64),
    /// A name, such as that of a filter.
    Text(String),
    /// Several.
    List(Vec<Argument>),
    /// A transform.
    Op(Op),
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("None"),
            Self::Bool(value) => f.write_str(if *value { "True" } else { "False" }),
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value:?}"),
            Self::Text(text) => write!(f, "{text:?}"),
            Self::List(items) => listed(f, items, |item, f| write!(f, "{item}")),
            Self::Op(op) => write!(f, "{op}"),
        }
    }
}

impl Argument {
    fn list(&self) -> Option<&[Self]> {
        match self {
            Self::List(items) => Some(items),
            _ => None,
        }
    }

    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// All items of a list.
    fn all<T: Read>(&self) -> Option<Vec<T>> {
        self.list()?.iter().map(T::read).collect()
    }
}

/// The arguments of one transform while it is parsed.
pub(crate) struct Arguments<'a> {
    op: &'a str,
    given: Vec<(String, Argument)>,
}

impl<'a> Arguments<'a> {
    pub(crate) fn new(op: &'a str, given: Vec<(String, Argument)>) -> Self {
        Self { op, given }
    }

    /// The argument of this name.
    pub(crate) fn take<T: Read>(&mut self, name: &str) -> Result<T> {
        let op = self.op;
        let place = self.given.iter().position(|(given, _)| given == name);
        let place = place.ok_or_else(|| Error::config(format!("{op}: expected the argument {name}, got none")))?;
        let (_, given) = self.given.swap_remove(place);
        T::read(&given).ok_or_else(|| Error::config(format!("{op}: {name}: expected {}, got {given}", T::expected())))
    }

    /// The op, if no argument is left over.
    pub(crate) fn finish(self, op: Op) -> Result<Op> {
        match self.given.first() {
            None => Ok(op),
            Some((name, _)) => Err(Error::config(format!("{}: expected no argument {name}, got one", self.op))),
        }
    }
}

/// Parsing of an argument type.
pub(crate) trait Read: Sized {
    /// The expected value, for messages.
    fn expected() -> String;
    /// `None` if it is something else.
    fn read(given: &Argument) -> Option<Self>;
}

/// Printing of an argument type.
pub(crate) trait Setting {
    /// As it is written in Python.
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A name and its arguments.
pub(crate) fn print(f: &mut fmt::Formatter<'_>, name: &str, arguments: &[(&str, &dyn Setting)]) -> fmt::Result {
    write!(f, "{name}(")?;
    for (place, (name, argument)) in arguments.iter().enumerate() {
        f.write_str(if place > 0 { ", " } else { "" })?;
        write!(f, "{name}=")?;
        argument.print(f)?;
    }
    f.write_str(")")
}

fn listed<T>(
    f: &mut fmt::Formatter<'_>,
    items: &[T],
    print: impl Fn(&T, &mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    f.write_str("[")?;
    for (place, item) in items.iter().enumerate() {
        f.write_str(if place > 0 { ", " } else { "" })?;
        print(item, f)?;
    }
    f.write_str("]")
}

/// `$type`: `$expected` in words, read from `$given`, printed by `$format`.
macro_rules! setting {
    ($type:ty, $expected:literal, $format:literal, |$given:ident| $read:expr) => {
        impl Read for $type {
            fn expected() -> String {
                $expected.into()
            }

            fn read($given: &Argument) -> Option<Self> {
                $read
            }
        }

        impl Setting for $type {
            fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, $format, self)
            }
        }
    };
}

setting!(bool, "True or False", "{}", |given| match given {
    Argument::Bool(value) => Some(*value),
    _ => None,
});
setting!(u32, "a whole number, 0 or more", "{}", |given| match given {
    Argument::Integer(value) => u32::try_from(*value).ok(),
    _ => None,
});
setting!(f64, "a number", "{:?}", |given| match given {
    Argument::Integer(value) => Some(*value as f64),
    Argument::Number(value) => Some(*value),
    _ => None,
});
setting!((f64, f64), "two numbers", "{:?}", |given| match *given.all::<f64>()? {
    [low, high] => Some((low, high)),
    _ => None,
});
setting!((u32, u32), "two whole numbers", "{:?}", |given| match *given.all::<u32>()? {
    [columns, rows] => Some((columns, rows)),
    _ => None,
});
setting!(Vec<f64>, "a list of numbers", "{:?}", |given| given.all());
setting!(Size, "one or two whole numbers (height, width)", "{}", |given| match *given.all::<u32>()? {
    [edge] => Some(edge.into()),
    [height, width] => Some(Self { height, width }),
    _ => None,
});
setting!(ResizeTo, "one or two whole numbers (height, width), or None", "{}", |given| match given {
    Argument::None => Some(Self::LongEdge),
    _ => match *given.all::<u32>()? {
        [edge] => Some(Self::Edge(edge)),
        [height, width] => Some(Self::Exact(Size { height, width })),
        _ => None,
    },
});
setting!(Padding, "one, two or four whole numbers", "{}", |given| Self::from_values(&given.all::<u32>()?));
setting!(Interpolation, "nearest, nearest-exact, bilinear, bicubic, box, hamming or lanczos", "{}", |given| {
    let text = given.text()?;
    Self::ALL.into_iter().find(|mode| mode.name() == text)
});
setting!(PaddingMode, "constant, edge, reflect or symmetric", "{}", |given| {
    let text = given.text()?;
    Self::ALL.into_iter().find(|mode| mode.name() == text)
});
setting!(Erase, "numbers or \"random\"", "{}", |given| match given {
    Argument::None => Some(Self::Random),
    Argument::Text(text) => (text == "random").then_some(Self::Random),
    _ => given.all().map(Self::Values),
});

impl Read for Dtype {
    fn expected() -> String {
        "uint8 or float32".into()
    }

    fn read(given: &Argument) -> Option<Self> {
        let text = given.text()?;
        [Self::U8, Self::F32, Self::F16, Self::BF16].into_iter().find(|dtype| dtype.name() == text)
    }
}

impl Setting for Dtype {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl<T: Read> Read for Option<T> {
    fn expected() -> String {
        format!("{} or None", T::expected())
    }

    fn read(given: &Argument) -> Option<Self> {
        match given {
            Argument::None => Some(None),
            given => T::read(given).map(Some),
        }
    }
}

impl<T: Setting> Setting for Option<T> {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Some(value) => value.print(f),
            None => f.write_str("None"),
        }
    }
}

impl Read for Vec<Op> {
    fn expected() -> String {
        "a list of transforms".into()
    }

    fn read(given: &Argument) -> Option<Self> {
        let op = |item: &Argument| match item {
            Argument::Op(op) => Some(op.clone()),
            _ => None,
        };
        given.list()?.iter().map(op).collect()
    }
}

impl Setting for Vec<Op> {
    fn print(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        listed(f, self, |op, f| write!(f, "{op}"))
    }
}

#[cfg(test)]
mod tests;
