"""What stands in for vLLM, which cannot be installed for a test: the interface for plug-ins of vLLM 0.33.

All of it is written for the tests. With ``KERNELWRIGHT_VLLM``, a folder in which vLLM's wheel is unpacked, the two
modules that plug-ins meet are vLLM's own, and what they import is still written here.
"""

from __future__ import annotations

import os
from pathlib import Path

REAL = ("model_executor/custom_op.py", "plugins/__init__.py")
"""The modules of vLLM that can take the place of those here."""

CUSTOM_OP = """
import torch
from vllm.config import get_cached_compilation_config
from vllm.platforms import current_platform

op_registry, op_registry_oot = {}, {}


class CustomOp(torch.nn.Module):
    def __new__(cls, *args, **kwargs):
        return super().__new__(op_registry_oot.get(cls.__name__, cls))

    def __init__(self, *, enforce_enable=False, compile_native=False):
        super().__init__()
        self._forward_method = self.dispatch_forward()

    def forward(self, *args, **kwargs):
        return self._forward_method(*args, **kwargs)

    def dispatch_forward(self):
        if not self.enabled():
            return self.forward_native
        return self.forward_cpu if current_platform.is_cpu() else self.forward_cuda

    @classmethod
    def enabled(cls):
        wanted = get_cached_compilation_config().custom_ops
        return ("all" in wanted or f"+{cls.name}" in wanted) and f"-{cls.name}" not in wanted

    @classmethod
    def register(cls, name):
        def decorator(op_cls):
            op_cls.name = name
            op_registry[name] = op_cls
            return op_cls

        return decorator

    @classmethod
    def register_oot(cls, _decorated_op_cls=None, name=None):
        def decorator(op_cls):
            assert name not in op_registry_oot, f"Duplicate op name: {name}"
            op_cls.name = name
            op_registry_oot[name] = op_cls
            return op_cls

        return decorator
"""

PLUGINS = """
from importlib.metadata import entry_points


def load_general_plugins():
    for plugin in entry_points(group="vllm.general_plugins"):
        plugin.load()()
"""

ACTIVATION = """
import torch
from vllm.model_executor.custom_op import CustomOp


@CustomOp.register("silu_and_mul")
class SiluAndMul(CustomOp):
    def __init__(self, *, compile_native=True):
        super().__init__(compile_native=compile_native)

    @staticmethod
    def forward_native(x):
        d = x.shape[-1] // 2
        return torch.nn.functional.silu(x[..., :d]) * x[..., d:]

    def forward_cuda(self, x):
        raise NotImplementedError

    def forward_cpu(self, x):
        return self.forward_native(x)
"""

CONFIG = """
import functools
import os
from types import SimpleNamespace


@functools.cache
def get_cached_compilation_config():
    wanted = os.environ["CUSTOM_OPS"].split()
    return SimpleNamespace(custom_ops=wanted, enabled_custom_ops=set(), disabled_custom_ops=set(), mode=0, backend="")
"""

PLATFORMS = """
class _Cpu:
    def __getattr__(self, name):
        return lambda: name == "is_cpu"


current_platform = _Cpu()
"""

MODULES = {
    **dict.fromkeys(("__init__.py", "model_executor/__init__.py", "model_executor/layers/__init__.py"), ""),
    "config/__init__.py": CONFIG,
    "config/compilation.py": "class CompilationMode:\n    NONE = 0\n",
    "envs.py": "VLLM_PLUGINS = None\n",
    "logger.py": "from logging import getLogger as init_logger\n",
    "model_executor/custom_op.py": CUSTOM_OP,
    "model_executor/layers/activation.py": ACTIVATION,
    "model_executor/utils.py": "def maybe_disable_graph_partition(backend):\n    return {}\n",
    "platforms.py": PLATFORMS,
    "plugins/__init__.py": PLUGINS,
}
"""Files of the package ``vllm`` -> their texts."""


def install_engine(site: Path) -> None:
    """Write the package ``vllm`` into a folder."""
    real = os.environ.get("KERNELWRIGHT_VLLM")
    for name, text in MODULES.items():
        path = site / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Path(real, "vllm", name).read_text() if real and name in REAL else text)
