//! What errors say, and what they never say.

use std::path::Path;
use std::time::Duration;

use forebay_core::{Error, Kind};
use forebay_store::{Remote, Store};

use crate::remote::{options, s3};
use crate::scripted::{Request, serve, status};
use crate::servers::{KEY, SECRET, ports};

const TOKEN: &str = "sessiontoken-very-secret-0123456789";

fn read(store: &Remote, path: &Path) -> Error {
    store.read(path, Duration::from_secs(5), &mut |_| Ok(Vec::new())).map(drop).unwrap_err()
}

/// Everything that an error has to say, chain and all.
fn text(error: &Error) -> String {
    let mut text = format!("{error} {error:?} {} {:?}", error.hint(), error.detail());
    let mut next = std::error::Error::source(error);
    while let Some(source) = next {
        text += &format!(" {source} {source:?}");
        next = source.source();
    }
    text
}

#[test]
fn no_key_is_ever_repeated_whatever_the_server_says() {
    // A server that sends back all that it got.
    let echo = |line: &'static str| {
        move |_: usize, request: &Request| {
            let all = format!("{} {}", request.line, request.headers.join(" "));
            // And what it knows of the keys by itself.
            let keys = if request.header("x-amz-date").is_some() { [SECRET, TOKEN] } else { [""; 2] }.join(" ");
            let body = format!("<Error><Code>Odd</Code><Message>{all} {keys}</Message><Sign>{all}</Sign></Error>");
            status(line, "x-amz-request-id: 1\r\n", &body)
        }
    };
    for line in ["400 Bad Request", "401 x", "403 Forbidden", "404 Not Found", "412 x", "429 x", "500 x", "503 x"] {
        let server = serve(echo(line));
        let (store, root) = s3(&server.url, &[("token", TOKEN)]);
        let errors =
            [read(&store, &root.join("1.jpg")), store.stat(&root).unwrap_err(), store.list(&root).unwrap_err()];
        let azure =
            [("account_name", "me"), ("sas_token", "sv=1&sig=signature-very-secret"), ("endpoint", &server.url)];
        let (azure, azure_root) = Remote::open(Path::new("az://box/train"), &options(&azure)).unwrap();
        let web = server.url.replace("http://", "http://me:password-very-secret@");
        let (web, web_root) = Remote::open(Path::new(&web), &options(&[])).unwrap();
        let others = [read(&azure, &azure_root.join("1.jpg")), read(&web, &web_root.join("1.jpg"))];
        assert!(
            server.requests.lock().unwrap().iter().any(|request| request.line.contains("very-secret")),
            "it is sent"
        );
        for error in errors.iter().chain(&others) {
            let text = text(error);
            for secret in [SECRET, TOKEN, "very-secret", "bWU6cGFzc3dvcmQtdmVyeS1zZWNyZXQ"] {
                assert!(!text.contains(secret), "{line}: {text}");
            }
        }
        let shown = format!("{store:?} {azure:?} {web:?} {:?}", store.traffic());
        assert!(!shown.contains("very-secret") && !shown.contains(KEY), "{shown}");
    }
}

#[test]
fn where_nobody_listens_is_said() {
    let [port] = ports();
    let (store, root) = s3(&format!("http://127.0.0.1:{port}"), &[]);
    let error = read(&store, &root.join("1.jpg"));
    assert_eq!(
        (error.kind(), error.is_transient(), error.errno()),
        (Kind::Unavailable, true, Some(libc::ECONNREFUSED))
    );
    assert_eq!(error.message(), "could not be read: \"127.0.0.1\" refused the connection");
    assert_eq!(error.path(), Some(Path::new("s3://bucket/train/1.jpg")));
}

#[test]
fn a_name_that_nobody_knows_is_said() {
    // Reserved for that: no resolver may answer it.
    let (store, root) = s3("http://nowhere.invalid:9000", &[]);
    let error = read(&store, &root.join("1.jpg"));
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, true), "{}", text(&error));
    assert_eq!(error.message(), "could not be read: the name \"nowhere.invalid\" could not be resolved");
}

#[test]
fn a_server_without_tls_is_said_and_not_asked_again() {
    let server = serve(|_, _| status("200 OK", "", ""));
    let (store, root) = s3(&server.url.replace("http://", "https://"), &[]);
    let error = read(&store, &root.join("1.jpg"));
    assert!(error.message().contains("no TLS connection to \"127.0.0.1\""), "{}", text(&error));
    assert!(!error.is_transient());
}

#[test]
fn denied_says_where_keys_are_looked_for() {
    let server = serve(|_, _| {
        let body = "<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>";
        status("403 Forbidden", "x-amz-request-id: R1\r\n", body)
    });
    let (store, root) = s3(&server.url, &[]);
    let error = read(&store, &root.join("1.jpg"));
    assert_eq!((error.kind(), error.is_transient()), (Kind::Denied, false));
    assert_eq!(error.message(), "could not be read: S3 answered 403 AccessDenied: Access Denied (request id R1)");
    assert!(error.hint().contains("AWS_ACCESS_KEY_ID") && error.hint().contains("anon"), "{}", error.hint());
}
