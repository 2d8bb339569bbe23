"""What the kernel objects of compiled backends have besides their call: configs, devices, and words for refusals.

Only the standard library is imported here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn, TypeVar

    Self = TypeVar("Self", bound="Interface")

DEVICE_TYPES = {"cpu": 1, "cuda": 2}
"""DLPack's device type numbers."""

REMEDIES = {
    "numpy": "pass a dtype that NumPy exports, in native byte order; bfloat16 only from PyTorch or JAX",
    "torch": "pass a dense tensor that has data, outside of transformations such as vmap",
    "jax": "call the kernel outside of jax.jit and the like, or in a jax.pure_callback",
    "jaxlib": "pass an array that lies on one device and was not deleted",
}
"""Library -> what to do about an array that it does not export."""


class Interface:
    """A kernel, or one variant of it: what the manifest says of it, and what is said of arguments that cannot be."""

    __slots__ = ()  # so that a type of another language can have it as a base

    name: str
    _entry: dict[str, Any]
    _index: int | None

    def _of_variant(self: Self, index: int) -> Self:
        """The kernel object of the variant of that number."""
        raise NotImplementedError

    @property
    def variants(self) -> tuple[dict[str, Any], ...]:
        """The configs that are built, in order; the first is the default."""
        entries = self._entry["variants"]
        chosen = entries if self._index is None else [entries[self._index]]
        return tuple(dict(entry["config"]) for entry in chosen)

    def variant(self: Self, **config: Any) -> Self:
        """The first variant whose config has these values; on a variant, one that differs from it only in these.

        Raises:
            KeyError: no variant has them; the message lists the configs.
        """
        entries = self._entry["variants"]
        wanted = config if self._index is None else entries[self._index]["config"] | config
        for fits in (_equal_in_type, _equal):
            for index, entry in enumerate(entries):
                if all(key in entry["config"] and fits(entry["config"][key], value) for key, value in wanted.items()):
                    return self._of_variant(index)
        configs = [_listed(entry["config"]) or "one without a config" for entry in entries]
        raise KeyError(f"{self.name} has no variant with {_listed(wanted)}; built are: {'; '.join(configs)}")

    @property
    def devices(self) -> frozenset[str]:
        """The kinds of devices that it is built for: ``"cpu"``, ``"cuda"``."""
        targets = {unit["target"] for entry in self._entry["variants"] for unit in entry["units"]}
        return frozenset("cpu" if target == "llvm" else target for target in targets)

    def _refuse_writing(self, name: str, what: str) -> NoReturn:
        remedy = "pass an array that can be written, or leave outputs out of the call to get new ones"
        raise ValueError(
            f"kernel {self.name!r}: argument {name!r} is {what}, and the kernel writes it\n  remedy: {remedy}"
        )

    def _refuse_array(self, name: str, argument: Any, error: Exception) -> NoReturn:
        kind = f"{type(argument).__module__}.{type(argument).__qualname__}"
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        remedy = REMEDIES.get(library_of(argument), "pass an array of NumPy, PyTorch, JAX or CuPy")
        raise TypeError(
            f"kernel {self.name!r}: argument {name!r} is a {kind} that cannot be passed: {cause}\n  remedy: {remedy}"
        ) from error

    def __repr__(self) -> str:
        if self._index is None:
            count = len(self.variants)
            return f"<kernel {self.name} with {count} variant{'s' if count > 1 else ''}>"
        return f"<kernel {self.name}, variant {self._entry['variants'][self._index]['slug']}>"

    def __copy__(self: Self) -> Self:
        return self

    def __deepcopy__(self: Self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"kernel {self.name} cannot be pickled; import it where it is used")


def library_of(argument: Any) -> str:
    """The top module of an argument's type."""
    return type(argument).__module__.partition(".")[0]


def parse_device(device: Any) -> tuple[int, int]:
    """DLPack's (device type, index) of ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or an object that prints so.

    Raises:
        ValueError: it is none of these.
    """
    kind, _, index = str(device).partition(":")
    if kind not in DEVICE_TYPES or not (index or "0").isdigit():
        raise ValueError(f"unknown device {device!r}; expected 'cpu', 'cuda' or 'cuda:N'")
    return DEVICE_TYPES[kind], int(index or 0)


def _equal(left: Any, right: Any) -> bool:
    return bool(left == right)


def _equal_in_type(left: Any, right: Any) -> bool:
    """Whether two values are the same: 1, 1.0 and True are equal, and may be three configs."""
    return type(left) is type(right) and bool(left == right)


def _listed(config: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in config.items())
