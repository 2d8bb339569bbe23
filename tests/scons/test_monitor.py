"""What a process is told about compile on demand: counts, events, OpenTelemetry, and a line at its end."""

from __future__ import annotations

import re

import pytest
from support.demand import Demand
from support.project import Project

PROGRAM = """
import os
events = []
end = kw.monitor(events.append)
kw.monitor(lambda event: 1 / 0)
kw.load("kernels/twice.py").twice.compile(dtype="float32")
print([(event.kind, event.kernel, event.variant) for event in events])
print(events[0].why)
end()
kw.load("kernels/twice.py").twice.compile(dtype="float32")
end()  # once more changes nothing


class Collected(list):
    __call__ = list.append


one, other = Collected(), Collected()
kw.monitor(one)
kw.monitor(other)()
kw.load("kernels/twice.py").twice.using(debug="full").compile(dtype="float32")
print(len(one), len(other))
try:
    kw.monitor(3)
except kw.KernelwrightError as error:
    print(error.message)
print(len(events), {kind: count for kind, (count, seconds) in kw.counters().items()})
if not os.fork():
    os._exit(sum(count + (seconds > 0) for count, seconds in kw.counters().values()))
print("child", os.wait()[1])
"""


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    made = Demand(cpu_project)
    made.definition("twice")
    return made


def test_a_process_is_told_what_compile_on_demand_does(demand: Demand) -> None:
    said = demand.run(PROGRAM)
    events, why, collected, wrong, counts, child = said.stdout.splitlines()
    assert events == "[('compile', 'twice', 'dtype-float32'), ('load', 'twice', 'dtype-float32')]"
    assert why == "the cache has no kernel of that name"
    assert collected == "2 0" and wrong == "the argument of monitor() is 3, which cannot be called"
    assert counts == "2 {'compile': 2, 'failure': 0, 'hit': 1, 'wait': 0, 'load': 2}" and child == "child 0"
    assert said.stderr.count("the monitor failed at") == 5 and "ZeroDivisionError" in said.stderr
    program = 'import kernelwright as kw; kw.load("kernels/twice.py").twice.compile(dtype="float32")'
    _, line = demand.start(["-c", program], {"KERNELWRIGHT_MONITOR": "1"}).communicate()
    assert re.fullmatch(r"kernelwright: process \d+: 1 hit \(\d+\.\d\d s\), 1 load \(\d+\.\d\d s\)\n", line)


def test_opentelemetry_gets_the_events(demand: Demand) -> None:
    pytest.importorskip("opentelemetry.sdk", reason="needs opentelemetry-sdk")
    program = """
    from opentelemetry import metrics
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    reader = InMemoryMetricReader()
    metrics.set_meter_provider(MeterProvider([reader]))
    kw.monitor()
    kw.load("kernels/twice.py").twice.compile(dtype="float32")
    (resource,) = reader.get_metrics_data().resource_metrics
    for metric in resource.scope_metrics[0].metrics:
        print(metric.name, sorted((p.attributes["kind"], p.attributes["kernel"]) for p in metric.data.data_points))
    """
    said = demand.run(program)
    points = "[('compile', 'twice'), ('load', 'twice')]"
    assert said.stdout.splitlines() == [f"kernelwright.events {points}", f"kernelwright.seconds {points}"]
