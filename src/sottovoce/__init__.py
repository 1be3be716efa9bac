"""sottovoce: train and tune models across organisations that cannot share their data, with differential privacy.

>>> import sottovoce as sv
>>> sv.Release(clip=1.0, noise=0.5).clip
1.0

Names are loaded when they are first used, so that the command line answers at once. `__init__.pyi` lists them; type
checkers read it too.
"""

from typing import Any

import lazy_loader

__version__ = "0.1.0"

# `sv.audit` is the function. The room of the same name is imported by its path: `from sottovoce.audit import exhibits`.
# lazy_loader (0.6 or newer) keeps the function under this name when the room is imported; only the form
# `import sottovoce.audit as room` would give the function.
_load, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        from sottovoce.naming import unknown

        raise AttributeError(unknown("name in sottovoce", name, __all__))
    return _load(name)
