"""What can be found in a study's measurements, once each, in general words."""

from __future__ import annotations

from spectune.domain.findings import FindingKind

_EVERY = "every engine"

NO_BASELINE = FindingKind(
    code="no-baseline",
    severity="error",
    title="The baseline has no complete trial",
    explanation="Speedup, verdict and parity are defined against the server without speculation. It failed, or was "
    "measured under another workload only.",
    effect="there is no speedup, no verdict and no parity: every one is defined against the baseline",
    remedy="repair the baseline if it failed, then run the study again: it resumes",
    holds_for=_EVERY,
)
IMPORTED = FindingKind(
    code="imported-figures",
    severity="note",
    title="Another tool measured",
    explanation="The study was made by `spectune import`. What the other tool checked, warmed up or repeated "
    "is its own affair, and what its files do not say stays unknown here.",
    effect="no launch, stop or setting was verified; without single requests there is no interval",
    remedy="run the arms in a study of spectune's own before a decision rests on them",
    holds_for=_EVERY,
)
DEAD_DRAFTER = FindingKind(
    code="dead-drafter",
    severity="warning",
    title="Every draft is rejected",
    explanation="Counted over the study's own requests, practically no drafted token was kept. The text is right and "
    "nothing is logged; only the speed suffers.",
    effect="each step pays for drafting and verifying, and yields one token like plain decoding",
    remedy="check that the draft was trained, and for this very target; that the method is the "
    "draft's own (EAGLE for an EAGLE-3 draft fails exactly like this); its vocabulary map (d2t) "
    "and the target layers it reads",
    holds_for=_EVERY,
    sources=("https://github.com/sgl-project/sglang/pull/21272", "measured"),
)
SPECULATION_OFF = FindingKind(
    code="speculation-off",
    severity="warning",
    title="The arm asked for speculation, and none was seen",
    explanation="The engine counts verify steps, and counted none. An engine that gives no counts shows nothing: see "
    "acceptance-unknown.",
    effect="what was measured may be plain decoding; its speedup says nothing about speculation",
    remedy="look for the method in the server log and in its effective settings; an n-gram drafter "
    "that never finds a match looks the same",
    holds_for=_EVERY,
)
ACCEPTANCE_UNKNOWN = FindingKind(
    code="acceptance-unknown",
    severity="note",
    title="How many drafted tokens were kept is not known",
    explanation="Acceptance is taken from the engine's answers; where these do not carry it, from its counters around "
    "the load, then from the lines of its log within the load. None of them gave it: SGLang before 0.5.19 gives it in "
    "its log only, one line for every 40 decode steps.",
    effect="speeds are measured all the same; what limits them cannot be explained",
    remedy="measure more or longer answers, lower --decode-log-interval (SGLang), or use a version that counts",
    holds_for=_EVERY,
)
IMPOSED_NOT_REACHED = FindingKind(
    code="imposed-acceptance-not-reached",
    severity="error",
    title="The engine did not accept what it was told to",
    explanation="With `synthetic_acceptance_length` or `_rates` the engine accepts drafts by lot. What it counted is "
    "off by more than 5 %, and by more than its requests scatter.",
    effect="the cost of a step was measured at another acceptance than its name says",
    remedy="look whether the setting reached the server: a variable must be passed into a container, and old versions "
    "of an engine do not know it",
    holds_for="engines that can impose acceptance",
)
OUTPUT_CHANGED = FindingKind(
    code="output-changed",
    severity="warning",
    title="Greedy text differs from plain decoding's",
    explanation="A verified draft does not change greedy text. Where it does, the engine's arithmetic depends on the "
    "batch (then the baseline differs from itself as much, and this is a note), or acceptance is lossy.",
    effect="speculation should not change greedy text; a speedup with other text is not one",
    holds_for=_EVERY,
)
LENGTH_CHANGED = FindingKind(
    code="output-length-changed",
    severity="warning",
    title="Answers are longer or shorter than the baseline's",
    explanation="The same prompts gave answers whose lengths differ by more than 5 %.",
    effect="tokens per second are compared over different texts",
    remedy="set ignore_eos and max_tokens for equal lengths, or find out why the text differs",
    holds_for=_EVERY,
)
CACHED_PROMPTS = FindingKind(
    code="cached-prompt-tokens",
    severity="warning",
    title="Prompts of measured requests came from a prefix cache",
    explanation="The engine says of measured requests that it had computed part of their prompts before. What prompts "
    "begin with alike (the chat template, a system prompt, a document that several of them share) does not count: it "
    "comes from the cache in production too.",
    effect="TTFT and end-to-end speed are better than on new prompts, not comparable across arms",
    remedy="ask each prompt once at each load point, or turn the prefix cache off with the engine's flags",
    holds_for="engines that report cached tokens per request",
)
FOREIGN_TRAFFIC = FindingKind(
    code="server-used-by-others",
    severity="warning",
    title="Somebody else used the server while it was measured",
    explanation="The server's own counters grew by more tokens than the study's requests were answered with.",
    effect="speeds are too low, and acceptance read from the server's counters includes the others",
    remedy="measure again on a server that nobody else can reach",
    holds_for="engines with counters",
)
LOAD_NOT_REACHED = FindingKind(
    code="load-not-reached",
    severity="error",
    title="Fewer requests ran at once than the load says",
    explanation="A load point of concurrency C stands for C requests in flight. With fewer requests than C in all, or "
    "a server that holds fewer and lets the others wait, the batches are smaller, and smaller batches gain more from "
    "speculation.",
    effect="the figures are those of a smaller concurrency than the one that they are given for",
    remedy="leave requests_per_load out or give at least five times the concurrency; let the server run as many "
    "requests at once (max_running_requests, max_num_seqs, parallel slots), or ask for the concurrency that it has",
    holds_for=_EVERY,
)
OVER_SATURATED = FindingKind(
    code="over-saturated",
    severity="error",
    title="More requests arrived than the server answers",
    explanation="With arrivals of their own (`request_rate`) a server that answers fewer falls behind without end: "
    "each request waits longer than the one before.",
    effect="latency and tok/s say how long the load lasted, not how fast the server is; no speed is given",
    remedy="ask for a rate below what the slowest arm answers, or measure with `concurrency`",
    holds_for=_EVERY,
)
CLIENT_LIMITED = FindingKind(
    code="client-limited",
    severity="warning",
    title="The measuring client was short of processor time",
    explanation="Its event loop was late, or it used most of a core.",
    effect="latencies include the client's own delay, and the server may have been idle meanwhile",
    remedy="leave a core to the client, lower the concurrency, or measure from another machine",
    holds_for=_EVERY,
)
BASELINE_DRIFT = FindingKind(
    code="baseline-drift",
    severity="warning",
    title="Plain decoding itself changed its speed during the study",
    explanation="The launches of the baseline, spread over the study, differ by more than 10 %, or follow a trend "
    "(least squares over their order, p below 0.05).",
    effect="speeds from different times are not comparable; speedups are, as each arm is set "
    "against the baseline launches around it",
    remedy="compare speedups, not tok/s; repeat more often; look for other work on the machine",
    holds_for=_EVERY,
)
NODES_DIFFER = FindingKind(
    code="nodes-differ",
    severity="warning",
    title="Plain decoding is not equally fast on the nodes of the cluster",
    explanation="The baseline is measured on every node that is used. Its launches differ between two nodes by more "
    "than launches on one node do (95 %, over all pairs of nodes), or by more than 10 % where nothing was launched "
    "twice on a node.",
    effect="tok/s of an arm depend on the node it ran on; speedups do not, as each launch is set against the "
    "baseline launches of its own node",
    remedy="compare speedups, not tok/s; look for another clock, power limit, cooling or neighbour on the slow node, "
    "or leave it out",
    holds_for="studies on a Ray cluster",
)
LAUNCH_NOISE = FindingKind(
    code="launch-noise-unknown",
    severity="warning",
    title="Every arm was launched once",
    explanation="Two launches of one configuration differ. How much is learned from repetitions only.",
    effect="intervals assume that restarts alone move speeds by 15 %, so only large differences are called",
    remedy="set repetitions to 2 or more, or let the baseline be measured again between the arms",
    holds_for=_EVERY,
)
ARM_FAILED = FindingKind(
    code="arm-failed",
    severity="warning",
    title="A launch of the arm failed",
    explanation="The server died or never served. The cause is read from its log where it is a known one.",
    holds_for=_EVERY,
)
REQUESTS_FAILED = FindingKind(
    code="requests-failed",
    severity="warning",
    title="Requests failed in a measurement that was completed",
    explanation="Some requests got an error or no answer in time.",
    effect="its speed is that of the requests that succeeded, which may be the easier ones",
    remedy="read the server's log around these requests; raise request_timeout_s if they were slow",
    holds_for=_EVERY,
)
LAUNCHED_AGAIN = FindingKind(
    code="launched-again",
    severity="note",
    title="An arm was launched again for a reason that is not its own",
    explanation="The lease ran out while spectune was suspended, the connection to the host was lost, the supervisor "
    "was killed, another program took the port, or the engine's version does not know a flag that spectune adds to "
    "measure: what was measured until then was thrown away.",
    effect="none on the figures; the time is booked as spectune's own",
    holds_for=_EVERY,
)
SEARCH_ENDED = FindingKind(
    code="search-ended",
    severity="note",
    title="Why the search stopped",
    explanation="`predict` launches no arm that is not likely to beat the best one by the margin; `one-factor` ends "
    "where no single change is left; either ends with its budget. Arms that were not launched are not measured.",
    holds_for=_EVERY,
)
ENOUGH_PROMPTS = FindingKind(
    code="enough-prompts",
    severity="note",
    title="An arm did not need every prompt",
    explanation="A search with `predict` asks an arm no more once its ratio to plain decoding is known well enough to "
    "choose the next launch: a standard error of one and a half margins, or of half the `precision` asked for. The "
    "trial is complete and compared on the prompts it had. It ended by how its prompts scatter and never by how fast "
    "they were, so its interval holds; it is wider than that of every prompt. The arm's tok/s is over these prompts "
    "alone: compare speedups, which are paired.",
    effect="its interval is wider than it would be with every prompt",
    remedy="`precision: 0.02` asks for more; `search: all` asks every prompt of every arm; with `repetitions: 2` the "
    "winner is launched again and asked everything",
    holds_for=_EVERY,
)
STOPPED_EARLY = FindingKind(
    code="arm-stopped-early",
    severity="note",
    title="An arm was stopped early: the rest of its prompts would not change the choice",
    explanation="In a search, an arm that lies below the best one on the same prompts is not measured to its end once "
    "the prompts left would make the winner less than 0.1 % faster on average: it is clearly worse, or prompts scatter "
    "so much that the rest of them would hardly tell, and under `predict` the model expected nothing better. Its trial "
    "is `pruned`; the requests that were answered are kept, and it is not compared.",
    effect="nothing is known of it beyond the bound",
    remedy="`search: all` measures every arm to its end",
    holds_for=_EVERY,
)
SOAK_HELD = FindingKind(
    code="soak-held",
    severity="note",
    title="The best arm held under load",
    explanation="With `soak_s`, the best arm runs under the largest load for so long before it is recommended.",
    holds_for=_EVERY,
)
SOAK_FAILED = FindingKind(
    code="soak-failed",
    severity="error",
    title="The best arm failed under load",
    explanation="With `soak_s`, the best arm runs under the largest load for so long before it is recommended. The "
    "server died, or requests failed.",
    effect="it was the fastest, and cannot be recommended",
    remedy="read the server's log in the trial's folder; take the next arm",
    holds_for=_EVERY,
)
PRECISION_NOT_REACHED = FindingKind(
    code="precision-not-reached",
    severity="warning",
    title="A speedup is not known as well as the study asks for",
    explanation="With `precision`, launches go on until the interval of each speedup (in a search, the winner's) is so "
    "narrow. The budget ended them before, an arm failed, or 20 launches of one arm were not enough. While a study "
    "runs, this is what it still works on. How much more it takes follows from the noise seen so far.",
    effect="the interval is wider than was wanted",
    remedy="raise `budget.max_trials` or `budget.max_minutes` and run the same command again: it goes on. More prompts "
    "are another workload, for a study of its own",
    holds_for=_EVERY,
)
SETTINGS_DIFFER = FindingKind(
    code="effective-settings-differ",
    severity="warning",
    title="The server runs with other settings than were asked for",
    explanation="Engines rewrite settings that they find impossible or unwise, some with a line in the log.",
    effect="the figures belong to what ran, not to the arm's name",
    remedy="change the arm to what the engine accepts, or find the flag that overrides it",
    holds_for="engines that report their settings",
)
MODEL_DIFFERS = FindingKind(
    code="served-model-differs",
    severity="error",
    title="The server serves another model than it was started with",
    explanation="The model it lists is neither the target nor a name in its command.",
    effect="the figures belong to the model that was served",
    remedy="look for a flag, a configuration file or a router that chooses the model",
    holds_for=_EVERY,
)
REQUEST_FIELD_IGNORED = FindingKind(
    code="request-field-ignored",
    severity="warning",
    title="A field of the requests changed nothing",
    explanation="Arms that differ only in this field of their requests drafted and kept exactly as many tokens, "
    "whatever its value. Engines take fields that they do not heed without a word: some llama.cpp builds accept "
    "`speculative.n_max` in a request, and draft as their command line says.",
    effect="these arms are one configuration under several names; what their speeds differ by is noise",
    remedy="set it by a flag, each value in a launch of its own, or use a build that heeds it. A field that is not "
    "meant to change drafts is judged by the speeds alone",
    holds_for="engines that count drafts",
    sources=("measured",),
)
WORKLOAD_CHANGED = FindingKind(
    code="workload-changed",
    severity="warning",
    title="Trials of another workload are in this directory",
    explanation="They are kept, and left out of every comparison.",
    effect="two arms are comparable only under the same prompts, sampling and load",
    remedy="use a new study directory for a new workload",
    holds_for=_EVERY,
)

KINDS: tuple[FindingKind, ...] = (
    NO_BASELINE,
    IMPORTED,
    DEAD_DRAFTER,
    SPECULATION_OFF,
    ACCEPTANCE_UNKNOWN,
    IMPOSED_NOT_REACHED,
    OUTPUT_CHANGED,
    LENGTH_CHANGED,
    CACHED_PROMPTS,
    FOREIGN_TRAFFIC,
    LOAD_NOT_REACHED,
    OVER_SATURATED,
    CLIENT_LIMITED,
    BASELINE_DRIFT,
    NODES_DIFFER,
    LAUNCH_NOISE,
    ARM_FAILED,
    REQUESTS_FAILED,
    LAUNCHED_AGAIN,
    SEARCH_ENDED,
    ENOUGH_PROMPTS,
    STOPPED_EARLY,
    SOAK_HELD,
    SOAK_FAILED,
    PRECISION_NOT_REACHED,
    SETTINGS_DIFFER,
    MODEL_DIFFERS,
    REQUEST_FIELD_IGNORED,
    WORKLOAD_CHANGED,
)
