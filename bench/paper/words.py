"""What the page says around its tables."""

HEAD = """# The papers' figures, rerun on the simulator

`make bench-paper` writes this page. {how}
Machine: {machine}.

Everything here is simulated from an analytic cost model (H20 and H100 data sheets with efficiency factors): ratios
between policies on equal sessions mean something, absolute rates do not. The same rules' code runs in the router.
"""

UPLIFT = """## Goodput against AMPD

Most sessions per second of which 90 % meet the SLO (every TTFT, and the session's mean ITL or at most 5 % of its gaps
over), as a multiple of AMPD's on the same GPUs and sessions: geometric mean (least to most) over the 12 cells on the
layouts of AMPD's Table 2. Cells in which AMPD holds the goal at no rate are left out and counted.

The planner chooses the mode once for each cell, engine and reading: it sees the engine's costs, not the errors of
predictions, and draws its sessions with other seeds than those that count here. It takes predictions to be wrong by a
lognormal sigma of {error:g} in every setting, judges each mode by the worse of runs as predicted and runs with such
errors, and also tries slices that fill {careful:g} of the ITL SLO in place of 0.9 (written behind the mode). AMPD's own
rule stays where nothing carries {worth:.0f} % more.

{settings}
Aims: 2.6 on mean ITL and 2.4 on the P95 gap with `imd`, 2.4 under prediction errors, 2.0 with a slow engine, and no
cell below 1 with the planner's mode. Below 1 with it: {below}. Where the largest ratio stands out,
AMPD hardly holds the goal in that cell, and the mean says little.

{left}

Without a choice (`imd`) tails are what suffers: under errors of slices, gaps are over the ITL SLO as often as the error
is larger than what 0.9 of it leaves.
{planned}
Modes that the planner chose, for mean ITL / P95 gap:

{modes}
Cell by cell, {first}; ± is half of the 95 % interval over seeds:

{cells}
![uplift by cell](plots/uplift.svg)
"""

PLANNED = """
With the mode of a service that names none, on the published layouts: {default}.

With layout, kind and mode chosen by the planner on the same GPUs: {figures} (aim: 3 on mean ITL).
"""

PEERS = """## Goodput against routers that know of no sessions

The rules of vllm-router 0.1.17 and sglang-router 0.3.2 (docs/policies.md), on AMPD's layouts in the first setting:
sessions per second of which 90 % meet the SLO, by the session's mean ITL; 0: none do at any rate. Under these rules
each round's whole prompt goes to a prefill worker, which computes what its prefix cache lacks; the decode worker
fetches what it lacks. In the simulation sessions stay on their decode workers, and new ones go to the one with the
fewest requests.

{cells}
As a multiple of the best of these routers in each cell:

{ratios}"""

RETENTION = """## Goodput by how engines keep the KV of idle sessions

AMPD's cells with all of the KV memory and with less, in the first setting: sessions per second of which 90 % meet the
SLO, by the session's mean ITL; 0: none do at any rate. vLLM is every worker by itself, with chunked prefills, and
evicts the least recently used KV. Continuum (arXiv 2511.02230) is the same with its time to live, learned during the
run, and waiting rounds in the order of their sessions' arrival. Weft has AMPD's layouts with `imd`, and evicts as vLLM
does, or with times to live. Where nothing is evicted, as with all of the memory, times to live change nothing.

{ratios}
{cells}"""

PPD = """## PPD, Table 1: second turn's TTFT, x = 0 to x = 1

Llama-3.1-8B on 4 H100, two-turn conversations (18 workloads whose lengths the paper does not give), ten seconds of
arrivals, KV link 25 GB/s, a remote second turn recomputes its history. The cost model is that of an engine that
nobody measured (15 ms beside the work of a prefill, 60 % of the peak). Percent; ours is the median over workloads and
rates, because a few of them are more than the layout carries and own the mean.

{table}
Mean absolute difference: {ours:.1f} points (aim: 6; of the means {mean:.1f}). The trend is the paper's: with few
prefill workers it helps the more the higher the load, with many of them the less.

With the factors that plans take for an H100, fitted to tables of kernels, the difference is {fitted:.1f} points: a
prefill costs 3 ms beside its work then, and a local second turn gains more than the paper's.
"""

PLANNING = """## AMPD, Figure 7: planning time

Llama-3.1-70B under DuReader, 0.1 sessions per second and GPU, everything loaded. "Phases and program" is what the
paper's planner does: simulate each phase, solve for the best three layouts. A whole plan of ours also simulates the
layouts that are left, with the policy that will run, ten of them in full with three seeds. The paper does not name its
machine.

{table}
Shorter than the paper's at {beaten} of {sizes} sizes; with all simulations at {whole}.

![planning time](plots/planning.svg)
"""

TABLE2 = """## AMPD, Table 2: best layout

First layout by both phases' P95 latencies as shares of the SLO, before any simulation of whole layouts: by the integer
program (form A), which makes the larger share least, and by the sum of both. The paper does not say for which rate it
planned. Equal to the paper's, of 12:

{rates}
What ships is form A with the engine as it is: the first line. At {rate:g} sessions/s it has {hits} of {cells}:

{table}
A match proves little: the rule "half of the GPUs each, at the largest degree" gets {simple} of 12 without any model of
anything. Ranked by goodput, as `weft plan` does, other layouts win (first table).
"""

REGRET = """## The planner against exhaustive search

Random services; every layout with one degree per role, co-located and symmetric ones and those on fewer GPUs included,
is simulated with rising load, the last four by longer runs; all are scored with sessions that neither side has seen.
Regret is the share of the best goodput that the plan gives away.

{table}
Mean {mean:.1%}, median {median:.1%}, largest {largest:.1%}; above 10 % in {above} of {services} (aim: none).

Symmetric layouts: the plan of {both} of {services} services, the best found for {best_both}.
"""

NOT_REPRODUCED = """## What is not reproduced

* **AMPD Figure 4** (uplift over Dynamo, vLLM, vLLM-Continuum): no cost setting and no reading of the SLO gives its
  order of cells; its runs are about 100 sessions long, where attainment differs by 10 to 24 points from run to run, and
  near saturation depends on the run's length.
* **AMPD Figure 5, routing gain**: only the direction, and only with one prefill worker. With two, Algorithm 1's random
  choice among workers with slack loses to the shortest expected queue.
* **AMPD Figure 6**: alpha and beta have no effect of the printed size; the differences are within the noise of one run.
* **AMPD Table 2, rows 2 and 3**: two of the twelve rankings contradict every bottleneck objective; a sum would allow
  them.
* **PPD Table 4** (failures): it needs a KV link of 1.5 GB/s, with which Table 1 is missed by far.
* **PPD Figure 2, append prefill**: "+2 %" holds for few new tokens only; the paper does not give their number.
* Nothing that needs a GPU: all absolute latencies of both papers.
"""
