"""Writes `golden_tokens.json`: what transformers makes of each text with each catalogue model's GGUF tokenizer.

Building those takes transformers more than a minute, so the tests compare with this file.
Run as `python -m tests.load.make_golden_tokens` after changing the texts.
"""

import json
from pathlib import Path

from fuseboard.load.catalogue import CATALOGUE
from fuseboard.load.resolve import resolve_model

GOLDEN = Path(__file__).with_name("golden_tokens.json")

TEXTS = (
    "Hello world",
    "  leading and trailing  ",
    "a  b   c    d     e",
    " " * 31 + "x",
    "tabs\t\tand\n\n\nnewlines\r\n",
    "def f(x):\n    return x ** 2  # comment\n\n\tif x:\n        pass\n",
    "12345 3.14159 1,000,000 ½ ²",
    "don't we'll I'M THEY'RE",
    "Zażółć gęślą jaźń, Ελληνικά, Привет мир",
    "日本語のテキスト。你好\uff0c世界\uff01한국어",
    "مرحبا بالعالم नमस्ते दुनिया ไทย",
    "🙂🤖👩‍👩‍👧‍👦 🇵🇱",
    "<|im_start|>user\nhi<|im_end|>\n<start_of_turn>user\nhey<end_of_turn>",
    "<table><tr><td>x</td></tr></table>",
    "…—“quotes” \u00a0nbsp\u200bzwsp",
    "",
    "e\u0301 \u00e9",
    ".,;:!?()[]{}\\/|@#$%^&*~`",
    " \n \n  \t ",
    "https://example.com/a?b=c&d=%20",
)


def main() -> None:
    from transformers import AutoTokenizer

    golden = {}
    for name in CATALOGUE:
        path = resolve_model(name)
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
        golden[name] = {text: tokenizer(text)["input_ids"] for text in TEXTS}
    GOLDEN.write_text(json.dumps(golden, indent=0, ensure_ascii=True) + "\n")


if __name__ == "__main__":
    main()
