"""The privacy layer with one line made wrong: a named test must turn red.

A mutation swaps the code of a function for a compiled copy in which one piece of text differs, so that everybody who
holds the function gets the wrong one. Then a test of the suite is called. If it still passes, it guards nothing.
"""

import importlib.util
import inspect
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import pytest
from tests.marks import few

from sottovoce.accounting import content, marks, trace, traced
from sottovoce.accounting.account import Account
from sottovoce.accounting.composition import _group
from sottovoce.clipping import bookkeeping
from sottovoce.data import overlap, parties, parts
from sottovoce.methods.handle import Handle
from sottovoce.privacy import (
    accountant,
    discrete,
    drawn_rows,
    exact_gate,
    gate,
    ledger,
    ledger_line,
    mechanisms,
    noise,
    pld,
)
from sottovoce.privacy.sampling import Poisson
from sottovoce.problems import captures
from sottovoce.runtime import answers, interpreter, keys, lone_agent

TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutation:
    """`wrong` in place of `right` in a function, and the test that must notice."""

    name: str
    function: Callable[..., Any]
    right: str
    wrong: str
    file: str
    test: str
    arguments: tuple[Any, ...] = ()


MUTATIONS = [
    Mutation(
        "what was bought for arrays is forgotten",
        parts.purchases_of,
        "found.append(facts)",
        "pass",
        "attacks/test_provenance.py",
        "test_arrays_of_a_table_are_paid_for_by_whoever_makes_parts_of_them",
    ),
    Mutation(
        "a sum draws what it charges",
        answers.noised,
        "given = summed.drawn(",
        "given = (",
        "runtime/test_summed.py",
        "test_the_account_charges_s_and_the_place_draws_more",
        ((3, 1, False),),
    ),
    Mutation(
        "more colluding parties find no more",
        Account._against,
        "trust.left(parties, count, grid)",
        "trust.left(parties, trust.colluding, grid)",
        "privacy/test_against.py",
        "test_colluders_find_what_was_worked_out_by_hand",
        (5, 1),
    ),
    Mutation(
        "a person at two parties is one unit of a sum",
        parties._together,
        "for part, own in zip(group, numbers) for",
        "for part, own in zip(group, [numbers[0]] * len(group)) for",
        "runtime/test_summed.py",
        "test_a_person_at_two_parties_is_clipped_at_each",
    ),
    Mutation(
        "half of the clip's effect",
        bookkeeping.clipped_sum,
        "clip * (1 - SAFETY)",
        "2 * clip * (1 - SAFETY)",
        "privacy/test_gate.py",
        "test_one_norm_over_the_whole_tree",
    ),
    Mutation(
        "a factor 2 dropped",
        mechanisms.clips_moved,
        "else 2.0",
        "else 1.0",
        "privacy/test_gate.py",
        "test_one_object_gives_the_noise_and_the_charge",
    ),
    Mutation(
        "no noise on one variable",
        gate.noised,
        "if isinstance(scale, float) and scale == 0.0:",
        'if release.name == "release_y":',
        "audit/test_audit.py",
        "test_sound_designs_hold_and_their_accounts_are_tight",
        ("DpMixSgd", Poisson(4)),
    ),
    Mutation(
        "two thirds of the noise",
        gate.noised,
        "leaf + (scale * drawn(",
        "leaf + (scale * 2 / 3 * drawn(",
        "privacy/test_gate.py",
        "test_noise_has_the_scale_it_is_charged_for_and_no_other",
        ("gaussian",),
    ),
    Mutation(
        "one key for all steps",
        keys.step_key,
        "phase), t)",
        "phase), 0)",
        "privacy/test_gate.py",
        "test_leaves_and_agents_and_steps_get_independent_noise",
    ),
    Mutation(
        "one key for all leaves",
        gate.noised,
        "law.draw(key, shape, stream)",
        "law.draw(key, shape, 0)",
        "privacy/test_gate.py",
        "test_leaves_and_agents_and_steps_get_independent_noise",
    ),
    Mutation(
        "one key for all equations of a step",
        Handle._bind,
        "number=next(self._numbers)",
        "number=0",
        "runtime/test_run.py",
        "test_keys_are_never_used_twice",
    ),
    Mutation(
        "one key for all turns of a loop",
        answers.Moment.inside,
        "fold(self.named(loop), turn)",
        "self.named(loop)",
        "runtime/test_run.py",
        "test_keys_are_never_used_twice",
    ),
    Mutation(
        "fixed size drawn where Poisson is accounted",
        Poisson.draw,
        "rows, weights = binomial_rows(key, fresh, own, counts, agent, self.usual(sizes))",
        "rows, weights = distinct_rows(key, fresh[:room], own, jnp.int32(self.batch), room)",
        "privacy/test_sampling.py",
        "test_poisson_takes_each_record_on_its_own",
        (1,),
    ),
    Mutation(
        "rows repeated at the end of a long batch",
        drawn_rows.distinct_rows,
        "largest(size) > usual",
        "False",
        "privacy/test_sampling.py",
        "test_a_binomial_number_of_distinct_rows_has_the_law_of_coins",
        ((9, 3),),
    ),
    Mutation(
        "the end of a long batch left out",
        gate.clipped_mean,
        "largest(jnp.max(filled))",
        "0",
        "privacy/test_gate.py",
        "test_a_batch_longer_than_usual_is_added_up_whole",
    ),
    Mutation(
        "a Poisson batch cut to its mean",
        Poisson.capacity,
        "return binomial(n, self._threshold(n)).highest",
        "return self.batch",
        "privacy/test_sampling.py",
        "test_a_poisson_batch_is_never_cut_silently",
    ),
    Mutation(
        "others of a fixed batch that contribute nothing",
        pld._subset,
        "for half in piece.halves:",
        "for half in piece.halves[1:] * 2:",
        "privacy/test_fixed_batches.py",
        "test_golden_values",
        (100, 1000, 10.0, 500, 1e-5, 0.8542, 0.90103),
    ),
    Mutation(
        "what floating point may take off a profile not paid",
        pld._subset,
        "infinite[positive] + missed",
        "infinite[positive]",
        "privacy/test_fixed_batches.py",
        "test_the_profile_on_a_grid_is_one_and_never_below_the_exact_one",
    ),
    Mutation(
        "Laplace releases of one batch merged by the Gaussian rule",
        _group,
        "laplace=tuple(row[1:].tolist())",
        "laplace=(float(np.sqrt(np.sum(row[1:] ** 2))),)",
        "test_accounting.py",
        "test_laplace_releases_of_one_batch_are_not_merged_like_gaussians",
    ),
    Mutation(
        "a record that is not finite let through",
        bookkeeping.clipped_sum,
        "finite & (weights != 0)",
        "weights != 0",
        "privacy/test_gate.py",
        "test_a_record_that_is_not_finite_contributes_nothing",
        (float("nan"),),
    ),
    Mutation(
        "whole numbers not checked after rounding",
        discrete.GridRelease.whole,
        "while np.any(over := self.law.exceeds(steps, self.clip)):",
        "steps += np.sign(steps)\n    while False:",
        "privacy/test_discrete.py",
        "test_no_record_ever_exceeds_the_clip_in_whole_numbers",
    ),
    Mutation(
        "discrete noise charged as if it were ideal",
        noise.Laplace.whole_scale,
        "ideal + Fraction(1, 4 * clip)",
        "ideal",
        "privacy/test_discrete.py",
        "test_on_the_grid_a_release_is_charged_at_most_what_is_stated",
    ),
    Mutation(
        "two thirds of the deployed noise",
        discrete.GridRelease.noise,
        "self.scale, size",
        "self.scale * 2 // 3, size",
        "runtime/test_threads.py",
        "test_what_is_released_has_the_stated_noise_and_lies_on_the_grid",
        ("gaussian",),
    ),
    Mutation(
        "levels added without a common grid",
        exact_gate.release,
        " * (common // int(reading.denominator))",
        "",
        "runtime/test_threads.py",
        "test_two_levels_meet_on_a_common_grid",
    ),
    Mutation(
        "a party's coins at the rate of its own rows",
        Poisson.part,
        "self._threshold(whole)",
        "self._threshold(n)",
        "privacy/test_discrete.py",
        "test_parts_that_parties_draw_are_one_batch_of_all_rows",
    ),
    Mutation(
        "marks followed through one turn of a loop",
        marks._through_loop,
        "carry = grown",
        "return grown",
        "accounting/test_marks.py",
        "test_a_loop_carries_the_mark",
    ),
    Mutation(
        "marks followed through one step",
        traced._settled,
        "private = grown",
        "return tuple(grown)",
        "accounting/test_marks.py",
        "test_marks_spread_over_steps",
    ),
    Mutation(
        "a private point let through",
        marks._results,
        'if any(operands):\n            raise TypeError(\n                f"release',
        'if False:\n            raise TypeError(\n                f"release',
        "accounting/test_marks.py",
        "test_nothing_is_released_at_a_private_point",
        ("closed over",),
    ),
    Mutation(
        "a step drawn again without being paid for",
        lone_agent.LoneAgent.advance,
        "self.pay(self.me, t)",
        "t == 0 or self.pay(self.me, t)",
        "runtime/test_threads.py",
        "test_every_step_is_paid_for_wherever_a_run_goes_on",
    ),
    Mutation(
        "levels of unknown origin taken as disjoint",
        overlap.apart,
        'return "said" if said else ""',
        'return "said"',
        "data/test_overlap.py",
        "test_levels_of_unknown_origin_pay_for_both_unless_they_are_said_to_be_disjoint",
        ("copies",),
    ),
    Mutation(
        "shared memory believed to be disjoint",
        overlap.apart,
        "if shared and said:",
        "if False:",
        "data/test_overlap.py",
        "test_levels_that_share_memory_pay_for_both_whatever_is_said",
        ("reversed",),
    ),
    Mutation(
        "default arguments of a loss not looked at",
        captures._of_function,
        "found += zip(reversed(positional), reversed(function.__defaults__ or ()))",
        "assert positional",
        "problems/test_captures.py",
        "test_a_loss_that_brings_data_along_is_refused",
        ("a 0-d NumPy array",),
    ),
    Mutation(
        "classes not looked at",
        captures.arrays_in,
        "names & vars(c).keys()",
        "()",
        "problems/test_captures.py",
        "test_a_loss_that_brings_data_along_is_refused",
        ("static method",),
    ),
    Mutation(
        "keys that do not depend on the records",
        keys.agent_keys,
        ".encode() + own).digest()",
        ".encode()).digest()",
        "attacks/test_same_seed.py",
        "test_a_run_that_differs_draws_other_noise",
        ("one value",),
    ),
    Mutation(
        "keys that do not depend on the program",
        keys.agent_keys,
        "{seed}|{program}|",
        "{seed}|",
        "attacks/test_same_seed.py",
        "test_a_run_that_differs_draws_other_noise",
        ("noise",),
    ),
    Mutation(
        "a ledger that does not check its chain",
        ledger_line.read_line,
        'fields.pop("before") != before',
        'not fields.pop("before")',
        "privacy/test_ledger.py",
        "test_a_changed_or_cut_file_is_refused",
    ),
]


@contextmanager
def applied(mutation: Mutation) -> Iterator[None]:
    """The function with the wrong text, everywhere; then as it was."""
    function = inspect.unwrap(mutation.function)
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(mutation.right) == 1, f"{mutation.right!r} must stand once in {function.__qualname__}"
    space: dict[str, Any] = {}
    code = compile(source.replace(mutation.right, mutation.wrong), f"<{mutation.name}>", "exec", dont_inherit=True)
    exec(code, function.__globals__, space)
    right = function.__code__
    _forget()
    function.__code__ = space[function.__name__].__code__
    try:
        yield
    finally:
        function.__code__ = right
        _forget()


def _forget() -> None:
    """Nothing computed by the other code may be remembered."""
    jax.clear_caches()
    for remembered in (
        accountant._epsilon,
        trace.remembered,
        content.remembered_keys,
        interpreter.pieces,
        lone_agent.programs_of,
        exact_gate._slopes,
    ):
        remembered.cache_clear()


def named_test(mutation: Mutation) -> Callable[..., None]:
    spec = importlib.util.spec_from_file_location(f"mutated_{mutation.test}", TESTS / mutation.file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, mutation.test)


LONG = (
    "no noise on one variable",
    "fixed size drawn where Poisson is accounted",
    "one key for all leaves",
    "half of the clip's effect",
    "keys that do not depend on the program",
)


@pytest.mark.parametrize("mutation", few(MUTATIONS, [m for m in MUTATIONS if m.name not in LONG]), ids=lambda m: m.name)
def test_each_is_noticed(mutation, tmp_path):
    test = named_test(mutation)
    arguments: tuple[Any, ...] = mutation.arguments
    if mutation.function is ledger_line.read_line:
        path = tmp_path / "ledger.jsonl"
        book = ledger.Ledger(path)
        for number in range(4):
            book.charge(test.__globals__["entry"](number))
        arguments = (path, lambda lines: [lines[1], lines[0], *lines[2:]])
    with applied(mutation), pytest.raises((AssertionError, ExceptionGroup, pytest.fail.Exception)):
        test(*arguments)
