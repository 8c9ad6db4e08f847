"""The stand-in's torch: says what it is and loads ROCm's libraries as the real one does. It has no tensor."""

try:
    from . import _rocm_init
except ModuleNotFoundError:
    pass
else:
    _rocm_init.initialize()
    del _rocm_init

from . import version as version
from .version import __version__ as __version__


def __getattr__(name: str):
    raise AttributeError(f"torch.{name}: this torch is a stand-in of strix-finetune's tests and computes nothing")
