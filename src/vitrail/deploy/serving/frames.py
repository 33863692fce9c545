"""Frames between the server and its model processes: JSON, then plain bytes.

A frame is the length of its JSON (4 bytes), the JSON, and blobs whose sizes the JSON lists. Nothing
in it can be executed, and images are never written to files.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Sequence
from typing import Any, BinaryIO

_LENGTH = struct.Struct(">I")
Frame = tuple[dict[str, Any], list[bytes]]


def pack_frame(head: dict[str, Any], blobs: Sequence[bytes] = ()) -> list[bytes]:
    """Make a frame, as pieces to be written in order."""
    text = json.dumps({**head, "sizes": [len(blob) for blob in blobs]}).encode()
    return [_LENGTH.pack(len(text)) + text, *blobs]


def read_frame(stream: BinaryIO) -> Frame:
    """Wait for a frame; EOFError if the other side is gone."""
    head = json.loads(_read(stream, _LENGTH.unpack(_read(stream, _LENGTH.size))[0]))
    return head, [_read(stream, size) for size in head.pop("sizes")]


def _read(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise EOFError
    return data


async def receive_frame(stream: asyncio.StreamReader) -> Frame:
    """Wait for a frame asynchronously; IncompleteReadError if the other side is gone."""
    length = _LENGTH.unpack(await stream.readexactly(_LENGTH.size))[0]
    head = json.loads(await stream.readexactly(length))
    return head, [await stream.readexactly(size) for size in head.pop("sizes")]
