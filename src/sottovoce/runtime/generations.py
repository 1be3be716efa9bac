"""Find the checkpoints of a run: one file, or one per process and step.

Example: two processes store step 40 as ``checkpoint-40-0of2.npz`` and ``checkpoint-40-1of2.npz``. A step counts only
when all its files are there; older ones are removed after that. So a kill between two writes leaves an older step.
"""

import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from sottovoce.runtime import checkpoint
from sottovoce.runtime.peers import Peers

CHECKPOINT = "checkpoint.npz"
_SHARD = re.compile(r"checkpoint-(\d+)-(\d+)of(\d+)\.npz")
Shard = tuple[int, int, int]  # step, rank, count


def path(folder: Path, step: int, rank: int, count: int) -> Path:
    """Return the file of one process.

    >>> path(Path("run"), 40, 0, 2).name, path(Path("run"), 40, 0, 1).name
    ('checkpoint-40-0of2.npz', 'checkpoint.npz')
    """
    return folder / (CHECKPOINT if count == 1 else f"checkpoint-{step}-{rank}of{count}.npz")


def shards(folder: Path) -> list[Shard]:
    """Return step, rank and count of all files of several processes in a folder."""
    found = (_SHARD.fullmatch(file.name) for file in folder.glob("checkpoint-*.npz"))
    return sorted((int(m[1]), int(m[2]), int(m[3])) for m in found if m)


def any_in(folder: Path) -> bool:
    """Say whether something is stored in a folder."""
    return (folder / CHECKPOINT).exists() or bool(shards(folder))


def latest(folder: Path, company: Peers) -> int | None:
    """Return the newest step that every process can read its part of; None if there is none.

    The run then starts from the beginning. It draws the same noise as before, so nothing is spent twice.
    """
    here = _readable(folder, company)
    everywhere = company.gather(sorted(here))
    common = set.intersection(*map(set, everywhere))
    if common:
        return max(common)
    if any(everywhere) and company.leads:
        warnings.warn(
            f"no step of the run in {folder} is stored for all agents (the processes have the steps {everywhere}), so "
            "it starts from the beginning. If the files lie on several machines, put them into one folder first",
            stacklevel=2,
        )
    return None


def _readable(folder: Path, company: Peers) -> set[int]:
    found = shards(folder)
    own = {step for step, rank, count in found if (rank, count) == (company.rank, company.count)}
    whole = {(step, count) for step, _, count in found}
    complete = {step for step, count in whole if all((step, rank, count) in found for rank in range(count))}
    single = {int(checkpoint.read_meta(folder / CHECKPOINT)["step"])} if (folder / CHECKPOINT).exists() else set()
    return own | complete | single


def files(folder: Path, step: int, company: Peers) -> list[Path]:
    """Return the files that hold this process's part of a step: its own, or those of all."""
    found = shards(folder)
    if (step, company.rank, company.count) in found:
        return [path(folder, step, company.rank, company.count)]
    for count in sorted({count for at, _, count in found if at == step}):
        if all((step, rank, count) in found for rank in range(count)):
            return [path(folder, step, rank, count) for rank in range(count)]
    return [folder / CHECKPOINT]


def rows(paths: Sequence[Path], shapes: Sequence[Any], holds: range | None) -> list[np.ndarray]:
    """Read the rows of the agents that are held here; `shapes` are those of all agents together."""
    parts, agents = [], []
    for file in paths:
        stored = checkpoint.read_meta(file).get("agents")
        at = range(*stored) if stored is not None else range(next((s.shape[0] for s in shapes if s.shape), 0))
        like = shapes if stored is None else [jax.ShapeDtypeStruct((len(at), *s.shape[1:]), s.dtype) for s in shapes]
        parts.append([np.asarray(leaf) for leaf in checkpoint.load(file, like=list(like))[0]])
        agents.append(at)
    if len(parts) == 1 and (holds is None or agents[0] == holds):
        return parts[0]
    first = agents[0].start
    joined = [np.concatenate(leaves) for leaves in zip(*parts)]
    return joined if holds is None else [leaf[holds.start - first : holds.stop - first] for leaf in joined]


def tidy(folder: Path, step: int, company: Peers) -> None:
    """Remove older files, after everybody has stored this step."""
    company.gather(step)
    for at, rank, count in shards(folder):
        own = (rank, count) == (company.rank, company.count)
        if (own and at != step) or (company.leads and count != company.count):
            path(folder, at, rank, count).unlink(missing_ok=True)
    if company.leads and company.count > 1:
        (folder / CHECKPOINT).unlink(missing_ok=True)
