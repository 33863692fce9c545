"""A model put to use: pictures of any kind in, classes with names or representations out."""

from vitrail.predictor.answers import Answer as Answer
from vitrail.predictor.answers import Guess as Guess
from vitrail.predictor.answers import Prediction as Prediction
from vitrail.predictor.pace import Pace as Pace
from vitrail.predictor.pictures import Picture as Picture
from vitrail.predictor.predictor import Predictor as Predictor
