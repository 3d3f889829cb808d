"""PyTorch's fused attention on the CPU, 12 heads of 64: seconds forward and backward, one number per line.

Usage: attention.py [threads]"""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(int(sys.argv[1]) if len(sys.argv) > 1 else 1)


def median(times):
    return sorted(times)[len(times) // 2]


def measure(tokens, rounds):
    q, k, v, g = (torch.randn(1, 12, tokens, 64) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_(True)
    forward, backward = [], []
    for _ in range(rounds):
        start = time.perf_counter()
        y = scaled_dot_product_attention(q, k, v)
        middle = time.perf_counter()
        y.backward(g)
        forward.append(middle - start)
        backward.append(time.perf_counter() - middle)
    print(f"forward_{tokens}", median(forward))
    print(f"backward_{tokens}", median(backward))


with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    measure(1024, 2)  # warm
    measure(4096, 3)
    measure(16384, 1)
print("version", torch.__version__)
