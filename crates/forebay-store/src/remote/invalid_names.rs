//! Removes names that paths cannot represent from a page of a listing: `..`, empty components, control characters. The
//! client rejects a whole page because of one of them; here they are removed and recorded.

use object_store::path::Path as Key;
use quick_xml::Reader;
use quick_xml::escape::unescape;
use quick_xml::events::Event;

/// XML element of an object or a common prefix, and of the name in it: for S3 and Google, and for Azure.
const ENTRIES: [(&[u8], &[u8]); 4] =
    [(b"Contents", b"Key"), (b"CommonPrefixes", b"Prefix"), (b"Blob", b"Name"), (b"BlobPrefix", b"Name")];

/// The entry that is being parsed: where it began, its kind, and its name.
type Open<'a> = (usize, &'a (&'a [u8], &'a [u8]), Option<String>);

/// A page without the entries whose names cannot be requested, and those names; `None` if the page is malformed.
pub(super) fn remove_invalid(page: &[u8]) -> Option<(Vec<u8>, Vec<String>)> {
    let (mut kept, mut invalid) = (Vec::with_capacity(page.len()), Vec::new());
    let mut reader = Reader::from_reader(page);
    // The page has been copied up to here.
    let mut copied = 0;
    let mut entry: Option<Open<'_>> = None;
    loop {
        let before = usize::try_from(reader.buffer_position()).ok()?;
        match reader.read_event().ok()? {
            Event::Start(start) => match &mut entry {
                None => {
                    let kind = ENTRIES.iter().find(|(element, _)| start.local_name().as_ref() == *element);
                    entry = kind.map(|kind| (before, kind, None));
                }
                // Metadata after the name may contain elements of any name.
                Some((_, (_, element), name @ None)) if start.local_name().as_ref() == *element => {
                    let text = reader.read_text(start.name()).ok()?.decode().ok()?.into_owned();
                    *name = Some(unescape(&text).map_or_else(|_| text.clone(), |name| name.into_owned()));
                }
                Some(_) => {}
            },
            Event::End(end) => {
                let is_its = |(_, (element, _), _): &Open<'_>| end.local_name().as_ref() == *element;
                if entry.as_ref().is_some_and(is_its)
                    && let Some((begin, _, name)) = entry.take()
                    && let Some(name) = name.filter(|name| is_invalid(name))
                {
                    kept.extend_from_slice(&page[copied..begin]);
                    copied = usize::try_from(reader.buffer_position()).ok()?;
                    invalid.push(name);
                }
            }
            Event::Eof => break,
            _ => {}
        }
    }
    kept.extend_from_slice(&page[copied..]);
    Some((kept, invalid))
}

/// Whether the client rejects this name. It would turn one with a leading slash into another name.
fn is_invalid(name: &str) -> bool {
    name.starts_with('/') || Key::parse(name).is_err()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filtered(page: &str) -> (String, Vec<String>) {
        let (kept, invalid) = remove_invalid(page.as_bytes()).unwrap();
        (String::from_utf8(kept).unwrap(), invalid)
    }

    #[test]
    fn only_what_cannot_be_asked_for_is_taken_out() {
        let object =
            |key: &str| format!("<Contents><Key>{key}</Key><Size>1</Size><Owner><ID>x</ID></Owner></Contents>");
        let prefix = |prefix: &str| format!("<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
        let page = |entries: &[String]| {
            let entries = entries.concat();
            format!(
                "<?xml version=\"1.0\"?>\n<ListBucketResult xmlns=\"x\"><Name>..</Name><Prefix>t/../</Prefix>{entries}\
                 <IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken></ListBucketResult>"
            )
        };
        let good = [object("t/1.jpg"), object("t/a&amp;b &#252;.jpg"), object("t/..x"), prefix("t/deep/")];
        assert_eq!(filtered(&page(&good)), (page(&good), vec![]));
        let invalid =
            [object("t/.."), object("t/&#x1;.jpg"), object("t//a&lt;"), prefix("t/../"), prefix("/"), object("/x")];
        let mut mixed = Vec::new();
        good.iter().zip(&invalid).for_each(|(good, invalid)| mixed.extend([invalid.clone(), good.clone()]));
        mixed.extend_from_slice(&invalid[4..]);
        let (kept, names) = filtered(&page(&mixed));
        assert_eq!(kept, page(&good));
        assert_eq!(names, ["t/..", "t/\u{1}.jpg", "t//a<", "t/../", "/", "/x"]);
    }

    #[test]
    fn pages_of_azure_are_sifted_too() {
        let blob = |name: &str| format!("<Blob><Name>{name}</Name><Metadata><Name>..</Name></Metadata></Blob>");
        let page = |blobs: &str| {
            format!("<EnumerationResults><Prefix>t/</Prefix><Blobs>{blobs}</Blobs><NextMarker /></EnumerationResults>")
        };
        let (good, prefix) = (blob("t/1.jpg"), "<BlobPrefix><Name>t/deep/</Name></BlobPrefix>");
        let mixed = format!("{}{good}<BlobPrefix><Name>t//</Name></BlobPrefix>{prefix}", blob("t/."));
        let expected = (page(&format!("{good}{prefix}")), vec!["t/.".to_owned(), "t//".to_owned()]);
        assert_eq!(filtered(&page(&mixed)), expected);
    }

    #[test]
    fn what_is_no_page_is_left_to_the_client() {
        assert_eq!(remove_invalid(b"<Contents><Key>a</Contents>"), None);
        assert_eq!(filtered("not XML at all"), ("not XML at all".to_owned(), vec![]));
    }
}
