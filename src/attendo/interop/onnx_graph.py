"""A builder of ONNX graphs, and the weight file that the graphs of a model share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor, nn

from attendo.interop.requirements import required

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto

OPSET, IR_VERSION = 20, 9  # what onnx 1.15 and onnxruntime 1.17 (end of 2023) can read
ALIGNMENT = 64  # in bytes: CPUs read aligned vectors fastest

Dimensions = Sequence[str | int | None]
"""The axes of a tensor: a size, or the name of an axis whose size is known when the graph runs."""


class Weights:
    """A file of little-endian arrays that all graphs of a model share. The graphs refer to an array by its offset."""

    def __init__(self, path: Path | str, model: nn.Module):
        self.path = Path(path)
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.written: dict[str, TensorProto] = {}
        self._file = self.path.open("wb")

    def __enter__(self) -> Weights:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def put(self, name: str, values: Tensor) -> TensorProto:
        """Write a tensor if it is not in the file yet, and return an initializer that refers to the file.

        Floating-point numbers are stored in 32 bits.
        """
        if name not in self.written:
            numbers = values.detach().cpu()
            array = (numbers.float() if numbers.is_floating_point() else numbers.long()).contiguous().numpy()
            self._file.write(b"\0" * (-self._file.tell() % ALIGNMENT))
            self.written[name] = _external(name, array, self.path.name, self._file.tell())
            self._file.write(array.astype(array.dtype.newbyteorder("<"), copy=False).data)
        return self.written[name]


class Graph:
    """A builder of an ONNX graph. Each value has a name. Nodes are in execution order, and equal nodes are shared."""

    def __init__(self, weights: Weights):
        self._onnx = required("onnx")
        self._helper = self._onnx.helper
        self.weights = weights
        self.nodes: list[NodeProto] = []
        self.initializers: dict[str, TensorProto] = {}
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self._made: dict[Any, str] = {}

    def input(self, name: str, dimensions: Dimensions, *, integer: bool = False) -> str:
        """Add an input tensor to the graph, and return its name."""
        self.inputs.append(self._declared(name, dimensions, integer))
        return name

    def output(self, name: str, value: str, dimensions: Dimensions | None) -> None:
        """Add a floating-point output tensor to the graph."""
        self.nodes.append(self._helper.make_node("Identity", [value], [name]))
        self.outputs.append(self._declared(name, dimensions, False))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator (https://onnx.ai/onnx/operators), and return the name of its output."""
        key = kind, inputs, repr(sorted(attributes.items()))
        if key not in self._made:
            self._made[key] = name = f"{kind}_{len(self.nodes)}"
            self.nodes.append(self._helper.make_node(kind, inputs, [name], name=name, **attributes))
        return self._made[key]

    def constant(self, values: ArrayLike) -> str:
        """Add a small constant, with integers in 64 bits and other numbers in 32 bits, and return its name."""
        array = np.asarray(values)
        array = array.astype(np.int64 if array.dtype.kind == "i" else np.float32)
        key = array.dtype.kind, array.shape, array.tobytes()
        if key not in self._made:
            self._made[key] = name = f"constant_{len(self._made)}"
            self.initializers[name] = self._onnx.numpy_helper.from_array(array, name)
        return self._made[key]

    def weight(self, parameter: Tensor) -> str:
        """Add a parameter of the model, and return its name."""
        return self.table(self.weights.names[id(parameter)], parameter)

    def transposed(self, parameter: Tensor) -> str:
        """Add the transpose of a parameter for `x @ matrix`, and return its name.

        A matrix that is already in the file is transposed in the graph.
        """
        name = self.weights.names[id(parameter)]
        if name in self.weights.written:
            return self.op("Transpose", self.weight(parameter), perm=[1, 0])
        return self.table(f"{name}.transposed", parameter.detach().T)

    def table(self, name: str, values: Tensor) -> str:
        """Add an array that is stored in the weight file, and return its name."""
        if name not in self.initializers:
            self.initializers[name] = self.weights.put(name, values)
        return name

    def size(self, value: str, axis: int) -> str:
        """Add the size of an axis of a value, and return its name."""
        length = self.op("Shape", value, start=axis, end=axis + 1)
        return self.op("Squeeze", length, self.constant([0]))

    def numbers(self, end: str) -> str:
        """Add a value with the integers from 0 to `end` - 1, and return its name."""
        return self.op("Range", self.constant(0), end, self.constant(1))

    def reshaped(self, value: str, shape: Sequence[int]) -> str:
        """Add a reshaped value, and return its name. In `shape`, 0 keeps the size of an axis, and -1 infers it."""
        return self.op("Reshape", value, self.constant(list(shape)))

    def model(self, name: str, opset: int = OPSET, ir_version: int = IR_VERSION) -> ModelProto:
        """Return the finished ONNX model, with the given versions of the operator set and the file format."""
        from attendo import __version__

        initializers = list(self.initializers.values())
        made = self._helper.make_graph(self.nodes, name, self.inputs, self.outputs, initializers)
        return self._helper.make_model(
            made,
            opset_imports=[self._helper.make_opsetid("", opset)],
            ir_version=ir_version,
            producer_name="attendo",
            producer_version=__version__,
        )

    def _declared(self, name: str, dimensions: Dimensions | None, integer: bool) -> ValueInfoProto:
        kind = self._onnx.TensorProto.INT64 if integer else self._onnx.TensorProto.FLOAT
        return self._helper.make_tensor_value_info(name, kind, dimensions)


def _external(name: str, array: np.ndarray, file: str, offset: int) -> TensorProto:
    onnx = required("onnx")
    kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
    tensor = onnx.TensorProto(name=name, data_type=kind, dims=array.shape)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", file), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor
