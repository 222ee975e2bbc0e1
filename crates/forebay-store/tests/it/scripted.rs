//! What one call does about answers that break, against a server that breaks them on purpose, byte by byte.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay_core::{Error, Kind};
use forebay_store::{Cancel, Object, ObjectSink, ReadRequest, Remote, Sink, Stat, StorageOptions, Store};

use crate::remote::{options, s3};

/// One request, as it came.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) line: String,
    pub(crate) headers: Vec<String>,
}

impl Request {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let is_it = |line: &&String| line.to_ascii_lowercase().starts_with(&format!("{name}:"));
        self.headers.iter().find(is_it).map(|line| line.split_once(':').unwrap().1.trim())
    }
}

/// What is done about a request.
pub(crate) enum Act {
    /// Sends these bytes.
    Send(Vec<u8>),
    /// Closes the connection as a crashed server does: with a reset.
    Reset,
    /// Says nothing more for ever.
    Stall,
}

/// A server on loopback that does as it is told, one thread for each connection.
pub(crate) struct Scripted {
    pub(crate) url: String,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

pub(crate) fn serve(script: impl Fn(usize, &Request) -> Vec<Act> + Send + Sync + 'static) -> Scripted {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
    let (seen, script) = (Arc::clone(&requests), Arc::new(script));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (seen, script) = (Arc::clone(&seen), Arc::clone(&script));
            std::thread::spawn(move || answer(stream.unwrap(), &seen, &*script));
        }
    });
    Scripted { url, requests }
}

fn answer(stream: TcpStream, seen: &Mutex<Vec<Request>>, script: &dyn Fn(usize, &Request) -> Vec<Act>) {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(Ok(line)) = reader.by_ref().lines().next() {
        let lines = reader.by_ref().lines().map(|line| line.unwrap_or_default());
        let headers = lines.take_while(|line| !line.is_empty()).collect();
        let request = Request { line, headers };
        let body_bytes = request.header("content-length").map_or(0, |length| length.parse().unwrap());
        std::io::copy(&mut reader.by_ref().take(body_bytes), &mut std::io::sink()).unwrap();
        let number = {
            let mut seen = seen.lock().unwrap();
            seen.push(request.clone());
            seen.len() - 1
        };
        for act in script(number, &request) {
            match act {
                Act::Send(bytes) => {
                    if stream.write_all(&bytes).is_err() {
                        return;
                    }
                }
                Act::Reset => {
                    // What was sent is to arrive before the reset does.
                    std::thread::sleep(Duration::from_millis(30));
                    reset(&stream);
                    return;
                }
                Act::Stall => {
                    std::thread::sleep(Duration::from_secs(600));
                    return;
                }
            }
        }
    }
}

fn reset(stream: &TcpStream) {
    use std::os::fd::AsRawFd;
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: the value lives until the call is over, and its size is given.
    let set = unsafe {
        let value = std::ptr::from_ref(&linger).cast();
        libc::setsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size_of_val(&linger) as u32)
    };
    assert_eq!(set, 0);
    stream.shutdown(std::net::Shutdown::Read).unwrap();
}

pub(crate) fn content() -> Vec<u8> {
    (0..100_000_u32).map(|number| (number.wrapping_mul(number) >> 7) as u8).collect()
}

const DATE: &str = "Last-Modified: Mon, 16 Nov 2026 00:00:00 GMT";

/// The answer to a request for `content`, ranges and all, under this etag.
pub(crate) fn whole(request: &Request, content: &[u8], etag: &str) -> Vec<u8> {
    let range = request.header("range").and_then(|range| {
        let (start, end) = range.strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse::<usize>().ok()?, end.parse::<usize>().ok()?))
    });
    let (status, body, more) = match range {
        Some((start, end)) => {
            let more = format!("Content-Range: bytes {start}-{end}/{}\r\n", content.len());
            ("206 Partial Content", &content[start..=end], more)
        }
        None => ("200 OK", content, String::new()),
    };
    let head =
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"{etag}\"\r\n{DATE}\r\n{more}\r\n", body.len());
    let is_head = request.line.starts_with("HEAD");
    [head.as_bytes(), if is_head { &[] } else { body }].concat()
}

pub(crate) fn status(line: &str, more: &str, body: &str) -> Vec<Act> {
    let text = format!("HTTP/1.1 {line}\r\nContent-Length: {}\r\n{more}\r\n{body}", body.len());
    vec![Act::Send(text.into_bytes())]
}

pub(crate) fn open(url: &str, more: &[(&str, &str)]) -> (Remote, PathBuf) {
    let (store, root) = Remote::open(Path::new(&format!("{url}/data")), &options(more)).unwrap();
    (store, root.join("1.jpg"))
}

fn read(store: &Remote, path: &Path) -> Result<Object, Error> {
    store.read(path, Duration::from_secs(20), &mut |_| Ok(Vec::new()))
}

#[test]
fn a_broken_body_is_gone_on_with_where_it_broke() {
    let server = serve(|number, request| {
        let mut answer = whole(request, &content(), "v1");
        match number {
            0 => vec![Act::Send(answer.drain(..30_000).collect()), Act::Reset],
            1 => vec![Act::Send(answer.drain(..40_000).collect()), Act::Reset],
            _ => vec![Act::Send(answer)],
        }
    });
    let (store, path) = open(&server.url, &[]);
    assert!(read(&store, &path).unwrap().bytes == content());
    let traffic = store.traffic().unwrap();
    assert_eq!((traffic.requests, traffic.resumed, traffic.bytes), (3, 2, 100_000), "each byte came once");
    let requests = server.requests.lock().unwrap();
    assert_eq!(requests[1].header("if-match"), Some("\"v1\""));
    let starts: Vec<usize> = requests[1..]
        .iter()
        .map(|request| request.header("range").unwrap()["bytes=".len()..].split('-').next().unwrap().parse().unwrap())
        .collect();
    assert!(starts[0] > 29_000 && starts[0] < 30_000 && starts[1] > starts[0] + 39_000, "{starts:?}");
}

#[test]
fn a_body_that_stalls_is_gone_on_with_too() {
    let server = serve(|number, request| {
        let mut answer = whole(request, &content(), "v1");
        match number {
            0 => vec![Act::Send(answer.drain(..30_000).collect()), Act::Stall],
            _ => vec![Act::Send(answer)],
        }
    });
    let (store, path) = open(&server.url, &[("read_timeout", "0.3")]);
    let started = Instant::now();
    assert!(read(&store, &path).unwrap().bytes == content());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(store.traffic().unwrap().resumed, 1);
}

#[test]
fn a_request_that_hangs_leaves_time_for_another_within_the_deadline() {
    let server = serve(|number, request| match number {
        0 => vec![Act::Stall],
        _ => vec![Act::Send(whole(request, &content(), "v1"))],
    });
    let (store, path) = open(&server.url, &[]);
    let (within, started) = (Duration::from_secs(2), Instant::now());
    let error = store.read(&path, within, &mut |_| Ok(Vec::new())).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Timeout, true));
    assert!(error.message().contains("did not answer within 1.0 s"), "{error}");
    assert!(started.elapsed() < within);
    let left = within.saturating_sub(started.elapsed());
    assert!(store.read(&path, left, &mut |_| Ok(Vec::new())).unwrap().bytes == content());
}

#[test]
fn an_object_that_is_another_by_then_has_changed() {
    for is_honest in [true, false] {
        let server = serve(move |number, request| {
            if number == 0 {
                let mut answer = whole(request, &content(), "v1");
                return vec![Act::Send(answer.drain(..30_000).collect()), Act::Reset];
            }
            match is_honest {
                true => status("412 Precondition Failed", "", ""),
                // One that does not know If-Match.
                false => vec![Act::Send(whole(request, &content(), "v2"))],
            }
        });
        let (store, path) = open(&server.url, &[]);
        let error = read(&store, &path).unwrap_err();
        assert_eq!((error.kind(), error.is_transient()), (Kind::Changed, false), "{error}");
        assert_eq!(error.path(), Some(&*path));
    }
}

#[test]
fn a_body_that_brings_nothing_is_the_loaders_to_ask_for_again() {
    let server = serve(|_, request| {
        let mut answer = whole(request, &content(), "v1");
        let head = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").unwrap() + 4;
        answer.truncate(head);
        vec![Act::Send(answer), Act::Reset]
    });
    let (store, path) = open(&server.url, &[]);
    let error = read(&store, &path).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{error}");
    assert!(error.message().starts_with("ended early (expected 100000 bytes, got 0)"), "{error}");
    assert_eq!(store.traffic().unwrap().requests, 1, "a store does not try again");
}

#[test]
fn an_empty_answer_is_believed_when_the_head_agrees() {
    let empty_get = |_, request: &Request| match request.line.starts_with("HEAD") {
        true => vec![Act::Send(whole(request, &content(), "v1"))],
        false => vec![Act::Send(whole(request, &[], "v1"))],
    };
    let (store, path) = open(&serve(empty_get).url, &[]);
    let error = read(&store, &path).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{error}");
    let (store, path) = open(&serve(|_, request| vec![Act::Send(whole(request, &[], "v1"))]).url, &[]);
    assert!(read(&store, &path).unwrap().bytes.is_empty());
}

#[test]
fn a_shorter_body_that_looks_complete_does_not_add_up() {
    // What md5 makes of the content, as S3 has it for its etag.
    let etag = || {
        let checksum: String = md5::Digest::finalize(<md5::Md5 as md5::Digest>::new_with_prefix(content()))
            .iter()
            .map(|byte: &u8| format!("{byte:02x}"))
            .collect();
        checksum
    };
    let server = serve(move |number, request| {
        let content = content();
        let length = if number == 0 { 60_000 } else { content.len() };
        vec![Act::Send(whole(request, &content[..length], &etag()))]
    });
    let (store, root) = s3(&server.url, &[]);
    let error = read(&store, &root.join("1.jpg")).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{error}");
    assert!(
        error.message().contains("the 60000 bytes received are not the bytes stored (MD5 of its etag: expected"),
        "{error}"
    );
    assert!(read(&store, &root.join("1.jpg")).unwrap().bytes == content());
    assert_eq!(store.traffic().unwrap().mismatches, 1);
    let request = server.requests.lock().unwrap()[0].clone();
    assert_eq!(request.header("x-amz-checksum-mode"), Some("ENABLED"));
    assert!(request.header("authorization").unwrap().contains("x-amz-checksum-mode"), "what S3 demands is signed");
}

#[test]
fn a_server_whose_etags_only_look_like_md5_is_understood() {
    let server = serve(|_, request| vec![Act::Send(whole(request, &content(), &"0".repeat(32)))]);
    let (store, root) = s3(&server.url, &[]);
    assert!(read(&store, &root.join("1.jpg")).is_err(), "the first time is not believed");
    assert!(read(&store, &root.join("1.jpg")).unwrap().bytes == content(), "two reads agree");
    let (store, root) = s3(&server.url, &[("verify_checksums", "false")]);
    assert!(read(&store, &root.join("2.jpg")).is_ok());
}

#[test]
fn a_server_that_asks_for_less_is_heard() {
    let server = serve(|_, _| {
        let body = "<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>";
        status("503 Service Unavailable", "Retry-After: 7\r\nx-amz-request-id: ABC\r\n", body)
    });
    let (store, root) = s3(&server.url, &[]);
    let error = read(&store, &root.join("1.jpg")).unwrap_err();
    assert!(error.is_throttled() && error.is_transient());
    assert_eq!(error.retry_after(), Some(Duration::from_secs(7)));
    let expected = "could not be read: S3 answered 503 SlowDown: Please reduce your request rate. (request id ABC)";
    assert_eq!(error.message(), expected);
    let traffic = store.traffic().unwrap();
    assert_eq!((traffic.requests, traffic.throttles), (1, 1), "a store does not try again");
}

#[test]
fn connections_are_used_again() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
    let connections = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            *counted.lock().unwrap() += 1;
            let seen = Mutex::default();
            let script = |_: usize, request: &Request| vec![Act::Send(whole(request, &content(), "v1"))];
            std::thread::spawn(move || answer(stream.unwrap(), &seen, &script));
        }
    });
    for _ in 0..3 {
        // Another store of the same place has the same client.
        let (store, path) = open(&url, &[]);
        (0..20).for_each(|_| drop(read(&store, &path).unwrap()));
    }
    assert_eq!(*connections.lock().unwrap(), 1);
}

#[test]
fn silence_ends_with_the_deadline_and_a_stop_ends_it_at_once() {
    let server = serve(|_, _| vec![Act::Stall]);
    let (store, path) = open(&server.url, &[]);
    let started = Instant::now();
    let error = store.read(&path, Duration::from_millis(300), &mut |_| Ok(Vec::new())).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Timeout, true), "{error}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    let (stoppable, stop) = store.stoppable().unwrap();
    let started = Instant::now();
    let raiser = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(100));
        stop.raise();
    });
    let error = stoppable.read(&path, Duration::from_secs(60), &mut |_| Ok(Vec::new())).unwrap_err();
    assert_eq!(error.kind(), Kind::Stopped, "{error}");
    assert!(started.elapsed() < Duration::from_secs(3), "{:?}", started.elapsed());
    assert_eq!(
        stoppable.read(&path, Duration::from_secs(60), &mut |_| Ok(Vec::new())).unwrap_err().kind(),
        Kind::Stopped
    );
    raiser.join().unwrap();
}

#[test]
fn a_read_that_is_cancelled_ends_at_once_wherever_it_is_and_others_go_on() {
    // In its answer, or in its body; the server sees that the client has gone.
    for (sent, range) in [(0, None), (1_000, None), (0, Some(10..90_000)), (1_000, Some(10..90_000))] {
        let (gone, has_gone) = std::sync::mpsc::channel();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://127.0.0.1:{}", listener.local_addr().unwrap().port());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (mut stream, gone) = (stream.unwrap(), gone.clone());
                std::thread::spawn(move || {
                    let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                    let head: Vec<String> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                    let request = Request { line: head[0].clone(), headers: head[1..].to_vec() };
                    let answer = whole(&request, &content(), "\"1\"");
                    if !request.line.contains("stalls") {
                        stream.write_all(&answer).unwrap();
                        return;
                    }
                    gone.send(false).unwrap();
                    stream.write_all(&answer[..sent]).unwrap();
                    let ended = std::io::Read::read(&mut stream, &mut [0]);
                    gone.send(matches!(ended, Ok(0) | Err(_))).unwrap();
                });
            }
        });
        let (store, path) = &open(&url, &[("read_timeout", "300")]);
        let (stalls, cancel) = (path.with_file_name("stalls.jpg"), Cancel::default());
        let within = Duration::from_secs(300);
        std::thread::scope(|scope| {
            let request = ReadRequest { range, ..ReadRequest::new(&stalls, within).with_cancel(&cancel) };
            let stalled = scope.spawn(move || store.fetch(&request, &mut |_| Ok(Vec::new())));
            let until = Instant::now() + Duration::from_secs(20);
            assert_eq!(has_gone.recv_timeout(Duration::from_secs(20)), Ok(false), "it has come");
            while store.traffic().unwrap().requests == 0 && sent > 0 && Instant::now() < until {
                std::thread::yield_now();
            }
            let other = store.read_unless(path, within, &Cancel::default(), &mut |_| Ok(Vec::new()));
            assert_eq!(other.unwrap().bytes, content());
            let started = Instant::now();
            cancel.raise();
            assert_eq!(stalled.join().unwrap().unwrap_err().kind(), Kind::Stopped);
            assert_eq!(has_gone.recv_timeout(Duration::from_secs(20)), Ok(true));
            assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        });
    }
}

#[test]
fn names_that_no_path_can_hold_are_left_out_and_named() {
    let object = |key: &str| {
        let about = "<Size>1</Size><LastModified>2026-11-16T00:00:00Z</LastModified><ETag>&quot;1&quot;</ETag>";
        format!("<Contents><Key>train/{key}</Key>{about}</Contents>")
    };
    let prefix = |key: &str| format!("<CommonPrefixes><Prefix>train/{key}</Prefix></CommonPrefixes>");
    let server = serve(move |_, request| {
        let is = |part: &str| request.line.contains(part);
        let (entries, next) = match () {
            () if is("only") => (prefix("only/../"), ""),
            () if is("token=two") => (
                [object("cat/.."), object("cat/2.jpg"), prefix("cat//"), prefix("cat/deep/"), object("cat/&#7;")]
                    .concat(),
                "three",
            ),
            () if is("token=three") => (object("cat/3.jpg"), ""),
            () => (object("cat/1.jpg"), "two"),
        };
        let next = if next.is_empty() {
            String::new()
        } else {
            format!("<NextContinuationToken>{next}</NextContinuationToken>")
        };
        match is("GET /bucket?") || is("GET /bucket/?") {
            true => status("200 OK", "", &format!("<ListBucketResult>{entries}{next}</ListBucketResult>")),
            false => status("404 Not Found", "", "<Error><Code>NoSuchKey</Code></Error>"),
        }
    });
    let (store, root) = s3(&server.url, &[]);
    let listing = store.list(&root.join("cat")).unwrap();
    let entries: Vec<_> =
        listing.iter().map(|entry| (entry.name.to_str().unwrap().to_owned(), entry.is_directory)).collect();
    let expected = [("1.jpg", false), ("deep", true), ("2.jpg", false), ("3.jpg", false)];
    assert_eq!(entries, expected.map(|(name, is_directory)| (name.to_owned(), is_directory)));
    assert_eq!(listing.refused(), ["..", "/", "\u{7}"]);
    assert_eq!(listing.version(2).unwrap().etag.as_deref(), Some("1"), "what is told of the others is kept");
    let pages =
        |token: &str| server.requests.lock().unwrap().iter().filter(|request| request.line.contains(token)).count();
    assert_eq!((pages("token=two"), pages("token=three"), server.requests.lock().unwrap().len()), (2, 1, 4));
    // Such a name is a sign of its directory, and of nothing to be read.
    let listing = store.list(&root.join("only")).unwrap();
    assert_eq!((listing.len(), listing.refused()), (0, &["../".to_owned()][..]));
    let error = read(&store, &root.join("only")).unwrap_err();
    assert_eq!(error.kind(), Kind::Undecodable, "{error}");
    for name in ["cat/..", "cat//x", "cat/\u{7}"] {
        let path = PathBuf::from(format!("{}/{name}", root.display()));
        assert!(read(&store, &path).is_err(), "{name}");
    }
}

#[test]
fn a_listing_goes_on_at_the_page_that_failed() {
    let page = |keys: &[&str], token: Option<&str>| {
        let token =
            token.map_or(String::new(), |token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
        let entry = |key: &&str| {
            format!(
                "<Contents><Key>train/cat/{key}</Key><Size>1</Size><LastModified>2026-11-16T00:00:00Z</LastModified></Contents>"
            )
        };
        let entries: String = keys.iter().map(entry).collect();
        status("200 OK", "", &format!("<ListBucketResult>{entries}{token}</ListBucketResult>"))
    };
    let server = serve(move |number, request| {
        let is_second = request.line.contains("continuation-token=two");
        match number {
            0 => page(&["1.jpg", "2.jpg"], Some("two")),
            1 | 2 => {
                assert!(is_second);
                status("500 Internal Server Error", "", "")
            }
            _ => {
                assert!(is_second, "{}", request.line);
                page(&["3.jpg"], None)
            }
        }
    });
    let (store, root) = s3(&server.url, &[]);
    let first = store.list(&root.join("cat")).unwrap_err();
    assert!(first.is_transient() && first.has_progressed(), "{first}");
    let second = store.list(&root.join("cat")).unwrap_err();
    assert!(second.is_transient() && !second.has_progressed(), "{second}");
    let listing = store.list(&root.join("cat")).unwrap();
    let names: Vec<_> = listing.iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect();
    assert_eq!(names, ["1.jpg", "2.jpg", "3.jpg"]);
    assert_eq!(server.requests.lock().unwrap().len(), 4);
}

#[test]
fn options_that_are_unknown_or_wrong_are_refused_at_once() {
    for (pairs, expected) in [
        (&[("seceret", "x")][..], "storage_options[\"seceret\"]: expected an option of S3"),
        (&[("anon", "perhaps")], "storage_options[\"anon\"]: expected true or false, got \"perhaps\""),
        (&[("read_timeout", "never")], "storage_options[\"read_timeout\"]: expected seconds, got \"never\""),
    ] {
        let error = Remote::open(Path::new("s3://bucket"), &options(pairs)).map(drop).unwrap_err();
        assert_eq!((error.kind(), error.message()), (Kind::Config, expected));
    }
    assert!(Remote::open(Path::new("s3://bucket"), &StorageOptions::default()).is_ok(), "keys are looked for later");
}

const COPIED: Stat = Stat { size_bytes: 3, mtime_ns: 1_700_000_000_000_000_000 };

#[test]
fn other_bytes_than_were_sent_are_never_believed() {
    let server = serve(|_, _| status("200 OK", "ETag: \"x\"\r\nx-amz-checksum-crc32c: AAAAAA==\r\n", ""));
    let (store, root) = s3(&server.url, &[]);
    let sink = ObjectSink::open(store, root, false).unwrap();
    for _ in 0..3 {
        let error = sink.put(Path::new("1.jpg"), b"one", COPIED).unwrap_err();
        assert!(error.is_transient(), "{error}");
        assert!(
            error.message().starts_with("failed its checksum: the 3 bytes sent are not the bytes stored (CRC32C: exp"),
            "{error}"
        );
    }
}

#[test]
fn a_copy_that_is_read_back_with_other_bytes_does_not_stay() {
    let server = serve(|_, request| match request.line.split(' ').next() {
        Some("PUT") => status("200 OK", "ETag: \"x\"\r\n", ""),
        Some("POST") => status("200 OK", "", "<DeleteResult><Deleted><Key>train/1.jpg</Key></Deleted></DeleteResult>"),
        _ => vec![Act::Send(whole(request, b"two", "x"))],
    });
    let (store, root) = s3(&server.url, &[]);
    let sink = ObjectSink::open(store, root, true).unwrap();
    let error = sink.put(Path::new("1.jpg"), b"one", COPIED).unwrap_err();
    assert_eq!(error.message(), "was read back with different bytes than were written");
    let last = server.requests.lock().unwrap().last().unwrap().line.clone();
    assert!(last.starts_with("POST /bucket?delete"), "{last}");
}

#[test]
fn a_listing_that_does_not_come_further_ends() {
    let page = "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>\
                <Contents><Key>train/1.jpg</Key><LastModified>2026-11-16T00:00:00.000Z</LastModified><Size>3</Size>\
                </Contents></ListBucketResult>";
    let server = serve(move |_, _| status("200 OK", "Content-Type: application/xml\r\n", page));
    let (store, _) = s3(&server.url, &[]);
    let error = store.list(Path::new("s3://bucket/train")).unwrap_err();
    assert_eq!(error.message(), "could not be listed: S3 returned the same page again");
    assert_eq!(server.requests.lock().unwrap().len(), 2);
}

#[test]
fn the_end_of_an_error_is_not_waited_for() {
    let server = serve(|_, _| {
        let head = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 99999999999\r\n\r\n<Code>Endless</Code>";
        vec![Act::Send([&head[..], &[b' '; 1 << 20]].concat()), Act::Stall]
    });
    let (store, root) = s3(&server.url, &[("read_timeout", "60")]);
    let begun = Instant::now();
    let error = read(&store, &root.join("1.jpg")).unwrap_err();
    assert!(error.message().contains("500 Endless"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

#[test]
fn one_bucket_is_one_whatever_its_keys_and_its_scheme_are() {
    let open = |root: &str, endpoint: &str, key: &str| {
        let settings = [("endpoint_url", endpoint), ("key", key), ("secret", "hunter2hunter2")];
        Remote::open(Path::new(root), &options(&settings)).unwrap()
    };
    let (one, root) = open("s3://bucket/data/train", "http://127.0.0.1:1", "reads");
    assert_eq!(one.key_of(&root).unwrap(), Path::new("data/train"));
    let is_same = |root, endpoint| one.is_same_bucket(&open(root, endpoint, "writes").0);
    assert!(is_same("s3a://bucket/data", "http://127.0.0.1:1"));
    assert!(!is_same("s3://bucket2/data", "http://127.0.0.1:1"));
    assert!(!is_same("s3://bucket/data", "http://127.0.0.1:2"), "of one name, on two servers");
}
