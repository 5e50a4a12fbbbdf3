"""What the page says around its tables."""

HEAD = """# Goodput on the same engines, measured live

`make bench-live` writes this page from [what it measured](results.json). {how}
Machine: {machine}. {complete}

Goodput is the most sessions per second of which 90 % meet the SLO: every first token in time, and the mean gap of the
session's tokens. `default` is what a service runs by default: policy `weft` in the mode that the
planner takes for the layout (`colocated` without prefill workers). Absolute rates are those of mock engines that follow
a cost model: ratios mean something.

{summary}
{ratios}
± is half of the 95 % interval over seeds (Student's t); seeds are paired in ratios. `<` and `>`: no rate that was tried
held the goal, or all did. † rests on runs for which the machine was too busy. The best of several contenders is chosen
by what was measured, which flatters it unless further seeds decide.

![goodput by cell](plots/goodput.svg)
"""

CUT_SHORT = "The time was over before all was measured: some contenders were tried at fewer rates or seeds."

METHOD = """## Method

- **Engines.** Mock engines of {model} on {gpu}, {degree} GPUs each, in real time; they take up to {chunk:,} prompt
  tokens into a step, as vLLM does on GPUs of 70 GiB and more. vllm-router gets the same engines without the way back
  for KV, which it does not use; sglang-router gets them with SGLang's protocol. Every run has fresh engines and routers
  and words that no other run has, so nothing is in a prefix cache beforehand.
- **Weft** runs as in a cluster: coordinator, a sidecar for each engine, Redis. Peers are one process, with their
  defaults but for the policy that is named.
- **Sessions** in a run: {sessions}. They arrive as a Poisson process at an empty service. Traces give whole sessions,
  drawn with replacement, cut to {rounds} rounds, {added:,} new tokens and {decode} answered tokens a round; pauses are
  a fifth of those recorded, at most 3 s. A seed has the same sessions at each rate and for each contender.
- **Search.** The first seed of {seeds} tells between which rates, 19 % apart, a contender's goodput lies, beginning
  where the simulator expects it; goodput is interpolated between them. One of which the simulator expects less than
  {hopeless:.0%} of the best of its kind, Weft's rules or peers, is run at {behind:.0%} of that best, and left out
  where {few:.0%} of the sessions do not hold that. Who misses the goal below {behind:.0%} of the highest rate that one
  of its kind held is tried no further, and nobody at rates at which the sessions take longer than {longest:.0f} s to
  arrive. The default goes on with all seeds, as do `ampd` and the best peer at two rates; the others' goodput is of one
  seed, without an interval. Rates are compared by the same seeds: some have harder sessions. {further}
  Where the routers' profile is wrong, only the default is run: what needs no profile did the same in `balanced`.
- **Machine.** {busy}
"""

FURTHER = """Where the
  default is less than {close:g} times as good as the best other, {count} further seeds with {more:g} times the sessions
  decide between the two: the other was chosen by what it showed, which flatters it. The goodputs of the two are of
  these runs, and lower than in short ones, in which queues have no time to build up. Their ratio is of all these runs,
  not of the two rates around the goal alone: it says how far apart the two curves of attainment are along the rate (the
  logit of attainment is fitted with one slope for both, and an offset for each seed; ± is of the jackknife over
  seeds)."""

BUSY = """{rows} runs. A run is spoilt if the client was late by 0.1 s at P99, the engines lost 0.5 s, or a round's
  processes waited 0.4 s for a core (times the slowdown). It is made once more at half the speed: engines, pauses and
  SLO alike. On a machine that stays busy all runs are slower. Figures are in seconds of the GPU. {slower} runs were
  slowed down, and {starved} were spoilt even so. Waiting for a core: {waited} per round, of all processes together.
  Client late at P99: {lag:.0f} ms at most."""

CELL = """## {name}

{what}. The default is `{default}`.

{goodputs}
Share within the SLO by rate, in % (seeds), and what the simulator says of the same sessions:

{curves}
![attainment](plots/{picture}.svg)

At the rate nearest to each goodput (*late*: sessions with a late first token; *stalled*: with a mean gap above the SLO;
*computed of prompts*: prompt tokens that some engine computed, of those of both legs; *history read*: of later rounds'
history that was read from a decode worker, by the router's count):

{rows}
"""

AGREEMENT = """## The simulator against the live runs

Runs are simulated with the same sessions (mean of five runs whose arrivals differ by up to 30 ms) and exact cost
profiles; co-located peers are not. Live minus simulated, mean over the runs.

{table}
"""

BROKEN = """## Not measured

{broken}
"""
