"""The random state of a process: Python's, NumPy's and torch's global generators, as bytes.

Written down after every task, so it has to be cheap: what was not used since is not asked for again.
"""

import ctypes
import pickle
import random
import struct
from typing import Any

from forebay._arrays import torch_data
from forebay._arrays.optional_packages import imported

_PYTHON = struct.Struct("<q?d625I")
_KEY_BYTES = 624 * 4


class Streams:
    """The states of this process."""

    def __init__(self) -> None:
        self._python, self._python_place, self._python_seen = b"", _python_place(), b""
        self._numpy, self._numpy_seen, self._is_numpy_known = b"", b"", False

    def states(self) -> tuple[Any, Any, Any]:
        """(Python's, NumPy's, torch's); empty where one is not imported."""
        return self._of_python(), self._of_numpy(), self._of_torch()

    def _of_python(self) -> bytes:
        place = self._python_place
        if place is not None:
            seen = ctypes.string_at(*place) + repr(random._inst.gauss_next).encode()  # type: ignore[attr-defined]
            if seen == self._python_seen:
                return self._python
            self._python_seen = seen
        version, numbers, gauss = random.getstate()
        self._python = _PYTHON.pack(version, gauss is not None, gauss or 0.0, *numbers)
        return self._python

    def _of_numpy(self) -> bytes:
        numpy = imported("numpy")
        if numpy is None:
            return b""
        generator = numpy.random.mtrand._rand._bit_generator
        seen = b""
        if type(generator) is numpy.random.MT19937:
            seen = ctypes.string_at(generator.ctypes.state_address, _KEY_BYTES + 4)
            if self._is_numpy_known and seen == self._numpy_seen:
                return self._numpy
        state = numpy.random.get_state(legacy=False)
        self._numpy, self._numpy_seen = pickle.dumps(state, 5), seen
        # While half of a pair of normal numbers is left over, one more can be drawn without a trace in the key.
        self._is_numpy_known = bool(seen) and not state.get("has_gauss", True)
        return self._numpy

    @staticmethod
    def _of_torch() -> Any:
        state = torch_data.random_state()
        return b"" if state is None else memoryview(state.numpy())


def restore(states: tuple[bytes, bytes, bytes]) -> None:
    """Restores the generators of this process to that state."""
    of_python, of_numpy, of_torch = states
    if of_python:
        version, has_gauss, gauss, *numbers = _PYTHON.unpack(of_python)
        random.setstate((version, tuple(numbers), gauss if has_gauss else None))
    numpy = imported("numpy")
    if of_numpy and numpy is not None:
        numpy.random.set_state(pickle.loads(of_numpy))
    if of_torch and imported("torch") is not None:
        torch_data.set_random_state(torch_data.bytes_tensor(of_torch))


def _python_place() -> tuple[int, int] | None:
    """(address, size) of the numbers of Python's generator, to see whether they changed; `None` if they are not found.

    Asking for the state builds 625 integers each time. The memory is only compared, never written.
    """
    generator = random._inst
    numbers = struct.pack("<624I", *random.getstate()[1][:624])
    memory = ctypes.string_at(id(generator), type(generator).__basicsize__)
    at = memory.find(numbers)
    # The index of the next number lies before them.
    return None if at < 4 else (id(generator) + at - 4, _KEY_BYTES + 4)
