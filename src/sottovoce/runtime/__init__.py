"""Run a method: one loop, and the places it drives (array, mesh, threads, columns)."""

from sottovoce.runtime.performance import Performance
from sottovoce.runtime.result import Model, Result
from sottovoce.runtime.run import run

__all__ = ["Model", "Performance", "Result", "run"]
