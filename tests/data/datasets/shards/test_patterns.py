"""Texts that stand for shards, against the library that webdataset expands them with."""

import os
from pathlib import Path

import pytest

from tests.shelf import refusal
from vitrail.data.datasets.shards.patterns import list_shards, name_splits, without_signature

WEB = "https://example.org/"


@pytest.mark.parametrize(
    "text",
    [
        "a.tar",
        "{000..012}.tar",
        "{8..11}.tar",
        "{08..11}.tar",
        "{8..011}.tar",
        "{0..0}.tar",
        "{a,b,}x.tar",
        "{train,val}-{0..2}/{x,y}.tar",
        "d%20{1..2}.tar?key={a,b}",
    ],
)
def test_braces(text: str) -> None:
    expand = pytest.importorskip("braceexpand").braceexpand
    assert list_shards(WEB + text) == list(expand(WEB + text))


def test_order_and_several() -> None:
    text = f"{WEB}{{b,a}}{{0..1}}.tar::http://h/z.tar"
    assert list_shards(text) == [f"{WEB}{x}.tar" for x in ("b0", "b1", "a0", "a1")] + [
        "http://h/z.tar"
    ]


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flat/b.tar", "flat/a.tar", "flat/c.txt", "flat/.d.tar", "deep/val/a.tar"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "[x].tar").touch()
    (tmp_path / "empty").mkdir()
    os.mkfifo(tmp_path / "pipe.tar")
    monkeypatch.chdir(tmp_path)
    assert list_shards("flat") == ["flat/a.tar", "flat/b.tar"]
    assert list_shards("deep") == ["deep/val/a.tar"]
    assert list_shards("flat/*.t*") == ["flat/a.tar", "flat/b.tar", "flat/c.txt"]
    assert list_shards("flat/{b,a}.tar::[x].tar") == ["flat/b.tar", "flat/a.tar", "[x].tar"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list_shards("~/flat/a.tar") == [str(tmp_path / "flat" / "a.tar")]
    table = {
        "flat/d.tar": "no file or folder flat/d.tar; did you mean 'c.txt'",
        "flat/{a,z}.tar": "no file or folder flat/z.tar",
        "flat/q*.tar": "no .tar files in flat/q*.tar",
        "pipe.tar": "no file or folder pipe.tar",
        "empty": "no .tar files in empty",
        "": "no file or folder",
        "flat/a.tar::flat": "names flat/a.tar twice",
    }
    for text, said in table.items():
        assert said.partition("; did")[0] in refusal(list_shards, text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{0..3.tar", "expected {000..146} or {a,b}, one after the other, in '{0..3.tar'"),
        ("a}.tar", "one after the other"),
        ("{a,{b,c}}.tar", "one after the other"),
        ("{5..3}.tar", "{5..3} is not a range"),
        ("{a..f}.tar", "{a..f} is not a range; expected {000..146} or {a,b}"),
        ("{}.tar", "{} is not a range"),
        (f"{WEB}{{0..99999999999}}.tar", "stands for more than 100,000 shards"),
        (f"{WEB}{{0..9999}}{{0..9999}}.tar", "stands for more than 100,000 shards"),
        (f"{WEB}a.tar.gz", "expected an address that ends in .tar"),
        ("nosuch://bucket/a.tar", "nosuch://bucket/a.tar: nothing here can read nosuch://"),
        ("pipe:cat a.tar", "expected paths or https:// addresses"),
        ("file:///a.tar", "expected paths or https:// addresses"),
    ],
)
def test_texts_that_are_refused(text: str, said: str) -> None:
    assert said in refusal(list_shards, text)


def test_splits_by_name() -> None:
    table = {
        "d/train-000.tar": "train",
        "d/imagenet1k-validation-63.tar": "val",
        "d/TEST_0.tar": "test",
        "d/dev.0.tar": "val",
        "d/trainval0.tar": None,
        "d/latest-0.tar": None,
        "d/0.tar": None,
        f"{WEB}d/val-000.tar?train": "val",
    }
    for shard, split in table.items():
        assert name_splits([shard]) == [split]
    assert name_splits(["test/0.tar", "test/1.tar"]) == [None, None]  # where they just happen to be
    assert name_splits(["x/train/0.tar", f"{WEB}x/valid/0.tar", "x/val/test.tar"]) == [
        "train",
        "val",
        "test",
    ]


AWS = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AK%2F2026&X-Amz-Date=20261118T000000Z"
AZURE = "sv=2024-11-04&se=2026-11-19T00%3A00%3A00Z&sr=b&sp=r"


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        (f"{AWS}&X-Amz-Expires=3600&X-Amz-Signature=ab&X-Amz-Security-Token=c", ""),
        (f"versionId=7&{AWS}&X-Amz-Signature=ab&partNumber=2", "?versionId=7&partNumber=2"),
        ("AWSAccessKeyId=AK&Signature=a%2Fb&Expires=1790000000", ""),
        ("generation=3&X-Goog-Signature=ab&X-Goog-Expires=9&x-goog-date=1", "?generation=3"),
        (f"{AZURE}&sig=ab%3D&comp=x", "?comp=x"),
        ("Policy=e30_&Key-Pair-Id=K1&Signature=ab", ""),
        ("token=1234&page=5", "?page=5"),
        (AZURE, f"?{AZURE}"),  # ordinary parameters, where nothing is signed
        ("Expires=5&policy=best&st=3", "?Expires=5&policy=best&st=3"),
        ("", ""),
    ],
)
def test_what_signs_an_address_is_not_part_of_the_file(query: str, kept: str) -> None:
    address = "https://bucket.example/set/a.tar"
    assert without_signature(f"{address}?{query}" if query else address) == address + kept
