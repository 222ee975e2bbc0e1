//! Thrift's compact protocol, written: for files that claim what they do not hold.

/// Thrift's compact protocol, written.
#[derive(Default)]
pub(crate) struct Writer(pub(crate) Vec<u8>);

impl Writer {
    pub(crate) fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    pub(crate) fn zigzag(&mut self, number: i64) {
        self.varint(((number << 1) ^ (number >> 63)) as u64);
    }

    pub(crate) fn field(&mut self, id: i64, kind: u8) {
        self.0.push(kind);
        self.zigzag(id);
    }

    pub(crate) fn i32(mut self, id: i64, number: i32) -> Self {
        self.field(id, 5);
        self.zigzag(number.into());
        self
    }

    pub(crate) fn i64(mut self, id: i64, number: i64) -> Self {
        self.field(id, 6);
        self.zigzag(number);
        self
    }

    pub(crate) fn text(mut self, id: i64, text: &str) -> Self {
        self.field(id, 8);
        self.varint(text.len() as u64);
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    pub(crate) fn structure(mut self, id: i64, inner: Self) -> Self {
        self.field(id, 12);
        self.0.extend_from_slice(&inner.ended());
        self
    }

    pub(crate) fn list(mut self, id: i64, elements: Vec<Self>) -> Self {
        self.field(id, 9);
        self.0.push(0xfc);
        self.varint(elements.len() as u64);
        elements.into_iter().for_each(|element| self.0.extend_from_slice(&element.ended()));
        self
    }

    pub(crate) fn ended(mut self) -> Vec<u8> {
        self.0.push(0);
        self.0
    }
}
