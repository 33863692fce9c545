"""Pictures in, batches out; knows no models."""

from vitrail.data.preprocess import Preprocess as Preprocess
