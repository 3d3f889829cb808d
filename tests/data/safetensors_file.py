"""What the makers of data in this folder share: writing a safetensors file."""

import json
import struct

TYPES = {"<f2": "F16", "<f4": "F32", "<f8": "F64", "<i8": "I64"}


def write(path, arrays):
    """arrays: NumPy's by name."""
    header, data, at = {}, [], 0
    for name, array in arrays.items():
        raw = array.tobytes()
        header[name] = {"dtype": TYPES[array.dtype.str], "shape": list(array.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(data))
