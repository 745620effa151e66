from __future__ import annotations

from tests.unit.nri.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
