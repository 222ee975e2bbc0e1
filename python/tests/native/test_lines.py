"""Lines as samples: which there are, what becomes of odd ones, how their index is kept."""

import csv
import json
import os
import pickle
import random
from pathlib import Path
from typing import Any

import pytest

import forebay as fb

TEXT = b"\xef\xbb\xbfone\r\ntwo\n\nnul \0\nthr\xc3\xa9e"


def samples(dataset: Any, **options: Any) -> list[Any]:
    """All samples of an epoch in order, by their own loader."""
    loader = fb.DataLoader(dataset, batch_size=3, **options)
    return [sample for batch in loader for sample in batch]


def test_every_line_is_a_sample_by_its_file_and_number(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(TEXT)
    (tmp_path / "b.txt").write_bytes(b"")
    (tmp_path / "c.txt").write_bytes(b"\n")
    (tmp_path / "d.md").write_bytes(b"not one of them\n")
    lines = fb.TextLines(tmp_path)
    assert samples(lines) == [lines[at] for at in range(len(lines))] == ["one", "two", "", "nul \0", "thrée", ""]
    assert lines.paths[1] == f"{tmp_path}/a.txt#line 2" and lines.paths[5] == f"{tmp_path}/c.txt#line 1"
    assert lines.notes == [
        (f"{tmp_path}/a.txt", "begins with a byte order mark, which is left out"),
        (f"{tmp_path}/a.txt", "has 1 lines that end with CR LF, which is left out"),
        (f"{tmp_path}/a.txt", "has 1 NUL bytes, which stay as they are"),
        (f"{tmp_path}/a.txt", "has no line end after its last line, which is taken as whole"),
        (f"{tmp_path}/b.txt", "has no records"),
    ]
    assert samples(fb.TextLines(tmp_path / "a.txt")) == samples(fb.TextLines([tmp_path / "a.txt"]))
    assert samples(pickle.loads(pickle.dumps(lines))) == samples(lines)
    assert samples(fb.TextLines(tmp_path / "a.txt", str.upper)) == ["ONE", "TWO", "", "NUL \0", "THRÉE"]


def test_lines_are_those_of_open(tmp_path: Path) -> None:
    draw = random.Random(5)
    for number in range(20):
        content = "".join(
            draw.choice(["\n", "\r\n", "\n", "a", "ö ", "\0", "word "]) for _ in range(draw.randrange(300))
        )
        (tmp_path / f"{number:02}.txt").write_text(content, newline="")
    expected = []
    for path in sorted(tmp_path.iterdir()):
        with path.open(newline="\n") as file:
            expected += [line.removesuffix("\n").removesuffix("\r") if line.endswith("\n") else line for line in file]
    assert samples(fb.TextLines(tmp_path)) == expected


def test_lines_that_are_no_text_and_long_ones_are_failures_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\nbad \xfc\n" + b"x" * 5000 + b"\nlast\n")
    loader = fb.DataLoader(fb.TextLines(path, max_bytes=1000), batch_size=1, on_error="skip")
    assert [line for (line,) in loader] == ["good", "last"]
    assert [(failure.index, failure.code, failure.member, failure.offset) for failure in loader.failures] == [
        (1, "corrupt", "line 2", 5),
        (2, "exhausted", "line 3", 11),
    ]
    assert fb.TextLines(path, errors="replace")[1] == "bad \ufffd"
    assert fb.TextLines(path, encoding="latin-1")[1] == "bad ü"
    with pytest.raises(fb.errors.ConfigError, match="encoding: expected one of UTF-8, ASCII and Latin-1"):
        fb.TextLines(path, encoding="utf-16")


def test_labels_are_of_the_file_or_of_each_line(tmp_path: Path) -> None:
    for name in ("neg", "pos"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "all.txt").write_text(f"{name} 1\n{name} 2\n")
    by_directory = fb.TextLines(tmp_path, labels="directory")
    assert [by_directory[at] for at in range(4)] == [("neg 1", 0), ("neg 2", 0), ("pos 1", 1), ("pos 2", 1)]
    scored = fb.TextLines(tmp_path, labels=[0.5, 1.5, 2.5, 3.5])
    assert scored[2] == ("pos 1", 2.5)
    with pytest.raises(fb.errors.ConfigError, match="expected 4 values"):
        fb.TextLines(tmp_path, labels=[1, 2])


def test_json_lines_are_objects_or_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    rows = [{"text": f"Nr. {number}", "ids": [number, 2 * number], "more": {"n": None}} for number in range(5)]
    path.write_text("\n \n" + "\r\n".join(json.dumps(row) for row in rows))
    whole = fb.JsonLines(path)
    assert [whole[at] for at in range(len(whole))] == rows
    columns = fb.JsonLines(path, fields=["ids", "text"])
    batch = next(iter(fb.DataLoader(columns, batch_size=5)))
    assert batch["text"] == [row["text"] for row in rows] and batch["ids"].tolist() == [row["ids"] for row in rows]
    assert columns[1]["text"] == "Nr. 1" and columns[1]["ids"].tolist() == [1, 2]
    assert fb.JsonLines(path, lambda row: row["text"], fields=["ids", "text"])[3] == "Nr. 3"
    assert fb.JsonLines(path, fields="text")[3] == "Nr. 3"


def test_a_line_that_is_no_json_says_where(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": oops}\n{"b": 1}\n')
    loader = fb.DataLoader(fb.JsonLines(tmp_path, fields="a"), batch_size=1, on_error="skip")
    assert [batch.tolist() for batch in loader] == [[1]]
    assert [(failure.member, failure.message.partition(", after")[0]) for failure in loader.failures] == [
        ("line 3", f'"{tmp_path}/a.jsonl#line 3" is not JSON (column 7)'),
        ("line 4", f'"{tmp_path}/a.jsonl#line 4" has no field "a" (expected an object with a)'),
    ]


def test_csv_is_what_pythons_reader_makes_of_it(tmp_path: Path) -> None:
    draw = random.Random(9)
    words = ["", "a", 'q"q', "x,y", "line\nbreak", "crlf\r\n", "ümlaut", " space ", '"']
    rows = [[draw.choice(words) for _ in range(3)] for _ in range(300)]
    rows = [row for row in rows if row != ["", "", ""]]
    for number, part in enumerate((rows[:120], rows[120:])):
        with (tmp_path / f"{number}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["one", "two", "three"], *part])
    table = fb.Csv(tmp_path)
    assert len(table) == len(rows)
    assert [list(table[at].values()) for at in range(len(table))] == rows
    batch = next(iter(fb.DataLoader(table, batch_size=len(rows))))
    assert [list(row) for row in zip(*batch.values(), strict=True)] == rows
    tabs = tmp_path / "t.tsv"
    tabs.write_text("1\t2\n3\t4\n")
    named = fb.Csv(tabs, extensions=".tsv", delimiter="\t", header=False, columns=("x", "y"), dtypes={"y": "float32"})
    assert (named[1]["x"], named[1]["y"].item()) == ("3", 4.0)
    assert fb.Csv(tabs, extensions=".tsv", delimiter="\t", header=False)[0] == {"0": "1", "1": "2"}


def test_malformed_records_are_failures_with_line_and_column(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('name,age\nAda,36\n"open,1\nBob,x\nCy,1,2\n"D\nE",7\n')
    loader = fb.DataLoader(fb.Csv(path, dtypes={"age": "int16"}), batch_size=1, on_error="skip")
    assert [(row["name"][0], row["age"].item()) for row in loader] == [("Ada", 36), ("D\nE", 7)]
    name = f'"{path}#line'
    assert [failure.message.partition(", after")[0] for failure in loader.failures] == [
        f'{name} 3" has a quote that is not closed (column 1)',
        f'{name} 4" has "x" in the column "age" (expected int16)',
        f'{name} 5" has 3 fields (expected 2)',
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": "size"}, r"columns: expected columns of \['name', 'age'\], got 'size'"),
        ({"dtypes": {"size": "int8"}}, r"dtypes: expected columns of"),
        ({"dtypes": {"age": "complex"}}, "dtypes: expected"),
        ({"delimiter": ",,"}, "delimiter: expected one ASCII character"),
        ({"header": False, "columns": ("a",)}, "columns: expected 2 names"),
        ({"columns": ()}, "columns: expected names"),
    ],
)
def test_wrong_arguments_of_csv_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    (tmp_path / "a.csv").write_text("name,age\nAda,36\n")
    with pytest.raises(fb.errors.ConfigError, match=message):
        fb.Csv(tmp_path, **options)


def test_headers_that_differ_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("name,age\nAda,36\n")
    (tmp_path / "b.csv").write_text("age,name\n36,Ada\n")
    with pytest.raises(fb.errors.ConfigError, match=r"b\.csv.*another header"):
        fb.Csv(tmp_path)


def test_an_index_is_kept_and_used_while_its_files_are_the_same(tmp_path: Path) -> None:
    path, index = tmp_path / "a.txt", tmp_path / "lines.index"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert len(fb.TextLines(path, index=index)) == 3
    kept = index.read_bytes()
    # Other lines with the same size and time are not seen: the file is not read again.
    times = path.stat()
    path.write_bytes(b"one\ntwo\nth\nee\n")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert len(fb.TextLines(path, index=index)) == 3 and index.read_bytes() == kept
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns + 1_000_000_000))
    assert len(fb.TextLines(path, index=index)) == 4 and index.read_bytes() != kept
    # What is damaged is made again, what is something else stays.
    index.write_bytes(kept[:-9] + bytes(9))
    assert len(fb.TextLines(path, index=index)) == 4
    index.write_bytes(b"a diary")
    with pytest.raises(fb.errors.ConfigError, match="is no index of forebay's, and is not overwritten"):
        fb.TextLines(path, index=index)
    assert index.read_bytes() == b"a diary"


def test_the_index_of_a_manifest_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    manifest = tmp_path / "all.csv"
    manifest.write_text("path,score\na.txt,0.5\n")
    lines = fb.TextLines(tmp_path, manifest=manifest, labels="score")
    assert [lines[at] for at in range(2)] == [("one", 0.5), ("two", 0.5)]
    assert (tmp_path / "all.csv.index").exists()


def test_a_file_that_changes_after_it_was_indexed_is_stale(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\nthree\n")
    lines = fb.TextLines(path)
    path.write_text("one\ntwo\nthree\nfour\n")
    with pytest.raises(fb.ForebayError) as raised:
        samples(lines)
    assert raised.value.code == "stale"


def test_lines_longer_than_pieces_of_the_scan_are_whole(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * (9 << 20) + b"\nshort\n" + b"b" * (5 << 20))
    lines = fb.TextLines(path)
    assert [len(line) for line in samples(lines, num_workers=1)] == [9 << 20, 5, 5 << 20]
