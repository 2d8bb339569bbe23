#!/usr/bin/env bash
# Runs all that needs a GPU, on a machine with one and no network: tests, experiments, packages in
# other languages, benchmarks, compute-sanitizer.
#
#   tests/gpu/run_all.sh [--bundle build/gpu_bundle] [--out build/gpu_results] [--budget 570] [--dry-run] \
#       [--only languages,benchmarks]
#
# pack.py makes the bundle, where TVM and the compilers are. The results are OUT/result.json, gpu.json and log.txt. The
# status is 0 only if everything ran and passed. PYTHON is the interpreter that has PyTorch; default: python3.
set -u
here=$(cd "$(dirname "$0")" && pwd) || exit 2
exec "${PYTHON:-python3}" "$here/run_all.py" "$@"
