"""The setting ``configs``: a file of recorded configs takes the place of those that the definitions list."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError, SettingsError, Where
from ..core.files import read_record
from ..define.configs import Variant
from ..define.divisible import by_class, in_order
from ..define.record import DefinitionRecord, KernelRecord
from ..define.recorded import LARGEST, VARIABLE, Configs, config_text, damage, parse
from ..define.space import Choice, callers_part, variants_of
from ..define.unit import alike


class Configured:
    """The configs that the setting names.

    Arguments:
        top: the folder that the setting's path is relative to.
        name: the path.

    Raises:
        SettingsError: there is no such file, or it is damaged.
    """

    def __init__(self, top: Path, name: str) -> None:
        self._name = name
        where = Where(stage="settings", location=name)
        again = f"run your program with {VARIABLE}={name}, or leave the setting configs out"
        try:
            self.content = read_record(top / name, LARGEST)
            self._configs: Configs = parse(self.content)
        except FileNotFoundError as error:
            raise SettingsError(f"the setting configs names {name}, which does not exist", where, again) from error
        except (OSError, ValueError) as error:
            raise SettingsError(f"{name} {damage(error)}", where, f"delete it, and {again}") from error
        for kernel, configs in self._configs.items():
            if not configs:
                raise SettingsError(f"{name} lists no config of {kernel!r}", where, "take the kernel out of the file")

    def notes(self, kernels: Iterable[str]) -> list[str]:
        """What to tell about kernels that the file names and that are not built.

        Arguments:
            kernels: those that are built.
        """
        unbuilt = sorted(self._configs.keys() - set(kernels))
        return [f"{self._name} names {name!r}, and no such kernel is built" for name in unbuilt]

    def applied(self, kernel: KernelRecord, definition: DefinitionRecord) -> KernelRecord:
        """A kernel with the configs that the file has for it; a backward kernel follows its forward kernel.

        Raises:
            DefinitionError: two of the configs would have one name.
        """
        forward = next((other for other in definition.kernels if other.backward == kernel.name), kernel)
        configs = self._configs.get(kernel.name)
        if configs is None and forward.name in self._configs:
            of_forward = (callers_part(forward.choices, config) for config in self._configs[forward.name])
            configs = list({config_text(config): config for config in of_forward}.values())
        if configs is None:
            return kernel
        configs = [dict(config) for config in in_order(configs)]
        if kernel.choices:
            kernel = self._narrowed(kernel, configs)
            configs = [dict(config) for config in variants_of(kernel.choices)]
        variant_of = {config_text(config): Variant(kernel.name, config, slug) for config, slug in kernel.listed}
        chosen = (variant_of.get(config_text(config)) or kernel.variant_of(config) for config in configs)
        variants = list({variant.slug: variant for variant in chosen}.values())
        self._require_names(kernel, variants, len(configs))
        return replace(
            kernel,
            configs=tuple(variant.config for variant in variants),
            slugs=tuple(variant.slug for variant in variants),
        )

    def _narrowed(self, kernel: KernelRecord, configs: Iterable[Mapping[str, Any]]) -> KernelRecord:
        """A kernel with a space, with the choices that some configs of variants, or of callers, belong to.

        A config that belongs to none is a choice with the one point that it has, or with those of the first choice.
        """
        known = {config_text(choice.config): choice for choice in kernel.choices}
        first = kernel.choices[0].points
        choices: dict[str, Choice] = {}
        for config in configs:
            seen = callers_part(kernel.choices, config)
            point = {key: value for key, value in config.items() if key not in seen}
            text = config_text(seen)
            points = dict.fromkeys(first, (point,)) if point else first
            choices.setdefault(text, known.get(text) or Choice(seen, points))
        return replace(kernel, choices=tuple(by_class((choice.config, choice) for choice in choices.values())))

    def _require_names(self, kernel: KernelRecord, variants: list[Variant], count: int) -> None:
        """Each name is found apart from those of other configs in the file, so two may be one, or be one in C."""
        slugs = [variant.slug for variant in variants if variant.slug not in kernel.slugs]
        same = next((slug for slug in slugs if len(alike(slug.lower(), [other.lower() for other in slugs])) > 1), None)
        if same is not None or len(variants) < count:
            what = f"two of the configs in {self._name} would have names like {same or variants[0].slug}"
            where = Where(kernel.name, stage="discover", location=kernel.location)
            raise DefinitionError(what, where, "list these configs in the definition, or take one out of the file")
