"""Attention of one head with the functions of model.py from the package, where there is no Triton and no compiler."""

import math

import torch
from model_kernels import matmul_kernel, softmax_kernel


def matmul(a, b, scale=1.0):
    """Multiply two matrices, of any strides: as in model.py, but for ``triton.cdiv``."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)

    def grid(meta):
        return -(-m // meta["BLOCK_M"]), -(-n // meta["BLOCK_N"])

    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0), scale)
    return c


def softmax(x, mask=None):
    """Compute the softmax of each row, of x or of x + mask."""
    rows, n = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](y, x, mask, n, x.stride(0), BLOCK=1 << (n - 1).bit_length())
    return y


def attention(q, k, v, mask=None):
    """Compute softmax(q @ k.T / sqrt(d) + mask) @ v."""
    return matmul(softmax(matmul(q, k.t(), 1 / math.sqrt(q.shape[1])), mask), v)


if __name__ == "__main__":
    q, k, v = (torch.randn(256, 64, device="cuda", dtype=torch.float16) for _ in range(3))
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    print(f"{(attention(q, k, v) - expected).abs().max().item():.4f}")
