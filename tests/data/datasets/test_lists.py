"""lists.py: CSV and JSON lines as people and programs write them, and one line for a bad row."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import InputError
from vitrail.data.dataset import ImageDataset
from vitrail.data.datasets.lists import Columns, open_csv, open_jsonl, parse_list
from vitrail.data.datasets.open import open_data


def write(path: Path, content: str | bytes | list[Any]) -> Path:
    if isinstance(content, list):
        content = "\n".join(json.dumps(row) for row in content)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def listed(dataset: ImageDataset) -> list[tuple[str, str]]:
    return [(dataset.where(i), dataset.classes[label]) for i, label in enumerate(dataset.labels)]


ROWS = [("a/1.jpg", "cat"), ("b 2.jpg", "dog"), ("a/3", "cat")]


@pytest.mark.parametrize(
    "text",
    [
        "path,label\na/1.jpg,cat\nb 2.jpg,dog\na/3,cat\n",
        "a/1.jpg,cat\nb 2.jpg,dog\na/3,cat",
        "\ufeffpath,label\r\na/1.jpg,cat\r\n\r\nb 2.jpg,dog\r\na/3,cat\r\n\r\n",
        'x,Label ,Image\n1,cat,"a/1.jpg"\n2,dog,"b 2.jpg"\n3,"cat",a/3\n',
        "filename\tclass\na/1.jpg\tcat\nb 2.jpg\tdog\na/3\tcat\n",
        "file;target\na/1.jpg;cat\nb 2.jpg;dog\na/3;cat\n",
        "path,label\ra/1.jpg,cat\rb 2.jpg,dog\ra/3,cat\r",
    ],
)
def test_csv_files_of_many_kinds(tmp_path: Path, text: str) -> None:
    dataset = open_csv(write(tmp_path / "l.csv", text), "all")
    assert listed(dataset) == ROWS
    assert dataset.classes == ("cat", "dog")
    assert (dataset.root, dataset.notes) == (tmp_path, ())


def test_tabs_in_a_file_that_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "l.TSV", "a, b.jpg\tcat, small\nc.jpg\tdog\n")
    assert listed(open_csv(path, "all")) == [("a, b.jpg", "cat, small"), ("c.jpg", "dog")]


def test_json_lines(tmp_path: Path) -> None:
    text = b'{"image": "a/1.jpg", "label": "cat"}\r\n\n{"label": "dog", "image": "b 2.jpg"}\n'
    text += b'{"image": "a/3", "label": "cat", "more": [1]}'
    assert listed(open_jsonl(write(tmp_path / "l.jsonl", text), "all")) == ROWS


def test_images_are_read_from_the_lists_folder_or_anywhere(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "1.jpg", b"one")
    other = write(tmp_path / "2.jpg", b"two")
    name = b"latin \xe9.jpg"
    with open(os.path.join(os.fsencode(tmp_path), b"in", name), "wb") as file:
        file.write(b"three")
    text = b"1.jpg,a\n" + os.fsencode(other) + b",b\n../2.jpg,b\n" + name + b",a\ngone.jpg,a\n"
    dataset = open_csv(write(tmp_path / "in" / "l.csv", text), "all")
    assert [dataset.read(index) for index in range(4)] == [b"one", b"two", b"two", b"three"]
    assert dataset.where(3) == r"latin \xe9.jpg"
    with pytest.raises(FileNotFoundError):
        dataset.read(4)


CELLS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1)


@settings(max_examples=40)
@given(st.dictionaries(CELLS.filter(lambda name: "://" not in name), st.sampled_from("abc")))
def test_what_a_csv_writer_wrote_is_read(tmp_path_factory: Any, rows: dict[str, str]) -> None:
    path = tmp_path_factory.getbasetemp() / "written.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("path", "label"), *rows.items(), ("last.jpg", "d")])
    dataset = open_csv(path, "all")
    assert len(dataset) == len(rows) + ("last.jpg" not in rows)
    assert [dataset.classes[label] for label in dataset.labels][: len(rows)] == [*rows.values()]


def test_several_labels(tmp_path: Path) -> None:
    dataset = open_csv(
        write(tmp_path / "l.csv", "path,labels\n1,cat|dog\n2,\n3,cow\n4,dog\n"), "all"
    )
    assert dataset.multilabel
    assert dataset.classes == ("cat", "cow", "dog")
    assert dataset.labels.tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]]
    rows = [{"file": "1", "labels": ["b", "a"]}, {"file": "2", "labels": []}]
    assert open_jsonl(write(tmp_path / "l.jsonl", rows), "all").labels.tolist() == [[1, 1], [0, 0]]


def test_whole_numbers_count_into_classes_txt(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "path,label\n1,2\n2,0\n")
    assert open_csv(path, "all").classes == ("0", "2")
    write(tmp_path / "classes.txt", "cat\r\ncow\r\nred dog\r\n\r\n")
    dataset = open_csv(path, "all")
    assert dataset.classes == ("cat", "cow", "red dog")
    assert dataset.labels.tolist() == [2, 0]
    write(tmp_path / "classes.txt", "a\nb\n\nc\n")
    assert refused(path) == f"{tmp_path}/classes.txt line 3: no name; expected one class per line"
    write(tmp_path / "classes.txt", "a\nb\na\n")
    assert refused(path) == (
        f"{tmp_path}/classes.txt line 3: 'a' appears twice; expected one class per line"
    )


def test_a_column_of_splits(tmp_path: Path) -> None:
    text = "path,label,split\n1,a,train\n2,b,train\n3,a,Validation\n4,b,test\n"
    path = write(tmp_path / "l.csv", text)
    assert listed(open_csv(path)) == [("1", "a"), ("2", "b")]
    assert listed(open_csv(path, "val")) == [("3", "a")]
    assert listed(open_csv(path, "test")) == [("4", "b")]
    assert open_csv(path, "test").labels.tolist() == [1], "numbered over all splits"
    assert len(open_csv(path, "all")) == 4
    path = write(path, "path,label,split\n1,a,train\n2,b,test\n")
    assert listed(open_csv(path, "val")) == [("2", "b")]
    assert open_csv(path, "val").name == f"{path} (test)"


def test_without_splits_a_tenth_is_held_out(tmp_path: Path) -> None:
    rows = "".join(f"{label}/{number},{label}\n" for label in "ab" for number in range(20))
    path = write(tmp_path / "l.csv", rows)
    train, val = (listed(open_csv(path, split)) for split in ("train", "val"))
    assert (len(train), len(val)) == (36, 4)
    assert sorted(train + val) == sorted(listed(open_csv(path, "all")))
    assert listed(open_csv(path, "val", seed=1)) != val


def test_columns_may_be_chosen(tmp_path: Path) -> None:
    text = "photo,species,label,use\n1,cat,x,val\n2,dog,y,train\n"
    path = write(tmp_path / "l,1.csv", text)
    name, columns = parse_list(f"{path},path=photo,label=species,split=use")
    assert (name, columns) == (path, Columns("photo", "species", "use"))
    assert listed(open_csv(path, columns=columns)) == [("2", "dog")]
    assert parse_list("l,1.csv") == (Path("l,1.csv"), Columns())
    assert parse_list("l.csv,size=3") == (Path("l.csv,size=3"), Columns())
    assert parse_list("~/l.csv,label=a=b")[1] == Columns(label="a=b")
    assert refused(path) == (
        f"{path}: no column is named path or file or filename or image; "
        "name one of 'photo', 'species', 'label', 'use', as in l,1.csv,path=COLUMN"
    )
    with pytest.raises(InputError) as caught:
        open_csv(path, columns=Columns(path="photos", label="label"))
    assert str(caught.value) == f"{path} has no column 'photos'; did you mean 'photo'?"


def test_rows_that_repeat_another(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "path,label\n1,a\n2,b\n1,a\n1,a\n")
    dataset = open_csv(path, "all")
    assert listed(dataset) == [("1", "a"), ("2", "b")]
    assert dataset.notes == (f"{path}: 2 repeated rows left out",)
    write(path, "path,label\n1,a\n2,b\n1,b\n")
    assert refused(path) == (
        f"{path} line 4: '1' appears twice, with another label or split in line 2"
    )


def refused(path: Path, opener: Any = open_csv) -> str:
    with pytest.raises(InputError) as caught:
        opener(path, "all")
    assert "\n" not in str(caught.value)
    return str(caught.value)


NO_PATH = "expected an image's path, got "
NO_LABEL = "expected a label of text or a whole number, got "
NO_SPLIT = "expected one of train, val, test, got "


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("path,label\n1,a\n2\n", " line 3: expected 2 columns, got 1"),
        ("path,label\n1,a\n2,b,c\n", " line 3: expected 2 columns, got 3"),
        ('path,label\n1,a\n"2,b\n3,c\n', " line 4: unexpected end of data"),
        ('path,label\n"1"x,a\n', " line 2: ',' expected after '\"'"),
        ('path,label\n"1\n2",a\n,b\n', " line 4: " + NO_PATH + "''"),
        ("path,label\n1,a\n2,\n", " line 3: it has no label"),
        ("path,label\n1,a\n\n\n2,[1\n", " line 5: '[1' is not a JSON list"),
        ("path,label,split\n1,a,train\n2,b,trian\n", " line 3: " + NO_SPLIT + "'trian'"),
        ("path,label,split\n1,a,train\n2,b,\n", " line 3: " + NO_SPLIT + "''"),
        (
            "path,label\nhttps://x.org/1.jpg,a\n",
            " line 2: 'https://x.org/1.jpg' is a URL; download it and give the file's path",
        ),
        ("path,label\na\0b,a\n", " line 2: " + NO_PATH + "'a\\x00b'"),
        ("", " is empty; expected a row for each image"),
        ("\n\n", " is empty; expected a row for each image"),
        ("path,label\n", " is empty; expected a row for each image"),
        (
            "photo,kind\n1,a\n",
            ": no column is named path or file or filename or image; "
            "name one of 'photo', 'kind', as in l.csv,path=COLUMN",
        ),
        (
            "path,kind\n1,a\n",
            ": no column is named label or class or labels or target; "
            "name one of 'path', 'kind', as in l.csv,label=COLUMN, or columns of numbers with "
            "targets=COLUMN+COLUMN",
        ),
        (b"\xff\xfep\0a\0", " is UTF-16 text; save it as UTF-8"),
    ],
)
def test_bad_csv_files(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write(tmp_path / "l.csv", text)
    assert refused(path) == f"{path}{problem}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"path": "1", "label": 1}\n{"path"\n', " line 2: Expecting ':' delimiter"),
        ('{"path": "1", "label": 1}\n\n["1"]\n', " line 3: expected an object: {…}"),
        ('{"path": "1", "label": 1}\n{"label": 1}\n', " line 2: " + NO_PATH + "None"),
        ('{"path": "1", "label": 1}\n{"path": "2"}\n', " line 2: it has no label"),
        ('{"path": "1", "label": {}}\n', " line 1: " + NO_LABEL + "'{}'"),
        ('{"path": "\\ud800", "label": 1}\n', " line 1: '\\ud800' is not a valid file name"),
        ('{"path": "1", "label": 1, "split": 3}\n', " line 1: " + NO_SPLIT + "3"),
        (
            '{"path": "1", "label": 1, "split": "val"}\n{"path": "2", "label": 1}\n',
            " line 2: no split, where other rows have one",
        ),
        ("", " is empty; expected a row for each image"),
    ],
)
def test_bad_json_lines(tmp_path: Path, text: str, problem: str) -> None:
    path = write(tmp_path / "l.jsonl", text)
    assert refused(path, open_jsonl) == f"{path}{problem}"


def test_a_label_that_classes_txt_lacks(tmp_path: Path) -> None:
    path = write(tmp_path / "l.csv", "path,label\n1,cat\n2,dgo\n")
    write(tmp_path / "classes.txt", "cat\ndog")
    assert refused(path) == f"{path} line 3: unknown class 'dgo'; did you mean 'dog'?"
    write(path, "path,label\n1,1\n2,2\n")
    assert refused(path) == f"{path} line 3: expected a class from 0 to 1, got 2"


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    write(tmp_path / "list.csv", "1,a")
    assert refused(tmp_path / "lists.csv") == (
        f"no file {tmp_path}/lists.csv; did you mean 'list.csv'?"
    )
    assert refused(tmp_path) == f"cannot read {tmp_path}: Is a directory"


def test_a_list_without_labels_is_one_class_where_none_are_needed(tmp_path: Path) -> None:
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    (tmp_path / "list.csv").write_text("image,split\na.jpg,train\nb.jpg,val\nc.jpg,train\n")
    (tmp_path / "list.jsonl").write_text('{"path": "a.jpg"}\n{"path": "b.jpg"}\n')
    found = open_data(f"csv:{tmp_path}/list.csv", labels=False)
    assert isinstance(found, ImageDataset)
    assert (found.classes, [found.where(i) for i in range(2)]) == (("image",), ["a.jpg", "c.jpg"])
    lines = open_data(f"jsonl:{tmp_path}/list.jsonl", split="all", labels=False)
    assert isinstance(lines, ImageDataset)
    assert lines.labels.tolist() == [0, 0]
    with pytest.raises(InputError, match="no column is named label"):
        open_data(f"csv:{tmp_path}/list.csv")
