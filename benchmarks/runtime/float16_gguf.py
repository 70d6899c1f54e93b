"""A GGUF file's weights in float16, for programs that quantise them in their own way."""

from pathlib import Path

import gguf
import numpy as np

FILE_TYPE = "general.file_type"


def write_float16(source: Path, out: Path) -> Path:
    """Write a GGUF file with the metadata of another one and its matrices in float16; return `out`."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, str(reader.fields["general.architecture"].contents()))
    for name, found in reader.fields.items():
        if not name.startswith("GGUF.") and name not in ("general.architecture", FILE_TYPE):
            inner = found.types[-1] if len(found.types) > 1 else None
            writer.add_key_value(name, found.contents(), found.types[0], inner)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    for tensor in reader.tensors:
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        writer.add_tensor(tensor.name, weights.astype(np.float32 if weights.ndim == 1 else np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
