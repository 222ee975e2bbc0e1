//! What the fields of records are, as the directory of a dataset says it.

use forebay_core::Element;

/// One field of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordField {
    /// Its name.
    pub name: String,
    /// How its bytes are to be read.
    pub kind: FieldKind,
    /// How many bytes it has in every record; `None` where each record says it.
    pub size_bytes: Option<u64>,
}

/// How the bytes of a field are to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FieldKind {
    /// As they are.
    Bytes,
    /// UTF-8.
    Text,
    /// A whole number in decimal digits.
    Integer,
    /// A number in decimal digits.
    Decimal,
    /// A JSON document.
    Json,
    /// A picture in a file format.
    Picture,
    /// A picture without compression, behind its width, its height and Pillow's name of its mode.
    Pixels,
    /// One number, little-endian.
    Number(Element),
    /// Numbers of which there are as many as bytes are there for, little-endian.
    Numbers(Element),
    /// An array whose shape, type or both are known in advance; MDS writes what is not in front of it.
    Array {
        /// Its elements.
        element: Option<Element>,
        /// Its dimensions.
        shape: Option<Vec<usize>>,
    },
    /// A NumPy array, as LitData writes it.
    NumpyArray,
    /// A torch tensor, as LitData writes it.
    Tensor,
    /// Something that is not read, with its name: objects in pickle, videos.
    Other(String),
}
