"""Choose what cannot affect privacy: how a run is computed and shown."""

from dataclasses import dataclass

from sottovoce.naming import check_count


@dataclass(frozen=True)
class Performance:
    """Choose how a run is computed and shown; nothing here changes what is released.

    Args:
        chunk: how many records are treated at once: bounds the memory.
        devices: over how many devices the agents are spread.
        progress: show a progress bar; by default on a terminal.
        share: let runs that differ in numbers alone share one compiled program, where all agents are on one device:
            in a rate, a start, the scale of the noise, or the weights of a small network. The last bits of a result
            may differ. Runs that differ in seed and records alone share theirs in any case.

    >>> Performance(chunk=4096).devices
    1
    """

    chunk: int = 1024
    devices: int = 1
    progress: bool | None = None
    share: bool = False

    def __post_init__(self) -> None:
        check_count("chunk", self.chunk)
        check_count("devices", self.devices)
