//! How much of what the network can give a loader gets, for `make bench-remote`: a server on loopback that takes 50 ms
//! for each request and sends 200 MB a second in all; once the bare client with a thousand requests at a time,
//! once the loader with its defaults.
//!
//! `remote OBJECTS [ROUNDS]` prints one JSON line for each round.

#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a server, and a benchmark that stops when it fails"
)]

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use forebay::{
    Config, Defaults, Loader, MountKind, Op, Pipeline, ScanOptions, Source, StorageOptions, open_remote, scan_folder,
};
use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::{ObjectStore, ObjectStoreExt};

const LATENCY: Duration = Duration::from_millis(50);
const BYTES_PER_SECOND: f64 = 200e6;
/// Requests of the bare client at a time: ten times as many as the line needs.
const AT_A_TIME: usize = 1_024;
const CLASSES: usize = 10;

/// A picture of 100 KB that takes next to nothing to decode.
fn picture() -> Vec<u8> {
    let (width, height) = (182_u32, 182_u32);
    let row = (3 * width).div_ceil(4) * 4;
    let size = 54 + row * height;
    let mut bytes = b"BM".to_vec();
    for word in [size, 0, 54, 40, width, height, 1 | 24 << 16, 0, row * height, 0, 0, 0, 0] {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend((0..row * height).map(|at| (at.wrapping_mul(at) >> 9) as u8));
    bytes
}

/// The line that all answers share: when the next byte may be sent.
type Line = Mutex<Instant>;

fn serve(objects: usize) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (line, body): (Arc<Line>, _) = (Arc::new(Mutex::new(Instant::now())), Arc::new(picture()));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (line, body) = (Arc::clone(&line), Arc::clone(&body));
            let _server = std::thread::Builder::new().stack_size(1 << 16).spawn(move || {
                // A client that goes away in the middle is no trouble.
                let _gone = answer(stream.unwrap(), objects, &line, &body);
            });
        }
    });
    format!("http://127.0.0.1:{port}")
}

fn answer(mut stream: TcpStream, objects: usize, line: &Line, body: &[u8]) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    while let Some(request) = lines.next().transpose()? {
        while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
        std::thread::sleep(LATENCY);
        if let Some(prefix) = request.split("prefix=").nth(1) {
            let listing = list(prefix.split(['&', ' ']).next().unwrap_or_default(), objects);
            write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{listing}", listing.len())?;
            continue;
        }
        let until = {
            let mut free = line.lock().unwrap();
            *free = (*free).max(Instant::now()) + Duration::from_secs_f64(body.len() as f64 / BYTES_PER_SECOND);
            *free
        };
        std::thread::sleep(until.saturating_duration_since(Instant::now()));
        write!(
            stream,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: \"v1\"\r\nLast-Modified: Mon, 16 Nov 2026 00:00:00 GMT\r\n\r\n",
            body.len()
        )?;
        stream.write_all(body)?;
    }
    Ok(())
}

fn list(prefix: &str, objects: usize) -> String {
    let class = prefix.split("%2F").nth(1).filter(|class| !class.is_empty());
    let entries: String = match class.map(|class| class.parse::<usize>().unwrap()) {
        None => (0..CLASSES)
            .map(|class| format!("<CommonPrefixes><Prefix>train/{class}/</Prefix></CommonPrefixes>"))
            .collect(),
        Some(class) => (class..objects)
            .step_by(CLASSES)
            .map(|number| {
                format!(
                    "<Contents><Key>train/{class}/{number:06}.bmp</Key><Size>1</Size>\
                     <LastModified>2026-11-16T00:00:00Z</LastModified></Contents>"
                )
            })
            .collect(),
    };
    format!("<ListBucketResult>{entries}</ListBucketResult>")
}

fn bare(url: &str, objects: usize) -> f64 {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let store = AmazonS3Builder::new()
        .with_endpoint(url)
        .with_allow_http(true)
        .with_skip_signature(true)
        .with_bucket_name("bucket")
        .build()
        .unwrap();
    let store: Arc<dyn ObjectStore> = Arc::new(store);
    let started = Instant::now();
    let read = |number: usize| {
        let store = Arc::clone(&store);
        async move {
            let key = format!("train/{}/{number:06}.bmp", number % CLASSES).into();
            store.get(&key).await.unwrap().bytes().await.unwrap().len()
        }
    };
    let bytes: usize = runtime.block_on(
        futures_util::stream::iter(0..objects)
            .map(read)
            .buffer_unordered(AT_A_TIME)
            .fold(0, |sum, size| async move { sum + size }),
    );
    assert_eq!(bytes, objects * picture().len());
    bytes as f64 / started.elapsed().as_secs_f64()
}

fn loader(url: &str, objects: usize) -> (f64, u64) {
    let options = StorageOptions::new([("endpoint", url), ("anon", "true")].map(|(a, b)| (a.to_owned(), b.to_owned())));
    let (store, root) = open_remote(Path::new("s3://bucket/train"), &options).unwrap();
    let scan = ScanOptions { extensions: vec![".bmp".to_owned()], ..ScanOptions::images() };
    let index = scan_folder(&store, &root, &scan, None).unwrap();
    assert_eq!(index.len(), objects as u64);
    let source = Source::new(Arc::new(index), store, Pipeline::new(vec![Op::ToImage]).unwrap());
    let defaults = Defaults::on(Some(MountKind::Remote), 2);
    let config = Config {
        batch_size: 64,
        shuffle: true,
        cpu_threads: 2,
        io_threads: defaults.io_threads,
        max_io_threads: defaults.max_io_threads,
        retry: defaults.retry,
        prefetch_batches: 8,
        memory_budget: 1 << 30,
        ..Config::default()
    };
    let loader = Loader::new(source, config).unwrap();
    let started = Instant::now();
    let samples: usize = loader.epoch().unwrap().map(|batch| batch.unwrap().len()).sum();
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(samples, objects);
    (objects as f64 * picture().len() as f64 / seconds, loader.stats().concurrent_reads)
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<usize>().unwrap());
    let (objects, rounds) = (arguments.next().unwrap_or(20_000), arguments.next().unwrap_or(3));
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let url = serve(objects);
    for _ in 0..rounds {
        let bare = bare(&url, objects);
        let (loader, at_a_time) = loader(&url, objects);
        let (bare, loader) = (bare / 1e6, loader / 1e6);
        let ratio = loader / bare;
        println!(
            r#"{{"objects": {objects}, "bare_mb_per_second": {bare:.1}, "loader_mb_per_second": {loader:.1}, "ratio": {ratio:.3}, "concurrent_reads": {at_a_time}}}"#
        );
    }
}
