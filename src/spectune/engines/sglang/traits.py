"""The constants of SGLang, read in SGLang 0.5.23."""

from spectune.engines.traits import CommandForms, EngineTraits, ParallelFlags, Words


def _image_server(path: str, tag: str, words: Words) -> tuple[str, Words] | None:
    starts = "sglang" in path and words and words[0].startswith("-")
    return ("sglang (the image's entry point)", words) if starts else None


TRAITS = EngineTraits(
    name="sglang",
    title="SGLang",
    port=30000,
    host="127.0.0.1",
    image="lmsysorg/sglang:v{version}",
    launch_s=60.0,
    methods={
        "ngram": "NGRAM",
        "draft_model": "STANDALONE",
        "eagle": "EAGLE",
        "eagle3": "EAGLE3",
        "mtp": "NEXTN",
        "dflash": "DFLASH",
        "dspark": "DSPARK",
    },
    method_flag="--speculative-algorithm {word}",
    needs_drafter=frozenset({"draft_model", "eagle", "eagle3", "dflash", "dspark"}),
    target_flags=("model-path",),
    draft_flags=("speculative-draft-model-path",),
    parallel=ParallelFlags(
        tensor=("tp-size", "tensor-parallel-size", "tp"),
        pipeline=("pp-size", "pipeline-parallel-size", "pp"),
        replicas=("dp-size", "data-parallel-size", "dp"),
        attention=("attn-dp-size", "attention-data-parallel-size", "attn-dp"),
        shared="enable-dp-attention",
    ),
    command=CommandForms(
        shown="sglang serve, python -m sglang.launch_server",
        modules=("sglang.launch_server", "sglang.srt.entrypoints.http_server"),
        subcommands={"sglang": ("serve",), "sglang.cli.main": ("serve",)},
        scripts=("sglang/launch_server.py",),
        model_word="first",
        image_server=_image_server,
        config_file="equals",
    ),
    distributions=("sglang",),
    answers=("/server_info", ("speculative_algorithm",)),
    token_id_fields={"return_token_ids": True},
)
