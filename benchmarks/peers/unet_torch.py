"""The model of benchmarks/unet.cpp in PyTorch: same layers, same parameters, same data.

unet_torch.py serve THREADS: answers one line per command on standard input:
  case DIMS SIZE BASE -> "parameters N"; forward FORMAT | train FORMAT -> "seconds T loss L"
unet_torch.py memory THREADS DIMS SIZE BASE FORMAT: bytes that one training step adds to the peak
FORMAT is first or last: where the channels lie in memory.
"""

import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

from torch_model import added_memory, adamw, set_waves, train_step, wave

CONV = {2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
LAST = {2: torch.channels_last, 3: torch.channels_last_3d}
GROUPS = 8
MULTIPLIERS = (1, 2, 4, 8)


class Block(nn.Module):
    def __init__(self, dims, inputs, outputs):
        super().__init__()
        self.norm1 = nn.GroupNorm(GROUPS, inputs)
        self.conv1 = CONV[dims](inputs, outputs, 3, padding=1)
        self.norm2 = nn.GroupNorm(GROUPS, outputs)
        self.conv2 = CONV[dims](outputs, outputs, 3, padding=1)
        self.shortcut = CONV[dims](inputs, outputs, 1) if inputs != outputs else None

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return (x if self.shortcut is None else self.shortcut(x)) + h


class Descent(nn.Module):
    def __init__(self, dims, inputs, outputs):
        super().__init__()
        self.conv = CONV[dims](inputs, outputs, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(dims, outputs, outputs)])

    def forward(self, x):
        return self.blocks[0](self.conv(x))


class Ascent(nn.Module):
    def __init__(self, dims, inputs, outputs):
        super().__init__()
        self.transposed = TRANSPOSED[dims](inputs, outputs, 2, stride=2)
        self.blocks = nn.ModuleList([Block(dims, 2 * outputs, outputs)])

    def forward(self, x, skip):
        return self.blocks[0](torch.cat([self.transposed(x), skip], 1))


class UNet(nn.Module):
    def __init__(self, dims, base):
        super().__init__()
        channels = [base * m for m in MULTIPLIERS]
        self.stem = CONV[dims](1, base, 3, padding=1)
        self.blocks = nn.ModuleList([Block(dims, base, base)])
        pairs = list(zip(channels[:-1], channels[1:]))
        self.down = nn.ModuleList([Descent(dims, a, b) for a, b in pairs])
        self.up = nn.ModuleList([Ascent(dims, b, a) for a, b in reversed(pairs)])
        self.norm = nn.GroupNorm(GROUPS, base)
        self.head = CONV[dims](base, 1, 3, padding=1)

    def forward(self, x):
        skips = []
        y = self.blocks[0](self.stem(x))
        for descent in self.down:
            skips.append(y)
            y = descent(y)
        for ascent in self.up:
            y = ascent(y, skips.pop())
        return self.head(F.silu(self.norm(y)))


def to_first(values, shape):
    """Values listed in channels-last order as a tensor of channels-first `shape`."""
    order = [0, *range(2, len(shape)), 1]
    return values.reshape([shape[k] for k in order]).permute(0, len(shape) - 1, *range(1, len(shape) - 1))


class Case:
    """The model, its optimiser and its data with the channels first or last in memory."""

    def __init__(self, dims, size, base, layout):
        self.model = UNet(dims, base)
        set_waves(self.model, to_first)
        shape = (1, 1, *[size] * dims)
        self.x = wave(size**dims, 0.0).reshape(shape).float()
        self.target = wave(size**dims, 1.0).reshape(shape).float()
        if layout == "last":
            self.model = self.model.to(memory_format=LAST[dims])
            self.x = self.x.to(memory_format=LAST[dims])
            self.target = self.target.to(memory_format=LAST[dims])
        self.optimizer = adamw(self.model)

    def forward(self):
        with torch.no_grad():
            return F.mse_loss(self.model(self.x), self.target).item()

    def train(self):
        return train_step(self)


def memory(dims, size, base, layout):
    Case(dims, 16, base, layout).train()  # code, thread stacks: not what a step needs
    case = Case(dims, size, base, layout)
    print(added_memory(case.train), flush=True)


def serve():
    print("version", torch.__version__, flush=True)
    cases = {}
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "case":
            cases.clear()
            for layout in ("first", "last"):
                cases[layout] = Case(*map(int, rest), layout)
            print("parameters", sum(p.numel() for p in cases["first"].model.parameters()), flush=True)
            continue
        run = getattr(cases[rest[0]], command)
        start = time.perf_counter()
        loss = run()
        print("seconds", time.perf_counter() - start, "loss", loss, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    if sys.argv[1] == "serve":
        serve()
    else:
        memory(*map(int, sys.argv[3:6]), sys.argv[6])
