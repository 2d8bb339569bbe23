"""What runs inside a worker: it executes definition files, lowers variants and checks kernels."""
