"""bfloat16 without torch: numpy has no such type, so values travel as their 16 bits in uint16.

Reading and writing follows the safetensors format (8 bytes header length, JSON header, data), because
`safetensors.numpy` refuses bfloat16.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

Bits = npt.NDArray[np.uint16]
_ALIGNMENT = 8


def to_bf16(values: npt.NDArray[np.float32]) -> Bits:
    """Rounds finite float32 values to the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def read_bf16(path: Path) -> dict[str, Bits]:
    """Every tensor of a safetensors file.

    Raises:
        ValueError: a tensor is not bfloat16.
    """
    content = path.read_bytes()
    data_start = 8 + int.from_bytes(content[:8], "little")
    tensors = {}
    for name, entry in json.loads(content[8:data_start]).items():
        if name == "__metadata__":
            continue
        if entry["dtype"] != "BF16":
            raise ValueError(f"{path}: tensor {name} must be BF16, but got {entry['dtype']}")
        begin, end = entry["data_offsets"]
        data = np.frombuffer(content, "<u2", count=(end - begin) // 2, offset=data_start + begin)
        tensors[name] = data.astype(np.uint16, copy=False).reshape(entry["shape"])
    return tensors


def write_bf16(path: Path, tensors: Mapping[str, Bits]) -> None:
    """Writes a safetensors file and waits until it is on the disk."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(encoded).to_bytes(8, "little") + encoded)
        for tensor in tensors.values():
            file.write(np.ascontiguousarray(tensor, "<u2").data)
        file.flush()
        os.fsync(file.fileno())
