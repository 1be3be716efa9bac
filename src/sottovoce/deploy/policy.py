"""What a site agrees to, in a file of its own: everything else is refused before a record is read.

methods = ["DpSgd", "LdpDsbo"]  # which methods may run here
tasks = ["logistic"]            # leave it out to allow all
epsilon = 2.0                   # the most that one run may cost
delta = 1e-5                    # the most
budget = 8.0                    # the most that all runs together may cost (ledger.jsonl)
noise = ["exact"]               # "simulated" too: only to compare with one machine, on data that are no secret

[data]
file = "patients.csv"           # this site's table, beside the policy; or name = "digits", for trials
columns = ["age", "sex", "death"]  # columns that a run may use; leave it out to allow all

[peers]                         # SHA-256 fingerprints of certificates: nobody else is talked to
north = "3f:5b:..."             # `sottovoce deploy fingerprint` prints a site's own
south = "90:aa:..."
"""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sottovoce.experiments.runfile import Case

NAME = "policy.toml"


class _Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OwnData(_Closed):
    """This site's data, and what of them may be used."""

    file: str | None = None
    name: str | None = None
    columns: list[str] | None = None


class Policy(_Closed):
    """What a site agrees to."""

    methods: Annotated[list[str], Field(min_length=1)]
    epsilon: Annotated[float, Field(gt=0)]
    delta: Annotated[float, Field(ge=0, lt=1)]
    budget: Annotated[float, Field(gt=0)]
    data: OwnData
    peers: dict[str, str]
    tasks: list[str] | None = None
    noise: list[Literal["exact", "simulated"]] = ["exact"]

    @classmethod
    def load(cls, path: Path) -> "Policy":
        """Read a policy; an error names the file and the key."""
        try:
            return cls.model_validate(tomllib.loads(path.read_text()))
        except FileNotFoundError:
            raise ValueError(f"there is no policy {path}: a site without one agrees to nothing") from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path} is not TOML: {error}") from None
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None

    def require(self, case: Case, me: str, noise: Literal["exact", "simulated"], sites: list[str]) -> None:
        """Refuse a configuration beyond this policy; nothing was read so far.

        >>> from sottovoce.experiments.runfile import Data, MethodTable
        >>> policy = Policy(methods=["DpSgd"], epsilon=1, delta=1e-5, budget=2, data=OwnData(name="digits"), peers={})
        >>> policy.require(Case(data=Data(name="digits"), method=MethodTable(name="Dsgt")), "north", "exact", [])
        Traceback (most recent call last):
        ...
        PermissionError: the policy of north does not agree to method 'Dsgt': it allows DpSgd
        """
        self._one(me, "method", case.method.name.partition(".")[0], self.methods)
        if self.tasks is not None:
            self._one(me, "task", case.task.name if case.task else "the one that fits the label", self.tasks)
        self._one(me, "noise", noise, self.noise)
        for peer in sites:
            if peer != me:
                self._one(me, "peer", peer, list(self.peers))
        privacy = case.privacy
        if not privacy.enabled or privacy.epsilon is None or privacy.epsilon > self.epsilon:
            wanted = "no privacy" if not privacy.enabled else f"epsilon {privacy.epsilon}"
            raise PermissionError(f"the policy of {me} does not agree to {wanted}: at most epsilon {self.epsilon:g}")
        if privacy.delta > self.delta:
            raise PermissionError(
                f"the policy of {me} does not agree to delta {privacy.delta:g}: at most {self.delta:g}"
            )
        self._require_data(case, me)

    def _require_data(self, case: Case, me: str) -> None:
        if (case.data.file is None) != (self.data.file is None):
            raise PermissionError(f"the policy of {me} is for {self.data.file or self.data.name}, the run file is not")
        if case.data.file is None:
            self._one(me, "data", case.data.name or "", [self.data.name or ""])
        for key in ("party", "private"):
            if getattr(case.data, key) is not None:
                raise PermissionError(f"data.{key} is not for a federation: each site has one table, and declares it")
        if isinstance(case.data.test, str):
            raise PermissionError("data.test names a file: give a share of each site's rows, or 0")
        used = {*(case.data.features or case.data.columns), case.data.label, case.data.unit, case.data.weight} - {None}
        if self.data.columns is not None and case.data.file is not None:
            for column in sorted(map(str, used)):
                self._one(me, "column", column, self.data.columns)

    @staticmethod
    def _one(me: str, what: str, wanted: str, allowed: Sequence[str]) -> None:
        if wanted not in allowed:
            raise PermissionError(
                f"the policy of {me} does not agree to {what} {wanted!r}: it allows {', '.join(allowed) or 'none'}"
            )
