"""Small result files in the layouts of other tools, as dictionaries to write and to change."""

import json
from pathlib import Path
from typing import Any


def vllm(**changed: Any) -> dict[str, Any]:
    base = {
        "date": "20260101-120000", "endpoint_type": "openai", "backend": "openai", "label": None,
        "model_id": "some/model", "tokenizer_id": "some/model", "num_prompts": 8, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": 4, "duration": 10.0, "completed": 8, "failed": 0,
        "total_input_tokens": 4096, "total_output_tokens": 1024, "request_throughput": 0.8, "request_goodput": None,
        "output_throughput": 102.4, "total_token_throughput": 512.0, "max_output_tokens_per_s": 120.0,
        "max_concurrent_requests": 5, "mean_ttft_ms": 200.0, "median_ttft_ms": 190.0, "std_ttft_ms": 20.0,
        "p99_ttft_ms": 260.0, "mean_tpot_ms": 30.0, "median_tpot_ms": 29.0, "std_tpot_ms": 2.0, "p99_tpot_ms": 36.0,
        "mean_itl_ms": 30.0, "median_itl_ms": 28.0, "std_itl_ms": 4.0, "p99_itl_ms": 50.0,
    }  # fmt: skip
    return base | changed


def sglang(**changed: Any) -> dict[str, Any]:
    base = {
        "tag": None, "backend": "sglang", "dataset_name": "random", "request_rate": float("inf"), "max_concurrency": 4,
        "sharegpt_output_len": None, "random_input_len": 512, "random_output_len": 128, "random_range_ratio": 1.0,
        "duration": 8.0, "completed": 8, "total_input_tokens": 4104, "total_output_tokens": 1024,
        "total_output_tokens_retokenized": 1020, "request_throughput": 1.0, "input_throughput": 513.0,
        "output_throughput": 128.0, "total_throughput": 641.0, "mean_e2e_latency_ms": 3900.0,
        "median_e2e_latency_ms": 3880.0, "std_e2e_latency_ms": 50.0, "p99_e2e_latency_ms": 4000.0,
        "mean_ttft_ms": 150.0, "median_ttft_ms": 148.0, "std_ttft_ms": 9.0, "p99_ttft_ms": 170.0,
        "mean_tpot_ms": 25.0, "median_tpot_ms": 25.0, "std_tpot_ms": 1.0, "p99_tpot_ms": 28.0, "mean_itl_ms": 25.0,
        "median_itl_ms": 24.0, "std_itl_ms": 3.0, "p95_itl_ms": 31.0, "p99_itl_ms": 40.0, "concurrency": 3.9,
        "accept_length": None,
    }  # fmt: skip
    return base | changed


def _metric(unit: str, avg: float) -> dict[str, Any]:
    return {"unit": unit, "avg": avg, "p50": avg * 0.98, "p90": avg * 1.1, "p95": avg * 1.2, "p99": avg * 1.4}


def aiperf(**changed: Any) -> dict[str, Any]:
    base = {
        "schema_version": "1.3",
        "aiperf_version": "0.12.0",
        "request_throughput": {"unit": "requests/sec", "avg": 0.9},
        "request_latency": _metric("ms", 4000.0),
        "request_count": {"unit": "requests", "avg": 8},
        "time_to_first_token": _metric("ms", 180.0),
        "inter_token_latency": _metric("ms", 28.0),
        "output_token_throughput": {"unit": "tokens/sec", "avg": 115.2},
        "output_sequence_length": _metric("tokens", 128.0),
        "input_sequence_length": _metric("tokens", 512.0),
        "benchmark_duration": {"unit": "sec", "avg": 9.0},
        "input_config": {"endpoint": {"model_names": ["some/model"]}, "loadgen": {"concurrency": 4}},
        "was_cancelled": False,
        "error_summary": [],
    }
    return base | changed


def _status(mean: float) -> dict[str, Any]:
    spread = {"p01": mean, "p50": mean, "p90": mean * 1.1, "p95": mean * 1.2, "p99": mean * 1.3}
    one = {"mean": mean, "median": mean, "variance": 0.1, "std_dev": 0.3, "count": 8, "percentiles": spread}
    return {"successful": one, "errored": {"mean": 0.0}, "incomplete": {"mean": 0.0}, "total": one}


def guidellm(**metrics: Any) -> dict[str, Any]:
    base = {
        "request_totals": {"successful": 8, "errored": 0, "incomplete": 0, "total": 8},
        "requests_per_second": _status(0.85),
        "request_latency": _status(4.1),
        "prompt_token_count": _status(512.0),
        "output_token_count": _status(128.0),
        "time_to_first_token_ms": _status(190.0),
        "time_per_output_token_ms": _status(32.0),
        "inter_token_latency_ms": _status(29.0),
        "output_tokens_per_second": _status(108.8),
        "tokens_per_second": _status(544.0),
    }
    entry = {
        "config": {"strategy": {"type_": "concurrent", "streams": 4}},
        "duration": 9.4,
        "metrics": base | metrics,
    }
    return {
        "metadata": {"version": 2, "guidellm_version": "0.7.0"},
        "args": {"model": "some/model", "backend": "openai_http"},
        "benchmarks": [entry],
    }


def llama_bench(prompt: int, output: int, rate: float, **changed: Any) -> dict[str, Any]:
    base = {
        "build_commit": "4df29be", "build_number": 6000, "cpu_info": "Some processor", "gpu_info": "",
        "backends": "CPU", "model_filename": "models/some-Q4_0.gguf", "model_type": "llama 135M Q4_0",
        "model_size": 91_000_000, "model_n_params": 134_000_000, "n_batch": 2048, "n_ubatch": 512, "n_threads": 2,
        "type_k": "f16", "type_v": "f16", "n_gpu_layers": -1, "flash_attn": -1, "n_prompt": prompt, "n_gen": output,
        "n_depth": 0, "test_time": "2026-01-01T12:00:00Z", "avg_ns": round((prompt + output) / rate * 1e9),
        "stddev_ns": 0, "avg_ts": rate, "stddev_ts": 0.0, "samples_ns": [1], "samples_ts": [rate],
    }  # fmt: skip
    return base | changed


def write(path: Path, data: Any) -> Path:
    """`.jsonl` gets a line for each object of a list, anything else the JSON as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = data if path.suffix == ".jsonl" else [data]
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path
