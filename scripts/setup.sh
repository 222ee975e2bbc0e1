#!/usr/bin/env bash
# Installs what the build needs beyond Rust, Python and a C compiler, and says so.
#
#   scripts/setup.sh native   cmake and nasm, for libjpeg-turbo (without nasm it would decode at half the speed)
#   scripts/setup.sh nfs      Debian's User-Mode Linux and NFS server, which `make test-nfs` runs inside of it
#   scripts/setup.sh ffmpeg   FFmpeg's libraries, which one of the peers of `make bench-peers` decodes with
#   scripts/setup.sh servers  nginx and Azurite, which the tests of object stores start; below target/servers
#   scripts/setup.sh python   .venv with the "dev" dependency group of pyproject.toml, by the hashes of requirements.txt
#
# Nothing is done twice. PYTHON chooses the interpreter, VENV the place of the environment.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$@"; exit 1; }

native() {
    command -v cargo >/dev/null || die "cargo was not found: install Rust 1.89 or later"
    command -v cc >/dev/null || die "cc was not found: install a C compiler (Debian: apt-get install build-essential)"
    local missing=()
    for tool in cmake nasm; do
        command -v "$tool" >/dev/null || missing+=("$tool")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    install "to build libjpeg-turbo" "${missing[@]}"
}

# install WHY PACKAGE...
install() {
    local why=$1
    shift
    local apt=(apt-get)
    if ! command -v apt-get >/dev/null; then
        die "please install $* (this system has no apt-get)"
    elif [ "$(id -u)" -ne 0 ]; then
        # -n: never stop to ask for a password.
        sudo -n true 2>/dev/null || die "please run: sudo apt-get install $*"
        apt=(sudo -n env DEBIAN_FRONTEND=noninteractive apt-get)
    fi
    say "installing $* with apt-get, $why"
    export DEBIAN_FRONTEND=noninteractive
    # The lists may be missing (fresh containers) or old: fetch them only if the first try fails.
    "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
        { "${apt[@]}" update -qq >/dev/null && "${apt[@]}" install -y -qq --no-install-recommends "$@" >/dev/null; } ||
        die "apt-get could not install $*: please install them yourself"
}

nfs() {
    local PATH=$PATH:/usr/sbin:/sbin packages=() pair
    for pair in linux.uml:user-mode-linux rpc.nfsd:nfs-kernel-server mount.nfs:nfs-common rpcbind:rpcbind \
        modprobe:kmod iptables-legacy:iptables ip:iproute2; do
        command -v "${pair%%:*}" >/dev/null || packages+=("${pair##*:}")
    done
    [ ${#packages[@]} -gt 0 ] || return 0
    # They are for the kernel that is booted; this machine is not to become an NFS server by them.
    if [ -d /run/systemd/system ] || [ ! -e /usr/sbin/policy-rc.d ]; then
        die "please install ${packages[*]} yourself: Debian starts rpcbind and an NFS server with them. Nothing here needs" \
            "these to run; stop them with: systemctl disable --now rpcbind.socket rpcbind nfs-server"
    fi
    install "to boot a kernel with an NFS server in it" "${packages[@]}"
}

ffmpeg() {
    # type -P: a file, and not this function.
    type -P ffmpeg >/dev/null || install "for SPDL, a peer of the benchmark" ffmpeg
}

# Whether the tests may do without it.
may_miss() { [[ ,${FOREBAY_ALLOW_MISSING:-}, == *,$1,* ]]; }

# type -P: a file, and not one of these functions.
servers() {
    local PATH=$PATH:/usr/sbin failed=0
    mkdir -p target/servers
    may_miss nginx || type -P nginx >/dev/null || [ -x target/servers/nginx/usr/sbin/nginx ] || nginx || failed=1
    may_miss azurite || type -P azurite-blob >/dev/null || azurite || failed=1
    return $failed
}

# The program alone: as an installed package, Debian would start it as a service.
nginx() {
    local place=$PWD/target/servers/nginx
    say "unpacking Debian's nginx below $place"
    rm -rf "$place" && mkdir -p "$place"
    local fetch="cd '$place' && apt-get download -qq nginx >/dev/null 2>&1"
    if bash -c "$fetch" || { [ "$(id -u)" -eq 0 ] && apt-get update -qq >/dev/null && bash -c "$fetch"; }; then
        dpkg-deb -x "$place"/nginx_*.deb "$place" && "$place/usr/sbin/nginx" -v >/dev/null 2>&1 && return 0
    fi
    rm -rf "$place"
    say "nginx could not be unpacked: please install it (Debian: apt-get install nginx)"
    return 1
}

# What package-lock.json names, by its hashes, without running any code of the packages.
azurite() {
    local lock=tests/servers/package-lock.json place=target/servers
    cmp -s "$lock" "$place/installed.json" && return 0
    command -v npm >/dev/null || { say "Azurite needs npm (Debian: apt-get install npm)"; return 1; }
    say "installing Azurite with npm into $place (a minute)"
    cp tests/servers/package.json "$lock" "$place/"
    npm ci --prefix "$place" --omit=dev --no-audit --no-fund --ignore-scripts --loglevel=error >/dev/null ||
        { say "npm could not install Azurite"; return 1; }
    cp "$lock" "$place/installed.json"
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11 python3.14 python; do
        [ -n "$candidate" ] || continue
        # A name on PATH may be a shim that only says that the version is not active: ask it.
        if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
            printf '%s\n' "$candidate"
            return 0
        elif [ "$candidate" = "${PYTHON:-}" ]; then
            die "PYTHON=$PYTHON is not a Python 3.11 or later with venv"
        fi
    done
    die "Python 3.11 or later with venv was not found (Debian: apt-get install python3 python3-venv)"
}

environment() {
    local venv=${VENV:-.venv} stamp interpreter
    stamp=$venv/pyproject.installed # what was installed for: compared, because a checkout changes times
    local wanted=(pyproject.toml scripts/requirements.txt)
    if [ -f "$stamp" ] && cmp -s "$stamp" <(cat "${wanted[@]}") && "$venv/bin/python" -c '' 2>/dev/null; then
        return 0
    fi
    if ! "$venv/bin/python" -c '' 2>/dev/null; then
        interpreter=$(find_python)
        say "creating $venv with $("$interpreter" --version)"
        "$interpreter" -m venv "$venv"
    fi
    say "installing the dev group of pyproject.toml into $venv (torch alone is some GB: a few minutes)"
    local install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
    # Elsewhere a package may have to be built, of which no hash is known.
    local known='import sys, platform; v = sys.version_info[:2]; t = getattr(sys, "_is_gil_enabled", lambda: True)()
sys.exit(not ((3, 11) <= v <= (3, 13) and t and platform.machine() == "x86_64" and sys.platform == "linux"))'
    if "$venv/bin/python" -c "$known"; then
        "${install[@]}" --require-hashes --requirement scripts/requirements.txt
    else
        say "scripts/requirements.txt is tried with Python 3.11 to 3.13 on x86_64 only: installing without hashes"
        "${install[@]}" "pip>=25.1" # the first with --group
        "${install[@]}" --group dev
    fi
    cat "${wanted[@]}" >"$stamp"
}

case ${1:-} in
    native) native ;;
    nfs) nfs ;;
    ffmpeg) ffmpeg ;;
    servers) servers ;;
    python) environment ;;
    *) die "expected native, nfs, ffmpeg, servers or python, got '${1:-}'" ;;
esac
