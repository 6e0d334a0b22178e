"""Pasted shell text gives the words that bash itself makes of it."""

import contextlib
import shutil
import subprocess
import sys
import time

import pytest

from spectune.errors import BadInput
from spectune.preflight.command.shell_words import UNRESOLVED
from spectune.preflight.command.text import read_text

SCRIPTS = {
    "quotes": """vllm serve 'a b' "c  d" e\\ f g"h i"'j' "" --x='{"a": 1}'""",
    "escapes in quotes": r"""vllm "a\"b" "c\\d" 'e\f' g\"h $'i\tj'""",
    "continued": "vllm serve m \\\n  --a 1 \\\n  --b=2 # a comment\n",
    "a blank behind the backslash": "vllm serve m \\ \n  --b 2\n",
    "variables": "M=org/m; P=8000\nvllm serve $M --port=${P} \"$M $P\" '$M'",
    "blanks in a variable": 'A="--x 1  --y 2"; vllm serve m $A "$A" p$A',
    "an empty variable": 'A=""; vllm $A serve "$A" m',
    "appended": 'A="--x"; A+=" 1"; A+=y; vllm $A',
    "an array": 'A=( vllm serve m\n  --a 1   # one\n  "b c"\n)\nA+=(--last)\n"${A[@]}"',
    "elements": 'A=(x "y z"); vllm ${A[1]} "${A[1]}" $A "${A[@]}"w v"${A[@]}"',
    "defaults": 'A=1; E=; vllm ${A:-2} ${NO:-3} ${NO-4} ${E:-5} "${NO:-a b}" ${NO:-a b} ${A:+6} ${NO:+7} ${NO:-$A}',
    "kept defaults": "vllm ${K:=9} $K",
    "prefixes and suffixes": "M=org/name.gguf; vllm ${M##*/} ${M%.gguf} ${M#*/} ${M%%/*} ${M^^}",
    "sums": "A=3; vllm $((A + 1)) $((8000+A*2)) $(( (A-5)/2 )) $((7 % 4))",
    "positional": 'set -- a "b c"; vllm $1 "$2" "$@"; shift; vllm "$@"',
    "a function": 'serve() { local m="$1"; shift; vllm serve "$m" "$@"; }\nserve org/m --x "1 2"',
    "branches that agree": "if true; then A=1; else A=1; fi; vllm $A",
    "a case": 'X=b; case "$X" in a) B=1 ;; *) B=1 ;; esac; vllm $B',
    "one value to loop over": "for k in 3; do vllm --k $k; done",
    "redirections": "vllm serve m >/dev/stdout 2>&1 --x 1 </dev/null",
    "lists and pipes": "true && vllm a || vllm b; vllm c | cat; ! vllm d; { vllm e; }; (vllm f)",
    "a here document": "cat > /dev/null <<EOF\nvllm serve no\nEOF\nvllm serve yes",
    "eval": 'A="vllm serve \'a b\'"; eval $A; eval "$A --x"',
    "an apostrophe in a substitution": 'N="$(echo "it\'s")"; vllm serve m',
    "brackets and braces": 'vllm {"a":1} [1,2] --x={a} a=b',
    "a prefix": "FOO=1 vllm serve m",
}


def by_bash(script: str) -> list[list[str]]:
    told = 'vllm() { printf "%s\\0" vllm "$@"; printf "\\1"; }\n'
    reply = subprocess.run(
        ["bash", "--norc", "-c", told + script], capture_output=True, text=True, timeout=60, check=False
    )
    return [one.split("\0")[:-1] for one in reply.stdout.split("\1")[:-1]]


def ours(script: str) -> list[list[str]]:
    told = [list(command.words) for command in read_text(script)]
    return [words[words.index("vllm") :] for words in told if "vllm" in words]


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash to compare with")
@pytest.mark.parametrize("name", SCRIPTS)
def test_the_words_are_those_of_bash(name: str) -> None:
    expected = by_bash(SCRIPTS[name])
    if name == "a blank behind the backslash":
        expected = [
            ["vllm", "serve", "m"]
        ]  # bash passes a word of one blank, of which there is nothing to check
    if name == "lists and pipes":
        expected = [["vllm", letter] for letter in "abcdef"]  # bash leaves out b
    assert ours(SCRIPTS[name]) == expected


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve $HOME/m",
        "vllm serve `pwd`",
        "vllm serve $(pwd)",
        'if [ -n "$A" ]; then M=a; else M=b; fi; vllm serve $M',
        'if [ -n "$A" ]; then M=a; fi; vllm serve $M',
        "while read M; do vllm serve $M; done",
        "case $X in a) M=1 ;; b) M=2 ;; esac; vllm serve $M",
        "vllm serve <model>",
        "vllm serve {model}",
    ],
)
def test_what_the_text_does_not_decide_is_marked(text: str) -> None:
    assert UNRESOLVED in read_text(text)[-1].words[2]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("$ vllm serve m \\\n>   --x 1", ["vllm", "serve", "m", "--x", "1"]),
        ("(venv) me@box:~/a$ vllm serve m", ["vllm", "serve", "m"]),
        ("root@box:/w# vllm serve m", ["vllm", "serve", "m"]),
        ("!vllm serve m", ["vllm", "serve", "m"]),
        ("%%bash\nvllm serve m", ["vllm", "serve", "m"]),
        ("vllm serve m ^\n --x 1", ["vllm", "serve", "m", "--x", "1"]),
        ("vllm serve m `\n --x 1", ["vllm", "serve", "m", "--x", "1"]),
        ("Run it:\n```bash\nvllm serve m \\\n  --x 1\n```\nIt's there.", ["vllm", "serve", "m", "--x", "1"]),
        ("vllm serve m --x 1 ...", ["vllm", "serve", "m", "--x", "1"]),
        ("vllm serve m [OPTIONS]", ["vllm", "serve", "m"]),
    ],
)
def test_what_pages_put_around_a_command_is_left_out(text: str, words: list[str]) -> None:
    assert ours(text) == [words]


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_quote_that_is_never_closed_is_named_with_its_line(quote: str) -> None:
    with pytest.raises(BadInput, match=rf"line 2: the quote {quote} is never closed: {quote}open"):
        read_text(f"# one\nvllm serve m --x {quote}open\n --y 2")


@pytest.mark.parametrize(
    "piece", ["(", "{ ", "$((", "if a; then ", "${A:-", '"$(', "f() { f; }; f; ", "<<A ", "`", "a=("]
)
def test_hostile_text_ends_soon(piece: str) -> None:
    began = time.process_time()
    with contextlib.suppress(BadInput):
        read_text(piece * 2000)
    assert time.process_time() - began < 20


def test_characters_beyond_ascii_are_kept_and_end_nothing() -> None:
    """The grammar's own scanner reads beyond a table of 256 characters; a process of its own would die of it."""
    code = (
        "import random; from spectune.errors import BadInput; "
        "from spectune.preflight.command.text import read_text; r = random.Random(1)\n"
        "for _ in range(1500):\n"
        "    text = ''.join(chr(r.choice([r.randint(1, 127), r.randint(0xe100, 0x10ffff)])) for _ in range(200))\n"
        "    try: read_text(text)\n"
        "    except BadInput: pass\n"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120, check=False).returncode == 0
    words = ["vllm", "serve", "größe/模型", "--x", f"é {UNRESOLVED}$A", "😀"]
    assert ours("vllm serve 'größe/模型' --x \"é $A\" 😀") == [words]
