"""Groups of images, named by a pattern or a column."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.sets import encode, photo
from vitrail.config import InputError
from vitrail.data.datasets.groups import group_by_pattern, group_images, suggest_group
from vitrail.data.datasets.open import group_column, is_divided, open_dataset


def test_a_pattern_names_groups() -> None:
    names = ["a/p1_0.png", "b/p1_1.png", "a/p2_0.png"]
    assert group_by_pattern(names, r"(p\d+)_").tolist() == ["p1", "p1", "p2"]
    assert group_by_pattern(names, r"p\d").tolist() == ["p1", "p1", "p2"]
    with pytest.raises(InputError, match=r"does not match 'a/p2_0\.png'"):
        group_by_pattern(names, "p1")
    with pytest.raises(InputError, match="not a regular expression"):
        group_by_pattern(names, "(p1")
    with pytest.raises(InputError, match=r"matches no text of 'a/p1_0\.png', 'b/p1_1\.png'"):
        group_by_pattern(names, r"(\d*)")
    with pytest.raises(InputError, match=r"does not match 'a/p1_0\.png'"):
        group_by_pattern(names, r"(p2)?_0")


def write_list(folder: Path, *, split: bool = False) -> Path:
    """Write images of two classes and five patients, and their list."""
    rows = ["path,label,patient" + (",split" if split else "")]
    for number in range(10):
        (folder / f"{number}.png").write_bytes(encode(photo(number)))
        row = f"{number}.png,{'ab'[number % 2]},p{number // 2}"
        rows.append(row + (f",{'train' if number < 7 else 'val'}" if split else ""))
    (folder / "list.csv").write_text("\n".join(rows) + "\n")
    return folder / "list.csv"


def test_a_column_names_groups(tmp_path: Path) -> None:
    file = write_list(tmp_path)
    dataset = open_dataset(f"csv:{file}", split="all")
    column = group_column(f"csv:{file}", "patient")
    found = group_images(dataset, "patient", column).tolist()
    assert found == [f"p{number // 2}" for number in range(10)]
    assert group_column(f"csv:{file}", "age") is None
    assert group_column(str(tmp_path), "patient") is None
    assert column is not None
    with pytest.raises(InputError, match=r"the column is empty for '3\.png'"):
        group_images(dataset, "patient", {**column, "3.png": ""})


@pytest.mark.parametrize("held", [True, False], ids=["images", "paths"])
def test_a_column_of_a_parquet_file_names_groups(tmp_path: Path, held: bool) -> None:
    pa = pytest.importorskip("pyarrow")
    write_list(tmp_path)
    files = [f"{number}.png" for number in range(10)]
    table = {
        "image": [(tmp_path / file).read_bytes() for file in files] if held else files,
        "label": [number % 2 for number in range(10)],
        "patient": [number // 2 for number in range(10)],
    }
    data = f"parquet:{tmp_path / 'list.parquet'}"
    pytest.importorskip("pyarrow.parquet").write_table(pa.table(table), tmp_path / "list.parquet")
    found = group_images(open_dataset(data, split="all"), "patient", group_column(data, "patient"))
    assert found.tolist() == [f"{number // 2}" for number in range(10)]
    assert group_column(data, "age") is None


def test_splits_of_its_own_are_told_from_held_out_images(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    (tmp_path / "split").mkdir()
    assert not is_divided(str(write_list(tmp_path / "plain")))
    assert is_divided(str(write_list(tmp_path / "split", split=True)))
    assert is_divided("digits")


@pytest.mark.parametrize(
    ("names", "group"),
    [
        ([f"{c}/patient{c}{n}_{k}.jpg" for c in "12" for n in range(9) for k in "xy"], "patient10"),
        ([f"{c}/{c}{n}/{k}.jpg" for c in "ab" for n in range(9) for k in "xy"], "a0"),
        ([f"{c}/{c}7{n}-left_{k}.jpg" for c in "ab" for n in range(9) for k in "xy"], "a70-left"),
        ([f"{c}/IMG_{n:04}.jpg" for c in "ab" for n in range(20)], None),
        ([f"{c}/{c}_{n}.jpg" for c in "ab" for n in range(20)], None),  # the class's own name
        ([f"{c}/{c}{n}/1.jpg" for c in "ab" for n in range(20)], None),  # one image of each
        ([f"{c}/n0{c}_{n}.jpg" for c in "12" for n in range(20)], None),  # classes as numbers
    ],
)
def test_names_of_several_images_of_each_patient(names: list[str], group: str | None) -> None:
    labels = np.array([name[0] == names[-1][0] for name in names], np.int64)
    pattern = suggest_group(names, labels)
    if group is None:
        assert pattern is None
    else:
        assert pattern is not None
        found = group_by_pattern(names, pattern)
        assert (found[0], len(set(found))) == (group, 18)
