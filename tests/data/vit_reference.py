"""Writes vit_reference.safetensors: weights, inputs, outputs and gradients of two vision transformers in PyTorch.

  python3 tests/data/vit_reference.py tests/data/vit_reference.safetensors

`fields/` is made of PyTorch's own layers (Conv2d, TransformerEncoderLayer, ConvTranspose2d) with learned positions;
`classes/` writes rotary positions (rotate half, angles of the rows before those of the columns), normalised queries and
keys, grouped queries and a gated MLP out by hand. Computed in fp64 with weights that fp32 can hold; names, shapes and
dimension orders are Tessera's (channels last). Made with PyTorch 2.15.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from safetensors_file import write

EPS = 1e-6


class Fields(nn.Module):
    """2 -> 3 channels, patches 3 x 4, 12 channels, 2 blocks of 3 heads, on 4 x 5 tokens."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(2, 12, (3, 4), (3, 4))
        self.positions = nn.Parameter(torch.randn(4, 5, 12) * 0.5)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                12, 3, 24, dropout=0.0, activation="gelu", layer_norm_eps=EPS, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.norm = nn.LayerNorm(12, eps=EPS)
        self.head = nn.ConvTranspose2d(12, 3, (3, 4), (3, 4))

    def forward(self, x):
        y = self.embed(x).permute(0, 2, 3, 1) + self.positions
        n, h, w, c = y.shape
        y = y.reshape(n, h * w, c)
        for block in self.blocks:
            y = block(y)
        y = self.norm(y).reshape(n, h, w, c).permute(0, 3, 1, 2)
        return self.head(y)

    def tensors(self, value):
        """Tessera's names with value(parameter)."""
        out = {
            "patch_embed.proj.weight": value(self.embed.weight).permute(0, 2, 3, 1),
            "patch_embed.proj.bias": value(self.embed.bias),
            "positions.weight": value(self.positions),
            "norm.weight": value(self.norm.weight),
            "norm.bias": value(self.norm.bias),
            "field_head.proj.weight": value(self.head.weight).permute(0, 2, 3, 1),
            "field_head.proj.bias": value(self.head.bias),
        }
        for i, b in enumerate(self.blocks):
            layers = {
                "norm1": b.norm1,
                "norm2": b.norm2,
                "attn.proj": b.self_attn.out_proj,
                "mlp.fc1": b.linear1,
                "mlp.fc2": b.linear2,
            }
            for name, layer in layers.items():
                out[f"blocks.{i}.{name}.weight"] = value(layer.weight)
                out[f"blocks.{i}.{name}.bias"] = value(layer.bias)
            for k, name in enumerate(["query", "key", "value"]):
                rows = slice(12 * k, 12 * (k + 1))
                out[f"blocks.{i}.attn.{name}.weight"] = value(b.self_attn.in_proj_weight)[rows]
                out[f"blocks.{i}.attn.{name}.bias"] = value(b.self_attn.in_proj_bias)[rows]
        return out


class Classes(nn.Module):
    """1 channel -> 5 classes, patches 2 x 2, 2 blocks of 4 heads of 4, 2 key heads, on 5 x 4 tokens."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterDict()

        def add(name, *shape, scale=0.4, shift=0.0):
            self.weights[name.replace(".", "/")] = nn.Parameter(torch.randn(*shape) * scale + shift)

        def linear(name, i, o):
            add(name + ".weight", o, i)
            add(name + ".bias", o)

        def norm(name, c, bias=True):
            add(name + ".weight", c, scale=0.1, shift=1.0)
            if bias:
                add(name + ".bias", c)

        add("patch_embed.proj.weight", 16, 2, 2, 1)
        add("patch_embed.proj.bias", 16)
        for i in range(2):
            at = f"blocks.{i}."
            norm(at + "norm1", 16)
            linear(at + "attn.query", 16, 16)
            linear(at + "attn.key", 16, 8)
            linear(at + "attn.value", 16, 8)
            norm(at + "attn.query_norm", 4, bias=False)
            norm(at + "attn.key_norm", 4, bias=False)
            linear(at + "attn.proj", 16, 16)
            norm(at + "norm2", 16)
            linear(at + "mlp.fc1", 16, 32)
            linear(at + "mlp.gate", 16, 32)
            linear(at + "mlp.fc2", 32, 16)
        norm("norm", 16)
        linear("class_head", 16, 5)

    def w(self, name):
        return self.weights[name.replace(".", "/")]

    def linear(self, name, x):
        return F.linear(x, self.w(name + ".weight"), self.w(name + ".bias"))

    def norm(self, name, x):
        return F.layer_norm(x, (16,), self.w(name + ".weight"), self.w(name + ".bias"), EPS)

    def rotate(self, x):
        """x [N, H, tokens of a 5 x 4 grid, 4]: one wave per dimension, of 1 radian per token."""
        row = torch.arange(5.0).repeat_interleave(4)
        column = torch.arange(4.0).repeat(5)
        angle = torch.stack([row, column, row, column], dim=-1)
        half = torch.cat([-x[..., 2:], x[..., :2]], dim=-1)
        return x * angle.cos() + half * angle.sin()

    def forward(self, x):
        y = F.conv2d(x, self.w("patch_embed.proj.weight").permute(0, 3, 1, 2), self.w("patch_embed.proj.bias"), 2)
        n = y.shape[0]
        y = y.flatten(2).transpose(1, 2)
        for i in range(2):
            at = f"blocks.{i}."
            h = self.norm(at + "norm1", y)
            q = self.linear(at + "attn.query", h).reshape(n, 20, 4, 4).transpose(1, 2)
            k = self.linear(at + "attn.key", h).reshape(n, 20, 2, 4).transpose(1, 2)
            v = self.linear(at + "attn.value", h).reshape(n, 20, 2, 4).transpose(1, 2)
            q = self.rotate(F.rms_norm(q, (4,), self.w(at + "attn.query_norm.weight"), EPS))
            k = self.rotate(F.rms_norm(k, (4,), self.w(at + "attn.key_norm.weight"), EPS))
            a = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
            y = y + self.linear(at + "attn.proj", a.transpose(1, 2).reshape(n, 20, 16))
            h = self.norm(at + "norm2", y)
            y = y + self.linear(
                at + "mlp.fc2", F.silu(self.linear(at + "mlp.gate", h)) * self.linear(at + "mlp.fc1", h)
            )
        return self.linear("class_head", self.norm("norm", y.mean(1)))

    def tensors(self, value):
        return {name.replace("/", "."): value(p) for name, p in self.weights.items()}


def run(model, x, out, prefix):
    with torch.no_grad():  # what fp32 can hold
        for p in model.parameters():
            p.copy_(p.float().double() if p.abs().max() > 0 else torch.randn_like(p).float().double() * 0.2)
    y = model(x)
    dy = torch.randn_like(y).float().double()
    (y * dy).sum().backward()
    last = (lambda t: t.permute(0, 2, 3, 1)) if y.dim() == 4 else (lambda t: t)
    out[prefix + "x"] = x.permute(0, 2, 3, 1)
    out[prefix + "y"] = last(y)
    out[prefix + "dy"] = last(dy)
    for name, t in model.tensors(lambda p: p.detach()).items():
        out[prefix + "weights/" + name] = t
    for name, t in model.tensors(lambda p: p.grad).items():
        out[prefix + "gradients/" + name] = t


def main():
    torch.manual_seed(1)
    torch.set_default_dtype(torch.float64)
    tensors = {}
    run(Fields(), torch.randn(2, 2, 12, 20).float().double(), tensors, "fields/")
    run(Classes(), torch.randn(2, 1, 10, 8).float().double(), tensors, "classes/")
    write(sys.argv[1], {name: t.detach().float().numpy() for name, t in tensors.items()})


main()
