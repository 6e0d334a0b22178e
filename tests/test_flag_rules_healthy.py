"""Commands that people run and that work: no error, no warning."""

import pytest
from flag_judging import alarms, judged

EAGLE3_SGLANG = "--speculative-algorithm EAGLE3 --speculative-draft-model-path"

SGLANG = [
    # plain servers
    "python -m sglang.launch_server --model-path meta-llama/Llama-3.1-8B-Instruct",
    "python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B-Instruct --host 0.0.0.0 --port 30000 --tp 2",
    "sglang serve --model-path Qwen/Qwen3-8B --context-length 8192 --mem-fraction-static 0.85 --enable-metrics",
    "sglang serve Qwen/Qwen3-8B --trust-remote-code",
    "python -m sglang.launch_server --model-path m --tp-size 8 --dp-size 2 --kv-cache-dtype fp8_e5m2",
    "python -m sglang.launch_server --model-path m --nnodes 2 --node-rank 0 --dist-init-addr 10.0.0.1:5000 --tp 16",
    # EAGLE-3, chains and trees (model cards and the engine's documentation)
    f"python3 -m sglang.launch_server --model meta-llama/Llama-3.1-8B-Instruct {EAGLE3_SGLANG} "
    "jamesliu1/sglang-EAGLE3-Llama-3.1-Instruct-8B --speculative-num-steps 5 --speculative-eagle-topk 8 "
    "--speculative-num-draft-tokens 32 --mem-fraction 0.6 --dtype float16",
    f"python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B {EAGLE3_SGLANG} AngelSlim/Qwen3-8B_eagle3 "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4",
    f"python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 {EAGLE3_SGLANG} lightseekorg/kimi-k2.5-eagle3 "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --tp 8 --trust-remote-code",
    f"python -m sglang.launch_server --model-path Qwen/Qwen3-235B-A22B {EAGLE3_SGLANG} lmsys/Qwen3-235B-A22B-EAGLE3 "
    "--speculative-num-steps 6 --speculative-eagle-topk 10 --speculative-num-draft-tokens 32 --tp 8 "
    "--attention-backend flashinfer --max-running-requests 64",
    f"sglang serve --model-path m {EAGLE3_SGLANG} d",
    f"sglang serve --model-path m --quantization fp8 {EAGLE3_SGLANG} d --speculative-draft-model-quantization unquant "
    "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6",
    f"sglang serve --model-path m {EAGLE3_SGLANG} d --speculative-adaptive",
    f"sglang serve --model-path m {EAGLE3_SGLANG} d --speculative-adaptive --speculative-num-steps 5",
    f"sglang serve --model-path m {EAGLE3_SGLANG} d --speculative-num-steps 3 --speculative-eagle-topk 1 "
    "--speculative-num-draft-tokens 4 --speculative-use-rejection-sampling --cuda-graph-max-bs-decode 32",
    f"sglang serve --model-path m {EAGLE3_SGLANG} d --speculative-num-steps 3 --speculative-eagle-topk 4 "
    "--speculative-num-draft-tokens 16 --attention-backend fa3 --page-size 64",
    # EAGLE, MTP, stand-alone, n-gram, block drafts
    "python -m sglang.launch_server --model meta-llama/Llama-2-7b-chat-hf --speculative-algorithm EAGLE "
    "--speculative-draft-model-path lmsys/sglang-EAGLE-llama2-chat-7B --speculative-num-steps 3 "
    "--speculative-eagle-topk 4 --speculative-num-draft-tokens 16",
    "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --speculative-algorithm NEXTN "
    "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --tp 8 --trust-remote-code",
    "sglang serve --model-path zai-org/GLM-4.6 --speculative-algorithm EAGLE --speculative-num-steps 3 "
    "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --tp 8 --attn-dp-size 8",
    "sglang serve --model-path m --speculative-algorithm STANDALONE --speculative-draft-model-path Qwen/Qwen3-0.6B",
    "sglang serve --model-path m --speculative-algorithm NGRAM",
    "sglang serve --model-path m --speculative-algorithm ngram --speculative-num-draft-tokens 16 "
    "--speculative-ngram-max-bfs-breadth 4",
    "sglang serve --model-path m --speculative-algorithm DFLASH --speculative-draft-model-path z-lab/Qwen3-8B-DFlash",
    "sglang serve --model-path m --speculative-algorithm DFLASH --speculative-draft-model-path d "
    "--speculative-num-draft-tokens 16 --speculative-dflash-block-size 16",
    "sglang serve --model-path m --speculative-algorithm DSPARK --speculative-draft-model-path d "
    "--speculative-dspark-block-size 7 --speculative-num-draft-tokens 8",
    "docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/.cache/huggingface:/cache "
    "--env HF_TOKEN=x --ipc=host lmsysorg/sglang:latest python3 -m sglang.launch_server --model-path m "
    "--host 0.0.0.0 --port 30000 --tp 8",
]

VLLM = [
    "vllm serve meta-llama/Llama-3.1-8B-Instruct",
    "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768 --gpu-memory-utilization 0.9",
    "python -m vllm.entrypoints.openai.api_server --model m --host 127.0.0.1 --port 8000 --max-num-seqs 256",
    "vllm serve m --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3",
    "VLLM_USE_V1=1 vllm serve m -tp 8 --enable-expert-parallel --no-enable-prefix-caching --max_model_len 128k",
    'vllm serve m --speculative-config \'{"method":"eagle3","model":"yuhuili/EAGLE3-LLaMA3.1-Instruct-8B",'
    '"num_speculative_tokens":3}\'',
    'vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 4 --speculative-config \'{"model": "yuhuili/EAGLE3-LLaMA3.3-'
    'Instruct-70B", "draft_tensor_parallel_size": 1, "num_speculative_tokens": 3, "method": "eagle3"}\'',
    'vllm serve m --speculative-config \'{"method":"eagle","model":"yuhuili/EAGLE-LLaMA3-Instruct-8B",'
    '"num_speculative_tokens":2}\'',
    'vllm serve m --speculative-config \'{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4,'
    '"prompt_lookup_min":2}\'',
    'vllm serve m --speculative-config \'{"method":"ngram","num_speculative_tokens":5,"prompt_lookup_max":4}\'',
    'vllm serve deepseek-ai/DeepSeek-V3 -tp 8 --speculative-config \'{"method":"mtp","num_speculative_tokens":1}\'',
    'vllm serve m --speculative-config \'{"method":"deepseek_mtp","num_speculative_tokens":1}\'',
    'vllm serve Qwen/Qwen3-Next --speculative-config \'{"method":"qwen3_next_mtp","num_speculative_tokens":2}\' -tp 4',
    'vllm serve m --speculative-config \'{"method":"draft_model","model":"Qwen/Qwen3-0.6B",'
    '"num_speculative_tokens":5}\'',
    'vllm serve m --speculative-config \'{"model":"Qwen/Qwen3-0.6B","num_speculative_tokens":5}\'',
    'vllm serve m --speculative-config \'{"method":"suffix"}\'',
    'vllm serve m --speculative-config \'{"method":"medusa","model":"d","num_speculative_tokens":3}\'',
    'vllm serve m --speculative-config \'{"method":"mlp_speculator","model":"ibm-ai-platform/llama3-8b-accelerator"}\'',
    'vllm serve m --speculative-config \'{"method":"dflash","model":"z-lab/Qwen3-8B-DFlash",'
    '"num_speculative_tokens":15}\'',
    'vllm serve m --speculative-config \'{"method":"dspark","model":"deepseek-ai/dspark_qwen3_8b_block7"}\'',
    "vllm serve m --speculative-config.method eagle3 --speculative-config.model d "
    "--speculative-config.num_speculative_tokens 3",
    "vllm serve m --spec-method eagle3 --spec-model d --spec-tokens 3 --per-request-spec-decode-metrics summary",
    "docker run --runtime nvidia --gpus all -v ~/.cache/huggingface:/cache "
    '--env "HUGGING_FACE_HUB_TOKEN=x" -p 8000:8000 --ipc=host vllm/vllm-openai:latest --model m -tp 2',
]

LLAMACPP = [
    "llama-server -m model.gguf",
    "llama-server -m model.gguf -c 8192 -ngl 99 --host 0.0.0.0 --port 8080 -np 4",
    "./llama-server -hf ggml-org/gemma-3-4b-it-GGUF:Q4_K_M --jinja -fa on -ctk q8_0 -ctv q8_0",
    "llama-server -m model.gguf -ngl 99 --mlock --no-mmap -t 8",
    "llama-server -m model.gguf -md draft.gguf --spec-type draft-simple --spec-draft-n-max 8 --spec-draft-p-min 0.75",
    "llama-server -m model.gguf -md eagle3.gguf --spec-type draft-eagle3 --spec-draft-n-max 3 -ngl 99 -ngld 99",
    "llama-server -m model.gguf --spec-type draft-mtp --spec-draft-n-max 2",
    "llama-server -m model.gguf -md d.gguf --spec-type draft-dflash",
    "llama-server -m model.gguf --spec-type ngram-simple --spec-ngram-simple-size-n 3 --spec-ngram-simple-size-m 8",
    "llama-server -m model.gguf --spec-type ngram-mod",
    "llama-server -m model.gguf --spec-type ngram-map-k,draft-simple -md d.gguf",
    "llama-server -m model.gguf --spec-default --metrics --slots",
    "docker run -p 8080:8080 -v /models:/models --gpus all ghcr.io/ggml-org/llama.cpp:server-cuda -m /models/m.gguf "
    "-c 512 --host 0.0.0.0 --port 8080 --n-gpu-layers 99",
]

HEALTHY = [*SGLANG, *VLLM, *LLAMACPP]


def test_there_are_many_healthy_commands() -> None:
    assert len(HEALTHY) == len(set(HEALTHY)) >= 60


@pytest.mark.parametrize("text", HEALTHY)
@pytest.mark.parametrize("version", ["current", None])
def test_a_healthy_command_gives_no_alarm(text: str, version: str | None) -> None:
    assert alarms(text, version=version) == {}


@pytest.mark.parametrize("text", HEALTHY)
def test_a_healthy_command_gives_no_alarm_with_one_request_in_flight(text: str) -> None:
    assert alarms(text, max_concurrency=1, max_prompt_tokens=100, max_tokens=28) == {}


OF_THEIR_TIME = [
    # valid then, refused now: with the version given they are right
    (
        f"python3 -m sglang.launch_server --model-path m {EAGLE3_SGLANG} d "
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4 --cuda-graph-max-bs 8",
        "0.5.3",
    ),
    ("python -m sglang.launch_server --model-path m --enable-ep-moe --disable-cuda-graph", "0.4.9"),
    ("vllm serve m --disable-log-requests --swap-space 16 --num-scheduler-steps 8", "0.8.5"),
    (
        "vllm serve m --speculative-model '[ngram]' --num-speculative-tokens 5 --ngram-prompt-lookup-max 4",
        "0.6.3",
    ),
    ("llama-server -m x.gguf -md d.gguf --draft-max 16 --draft-min 1 --draft-p-min 0.8 -ngld 99", "b5000"),
]


@pytest.mark.parametrize(("text", "version"), OF_THEIR_TIME)
def test_an_old_command_with_its_old_version_gives_no_alarm_but_is_not_checked(
    text: str, version: str
) -> None:
    assert alarms(text, version=version) == {}
    assert judged(text, version=version).not_checked


@pytest.mark.parametrize(("text", "version"), OF_THEIR_TIME)
def test_the_same_command_on_the_current_version_is_an_error(text: str, version: str) -> None:
    assert alarms(text)["flag-removed"] == "error"
