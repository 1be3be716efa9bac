"""Build the method of a plan: what `sottovoce.papers.dp_bilevel.plan.plan` chose, as a configured `DpBilevel`."""

from sottovoce.papers.dp_bilevel.descent import Descent
from sottovoce.papers.dp_bilevel.method import DpBilevel
from sottovoce.papers.dp_bilevel.plan import BilevelPlan
from sottovoce.privacy.sampling import Full


def planned(plan: BilevelPlan) -> DpBilevel:
    """Build the method of a plan, at the plan's epsilon for `plan.steps` full-batch steps on n records.

    >>> import sottovoce as sv
    >>> from sottovoce.papers.dp_bilevel.plan import plan
    >>> from sottovoce.papers.dp_bilevel.theory import Facts
    >>> best = plan(Facts(dx=20, dy=100, kappa=2.0), n=100_000, epsilon=1.0, budget=500)
    >>> round(sv.account(planned(best), sv.Population([100_000]), steps=best.steps).epsilon, 6)
    1.0
    """
    messages = plan.messages
    return DpBilevel(
        step_x=plan.step_x,
        inner=Descent(plan.inner_steps, plan.inner_rate, averaged=False),
        release_y=messages["y"],
        release_penalised=messages["penalised"],
        sampling=Full(),
        release_x=messages["x"],
        penalty=plan.penalty,
        radius=plan.facts.kappa,
        solve=plan.solve,
        output="smallest step",
    )
