"""Images in, batches out; knows no models."""

from vitrail.data.transforms.preprocess import Preprocess as Preprocess
