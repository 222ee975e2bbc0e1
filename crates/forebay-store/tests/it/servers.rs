//! Servers of object stores: started, waited for, and killed at the end.

use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use forebay_store::testing::missing;
use tempfile::TempDir;

/// A program of `PATH`, of one of the project's environments, or of those that `scripts/setup.sh servers` installs. `None`
/// where it may be missing; else the test fails.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let project = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let venv = std::env::var_os("VENV").map_or_else(|| project.join(".venv"), |venv| project.join(venv));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let servers = project.join("target/servers");
    let own = [venv.join("bin"), servers.join("node_modules/.bin"), servers.join("nginx/usr/sbin"), "/usr/sbin".into()];
    let places = std::env::split_paths(&path).chain(own);
    let found = places.map(|place| place.join(program)).find(|candidate| candidate.is_file());
    if found.is_none() {
        missing(if program == "azurite-blob" { "azurite" } else { program }, "it is not installed");
    }
    found
}

/// Ports for this process alone, which the kernel gives to no connection by itself. `python/tests/ports.py` does the same.
pub(crate) fn ports<const N: usize>() -> [u16; N] {
    static LOCKS: Mutex<Vec<File>> = Mutex::new(Vec::new());
    let folder = std::env::temp_dir().join("forebay-test-ports");
    std::fs::create_dir_all(&folder).unwrap();
    let is_ours = |port: &u16| {
        let lock = File::create(folder.join(port.to_string())).unwrap();
        let is_free = lock.try_lock().is_ok() && TcpListener::bind(("127.0.0.1", *port)).is_ok();
        if is_free {
            LOCKS.lock().unwrap().push(lock);
        }
        is_free
    };
    let mut free = (20_000..30_000).filter(is_ours);
    [(); N].map(|()| free.next().expect("a port that no other test has"))
}

/// A server, until it is dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
    pub(crate) folder: TempDir,
}

impl Server {
    pub(crate) fn start(port: u16, folder: TempDir, command: &mut Command) -> Self {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut server = Self { child, port, folder };
        let until = Instant::now() + Duration::from_secs(60);
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            assert!(server.child.try_wait().unwrap().is_none(), "{command:?} ended");
            assert!(Instant::now() < until, "{command:?} does not listen");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

pub(crate) const KEY: &str = "testkey-0123456789";
pub(crate) const SECRET: &str = "testsecret-very-secret-0123456789";

/// SeaweedFS with its S3 gateway.
pub(crate) fn seaweed() -> Option<Server> {
    let program = find("weed")?;
    let folder = tempfile::tempdir().unwrap();
    let config = format!(
        r#"{{"identities":[
        {{"name":"me","credentials":[{{"accessKey":"{KEY}","secretKey":"{SECRET}"}}],"actions":["Admin","Read","Write","List"]}},
        {{"name":"anonymous","actions":["Read","List","Write:open","Admin:open"]}}]}}"#
    );
    std::fs::write(folder.path().join("s3.json"), config).unwrap();
    let [s3, grpc, master, master_grpc, volume, volume_grpc, filer, filer_grpc] = ports();
    let argument = |name: &str, value: u16| format!("-{name}={value}");
    let mut command = Command::new(program);
    command
        .current_dir(folder.path())
        .args(["-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-filer", "-s3"])
        .args(["-volume.max=10", "-master.volumeSizeLimitMB=64", "-master.telemetry=false", "-s3.iam=false"])
        .arg(format!("-dir={}", folder.path().display()))
        .arg(format!("-s3.config={}", folder.path().join("s3.json").display()))
        .args([argument("s3.port", s3), argument("s3.port.grpc", grpc), argument("master.port", master)])
        .args([argument("master.port.grpc", master_grpc), argument("volume.port", volume)])
        .args([argument("volume.port.grpc", volume_grpc), argument("filer.port", filer)])
        .args([argument("filer.port.grpc", filer_grpc), "-s3.port.iceberg=0".into(), "-s3.port.lance=0".into()]);
    Some(Server::start(s3, folder, &mut command))
}

/// Azurite, which knows one account.
pub(crate) fn azurite() -> Option<Server> {
    let program = find("azurite-blob")?;
    let folder = tempfile::tempdir().unwrap();
    let [port] = ports();
    let mut command = Command::new(program);
    command.current_dir(folder.path()).args(["--blobHost", "127.0.0.1", "--blobPort", &port.to_string()]).args([
        "--inMemoryPersistence",
        "--disableTelemetry",
        "--skipApiVersionCheck",
        "--silent",
    ]);
    Some(Server::start(port, folder, &mut command))
}

/// nginx with the files of its folder's `data`.
pub(crate) fn nginx() -> Option<Server> {
    nginx_with("root data;")
}

/// Google's XML interface in front of a server of S3 that asks for no keys: the token is taken off, and metadata has
/// Google's name on one side and Amazon's on the other. All else is the same.
pub(crate) fn google_in_front_of(server: &Server) -> Option<Server> {
    nginx_with(&format!(
        "client_max_body_size 0;
         location / {{
             if ($http_authorization !~ \"^Bearer .\") {{ return 401; }}
             proxy_pass http://127.0.0.1:{};
             proxy_http_version 1.1;
             proxy_request_buffering off;
             proxy_set_header Authorization \"\";
             proxy_set_header x-amz-meta-forebay $http_x_goog_meta_forebay;
             add_header x-goog-meta-forebay $upstream_http_x_amz_meta_forebay;
         }}",
        server.port
    ))
}

fn nginx_with(location: &str) -> Option<Server> {
    let program = find("nginx")?;
    let folder = tempfile::tempdir().unwrap();
    let [port] = ports();
    let root = folder.path().display();
    let config = format!(
        "daemon off; worker_processes 1; pid {root}/pid; error_log {root}/error.log; events {{}}
         http {{ access_log off; client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;
         uwsgi_temp_path {root}/d; scgi_temp_path {root}/e; server {{ listen 127.0.0.1:{port}; {location} }} }}"
    );
    std::fs::create_dir(folder.path().join("data")).unwrap();
    std::fs::write(folder.path().join("nginx.conf"), config).unwrap();
    // Its worker runs as another user.
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(folder.path(), open).unwrap();
    let mut command = Command::new(program);
    command.arg("-c").arg(folder.path().join("nginx.conf")).arg("-p").arg(folder.path());
    Some(Server::start(port, folder, &mut command))
}
