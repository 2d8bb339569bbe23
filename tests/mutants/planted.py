"""Bugs that no generator makes: locks that two may have, orders of two steps, keys that say too little, old results.

Each is a change of a function that is told by its name, so it stays where the function goes. ``python
tests/mutants/sample.py --planted`` plants them one at a time, and runs the tests that have to find each.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Planted:
    """A bug to plant.

    Attributes:
        bug: what is wrong, a sentence.
        function: the qualified name of a function of Python, or the name of one of C.
        old: what is in the function once.
        new: what takes its place.
        tests: the names of the tests that have to fail.
    """

    bug: str
    function: str
    old: str
    new: str
    tests: tuple[str, ...]


PLANTED = (
    Planted(
        "A child that was forked while a lock was held holds it, too.",
        "_after_fork",
        ("for descriptor in _HELD:\n        with contextlib.suppress(OSError):\n            os.close(descriptor)"),
        "",
        ("test_a_forked_child_does_not_keep_the_lock_of_a_killed_parent",),
    ),
    Planted(
        "Who waited for a lock takes it, although its file was removed and another process has made a new one.",
        "_try_lock",
        "if os.fstat(lock).st_ino == path.stat().st_ino:",
        "if path:",
        ("test_a_lock_counts_only_if_its_file_is_still_there",),
    ),
    Planted(
        "Tuning a GPU waits for tuning the CPU.",
        "place_of",
        "return folder / f\"tune-{device.replace(':', '-')}.lock\"",
        'return folder / "tune.lock"',
        ("test_the_folder_of_locks_is_this_users",),
    ),
    Planted(
        "A thread that has waited for the lock does not see that another one has loaded the module, and replaces it.",
        "kw_load_locked",
        (
            "kw_loaded *loaded = atomic_load(&module->loaded[id]);\n"
            "  if (!loaded) loaded = kw_load_on(module, device, choice);"
        ),
        "kw_loaded *loaded = kw_load_on(module, device, choice);",
        ("test_a_provider_that_waits_for_other_threads_holds_nobody_up",),
    ),
    Planted(
        "A child that was forked during a launch takes the pool for busy for ever.",
        "kw_forget_pool",
        (
            "int wanted = atomic_load(&kw_own_pool.wanted);\n"
            "  kw_own_pool = (kw_pool){.wanted = wanted, .survives_fork = true};"
        ),
        "kw_own_pool.workers = 0;",
        ("test_a_fork_while_another_thread_is_in_a_launch_does_not_deadlock",),
    ),
    Planted(
        "A child after fork takes the threads of its parent for its own, and starts none.",
        "kw_forget_pool",
        "kw_own_pool = (kw_pool){.wanted = wanted, .survives_fork = true};",
        (
            "int workers = kw_own_pool.workers;\n"
            "  kw_own_pool = (kw_pool){.wanted = wanted, .workers = workers, .survives_fork = true};"
        ),
        ("test_a_child_after_fork_has_a_working_pool",),
    ),
    Planted(
        "Outputs that have ended are freed although the wait for the device has failed, while work may use them.",
        "kw_free_released",
        "bool done = !kw_wait_for_device(device);",
        "bool done = kw_wait_for_device(device) >= 0;",
        ("test_memory_is_kept_where_the_device_cannot_be_waited_for",),
    ),
    Planted(
        "Of two threads that make a pool at once, the second allocates from its own after that was destroyed.",
        "kw_add_pool",
        "if (!status && !atomic_compare_exchange_strong(&kw_memory_of(device)->pool, &none, made)) *pool = none;",
        "if (!status) atomic_compare_exchange_strong(&kw_memory_of(device)->pool, &none, made);",
        ("test_of_two_threads_that_make_a_pool_at_once_the_first_wins",),
    ),
    Planted(
        "The memory of an output is allocated in a stream that is being captured, and belongs to the graph.",
        "kw_check_output_stream",
        ("if (captured < 0) return -1;\n  if (captured)"),
        "if (captured < 0)",
        ("test_outputs_have_to_be_passed_in_a_capture",),
    ),
    Planted(
        "The memory of outputs that have ended is used again while other libraries still read it.",
        "Pool._free_released",
        "(status,) = cuda.driver.cuCtxSynchronize()",
        "status = 0",
        ("test_memory_that_ran_out_is_taken_back_from_outputs_that_have_ended",),
    ),
    Planted(
        "An output does not keep the stream of its launch, whose handle may belong to another one when it is used.",
        "kw_new_cuda_output",
        "PyObject *kept = call->stream_object ? call->stream_object : Py_None;",
        "PyObject *kept = Py_None;",
        ("test_an_output_keeps_the_stream_of_its_launch_as_far_as_it_was_passed",),
    ),
    Planted(
        "A call that fails does not wait for what it has launched, and inputs of JAX are freed under it.",
        "kw_run_and_wait",
        'if (kw_call_on_stream(call, "kw_synchronize")) Py_CLEAR(result);',
        'if (result && kw_call_on_stream(call, "kw_synchronize")) Py_CLEAR(result);',
        ("test_a_call_with_inputs_of_jax_waits_before_they_may_be_freed_also_if_it_fails",),
    ),
    Planted(
        "A device that cannot be opened leaves the capture mode of the thread relaxed.",
        "kw_query_relaxed",
        ('kw_restore_capture(mode);\n  return status ? kw_raise_cuda(status, "opening cuda:%d", id) : 0;'),
        ('if (status) return kw_raise_cuda(status, "opening cuda:%d", id);\n  kw_restore_capture(mode);\n  return 0;'),
        ("test_what_a_capture_does_not_allow_says_preload_and_leaves_the_threads_mode",),
    ),
    Planted(
        "Two stages whose sources of one name have each other's contents share a cache entry.",
        "key_of",
        "return _digest([FORM, fingerprint, sources])",
        "return _digest([FORM, fingerprint, sorted(sources)])",
        ("test_label_request_and_the_name_and_content_of_each_source_are_in_the_key",),
    ),
    Planted(
        "The key in the build cache has what the stage read in its last run, so that a fresh tree never finds it.",
        "Stage.cache_key",
        'return key_of(self._known_before, [(path.rpartition("/")[2], digest(path)) for path in self.sources])',
        'return key_of(self.fingerprint, [(path.rpartition("/")[2], digest(path)) for path in self.sources])',
        ("test_what_a_stage_turns_out_to_read_is_in_the_signature_and_not_in_the_key",),
    ),
    Planted(
        "Configs that differ in the type of a value have one name.",
        "_config_text",
        "return repr([(key, type(value).__name__, value) for key, value in config.items()])",
        "return repr([(key, str(value)) for key, value in config.items()])",
        ("test_slugs_are_unique_and_safe_for_file_systems",),
    ),
    Planted(
        "Of modules that are imported in parentheses, those behind the first line are in no digest of a stage's code.",
        "IMPORT",
        'IMPORT = re.compile(r"\\n[ \\t]*from (\\.+)([\\w.]*) import (\\([^)]*\\)|[^\\n#]*)")',
        'IMPORT = re.compile(r"\\n[ \\t]*from (\\.+)([\\w.]*) import ([^\\n#]*)")',
        ("test_imports_of_every_form_are_followed_and_those_for_annotations_are_not",),
    ),
    Planted(
        "Kernels stay settled after a change of the launcher.",
        "SOURCES",
        'SOURCES = (".py", ".pxi", ".c", ".cc", ".h", ".map")',
        'SOURCES = (".py",)',
        ("test_an_edit_of_the_launcher_or_of_any_module_has_every_kernel_looked_at",),
    ),
    Planted(
        "A file that changes between its reading and its stamp counts as unchanged from then on.",
        "trusted_stamps",
        (
            "stamp = _stamp_of(Path(top), name)\n"
            "        untold = stamp is not None and has_file(name) and not _told_by_time(stamp, now)\n"
            "        if present_digest(Path(top), name) != digest or untold:"
        ),
        (
            "same = present_digest(Path(top), name) == digest\n"
            "        stamp = _stamp_of(Path(top), name)\n"
            "        untold = stamp is not None and has_file(name) and not _told_by_time(stamp, now)\n"
            "        if not same or untold:"
        ),
        ("test_a_file_that_is_changed_while_it_is_looked_at_is_not_current",),
    ),
    Planted(
        "A call takes the stamps of after the work for those of what the work has used.",
        "Watch._compare",
        "if not all(map(self._has_its_digest, names)):",
        "if known and not all(map(self._has_its_digest, names)):",
        ("test_an_edit_of_a_file_counts_at_the_next_call_and_gives_the_kernel_of_compile",),
    ),
    Planted(
        "A file that changes after it was read is recorded with the content that was not used.",
        "ReadRecorder.note",
        (
            "if name not in reads.files:\n"
            "            with self.noting():\n"
            "                reads.files[name] = present_digest(self._root, name)"
        ),
        ("with self.noting():\n            reads.files[name] = present_digest(self._root, name)"),
        ("test_what_counts_of_a_file_is_the_content_that_was_read_first",),
    ),
    Planted(
        "On a disk that counts seconds, a file is trusted before its time has moved on.",
        "_told_by_time",
        "return changed + (FINE_NS if stamp[2] % 1_000_000_000 else COARSE_NS) < now",
        "return changed + FINE_NS < now",
        ("test_a_file_is_trusted_when_its_next_change_must_have_another_time",),
    ),
    Planted(
        "A stage that lacks an output still moves the others into place.",
        "publish",
        "missing = [name for name in stage.outputs if not (scratch / name).is_file()]",
        "missing = [] if any((scratch / name).is_file() for name in stage.outputs) else list(stage.outputs)",
        ("test_a_stage_that_makes_one_output_of_two_has_made_none",),
    ),
    Planted(
        "Files are written in place, so that a reader or a crash sees a part of one.",
        "write_atomically",
        "os.replace(name, path)  # noqa: PTH105",
        ("path.write_bytes(data)\n        os.unlink(name)  # noqa: PTH108"),
        ("test_a_reader_of_the_old_file_reads_it_to_its_end_while_a_new_one_takes_its_place",),
    ),
    Planted(
        "What is lowered is what a definition returns then, and not the program that its key is of.",
        "Programs.lower",
        "lowered = deeply(lambda: frontends.lowered(front_end, program, unit, lambda doing: None))",
        "lowered = deeply(lambda: frontends.lowered(front_end, self.returned(unit), unit, lambda doing: None))",
        ("test_what_is_compiled_is_the_program_that_the_key_is_of",),
    ),
    Planted(
        "What is parsed of a function is what its file has by now, under the digest of what was executed.",
        "ProjectLoader.get_code",
        "linecache.cache[self.path] = (len(content), None, lines, self.path)  # without a time: never checked again",
        "linecache.cache[self.path] = (len(content), 0.0, lines, self.path)  # without a time: never checked again",
        ("test_the_source_of_a_function_is_the_one_that_was_compiled_whatever_the_file_has_now",),
    ),
    Planted(
        "Headers are kept though a file changed while it was read.",
        "KeptHeaders.of",
        "if all(changed + TICK_NS < begun for _, _, changed, _ in stamps.values()):",
        "if all(changed or begun for _, _, changed, _ in stamps.values()):",
        ("test_files_that_change_while_they_are_read_are_not_kept",),
    ),
    Planted(
        "An edit of a definition forgets what its lowerings read.",
        "KeptRecords.keep",
        "before.later if before else {}",
        "{}",
        ("test_files_that_only_a_request_reads_are_known_from_then_on",),
    ),
    Planted(
        "A kernel takes the place of another one whose stages read other files.",
        "kernel_folder",
        'return root / "kernels" / f"{folder_name(name, key)}-{entry[:KEY_SHOWN]}"',
        'return root / "kernels" / f"{folder_name(name, key)}-{key[:KEY_SHOWN]}"',
        ("test_each_kernel_is_found_by_what_it_was_made_of_whatever_happens_to_the_cache",),
    ),
    Planted(
        "What two stages made of two contents of a file is known by one of them.",
        "read_by",
        "later[name] = content if later.get(name, content) == content else EDITED",
        "later[name] = content",
        ("test_a_kernel_two_stages_of_which_read_a_file_differently_is_never_found_again",),
    ),
    Planted(
        "A call like an earlier one is launched on the device of that one.",
        "_outline",
        "return value[1:5]",
        "return value[1:4]",
        ("test_a_call_like_an_earlier_one_is_compared_as_well",),
    ),
    Planted(
        "After an output on the CPU, outputs on a GPU know no stream.",
        "Kernel._with_stream",
        "if kind != CUDA:\n                return result",
        "if kind != CUDA:\n                self._as_is.add(type(result))\n                return result",
        ("test_an_output_on_a_gpu_remembers_its_stream_whatever_else_the_kernel_is_built_for",),
    ),
    Planted(
        "What changes while finished kernels are taken counts as what they were made from.",
        "Restorer.restore",
        "names = {name: present(name) for name in found.names}",
        "names = {name: present_digest(Path(wanted.top), name) for name in found.names}",
        ("test_a_change_while_kernels_are_taken_counts_and_the_end_is_orderly",),
    ),
)
