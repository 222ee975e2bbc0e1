"""Manifests in other people's hands: read whole, filtered and joined, and what they write is read again.

pandas and DuckDB are in the test group. polars and Spark are large: their cases run where they are installed.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from PIL import Image

import forebay as fb
from forebay import errors
from missing import package

NAMES = ["ä.jpg", "q\"uo'te.png", "com,ma;.jpg", "new\nline.png", "sub/e😀.webp", "sub/t\tab.bmp"]
CLASSES = ['it\'s, "quoted"', "kätzchen", "日本"]
Row = dict[str, Any]


class Pandas:
    def rows(self, path: Path) -> list[Row]:
        frame = pandas.read_parquet(path)
        wholes = set(frame.columns) & {"label", "size_bytes", "mtime_ns", "width", "height"}
        assert {str(frame[name].dtype).lower() for name in wholes} == {"int64"}
        return list(frame.astype(object).where(frame.notna(), None).to_dict("records"))

    def of_class(self, path: Path, name: str) -> int:
        return len(pandas.read_parquet(path, filters=[("class", "==", name)]))

    def joined(self, left: Path, right: Path) -> int:
        frames = pandas.read_parquet(left), pandas.read_parquet(right)
        return len(frames[0].merge(frames[1], on=["path", "mtime_ns"]))

    def write(self, path: Path, name: str, to: Path) -> Path:
        frame = pandas.read_parquet(path)
        frame[frame["class"] == name].to_parquet(to)
        return to


class DuckDB:
    def __init__(self) -> None:
        self._run = package("duckdb").connect().execute

    def rows(self, path: Path) -> list[Row]:
        asked = self._run("from read_parquet(?)", [str(path)])
        names = [column[0] for column in asked.description]
        return [dict(zip(names, row, strict=True)) for row in asked.fetchall()]

    def of_class(self, path: Path, name: str) -> int:
        return int(self._run("select count(*) from read_parquet(?) where class = ?", [str(path), name]).fetchone()[0])

    def joined(self, left: Path, right: Path) -> int:
        query = "select count(*) from read_parquet(?) one join read_parquet(?) two on one.path = two.path"
        query += " and one.mtime_ns is not distinct from two.mtime_ns"
        return int(self._run(query, [str(left), str(right)]).fetchone()[0])

    def write(self, path: Path, name: str, to: Path) -> Path:
        self._run(f"copy (from read_parquet(?) where class = ?) to '{to}' (format parquet)", [str(path), name])
        return to


class Polars:
    def __init__(self) -> None:
        self._polars = pytest.importorskip("polars", reason="polars is not installed")

    def rows(self, path: Path) -> list[Row]:
        return list(self._polars.read_parquet(path).to_dicts())

    def of_class(self, path: Path, name: str) -> int:
        chosen = self._polars.scan_parquet(path).filter(self._polars.col("class") == name)
        return int(chosen.select(self._polars.len()).collect().item())

    def joined(self, left: Path, right: Path) -> int:
        frames = self._polars.read_parquet(left), self._polars.read_parquet(right)
        return int(frames[0].join(frames[1], on=["path", "mtime_ns"], nulls_equal=True).height)

    def write(self, path: Path, name: str, to: Path) -> Path:
        chosen = self._polars.read_parquet(path).filter(self._polars.col("class") == name)
        chosen.write_parquet(to, compression="snappy")
        return to


class Spark:
    def __init__(self) -> None:
        sql = pytest.importorskip("pyspark.sql", reason="pyspark is not installed")
        settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "1"}
        self._session = sql.SparkSession.builder.master("local[1]").config(map=settings).getOrCreate()

    def rows(self, path: Path) -> list[Row]:
        return [row.asDict() for row in self._session.read.parquet(str(path)).collect()]

    def of_class(self, path: Path, name: str) -> int:
        frame = self._session.read.parquet(str(path))
        return int(frame.filter(frame["class"] == name).count())

    def joined(self, left: Path, right: Path) -> int:
        one, two = (self._session.read.parquet(str(path)) for path in (left, right))
        return int(one.join(two, (one.path == two.path) & one.mtime_ns.eqNullSafe(two.mtime_ns)).count())

    def write(self, path: Path, name: str, to: Path) -> Path:
        frame = self._session.read.parquet(str(path))
        frame.filter(frame["class"] == name).coalesce(1).write.parquet(str(to))
        (part,) = to.glob("part-*.parquet")
        with pytest.raises(errors.ForebayError, match="is a directory") as raised:
            fb.Manifest(to)
        assert "coalesce" in raised.value.hint
        return part


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Names that are awkward elsewhere, and three files of which something is not known."""
    root = tmp_path_factory.mktemp("readers") / 'dätä "x"'
    for name in CLASSES:
        (root / name / "sub").mkdir(parents=True)
        for number, file in enumerate(NAMES):
            Image.new("RGB", (20 + number, 30 + number)).save(root / name / file)
    (root / CLASSES[2] / "empty.jpg").touch()
    (root / CLASSES[2] / "no picture.jpg").write_bytes(b"nonsense")
    (root / CLASSES[2] / "gone.jpg").symlink_to("nowhere")
    return root


def scan(root: Path, output: Path, *more: str) -> Path:
    command = [sys.executable, "-m", "forebay", "scan", str(root), "-o", str(output), "--json", *more]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert len(json.loads(ended.stdout)["problems"]) == (3 if more else 1), ended.stderr
    return output


@pytest.mark.timeout(180)  # Spark's first query takes half a minute where others are busy
@pytest.mark.parametrize("program", [Pandas, DuckDB, Polars, Spark])
def test_a_manifest_is_a_table_like_any_other(program: Callable[[], Any], root: Path, tmp_path: Path) -> None:
    reader = program()
    plain, deep = scan(root, tmp_path / "plain.parquet"), scan(root, tmp_path / "deep.parquet", "--deep")
    names = [f"{name}/{file}" for name in CLASSES for file in NAMES]
    names += [f"{CLASSES[2]}/{file}" for file in ("empty.jpg", "no picture.jpg", "gone.jpg")]
    for path in (plain, deep):
        rows = reader.rows(path)
        assert [root / row["path"] for row in rows] == [Path(name) for name, _ in fb.ImageFolder(root).samples]
        assert sorted(row["path"] for row in rows) == sorted(names)
        for row in rows:
            assert row["class"] == row["path"].split("/")[0]
            assert row["label"] == CLASSES.index(row["class"])
            is_gone = row["path"].endswith("gone.jpg")
            known = None if is_gone else (root / row["path"]).stat()
            expected = (known.st_size, known.st_mtime_ns) if known else (None, None)
            assert (row["size_bytes"], row["mtime_ns"]) == expected, "to the last nanosecond"
            assert ("xxh3" in row) == (path == deep)
        assert [reader.of_class(path, name) for name in [*CLASSES, "none"]] == [6, 6, 9, 0]
    for row in rows:
        number = next((number for number, file in enumerate(NAMES) if row["path"].endswith(file)), None)
        if number is None:
            assert [row[name] for name in ("width", "height", "format", "xxh3")] == [None] * 4
        else:
            assert (row["width"], row["height"], len(row["xxh3"])) == (20 + number, 30 + number, 16)
            formats = {".jpg": "JPEG", ".png": "PNG", ".webp": "WebP", ".bmp": "BMP"}
            assert row["format"] == formats[Path(row["path"]).suffix]
    assert reader.joined(plain, deep) == 21

    # What it writes has the samples it chose, of the same versions; of the root it says nothing.
    written = reader.write(deep, CLASSES[2], tmp_path / "chosen.parquet")
    dataset = fb.ImageFolder(root, manifest=written)
    assert [Path(name) for name, _ in dataset.samples] == [root / row["path"] for row in rows if row["label"] == 2]
    assert dataset.class_to_idx == {CLASSES[2]: 2}
    assert reader.joined(written, deep) == 9
    assert dataset[0][1] == 2


def test_what_cannot_be_read_says_how_to_write_it(root: Path, tmp_path: Path) -> None:
    frame = pandas.read_parquet(scan(root, tmp_path / "m.parquet"))
    path = tmp_path / "other.parquet"
    for compression in ("zstd", "gzip", "brotli", "lz4"):
        frame.to_parquet(path, compression=compression)
        with pytest.raises(errors.ConfigError, match=r"expected snappy or none, got (zstd|gzip|brotli|lz4)") as raised:
            fb.Manifest(path)
        assert 'compression="snappy"' in raised.value.hint
    frame.to_parquet(path, compression=None)
    assert len(fb.Manifest(path, root=root)) == 21
    # As pandas has it who was not told that these are whole numbers.
    frame.astype({"mtime_ns": float}).to_parquet(path)
    with pytest.raises(errors.ConfigError, match=r'column "mtime_ns".*too large to be exact') as raised:
        fb.Manifest(path)
    assert "Int64" in raised.value.hint
