"""The constants of vLLM, read in vLLM 0.32.0."""

from spectune.engines.traits import EngineTraits, ParallelFlags

TRAITS = EngineTraits(
    name="vllm",
    title="vLLM",
    port=8000,
    image="vllm/vllm-openai:v{version}",
    launch_s=100.0,
    needs_drafter=frozenset(
        {"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"}
    ),
    parallel=ParallelFlags(
        tensor=("tensor-parallel-size", "tp", "tp-size"),
        pipeline=("pipeline-parallel-size", "pp", "pp-size"),
        replicas=("data-parallel-size", "dp", "dp-size"),
        context=("prefill-context-parallel-size", "pcp"),
    ),
)
