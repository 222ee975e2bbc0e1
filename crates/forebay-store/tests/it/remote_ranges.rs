//! Ranges of objects over the network: what is asked of the server, and what is done about bodies that break.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use forebay_core::{Error, Kind};
use forebay_store::{Object, ReadRequest, Stat, Store};

use crate::scripted::{Act, content, open, serve, status, whole};

pub(crate) fn part(store: &dyn Store, path: &Path, range: Range<u64>, expected: Option<Stat>) -> Result<Object, Error> {
    let request = ReadRequest { expected, ..ReadRequest::new(path, Duration::from_secs(20)).with_range(range) };
    store.fetch(&request, &mut |_| Ok(Vec::new()))
}

#[test]
fn a_range_whose_body_breaks_is_gone_on_with_where_it_broke() {
    let server = serve(|number, request| {
        let mut answer = whole(request, &content(), "v1");
        match number {
            0 => vec![Act::Send(answer.drain(..30_000).collect()), Act::Reset],
            1 => vec![Act::Send(answer.drain(..10_000).collect()), Act::Stall],
            _ => vec![Act::Send(answer)],
        }
    });
    let (store, path) = open(&server.url, &[("read_timeout", "0.5")]);
    let object = part(&store, &path, 20_000..80_000, None).unwrap();
    assert!(object.bytes == content()[20_000..80_000] && object.stat.size_bytes == 100_000);
    let traffic = store.traffic().unwrap();
    assert_eq!((traffic.requests, traffic.resumed, traffic.bytes), (3, 2, 60_000), "each byte came once");
    let requests = server.requests.lock().unwrap();
    let ranges: Vec<(u64, u64)> = requests
        .iter()
        .map(|request| request.header("range").unwrap()["bytes=".len()..].split_once('-').unwrap())
        .map(|(start, end)| (start.parse().unwrap(), end.parse().unwrap()))
        .collect();
    assert_eq!((ranges[0], ranges[1].1, ranges[2].1), ((20_000, 79_999), 79_999, 79_999));
    assert!((49_000..50_000).contains(&ranges[1].0) && ranges[2].0 > ranges[1].0 + 9_000, "{ranges:?}");
    assert_eq!((requests[0].header("if-match"), requests[1].header("if-match")), (None, Some("\"v1\"")));
}

#[test]
fn an_empty_range_asks_for_no_body_and_one_behind_the_end_says_how_long_the_object_is() {
    let server = serve(|_, request| match request.header("range") {
        Some("bytes=200000-200009") => status("416 Range Not Satisfiable", "Content-Range: bytes */100000\r\n", ""),
        _ => vec![Act::Send(whole(request, &content(), "v1"))],
    });
    let (store, path) = open(&server.url, &[]);
    let object = part(&store, &path, 5..5, None).unwrap();
    assert!(object.bytes.is_empty() && object.stat.size_bytes == 100_000);
    assert!(server.requests.lock().unwrap().iter().all(|request| request.line.starts_with("HEAD")));
    let error = part(&store, &path, 200_000..200_010, None).unwrap_err();
    let message = "is truncated (expected at least 200010 bytes, got 100000)";
    assert_eq!((error.kind(), error.message()), (Kind::Corrupt, message), "{error}");
    let longer = Stat { size_bytes: 300_000, ..object.stat };
    assert_eq!(part(&store, &path, 200_000..200_010, Some(longer)).unwrap_err().kind(), Kind::Changed);
}
