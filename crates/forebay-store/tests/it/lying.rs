//! Servers that lie: each lie has a verdict, and no byte that is delivered is a wrong one.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Error, Kind};
use forebay_store::{Object, Remote, Stat, Store};

use crate::remote::s3;
use crate::remote_ranges::part;
use crate::scripted::{Act, Request, content, serve, status, whole};

fn read(store: &Remote, path: &Path) -> Result<Object, Error> {
    store.read(path, Duration::from_secs(20), &mut |_| Ok(Vec::new()))
}

/// An answer with more headers.
fn with(answer: &[u8], headers: &str) -> Vec<u8> {
    let end = answer.windows(2).position(|bytes| bytes == b"\r\n").unwrap() + 2;
    [&answer[..end], headers.as_bytes(), &answer[end..]].concat()
}

/// A head and a body, whatever the one says of the other.
fn answered(line: &str, headers: &str, body: &[u8]) -> Vec<Act> {
    let date = "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT";
    vec![Act::Send([format!("HTTP/1.1 {line}\r\n{date}\r\n{headers}\r\n").as_bytes(), body].concat())]
}

#[test]
fn the_same_wrong_bytes_are_wrong_however_often_they_come() {
    for header in [
        "x-amz-checksum-crc64nvme: rosUhgp5mIg=\r\n",
        "x-amz-checksum-crc32c: 4waSgw==\r\n",
        "x-amz-checksum-crc32: y/Q5Jg==\r\n",
        "x-goog-hash: crc32c=4waSgw==\r\n",
        "Content-MD5: JfnnlDI7RTiF9RgfG2JNCw==\r\n",
    ] {
        let server = serve(move |_, request| vec![Act::Send(with(&whole(request, &content(), "v1"), header))]);
        let (store, root) = s3(&server.url, &[]);
        for attempt in 1..=4 {
            let error = read(&store, &root.join("1.jpg")).unwrap_err();
            assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{header}{error}");
            assert!(
                error.message().starts_with("failed its checksum: the 100000 bytes received are not the bytes stored"),
                "{error}"
            );
            assert_eq!(store.traffic().unwrap().mismatches, attempt);
        }
    }
}

fn stat(size_bytes: u64, etag: &str) -> Stat {
    // What the server says of `content` under this etag.
    let etag = etag.to_owned();
    let bytes = vec![0; usize::try_from(size_bytes).unwrap()];
    let server = serve(move |_, request| vec![Act::Send(whole(request, &bytes, &etag))]);
    let (store, root) = s3(&server.url, &[]);
    store.stat(&root.join("1.jpg")).unwrap()
}

#[test]
fn a_range_that_is_not_what_was_asked_for_is_not_taken() {
    type Lie = (&'static str, fn(&Request) -> Vec<Act>, Kind);
    let lies: [Lie; 12] = [
        (
            "the whole object",
            |_| answered("200 OK", "ETag: \"v1\"\r\nContent-Length: 100000\r\n", &content()),
            Kind::Unavailable,
        ),
        ("another start", |_| partial("0-999", 100_000, 1_000, "v1"), Kind::Unavailable),
        ("one byte later", |_| partial("1001-2000", 100_000, 1_000, "v1"), Kind::Unavailable),
        ("a shorter range", |_| partial("1000-1998", 100_000, 999, "v1"), Kind::Unavailable),
        ("a longer range", |_| partial("1000-2000", 100_000, 1_001, "v1"), Kind::Unavailable),
        ("another total", |_| partial("1000-1999", 99_999, 1_000, "v1"), Kind::Changed),
        ("another etag", |_| partial("1000-1999", 100_000, 1_000, "v2"), Kind::Changed),
        (
            "no range",
            |_| answered("206 Partial Content", "ETag: \"v1\"\r\nContent-Length: 1000\r\n", &[0; 1_000]),
            Kind::Unavailable,
        ),
        ("a range past all numbers", |_| partial("1000-18446744073709551615", 100_000, 1_000, "v1"), Kind::Unavailable),
        ("a range that is none", |_| partial("x-y", 100_000, 1_000, "v1"), Kind::Unavailable),
        ("a longer body", |_| partial("1000-1999", 100_000, 1_500, "v1"), Kind::Unavailable),
        ("a body that never comes", |_| partial("1000-1999", 100_000, 0, "v1"), Kind::Unavailable),
    ];
    let expected = stat(100_000, "v1");
    for (name, lie, kind) in lies {
        let server = serve(move |_, request| match request.line.starts_with("HEAD") {
            true => vec![Act::Send(whole(request, &content(), "v1"))],
            false => lie(request),
        });
        let (store, root) = s3(&server.url, &[]);
        for _ in 0..2 {
            let got = part(&store, &root.join("1.jpg"), 1_000..2_000, Some(expected));
            let error = got.map(|object| object.bytes.len()).unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error}");
            // Without a version that is expected, any is right, and what is no such range is still none.
            let got = part(&store, &root.join("1.jpg"), 1_000..2_000, None);
            assert_eq!(got.map(|object| object.bytes.len()).ok(), (kind == Kind::Changed).then_some(1_000), "{name}");
        }
        if name == "the whole object" {
            let error = part(&store, &root.join("1.jpg"), 1_000..2_000, None).unwrap_err();
            assert_eq!(error.message(), "could not be read in part: S3 sent the whole object");
            assert!(error.hint().contains("ignores the header `Range`"), "{}", error.hint());
        }
    }
}

/// A part of `content` under this range, with as many bytes in its body.
fn partial(range: &str, total: u64, bytes: usize, etag: &str) -> Vec<Act> {
    let headers = format!("ETag: \"{etag}\"\r\nContent-Range: bytes {range}/{total}\r\nContent-Length: {bytes}\r\n");
    answered("206 Partial Content", &headers, &content()[1_000..1_000 + bytes])
}

#[test]
fn a_body_that_was_cut_goes_on_with_the_same_object_or_not_at_all() {
    // The answer to the request for the rest; nothing is made of two objects.
    type Rest = (&'static str, fn(&Request) -> Vec<Act>, Kind);
    let rests: [Rest; 4] = [
        ("another etag", |request| vec![Act::Send(whole(request, &content(), "v2"))], Kind::Changed),
        (
            "another size",
            |request| vec![Act::Send(whole(request, &[content(), vec![1]].concat(), "v1"))],
            Kind::Changed,
        ),
        (
            "all of it",
            |_| answered("200 OK", "ETag: \"v1\"\r\nContent-Length: 100000\r\n", &content()),
            Kind::Unavailable,
        ),
        ("another part", |_| partial("1000-1999", 100_000, 1_000, "v1"), Kind::Unavailable),
    ];
    for (name, rest, kind) in rests {
        let server = serve(move |number, request| match number {
            0 => vec![Act::Send(whole(request, &content(), "v1").drain(..30_000).collect()), Act::Reset],
            _ => rest(request),
        });
        let (store, root) = s3(&server.url, &[]);
        let error = read(&store, &root.join("1.jpg")).unwrap_err();
        assert_eq!(error.kind(), kind, "{name}: {error}");
        // The same of a range.
        server.requests.lock().unwrap().clear();
        let error = part(&store, &root.join("1.jpg"), 10..90_000, None).unwrap_err();
        assert_eq!(error.kind(), kind, "a range, {name}: {error}");
        assert_eq!(server.requests.lock().unwrap().len(), 2);
    }
}

#[test]
fn a_length_that_is_a_lie_delivers_nothing_wrong() {
    let long = |length: u64| format!("ETag: \"v1\"\r\nContent-Length: {length}\r\nConnection: close\r\n");
    // More than comes: what is missing is asked for, and does not come.
    let server = serve(move |number, request| match number {
        0 => answered("200 OK", &long(200_000), &content()).into_iter().chain([Act::Reset]).collect(),
        _ => {
            assert_eq!(request.header("range"), Some("bytes=100000-199999"));
            status("416 Range Not Satisfiable", "", "")
        }
    });
    let (store, root) = s3(&server.url, &[]);
    assert_eq!(read(&store, &root.join("1.jpg")).unwrap_err().kind(), Kind::Changed);
    // More than there is memory for.
    let server = serve(move |_, _| answered("200 OK", &long(u64::MAX / 4), &content()));
    let (store, root) = s3(&server.url, &[]);
    assert_eq!(read(&store, &root.join("1.jpg")).unwrap_err().kind(), Kind::Exhausted);
    // Less than comes: what is behind the end is neither delivered nor taken for the next answer.
    let server = serve(|number, request| match number {
        0 => vec![Act::Send([whole(request, &content(), "v1"), b"HTTP/1.1 200 OK\r\n\r\n".repeat(9)].concat())],
        _ => vec![Act::Send(whole(request, &content(), "v1"))],
    });
    let (store, root) = s3(&server.url, &[]);
    (0..3).for_each(|_| assert!(read(&store, &root.join("1.jpg")).unwrap().bytes == content()));
    // Two lengths, or none that is a number.
    for headers in
        ["Content-Length: 10\r\nContent-Length: 100000\r\n", "Content-Length: -1\r\n", "Content-Length: x\r\n"]
    {
        let server = serve(move |_, _| answered("200 OK", &format!("ETag: \"v1\"\r\n{headers}"), &content()));
        let (store, root) = s3(&server.url, &[]);
        assert_eq!(read(&store, &root.join("1.jpg")).unwrap_err().kind(), Kind::Unavailable, "{headers}");
    }
}

/// A page of a listing: names of objects and of directories below `train/`, and the token of the next one.
fn page(objects: &[&str], directories: &[&str], token: Option<&str>) -> Vec<Act> {
    let about = "<Size>1</Size><LastModified>2026-11-16T00:00:00Z</LastModified>";
    let object = |key: &&str| format!("<Contents><Key>{key}</Key>{about}</Contents>");
    let directory = |key: &&str| format!("<CommonPrefixes><Prefix>{key}/</Prefix></CommonPrefixes>");
    let mut text = "<ListBucketResult>".to_owned();
    text.extend(objects.iter().map(object).chain(directories.iter().map(directory)));
    text.extend(token.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>")));
    status("200 OK", "", &(text + "</ListBucketResult>"))
}

fn list(script: impl Fn(usize, &Request) -> Vec<Act> + Send + Sync + 'static) -> (Result<Vec<String>, Error>, usize) {
    let server = serve(script);
    let (store, root) = s3(&server.url, &[]);
    let names = store.list(&root).map(|listing| {
        let name = |entry: forebay_core::Entry<'_>| {
            format!("{}{}", entry.name.to_str().unwrap(), if entry.is_directory { "/" } else { "" })
        };
        listing.iter().map(name).collect()
    });
    let count = server.requests.lock().unwrap().len();
    (names, count)
}

#[test]
fn a_listing_whose_pages_lead_round_ends() {
    // Tokens 0, 1, …, and from `end` on back to `start`.
    for (start, end) in [(0, 1), (0, 2), (1, 4), (5, 12), (0, 100)] {
        let (names, requests) = list(move |number, _| {
            let next = if number < end { number } else { start + (number - start) % (end - start) };
            page(&[&format!("train/{number:06}.jpg")], &[], Some(&format!("t{next}")))
        });
        let error = names.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, false), "{error}");
        assert!(error.message().starts_with("could not be listed: S3 returned the same page again"), "{error}");
        assert!(error.to_string().contains("s3://bucket/train"), "{error}");
        assert!(requests <= 4 * (end + 2), "{requests} requests for {start} to {end}");
    }
}

#[test]
fn a_listing_that_brings_nothing_new_ends() {
    let empty = |number: usize, _: &Request| page(&[], &[], Some(&format!("t{number}")));
    let same = |number: usize, _: &Request| page(&["train/1.jpg"], &["train/cat"], Some(&format!("t{number}")));
    for (names, requests) in [list(empty), list(same)] {
        let error = names.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, false), "{error}");
        assert!(error.message().starts_with("could not be listed: S3 returned 1000 pages"), "{error}");
        assert!((1_000..=1_002).contains(&requests), "{requests}");
    }
    // A store may have many empty pages before one that is not.
    let (names, _) = list(|number, _| match number {
        500 => page(&["train/1.jpg"], &[], None),
        _ => page(&[], &[], Some(&format!("t{number}"))),
    });
    assert_eq!(names.unwrap(), ["1.jpg"]);
}

#[test]
fn a_name_that_comes_twice_or_out_of_order_is_there_once() {
    let (names, _) = list(|number, _| match number {
        0 => page(&["train/b.jpg", "train/a.jpg", "train/b.jpg"], &["train/cat", "train/cat", "train/ant"], Some("2")),
        1 => page(&["train/a.jpg", "train/c.jpg"], &["train/cat", "train/dog"], Some("3")),
        _ => page(&["train/c.jpg", "train/a", "train/0.jpg"], &["train/a"], None),
    });
    let mut names = names.unwrap();
    names.sort();
    assert_eq!(names, ["0.jpg", "a", "a.jpg", "a/", "ant/", "b.jpg", "c.jpg", "cat/", "dog/"]);
}

#[test]
fn names_of_other_directories_are_not_believed() {
    for (objects, directories) in [
        (&["other/1.jpg"][..], &[][..]),
        (&["train2/1.jpg"], &[]),
        (&["train/deep/1.jpg"], &[]),
        (&[], &["other"]),
        (&[], &["train/deep/deeper"]),
    ] {
        let (names, _) = list(move |_, _| page(objects, directories, None));
        let error = names.unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, false), "{error}");
        let expected = "could not be listed: S3 returned a name outside the directory";
        assert!(error.message().starts_with(expected), "{error}");
    }
    assert_eq!(list(|_, _| page(&["train/", "train/1.jpg"], &[], None)).0.unwrap(), ["1.jpg"], "the directory itself");
}

#[test]
fn a_page_without_an_end_is_not_kept_in_memory() {
    let server = serve(|_, _| {
        let head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let chunk: Arc<[u8]> = [b"100000\r\n".as_slice(), &[b' '; 1 << 20], b"\r\n"].concat().into();
        let body = (0..200).map(move |_| Act::Send(chunk.to_vec()));
        std::iter::once(Act::Send(head)).chain(body).collect()
    });
    let (store, root) = s3(&server.url, &[("read_timeout", "60")]);
    let error = store.list(&root).unwrap_err();
    assert_eq!(error.kind(), Kind::Unavailable, "{error}");
    assert!(error.message().contains("larger than 64 MiB"), "{error}");
}

#[test]
fn a_size_that_a_listing_gets_wrong_is_not_that_of_the_bytes() {
    let server = serve(|_, request| match request.line.contains("list-type") {
        true => page(&["train/1.jpg"], &[], None),
        false => vec![Act::Send(whole(request, &content(), "v1"))],
    });
    let (store, root) = s3(&server.url, &[]);
    let listing = store.list(&root).unwrap();
    assert_eq!(listing.version(0).unwrap().size_bytes, Some(1));
    let path: PathBuf = root.join("1.jpg");
    let object = read(&store, &path).unwrap();
    assert!(object.bytes == content() && object.stat.size_bytes == 100_000);
    // Whoever relies on the size is told.
    let believed = Stat { size_bytes: 1, ..object.stat };
    let error = part(&store, &path, 0..1, Some(believed)).unwrap_err();
    assert_eq!(error.kind(), Kind::Changed, "{error}");
}
