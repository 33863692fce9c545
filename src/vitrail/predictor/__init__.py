"""A model put to use: images of any kind in, classes with names or representations out."""

from vitrail.predictor.batching_config import BatchingConfig as BatchingConfig
from vitrail.predictor.images import ImageLike as ImageLike
from vitrail.predictor.predictions import Answer as Answer
from vitrail.predictor.predictions import ClassScore as ClassScore
from vitrail.predictor.predictions import Prediction as Prediction
from vitrail.predictor.predictor import Predictor as Predictor
