"""Writes unet_diffusers.safetensors and vit_timm.safetensors: small networks under the names of other programs, an
input and its output, for the lists in models/names.

  python3 tests/data/named_weights.py tests/data

Both are written here in plain PyTorch, with the module names of diffusers' UNet2DModel and of timm's VisionTransformer
(class_token=False, global_pool="avg"). Weights of the U-Net are F16; outputs are computed in fp64 from what is stored.
Dimension orders are PyTorch's (channels first), also those of `test.x` and `test.y`. Made with PyTorch 2.15.
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

from safetensors_file import write


class Resnet(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.norm1 = nn.GroupNorm(2, i)
        self.conv1 = nn.Conv2d(i, o, 3, padding=1)
        self.norm2 = nn.GroupNorm(2, o)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1)
        if i != o:
            self.conv_shortcut = nn.Conv2d(i, o, 1)

    def forward(self, x):
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        return h + (self.conv_shortcut(x) if hasattr(self, "conv_shortcut") else x)


class Sampler(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv


class Block(nn.Module):
    def __init__(self, resnets):
        super().__init__()
        self.resnets = nn.ModuleList(resnets)


class UNet(nn.Module):
    """2 -> 3 channels; 4, 8, 6 channels on three levels of two residual blocks."""

    def __init__(self):
        super().__init__()
        c = [4, 8, 6]
        self.conv_in = nn.Conv2d(2, c[0], 3, padding=1)
        self.down_blocks = nn.ModuleList(Block([Resnet(k, k), Resnet(k, k)]) for k in c)
        for level in (0, 1):
            down = nn.Conv2d(c[level], c[level + 1], 3, stride=2, padding=1)
            self.down_blocks[level].downsamplers = nn.ModuleList([Sampler(down)])
        self.up_blocks = nn.ModuleList()
        for level in (1, 0):
            block = Block([Resnet(2 * c[level], c[level]), Resnet(c[level], c[level])])
            block.upsamplers = nn.ModuleList([Sampler(nn.ConvTranspose2d(c[level + 1], c[level], 2, stride=2))])
            self.up_blocks.append(block)
        self.conv_norm_out = nn.GroupNorm(2, c[0])
        self.conv_out = nn.Conv2d(c[0], 3, 3, padding=1)

    def forward(self, x):
        y = self.conv_in(x)
        skips = []
        for block in self.down_blocks:
            for resnet in block.resnets:
                y = resnet(y)
            if hasattr(block, "downsamplers"):
                skips.append(y)
                y = block.downsamplers[0].conv(y)
        for block in self.up_blocks:
            y = torch.cat([block.upsamplers[0].conv(y), skips.pop()], 1)
            for resnet in block.resnets:
                y = resnet(y)
        return self.conv_out(F.silu(self.conv_norm_out(y)))


class Attention(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(c, 3 * c)
        self.proj = nn.Linear(c, c)

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = self.qkv(x).reshape(n, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(n, t, c))


class Mlp(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.fc1 = nn.Linear(c, 2 * c)
        self.fc2 = nn.Linear(2 * c, c)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class TransformerBlock(nn.Module):
    def __init__(self, c, heads):
        super().__init__()
        self.norm1 = nn.LayerNorm(c, eps=1e-6)
        self.attn = Attention(c, heads)
        self.norm2 = nn.LayerNorm(c, eps=1e-6)
        self.mlp = Mlp(c)

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Patches(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Conv2d(3, 12, (2, 4), (2, 4))


class ViT(nn.Module):
    """3 channels -> 5 classes, patches 2 x 4, 12 channels, 2 blocks of 3 heads, on 3 x 4 tokens."""

    def __init__(self):
        super().__init__()
        self.patch_embed = Patches()
        self.pos_embed = nn.Parameter(torch.randn(1, 12, 12))
        self.blocks = nn.ModuleList(TransformerBlock(12, 3) for _ in range(2))
        self.fc_norm = nn.LayerNorm(12, eps=1e-6)
        self.head = nn.Linear(12, 5)

    def forward(self, x):
        y = self.patch_embed.proj(x).flatten(2).transpose(1, 2) + self.pos_embed
        for block in self.blocks:
            y = block(y)
        return self.head(self.fc_norm(y.mean(1)))


def save(path, model, x, dtype):
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((torch.randn_like(p) * 0.4 + (1.0 if p.dim() == 1 else 0.0)).to(dtype).double())
        x = x.float().double()
        y = model(x)
    arrays = {name: p.to(dtype).numpy() for name, p in model.state_dict().items()}
    write(path, arrays | {"test.x": x.float().numpy(), "test.y": y.float().numpy()})


torch.manual_seed(4)
torch.set_default_dtype(torch.float64)
save(sys.argv[1] + "/unet_diffusers.safetensors", UNet(), torch.randn(2, 2, 8, 12), torch.float16)
save(sys.argv[1] + "/vit_timm.safetensors", ViT(), torch.randn(2, 3, 6, 16), torch.float32)
