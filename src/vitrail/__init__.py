"""vitrail: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

Importing it is cheap: torch is imported when a name that needs it is first asked for.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitrail.data.checks.dataset_check import DatasetCheck as DatasetCheck
    from vitrail.data.checks.dataset_check import check_data as check_data
    from vitrail.data.contact_sheet import show_data as show_data
    from vitrail.data.datasets.open import open_data as open_data
    from vitrail.data.datasets.public.data_list import list_data as list_data
    from vitrail.data.datasets.public.fetch import fetch_data as fetch_data
    from vitrail.data.transforms.apply import normalize as normalize
    from vitrail.data.transforms.preprocess import Preprocess as Preprocess
    from vitrail.data.transforms.preprocess import default_preprocess as default_preprocess
    from vitrail.deploy.backends.bench import bench as bench
    from vitrail.deploy.exporting.export import export as export
    from vitrail.deploy.installation import doctor as doctor
    from vitrail.deploy.predict import predict as predict
    from vitrail.deploy.serving.server import serve as serve
    from vitrail.evaluation.comparison import compare as compare
    from vitrail.evaluation.evaluate import evaluate as evaluate
    from vitrail.evaluation.features.embed import embed as embed
    from vitrail.evaluation.probes.cross_validation import cross_validate as cross_validate
    from vitrail.evaluation.probes.fewshot import fewshot as fewshot
    from vitrail.evaluation.probes.knn import knn as knn
    from vitrail.evaluation.probes.linear_probe import probe as probe
    from vitrail.evaluation.uncertainty.calibrate import calibrate as calibrate
    from vitrail.evaluation.zeroshot import zeroshot as zeroshot
    from vitrail.inspection import record as record
    from vitrail.model_soup import soup as soup
    from vitrail.models import build as build
    from vitrail.models.cost.total import describe as describe
    from vitrail.models.cost.total import list_models as list_models
    from vitrail.predictor import Predictor as Predictor
    from vitrail.report import inspect as inspect
    from vitrail.report.choice_page import choose as choose
    from vitrail.report.clean_page import clean as clean
    from vitrail.run import finetune as finetune
    from vitrail.run import train as train
    from vitrail.run_estimate import estimate as estimate
    from vitrail.run_estimate import estimate_finetuning as estimate_finetuning
    from vitrail.run_settings import configure as configure
    from vitrail.studies.demonstration import demo as demo
    from vitrail.studies.engine.run_table import show_sweep as show_sweep
    from vitrail.studies.engine.sweep import estimate_sweep as estimate_sweep
    from vitrail.studies.engine.sweep import sweep as sweep
    from vitrail.studies.engine.sweep_plan import FewShot as FewShot
    from vitrail.studies.engine.sweep_plan import Sweep as Sweep
    from vitrail.studies.reproduce import reproduce as reproduce
    from vitrail.training.callbacks import Callback as Callback
    from vitrail.training.task import Task as Task
    from vitrail.training.train_config import TrainConfig as TrainConfig
    from vitrail.vtab1k import vtab as vtab
    from vitrail.weights.conversion.convert import convert as convert
    from vitrail.weights.conversion.write_formats import to_state_dict as to_state_dict
    from vitrail.weights.load import load as load
    from vitrail.weights.loaded import save as save
    from vitrail.weights.published.weights_list import list_weights as list_weights
    from vitrail.weights.weights_summary import show_weights as show_weights

_LAZY = {
    "inspect": "vitrail.report",
    "choose": "vitrail.report.choice_page",
    "clean": "vitrail.report.clean_page",
    "record": "vitrail.inspection",
    "bench": "vitrail.deploy.backends.bench",
    "export": "vitrail.deploy.exporting.export",
    "predict": "vitrail.deploy.predict",
    "serve": "vitrail.deploy.serving.server",
    "open_data": "vitrail.data.datasets.open",
    "show_data": "vitrail.data.contact_sheet",
    "check_data": "vitrail.data.checks.dataset_check",
    "DatasetCheck": "vitrail.data.checks.dataset_check",
    "fetch_data": "vitrail.data.datasets.public.fetch",
    "list_data": "vitrail.data.datasets.public.data_list",
    "normalize": "vitrail.data.transforms.apply",
    "Preprocess": "vitrail.data.transforms.preprocess",
    "default_preprocess": "vitrail.data.transforms.preprocess",
    "calibrate": "vitrail.evaluation.uncertainty.calibrate",
    "compare": "vitrail.evaluation.comparison",
    "embed": "vitrail.evaluation.features.embed",
    "evaluate": "vitrail.evaluation.evaluate",
    "cross_validate": "vitrail.evaluation.probes.cross_validation",
    "fewshot": "vitrail.evaluation.probes.fewshot",
    "knn": "vitrail.evaluation.probes.knn",
    "probe": "vitrail.evaluation.probes.linear_probe",
    "zeroshot": "vitrail.evaluation.zeroshot",
    "soup": "vitrail.model_soup",
    "vtab": "vitrail.vtab1k",
    "build": "vitrail.models",
    "convert": "vitrail.weights.conversion.convert",
    "describe": "vitrail.models.cost.total",
    "list_models": "vitrail.models.cost.total",
    "load": "vitrail.weights.load",
    "save": "vitrail.weights.loaded",
    "list_weights": "vitrail.weights.published.weights_list",
    "show_weights": "vitrail.weights.weights_summary",
    "to_state_dict": "vitrail.weights.conversion.write_formats",
    "Predictor": "vitrail.predictor",
    "train": "vitrail.run",
    "finetune": "vitrail.run",
    "configure": "vitrail.run_settings",
    "estimate": "vitrail.run_estimate",
    "estimate_finetuning": "vitrail.run_estimate",
    "demo": "vitrail.studies.demonstration",
    "doctor": "vitrail.deploy.installation",
    "reproduce": "vitrail.studies.reproduce",
    "sweep": "vitrail.studies.engine.sweep",
    "estimate_sweep": "vitrail.studies.engine.sweep",
    "show_sweep": "vitrail.studies.engine.run_table",
    "Sweep": "vitrail.studies.engine.sweep_plan",
    "FewShot": "vitrail.studies.engine.sweep_plan",
    "TrainConfig": "vitrail.training.train_config",
    "Task": "vitrail.training.task",
    "Callback": "vitrail.training.callbacks",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)
