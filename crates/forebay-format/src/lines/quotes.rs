//! Which line ends of CSV are inside of quotes.

/// Where in a record of CSV the next byte is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Quoting {
    /// Not in quotes.
    #[default]
    Outside,
    /// In quotes, which may have line breaks.
    Inside,
    /// Behind a quote inside of quotes: another one makes it a character, everything else ends the quotes.
    Behind,
}

/// What happens inside of a record.
pub(super) enum Event {
    /// Quotes begin.
    Open,
    /// A line end in quotes, at this place.
    Break(usize),
}

/// Why a search ended.
pub(super) enum Found {
    /// A line end outside of quotes, at this place.
    LineEnd(usize),
    /// At this place, something behind a closing quote that has no business there: the quotes may be other ones.
    Misquoted(usize),
}

/// The first line end outside of quotes, or the first trouble with quotes, whichever comes first.
///
/// `before` is the byte before that place, `None` at the beginning of a record: quotes begin where a field does, and are characters
/// anywhere else. `on_event` is told of quotes that open and of line ends in them.
pub(super) fn find_line_end(
    bytes: &[u8],
    state: &mut Quoting,
    before: &mut Option<u8>,
    delimiter: u8,
    mut on_event: impl FnMut(Event),
) -> Option<Found> {
    let mut at = 0;
    while at < bytes.len() {
        match *state {
            Quoting::Outside => {
                let Some(found) = memchr::memchr2(b'\n', b'"', &bytes[at..]).map(|found| at + found) else { break };
                let previous = if found == 0 { *before } else { Some(bytes[found - 1]) };
                at = found + 1;
                match bytes[found] {
                    b'\n' => {
                        (*state, *before) = (Quoting::Outside, None);
                        return Some(Found::LineEnd(found));
                    }
                    _ if previous.is_none_or(|byte| byte == delimiter) => {
                        *state = Quoting::Inside;
                        on_event(Event::Open);
                    }
                    _ => {}
                }
            }
            Quoting::Inside => {
                let Some(found) = memchr::memchr2(b'\n', b'"', &bytes[at..]).map(|found| at + found) else { break };
                at = found + 1;
                match bytes[found] {
                    b'\n' => on_event(Event::Break(found)),
                    _ => *state = Quoting::Behind,
                }
            }
            Quoting::Behind => match bytes[at] {
                b'"' => {
                    at += 1;
                    *state = Quoting::Inside;
                }
                byte if byte == delimiter || matches!(byte, b'\r' | b'\n') => *state = Quoting::Outside,
                _ => {
                    (*state, *before) = (Quoting::Outside, Some(b'"'));
                    return Some(Found::Misquoted(at));
                }
            },
        }
    }
    *before = bytes.last().copied().or(*before);
    None
}
