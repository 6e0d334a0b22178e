#!/usr/bin/env python3
"""The Hugging Face form of a Llama model that is at hand as GGUF: bf16 safetensors, config, tokenizer.

llama.cpp serves the embedded model from its GGUF; vLLM and SGLang want a folder.
Run with the Python of an engine environment (needs gguf, safetensors, tokenizers,
torch, transformers; see ``install.py``)::

    ENGINES/sglang/bin/python tools/engines/make_hf_model.py

The weights are those of the quantised file, dequantised, so the result is the
same model as the GGUF up to bf16 rounding, not the one originally published.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "src"))
from spectune.drafter.export.hf_form import write_hf_form
from spectune.embedded.models import TARGET, embedded_target_path
from spectune.errors import SpectuneError
from spectune.home import data_home
from spectune.store.replacing import replace_folder


def say(started: float, text: str) -> None:
    print(f"[{time.monotonic() - started:6.1f} s] {text}", flush=True)


def continuation(folder: Path, question: str, *, num_tokens: int = 24) -> str:
    """The model's greedy answer, loaded the ordinary way: proof that the folder is whole."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, output_loading_info=True)
    wrong = {kind: names for kind, names in info.items() if names and kind != "error_msgs"}
    if wrong:
        raise SystemExit(f"transformers loads the folder with wrong tensors: {wrong}")
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    with torch.inference_mode():
        ids = model.generate(**prompt, max_new_tokens=num_tokens, do_sample=False)
    return str(tokenizer.decode(ids[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


def main() -> int:
    home = data_home()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--gguf", type=Path, default=embedded_target_path(home), help="(default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=Path, default=home / "models" / f"{TARGET}-hf", help="(default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="make it again if it is there")
    parser.add_argument(
        "--expect",
        default="Paris",
        help="text the greedy answer must contain; '' checks that it is not empty",
    )
    parser.add_argument("--ask", default="What is the capital of France?", help="question of the check")
    options = parser.parse_args()
    started = time.monotonic()

    if (options.out / "config.json").is_file() and not options.force:
        say(started, f"{options.out} is there already (--force makes it again)")
        return 0
    if not options.gguf.is_file():
        print(f"no GGUF at {options.gguf}: give one with --gguf", file=sys.stderr)
        return 2
    say(started, "dequantising")
    making = options.out.with_name(f".{options.out.name}-unchecked")
    try:
        write_hf_form(options.gguf, making)
        say(started, "loading the result and asking it a question")
        answer = continuation(making, options.ask)
        if not answer.strip() or options.expect.lower() not in answer.lower():
            print(f"the converted model answers {options.ask!r} with {answer!r}", file=sys.stderr)
            return 1
        say(started, f"answer: {answer!r}")
        replace_folder(making, options.out)
    except SpectuneError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    finally:
        shutil.rmtree(making, ignore_errors=True)
    size_mb = sum(path.stat().st_size for path in options.out.iterdir()) / 1e6
    say(started, f"wrote {options.out} ({size_mb:.0f} MB)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
