"""Measure what happens inside a model: arrays in, arrays out; plotting draws them."""

from vitrail.inspection.record import Chunk as Chunk
from vitrail.inspection.record import Tape as Tape
from vitrail.inspection.record import record as record
