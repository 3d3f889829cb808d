"""PyTorch's fused attention on the CPU, 12 heads of 64.

Usage: attention_torch.py serve THREADS. Prints "version V"; answers each line "TOKENS SAMPLES" with the seconds of
forward and backward: "forward F backward B"."""
import sys
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

torch.set_num_threads(int(sys.argv[2]))


def measure(tokens, samples):
    q, k, v, g = (torch.randn(samples, 12, tokens, 64) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_(True)
    start = time.perf_counter()
    y = scaled_dot_product_attention(q, k, v)
    middle = time.perf_counter()
    y.backward(g)
    return middle - start, time.perf_counter() - middle


with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
    measure(1024, 1)  # warm
    print("version", torch.__version__, flush=True)
    for line in sys.stdin:
        forward, backward = measure(*map(int, line.split()))
        print("forward", forward, "backward", backward, flush=True)
