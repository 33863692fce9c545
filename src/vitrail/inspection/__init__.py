"""Look inside a model: arrays in, arrays out; only plots.py draws."""

from vitrail.inspection.record import Chunk as Chunk
from vitrail.inspection.record import Tape as Tape
from vitrail.inspection.record import record as record
