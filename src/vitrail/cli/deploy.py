"""Commands that use a model: predict, export, bench and serve."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from vitrail.cli.options import (
    Classes,
    Device,
    File,
    Json,
    Model,
    Patches,
    Templates,
    Unsure,
    Workers,
    optional,
)
from vitrail.console import print_json, print_line
from vitrail.machine import keep_freed_memory
from vitrail.result import print_result

Precision = Literal["auto", "float32", "bfloat16", "int8"]

if TYPE_CHECKING:
    from vitrail.deploy.serving.serve_config import ServeConfig
    from vitrail.predictor import Prediction


def predict(
    model: Model,
    images: Annotated[tyro.conf.Positional[tuple[Path, ...]], optional("IMAGES …")],
    *,
    classes: Classes = None,
    templates: Templates = None,
    patches: Patches = None,
    unsure: Unsure = None,
    top: int = 5,
    csv: File = None,
    parquet: File = None,
    backend: str = "pytorch",
    precision: Precision = "float32",
    data: Annotated[str | None, optional("DATA")] = None,
    device: Device = None,
    json: Annotated[bool, tyro.conf.arg(help="Print JSON, one line per image.")] = False,
) -> None:
    """Classify images.

    Example: vitrail predict runs/photos holiday/ --top 3 --csv holiday.csv

    Example: vitrail predict hf:openai/clip-vit-base-patch32 holiday/ --classes "beach,snow"

    Unreadable images are listed with the reason. The exit code is 2 only if no image can be read.

    Args:
        images: Files, globs or folders; a folder stands for all images in and below it.
        top: Number of classes per image; a multi-label model's labels are all given.
        csv: Write a CSV file with one row per class of an image.
        parquet: Write a Parquet file with one row per image.
        backend: pytorch, onnxruntime, openvino, or auto, which measures once per model and machine
            which is fastest. Predictions are the same.
        precision: What matrix products are computed in; bfloat16 and int8 are faster on CPUs that
            have them, but change some predictions: vitrail bench says how many. auto takes bfloat16
            where it is faster and changes at most 1 %.
        data: The dataset whose training images calibrate int8, or whose others auto compares on.
    """
    from vitrail.deploy.predict import predict as run

    keep_freed_memory()

    def show(prediction: Prediction) -> None:
        if json:
            print_json(prediction.to_dict())

    result = run(
        model, images, classes=classes, templates=templates, patches=patches,
        unsure=unsure, top=top, csv=csv, parquet=parquet, backend=backend,
        precision=precision, data=data, device=device,
        keep=not (json or csv or parquet), on_prediction=show,
    )  # fmt: skip
    if json:
        return
    for path in (csv, parquet):
        if path:
            print_line(f"{path}: {result.images:,} of {result.images + len(result.unreadable):,} "
                       "images")  # fmt: skip
    print_result(result)


def export(
    model: Model,
    out: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="OUT")],
    *,
    to: str,
    input: Literal["float", "uint8-nchw", "uint8-nhwc"] = "float",
    any_size: bool = False,
    aot: bool = False,
    quantize: Annotated[
        Literal["int8", "int8-weights", "float16-weights"] | None,
        optional("{int8,int8-weights,float16-weights}"),
    ] = None,
    max_changed: float = 0.01,
    images: int = 256,
    data: Annotated[str | None, optional("DATA")] = None,
    unsure: Unsure = None,
    runtime: Annotated[Path | None, optional("FOLDER")] = None,
    push: Annotated[str | None, optional("ORG/NAME")] = None,
    json: Json = False,
) -> None:
    """Export a model to another format, checked against PyTorch.

    Example: vitrail export runs/photos photos.onnx --to onnx --data photos/

    Example: vitrail export runs/photos page --to web --data photos/

    Args:
        out: The file (onnx, pt2, executorch) or folder (openvino, web, hub) to write.
        to: onnx, openvino, pt2, executorch, web (a page that runs the model in the browser), or hub
            (weights, config and model card for the Hugging Face hub).
        input: Normalized images, or uint8 images that are normalized inside, with channels first or
            last.
        any_size: Accept any height and width that are multiples of the patch size.
        aot: Compile a pt2 ahead of time for this kind of CPU.
        quantize: Make an ONNX file smaller: int8 computes in int8, calibrated on the data;
            int8-weights and float16-weights store the weights in fewer bits and compute in float32.
            Default for a web page: int8-weights, or float16-weights if int8 changes too much.
        max_changed: Largest fraction of images whose top-1 quantization may change.
        images: Number of images to check a quantized model on.
        data: The images to check on, e.g. a folder. Default: generated shapes.
        runtime: A folder with the files of onnxruntime-web, for a web page. Default: npm downloads
            them.
        push: The repository that --to hub uploads the folder to. Default: it is only written.
    """
    from vitrail.deploy.exporting.export import export as run

    result = run(
        model, out, to=to, input=input, any_size=any_size, aot=aot, quantize=quantize,
        max_changed=max_changed, images=images, data=data, unsure=unsure,
        runtime=runtime, push=push,
    )  # fmt: skip
    print_result(result, json=json)


def bench(
    model: Model,
    *,
    data: Annotated[str | None, optional("DATA")] = None,
    split: str = "val",
    backends: Annotated[tuple[str, ...], optional("BACKEND …")] = (),
    images: int = 64,
    rounds: int = 3,
    max_loss: float = 0.005,
    max_changed: float = 0.01,
    merge: float = 0.08,
    json: Json = False,
) -> None:
    """Measure which backend and precision run a model fastest on this CPU, and how accurately.

    Example: vitrail bench runs/photos --data photos/

    Args:
        data: The images to measure on and to calibrate int8. Default: generated shapes.
        split: The split to measure on; the training split calibrates int8.
        backends: Some of pytorch, compiled, onnxruntime, openvino, bfloat16, int8 and merged.
            Default: all.
        images: Number of images to time; accuracy is that of up to 512.
        rounds: Number of rounds; every backend runs once per round.
        max_loss: Largest loss of accuracy.
        max_changed: Largest fraction of images whose top-1 may change, if they have no labels.
        merge: Fraction of the patches that token merging removes in each layer.
    """
    from vitrail.deploy.backends.bench import bench as run

    keep_freed_memory()
    result = run(
        model, data=data, split=split, backends=backends, images=images, rounds=rounds,
        max_loss=max_loss, max_changed=max_changed, merge=merge,
    )  # fmt: skip
    print_result(result, json=json)


def serve(
    models: Annotated[tyro.conf.Positional[tuple[str, ...]], optional("MODEL …")],
    *,
    index: Annotated[tuple[str, ...], optional("FILE …")] = (),
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: Workers = None,
    backend: str = "pytorch",
    precision: Precision = "float32",
    data: Annotated[str | None, optional("DATA")] = None,
    unsure: Unsure = None,
    device: Device = None,
    api_key_file: File = None,
    allow_host: Annotated[tuple[str, ...], optional("NAME …")] = (),
    max_megabytes: float = 10.0,
    max_megapixels: float = 36.0,
    max_images: int = 16,
    queue: int = 256,
    receive_seconds: float = 8.0,
    answer_seconds: float = 30.0,
    json: Annotated[bool, tyro.conf.arg(help="Print the address as JSON once it serves.")] = False,
) -> None:
    """Serve models over HTTP, with a page that shows what they attend to.

    Example: vitrail serve runs/photos other=timm:vit_tiny_patch16_224.augreg_in21k_ft_in1k

    Uploads are held in memory only, and are neither stored nor logged. SIGTERM and Ctrl-C finish
    the accepted requests and end with exit code 0.

    Args:
        models: Run folders, model folders, or weights: timm:…, hf:…, google:…, file:…, a path.
            NAME=MODEL sets the name for clients. Default: the last part of the path.
        index: Features written by vitrail embed, for finding similar images: of the first model, or
            NAME=FILE of another.
        host: The address to listen on; 0.0.0.0 accepts connections from other machines.
        port: 0 takes any free port.
        workers: Number of model processes. Default: one per core.
        backend: pytorch, onnxruntime, openvino, or auto, which measures once per model and machine
            which is fastest. Predictions are the same.
        precision: What matrix products are computed in; bfloat16 and int8 are faster on CPUs that
            have them, but change some predictions: vitrail bench says how many. auto takes bfloat16
            where it is faster and changes at most 1 %.
        data: The dataset whose training images calibrate int8, or whose others auto compares on.
        api_key_file: A file with the API key that clients must send. Default: VITRAIL_API_KEY.
        allow_host: Additional host names of the server, e.g. that of a proxy.
        max_megabytes: Largest request.
        max_megapixels: Largest image.
        max_images: Most images per request; never more than --queue.
        queue: Images that may wait; more are refused with 503.
        receive_seconds: Time for a client to send its headers and to start its body.
        answer_seconds: Time after which a request gets 504.
    """
    from vitrail.deploy.serving.server import serve as run

    def started(address: str, config: ServeConfig) -> None:
        named = list(config.worker.models)
        if json:
            print_json({"address": address, "models": named, "workers": config.workers})
        else:
            print_line(f"serving {', '.join(named)} at {address} (Ctrl-C stops)")
        sys.stdout.flush()

    run(
        models, index=index, host=host, port=port, workers=workers, backend=backend,
        precision=precision, data=data, unsure=unsure, device=device,
        api_key_file=api_key_file, allow_host=allow_host,
        max_megabytes=max_megabytes, max_megapixels=max_megapixels, max_images=max_images,
        queue=queue, receive_seconds=receive_seconds, answer_seconds=answer_seconds,
        on_start=started,
    )  # fmt: skip
