"""What the peers of benchmarks of models share: parameters from waves, a training step, its memory."""

import math

import torch
import torch.nn.functional as F


def wave(count, phase):
    return torch.sin(phase + 1.7 * torch.arange(count, dtype=torch.float64))


def set_waves(model, to_first):
    """The parameters that benchmarks/waves.hpp gives the same model; to_first(values, shape) brings values listed in
    channels-last order to PyTorch's shape."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            values = wave(p.numel(), float(sum(name.encode()) % 97))
            if p.dim() == 1:
                p.copy_(0.1 * values + (1.0 if "norm" in name and "weight" in name else 0.0))
            else:
                p.copy_(to_first(values / math.sqrt(p[0].numel()), p.shape))


def adamw(model, lr=1e-3):
    return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0, fused=True)


def train_step(case):
    loss = F.mse_loss(case.model(case.x), case.target)
    loss.backward()
    case.optimizer.step()
    case.optimizer.zero_grad(set_to_none=True)
    return loss.item()


def status(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) * 1024 for line in f if line.startswith(key))


def added_memory(step):
    """Bytes that step() adds to the peak of this process."""
    with open("/proc/self/clear_refs", "w") as f:
        f.write("5")  # the peak starts again from here
    before = status("VmRSS")
    step()
    return status("VmHWM") - before
