#!/usr/bin/env bash
# Writes scripts/requirements.txt anew: the dev group of pyproject.toml with versions and hashes, for every Python from 3.11 on.
# Needs uv (pip install uv). What is pinned stays as it is, unless UPGRADE=1.
set -euo pipefail
cd "$(dirname "$0")/.."
uv pip compile --quiet --group dev --universal --generate-hashes --python-version 3.11 --no-emit-index-url --no-annotate \
    --no-header ${UPGRADE:+--upgrade} --output-file scripts/requirements.txt pyproject.toml
