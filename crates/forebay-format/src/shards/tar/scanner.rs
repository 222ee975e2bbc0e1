//! Finds the samples of an archive, from its bytes as they come.

use forebay_core::{Error, Result};

use super::header::{self, BLOCK_BYTES, Block, Found, Header, Kind, Pax};
use super::members::{Members, OpenPart};
use super::search::Search;
use super::text_of;
use crate::file_scan::FileScanner;
use crate::shards::{Lost, ShardIndex};

/// What says more about a member than its header can is refused beyond this.
const MAX_MORE_BYTES: u64 = 1 << 20;
/// So many zeros behind a file say that nothing is missing in it. A header has fewer of them in a row: what is left of one could
/// pass for padding.
const SURE_PADDING_BYTES: u64 = 256;
/// How much of an archive may be looked at again because of damage, beside all of it once.
const MORE_AGAIN_BYTES: u64 = 16 << 20;

/// Finds the samples of a tar archive, hashes each of their fields, and finds its way again behind damage.
///
/// ```
/// use forebay_format::{FileScanner, TarScanner};
///
/// # fn archive() -> Vec<u8> { vec![0; 10_240] }
/// let archive: Vec<u8> = archive();
/// let mut scanner = TarScanner::new(archive.len() as u64);
/// while let Some(position) = scanner.position() {
///     scanner.feed(&archive[position as usize..])?;
/// }
/// assert!(scanner.finish()?.is_empty());
/// # Ok::<(), forebay_core::Error>(())
/// ```
#[derive(Debug)]
pub struct TarScanner {
    size_bytes: u64,
    position: u64,
    state: State,
    members: Members,
    /// What was said of the next member.
    next: Next,
    /// What was said of all that follow.
    global: Pax,
    previous: Option<Previous>,
    again_bytes: u64,
    /// Whether headers have no magic bytes: as the first one.
    is_old: Option<bool>,
    notes: Vec<String>,
}

#[derive(Debug)]
enum State {
    /// At a header, of which these bytes were seen.
    Header(Vec<u8>),
    /// At a block that says more about the sparse file of this header.
    Map {
        header_at: u64,
        header: Header,
        block: Vec<u8>,
    },
    Content(Content),
    Damage(Damage),
    /// Nothing more is looked at.
    End,
}

/// The content of a member.
#[derive(Debug)]
struct Content {
    header_at: u64,
    start: u64,
    size: u64,
    left: u64,
    padding_left: u64,
    zeros: u64,
    /// Whether other bytes than zeros are in its padding.
    is_dirty: bool,
    last_byte: u8,
    name: Vec<u8>,
    target: Target,
}

#[derive(Debug)]
enum Target {
    Part(OpenPart),
    More(Kind, Vec<u8>),
    Nothing,
}

/// What stands before a member and is about it.
#[derive(Debug, Default)]
struct Next {
    /// Where the first of it begins.
    at: Option<u64>,
    name: Option<Vec<u8>>,
    pax: Pax,
    /// Why it cannot be read, and with it the member.
    damaged: Option<&'static str>,
}

/// The file before.
#[derive(Debug)]
struct Previous {
    header_at: u64,
    start: u64,
    name: Vec<u8>,
    /// Whether the bytes behind it say that it is whole.
    is_sure: bool,
    /// Whether bytes may be missing in it or too many if it is the last one: its last byte is zero, as those behind it are, or
    /// the padding is not.
    is_doubtful: bool,
}

/// A search for the next header.
#[derive(Debug)]
struct Damage {
    search: Search,
    /// Where the first lost byte is.
    from: u64,
    why: &'static str,
    names: Vec<String>,
    /// The file before, if it may be the one that is damaged.
    suspect: Option<Previous>,
    /// Whether it is a search behind the end of the archive.
    is_end: bool,
}

/// What became of bytes.
enum Step {
    Taken(usize),
    Jump(u64),
}

impl FileScanner for TarScanner {
    type Index = ShardIndex;

    const EXPECTED: &'static str = "a plain tar archive";

    fn position(&self) -> Option<u64> {
        let is_done = matches!(self.state, State::End) || self.position >= self.size_bytes;
        (!is_done).then_some(self.position)
    }

    fn feed(&mut self, bytes: &[u8]) -> Result<()> {
        let left = usize::try_from(self.size_bytes - self.position).unwrap_or(usize::MAX);
        let mut rest = &bytes[..bytes.len().min(left)];
        while !rest.is_empty() && !matches!(self.state, State::End) {
            match self.step(rest)? {
                Step::Taken(count) => {
                    self.position += count as u64;
                    rest = &rest[count..];
                }
                Step::Jump(position) => {
                    self.position = position;
                    return Ok(());
                }
            }
            self.close_content()?;
        }
        if self.position == self.size_bytes { self.end() } else { Ok(()) }
    }

    fn finish(self) -> Result<ShardIndex> {
        if let Some(position) = self.position() {
            return Err(Error::internal(format!("an index of an archive that ends at byte {position}")));
        }
        self.members.finish(self.notes)
    }
}

impl TarScanner {
    /// For an archive of this size.
    pub fn new(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            position: 0,
            state: State::Header(Vec::new()),
            members: Members::new(),
            next: Next::default(),
            global: Pax::default(),
            previous: None,
            again_bytes: size_bytes.saturating_add(MORE_AGAIN_BYTES),
            is_old: None,
            notes: Vec::new(),
        }
    }

    fn step(&mut self, bytes: &[u8]) -> Result<Step> {
        match &mut self.state {
            State::Header(seen) => {
                let (count, block) = fill(seen, bytes);
                let at = self.position + count as u64 - BLOCK_BYTES.min(seen.len()) as u64;
                match block {
                    Some(block) => Ok(self.read_header(at, &block)?.unwrap_or(Step::Taken(count))),
                    None => Ok(Step::Taken(count)),
                }
            }
            State::Map { header_at, header, block: seen } => {
                let (count, block) = fill(seen, bytes);
                if let Some(block) = block {
                    seen.clear();
                    if block[504] != 1 {
                        let (header_at, header) = (*header_at, header.clone());
                        self.begin(header_at, self.position + count as u64, header)?;
                    }
                }
                Ok(Step::Taken(count))
            }
            State::Content(content) => Ok(Step::Taken(content.take(bytes))),
            State::Damage(damage) => {
                let Some((at, block)) = damage.search.feed(bytes) else { return Ok(Step::Taken(bytes.len())) };
                let behind = at + BLOCK_BYTES as u64;
                let taken = (behind - self.position) as usize;
                self.end_damage(at, true)?;
                Ok(self.read_header(at, &block)?.unwrap_or(Step::Taken(taken)))
            }
            State::End => Ok(Step::Taken(bytes.len())),
        }
    }

    /// Goes on behind a block in which a header should be. Its bytes were not counted yet.
    fn read_header(&mut self, at: u64, block: &Block) -> Result<Option<Step>> {
        let is_old = !header::has_magic(block);
        match header::read(block) {
            Found::Header(_) if is_old && self.is_old == Some(false) => {
                return Ok(self.meet_damage(at, block, "a header of another kind than those before it"));
            }
            Found::Header(header) if header.has_map => {
                self.is_old = Some(is_old);
                self.state = State::Map { header_at: at, header, block: Vec::new() };
            }
            Found::Header(header) => {
                self.is_old = Some(is_old);
                self.begin(at, at + BLOCK_BYTES as u64, header)?;
            }
            Found::Zeros => {
                let from = std::mem::take(&mut self.next).at.unwrap_or(at);
                // Where bytes are missing in the last file, zeros have taken the place of its last ones.
                let suspect = self.previous.take().filter(|previous| previous.is_doubtful);
                self.search(block, Damage::end(from, self.search_from(at, at), suspect));
            }
            Found::Damaged(why) => return Ok(self.meet_damage(at, block, why)),
        }
        Ok(None)
    }

    /// A member begins, whose content is at `start`.
    fn begin(&mut self, header_at: u64, start: u64, header: Header) -> Result<()> {
        let Header { kind, name, size, .. } = header;
        let mut content = Content::new(header_at, start, size, name);
        match kind {
            Kind::LongName | Kind::LongLink | Kind::Extended | Kind::Global => {
                self.next.at.get_or_insert(header_at);
                match size > MAX_MORE_BYTES {
                    true => self.next.damaged = Some("the name of a member is too long"),
                    false => content.target = Target::More(kind, Vec::new()),
                }
            }
            _ => self.begin_member(kind, &mut content)?,
        }
        if content.fits(self.size_bytes) {
            self.state = State::Content(content);
            return self.close_content();
        }
        let from = std::mem::take(&mut self.next).at.unwrap_or(header_at);
        if let Target::Part(part) = &content.target {
            self.members.end_lost(part, start.min(self.size_bytes), Lost::Cut)?;
        }
        self.members.lose(from..self.size_bytes, "the archive ends in a member", &[text_of(&content.name)]);
        (self.state, self.previous) = (State::End, None);
        Ok(())
    }

    /// A member that is none of those that say more about others.
    fn begin_member(&mut self, kind: Kind, content: &mut Content) -> Result<()> {
        let Next { at, name, pax, damaged } = std::mem::take(&mut self.next);
        let pax = pax.or(&self.global);
        content.header_at = at.unwrap_or(content.header_at);
        if let Some(name) = pax.name.or(name) {
            content.name = name;
        }
        if let Some(size) = pax.size.filter(|_| matches!(kind, Kind::File | Kind::Sparse | Kind::Other)) {
            content.resize(size);
        }
        if let Some(why) = damaged {
            let end = content.end().min(self.size_bytes);
            self.members.lose(content.header_at..end, why, &[]);
            return Ok(());
        }
        let counts = self.members.counts();
        match kind {
            Kind::File | Kind::Sparse => {
                let Some(part) = self.members.begin(&content.name, content.header_at)? else { return Ok(()) };
                if kind == Kind::Sparse || pax.is_sparse {
                    self.members.end_lost(&part, content.start.min(self.size_bytes), Lost::Sparse)?;
                    let range = content.header_at..content.end().min(self.size_bytes);
                    self.members.lose(range, "a sparse file, which is not supported", &[text_of(&content.name)]);
                } else {
                    content.target = Target::Part(part);
                }
            }
            Kind::Link => counts.links += 1,
            Kind::Device | Kind::Other => counts.others += 1,
            _ => {}
        }
        Ok(())
    }

    /// A member is over once all of its content was seen.
    fn close_content(&mut self) -> Result<()> {
        let State::Content(content) = &mut self.state else { return Ok(()) };
        if content.left > 0 || content.padding_left > 0 {
            return Ok(());
        }
        let Content { header_at, start, size, zeros, is_dirty, last_byte, .. } = *content;
        let name = std::mem::take(&mut content.name);
        match std::mem::replace(&mut content.target, Target::Nothing) {
            Target::Part(part) => {
                self.members.end(&part, start..start + size)?;
                self.members.counts().padded += u64::from(is_dirty);
                let is_sure = size == 0 || (!is_dirty && zeros >= SURE_PADDING_BYTES);
                let is_doubtful = size > 0 && (is_dirty || last_byte == 0);
                self.previous = Some(Previous { header_at, start, name, is_sure, is_doubtful });
            }
            Target::More(kind, bytes) => self.read_more(kind, bytes),
            Target::Nothing => self.previous = None,
        }
        self.state = State::Header(Vec::new());
        Ok(())
    }

    /// What was said of the next member, or of all.
    fn read_more(&mut self, kind: Kind, mut bytes: Vec<u8>) {
        match kind {
            Kind::LongName => {
                bytes.truncate(bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len()));
                self.next.name = Some(bytes);
            }
            Kind::Extended | Kind::Global => match (Pax::parse(&bytes), kind) {
                (Some(pax), Kind::Extended) => self.next.pax = pax,
                (Some(pax), _) => {
                    self.global = pax.or(&self.global);
                    self.next.at = None; // it is not of the next member
                }
                (None, _) => self.next.damaged = Some("a pax header that cannot be read"),
            },
            _ => {}
        }
    }

    /// There is no header where one should be. The next one may even be in the file before, if bytes of that are missing.
    fn meet_damage(&mut self, at: u64, block: &Block, why: &'static str) -> Option<Step> {
        let from = std::mem::take(&mut self.next).at.unwrap_or(at);
        let is_in_place = header::was_header(block);
        let names: Vec<_> = name_in(block).filter(|_| is_in_place).into_iter().collect();
        let suspect = self.previous.take().filter(|_| !is_in_place);
        let mut damage = Damage { search: self.search_from(at, at), from, why, names, suspect, is_end: false };
        let behind = at + BLOCK_BYTES as u64;
        if let Some(suspect) = &damage.suspect
            && let Some(left) = self.again_bytes.checked_sub(behind - suspect.start)
        {
            self.again_bytes = left;
            let start = suspect.start;
            damage.search = self.search_from(start, at);
            self.state = State::Damage(damage);
            return Some(Step::Jump(start));
        }
        self.search(block, damage);
        None
    }

    /// Searches from a block on that is no header.
    fn search(&mut self, block: &Block, mut damage: Damage) {
        damage.search.feed(block);
        self.state = State::Damage(damage);
    }

    fn search_from(&self, from: u64, grid: u64) -> Search {
        Search::new(from, grid, self.is_old.unwrap_or(true))
    }

    /// The next header was found there, or it is the end of the archive.
    fn end_damage(&mut self, at: u64, is_found: bool) -> Result<()> {
        let State::Damage(damage) = std::mem::replace(&mut self.state, State::End) else { return Ok(()) };
        let Damage { search, mut from, why, mut names, suspect, is_end } = damage;
        // The blocks of an archive reach to its end, and zeros behind its last file may be others than its own.
        let is_short = !is_found && search.nonzero_start.is_none() && !(self.size_bytes - from).is_multiple_of(512);
        let is_lost = |suspect: &Previous| if is_end { is_short } else { !suspect.is_sure || at < from };
        if let Some(suspect) = suspect.filter(is_lost) {
            self.members.lose_last(Lost::Displaced)?;
            from = suspect.header_at;
            names.insert(0, text_of(&suspect.name));
            if is_end {
                self.members.lose(from..at, "bytes are missing before the end of the archive", &names);
                return Ok(());
            }
        }
        if !is_end {
            self.members.lose(from..at, why, &names);
        } else if let Some(start) = search.nonzero_start.filter(|start| *start < at) {
            self.members.lose(start..at, "behind what looks like the end of the archive", &[]);
        } else if is_found {
            self.notes
                .push(format!("goes on behind what looks like its end, at byte {at}: its members there are samples"));
        }
        Ok(())
    }

    /// All bytes were seen.
    fn end(&mut self) -> Result<()> {
        let mut has_end = false;
        match &self.state {
            State::Header(seen) if seen.iter().any(|byte| *byte != 0) => {
                let from = self.next.at.unwrap_or(self.size_bytes - seen.len() as u64);
                self.members.lose(from..self.size_bytes, "the archive ends in a header", &[]);
            }
            State::Header(seen) if !seen.is_empty() => {
                let suspect = self.previous.take().filter(|previous| previous.is_doubtful);
                let at = self.size_bytes - seen.len() as u64;
                self.state = State::Damage(Damage::end(at, self.search_from(at, at), suspect));
                self.end_damage(self.size_bytes, false)?;
                self.state = State::Header(Vec::new());
            }
            State::Map { header_at, .. } => {
                self.members.lose(*header_at..self.size_bytes, "the archive ends in a header", &[]);
            }
            State::Damage(damage) => {
                let (end, is_end) = (damage.search.nonzero_end.max(damage.from), damage.is_end);
                // Zeros of a whole block are the end of the archive, whatever is before them.
                has_end = is_end || self.size_bytes - end.min(self.size_bytes) >= BLOCK_BYTES as u64;
                let end = if has_end { end } else { self.size_bytes };
                self.end_damage(end, false)?;
            }
            // What is over without its padding.
            State::Content(content) if content.left == 0 => {
                if let State::Content(content) = &mut self.state {
                    content.padding_left = 0;
                }
                self.close_content()?;
            }
            _ => {}
        }
        if !has_end && self.size_bytes > 0 && !matches!(self.state, State::End) {
            self.notes.push("has no end-of-archive blocks: it may have been cut off".to_owned());
        }
        self.state = State::End;
        Ok(())
    }
}

impl Damage {
    /// Behind zeros in place of a header.
    fn end(from: u64, search: Search, suspect: Option<Previous>) -> Self {
        Self { search, from, why: "behind the end", names: Vec::new(), suspect, is_end: true }
    }
}

impl Content {
    fn new(header_at: u64, start: u64, size: u64, name: Vec<u8>) -> Self {
        let (zeros, is_dirty, last_byte, target) = (0, false, 0, Target::Nothing);
        let mut content =
            Self { header_at, start, size: 0, left: 0, padding_left: 0, zeros, is_dirty, last_byte, name, target };
        content.resize(size);
        content
    }

    fn resize(&mut self, size: u64) {
        let over = size % BLOCK_BYTES as u64;
        (self.size, self.left) = (size, size);
        self.padding_left = if over == 0 { 0 } else { BLOCK_BYTES as u64 - over };
    }

    /// Where it ends, without its padding.
    fn end(&self) -> u64 {
        self.start.saturating_add(self.size)
    }

    fn fits(&self, size_bytes: u64) -> bool {
        self.start.checked_add(self.size).is_some_and(|end| end <= size_bytes)
    }

    fn take(&mut self, bytes: &[u8]) -> usize {
        let count = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
        let (own, rest) = bytes.split_at(count);
        match &mut self.target {
            Target::Part(part) => part.update(own),
            Target::More(_, kept) => kept.extend_from_slice(own),
            Target::Nothing => {}
        }
        self.left -= count as u64;
        self.last_byte = own.last().copied().unwrap_or(self.last_byte);
        if self.left > 0 {
            return count;
        }
        let padding = &rest[..rest.len().min(self.padding_left as usize)];
        self.is_dirty |= padding.iter().any(|byte| *byte != 0);
        self.zeros += padding.len() as u64;
        self.padding_left -= padding.len() as u64;
        count + padding.len()
    }
}

/// Fills a block up. Gives how many bytes that took, and the block once it is complete.
fn fill(seen: &mut Vec<u8>, bytes: &[u8]) -> (usize, Option<Block>) {
    let count = (BLOCK_BYTES - seen.len()).min(bytes.len());
    seen.extend_from_slice(&bytes[..count]);
    (count, seen.first_chunk().copied())
}

/// The name in a damaged header, if it looks like one.
fn name_in(block: &Block) -> Option<String> {
    let name = block[..100].split(|byte| *byte == 0).next().unwrap_or_default();
    let text = std::str::from_utf8(name).ok().filter(|text| !text.is_empty() && !text.contains(char::is_control))?;
    Some(format!("presumably {text}"))
}
