"""Images that tests make for themselves: encoded files, large ones and hostile ones."""

import io
import struct
import subprocess
import sys
import textwrap
import zlib
from typing import Any

import numpy as np
from PIL import Image


def photo(height: int, width: int) -> np.ndarray:
    """Draw smooth colors, so that lossy formats keep them nearly."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    planes = [x / max(width - 1, 1), y / max(height - 1, 1), (x + y) / (height + width)]
    return (np.dstack(planes) * 200 + 20).astype(np.uint8)


def encode(image: np.ndarray | Image.Image, name: str, **options: Any) -> bytes:
    """Encode pixels to a file of the named format."""
    stream = io.BytesIO()
    pillow = image if isinstance(image, Image.Image) else Image.fromarray(image)
    pillow.save(stream, name, **options)
    return stream.getvalue()


def exif(orientation: int) -> Image.Exif:
    """Make an EXIF block that notes an orientation, among other things."""
    block = Image.Exif()
    block[0x010F], block[0x0112], block[0x0131] = "A maker", orientation, "A program"
    return block


def tall_jpeg(height: int, width: int) -> bytes:
    """Make a large JPEG of color stripes, without the memory to encode it: one row, repeated."""
    row = encode(photo(16, width), "JPEG", restart_marker_rows=1, subsampling="4:2:0")
    frame, scan = row.index(b"\xff\xc0"), row.index(b"\xff\xda")
    start = scan + 2 + int.from_bytes(row[scan + 2 : scan + 4])
    head = row[: frame + 5] + struct.pack(">H", height) + row[frame + 7 : start]
    rows = [row[start:-2] + bytes([0xFF, 0xD0 + number % 8]) for number in range(-(-height // 16))]
    return head + b"".join(rows)[:-2] + b"\xff\xd9"


def chunk(name: bytes, content: bytes) -> bytes:
    """Make a chunk of a PNG."""
    check = struct.pack(">I", zlib.crc32(name + content))
    return struct.pack(">I", len(content)) + name + content + check


def png(height: int, width: int, *chunks: bytes, kind: bytes = b"\x08\x02") -> bytes:
    """Make a PNG of any size whose pixels are missing, or given as chunks."""
    header = struct.pack(">II", width, height) + kind + b"\0\0\0"
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + b"".join(chunks) + chunk(b"IEND", b"")


PEAK = """
def peak_megabytes():  # of this program; getrusage counts the process that started it as well
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) // 1024 for line in file if line.startswith("VmHWM"))
"""


def run_fresh(script: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    """Run a script in a new interpreter, in which warnings are errors."""
    code = PEAK + textwrap.dedent(script)
    run = [sys.executable, "-W", "error", "-c", code]
    return subprocess.run(run, input=given, capture_output=True, check=True)
