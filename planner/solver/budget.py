"""How much work a search may do: one record, three presets."""

from __future__ import annotations

from dataclasses import dataclass, replace

NO_LIMIT = float("inf")
USUAL_ROUNDS = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Limits of the effort of one search. Columns are variables of the 0/1 programme.

    Memory multipliers (`bound/memory_multipliers.py`):
    sweeps: passes of messages in each step.
    steps: steps on one level of fixing, and of each subproblem and kernel.
    stale_steps: steps in a row that hardly raise the bound, before something else is tried.
    large_stale_steps: the same of problems above `large_columns` without memory limits.
    careful: whether a step that lowers the bound is taken back: better choices, later bounds.
    steps_share: share of the time left for steps, before something else is tried.
    fixing_columns: larger problems are fixed only once that leaves a good share less.

    Exact programmes (`exact/ilp.py`) of a problem as a whole:
    exact: whether they are used.
    exact_if_memory_binds: whether anything but message passing is used where memory limits bind
        and a choice is known.
    exact_columns: largest one where a choice is known.
    exact_nodes: of its branch-and-bound tree.
    exact_work: columns times how often branch and bound asks whether to go on.
    exact_share: share of the time left.
    written_columns: largest one where no choice is known.

    Neighbourhoods (`search/large_neighbourhoods.py`):
    rounds: neighbourhoods that are tried.
    small_gap_share: share of them that is tried once the gap is small, or all programmes together
        have more than `all_rounds_columns`.
    round_s: seconds for each.
    round_columns: cells of the edges within the first one, before it is reduced.
    round_nodes, round_work: as `exact_nodes`, `exact_work`.
    stuck_rounds: rounds in which each node was free, on average, before the search restarts.
    searched_columns: largest problem for neighbourhoods.

    Branch and bound (`search/branch_and_bound.py`):
    split_work: columns passed over, 0/1 programmes included, where `rounds` is `USUAL_ROUNDS`, else
        in proportion to `rounds`; 0 where branch and bound is not used.
    more_split_work: more of them for the share of the gap that was closed.
    wide_split_work: both together, of problems above `whole_columns`, whose subproblems are not
        reduced.
    subproblem_columns: largest subproblem that is solved as a 0/1 programme.
    subproblem_nodes, subproblem_work: as `exact_nodes`, `exact_work`.

    Kernel search (`search/kernel_search.py`) of problems above `wide_columns`:
    reading_steps: steps between two samplings of options.
    unproductive_searches: unproductive searches in a row, after which sampling stops.
    kernel_columns, kernel_rounds: `exact_columns`, `rounds` of the search of these options.

    Windows of overlap (`windows.py`):
    window_solves: problems without windows that are solved, more of small ones:
    window_columns: columns of all of them together.
    combined_columns: largest 0/1 programme of the options of all choices found, whose best choice
        is searched as long as the gap is open.
    narrowed_pairs: pairs of options above which a problem is wide: classes of its options are
        solved first, or kernels of it, and the options that no better choice has are left out.
    kernels: most kernels of a wide problem.
    whole_steps: most steps of message passing on the whole problem, before each kernel.
    """

    sweeps: int = 3
    steps: int = 560
    stale_steps: int = 10
    large_columns: float = 2e6
    large_stale_steps: int = 6
    careful: bool = False
    steps_share: float = 1.0
    fixing_columns: float = 1e5

    exact: bool = True
    exact_if_memory_binds: bool = True
    exact_columns: float = 25e3
    exact_nodes: float = 200
    exact_work: float = 2e5
    exact_share: float = 1.0
    written_columns: float = 3e6

    rounds: float = USUAL_ROUNDS
    small_gap_share: float = 0.1
    all_rounds_columns: float = 4e5
    round_s: float = NO_LIMIT
    round_columns: float = 24e3
    round_nodes: float = 60
    round_work: float = 1e5
    stuck_rounds: float = 8
    searched_columns: float = 1e6

    # A two-layer GPT on 8 H100 with 0.7 of its memory takes 67 s of processor time with these and
    # `subproblem_work`, its gap is 2.7 %; with 1e8 and 5e8 65 s and 3.3 %.
    split_work: float = 3e8
    more_split_work: float = 2e9
    wide_split_work: float = 1.6e10
    subproblem_columns: float = 12e3
    subproblem_nodes: float = 100
    subproblem_work: float = 1e5
    whole_columns: float = 1e6

    wide_columns: float = 3e5
    reading_steps: int = 8
    unproductive_searches: int = 2
    kernel_columns: float = 12e3
    kernel_rounds: int = 10

    window_solves: int = 12
    window_columns: float = 2e5
    combined_columns: float = 12e3
    narrowed_pairs: float = 1.5e6
    whole_steps: int = 12
    kernels: int = 4

    def searches(self, *, memory_binds: bool) -> bool:
        """Whether a search goes on where message passing ends with a gap.

        Args:
            memory_binds: whether a choice is known and memory limits others.
        """
        return self.exact and (self.exact_if_memory_binds or not memory_binds)

    def kernel(self) -> Budget:
        """The budget of a search of the kernel."""
        return replace(
            self, exact_columns=self.kernel_columns, rounds=self.kernel_rounds,
            wide_columns=NO_LIMIT, whole_columns=NO_LIMIT,
        )  # fmt: skip

    def most_split_work(self, closed: float, *, wide: bool) -> float:
        """Columns that branch and bound passes over, at most.

        Args:
            closed: share of the gap that it closed.
            wide: whether the problem has more than `whole_columns`.
        """
        work = self.wide_split_work if wide else self.split_work + self.more_split_work * closed
        return self.rounds / USUAL_ROUNDS * work


# The choice and its cost matter, a proof does not.
QUICK = Budget(
    steps=144, exact=False, window_solves=4, window_columns=0.0, combined_columns=0.0, kernels=0
)
# A plan in seconds: every limit but the time limit is counted work, so that equal inputs give equal
# plans.
DEFAULT = Budget()
# All of the time limit, for an optimum and its proof.
THOROUGH = Budget(
    stale_steps=25, large_columns=NO_LIMIT, careful=True, steps_share=0.15,
    fixing_columns=NO_LIMIT, exact_columns=60e3, exact_nodes=NO_LIMIT, exact_work=NO_LIMIT,
    exact_share=0.3, rounds=NO_LIMIT, round_s=5.0, round_work=NO_LIMIT, split_work=0.0,
    wide_columns=NO_LIMIT, window_solves=60,
)  # fmt: skip
