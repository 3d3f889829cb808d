"""Writes torch_weights.safetensors: a small network of PyTorch under its own names, an input and its output.

  python3 tests/data/torch_weights.py tests/data/torch_weights.safetensors

Dimension orders are PyTorch's (channels first), also those of `x` and `y`. Made with PyTorch 2.15.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from safetensors_file import write


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(
            [
                nn.ModuleDict({"conv": nn.Conv2d(2, 4, (3, 2)), "norm": nn.GroupNorm(2, 4)}),
                nn.ModuleDict({"conv": nn.Conv2d(4, 4, (1, 3), groups=2), "norm": nn.GroupNorm(2, 4)}),
            ]
        )
        self.up = nn.ConvTranspose2d(4, 6, (2, 3), (2, 3))
        self.attn = nn.MultiheadAttention(6, 2)
        self.head = nn.Linear(6, 5)
        self.register_buffer("batches_seen", torch.tensor(3))

    def forward(self, x):
        for layer in self.layers:
            x = F.silu(layer["norm"](layer["conv"](x)))
        x = self.up(x).permute(0, 2, 3, 1)
        q, k, v = F.linear(x, self.attn.in_proj_weight, self.attn.in_proj_bias).chunk(3, -1)
        return self.head(self.attn.out_proj(q + 2 * k + 3 * v)).permute(0, 3, 1, 2)


def main():
    torch.manual_seed(2)
    model = Net()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn_like(p) * 0.5)
        x = torch.randn(2, 2, 6, 7)
        y = model(x)
    tensors = model.state_dict() | {"test.x": x, "test.y": y}
    write(sys.argv[1], {name: t.detach().numpy() for name, t in tensors.items()})


main()
