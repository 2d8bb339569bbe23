"""A process in which the backends of other distributions write files: ``python -m kernelwright.backends.writer``.

So one that hangs or dies is an error of the kernel, with the limits that workers have.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ..core import plugins
from ..core.converter import from_json
from ..processes.messages import Hello
from ..processes.protocol import EmitRequest, EmitResult
from ..processes.serving import Progress, Send, answer_to, serve
from ..processes.tool_process import REVISION
from . import emitted, get
from .plan import KernelPlan


def _do(request: EmitRequest, progress: Progress) -> EmitResult:
    progress(f"writing files of the backend {request.backend!r}")
    backend = get(request.backend)
    plugins.require_content(backend, request.content)
    plan = None if request.plan is None else from_json(KernelPlan, request.plan)
    return EmitResult(emitted(backend, plan, request.package, request.where))


def _answering(send: Send) -> Any:
    answer = partial(answer_to, kinds={EmitRequest.op: EmitRequest}, do=_do, send=send)
    return lambda line: send(answer(line))


if __name__ == "__main__":
    serve(Hello({}, REVISION), _answering)
