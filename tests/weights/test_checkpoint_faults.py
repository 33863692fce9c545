"""Our model folder is whole after any kill, and tells of any damage."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cases import slow
from tests.material import ROOT
from tests.weights.checkpoints import make_checkpoint, same
from vitrail.config import InputError
from vitrail.weights.model_folder import load_folder, save_folder


def damage(folder: Path, name: str, change: str) -> None:
    path = folder / name
    data = path.read_bytes()
    match change:
        case "remove":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "cut":
            path.write_bytes(data[:-1])
        case "longer":
            path.write_bytes(data + b"\n")
        case _:
            old, new = map(str.encode, change.split("=>"))
            path.write_bytes(data.replace(old, new))


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize("change", ["remove", "empty", "cut", "longer"])
def test_damaged_folders(tmp_path: Path, name: str, change: str) -> None:
    save_folder(make_checkpoint(), tmp_path / "m")
    damage(tmp_path / "m", name, change)
    with pytest.raises(InputError, match=name):
        load_folder(tmp_path / "m")
    save_folder(make_checkpoint(seed=1), tmp_path / "n")
    if name != "model.json" or change == "remove":  # what is no record of ours is not replaced
        save_folder(make_checkpoint(seed=1), tmp_path / "m")
        assert same(make_checkpoint(seed=1), load_folder(tmp_path / "m"))


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    """100 in each of the two files; no flip may load, not even to the same values."""
    save_folder(make_checkpoint(), tmp_path / "m")
    chance = random.Random(0)
    found = 0
    for name in ("model.safetensors", "model.json"):
        path = tmp_path / "m" / name
        good = path.read_bytes()
        for place in chance.sample(range(8 * len(good)), 100):
            bad = bytearray(good)
            bad[place // 8] ^= 1 << place % 8
            path.write_bytes(bad)
            with pytest.raises(InputError, match="model"):
                load_folder(tmp_path / "m")
            found += 1
        path.write_bytes(good)
    assert found == 200
    assert same(make_checkpoint(), load_folder(tmp_path / "m"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ('"version": 1=>"version": 2', "version 2; this vitrail reads 1"),
        ('"depth": 1=>"depth": 2', "missing blocks.1.attention.norm.weight"),
        ('"depth": 1=>"depths": 1', "did you mean 'depth'"),
        ('"family": "vit"=>"family": "cnn"', "unknown model family 'cnn'"),
        ('"crop": 0.875=>"crop": 2', "preprocess: crop must be in [0.05, 1], got 2.0"),
        ('"parameters": =>"parameters": 1', "parameters, model.json says 1"),
        ('"classes": [=>"classes": ["more", ', "3 class names for 2 outputs"),
        ('"name"=>"nane"', "unknown key 'nane'"),
        ('"spec": {=>"spec": 1, "x": {', "unknown model family None"),
    ],
)
def test_what_was_changed_by_hand_is_read_strictly(
    tmp_path: Path, change: str, message: str
) -> None:
    save_folder(make_checkpoint(), tmp_path / "m")
    damage(tmp_path / "m", "model.json", change)
    with pytest.raises(InputError, match=r"damaged \(checksum\).*remove its last entry"):
        load_folder(tmp_path / "m")
    path = tmp_path / "m" / "model.json"
    lines = path.read_text().splitlines()
    assert '"checksum"' in lines[-2]
    path.write_text("\n".join([*lines[:-3], lines[-3].rstrip(","), "}"]))
    with pytest.raises(InputError) as caught:
        load_folder(tmp_path / "m")
    assert message in str(caught.value)


def test_missing_folders(tmp_path: Path) -> None:
    save_folder(make_checkpoint(), tmp_path / "model")
    with pytest.raises(InputError, match="no such model folder; did you mean 'model'"):
        load_folder(tmp_path / "modle")
    with pytest.raises(InputError, match="is a file"):
        load_folder(tmp_path / "model" / "model.json")


KILLER = """
import os, signal, sys
from pathlib import Path
import torch
from tests.weights.checkpoints import make_checkpoint, same
from vitrail.weights.model_folder import load_folder, save_folder

torch.set_num_threads(1)
place = Path(sys.argv[1])
EVENTS = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "shutil.rmtree"}
state = {"left": -1}

def count(event, arguments):
    if state["left"] > 0 and event in EVENTS:
        state["left"] -= 1
        if state["left"] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

sys.addaudithook(count)
save_folder(make_checkpoint(), place / "m")
load_folder(place / "m")
kills = outcomes = 0
seen = set()
while True:
    kills += int(sys.argv[2])
    child = os.fork()
    if not child:
        state["left"] = kills
        save_folder(make_checkpoint(seed=kills), place / "m")
        os._exit(0)
    done = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    read = load_folder(place / "m")
    old, new = make_checkpoint(), make_checkpoint(seed=kills)
    seen.add("old" if same(read, old) else "new" if same(read, new) else "?")
    save_folder(make_checkpoint(), place / "m")
    assert [path.name for path in place.iterdir()] == ["m"], [*place.iterdir()]
    assert same(load_folder(place / "m"), make_checkpoint())
    if not done:
        break
    assert done == -signal.SIGKILL, done
print(kills, *sorted(seen))
"""


@pytest.mark.parametrize("apart", [4, slow(1)])
def test_a_kill_at_any_step_of_a_save_leaves_the_old_model_or_the_new(
    tmp_path: Path, apart: int
) -> None:
    """Kill before each file operation in turn, load, then save again over what was left."""
    run = [sys.executable, "-c", KILLER, str(tmp_path), str(apart)]
    root = ROOT
    done = subprocess.run(run, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stderr
    kills, *seen = done.stdout.split()
    assert int(kills) > 12
    assert seen == ["new", "old"]
