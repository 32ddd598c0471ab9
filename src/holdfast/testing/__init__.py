"""For tests: the contract that every engine keeps, real servers as fixtures, and processes that take locks on command.

To run the contract on an engine of your own::

    from holdfast.testing import AsyncEngineContract, EngineContract

    class TestMyEngine(EngineContract):
        @pytest.fixture
        def target(self):
            return "my_package.engine:make_engine"  # or a URL
"""

from ._async.contract import AsyncEngineContract
from ._sync.contract import EngineContract
from .child import Child
from .target import PATIENCE, open_engine

__all__ = ["AsyncEngineContract", "Child", "EngineContract", "PATIENCE", "open_engine"]
