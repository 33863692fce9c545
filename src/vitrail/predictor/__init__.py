"""Inference: images of any kind in, classes with their probabilities or features out."""

from vitrail.data.image_inputs import ImageLike as ImageLike
from vitrail.predictor.batching_config import BatchingConfig as BatchingConfig
from vitrail.predictor.predictions import ClassScore as ClassScore
from vitrail.predictor.predictions import ModelOutput as ModelOutput
from vitrail.predictor.predictions import Prediction as Prediction
from vitrail.predictor.predictor import ModelLike as ModelLike
from vitrail.predictor.predictor import Predictor as Predictor
