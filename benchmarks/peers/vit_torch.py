"""The model of benchmarks/vit.cpp in PyTorch: same layers, same parameters, same data.

vit_torch.py serve THREADS: answers one line per command on standard input:
  case SIZE -> "parameters N"; train -> "seconds T loss L"
vit_torch.py memory THREADS SIZE: bytes that one training step adds to the peak
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from torch_model import added_memory, adamw, set_waves, train_step, wave

WIDTH, DEPTH, HEADS, PATCH, INPUTS = 768, 12, 12, 16, 3
RATE = 1e-5  # as in benchmarks/vit.cpp


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.proj = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = (
            layer(x).view(*x.shape[:2], HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).reshape(x.shape))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(WIDTH, 4 * WIDTH)
        self.fc2 = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.attn = Attention()
        self.norm2 = nn.LayerNorm(WIDTH, eps=1e-6)
        self.mlp = Mlp()

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Projection(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.proj = layer


class Positions(nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(grid, grid, WIDTH))


class ViT(nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.patch_embed = Projection(nn.Conv2d(INPUTS, WIDTH, PATCH, stride=PATCH))
        self.positions = Positions(grid)
        self.blocks = nn.ModuleList([Block() for _ in range(DEPTH)])
        self.norm = nn.LayerNorm(WIDTH, eps=1e-6)
        self.field_head = Projection(nn.ConvTranspose2d(WIDTH, 1, PATCH, stride=PATCH))

    def forward(self, x):
        y = self.patch_embed.proj(x)
        shape = y.shape
        y = y.flatten(2).transpose(1, 2) + self.positions.weight.flatten(0, 1)
        for block in self.blocks:
            y = block(y)
        return self.field_head.proj(self.norm(y).transpose(1, 2).reshape(shape))


def to_first(values, shape):
    """Values listed in channels-last order as a tensor of channels-first `shape`."""
    if len(shape) < 4:
        return values.reshape(shape)
    return values.reshape(shape[0], shape[2], shape[3], shape[1]).permute(0, 3, 1, 2)


class Case:
    def __init__(self, size):
        self.model = ViT(size // PATCH)
        set_waves(self.model, to_first)
        self.x = to_first(wave(INPUTS * size**2, 0.0), (1, INPUTS, size, size)).float().contiguous()
        self.target = wave(size**2, 1.0).reshape(1, 1, size, size).float()
        self.optimizer = adamw(self.model, RATE)


def memory(size):
    case = Case(size)
    for p in case.model.parameters():  # makes the state of the optimiser, one gradient at a time
        p.grad = torch.zeros_like(p)
        case.optimizer.step()
        p.grad = None
    print(added_memory(lambda: train_step(case)), flush=True)


def serve():
    print("version", torch.__version__, flush=True)
    case = None
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "case":
            case = None
            case = Case(int(rest[0]))
            print("parameters", sum(p.numel() for p in case.model.parameters()), flush=True)
            continue
        start = time.perf_counter()
        loss = train_step(case)
        print("seconds", time.perf_counter() - start, "loss", loss, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    if sys.argv[1] == "serve":
        serve()
    else:
        memory(int(sys.argv[3]))
