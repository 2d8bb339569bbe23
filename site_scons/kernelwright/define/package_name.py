"""Checks the import name of a package: Python has to be able to import it, and no other package may have it."""

from __future__ import annotations

import keyword
import re
import sys

from ..core.arch import FAMILIES
from ..core.errors import SettingsError, Where
from .debug import LEVELS, folder_of

BUILD_FOLDERS = ("kernels", "check", "wheels", *FAMILIES)
"""Folders beside the packages in the build folder."""

LABEL = rf"cu[0-9]+|({'|'.join(map(folder_of, LEVELS[1:]))})(-cu[0-9]+)?"
"""How those folders are called that are for one of several CUDA toolkits, or for debuggers."""

_OF_OTHERS = """
IPython OpenSSL PIL absl accelerate aiohttp anyio apex attr attrs babel bs4 certifi cffi chardet charset_normalizer
click cloudpickle colorama cupy_backends cupyx cv2 cycler dask datasets dateutil decorator deepspeed diffusers dill
distutils django docutils einops executing fastapi filelock flash_attn flask flax fsspec functorch gmpy2 google
greenlet grpc h11 httpcore httpx huggingface_hub hypothesis idna ipykernel isympy jinja2 joblib jupyter keras
kiwisolver lightning llvmlite markupsafe matplotlib mpmath msgpack multipart mypy mypy_extensions nanobind networkx
ninja numba numexpr nvidia onnx onnxruntime opentelemetry opt_einsum optax orbax orjson pandas pathspec peft
platformdirs pluggy polars prometheus_client psutil py pyarrow pybind11 pycparser pycuda pydantic pydantic_core
pygments pynvml pyparsing pytest pytz regex requests rich ruff safetensors scikit_build_core scipy seaborn
sentencepiece six skimage sklearn sniffio sortedcontainers sphinx sqlalchemy starlette sympy tensorboard tensorflow
timm tokenizers torchaudio torchgen torchvision tornado tqdm traitlets transformer_engine transformers typeguard typer
typing_extensions urllib3 uvicorn vllm wandb werkzeug wrapt xformers yaml zipp zmq zstandard
"""
_OF_OTHER_PYTHONS = """
aifc annotationlib asynchat asyncore audioop cgi cgitb chunk compression crypt imghdr imp lib2to3 mailcap msilib nis
nntplib ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib tomllib uu xdrlib
"""

TAKEN = frozenset(
    {"kernelwright", "SCons", "numpy", "ml_dtypes", "tvm", "tvm_ffi", "cutlass", "triton", "tilelang"}
    | {"clang", "Cython", "obstore", "cryptography", "distributed"}
    | {"torch", "jax", "jaxlib", "jax_tvm_ffi", "cupy", "cuda"}
    | {"pip", "setuptools", "pkg_resources", "_distutils_hack", "sitecustomize", "usercustomize"}
    | {"auditwheel", "dunamai", "elftools", "lz4", "packaging", "pyproject_metadata", "tomli", "wheel"}
    | {*_OF_OTHERS.split(), *_OF_OTHER_PYTHONS.split()}
    | sys.stdlib_module_names
)
"""Modules that a build, a package, its user or Python itself imports, those that these import, and others that many
programs import: a package of such a name would replace one."""


def is_importable(package: str) -> bool:
    """Whether a package of that dotted name can be imported; in ``__pycache__`` Python looks for compiled modules."""
    parts = package.split(".")
    named = all(part.isidentifier() and part.isascii() and not keyword.iskeyword(part) for part in parts)
    return named and "__pycache__" not in parts


def check_package_name(name: str, where: Where) -> None:
    """Raise a SettingsError for a name that a generated package cannot have."""
    top = name.split(".")[0]
    if not is_importable(name):
        raise SettingsError(f"package is {name!r}, which Python cannot import", where, "use a Python identifier")
    if top in BUILD_FOLDERS or re.fullmatch(LABEL, top):
        folders = ", ".join([*BUILD_FOLDERS, "cu128 and the like"])
        raise SettingsError(f"package is {name!r}, but {folders} are folders of the build", where, "use another name")
    if top in TAKEN:
        message = f"package is {name!r}, which would take the place of the module {top!r}"
        raise SettingsError(message, where, "use another name, such as acme_kernels")
