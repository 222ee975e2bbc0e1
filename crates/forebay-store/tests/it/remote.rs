//! The conformance suite on every kind of store over the network.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::Kind;
use forebay_store::testing::conformance::{REMOTE_OBJECTS, check_changes, check_objects, check_remote, check_sink};
use forebay_store::{Cache, CacheOptions, Cached, ObjectSink, Remote, Sink, Stat, StorageOptions, Store};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig};
use tokio::runtime::Runtime;

use crate::servers::{KEY, SECRET, Server, azurite, google_in_front_of, nginx, seaweed};

pub(crate) fn options(pairs: &[(&str, &str)]) -> StorageOptions {
    StorageOptions::new(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
}

/// Writes to a server, with the client's own means: trying again until it is up.
pub(crate) struct Writer {
    runtime: Runtime,
    store: Arc<dyn ObjectStore>,
    base: String,
}

impl Writer {
    fn new(store: Arc<dyn ObjectStore>, base: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        Self { runtime, store, base: base.to_owned() }
    }

    pub(crate) fn put(&self, path: &Path, content: &[u8]) {
        let key = path.to_str().unwrap().strip_prefix(&self.base).unwrap();
        let key = object_store::path::Path::parse(key).unwrap();
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            match self.runtime.block_on(self.store.put(&key, content.to_vec().into())) {
                Ok(_) => return,
                Err(error) => assert!(Instant::now() < until, "{key} could not be written: {error}"),
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn put_all(&self, root: &Path) {
        REMOTE_OBJECTS.iter().for_each(|(name, content)| self.put(&root.join(name), content));
    }
}

fn install() {
    // Whichever test is first.
    let _installed = rustls::crypto::ring::default_provider().install_default();
}

pub(crate) fn s3_writer(server: &Server) -> Writer {
    install();
    let store = AmazonS3Builder::new()
        .with_endpoint(server.url())
        .with_allow_http(true)
        .with_access_key_id(KEY)
        .with_secret_access_key(SECRET)
        .with_bucket_name("bucket")
        .with_region("us-east-1")
        .with_retry(RetryConfig { max_retries: 0, ..RetryConfig::default() })
        .build()
        .unwrap();
    // SeaweedFS makes a bucket when something is put into it.
    Writer::new(Arc::new(store), "s3://bucket/")
}

pub(crate) fn s3(url: &str, more: &[(&str, &str)]) -> (Remote, PathBuf) {
    let keys = [("endpoint_url", url), ("key", KEY), ("secret", SECRET), ("region", "us-east-1")];
    Remote::open(Path::new("s3://bucket/train"), &options(&[&keys, more].concat())).unwrap()
}

#[test]
fn seaweedfs_conforms() {
    let Some(server) = seaweed() else { return };
    let writer = s3_writer(&server);
    let (store, root) = s3(&server.url(), &[]);
    writer.put_all(&root);
    check_remote(&store, &root);
    a_cache_in_front_of_it_conforms_and_asks_nothing_twice(&server, &writer, &store, &root);
    check_changes(&store, &root, &|path, content| writer.put(path, content));
    many_objects_come_in_pages(&writer, &store, &root);
    an_etag_is_pinned(&writer, &store, &root);
    anybody_may_read(&server);
    google_is_spoken_to_in_the_same_way(&server);
    takes_copies(&store, Path::new("s3://bucket/copies"));
}

/// Copies can be put there, and what is written is read back.
fn takes_copies(store: &Remote, root: &Path) {
    for verifies in [false, true] {
        let sink = ObjectSink::open(store.clone(), root.to_owned(), verifies).unwrap();
        check_sink(&sink, store, root);
    }
}

fn a_cache_in_front_of_it_conforms_and_asks_nothing_twice(
    server: &Server,
    writer: &Writer,
    store: &Remote,
    root: &Path,
) {
    let place = tempfile::tempdir().unwrap();
    let cache = Cache::open(&place.path().join("cache"), CacheOptions::default()).unwrap();
    let cached = Cached::new(Arc::new(store.clone()), Arc::clone(&cache));
    assert_eq!(store.identity(), server.url(), "another server with such a bucket has other entries");
    (0..2).for_each(|_| check_remote(&cached, root));
    check_changes(&cached.clone().revalidating(true), root, &|path, content| writer.put(path, content));
    let before = store.traffic().unwrap().requests;
    for (name, content) in REMOTE_OBJECTS {
        let object = cached.read(&root.join(name), Duration::MAX, &mut |_| Ok(Vec::new())).unwrap();
        assert_eq!(object.bytes, *content);
    }
    assert_eq!(store.traffic().unwrap().requests, before);
    let stats = cache.stats();
    assert!(stats.corrupt == 0 && stats.passes == 0 && stats.stale > 0, "{stats:?}");
}

fn anybody_may_read(server: &Server) {
    let settings = [("endpoint_url", server.url()), ("anon", "true".to_owned())];
    let settings = StorageOptions::new(settings.map(|(name, value)| (name.to_owned(), value)));
    let (store, root) = Remote::open(Path::new("s3://bucket/train"), &settings).unwrap();
    check_objects(&store, &root, REMOTE_OBJECTS);
}

/// Google's storage has S3's interface too (it is called XML there), and it is the one that the client uses; the emulators of
/// it speak another one (docs/remote.md). So a server of S3 is what `gs://` is tried on: by itself without keys, which is
/// for reading only, and behind nginx, which takes the token and the name of metadata for it.
fn google_is_spoken_to_in_the_same_way(server: &Server) {
    let open = |url: String, (name, value): (&str, &str), root: &str| {
        Remote::open(Path::new(root), &options(&[("endpoint_url", &url), (name, value)])).unwrap()
    };
    let anon = ("token", "anon");
    let (store, root) = open(server.url(), anon, "gs://bucket/train");
    check_objects(&store, &root, REMOTE_OBJECTS);
    let listing = store.list(&root.join("dog")).unwrap();
    assert_eq!(listing.len(), 2);
    let Some(google) = google_in_front_of(server) else { return };
    let (store, root) = open(google.url(), ("bearer_token", "a-token"), "gs://open/train");
    // Everybody may write to this one.
    make_bucket(server, "open");
    let sink = ObjectSink::open(store.clone(), root.clone(), false).unwrap();
    let write = |path: &Path, content: &[u8]| {
        let stat = Stat { size_bytes: content.len() as u64, mtime_ns: 0 };
        sink.put(path.strip_prefix(&root).unwrap(), content, stat).unwrap();
    };
    REMOTE_OBJECTS.iter().for_each(|(name, content)| write(&root.join(name), content));
    check_remote(&store, &root);
    check_changes(&store, &root, &write);
    takes_copies(&store, Path::new("gs://open/copies"));
    let (denied, root) = open(google.url(), anon, "gs://open/train");
    assert_eq!(denied.stat(&root.join("cat/1.jpg")).unwrap_err().kind(), Kind::Denied);
}

/// What object_store cannot, as somebody without keys.
fn make_bucket(server: &Server, name: &str) {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", server.port)).unwrap();
    let head = "HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close";
    write!(stream, "PUT /{name} {head}\r\n\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert!(said.starts_with("HTTP/1.1 200 "), "{said}");
}

fn many_objects_come_in_pages(writer: &Writer, store: &Remote, root: &Path) {
    let names: Vec<_> = (0..1_100).map(|number| format!("{number:04}.jpg")).collect();
    let keys: Vec<_> =
        names.iter().map(|name| object_store::path::Path::parse(format!("train/many/{name}")).unwrap()).collect();
    let puts = keys.iter().map(|key| writer.store.put(key, "x".into()));
    for done in writer.runtime.block_on(futures_util::future::join_all(puts)) {
        done.unwrap();
    }
    let before = store.traffic().unwrap().requests;
    let listing = store.list(&root.join("many")).unwrap();
    let mut listed: Vec<_> = listing.iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect();
    listed.sort();
    assert_eq!(listed, names);
    assert_eq!(store.traffic().unwrap().requests - before, 2, "a request for each thousand");
}

fn an_etag_is_pinned(writer: &Writer, store: &Remote, root: &Path) {
    let path = root.join("cat/1.jpg");
    let before = store.stat(&path).unwrap();
    writer.put(&path, b"two");
    let after = store.stat(&path).unwrap();
    assert_ne!(before, after, "two versions of one second and one size are two");
    writer.put(&path, b"one");
    assert_eq!(store.stat(&path).unwrap().mtime_ns % 1_000_000_000, before.mtime_ns % 1_000_000_000);
}

#[test]
fn azurite_conforms() {
    let Some(server) = azurite() else { return };
    install();
    let account = "devstoreaccount1";
    let key = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";
    let endpoint = format!("{}/{account}", server.url());
    let settings = [("account_name", account), ("account_key", key), ("endpoint", &endpoint)];
    let store = MicrosoftAzureBuilder::new()
        .with_account(account)
        .with_access_key(key)
        .with_endpoint(endpoint.clone())
        .with_allow_http(true)
        .with_container_name("box")
        .build()
        .unwrap();
    let writer = Writer::new(Arc::new(store), "az://box/");
    make_container(&server, account, key);
    let (store, root) = Remote::open(Path::new("az://box/train"), &options(&settings)).unwrap();
    writer.put_all(&root);
    check_remote(&store, &root);
    check_changes(&store, &root, &|path, content| writer.put(path, content));
    takes_copies(&store, Path::new("az://box/copies"));
}

/// What object_store cannot: a PUT of the container, signed with the account's key.
fn make_container(server: &Server, account: &str, key: &str) {
    use std::io::{Read, Write};
    // Signed by Python's standard library, which every machine with the other tests has.
    let script = r#"
import base64, hashlib, hmac, sys, urllib.request
from email.utils import formatdate
url, account, key = sys.argv[1:4]
date, version = formatdate(usegmt=True), "2021-08-06"
text = f"PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{account}/{account}/box\nrestype:container"
sign = base64.b64encode(hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()).decode()
headers = {"x-ms-date": date, "x-ms-version": version, "Authorization": f"SharedKey {account}:{sign}", "Content-Length": ""}
request = urllib.request.Request(f"{url}/{account}/box?restype=container", method="PUT", headers=headers)
del request.headers["Content-length"]
print(urllib.request.urlopen(request).status)
"#;
    let mut child = std::process::Command::new("python3")
        .args(["-", &server.url(), account, key])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let mut said = String::new();
    child.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "no container: {said}");
}

#[test]
fn nginx_conforms_but_for_listing() {
    let Some(server) = nginx() else { return };
    let data = server.folder.path().join("data/my train");
    for (name, content) in REMOTE_OBJECTS {
        let path = data.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    let url = format!("{}/my%20train/", server.url());
    let (store, root) = Remote::open(Path::new(&url), &StorageOptions::default()).unwrap();
    assert_eq!(root, Path::new(&format!("{}/my train", server.url())));
    check_objects(&store, &root, REMOTE_OBJECTS);
    let error = ObjectSink::open(store.clone(), root.clone(), false).unwrap_err();
    assert_eq!(error.to_string(), "target: HTTP cannot be written to");
    let error = store.list(&root).unwrap_err();
    assert_eq!(error.kind(), Kind::Config);
    assert!(
        error.to_string().contains("HTTP has no directory listings") && error.hint().contains("manifest"),
        "{error}"
    );
    let write = |path: &Path, content: &[u8]| {
        let name = path.strip_prefix(&root).unwrap();
        // As those who want to be read do it: another file in its place.
        std::fs::write(data.join("new"), content).unwrap();
        std::fs::rename(data.join("new"), data.join(name)).unwrap();
    };
    // nginx's etag is of seconds and size: other sizes only.
    let path = root.join("cat/growing.jpg");
    write(&path, &vec![b'o'; 5 << 20]);
    let read = store.read(&path, Duration::MAX, &mut |_| {
        write(&path, &vec![b'n'; 6 << 20]);
        Ok(Vec::new())
    });
    assert!(read.is_ok_and(|object| object.bytes == vec![b'o'; 5 << 20]), "a file that is open stays what it was");
}
