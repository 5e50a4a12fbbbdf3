"""What the page says around its tables."""

HEAD = """# Plans beside aiconfigurator's

`make bench-planner-peers` writes this page, and [what it found](results.json). {how}
Machine: {machine}.

Both planners get 64 GPUs (16 for gpt-oss-120b, which fits one), the same model, SLO, workload and vLLM tables of
operator times (aiconfigurator-core 0.12.0).
Each answers with a configuration: Weft with `weft plan`'s, aiconfigurator 0.12.0 with its best disaggregated and its
best aggregated one. Both models then judge every answer. Ratios are Weft's figure over the better of aiconfigurator's
two. For single rounds Weft's rate matching (`weft plan --rate-match`) answers, too: like aiconfigurator it compares
steady rates, where `weft plan` simulates.
"""

SINGLE = """## Single round

4,000 prompt and 1,000 answer tokens, always; in aiconfigurator's terms {lengths}.
"""

MULTI = """## Multi-round sessions

Sessions of the preset `ampd/dureader` (3 rounds with a thousand new tokens each). aiconfigurator knows rounds, not
sessions: it is asked for the mean round of these sessions, with what a session had before as a cached prefix
({lengths}).
"""

PLANS = """Configurations, with output tokens per second and GPU by aiconfigurator's model (-: outside the SLO), and
sessions per second and GPU by simulation. P are prefill workers, D decode workers, C both in one; GPUs (or the
parallelism strategy) x workers. In brackets: the layout that was simulated, where the first one does not fit by Weft's
estimate of memory.
"""

METHOD = """## Method

* **SLOs.** {slos}.
* **aiconfigurator.** The package's own search and model: `Task` in its command line's default mode, at the SLO alone
  in place of its grid of speeds, and `pick_default`. It tries batches of up to 512 sequences and every strategy that
  vLLM has. Of prefill and decode workers it holds 1.8 times an idle TTFT to the SLO, multiplies latencies by 1.1 and
  1.08, and takes 90 % and 92 % of their rates. Three settings are not its defaults: replicas have a number of GPUs that
  divides the cell's, so that none is left idle; engines may use 90 % of the memory; and the KV cache is 16-bit, as Weft
  takes it for these checkpoints.
* **aiconfigurator's model of Weft's layouts.** The same functions (`run_single_disagg`; for co-located workers a search
  of the one strategy) with the layout's strategies and numbers of workers, at the batch size that gives most within the
  SLO.
* **Weft.** A cost profile that is fitted to the tables as `weft profile silicon --all-to-all deepep` fits it: whole
  experts exchange tokens by DeepEP's kernels where the tables have them, as in aiconfigurator's search. In place of the
  overheads that Weft assumes stand aiconfigurator's 1.1 and 1.08; batches have up to 512 sequences. Up to 16 of the
  strategies that aiconfigurator searches, as many as a pool may list: by tensors alone, experts whole; ranks of one or
  two GPUs, experts in parts or whole. Planned for the rate that aiconfigurator says its own best configuration carries.
  Disaggregated and co-located layouts, and the routing modes that a service has by default.
* **Weft's rate matching.** The whole workers of all GPUs that `weft plan --rate-match` has for the same strategies and
  profile. Workers that do both have the tables' latencies without 1.1 and 1.08, as aiconfigurator's do.
* **Simulation.** Weft's simulator with that profile; goodput is the most sessions per second of which 90 % have every
  TTFT and the mean time between tokens within the SLO: mean of three seeds, none of which Weft planned with.
  aiconfigurator's prefill and decode workers run as people run them: under a router that prefers cached prefixes or one
  that takes the shortest queue, whichever carries more, and without the way back for KV from decode to prefill workers.
  Its replicas form one cluster. Chunks of aggregated workers' prefills, Weft's and aiconfigurator's, are as long as the
  ITL SLO allows or as a step's tokens do, whichever carries more. "Both with Weft's router" gives aiconfigurator's
  configuration the best of Weft's policies and that way back: what remains is the layout.
* **Time.** Of a plan: the lesser of clock and processor time of its process with everything loaded, because on a busy
  machine it waits for a core. aiconfigurator's is the clock's, of both searches, where a worker's figures are looked up
  once for all SLOs.
"""

LEFT_OUT = """## Cells that are left out

What the tables lack, by strategy:
"""

NOTES = """## What single strategies lack
"""

LIMITS = """## What this does not show

* The judge of the second figure is Weft's own simulator, and Weft plans with it: it sees queues, and rounds that wait
  for tools, which aiconfigurator's model does not have. The first figure is the other way round.
* Neither model was held to engines here. Arrivals are Poisson.
* Where Weft's plan is another layout than aiconfigurator's because the simulation carries more with it, Weft loses by
  aiconfigurator's model. That model has neither queues of prefills nor prefills on decode workers, which Weft's
  routing modes count on.
"""
