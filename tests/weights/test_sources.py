"""Sources of weights: local files, stores that a server on this machine stands in for, the hub."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.shelf import BODY, Shelf, refusal, serving
from vitrail.models import parse
from vitrail.weights.published.catalog import CATALOG, RECOMMENDED, find
from vitrail.weights.sources import remote_sources
from vitrail.weights.sources.resolve import resolve

INDEX = "model.safetensors.index.json"


@pytest.fixture
def shelf() -> Iterator[Shelf]:
    with serving() as shelf:
        yield shelf


def put(folder: Path, *files: str, config: object = None) -> Path:
    """Make a folder with files of that name."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_text("{}" if file.endswith(".json") else "weights")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("prefix", ["", "file:"])
def test_local_files_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    monkeypatch.chdir(put(tmp_path, "w.npz"))
    own = put(tmp_path / "own", "model.json", "model.safetensors")
    put(tmp_path / "run" / "model", "model.json", "model.safetensors")
    hub = put(tmp_path / "org" / "hub", "pytorch_model.bin", config={"a": 1})
    (hub / "preprocessor_config.json").write_text('{"size": 7}')
    single = put(tmp_path / "ViT-B" / "16", "x.pth", "notes.txt")
    table: dict[str, tuple[Path, dict[str, Any]]] = {
        "w.npz": (Path("w.npz"), {}),
        str(tmp_path / "w.npz"): (tmp_path / "w.npz", {}),
        "own": (Path("own"), {}),
        "own/model.safetensors": (Path("own"), {}),
        str(own / "model.json"): (own, {}),
        "run": (Path("run/model"), {}),
        "org/hub": (Path("org/hub/pytorch_model.bin"), {"a": 1}),
        str(hub / "pytorch_model.bin"): (hub / "pytorch_model.bin", {"a": 1}),
        "ViT-B/16": (Path("ViT-B/16/x.pth"), {}),
        str(single): (single / "x.pth", {}),
    }
    for source, (path, config) in table.items():
        found = resolve(prefix + source)
        assert (found.path, found.config) == (path, config), source
        assert found.published is None
        assert found.preprocessor == ({"size": 7} if config else {})
    assert resolve("run:run").path == Path("run/model")
    assert resolve("run:own").path == Path("own")


def test_open_clip_has_a_config_of_its_own(tmp_path: Path) -> None:
    folder = put(tmp_path / "clip", "open_clip_model.safetensors", config={"for": "others"})
    (folder / "open_clip_config.json").write_text('{"model_cfg": {"quick_gelu": false}}')
    for source in (folder, folder / "open_clip_model.safetensors"):
        found = resolve(str(source))
        assert found.path == folder / "open_clip_model.safetensors"
        assert found.config == {"model_cfg": {"quick_gelu": False}}


def test_what_a_stopped_save_left_is_no_second_model(tmp_path: Path) -> None:
    """After a kill between a save's two renames, or before it has removed the old model."""
    files = ("model.json", "model.safetensors")
    run, old = tmp_path / "run", ".model.old-abcd1234"
    put(run / old, *files)
    new = put(run / "model", *files)
    for source in (f"run:{run}", str(run), f"file:{run}/model", f"run:{run}/model"):
        assert resolve(source).path == new
    new = new.rename(run / ".model.new-abcd1234")
    for source in (f"run:{run}", str(run), f"{run}/model", f"file:{run}/model", f"run:{run}/model"):
        assert resolve(source).path == new
    (run / old).rename(run / ".model.old-otherone")  # then the new one may not be whole
    for source in (f"run:{run}", f"file:{run}/model", f"run:{run}/model"):
        assert refusal(resolve, source)


def test_folders_that_do_not_say_which(tmp_path: Path) -> None:
    put(tmp_path / "two", "a.npz", "b.npz")
    put(tmp_path / "none", "notes.txt")
    for name in ("a", "b"):
        put(tmp_path / "runs" / name, "model.json")
    put(tmp_path / "bad", "model.safetensors", config=[1])
    (put(tmp_path / "torn", "model.safetensors") / "config.json").write_text('{"a": ')
    assert "several weights files" in refusal(resolve, f"file:{tmp_path}/two")
    assert f"file:{tmp_path}/two/a.npz" in refusal(resolve, f"file:{tmp_path}/two")
    assert "holds no weights: expected model.json" in refusal(resolve, f"{tmp_path}/none")
    assert "several models" in refusal(resolve, f"run:{tmp_path}/runs")
    assert "holds no model.json" in refusal(resolve, f"run:{tmp_path}/none")
    assert "expected keys and values" in refusal(resolve, f"file:{tmp_path}/bad")
    assert "config.json: " in refusal(resolve, f"file:{tmp_path}/torn")
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refusal(resolve, f"file:{tmp_path}/pipe")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("", "no source of weights"),
        ("   ", "no source of weights"),
        ("a\0b", "not plain text"),
        ("file:a\nb", "not plain text"),
        ("x" * 5000, "too long"),
        ("x" * 1000, "no file or folder"),
        ("file:" + "x" * 1000, "no file or folder"),
        ("~nobody-has-this-name/a.npz", "no file or folder"),
        ("nothing.npz", "no file or folder 'nothing.npz'"),
        ("file:nothing.npz", "no file or folder 'nothing.npz'"),
        ("run:nothing", "no run folder 'nothing'"),
        ("run:~nobody/nothing", "no run folder '~nobody/nothing'"),
        ("ViT-B/16", "write google:imagenet21k/ViT-B_16 or timm:vit_base_patch16_224.augreg"),
        ("ViT-B/16", "or file:ViT-B/16 if it is a path"),
        ("ViT-G/14", "write its source for its weights, or file:ViT-G/14"),
        ("vit_base_patch16_224", "write timm:vit_base_patch16_224 for timm's weights, or file:"),
        ("vit_base_patch16_224.mae", "write timm:vit_base_patch16_224.mae"),
        ("google/vit-base-patch16-224", "write hf:google/vit-base-patch16-224 for the hub's, or"),
        ("https://example.org/a.npz", "download it, then write file:PATH"),
        ("goggle:sam/ViT-B_16", "timm:, hf:, google:, dinov2:, file:, run:; did you mean 'google'"),
        ("s3:bucket", "unknown source 's3:bucket'"),
        ("timm:", "not a name of timm's"),
        ("timm:../x", "not a name of timm's"),
        ("timm:a/b", "not a name of timm's"),
        ("timm:a.b.c", "not a name of timm's"),
        ("timm:" + "x" * 300, "not a name of timm's"),
        ("timm:vit_base_patch16_224", "several weights; name one of timm:vit_base_patch16_224."),
        ("hf:name", "expected hf:ORG/NAME"),
        ("hf:a/b/c", "expected hf:ORG/NAME"),
        ("hf:../b", "expected hf:ORG/NAME"),
        ("hf:a/..", "expected hf:ORG/NAME"),
        ("hf:/etc/passwd", "expected hf:ORG/NAME"),
        ("hf:a/b@../c", "expected hf:ORG/NAME"),
        ("hf:a/b@/c", "expected hf:ORG/NAME"),
        ("hf:a/" + "b" * 300, "expected hf:ORG/NAME"),
        ("google:ViT-B_16", "Google's files are in google:imagenet21k/"),
        ("google:imagenet21k", "Google's files are in"),
        ("google:../x", "Google's files are in"),
        ("google:sam/../../x", "not a file name"),
        ("google:sam//etc/passwd", "not a file name"),
        ("google:sam/.hidden", "not a file name"),
        ("google:sam/a\\b", "not a file name"),
        ("google:sam/" + "x" * 300, "not a file name"),
        ("google:augreg/B/16/../x", "not a file name"),
        ("dinov2:vits16", "there are: dinov2:vits14, dinov2:vits14_reg"),
        ("dinov2:../vits14", "there are: dinov2:vits14"),
    ],
)
def test_sources_that_are_refused(
    source: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert said in refusal(resolve, source, cache=tmp_path / "cache")
    assert list(tmp_path.iterdir()) == []


def test_near_names_are_offered(tmp_path: Path) -> None:
    put(tmp_path, "model.npz")
    assert "did you mean 'model.npz'?" in refusal(resolve, f"{tmp_path}/modle.npz")


def test_a_run_beside_is_meant_before_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "write hf:runs/od for the hub's" in refusal(resolve, "runs/od")
    (tmp_path / "runs" / "odd").mkdir(parents=True)
    assert refusal(resolve, "runs/od") == "no file or folder 'runs/od'; did you mean 'odd'?"


@pytest.fixture
def stores(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    """Let the shelf stand in for the model stores."""
    monkeypatch.setattr(remote_sources, "GOOGLE", shelf.address)
    monkeypatch.setattr(remote_sources, "DINOV2", f"{shelf.address}/dinov2")
    return shelf


AUGREG = "google:augreg/B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0"


@pytest.mark.parametrize(
    ("source", "full", "address"),
    [
        ("google:imagenet21k/ViT-B_16", "", "/vit_models/imagenet21k/ViT-B_16.npz"),
        ("google:sam/ViT-B_32", "", "/vit_models/sam/ViT-B_32.npz"),
        ("google:bit/BiT-M-R50x1", "", "/bit_models/BiT-M-R50x1.npz"),
        (
            "google:imagenet21k+imagenet2012/R50+ViT-B_16.npz",
            "google:imagenet21k+imagenet2012/R50+ViT-B_16",
            "/vit_models/imagenet21k%2Bimagenet2012/R50%2BViT-B_16.npz",
        ),
        (AUGREG, "", f"/vit_models/{AUGREG[7:]}.npz"),
        ("google:augreg/B/16", AUGREG, f"/vit_models/{AUGREG[7:]}.npz"),
        (
            "google:augreg/B/16@384",
            f"{AUGREG}--imagenet2012-steps_20k-lr_0.03-res_384",
            f"/vit_models/{AUGREG[7:]}--imagenet2012-steps_20k-lr_0.03-res_384.npz",
        ),
        ("dinov2:vits14", "", "/dinov2/dinov2_vits14/dinov2_vits14_pretrain.pth"),
        ("dinov2:vitg14_reg", "", "/dinov2/dinov2_vitg14/dinov2_vitg14_reg4_pretrain.pth"),
    ],
)
def test_stores(stores: Shelf, tmp_path: Path, source: str, full: str, address: str) -> None:
    stores.files = {address: BODY}
    for _ in range(2):
        found = resolve(source, cache=tmp_path)
        assert found.source == (full or source)
        assert found.path.read_bytes() == BODY
        assert found.path.name == address.rpartition("/")[2].replace("%2B", "+")
        assert found.path.is_relative_to(tmp_path)
        assert (found.config, found.preprocessor) == ({}, {})
        assert found.published is not None
        assert found.published.source == found.source
    assert stores.asked == [(address, None)]


def test_a_missing_file_has_near_names(stores: Shelf, tmp_path: Path) -> None:
    text = refusal(resolve, "google:imagenet21k/ViT-B_61", cache=tmp_path)
    assert "the server answers 404 Not Found; did you mean" in text
    assert "'google:imagenet21k/ViT-B_16'" in text


def test_the_index_of_augreg(stores: Shelf, tmp_path: Path) -> None:
    index = "/vit_models/augreg/index.csv"
    columns = "name,ds,final_val,adapt_ds,adapt_resolution,adapt_final_val,filename,adapt_filename"
    rows = [
        "B/8,i21k,0.5,imagenet2012,224,0.81,low,low--224",
        "B/8,i21k,0.6,imagenet2012,224,0.82,best,best--224",
        "B/8,i21k,0.6,imagenet2012,224,0.84,best,best--224b",
        "B/8,i21k,0.6,imagenet2012,384,0.90,best,best--384",
        "B/8,i21k,0.6,cifar10,224,0.99,best,best--cifar",
        "B/8,i1k,0.9,imagenet2012,224,0.95,other,other--224",
    ]
    stores.files = {index: "\n".join([columns, *rows]).encode()}
    for name in ("best", "best--224b", "best--384"):
        stores.files[f"/vit_models/augreg/{name}.npz"] = name.encode()
    table = {"B/8": "best", "B/8@224": "best--224b", "B/8@384": "best--384"}
    for short, name in table.items():
        found = resolve(f"google:augreg/{short}", cache=tmp_path)
        assert found.source == f"google:augreg/{name}"
        assert found.path.read_bytes() == name.encode()
    assert [path for path, _ in stores.asked].count(index) == 1
    assert "AugReg has no B/4; there are: B/8" in refusal(
        resolve, "google:augreg/B/4", cache=tmp_path
    )
    assert "at 512" in refusal(resolve, "google:augreg/B/8@512", cache=tmp_path)
    for broken in (
        f"{columns}\n{rows[0].replace('0.5', 'much')}",
        "<html>",
        f"{columns}\nB/8,i21k",
    ):
        stores.files[index] = broken.encode()
        shutil.rmtree(tmp_path)
        text = refusal(resolve, "google:augreg/B/8", cache=tmp_path)
        assert "is not AugReg's index" in text or "AugReg has no B/8" in text
    stores.files[index] = f"{columns}\nB/8,i21k,0.5,,,,../../x,".encode()
    shutil.rmtree(tmp_path)
    refusal(resolve, "google:augreg/B/8", cache=tmp_path)
    assert not list(tmp_path.glob("**/x*"))


def hub_cache(folder: Path, repository: str, **files: str) -> None:
    """Lay files out as huggingface_hub keeps them."""
    home = folder / "hub" / f"models--{repository.replace('/', '--')}"
    snapshot = put(home / "snapshots" / "c0ffee")
    (put(home / "refs") / "main").write_text("c0ffee")
    put(home / ".no_exist" / "c0ffee", "preprocessor_config.json")
    for name, text in files.items():
        (snapshot / name.replace("__", ".")).write_text(text)


def test_what_the_hub_has_cached(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    hub_cache(tmp_path, f"timm/{name}", model__safetensors="w", config__json='{"a": 1}')
    found = resolve(f"timm:{name}", cache=tmp_path)
    assert found.path.read_text() == "w"
    assert found.config == {"a": 1}
    assert found.published is find(f"timm:{name}") is not None
    hub_cache(tmp_path, "org/name", model__safetensors="w", config__json="{}")
    for source in ("hf:org/name", "hf:org/name@main", "hf:org/name@c0ffee"):
        found = resolve(source, cache=tmp_path)
        assert (found.path.read_text(), found.preprocessor, found.published) == ("w", {}, None)
    text = refusal(resolve, "hf:org/other", cache=tmp_path)
    assert text == "config.json of org/other is not in the hub's cache, and HF_HUB_OFFLINE is set"


def test_without_the_hubs_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert "pip install 'vitrail[hub]'" in refusal(resolve, "hf:org/name")


def resolve_online(source: str, endpoint: str, home: Path) -> str:
    """Resolve in a process that believes in a hub there; give its last line."""
    code = f"from vitrail.weights.sources.resolve import resolve; print(resolve({source!r}))"
    env = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint, "HF_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return (done.stdout or done.stderr).splitlines()[-1]


def test_downloads_from_the_hub(shelf: Shelf, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    room = "/org/name/resolve/main"
    shelf.files = {f"{room}/config.json": b'{"a": 1}', f"{room}/pytorch_model.bin": BODY}
    line = resolve_online("hf:org/name", shelf.address, tmp_path)
    assert line.startswith("Resolved(source='hf:org/name'")
    assert line.endswith("config={'a': 1}, preprocessor={}, published=None)")
    (weights,) = tmp_path.glob("hub/*/snapshots/*/pytorch_model.bin")
    assert str(weights) in line
    assert weights.read_bytes() == BODY
    del shelf.files[f"{room}/pytorch_model.bin"]
    line = resolve_online("hf:org/name", shelf.address, tmp_path / "new")
    assert line.endswith(f"has neither model.safetensors nor {INDEX} nor pytorch_model.bin")


def test_downloads_shards_from_the_hub(shelf: Shelf, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    room = "/org/name/resolve/main"
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    shelf.files = {f"{room}/config.json": b"{}", f"{room}/{INDEX}": json.dumps(index).encode()}
    shelf.files[f"{room}/model-1.safetensors"] = BODY
    line = resolve_online("hf:org/name", shelf.address, tmp_path / "one")
    assert line.endswith(f"org/name on the hub lacks model-2.safetensors, which {INDEX} lists")
    shelf.files[f"{room}/model-2.safetensors"] = BODY
    line = resolve_online("hf:org/name", shelf.address, tmp_path / "both")
    (weights,) = (tmp_path / "both").glob(f"hub/*/snapshots/*/{INDEX}")
    assert str(weights) in line
    assert (weights.parent / "model-2.safetensors").read_bytes() == BODY
    line = resolve_online("timm:vit_base_patch16_224.mea", shelf.address, tmp_path)
    assert "Error: the hub has no timm/vit_base_patch16_224.mea, or not for everyone; did" in line
    assert "'timm:vit_base_patch16_224.mae'" in line


def test_the_hub_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setenv("no_proxy", "*")
    line = resolve_online("hf:org/name", "http://127.0.0.1:9", tmp_path)
    assert re.search(r"InputError: cannot reach 127.0.0.1:9 \(.*\): is there a network\?; or", line)


@pytest.mark.parametrize("entry", CATALOG, ids=lambda entry: entry.source)
def test_catalogue(entry: Any) -> None:
    spec = parse(entry.model)
    size = entry.preprocess.size
    assert find(entry.source) is entry
    assert entry.resolution == spec.image
    assert entry.source.startswith(("dinov2:", "timm:naflex")) or size == spec.image
    stride = getattr(spec, "stride", (1, 1))
    assert (size[0] % stride[0], size[1] % stride[1]) == (0, 0)
    assert (entry.top1 is None) == (entry.cited == "")
    assert 20 < entry.megabytes < 30_000
    half = entry.preprocess.mean == (0.5, 0.5, 0.5)
    others = ("deit", "mae", "dinov", "eva02", "openai", "beitv2", "apple")
    assert half != any(word in entry.source for word in others)
    assert (entry.use == "classify") == (spec.classes == 1000)
    gated = entry.source.startswith("hf:facebook/dinov3-")
    assert ("gated" in entry.access) == gated
    assert (entry.license == "DINOv3 License") == ("dinov3" in entry.source)


def test_catalogue_as_a_whole() -> None:
    assert len({entry.source for entry in CATALOG}) == len(CATALOG)
    assert find("google:imagenet21k/ViT-X_16") is None
    # Sizes that the AugReg README states, in MiB, of the files themselves.
    stated = {"Ti/16": 37, "S/32": 118, "S/16": 115, "B/32": 398, "B/16": 391, "L/16": 1243}
    stated |= {"R+Ti/16": 40, "R26+S/32": 170, "R50+L/32": 1337}
    for model, mebibytes in stated.items():
        entry = find(f"google:augreg/{model}")
        assert entry is not None
        assert entry.megabytes * 1e6 / 2**20 == pytest.approx(mebibytes, abs=1)
    assert len(RECOMMENDED) == 2 * len(stated)
    scores = {entry.source: entry.top1 for entry in CATALOG}
    assert scores["timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k"] == 75.452
    assert scores[RECOMMENDED["google:augreg/R50+L/32@384"]] == 85.99
    assert scores["dinov2:vitg14"] == 86.5
    # As published, in millions.
    stated = {"timm:vit_mediumd_patch16_reg4_gap_256.sbb2_e200_in12k_ft_in1k": 64.11}
    stated |= {"timm:eva02_large_patch14_448.mim_m38m_ft_in22k_in1k": 305.08}
    stated |= {"timm:naflexvit_base_patch16_parfac_gap.e300_s576_in1k": 86.46}
    stated |= {"timm:vit_7b_patch16_dinov3.lvd1689m": 6716.03}
    for source, millions in stated.items():
        entry = find(source)
        assert entry is not None
        assert round(entry.parameters / 1e6, 2) == millions
