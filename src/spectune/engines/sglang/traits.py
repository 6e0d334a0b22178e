"""The constants of SGLang, read in SGLang 0.5.23."""

from spectune.engines.traits import EngineTraits, ParallelFlags

TRAITS = EngineTraits(
    name="sglang",
    title="SGLang",
    port=30000,
    host="127.0.0.1",
    image="lmsysorg/sglang:v{version}",
    launch_s=60.0,
    needs_drafter=frozenset({"draft_model", "eagle", "eagle3", "dflash", "dspark"}),
    parallel=ParallelFlags(
        tensor=("tp-size", "tensor-parallel-size", "tp"),
        pipeline=("pp-size", "pipeline-parallel-size", "pp"),
        replicas=("dp-size", "data-parallel-size", "dp"),
        attention=("attn-dp-size", "attention-data-parallel-size", "attn-dp"),
        shared="enable-dp-attention",
    ),
)
