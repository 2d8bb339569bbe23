"""Attention of one head, with its gradients: functions of Triton, and what calls them.

Nothing here knows of Kernelwright. On a GPU, ``python model.py`` prints how far its results are from those of PyTorch.
"""

import itertools
import math

import torch
import triton
import triton.language as tl

CONFIGS = [
    triton.Config({"BLOCK_M": 64, "BLOCK_N": 64, "BLOCK_K": 32}, num_warps=4, num_stages=3),
    triton.Config({"BLOCK_M": 128, "BLOCK_N": 64, "BLOCK_K": 64}, num_warps=8, num_stages=3),
]


@triton.autotune(CONFIGS, key=["m", "n", "k"])
@triton.jit
def matmul_kernel(
    a,
    b,
    c,
    m,
    n,
    k,
    stride_am,
    stride_ak,
    stride_bk,
    stride_bn,
    stride_cm,
    scale,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Compute c = scale * a @ b; a program has a tile of c."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    tile = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, k, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        left = (rows[:, None] < m) & (at[None, :] < k)
        right = (at[:, None] < k) & (columns[None, :] < n)
        some_a = tl.load(a + rows[:, None] * stride_am + at[None, :] * stride_ak, mask=left, other=0.0)
        some_b = tl.load(b + at[:, None] * stride_bk + columns[None, :] * stride_bn, mask=right, other=0.0)
        tile = tl.dot(some_a, some_b, tile)
    inside = (rows[:, None] < m) & (columns[None, :] < n)
    tl.store(c + rows[:, None] * stride_cm + columns[None, :], (tile * scale).to(c.dtype.element_ty), mask=inside)


@triton.heuristics({"HAS_MASK": lambda args: args["mask"] is not None})
@triton.jit
def softmax_kernel(y, x, mask, n, stride, HAS_MASK: tl.constexpr, BLOCK: tl.constexpr):
    """Compute y = softmax(x) or softmax(x + mask); a program has a row. All have rows of the same stride."""
    row = tl.program_id(0).to(tl.int64) * stride
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row + at, mask=at < n, other=float("-inf")).to(tl.float32)
    if HAS_MASK:
        value += tl.load(mask + row + at, mask=at < n, other=0.0).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    tl.store(y + row + at, (power / tl.sum(power, axis=0)).to(y.dtype.element_ty), mask=at < n)


@triton.jit
def row_dot_kernel(out, x, y, n, stride, BLOCK: tl.constexpr):
    """Compute out[i] = sum of x[i] * y[i]; a program has a row."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    one = tl.load(x + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    other = tl.load(y + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    tl.store(out + row, tl.sum(one * other, axis=0))


@triton.jit
def softmax_backward_kernel(grad_x, grad_y, y, dot, scale, n, stride, BLOCK: tl.constexpr):
    """Compute grad_x = scale * y * (grad_y - dot); a program has a row."""
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(y + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    grad = tl.load(grad_y + row * stride + at, mask=at < n, other=0.0).to(tl.float32)
    grad = scale * value * (grad - tl.load(dot + row))
    tl.store(grad_x + row * stride + at, grad.to(grad_x.dtype.element_ty), mask=at < n)


def matmul(a, b, scale=1.0):
    """Multiply two matrices, of any strides."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), device=a.device, dtype=a.dtype)

    def grid(meta):
        return triton.cdiv(m, meta["BLOCK_M"]), triton.cdiv(n, meta["BLOCK_N"])

    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), c.stride(0), scale)
    return c


def softmax(x, mask=None):
    """Compute the softmax of each row, of x or of x + mask."""
    rows, n = x.shape
    y = torch.empty_like(x)
    softmax_kernel[(rows,)](y, x, mask, n, x.stride(0), BLOCK=triton.next_power_of_2(n))
    return y


class Attention(torch.autograd.Function):
    """softmax(q @ k.T / sqrt(d) + mask) @ v"""

    @staticmethod
    def forward(context, q, k, v, mask):
        """Compute it, with a matrix product of Triton, a softmax of Triton, and a matrix product of Triton."""
        context.scale = 1 / math.sqrt(q.shape[1])
        weights = softmax(matmul(q, k.t(), context.scale), mask)
        out = matmul(weights, v)
        context.save_for_backward(q, k, v, weights, out)
        return out

    @staticmethod
    def backward(context, grad_out):
        """Compute the gradients, with two functions of Triton and a matrix product of PyTorch between them."""
        q, k, v, weights, out = context.saved_tensors
        grad_out = grad_out.contiguous()
        rows, width = out.shape
        dot = torch.empty(rows, device=out.device, dtype=torch.float32)
        row_dot_kernel[(rows,)](dot, grad_out, out, width, out.stride(0), BLOCK=triton.next_power_of_2(width))
        grad_weights = torch.matmul(grad_out, v.t())
        grad_scores, n = torch.empty_like(weights), weights.shape[1]
        softmax_backward_kernel[(rows,)](
            *(grad_scores, grad_weights, weights, dot, context.scale, n, weights.stride(0)),
            BLOCK=triton.next_power_of_2(n),
        )
        return matmul(grad_scores, k), matmul(grad_scores.t(), q), matmul(weights.t(), grad_out), None


def main():
    """Compute attention and its gradients at two lengths, without and with a mask, and compare with PyTorch."""
    torch.manual_seed(0)
    for length, is_causal in itertools.product((256, 300), (False, True)):
        inputs = [torch.randn(length, 64, device="cuda", dtype=torch.float16, requires_grad=True) for _ in range(3)]
        mask = None
        if is_causal:
            mask = torch.full((length, length), float("-inf"), device="cuda", dtype=torch.float16).triu(1)
        out = Attention.apply(*inputs, mask)
        grads = torch.autograd.grad(out.square().sum(), inputs)
        expected = torch.nn.functional.scaled_dot_product_attention(*inputs, attn_mask=mask)
        expected_grads = torch.autograd.grad(expected.square().sum(), inputs)
        pairs = zip([out, *grads], [expected, *expected_grads], strict=True)
        print(f"{length} rows:", *(f"{(one - other).abs().max().item():.4f}" for one, other in pairs))


if __name__ == "__main__":
    main()
