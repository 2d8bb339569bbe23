"""Values that are made once, whichever thread asks for them first."""

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

from kernelwright.core.once import if_made, shared_property


class Owner:
    """Its value can be made when ``may_end`` is set."""

    def __init__(self) -> None:
        self.begun, self.may_end, self.made = threading.Event(), threading.Event(), 0

    @shared_property
    def value(self) -> int:
        self.begun.set()
        assert self.may_end.wait(10)
        self.made += 1
        return self.made


def test_threads_that_ask_at_once_get_the_same_value():
    owner = Owner()
    assert if_made(owner, "value") is None
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(lambda: owner.value) for _ in range(4)]
        assert owner.begun.wait(10)
        owner.may_end.set()
        assert {future.result(10) for future in asked} == {1} and owner.made == 1
    assert if_made(owner, "value") == 1


def test_a_child_that_was_forked_while_a_value_was_made_does_not_wait_for_it():
    owner, other = Owner(), Owner()
    other.may_end.set()
    with ThreadPoolExecutor(1) as threads:
        making = threads.submit(lambda: owner.value)
        assert owner.begun.wait(10)
        child = os.fork()
        if not child:
            signal.alarm(5)  # ends the child if it waits
            os._exit(0 if other.value == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        owner.may_end.set()
        assert making.result(10) == 1
