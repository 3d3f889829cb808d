"""The parameters of benchmarks/adamw.cpp in PyTorch.

adamw_torch.py serve THREADS: answers one line per command on standard input:
  case ELEMENTS -> "ready"; step -> "seconds T norm N"
"""

import sys
import time

import torch

from torch_model import wave

PARAMETERS = 1000


class Case:
    def __init__(self, elements):
        self.parameters = [torch.nn.Parameter(torch.full((elements,), 0.5)) for _ in range(PARAMETERS)]
        self.slope = wave(elements, 0.0).float()
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.01, fused=True)

    def step(self):
        for p in self.parameters:
            p.grad = self.slope.clone()
        start = time.perf_counter()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.perf_counter() - start, norm.item()


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    print("version", torch.__version__, flush=True)
    case = None
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "case":
            case = Case(int(rest[0]))
            print("ready", flush=True)
        else:
            print("seconds %r norm %r" % case.step(), flush=True)
