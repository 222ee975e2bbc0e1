//! Samples of tokens: rows of one length, with the tokens that follow as targets, and where documents begin in them.

use std::time::Instant;

use forebay_core::{Element, Error, Field, Kind, Result, Segment};

use crate::memory::{reserve, resize};
use crate::{
    Array, ColumnKind, ColumnSpec, Dense, Fields, LightRecipe, Made, Order, Recipe, Sample, Scratch, Timing, Value,
};

/// The target of a position that has none, which torch's losses leave out.
const NO_TARGET: i64 = -100;

/// What tells where a document ends in a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DocumentRule {
    /// Nothing: a sample is one row of tokens.
    #[default]
    None,
    /// This token, which is its last one.
    EndedBy(i64),
    /// The dataset, by an outline of segments.
    Outlined,
}

/// What samples of tokens are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenSpec {
    /// The type of tokens in the files, little-endian.
    pub source: Element,
    /// The type of tokens in a batch: 64 or 32 bits with a sign, or 16 without.
    pub element: Element,
    /// Tokens of a sample.
    pub length: usize,
    /// The token that follows each one is a column, too, of 64 bits.
    pub has_targets: bool,
    /// Where documents end.
    pub documents: DocumentRule,
    /// Samples are packed: a column says which positions count.
    pub has_loss_mask: bool,
    /// What stands where a sample has no tokens.
    pub pad: i64,
    /// Tokens have to be below.
    pub vocab_size: Option<u64>,
}

/// Every sample is a row of tokens. Its fields are pieces of it, one behind the other.
#[derive(Clone, Debug)]
pub struct TokensRecipe {
    spec: TokenSpec,
    /// The lowest and the highest token, where not every one of the files' type is good.
    bounds: Option<(i64, i64)>,
    /// Of tokens and targets.
    layouts: Vec<Dense>,
}

impl TokensRecipe {
    /// Samples as `spec` says.
    pub fn new(spec: TokenSpec) -> Result<Self> {
        let (low, high) = bounds_of(spec.element).filter(|_| spec.element != Element::U32).ok_or_else(|| {
            Error::config(format!("token_dtype: expected int64, int32 or uint16, got {}", spec.element.name()))
        })?;
        let (least, most) = bounds_of(spec.source)
            .ok_or_else(|| Error::config(format!("dtype: expected whole numbers, got {}", spec.source.name())))?;
        if spec.length == 0 || spec.length > (u32::MAX >> 1) as usize {
            let most = u32::MAX >> 1;
            return Err(Error::config(format!("sequence_length: expected 1 to {most}, got {}", spec.length)));
        }
        if !(low..=high).contains(&spec.pad) {
            return Err(Error::config(format!("pad: expected {low} to {high}, got {}", spec.pad)));
        }
        if spec.vocab_size == Some(0) {
            return Err(Error::config("vocab_size: expected at least 1, got 0"));
        }
        let (low, high) = match spec.vocab_size {
            Some(size) => (0, high.min(i64::try_from(size - 1).unwrap_or(i64::MAX))),
            None if spec.source == Element::U64 => (0, high),
            None => (low, high),
        };
        let is_checked = least < low || most > high || spec.source == Element::U64;
        let dense = |element| Dense { shape: vec![spec.length], element, order: Order::default() };
        let mut layouts = vec![dense(spec.element)];
        layouts.extend(spec.has_targets.then(|| dense(Element::I64)));
        Ok(Self { spec, bounds: is_checked.then_some((low, high)), layouts })
    }

    /// The most tokens that are read for a plain window.
    fn most(&self) -> usize {
        self.spec.length + usize::from(self.spec.has_targets)
    }

    /// Refuses bytes that hold no tokens, and tokens that are out of bounds.
    fn check(&self, bytes: &[u8]) -> Result<usize> {
        let item = self.spec.source.size_bytes();
        if !bytes.len().is_multiple_of(item) {
            let (name, got) = (self.spec.source.name(), bytes.len());
            return Err(Error::new(Kind::Corrupt, format!("has {got} bytes where tokens of {name} are expected")));
        }
        if let Some((low, high)) = self.bounds
            && let Some((at, token)) = outside(self.spec.source, bytes, low, high)
        {
            let message = match self.spec.vocab_size {
                Some(size) => format!("has the token {token} at byte {at} of its piece (expected one below {size})"),
                None => format!("has the token {token} at byte {at} of its piece (expected {low} to {high})"),
            };
            let hint = "if its tokens are good, they are of another `dtype`, or of a larger `vocab_size`";
            return Err(Error::new(Kind::Corrupt, message).with_hint(hint));
        }
        Ok(bytes.len() / item)
    }

    /// Writes a window without documents: its tokens, and the ones that follow each of them.
    fn place(&self, fields: &[&[u8]], slots: &mut [&mut [u8]]) -> Result<()> {
        let (item, length) = (self.spec.source.size_bytes(), self.spec.length);
        let [tokens, targets @ ..] = slots else {
            return Err(Error::internal("a sample of tokens has no place"));
        };
        let width = self.spec.element.size_bytes();
        let mut have = 0;
        for (field, bytes) in (0..).map(Field).zip(fields) {
            let count = self.check(bytes).map_err(|error| error.at_field(field))?;
            if have + count > self.most() {
                let (most, got) = (self.most(), have + count);
                return Err(Error::internal(format!("a window of at most {most} tokens was given {got}")));
            }
            let own = count.min(length.saturating_sub(have));
            widen(self.spec.source, &bytes[..own * item], self.spec.element, &mut tokens[have.min(length) * width..]);
            for targets in &mut *targets {
                // The first token of all is no target.
                let skipped = usize::from(have == 0).min(count);
                let start = (have + skipped).saturating_sub(1);
                widen(self.spec.source, &bytes[skipped * item..], Element::I64, &mut targets[start * 8..]);
            }
            have += count;
        }
        fill(&mut tokens[have.min(length) * width..], self.spec.element, self.spec.pad);
        for targets in targets {
            fill(&mut targets[have.saturating_sub(1) * 8..], Element::I64, NO_TARGET);
        }
        Ok(())
    }

    /// A window without documents as values.
    fn plain(&self, fields: &[&[u8]]) -> Result<Value> {
        let mut columns = Vec::with_capacity(self.layouts.len());
        for layout in &self.layouts {
            let mut bytes = Vec::new();
            resize(&mut bytes, layout.size_bytes(), 0, "its tokens")?;
            columns.push(bytes);
        }
        let mut slots: Vec<&mut [u8]> = columns.iter_mut().map(Vec::as_mut_slice).collect();
        self.place(fields, &mut slots)?;
        let arrays = columns.into_iter().zip(&self.layouts);
        let arrays = arrays
            .map(|(bytes, layout)| Value::Array(Array { shape: layout.shape.clone(), element: layout.element, bytes }));
        Ok(row(arrays.collect()))
    }

    /// A sample of segments: the tokens of one lie behind those of another, each followed by its next one if it continues.
    fn segmented(&self, fields: &[&[u8]], segments: impl Iterator<Item = Segment>) -> Result<Value> {
        let mut all = Vec::new();
        for (field, bytes) in (0..).map(Field).zip(fields) {
            let count = self.check(bytes).map_err(|error| error.at_field(field))?;
            let have = all.len();
            resize(&mut all, have + count * 8, 0, "its tokens")?;
            widen(self.spec.source, bytes, Element::I64, &mut all[have..]);
        }
        let all = all.as_chunks::<8>().0.iter().map(|token| i64::from_ne_bytes(*token)).collect::<Vec<_>>();
        let length = self.spec.length;
        let (mut tokens, mut targets) = (room(length)?, room(length)?);
        let (mut positions, mut is_counted, mut ends) = (room(length)?, Vec::with_capacity(length), vec![0i32]);
        let mut rest = &all[..];
        for segment in segments {
            let count = segment.tokens as usize;
            let read = count + usize::from(segment.continues);
            if read > rest.len() || tokens.len() + count > length {
                let (got, have) = (rest.len(), tokens.len());
                return Err(Error::internal(format!(
                    "an outline of {count} tokens behind {have} of {length} got {got}"
                )));
            }
            tokens.extend_from_slice(&rest[..count]);
            targets.extend(rest.iter().skip(1).take(read.saturating_sub(1)));
            targets.resize(tokens.len(), NO_TARGET);
            positions.extend(0..count as i64);
            ends.push(tokens.len() as i32);
            rest = &rest[read..];
        }
        let padding = length - tokens.len();
        is_counted.extend(targets.iter().map(|target| u8::from(!self.spec.has_targets || *target != NO_TARGET)));
        tokens.resize(length, self.spec.pad);
        targets.resize(length, NO_TARGET);
        positions.extend(0..padding as i64);
        is_counted.resize(length, 0);
        if padding > 0 {
            ends.push(length as i32);
        }
        let array = |element, values: &[i64]| {
            let mut bytes = Vec::new();
            resize(&mut bytes, values.len() * element_bytes(element), 0, "its tokens")?;
            let source: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            widen(Element::I64, &source, element, &mut bytes);
            Ok::<_, Error>(Value::Array(Array { shape: vec![values.len()], element, bytes }))
        };
        let mut columns = vec![array(self.spec.element, &tokens)?];
        if self.spec.has_targets {
            columns.push(array(Element::I64, &targets)?);
        }
        columns.push(array(Element::I64, &positions)?);
        if self.spec.has_loss_mask {
            columns.push(Value::Array(Array { shape: vec![length], element: Element::Bool, bytes: is_counted }));
        }
        let bytes = ends.iter().flat_map(|end| end.to_ne_bytes()).collect();
        columns.push(Value::Array(Array { shape: vec![ends.len()], element: Element::I32, bytes }));
        Ok(Value::Row(columns))
    }

    /// The segments of a window in which a token ends documents.
    fn found(&self, fields: &[&[u8]], end: i64) -> Vec<Segment> {
        let item = self.spec.source.size_bytes();
        let tokens =
            fields.iter().flat_map(|bytes| bytes.chunks_exact(item)).map(|token| value(self.spec.source, token));
        let (mut segments, mut count, mut have) = (Vec::new(), 0, 0);
        for token in tokens {
            if have == self.spec.length {
                if count > 0 {
                    segments.push(Segment { tokens: count, continues: true });
                }
                return segments;
            }
            (count, have) = (count + 1, have + 1);
            if token == end {
                segments.push(Segment { tokens: count, continues: false });
                count = 0;
            }
        }
        if count > 0 {
            segments.push(Segment { tokens: count, continues: false });
        }
        segments
    }

    fn value_of(&self, fields: &[&[u8]]) -> Result<Value> {
        match self.spec.documents {
            DocumentRule::None => self.plain(fields),
            DocumentRule::EndedBy(end) => self.segmented(fields, self.found(fields, end).into_iter()),
            DocumentRule::Outlined => {
                let Some((outline, pieces)) = fields.split_last() else {
                    return Err(Error::internal("a sample of documents has no outline"));
                };
                self.segmented(pieces, Segment::read(outline))
            }
        }
    }

    fn memory_for(&self, size_bytes: u64) -> u64 {
        // Widened, and of documents each column once as numbers and once as bytes.
        let columns = if self.spec.documents == DocumentRule::None { 2 } else { 10 };
        size_bytes.saturating_mul(4).saturating_add(columns * 8 * self.spec.length as u64)
    }
}

impl Recipe for TokensRecipe {
    fn schema(&self) -> Vec<ColumnSpec> {
        let dense = |layout: &Dense| ColumnKind::Dense(layout.clone());
        let of = |element| ColumnKind::Dense(Dense { element, ..self.layouts[0].clone() });
        let mut columns = vec![ColumnSpec::new("tokens", dense(&self.layouts[0]))];
        columns.extend(self.layouts.get(1).map(|layout| ColumnSpec::new("targets", dense(layout))));
        if self.spec.documents != DocumentRule::None {
            columns.push(ColumnSpec::new("position_ids", of(Element::I64)));
            columns.extend(self.spec.has_loss_mask.then(|| ColumnSpec::new("loss_mask", of(Element::Bool))));
            columns.push(ColumnSpec::new("cu_seqlens", ColumnKind::Arrays));
        }
        columns
    }

    fn layout(&self) -> Option<&Dense> {
        self.layouts.first().filter(|_| self.spec.documents == DocumentRule::None)
    }

    fn more_layouts(&self) -> &[Dense] {
        if self.spec.documents == DocumentRule::None { &self.layouts[1..] } else { &[] }
    }

    fn memory_bytes(&self, fields: Fields<'_>, _scratch: &mut Scratch) -> Result<u64> {
        Ok(self.memory_for(fields.0.iter().map(|bytes| bytes.len() as u64).sum()))
    }

    fn light(&self) -> Option<&dyn LightRecipe> {
        (self.spec.documents != DocumentRule::Outlined).then_some(self)
    }

    fn make(&self, sample: Sample<'_>) -> Result<Made> {
        self.make_columns(sample, &mut [])
    }

    fn make_columns(&self, sample: Sample<'_>, more: &mut [&mut [u8]]) -> Result<Made> {
        let started = Instant::now();
        let value = match sample.slot {
            Some(slot) if 1 + more.len() == self.layouts.len() => {
                let mut slots: Vec<&mut [u8]> =
                    std::iter::once(slot).chain(more.iter_mut().map(|slot| &mut **slot)).collect();
                self.place(sample.fields.0, &mut slots)?;
                None
            }
            _ => Some(self.value_of(sample.fields.0)?),
        };
        Ok((value, Timing { decode: started.elapsed(), ..Timing::default() }))
    }
}

impl LightRecipe for TokensRecipe {
    fn memory_bytes(&self, size_bytes: u64) -> u64 {
        self.memory_for(size_bytes)
    }

    fn make(&self, bytes: &[u8]) -> Result<Value> {
        self.value_of(&[bytes])
    }

    fn place(&self, bytes: &[u8], slots: &mut [&mut [u8]]) -> Result<()> {
        Self::place(self, &[bytes], slots)
    }
}

/// The values of several columns, or the one.
fn row(mut values: Vec<Value>) -> Value {
    if values.len() == 1 { values.swap_remove(0) } else { Value::Row(values) }
}

fn room<T>(count: usize) -> Result<Vec<T>> {
    let mut values = Vec::new();
    reserve(&mut values, count, "its tokens")?;
    Ok(values)
}

const fn element_bytes(element: Element) -> usize {
    element.size_bytes()
}

/// The lowest and highest whole number of a type, as far as 64 bits with a sign go; `None` for other types.
fn bounds_of(element: Element) -> Option<(i64, i64)> {
    Some(match element {
        Element::U8 => (0, u8::MAX.into()),
        Element::I8 => (i8::MIN.into(), i8::MAX.into()),
        Element::U16 => (0, u16::MAX.into()),
        Element::I16 => (i16::MIN.into(), i16::MAX.into()),
        Element::U32 => (0, u32::MAX.into()),
        Element::I32 => (i32::MIN.into(), i32::MAX.into()),
        Element::U64 => (0, i64::MAX),
        Element::I64 => (i64::MIN, i64::MAX),
        _ => return None,
    })
}

/// Calls one of several functions with a conversion from little-endian bytes of a type to 64 bits.
macro_rules! with_source {
    ($source:expr, $then:ident, $($more:expr),*) => {
        match $source {
            Element::U8 => $then($($more,)* |[byte]: [u8; 1]| i64::from(byte)),
            Element::I8 => $then($($more,)* |bytes| i64::from(i8::from_le_bytes(bytes))),
            Element::U16 => $then($($more,)* |bytes| i64::from(u16::from_le_bytes(bytes))),
            Element::I16 => $then($($more,)* |bytes| i64::from(i16::from_le_bytes(bytes))),
            Element::U32 => $then($($more,)* |bytes| i64::from(u32::from_le_bytes(bytes))),
            Element::I32 => $then($($more,)* |bytes| i64::from(i32::from_le_bytes(bytes))),
            // From 2^63 on it becomes negative, which is out of bounds.
            _ => $then($($more,)* i64::from_le_bytes),
        }
    };
}

/// Writes as many tokens as there are, in another type. Those that do not fit it were refused before.
fn widen(source: Element, bytes: &[u8], element: Element, target: &mut [u8]) {
    match element {
        Element::U16 => with_source!(source, convert, bytes, target, |token| (token as u16).to_ne_bytes()),
        Element::I32 => with_source!(source, convert, bytes, target, |token| (token as i32).to_ne_bytes()),
        _ => with_source!(source, convert, bytes, target, |token| token.to_ne_bytes()),
    }
}

fn convert<const FROM: usize, const TO: usize>(
    bytes: &[u8],
    target: &mut [u8],
    write: impl Fn(i64) -> [u8; TO],
    read: impl Fn([u8; FROM]) -> i64,
) {
    for (token, place) in bytes.as_chunks::<FROM>().0.iter().zip(target.as_chunks_mut::<TO>().0) {
        *place = write(read(*token));
    }
}

fn fill(target: &mut [u8], element: Element, value: i64) {
    match element {
        Element::U16 => target.as_chunks_mut().0.fill((value as u16).to_ne_bytes()),
        Element::I32 => target.as_chunks_mut().0.fill((value as i32).to_ne_bytes()),
        _ => target.as_chunks_mut().0.fill(value.to_ne_bytes()),
    }
}

/// The first token that is not between these, and at which byte.
fn outside(source: Element, bytes: &[u8], low: i64, high: i64) -> Option<(usize, i64)> {
    with_source!(source, first_outside, bytes, low, high)
}

fn first_outside<const FROM: usize>(
    bytes: &[u8],
    low: i64,
    high: i64,
    read: impl Fn([u8; FROM]) -> i64,
) -> Option<(usize, i64)> {
    let tokens = bytes.as_chunks::<FROM>().0;
    let is_good = |token: i64| (token >= low) & (token <= high);
    // All of them without a branch first: nearly always they are good.
    if tokens.iter().fold(true, |good, token| good & is_good(read(*token))) {
        return None;
    }
    let at = tokens.iter().position(|token| !is_good(read(*token)))?;
    Some((at * FROM, read(tokens[at])))
}

/// One token.
fn value(source: Element, bytes: &[u8]) -> i64 {
    let mut token = [0; 8];
    widen(source, bytes, Element::I64, &mut token);
    i64::from_ne_bytes(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: TokenSpec = TokenSpec {
        source: Element::U16,
        element: Element::I64,
        length: 4,
        has_targets: true,
        documents: DocumentRule::None,
        has_loss_mask: false,
        pad: 0,
        vocab_size: None,
    };

    fn bytes(tokens: &[u16]) -> Vec<u8> {
        tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
    }

    /// The numbers of a column.
    fn numbers(value: &Value) -> Vec<i64> {
        let Value::Array(Array { element, bytes, .. }) = value else { panic!("expected an array, got {value:?}") };
        match element {
            Element::Bool => bytes.iter().map(|byte| i64::from(*byte)).collect(),
            _ => bytes.chunks(element.size_bytes()).map(|token| super::value(*element, token)).collect(),
        }
    }

    fn columns(spec: TokenSpec, fields: &[&[u8]]) -> Result<Vec<Vec<i64>>> {
        Ok(match TokensRecipe::new(spec).unwrap().value_of(fields)? {
            Value::Row(values) => values.iter().map(numbers).collect(),
            single => vec![numbers(&single)],
        })
    }

    #[test]
    fn windows_of_any_pieces_are_widened_in_place() {
        let all = bytes(&[1, 2, 3, 4, 65_535]);
        for cut in 0..=5 {
            let (one, two) = all.split_at(2 * cut);
            assert_eq!(columns(SPEC, &[one, two]).unwrap(), [[1, 2, 3, 4], [2, 3, 4, 65_535]], "{cut}");
            assert_eq!(columns(SPEC, &[one, &[], two]).unwrap(), [[1, 2, 3, 4], [2, 3, 4, 65_535]], "{cut}");
        }
        let alone = TokenSpec { has_targets: false, ..SPEC };
        assert_eq!(columns(alone, &[&all[..8]]).unwrap(), [[1, 2, 3, 4]]);
        for element in [Element::I32, Element::U16] {
            let spec = TokenSpec { element, ..SPEC };
            assert_eq!(columns(spec, &[&all[..6]]).unwrap(), [[1, 2, 3, 0], [2, 3, -100, -100]]);
        }
        assert_eq!(columns(TokenSpec { pad: 9, ..SPEC }, &[&all[..2]]).unwrap(), [[1, 9, 9, 9], [-100; 4]]);
        assert_eq!(columns(SPEC, &[&[0; 12]]).unwrap_err().kind(), Kind::Internal);
    }

    #[test]
    fn every_type_is_read() {
        for source in Element::ALL {
            let Some((low, high)) = bounds_of(source) else {
                assert!(TokensRecipe::new(TokenSpec { source, ..SPEC }).is_err());
                continue;
            };
            let mut tokens = low.to_le_bytes()[..source.size_bytes()].to_vec();
            tokens.extend(&high.to_le_bytes()[..source.size_bytes()]);
            let spec = TokenSpec { source, length: 2, has_targets: false, ..SPEC };
            assert_eq!(columns(spec, &[&tokens]).unwrap(), [[low, high]], "{source:?}");
        }
        let spec = TokenSpec { source: Element::U64, length: 1, has_targets: false, ..SPEC };
        assert_eq!(columns(spec, &[&[255; 8]]).unwrap_err().kind(), Kind::Corrupt);
    }

    #[test]
    fn tokens_out_of_bounds_are_damage_and_have_a_place() {
        let spec = TokenSpec { vocab_size: Some(10), ..SPEC };
        assert!(columns(spec, &[&bytes(&[9; 5])]).is_ok());
        let error = columns(spec, &[&bytes(&[1, 2]), &bytes(&[3, 10, 11])]).unwrap_err();
        assert_eq!((error.kind(), error.field()), (Kind::Corrupt, Field(1)));
        assert_eq!(error.message(), "has the token 10 at byte 2 of its piece (expected one below 10)");
        let narrow = TokenSpec { source: Element::I32, element: Element::U16, ..SPEC };
        let error = columns(narrow, &[&(-1i32).to_le_bytes()]).unwrap_err();
        assert_eq!(error.message(), "has the token -1 at byte 0 of its piece (expected 0 to 65535)");
        assert_eq!(columns(SPEC, &[&[0; 3]]).unwrap_err().kind(), Kind::Corrupt);
        for wrong in [
            TokenSpec { element: Element::U32, ..SPEC },
            TokenSpec { element: Element::F32, ..SPEC },
            TokenSpec { length: 0, ..SPEC },
            TokenSpec { vocab_size: Some(0), ..SPEC },
            TokenSpec { element: Element::U16, pad: -1, ..SPEC },
        ] {
            assert_eq!(TokensRecipe::new(wrong).unwrap_err().kind(), Kind::Config, "{wrong:?}");
        }
    }

    #[test]
    fn documents_end_at_a_token() {
        let spec = TokenSpec { documents: DocumentRule::EndedBy(7), ..SPEC };
        for (tokens, expected) in [
            (&[1, 7, 2, 3, 4][..], [vec![1, 7, 2, 3], vec![7, -100, 3, 4], vec![0, 1, 0, 1], vec![0, 2, 4]]),
            (&[1, 2, 3, 7, 4], [vec![1, 2, 3, 7], vec![2, 3, 7, -100], vec![0, 1, 2, 3], vec![0, 4]]),
            (&[7, 7, 3, 4, 7], [vec![7, 7, 3, 4], vec![-100, -100, 4, 7], vec![0, 0, 0, 1], vec![0, 1, 2, 4]]),
            (&[1, 2], [vec![1, 2, 0, 0], vec![2, -100, -100, -100], vec![0, 1, 0, 1], vec![0, 2, 4]]),
        ] {
            assert_eq!(columns(spec, &[&bytes(tokens)]).unwrap(), expected, "{tokens:?}");
        }
    }

    #[test]
    fn packed_pieces_are_followed_by_their_next_token_where_they_go_on() {
        let spec = TokenSpec { length: 6, documents: DocumentRule::Outlined, has_loss_mask: true, ..SPEC };
        let segments = [Segment { tokens: 2, continues: true }, Segment { tokens: 3, continues: false }];
        let outline = Segment::write(segments.into_iter());
        let fields = [&bytes(&[1, 2, 3])[..], &bytes(&[8, 9, 10]), &outline];
        let expected = [
            vec![1, 2, 8, 9, 10, 0],
            vec![2, 3, 9, 10, -100, -100],
            vec![0, 1, 0, 1, 2, 0],
            vec![1, 1, 1, 1, 0, 0],
            vec![0, 2, 5, 6],
        ];
        assert_eq!(columns(spec, &fields).unwrap(), expected);
        let without = TokenSpec { has_targets: false, ..spec };
        assert_eq!(columns(without, &fields).unwrap()[2], [1, 1, 1, 1, 1, 0]);
        assert_eq!(columns(spec, &[&fields[0][..4], fields[2]]).unwrap_err().kind(), Kind::Internal);
        assert_eq!(columns(spec, &[]).unwrap_err().kind(), Kind::Internal);
    }

    #[test]
    fn the_schema_is_what_is_made() {
        for documents in [DocumentRule::None, DocumentRule::EndedBy(1)] {
            for has_targets in [false, true] {
                for has_loss_mask in [false, documents != DocumentRule::None] {
                    let spec = TokenSpec { documents, has_targets, has_loss_mask, ..SPEC };
                    let count = columns(spec, &[&bytes(&[1, 2, 3, 4])]).unwrap().len();
                    let recipe = TokensRecipe::new(spec).unwrap();
                    assert_eq!(recipe.schema().len(), count, "{spec:?}");
                    let in_place = crate::layouts(&recipe).len();
                    assert!(in_place == count || (in_place == 0 && documents != DocumentRule::None), "{spec:?}");
                }
            }
        }
    }
}
