"""A definition that can be compiled and called: the base of what ``@kernel`` makes and of what ``load`` finds."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.errors import DefinitionError, EditedError, KernelwrightError, Where, shown
from ..core.project import OWN_PACKAGE
from ..runtime.refusal import refusal_of
from .build import Job, lower_job
from .options import Options
from .origin import Origin, job_of

if TYPE_CHECKING:
    from ..define.kernel import Kernel
    from .eager import Eager
    from .reached import Doubt
    from .watched import Watch

Self = TypeVar("Self", bound="Compilable")


class Compilable:
    """A definition that can be compiled and called.

    A compiled kernel is an object as packages have, for the devices of this machine or for the archs that were asked
    for. It has four more attributes: ``key``, ``cached`` (whether it was compiled before, and not now), ``artifacts``
    (the folder of its sources and images), and ``source``.
    """

    name: str
    _options = Options()
    _bound: Callable[..., Mapping[str, Any]] | None = None
    _eager: Eager | None = None
    _is_told = False
    """Whether the user was told why each call evaluates the definition again."""

    def _origin(self, watch: Watch | None = None) -> Origin:
        """What is known of the definition now.

        Arguments:
            watch: is told what the answer relies on.

        Raises:
            KernelwrightError: the definition file has an error, or a tool is missing.
        """
        raise NotImplementedError

    def compile(self, **config: Any) -> Any:
        """Compile one variant, unless the cache has it.

        Arguments:
            config: values of the definition's parameters. Without any, the first listed config is compiled. If only
                some are given, it is the first listed config that has them; if none has, they are the whole config.

        Returns:
            A kernel object as packages have.

        Raises:
            KernelwrightError: there is no such config, or a stage failed; the message names the kernel, the variant,
                the stage and the place.
        """
        try:
            return self._load(self._origin(), config)
        except KernelwrightError as error:
            raise shortened(error)  # noqa: B904

    def par_compile(
        self,
        configs: Iterable[Mapping[str, Any]] | None = None,
        *,
        num_workers: int | None = None,
        ignore_error: bool = False,
    ) -> list[Any]:
        """Compile several variants at once; the kernel objects in the order of the configs.

        Arguments:
            configs: as for :meth:`compile`; None: all listed ones, or of a space all choices with their first points.
            num_workers: how many stages run at once; None: as many as there are cores.
            ignore_error: whether a variant that fails becomes None, with a warning. Otherwise the first failure ends
                all, and is raised.

        Raises:
            KernelwrightError: a variant failed.
        """
        from .parallel import compile_all

        chosen = copy(self)
        if num_workers is not None:
            chosen._options = replace(self._options, num_workers=num_workers)
        origin = chosen._origin()
        seen = [choice.config for choice in origin.record.choices] or origin.record.configs
        wanted = seen if configs is None else listed(configs, "configs", origin.where)
        return compile_all([partial(chosen._load, origin, config) for config in wanted], origin.session, ignore_error)

    def using(self: Self, **options: Any) -> Self:
        """The same definition, compiled in another way.

        Arguments:
            options: ``target`` (``llvm``, ``cuda``), ``archs``, ``backend``, ``flags`` of the CUDA compiler,
                ``pass_configs`` of TVM, ``dump_ir``, ``verbose``, ``num_workers`` and the others of
                docs/on-demand.md; an option that is left out stays as it is.

        Raises:
            SettingsError: a value is wrong; the message lists the right ones.
        """
        changed = copy(self)
        changed._options = Options.read(f"{self.name}.using()", **options).over(self._options)
        changed._eager = None
        return changed

    def bind(self, function: Callable[..., Mapping[str, Any]]) -> Callable[..., Mapping[str, Any]]:
        """Set the function that names a config for calls that no listed config fits, or several that differ in meaning.

        Arguments:
            function: called with the arguments of a call; returns a config.

        Returns:
            The function, so that this can be a decorator.
        """
        self._bound = function
        self._eager = None
        return function

    def __call__(self, /, *arguments: Any, **named: Any) -> Any:
        """Run the first listed variant that fits the arguments; it is compiled at its first use.

        Arguments are given by position or by name.

        If none fits, the config that the function of :meth:`bind` gives is compiled.

        Raises:
            TypeError, ValueError: nothing fits; the message lists what was tried.
            KernelwrightError: a stage failed.
        """
        if self._eager is None:
            from .eager import Eager

            self._eager = Eager(self, self._bound)
        try:
            return self._eager(*arguments) if not named else self._eager.call_named(arguments, named)
        except Exception as error:
            if not isinstance(error, KernelwrightError) and refusal_of(error) is None:
                raise
            raise shortened(error)  # noqa: B904

    def __deepcopy__(self: Self, memo: Any) -> Self:
        return copy(self)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but the choices of earlier calls, which have locks."""
        return {**vars(self), "_eager": None}

    def tune(
        self,
        *,
        sizes: Mapping[str, Iterable[int]] | Sequence[str] | None = None,
        budget: str | None = None,
        device: str | None = None,
        again: bool = False,
    ) -> None:
        """Measure which points of the kernel's space suit a device, and write its tuning table.

        It is the command ``kernelwright tune`` for this kernel, with the same files; see docs/tuning.md. Nothing is
        tuned without being asked for.

        Arguments:
            sizes: size symbol -> sizes; or texts such as ``"m=1:8192:x2"``. None: those of the definition.
            budget: how long it may take, such as ``"10m"``. None: until all is measured.
            device: ``cpu`` or ``cuda:0``. None: the GPU, or else the CPU.
            again: whether what was measured before is measured anew.

        Raises:
            KernelwrightError: the kernel is in no file, or the tuning failed.
        """
        self._run_command("tune", sizes, budget=budget, device=device, again=again)
        self._eager = None

    def bench(
        self,
        *,
        sizes: Mapping[str, Iterable[int]] | Sequence[str] | None = None,
        device: str | None = None,
        all: bool = False,
        beside: Sequence[str] = (),
        against: str | None = None,
        json: str | None = None,
    ) -> None:
        """Measure the kernel beside other ways to do the same, and print the table.

        It is the command ``kernelwright bench`` for this kernel; see docs/bench.md.

        Arguments:
            sizes, device: as for :meth:`tune`.
            all: whether all points of the space are measured, not only those that run.
            beside: functions that get the inputs, such as ``"torch:softmax"``.
            against: a wheel, the folder of a package, or a revision of git.
            json: a file for the results.

        Raises:
            KernelwrightError: the kernel is in no file, or something cannot be built or measured.
        """
        self._run_command("bench", sizes, device=device, all=all, beside=beside, against=against, json=json)

    def _run_command(self, command: str, sizes: Any, **given: Any) -> None:
        from .tune_command import run_command

        path = self._source_file()
        if path is None:
            message = f"{self.name} is in no file that {command} could execute"
            raise DefinitionError(message, Where(self.name, stage=command), "write it into a file of a project")
        run_command(command, self.name, path, self._options, sizes, **given)

    def _source_file(self) -> Path | None:
        """The definition file, if there is one that workers can execute."""
        raise NotImplementedError

    def lower(self, **config: Any) -> Any:
        """The scheduled ``tvm.IRModule`` of a variant, before it is split into host and device code.

        It is made in this process, which imports TVM.

        Arguments:
            config: as for :meth:`compile`.

        Raises:
            KernelwrightError: the definition is wrong, or no schedule can be found.
        """
        from .live import scheduled_module

        try:
            origin = self._origin()
            with self._definition(origin) as kernel:
                return scheduled_module(kernel, job_of(origin, config, self._options))
        except KernelwrightError as error:
            raise shortened(error)  # noqa: B904

    def _definition(self, origin: Origin) -> AbstractContextManager[Kernel]:
        """The definition itself, executed in this process; it can be called as long as the context lasts."""
        raise NotImplementedError

    def _watch(self, before: Watch | None = None) -> Watch:
        """A watch that looks from now on at all that a call relies on.

        Arguments:
            before: the last watch, if nothing has changed but what functions read from around them.
        """
        raise NotImplementedError

    def _job(self, origin: Origin, config: Mapping[str, Any], tuned: bool = False) -> Job:
        """The job of a config; ``tuned``: with the variants that tuning tables choose for its calls."""
        return job_of(origin, config, self._options, tuned)

    def _variant(self, job: Job, target: str | None) -> tuple[dict[str, Any], dict[str, str]]:
        """What a variant expects of its arguments, as a manifest has it; it is lowered for that, and not compiled.

        With it comes what the lowering turned out to read: name -> digest.
        """

        target = target if target in job.selection.archs else next(iter(job.selection.archs))
        variant = job.selection.variant_for(target)
        units = [{"target": name} for name in job.selection.archs_of(variant.slug)]
        signature, later = lower_job(job, target, say)
        return {"slug": variant.slug, "config": dict(variant.config), "units": units, **signature}, later

    def _load(self, origin: Origin, config: Mapping[str, Any]) -> Any:
        """The kernel object of a config. If this fails because a file was edited, it is tried once more."""
        try:
            return self._load_job(self._job(origin, config))[0]
        except EditedError:
            return self._load_job(self._job(self._origin(), config))[0]

    def _load_job(self, job: Job) -> tuple[Any, dict[str, str]]:
        """The kernel object of a job, and what its stages turned out to read: name -> digest."""
        from .loaded import load_kernel
        from .record import active

        kernel = load_kernel(job, say)
        if (recorder := active(self._options.record)) is not None:
            for variant in job.record.configs[: job.selection.declared]:
                recorder.note(job.record.name, variant)
        return kernel, kernel._later

    def _point_out(self, doubt: Doubt) -> None:
        """Say once why each call evaluates the definition again, and what helps."""
        if not self._is_told:
            self._is_told = True
            why = f"each call of {self.name} evaluates its definition again, because no call can compare {doubt.what}"
            say(f"kernelwright: {doubt.location}: {why}")
            say(f"  remedy: {REMEDY.format(name=self.name)}")


def shortened(error: Exception) -> Exception:
    """The error without our own frames between the user's call and the user's code: its message says it all."""
    cause = error.__cause__
    trace = None if cause is None else cause.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(OWN_PACKAGE):
        trace = trace.tb_next
    if cause is not None:
        cause.__traceback__ = trace
    return error.with_traceback(None)


REMEDY = (
    "make what it reads a parameter of the definition, or call what {name}.compile() returns: "
    "that is fast, and stays what it is"
)


def listed(values: Any, name: str, where: Where) -> tuple[Any, ...]:
    """The values of an iterable. Raises a DefinitionError for anything else, and for a dict or a string."""
    if isinstance(values, (str, Mapping)) or not isinstance(values, Iterable):
        raise DefinitionError(f"{name} is {shown(values)}, expected a list", where, f"pass a list of {name}")
    return tuple(values)


def say(text: str) -> None:
    """Show a line."""
    sys.stderr.write(f"{text}\n")
