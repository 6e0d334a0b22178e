"""The constants of llama.cpp, read in xllamacpp 2026.10.11549."""

import re

from spectune.engines.traits import CommandForms, EngineTraits, Words

_BUILD = re.compile(r"(?:^|-)b(\d{3,6})(?:-|$)")
_VERSION = re.compile(r"version:\s*b?(\d+)\s*\(([0-9a-f]+)\)|xllamacpp\s+(\S+)")


def _image_server(path: str, tag: str, words: Words) -> tuple[str, Words] | None:
    if "llama.cpp" not in path and "llama-cpp" not in path:
        return None
    if words[:1] in (("--server",), ("-s",)):
        return "llama-server", words[1:]
    return ("llama-cli" if tag.startswith(("light", "full")) else "llama-server"), words


def _tag_version(tag: str) -> str | None:
    found = _BUILD.search(tag)
    return f"b{found[1]}" if found else None


def _program_version(answer: str) -> str | None:
    found = _VERSION.search(answer)
    if found is None:
        return None
    return f"b{found[1]}" if found[1] else f"xllamacpp {found[3]}"


TRAITS = EngineTraits(
    name="llamacpp",
    title="llama.cpp",
    port=9931,
    host="127.0.0.1",
    image="ghcr.io/ggml-org/llama.cpp:server",
    launch_s=3.0,
    methods={
        "ngram": "ngram-simple",
        "draft_model": "draft-simple",
        "eagle3": "draft-eagle3",
        "mtp": "draft-mtp",
        "dflash": "draft-dflash",
        "dspark": "draft-dspark",
        "ngram-map-k": "ngram-map-k",
        "ngram-map-k4v": "ngram-map-k4v",
        "ngram-mod": "ngram-mod",
        "ngram-cache": "ngram-cache",
    },
    method_flag="--spec-type {word}",
    needs_drafter=frozenset({"draft_model", "eagle3", "dflash", "dspark"}),
    target_flags=("model", "hf-repo", "model-url", "docker-repo"),
    draft_flags=("spec-draft-model", "spec-draft-hf"),
    variables={
        "LLAMA_ARG_MODEL": "model",
        "LLAMA_ARG_HF_REPO": "hf-repo",
        "LLAMA_ARG_CTX_SIZE": "ctx-size",
        "LLAMA_ARG_N_PARALLEL": "parallel",
        "LLAMA_ARG_HOST": "host",
        "LLAMA_ARG_PORT": "port",
        "LLAMA_ARG_N_GPU_LAYERS": "gpu-layers",
        "LLAMA_ARG_N_GPU_LAYERS_DRAFT": "spec-draft-ngl",
        "LLAMA_ARG_SPEC_TYPE": "spec-type",
        "LLAMA_ARG_SPEC_DRAFT_MODEL": "spec-draft-model",
        "LLAMA_ARG_SPEC_DRAFT_HF_REPO": "spec-draft-hf",
        "LLAMA_ARG_SPEC_DRAFT_N_MAX": "spec-draft-n-max",
        "LLAMA_ARG_SPEC_DRAFT_N_MIN": "spec-draft-n-min",
        "LLAMA_ARG_SPEC_DRAFT_P_MIN": "spec-draft-p-min",
        "LLAMA_ARG_SPEC_SYNTH_LEN": "spec-synth-len",
        "LLAMA_ARG_SPEC_SYNTH_RATES": "spec-synth-rates",
        "LLAMA_API_KEY": "api-key",
    },
    command=CommandForms(
        shown="llama-server, llama-cli",
        modules=("spectune.embedded.llama_server",),
        programs=("llama-server", "llama-cli"),
        subcommands={"llama": ("serve", "server", "cli")},
        image_server=_image_server,
        tag_version=_tag_version,
    ),
    distributions=("xllamacpp",),
    distribution_version="xllamacpp {version}",
    program_version=_program_version,
    answers=("/props", ("build_info", "default_generation_settings")),
    token_id_fields={"return_tokens": True, "verbose": True},
    divides_context=True,
)
