"""NetReduce: in-network gradient aggregation beneath an untouched RoCE transport."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from netreduce.runtime.communicator import Communicator as Communicator

__version__ = "0.1.0"
__all__ = ["Communicator", "__version__"]


def __getattr__(name: str) -> Any:
    """`Communicator` is loaded when it is first asked for: it brings the compiler along."""
    if name == "Communicator":
        from netreduce.runtime.communicator import Communicator

        return Communicator
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
