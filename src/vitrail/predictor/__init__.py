"""A model put to use: pictures of any kind in, classes with names or representations out."""

from vitrail.predictor.batching_config import Pace as Pace
from vitrail.predictor.images import Picture as Picture
from vitrail.predictor.predictions import Answer as Answer
from vitrail.predictor.predictions import Guess as Guess
from vitrail.predictor.predictions import Prediction as Prediction
from vitrail.predictor.predictor import Predictor as Predictor
