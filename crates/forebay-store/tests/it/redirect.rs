//! Redirects: followed within one server, refused to any other, whatever credentials the request has.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::{Error, Kind};
use forebay_store::{Object, Remote, Store};

use crate::remote::options;
use crate::scripted::{Act, Request, Scripted, content, serve, status, whole};

/// A root of each protocol whose server is at `url`, with a secret of every kind that it takes.
fn roots(url: &str) -> Vec<(Remote, PathBuf)> {
    let (s3, gcs, azure) = ("s3://bucket/data", "gs://bucket/data", "az://box/data");
    let http = format!("{url}/data");
    let key = "Y2FuYXJ5LWFjY291bnQta2V5";
    let settings: [(&str, &[(&str, &str)]); 8] = [
        (s3, &[("endpoint_url", url), ("key", "canary-key"), ("secret", "canary-secret"), ("token", "canary-session")]),
        (s3, &[("endpoint_url", url), ("anon", "true")]),
        (gcs, &[("endpoint_url", url), ("bearer_token", "canary-google")]),
        (azure, &[("endpoint", url), ("account_name", "me"), ("sas_token", "sv=1&sig=canary-sas")]),
        (azure, &[("endpoint", url), ("account_name", "me"), ("account_key", key)]),
        (azure, &[("endpoint", url), ("account_name", "me"), ("bearer_token", "canary-bearer")]),
        (&http, &[("token", "canary-http")]),
        (&http, &[("username", "canary-user"), ("password", "canary-password")]),
    ];
    settings.map(|(root, settings)| Remote::open(Path::new(root), &options(settings)).unwrap()).into()
}

fn read((store, root): &(Remote, PathBuf)) -> Result<Object, Error> {
    store.read(&root.join("1.jpg"), Duration::from_secs(20), &mut |_| Ok(Vec::new()))
}

fn led_to(url: String, code: &'static str) -> Scripted {
    serve(move |_, _| status(code, &format!("Location: {url}/canary-path?x=1\r\n"), ""))
}

const CODES: [&str; 5] =
    ["301 Moved Permanently", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"];

#[test]
fn no_other_server_is_asked_and_no_secret_leaves_with_a_redirect() {
    let foreign = serve(|_, request| vec![Act::Send(whole(request, &content(), "v1"))]);
    let port = foreign.url.rsplit(':').next().unwrap().to_owned();
    // Another port, another name of this machine, another scheme.
    let targets = [foreign.url.clone(), format!("http://localhost:{port}"), format!("https://127.0.0.1:{port}")];
    for code in CODES {
        for target in &targets {
            let server = led_to(target.clone(), code);
            for root in roots(&server.url) {
                let error = read(&root).unwrap_err();
                assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, false), "{error}");
                let expected = format!("it redirects to another server, {target}");
                assert!(error.message().ends_with(&expected), "{error}");
                assert!(!format!("{error:?} {}", error.hint()).contains("canary"), "{error:?}");
            }
        }
    }
    assert_eq!(foreign.requests.lock().unwrap().len(), 0);
}

#[test]
fn a_redirect_within_the_server_is_followed_and_says_not_where_from() {
    for code in CODES {
        let server = serve(move |_, request| match request.line.contains("/moved") {
            true => vec![Act::Send(whole(request, &content(), "v1"))],
            false => status(code, "Location: /moved?x=1\r\n", ""),
        });
        for root in roots(&server.url) {
            assert!(read(&root).unwrap().bytes == content(), "{code}");
        }
        let requests = server.requests.lock().unwrap();
        assert!(requests.len() == 16, "{}", requests.len());
        let referer = |request: &Request| request.header("referer").map(str::to_owned);
        assert!(requests.iter().all(|request| referer(request).is_none()), "{requests:?}");
    }
}

#[test]
fn redirects_in_a_circle_end() {
    let server = serve(|number, _| status("302 Found", &format!("Location: /{}\r\n", number % 2), ""));
    let (store, root) = Remote::open(Path::new(&format!("{}/data", server.url)), &options(&[])).unwrap();
    let error = read(&(store, root)).unwrap_err();
    assert_eq!((error.kind(), error.is_transient()), (Kind::Unavailable, false), "{error}");
    assert!(server.requests.lock().unwrap().len() <= 12);
}
