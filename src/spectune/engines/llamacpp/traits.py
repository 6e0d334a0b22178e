"""The constants of llama.cpp, read in xllamacpp 2026.10.11549."""

from spectune.engines.traits import EngineTraits

TRAITS = EngineTraits(
    name="llamacpp",
    title="llama.cpp",
    port=9931,
    host="127.0.0.1",
    image="ghcr.io/ggml-org/llama.cpp:server",
    launch_s=3.0,
    needs_drafter=frozenset({"draft_model", "eagle3", "dflash", "dspark"}),
)
