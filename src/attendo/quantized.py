"""Linear layers whose weights are integers with scales, in the form in which a quantized run stores them."""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

GROUP = 32
"""The number of inputs that share a scale in 4 bits. The width of a quantized matrix is a multiple of this number."""
SCALE = ".scale"
"""The end of the name of a tensor of scales. Its beginning is the name of the matrix."""


class QuantizedLinear(nn.Linear):
    """A linear layer x Wᵀ + b with a weight of 8 or 4 bits. The floating-point weight is computed whenever it is read.

    In 8 bits, `numbers` contains signed integers, and `scale` has one float32 number per output. In 4 bits, `numbers`
    contains integers from -8 to 7, each plus 8, and `scale` has one bfloat16 number per output and `GROUP` inputs. Four
    bytes contain 8 inputs: inputs 0 to 3 in the lower halves, and inputs 4 to 7 in the upper halves. Raises ValueError
    if types or shapes do not match.

    >>> numbers, scale = torch.tensor([[0x0F, 8, 8, 0x88] * 4], dtype=torch.uint8), torch.full((1, 1), 0.5).bfloat16()
    >>> QuantizedLinear(numbers, scale, None).weight[0, :8].tolist()
    [3.5, 0.0, 0.0, 0.0, -4.0, -4.0, -4.0, 0.0]
    """

    numbers: Tensor
    scale: Tensor

    def __init__(
        self,
        numbers: Int[Tensor, "n_out n"],
        scale: Float[Tensor, "n_out *groups"],
        bias: Float[Tensor, " n_out"] | None,
    ):
        nn.Module.__init__(self)  # without a parameter for the weight
        self.bits = 8 if numbers.dtype == torch.int8 else 4
        self.out_features, self.in_features = shape_of(numbers)
        _, wanted = without_values(self.out_features, self.in_features, self.bits, "meta")
        if (scale.shape, scale.dtype) != (wanted.shape, wanted.dtype) or self.in_features % GROUP:
            raise ValueError("scales of quantized weights do not match")
        self.register_buffer("numbers", numbers)
        self.register_buffer("scale", scale)
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias, requires_grad=False))
        self.cap: float | None = None

    def forward(self, input: Float[Tensor, "*batch d_in"]) -> Float[Tensor, "*batch d_out"]:
        """Compute the layer, with the soft limit `cap` of the outputs if it is set."""
        y = super().forward(input)
        return y if self.cap is None else self.cap * torch.tanh(y / self.cap)

    @property
    def weight(self) -> Float[Tensor, "n_out n_in"]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The weight in float32. Changes of the result have no effect."""
        if self.bits == 8:
            return self.numbers.float() * self.scale.float()[:, None]
        words = self.numbers.unflatten(1, (-1, 4))
        numbers = torch.stack((words & 15, words >> 4), 2).view(self.out_features, -1, GROUP).float() - 8
        return (numbers * self.scale.float()[..., None]).flatten(1)


def without_values(n_out: int, n_in: int, bits: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return uninitialized numbers and scales of a quantized matrix. The inputs of the numbers fill whole groups.

    >>> [tensor.shape for tensor in without_values(3, 40, 4, "meta")]
    [torch.Size([3, 32]), torch.Size([3, 2])]
    """
    groups = -(-n_in // GROUP)
    kind, scale_kind = (torch.int8, torch.float32) if bits == 8 else (torch.uint8, torch.bfloat16)
    numbers = torch.empty(n_out, groups * GROUP * bits // 8, dtype=kind, device=device)
    return numbers, torch.empty(n_out, *(() if bits == 8 else (groups,)), dtype=scale_kind, device=device)


def shape_of(numbers: Int[Tensor, "n_out n"]) -> tuple[int, int]:
    """Return the shape of the matrix that quantized numbers represent."""
    n_out, n = numbers.shape
    return n_out, n if numbers.dtype == torch.int8 else 2 * n
